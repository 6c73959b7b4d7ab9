"""Single-row steps (``"hogwild"`` on sparse data), compared with plain NumPy in float64."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse
from sklearn.linear_model import LogisticRegression as SkLogistic

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.losses import LOSSES, LogLoss
from daskml_dist.optimizers import OPTIMIZERS, SGD, Adagrad
from daskml_dist.penalties import Penalty
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant
from daskml_dist.training.worker.loops import row_by_row
from daskml_dist.training.worker.loops.shared import _DampedRowSteps, _damping_factor
from tests.rules import one_group

RATE = 0.1
WITH_ROWS = sorted(name for name, optimizer in OPTIMIZERS.items() if optimizer.single_rows)
WITH_ENTRIES = sorted(
    name for name, optimizer in OPTIMIZERS.items() if optimizer.elementwise_update
)


def _rows(n_rows: int = 60, n_features: int = 40) -> tuple[Any, NDArray[np.float64]]:
    rng = np.random.default_rng(0)
    X = sparse.random_array((n_rows, n_features), density=0.15, rng=rng, format="csr")
    return X, np.where(X @ rng.normal(size=n_features) > 0, 1.0, -1.0)


def _shard(optimizer: Any, penalty: Penalty, n_features: int, dtype: Any = np.float64) -> Shard:
    rule = one_group(optimizer, Constant(RATE), penalty, n_features, 1.0, coordinates=True)
    return Shard(rule, ShardState(np.zeros((n_features + 1, 1), dtype), {}))


def _in_order(pieces: list[Any], order: Any) -> tuple[Any, Any, Any]:
    """Return blocks, and the block and number of each row in the order of visits."""
    place = np.repeat(np.arange(len(pieces)), [len(rows) for *_, rows in pieces])
    rows = np.concatenate([rows for *_, rows in pieces])
    return [piece[:3] for piece in pieces], place[order], rows[order]


def _run(shard: Shard, pieces: list[Any], order: Any) -> float:
    from daskml_dist.backends.row_steps import RowSteps

    penalty = shard.rule.only_group.penalty
    steps = RowSteps(LogLoss(), shard.rule.only_group.optimizer, penalty.l1, penalty.l2, True)
    cells = shard.interleave()
    total = steps.run(*_in_order(pieces, order), cells, RATE, shard.rate_sum)
    shard.count_row_steps([len(order)], RATE)
    return total


@pytest.mark.parametrize("name", sorted(n for n, loss in LOSSES.items() if loss.evaluate_row))
def test_one_row_equals_the_array_form(name: str) -> None:
    loss = LOSSES[name]()
    raw = np.concatenate([np.linspace(-3, 3, 41), [0.0, 1.0, -1.0, 0.1]])
    for y in (-1.0, 1.0) if loss.kind == "classification" else (0.0, 0.5, 2.0):
        values, slopes = loss.value_and_gradient(np.full(len(raw), y), raw.copy())
        rows = [loss.evaluate_row(y, float(r), loss.parameters) for r in raw]
        np.testing.assert_allclose(np.transpose(rows), [values, slopes], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", WITH_ENTRIES)
def test_one_entry_equals_the_array_form(name: str) -> None:
    optimizer, rng = OPTIMIZERS[name](), np.random.default_rng(0)
    w = rng.normal(size=9)
    opt_state = optimizer.init(w)
    state = tuple(a.copy() for a in (w, *(opt_state[n] for n in optimizer.state_names)))
    for step in range(1, 6):
        grad = rng.normal(size=len(w))
        for k in range(len(w)):
            optimizer.elementwise_update(state, k, grad[k], RATE, optimizer.coefficients(step))
        optimizer.update(w, grad, opt_state, RATE, step)
    for mine, theirs in zip(state, (w, *opt_state.values()), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


@pytest.mark.parametrize("name", WITH_ROWS)
def test_races_do_not_lengthen_steps(name: str) -> None:
    """Races may mix older parts of an entry's state; no mixture makes a longer step."""
    optimizer, rng = OPTIMIZERS[name](), np.random.default_rng(0)
    coefficients, new = (
        optimizer.coefficients(1),
        [np.zeros(1), *optimizer.init(np.zeros(1)).values()],
    )
    written = [[array[0]] for array in new]
    for _ in range(300):
        grad = rng.normal() * 10 ** rng.uniform(-3, 3)
        first = [array.copy() for array in new]
        optimizer.elementwise_update(first, 0, grad, RATE, coefficients)
        state = [np.array([rng.choice(values)]) for values in written]
        before = state[0][0]
        optimizer.elementwise_update(state, 0, grad, RATE, coefficients)
        assert abs(state[0][0] - before) <= abs(first[0][0]) + 1e-12 * abs(before)
        for values, array in zip(written, state, strict=True):
            values.append(array[0])


