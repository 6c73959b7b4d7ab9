"""Steps that one compiled loop makes on the CPU equal single steps."""

from __future__ import annotations

import itertools
import math
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist import Run
from daskml_dist.backends import host_gather, host_update, numpy_backend
from daskml_dist.backends.compiled import compiled_with
from daskml_dist.backends.numpy_backend import NumpyBackend
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.losses import LOSSES, LogLoss
from daskml_dist.optimizers import OPTIMIZERS, SGD
from daskml_dist.penalties import Penalty
from daskml_dist.policies import POLICIES
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import InverseScaling
from tests.interpreted import interpreted
from tests.quick import in_turn, quick
from tests.rules import one_group

D = 5
WITH_ROWS = sorted(name for name, loss in LOSSES.items() if loss.evaluate_row)


class ArraysAlone(SGD):
    """Optimizer that numba cannot compile."""

    def _descend(self, w: Any, grad: Any, opt_state: Any, lr: float, step: int) -> Any:
        w -= lr * grad
        return lr


#: Around numbers of rows and features of unrolled products (4; 8 or 16), and rows of a tile.
ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 130)
WIDTHS = (1, 5, 7, 8, 9, 15, 16, 17, 31, 33)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_at_sizes_around_unrolled_loops(dtype: Any) -> None:
    """Compared in float64, since exponentials amplify a different order of sums."""
    loss, rng = LogLoss(), np.random.default_rng(0)
    rtol = 1e-5 if dtype is np.float32 else 1e-13
    for d, n in {*itertools.product(WIDTHS, (9, 65)), *itertools.product((D,), ROWS)}:
        blocks = {0: _block(loss, 500, True, dtype, 0, d)}
        gather = NumpyBackend().gather(loss, (d + 1, 1), blocks, n)
        assert gather is not None
        w, at = rng.normal(size=(d + 1, 1)).astype(dtype), rng.integers(0, 500, n)
        (add_gradient,), out = gather([[(0, at, None)]]), np.ones_like(w)
        X, y, weight = (array[at].astype(float) for array in blocks[0])
        values, g = loss.value_and_gradient(y, X @ w[:d, 0] + w[d, 0])
        case = f"{n} rows of {d}"
        assert add_gradient(w, out) == pytest.approx(values @ weight, rel=rtol), case
        g *= weight
        expected = np.append(X.T @ g, g.sum())
        np.testing.assert_allclose(out[:, 0] - 1, expected, rtol, rtol * n, err_msg=case)


def test_loops_of_different_parts_have_different_names() -> None:
    """Numba caches loops on disk by name; these two have the same bytecode and constants."""

    def rising(y: float, raw: float, parameters: Any) -> Any:
        return math.exp(raw), math.exp(raw)

    def falling(y: float, raw: float, parameters: Any) -> Any:
        return math.log(raw), math.log(raw)

    assert rising.__code__.co_code == falling.__code__.co_code
    falling.__qualname__ = rising.__qualname__
    loops = [
        compiled_with(host_gather._write_losses, _evaluate_row=part) for part in (rising, falling)
    ]
    assert loops[0].py_func.__qualname__ != loops[1].py_func.__qualname__


def _numbers(starts: NDArray[Any], counts: NDArray[Any] | None) -> NDArray[Any]:
    """Return the row numbers of some runs."""
    if counts is None:
        return starts
    runs = zip(starts, counts, strict=True)
    return np.concatenate([np.arange(first, first + count) for first, count in runs])


def _block(
    loss: Any, n: int, weighted: bool, dtype: Any, seed: int, d: int = D
) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    y = rng.choice([-1, 1], size=n) if loss.kind == "classification" else rng.random(n)
    weight = rng.random(n).astype(dtype) if weighted else None
    return rng.normal(size=(n, d)).astype(dtype), y.astype(dtype), weight