def _by_hand(X: Any, y: Any, order: Any, adagrad: bool, l1: float, l2: float) -> NDArray[Any]:
    """Return SGD or Adagrad row by row; a touched coefficient gets all pending penalties."""
    dense = np.hstack([X.toarray(), np.ones((X.shape[0], 1))])
    w, squares, last = np.zeros((3, dense.shape[1]))
    for t, i in enumerate(order, start=1):
        touched = dense[i] != 0
        since = np.where(np.arange(len(w)) < X.shape[1], t - last, 0)[touched]
        slope = -y[i] / (1 + np.exp(y[i] * (dense[i] @ w)))
        g = slope * dense[i, touched] + l2 * since * w[touched]
        squares[touched] += g**2
        size = RATE / np.sqrt(squares[touched]) if adagrad else RATE
        moved = w[touched] - size * g
        w[touched] = np.sign(moved) * np.maximum(abs(moved) - size * l1 * since, 0)
        last[touched] = t
    pending = RATE * (len(order) - last[:-1])
    w[:-1] /= 1 + pending * l2
    w[:-1] = np.sign(w[:-1]) * np.maximum(abs(w[:-1]) - pending * l1, 0)
    return w


@pytest.mark.parametrize("adagrad", [False, True])
@pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.0), (0.0, 0.01), (0.002, 0.01)])
def test_one_thread_equals_plain_numpy(adagrad: bool, l1: float, l2: float) -> None:
    X, y = _rows()
    order = np.random.default_rng(1).permutation(len(y))
    shard = _shard(Adagrad(epsilon=1e-300) if adagrad else SGD(), Penalty(l1, l2), X.shape[1])
    # Rows of two blocks are visited alternately.
    pieces = [
        (X[:25], y[:25], None, np.arange(25)),
        (X[20:], y[20:], None, np.arange(5, 40)),
    ]
    _run(shard, pieces, order)
    w = _by_hand(X, y, order, adagrad, l1, l2)
    np.testing.assert_allclose(shard.state().w[:, 0], w, rtol=1e-9, atol=1e-14)
    assert (w[:-1] != 0).sum() > 10


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 1e-4), (np.float64, 1e-10)])
def test_row_lengths_around_unrolled_loops(dtype: Any, rtol: float) -> None:
    """Products are unrolled by 4 entries; rows 2, 8 and 24 ahead are prefetched."""
    rng, lengths = np.random.default_rng(0), (*range(10), 15, 16, 17, 31, 33)
    for n in (1, 2, 3, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 33):
        dense = np.zeros((n, 40))
        for row, size in zip(dense, itertools.islice(itertools.cycle(lengths), n), strict=True):
            row[rng.choice(40, size, replace=False)] = rng.normal(size=size)
        y, order = rng.choice([-1.0, 1.0], n), rng.permutation(n)
        X = sparse.csr_array(dense.astype(dtype))
        shard = _shard(SGD(), Penalty(0.0, 0.01), 40, dtype)
        loss = _run(shard, [(X, y.astype(dtype), None, np.arange(n))], order)
        expected = _by_hand(X.astype(float), y, order, False, 0.0, 0.01)
        np.testing.assert_allclose(
            shard.state().w[:, 0], expected, rtol, rtol / 10, err_msg=f"{n} rows"
        )
        assert loss > 0


@pytest.mark.parametrize(
    ("dtype", "index_dtype"),
    [
        (np.float64, np.int32),
        pytest.param(np.float32, np.int32, marks=pytest.mark.slow),
        pytest.param(np.float64, np.int64, marks=pytest.mark.slow),
    ],
)
def test_duplicate_columns_of_a_row_are_summed(dtype: Any, index_dtype: Any) -> None:
    X, y = _rows()
    X = X.astype(dtype)
    y = y.astype(dtype)
    # Each entry is split into two halves, out of order; SGD moves by each of them.
    twice = sparse.csr_array(
        (
            np.repeat(X.data / 2, 2),
            np.repeat(X.indices, 2).astype(index_dtype),
            (2 * X.indptr).astype(index_dtype),
        ),
        shape=X.shape,
    )
    order = np.arange(len(y))
    results = []
    for rows in (X, twice):
        shard = _shard(SGD(), Penalty(0.0, 0.0), X.shape[1], dtype)
        loss = _run(shard, [(rows, y, None, order)], order)
        results.append([loss, *shard.w[:, 0]])
    np.testing.assert_allclose(*results, rtol=1e-4 if dtype == np.float32 else 1e-12)


def test_a_zero_rate_changes_nothing_and_keeps_pending_penalties() -> None:
    from daskml_dist.backends.row_steps import RowSteps

    X, y = _rows()
    order = np.arange(len(y))
    shard = _shard(Adagrad(), Penalty(0.001, 0.01), X.shape[1])
    steps = RowSteps(LogLoss(), Adagrad(), 0.001, 0.01, True)
    pieces, cells = [(X, y, None, order)], shard.interleave()
    steps.run(*_in_order(pieces, order), cells, RATE, 0.0)
    before = cells[:, [0, 2]].copy()
    steps.run(*_in_order(pieces, order), cells, 0.0, 6.0)
    np.testing.assert_array_equal(cells[:, [0, 2]], before)


def test_weights_scale_slopes_and_losses() -> None:
    X, y = _rows()
    order = np.arange(len(y))
    shards = [_shard(SGD(), Penalty(0.0, 0.0), X.shape[1]) for _ in range(2)]
    once = _run(shards[0], [(X, y, None, order)], order)
    none = _run(shards[1], [(X, y, np.zeros(len(y)), order)], order)
    assert once > 0
    assert none == 0
    assert not shards[1].w.any()


def _large(n_rows: int = 20_000) -> tuple[Any, NDArray[np.bool_]]:
    rng = np.random.default_rng(0)
    n_features, per_row = 8_192, 12
    columns = (n_features * rng.random((n_rows, per_row)) ** 3).astype(np.int32)
    X = sparse.csr_array(
        (np.ones(columns.size), columns.ravel(), np.arange(0, columns.size + 1, per_row)),
        shape=(n_rows, n_features),
    )
    X.sum_duplicates()
    return X, X @ rng.normal(size=n_features) > 0


def _loss(clf: Any, X: Any, y: Any) -> float:
    margin = np.where(y, 1, -1) * clf.decision_function(X)
    return float(np.logaddexp(0, -margin).mean())


def test_many_threads_reach_the_loss_of_one() -> None:
    X, y = _large()
    params: dict[str, Any] = {"max_iter": 10, "tol": None, "random_state": 0}
    losses = [
        _loss(SGDClassifier(policy="hogwild", run=Run(n_lanes=n), **params).fit(X, y), X, y)
        for n in (1, 4)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0.01)


def test_all_rows_count_once() -> None:
    X, y = _large(3_001)
    clf = SGDClassifier(policy="hogwild", run=Run(n_lanes=3), max_iter=4, tol=None, random_state=0)
    records = clf.fit(X, y).history_.records
    assert [record["rows"] for record in records] == [len(y)] * 4
    assert records[-1]["loss"] < records[0]["loss"]