@pytest.mark.parametrize(
    ("pair", "penalty", "dtype"),
    in_turn(
        itertools.product(WITH_ROWS, sorted(OPTIMIZERS)),
        [Penalty(0, 0), Penalty(0, 0.1), Penalty(0.05, 0.02)],
        [np.float32, np.float64],
    ),
)
def test_every_loss_and_optimizer(
    pair: tuple[str, str], penalty: Penalty, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, optimizer = pair
    for module in (host_gather, host_update):
        monkeypatch.setattr(module, "compiled_with", interpreted)
    loss, weighted, intercept = LOSSES[name](), penalty.l1 == 0, penalty.l2 != 0
    blocks = {n: _block(loss, rows, weighted, dtype, n) for n, rows in ((4, 11), (1, 6))}
    rule = one_group(OPTIMIZERS[optimizer](), InverseScaling(0.1), penalty, D, 2.0)
    w = np.linspace(-0.3, 0.3, D + intercept)[:, None].astype(dtype)
    ours, other = (Shard(rule, ShardState(w.copy(), {})) for _ in range(2))
    backend = NumpyBackend()
    gather = backend.gather(loss, w.shape, blocks, 9)
    assert gather is not None
    steps = backend.recorder(gather, rule.only_group.optimizer, ours.empty_step())
    draws = [
        [(1, np.array([2, 5]), np.array([2, 1])), (4, np.array([7]), np.array([4]))],
        [],
        [(4, np.array([0, 3]), None)],
    ]
    losses = steps(draws, ours.next_steps([7, 0, 2]))
    for draw, found in zip(draws, losses, strict=True):
        picked = [(block, _numbers(starts, counts)) for block, starts, counts in draw]
        value, grad, n = 0.0, np.zeros_like(other.w), 0
        for block, rows in picked:
            X, y, weight = blocks[block]
            X, n = X[rows], n + len(rows)
            raw = X @ other.w[:D, 0] + (other.w[D, 0] if intercept else 0)
            values, g = loss.value_and_gradient(y[rows], raw.astype(dtype))
            if weight is not None:
                values, g = values * weight[rows], g * weight[rows]
            value += values.sum()
            grad[:D, 0] += X.T @ g
            grad[D:, 0] += g.sum()
        other.apply(grad, n)
        rtol = 1e-5 if dtype is np.float32 else 1e-10
        assert found == pytest.approx(value, rel=rtol)
    assert (ours.step, ours.rows) == (other.step, other.rows) == (3, 9)
    for mine, theirs in zip(
        (ours.w, *ours.opt_state.values()), (other.w, *other.opt_state.values()), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=10 * rtol, atol=rtol)


@pytest.mark.parametrize("shuffled", [False, True], ids=["runs", "single rows"])
def test_large_batches_of_float32_rows_keep_their_digits(shuffled: bool) -> None:
    n, rng = 200_000, np.random.default_rng(0)
    # All terms have the same sign, so that a float32 sum would grow until rows are rounded away.
    X = rng.uniform(0.9, 1.1, (n, 2)).astype(np.float32)
    y = np.ones(n, np.float32)
    rows = rng.permutation(n) if shuffled else np.array([0])
    batch = [(0, rows, None if shuffled else np.array([n]))]
    gather = NumpyBackend().gather(LogLoss(), (2, 1), {0: (X, y, None)}, n)
    assert gather is not None
    grad = np.zeros((2, 1), np.float32)
    loss = gather.add_gradient(batch, np.zeros((2, 1), np.float32), grad)
    assert loss == pytest.approx(n * np.log(2), rel=1e-6)
    np.testing.assert_allclose(grad[:, 0], X.sum(axis=0, dtype=float) * -0.5, rtol=2e-6)


def test_unsupported_fits_have_no_loop() -> None:
    backend, loss = NumpyBackend(), LogLoss()
    X, y, _ = _block(loss, 8, False, np.float64, 0)
    blocks = {0: (X, y, None)}
    gather = backend.gather(loss, (D, 1), blocks, 4)
    assert gather is not None
    assert backend.gather(loss, (D, 3), blocks, 4) is None
    assert backend.gather(LOSSES["tweedie"](), (D, 1), blocks, 4) is None
    assert backend.gather(loss, (D, 1), {0: (sparse.csr_array(X), y, None)}, 4) is None
    wide = {0: (np.zeros((9, 2**15)), np.zeros(9), None)}
    slow = backend.gather(loss, (2**15, 1), wide, 1024)
    assert slow is not None
    assert (gather.max_steps, slow.max_steps) == (256, 2)
    rule = one_group(ArraysAlone(), InverseScaling(0.1), Penalty(0, 0), D, 2.0)
    shard = Shard(rule, ShardState(np.zeros((D, 1)), {}))
    assert backend.recorder(gather, rule.only_group.optimizer, shard.empty_step()) is None


X = np.random.default_rng(0).normal(size=(300, D))
Y = X[:, 0] + np.random.default_rng(1).normal(size=300) > 0
ALONE = ["sync", "allreduce", "local", "average"]


def _set_gathered(steps: int, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
    """Set from which size on steps gather their rows."""
    (monkeypatch or pytest.MonkeyPatch()).setattr(numpy_backend, "_MAX_COPIED_STEPS", steps)


def _fits(policy: str, monkeypatch: pytest.MonkeyPatch, *data: Any, **params: Any) -> list[Any]:
    """Return fits with single steps, with fused steps after some, and with only fused steps."""
    fits = []
    for gathered in (10**9, 37, 0):
        _set_gathered(gathered, monkeypatch)
        options = {"policy": policy, "batch_size": 16, "random_state": 0, "tol": None, **params}
        fits.append(SGDClassifier(max_iter=5, **options).fit(*data))
    return fits


@pytest.mark.parametrize("policy", ALONE)
@pytest.mark.parametrize("held_out", [False, True])
def test_fits_are_the_same(policy: str, held_out: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    n_steps_of_calls = []
    call = host_gather.BatchSteps.__call__
    monkeypatch.setattr(
        host_gather.BatchSteps, "__call__",
        lambda self, draws, steps: n_steps_of_calls.append(len(steps)) or call(self, draws, steps),
    )  # fmt: skip
    n_lanes = 1 if policy in ("sync", "allreduce") else 2
    weight = np.random.default_rng(2).random(len(Y))
    fits = _fits(
        policy, monkeypatch, X, Y, weight, run=Run(n_lanes=n_lanes), early_stopping=held_out,
        n_iter_no_change=9,
    )  # fmt: skip
    steps = sum(record["steps"] for record in fits[0].history_.records)
    assert sum(n_steps_of_calls) == n_lanes * (2 * steps - 37)
    for fit in fits[1:]:
        np.testing.assert_allclose(fit.coef_, fits[0].coef_, rtol=1e-9)
        np.testing.assert_allclose(fit.intercept_, fits[0].intercept_, rtol=1e-9)
        for ours, theirs in zip(fit.history_.records, fits[0].history_.records, strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-9)
            assert (ours["rows"], ours["steps"]) == (theirs["rows"], theirs["steps"])


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adam", marks=pytest.mark.slow)])
def test_fused_steps_equal_single_steps_bit_for_bit(
    optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same gradients; lazy l1 is tracked by the substitute for SGD."""
    _set_gathered(0, monkeypatch)
    data, found = (X.astype(np.float32), Y), []
    for recorder in (NumpyBackend.recorder, lambda *arguments: None):
        monkeypatch.setattr(NumpyBackend, "recorder", recorder)
        few = {"batch_size": 9, "max_iter": 3, "tol": None, "random_state": 0}
        clf = SGDClassifier(optimizer=optimizer, penalty="elasticnet", run=Run(n_lanes=1), **few)
        found.append(clf.fit(*data))
    np.testing.assert_array_equal(found[0].coef_, found[1].coef_)
    np.testing.assert_array_equal(found[0].intercept_, found[1].intercept_)


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - set(ALONE)))
def test_gradients_for_servers_are_the_same(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fit, *others = _fits(policy, monkeypatch, X, Y, run=Run(n_lanes=1))
    for other in others:
        np.testing.assert_allclose(other.coef_, fit.coef_, rtol=1e-9)


@pytest.mark.parametrize("policy", ["sync", "allreduce"])
def test_gradients_of_several_lanes_are_the_same(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, *others = _fits(policy, monkeypatch, X, Y, run=Run(n_lanes=3))
    for other in others:
        np.testing.assert_allclose(other.coef_, fit.coef_, rtol=1e-9)


def test_a_continued_fit_with_rows_of_another_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters keep their dtype, by which the loop must not read rows."""
    found = []
    for gathered in (10**9, 0):
        _set_gathered(gathered, monkeypatch)
        for policy in ("sync", "async"):
            clf = SGDClassifier(policy=policy, batch_size=16, random_state=0)
            for dtype in (np.float64, np.float32, np.float64):
                clf.partial_fit(X.astype(dtype), Y, classes=[False, True])
            found.append(clf.coef_)
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-4)


def test_unsupported_fits_make_single_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_gather, "BatchSteps", None)
    _set_gathered(0, monkeypatch)
    few = {"max_iter": 2, "tol": None, "batch_size": 16, "run": Run(n_lanes=1)}
    SGDClassifier(average=True, **few).fit(X, Y)
    SGDClassifier(optimizer="ftrl", policy="async", **few).fit(X, Y)
    SGDClassifier(optimizer=ArraysAlone(), **few).fit(X, Y)
    SGDClassifier(**few).fit(X, np.digitize(X[:, 0], [-0.5, 0.5]))
    SGDClassifier(**few).fit(sparse.csr_array(X), Y)
    SGDRegressor(**few | {"batch_size": None}).fit(X, X[:, 1])


@pytest.mark.parametrize("policy", quick(["local", "sync"], "sync"))
def test_fused_steps_on_a_cluster(client: Client, policy: str) -> None:
    X_parts, y_parts = da.from_array(X, chunks=(60, -1)), da.from_array(Y, chunks=60)
    params: dict[str, Any] = {"batch_size": 4, "random_state": 0, "tol": None, "max_iter": 5}
    n_lanes, found = 2 if policy == "local" else 1, []
    usual = numpy_backend._MAX_COPIED_STEPS
    try:
        for gathered in (10**9, 50):
            client.run(_set_gathered, gathered)
            clf = SGDClassifier(policy=policy, run=Run(n_lanes=n_lanes), **params)
            found.append(clf.fit(X_parts, y_parts).coef_)
    finally:
        client.run(_set_gathered, usual)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9)