def test_losses_without_single_row_form_use_batches() -> None:
    class Own(LogLoss):
        def value_and_gradient(self, y: Any, raw: Any) -> Any:
            return super().value_and_gradient(y, raw)

    assert Own.evaluate_row is None
    X, y = _large(2_000)
    for params in ({"loss": Own()}, {"optimizer": "adam"}, {"batch_size": 64}, {"average": True}):
        clf = SGDClassifier(
            policy="hogwild", run=Run(n_lanes=2), max_iter=8, random_state=0, **params
        )
        assert clf.fit(X, y).score(X, y) > 0.7


def test_regression_on_sparse_rows() -> None:
    X, _ = _large(4_000)
    t = X @ np.random.default_rng(1).normal(size=X.shape[1])
    reg = SGDRegressor(policy="hogwild", run=Run(n_lanes=2), max_iter=20, tol=None, random_state=0)
    assert reg.fit(X, t).score(X, t) > 0.9


def test_changes_of_coefficients_touched_by_all_trainers_are_averaged() -> None:
    factors = _damping_factor(np.array([0.0, 1e-4, 1.0, 50.0]), 0.5)
    np.testing.assert_allclose(factors[[0, 3]], [1, 0.5], rtol=1e-4)
    assert (np.diff(factors) <= 0).all()
    # On a quadratic, two halves of the steps, damped and added, equal all steps.
    half = 1 - np.exp(-1.0)
    np.testing.assert_allclose(2 * factors[2] * half, 1 - np.exp(-2.0), rtol=1e-12)
    assert _damping_factor(np.inf, 0.25) == 0.25
    # Equal shares use a different code path with the same result.
    at = np.linspace(0.01, 3)
    np.testing.assert_allclose(
        _damping_factor(at, 1 / 3), _damping_factor(at, 1 / 3 + 1e-9), rtol=1e-7
    )


@pytest.mark.slow
def test_kernels_are_cached_on_disk(tmp_path: Any) -> None:
    code = (
        "import numpy as np; from scipy import sparse; "
        "from daskml_dist.backends.row_steps import RowSteps; "
        "from daskml_dist.losses import Hinge; from daskml_dist.optimizers import SGD; "
        "X = sparse.eye_array(3, format='csr'); s = RowSteps(Hinge(), SGD(), 0., 0., True); "
        "s.run([(X, np.ones(3), None)], np.zeros(3, int), np.arange(3), "
        "np.zeros((4, 2)), .1, 0.); "
        "print(sum(s._kernel.stats.cache_hits.values()))"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    hits = [
        subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]  # fmt: skip
    assert hits == ["0", "1"]


def _runs(order: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    assert sorted(order) == list(range(len(order)))
    return np.split(order, np.flatnonzero(np.diff(order) != 1) + 1)


@pytest.mark.parametrize("rows", [np.sign, np.abs, lambda y: y], ids=["classes", "one", "numbers"])
def test_sorted_targets_are_detected(rows: Any) -> None:
    y = rows(np.random.default_rng(0).normal(size=1_000))
    assert row_by_row._are_targets_sorted(np.sort(y))
    assert row_by_row._are_targets_sorted(y) == (len(np.unique(y)) == 1)


def test_runs_are_cut() -> None:
    runs = _runs(row_by_row._order_in_short_runs(1_000, 4))
    assert np.median([len(run) for run in runs]) == 4


def test_a_block_of_one_class_counts_as_sorted() -> None:
    assert row_by_row._are_targets_sorted(np.ones(100))
    assert not row_by_row._are_targets_sorted(np.ones(1))


@pytest.mark.parametrize("policy", ["local", "average"])
def test_single_rows_of_lanes_alone_reach_the_optimum_and_repeat(policy: str) -> None:
    """Compared with full-batch Newton; two lanes see half of the rows between averages."""
    rng = np.random.default_rng(0)
    X = sparse.random_array((3_000, 2_048), density=0.01, rng=rng, format="csr")
    y = X @ rng.normal(size=2_048) > 0
    best = SkLogistic(C=1 / (1e-4 * len(y)), tol=1e-9, max_iter=1_000).fit(X, y)
    params: dict[str, Any] = {"policy": policy, "tol": None, "random_state": 0}
    one, first, second = (
        SGDClassifier(run=Run(n_lanes=n), max_iter=60, learning_rate=0.3, **params).fit(X, y)
        for n in (1, 2, 2)
    )
    assert _objective(one, X, y) < 1.001 * _objective(best, X, y)
    assert _objective(first, X, y) < (1.03 if policy == "local" else 1.25) * _objective(best, X, y)
    assert np.array_equal(first.coef_, second.coef_)


@pytest.mark.parametrize("policy", ["local", "average"])
def test_fused_batches_equal_sequential_ones_bit_for_bit(policy: str) -> None:
    class Told:
        def on_step_end(self, step: Any) -> None:
            steps.append(step.clock)

    X, y = _large(4_000)
    steps: list[int] = []
    params: dict[str, Any] = {"policy": policy, "max_iter": 3, "tol": None, "random_state": 0}
    params["learning_rate"] = 0.1
    found = [
        SGDClassifier(run=Run(n_lanes=2), callbacks=callbacks, **params).fit(X, y)
        for callbacks in ([], [Told()])
    ]
    assert len(steps) == 2 * sum(record["steps"] for record in found[1].history_.records)
    np.testing.assert_array_equal(found[1].coef_, found[0].coef_)


def _objective(model: Any, X: Any, y: Any) -> float:
    raw = np.where(y, 1, -1) * (X @ model.coef_[0] + model.intercept_[0])
    return float(np.logaddexp(0, -raw).mean() + 5e-5 * (model.coef_**2).sum())


@pytest.mark.parametrize("twice", [False, True], ids=["distinct columns", "a column twice"])
@pytest.mark.parametrize("penalty", [Penalty(0.0, 0.01), Penalty(0.01, 0.0)], ids=["l2", "l1"])
def test_threads_that_alternate_apply_a_penalty_once(penalty: Penalty, twice: bool) -> None:
    """Two threads that are some batches apart use the same columns alternately."""
    from daskml_dist.backends.row_steps import RowSteps

    X = sparse.csr_matrix((np.ones(2), [0, 0 if twice else 1], [0, 2]), shape=(1, 2))
    # Rows of weight 0 have no gradient, so that only the penalty moves parameters.
    block = [(X, np.ones(1), np.zeros(1))]
    shard = Shard(
        one_group(SGD(), Constant(RATE), penalty, 2, 1.0, coordinates=True),
        ShardState(np.array([[1.0], [1.0], [0.0]]), {}),
    )
    cells, row = shard.interleave(), np.zeros(1, np.intp)
    ahead, behind = (RowSteps(LogLoss(), SGD(), penalty.l1, penalty.l2, True) for _ in range(2))
    for step in range(50):
        ahead.run(block, row, row, cells, RATE, (20 + step) * RATE)
        behind.run(block, row, row, cells, RATE, step * RATE)
    shard.count_row_steps([70], RATE)
    shard.apply_pending_penalty()
    # 70 steps at this rate, each once: within 2 % of plain shrinkage.
    expected = np.exp(-70 * RATE * penalty.l2) - 70 * RATE * penalty.l1
    assert shard.w[0, 0] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("policy", ["hogwild", "async", "ssp"])
def test_racing_lanes_shrink_coefficients_like_one_lane(policy: str) -> None:
    rng = np.random.default_rng(0)
    n_rows, n_columns, n_entries = 60_000, 3_000, 60
    columns = rng.integers(n_columns, size=n_rows * n_entries).astype("i4")
    starts = np.arange(0, len(columns) + 1, n_entries).astype("i4")
    X = sparse.csr_matrix((np.ones(len(columns)), columns, starts), shape=(n_rows, n_columns))
    y = X @ rng.normal(size=n_columns) + rng.logistic(size=n_rows) > 0

    def norm(n_lanes: int) -> float:
        model = SGDClassifier(
            loss="log_loss", alpha=1e-3, learning_rate=0.3, max_iter=2, tol=None, policy=policy,
            run=Run(n_lanes=n_lanes), random_state=0,
        )  # fmt: skip
        return float(np.linalg.norm(model.fit(X, y).coef_))

    # Half the norm if penalties were applied twice at each alternation, or delayed by a batch.
    assert norm(2) == pytest.approx(norm(1), rel=0.15)


@pytest.mark.parametrize("policy", ["hogwild", "async", "ssp", "local", "average"])
@pytest.mark.parametrize("schedule", ["optimal", "invscaling"])
def test_schedules_count_each_row_as_a_step(policy: str, schedule: str) -> None:
    """Beside batches of one row, whose steps are scikit-learn's."""
    X, y = _large(4_000)
    params: dict[str, Any] = {"optimizer": "sgd", "learning_rate": schedule, "max_iter": 5}
    if schedule == "invscaling":
        params["eta0"] = 20.0

    def loss(policy: str, **more: Any) -> float:
        clf = SGDClassifier(policy=policy, tol=None, random_state=0, **params, **more)
        return _loss(clf.fit(X, y), X, y)

    expected = loss("sync", batch_size=1)
    assert loss(policy) == pytest.approx(expected, rel=0.1)
    if policy in ("hogwild", "async", "ssp"):  # rates fall with the steps of all lanes
        assert loss(policy, run=Run(n_lanes=2)) == pytest.approx(expected, rel=0.2)


def test_rows_stepped_at_one_rate_have_similar_rates() -> None:
    runs = row_by_row._find_rate_runs(1_000, lambda row: 1 / (row + 1))
    starts, stops = [run[0] for run in runs], [run[1] for run in runs]
    assert starts == [0, *stops[:-1]]
    assert stops[-1] == 1_000
    assert len(runs) < 150
    assert all(stop - start == 1 or (start + 1) / stop > 0.89 for start, stop, _ in runs)
    assert row_by_row._find_rate_runs(1_000, lambda row: 0.5) == [(0, 1_000, 0.5)]


@pytest.mark.parametrize("penalty", [Penalty(0.0, 0.01), Penalty(0.02, 0.0)], ids=["l2", "l1"])
def test_changes_by_penalties_of_all_trainers_stop_at_zero(penalty: Penalty) -> None:
    """Each of eight trainers shrinks the same parameters; one of them also has gradients."""
    n_trainers, n_steps, before = 8, 1_000, np.array([[2.0], [0.5], [0.0]])
    rule = one_group(Adagrad(), Constant(RATE), penalty, 2, 1.0, coordinates=True)
    total = before.copy()
    for trainer in range(n_trainers):
        state = {"accumulator": np.full((3, 1), 4.0)}
        shard = Shard(rule, ShardState(before.copy(), state))
        shard.interleave()
        rows: Any = SimpleNamespace(step=None)
        damped = _DampedRowSteps(shard, rows, 1 / n_trainers)
        if trainer == 0:
            shard.w[0] -= 0.1
            shard.opt_state["accumulator"][0] += 1.0
        shard.count_row_steps([n_steps], RATE)
        shard.apply_pending_penalty(by_optimizer=True)
        delta = shard.w - before
        damped.damp_changes(delta)
        total += delta
    assert (total[:2] > -0.02).all()
    # The same steps in sequence leave nearly nothing, too.
    step = n_steps * RATE / 2  # by Adagrad, with the accumulator above
    expected = before[1, 0] / (1 + step * penalty.l2) ** n_trainers
    expected = max(expected - n_trainers * step * penalty.l1, 0.0)
    assert total[1, 0] == pytest.approx(expected, abs=1e-6)
    assert total[2, 0] == 0
