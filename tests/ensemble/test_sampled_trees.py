"""Row and feature sampling, growth by level and dropped trees follow the papers, bit for bit."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from sklearn.base import clone

from daskml_dist import Run
from daskml_dist.backends.host_trees import HostTrees
from daskml_dist.callbacks import Checkpoint, EarlyStopping
from daskml_dist.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRanker,
    HistGradientBoostingRegressor,
)
from daskml_dist.errors import DivergedError, InvalidParameterError
from daskml_dist.models.bins import draw_by_hash
from daskml_dist.solvers import row_sampling
from daskml_dist.solvers.row_sampling import (
    draw_rows,
    make_key,
    select_kth_largest,
)
from daskml_dist.solvers.tree_dropout import TreeDropout, ValueGrid
from tests.ensemble.boosting_reference import Reference
from tests.quick import in_turn

rng = np.random.default_rng(0)
X = rng.normal(size=(1_500, 5))
Y = X[:, 0] + np.sin(2 * X[:, 1]) + X[:, 2] * X[:, 3] + 0.2 * rng.normal(size=len(X))
CLASS = np.digitize(Y, [-0.5, 0.5])
QUERY = np.arange(len(X)) // 11
ALONE = Run(n_lanes=1)
GIVEN: dict[str, Any] = {"random_state": 0, "early_stopping": False, "max_iter": 6}
GOSS: dict[str, Any] = {"sampling_method": "goss", "top_rate": 0.2, "other_rate": 0.2}
DART: dict[str, Any] = {"drop_rate": 0.4, "skip_drop": 0.2, "max_drop": 2}
#: Sampling parameters for each kind of model.
DRAWS: dict[str, dict[str, Any]] = {
    "subsample": {"subsample": 0.5, "colsample_bytree": 0.8, "colsample_bylevel": 0.7},
    "goss": {**GOSS, "grow_policy": "depthwise", "max_leaf_nodes": 6},
    "dart": DART,
    "dart of samples": {**DART, "subsample": 0.6, "colsample_bytree": 0.6},
}


def arrays(model: Any) -> dict[str, bytes]:
    """Return all fitted arrays, for bitwise comparison."""
    scores = {"train": model.train_score_, "held": model.validation_score_}
    found = {**model._trees.packed(), **scores, "baseline": model._baseline}
    return {name: array.tobytes() for name, array in found.items()}


def lazy(n: int, *args: Any) -> list[Any]:
    return [da.from_array(a, chunks=(n, *a.shape[1:])) for a in args]


@pytest.mark.parametrize("n", [500, 1_500], ids=["loops of NumPy", "compiled"])
@pytest.mark.parametrize(
    ("ours", "plain"),
    [
        ({"subsample": 0.5}, {"subsample": 0.5}),
        (GOSS, {"goss": (0.2, 0.2)}),
        ({**GOSS, "classes": True}, {"goss": (0.2, 0.2), "log_loss": True}),
        ({"subsample": 0.4, "classes": True}, {"subsample": 0.4, "log_loss": True}),
        ({"grow_policy": "depthwise"}, {"depthwise": True}),
        (
            {"colsample_bytree": 0.7, "colsample_bylevel": 0.7, "max_features": 0.6},
            {"colsample_bytree": 0.7, "colsample_bylevel": 0.7, "max_features": 0.6},
        ),
        (DART, {"dropout": TreeDropout(0.4, 0.2, 2)}),
        (
            {"drop_rate": 0.6, "subsample": 0.7, "classes": True},
            {"dropout": TreeDropout(0.6, 0.0, 50), "subsample": 0.7, "log_loss": True},
        ),
    ],
    ids=lambda params: " ".join(map(str, params)) if "classes" in params else "",
)
def test_trees_equal_plain_numpy(ours: Any, plain: Any, n: int) -> None:
    params = {**GIVEN, **ours, "max_bins": 12, "min_samples_leaf": 5, "run": ALONE}
    params.setdefault("max_leaf_nodes", 7)
    of_classes = params.pop("classes", False)
    kind = HistGradientBoostingClassifier if of_classes else HistGradientBoostingRegressor
    y = (Y[:n] > 0).astype(float) if of_classes else Y[:n]
    model = kind(**params).fit(X[:n], y)
    edges = model._trees.bins.edges
    bins = np.column_stack([np.searchsorted(e, X[:n, j]) for j, e in enumerate(edges)])
    reference = Reference(**plain, seed=model._seed).fit(bins, y)
    for number, counts in enumerate(reference.counts):
        assert sorted(model._trees.tree(number).count) == sorted(counts)
    np.testing.assert_allclose(model._raw_prediction()(X[:n]), reference.raw, rtol=1e-5, atol=1e-6)


#: Kinds of fits: estimator, targets, parameters of the fit or of the estimator.
KINDS: dict[str, tuple[type, Any, dict[str, Any]]] = {
    "classes": (HistGradientBoostingClassifier, CLASS, {}),
    "squares": (HistGradientBoostingRegressor, Y, {}),
    "ranks": (HistGradientBoostingRanker, CLASS, {"group": QUERY}),
    "medians": (HistGradientBoostingRegressor, Y, {"loss": "absolute_error"}),
}
#: Rows per chunk, and the run: lanes of the cluster, more lanes than chunks, rows that are spilled.
CUTS: dict[str, tuple[int, Run]] = {
    "a lane per worker": (400, Run()),
    "five lanes": (333, Run(n_lanes=5)),
    "little memory": (250, Run(memory_budget="40 kB")),
}
#: Sampling and kind of fit by test id; GOSS has no medians.
FITS = {
    f"{draws}, {kind}": (draws, kind)
    for draws in DRAWS
    for kind in KINDS
    if (draws, kind) != ("goss", "medians")
}


@cache
def _alone(draws: str, kind: str) -> tuple[Any, dict[str, Any], dict[str, bytes]]:
    """Return a kind of estimator, its parameters, and the result of a fit of one lane."""
    estimator, y, more = KINDS[kind]
    group = {name: more[name] for name in ("group",) if name in more}
    params = {**GIVEN, **DRAWS[draws], "early_stopping": True, "n_iter_no_change": 9}
    params |= {} if group else more
    return estimator, params, arrays(estimator(**params, run=ALONE).fit(X, y, **group))


@pytest.mark.parametrize(("fit", "cut"), in_turn(FITS, CUTS))
def test_the_same_trees_for_any_chunks_and_lanes(client: Client, fit: str, cut: str) -> None:
    draws, kind = FITS[fit]
    estimator, params, expected = _alone(draws, kind)
    _, y, more = KINDS[kind]
    n, run = CUTS[cut]
    group = {"group": lazy(n, QUERY)[0]} if "group" in more else {}
    model = estimator(**params, run=run).fit(*lazy(n, X, y), **group)
    assert arrays(model) == expected


@pytest.mark.parametrize(("draws", "classes"), in_turn(DRAWS, [False, True]))
def test_stopped_fits_resume_bit_for_bit(draws: str, classes: bool, tmp_path: Any) -> None:
    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    y = CLASS if classes else Y
    params = {**DRAWS[draws], "random_state": 0, "early_stopping": True, "run": Run(n_lanes=2)}
    validation = {"X_val": X[:200], "y_val": y[:200]}
    whole = kind(max_iter=7, **params).fit(X[200:], y[200:], **validation)
    warm = kind(max_iter=3, warm_start=True, **params).fit(X[200:], y[200:], **validation)
    warm = pickle.loads(pickle.dumps(warm)).set_params(max_iter=7)
    assert arrays(warm.fit(X[200:], y[200:], **validation)) == arrays(whole)
    for first in (True, False):
        checkpoint = Checkpoint(str(tmp_path / "fit.npz"), every=2, resume=True)
        stop = [EarlyStopping("eval_score", min_delta=99.0, patience=2)] if first else []
        model = kind(max_iter=7, **params, callbacks=[checkpoint, *stop])
        model.fit(X[200:], y[200:], **validation, eval_set=(X[:90], y[:90]))
        assert (model.n_iter_ < 7) == first
    assert arrays(model) == arrays(whole)


@pytest.mark.parametrize("classes", [False, True])
def test_raw_predictions_after_dropout_are_sums_of_kept_trees(
    classes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of a trainer that joins after a loss have the bits of those that others have kept."""
    opened_rows: list[Any] = []
    open_rows = HostTrees.open_rows

    def spy(self: Any, binned_rows: Any, shape: Any) -> Any:
        opened_rows.extend(binned_rows)
        return open_rows(self, binned_rows, shape)

    monkeypatch.setattr(HostTrees, "open_rows", spy)
    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    params = {**GIVEN, "drop_rate": 0.5, "max_iter": 15, "subsample": 0.7, "run": ALONE}
    model = kind(**params).fit(X, CLASS if classes else Y)
    (binned,) = opened_rows
    np.testing.assert_array_equal(
        binned.extra["raw"].T.reshape(len(X), -1),
        model._raw_prediction()(X).reshape(len(X), -1),
    )
    # In any order, since all are multiples of one value.
    values = model._trees.nodes.value / model._value_unit
    np.testing.assert_array_equal(values, np.rint(values))


def test_a_fit_without_dropout_continues_with_it() -> None:
    model = HistGradientBoostingRegressor(**GIVEN, warm_start=True).fit(X, Y)
    before = model.score(X, Y)
    model.set_params(max_iter=12, drop_rate=0.5).fit(X, Y)
    assert model.n_iter_ == 12
    assert model._value_unit > 0
    assert model.score(X, Y) > before - 0.2


def test_clones_have_the_parameters_and_grow_the_trees() -> None:
    for draws in DRAWS.values():
        model = HistGradientBoostingRegressor(**GIVEN, **draws).fit(X, Y)
        cloned = clone(model)
        assert cloned.get_params(deep=False) == model.get_params(deep=False)
        assert arrays(cloned.fit(X, Y)) == arrays(model)
        np.testing.assert_array_equal(model.to_sklearn().predict(X), model.predict(X))


def test_samples_differ_between_seeds_and_iterations() -> None:
    roots = {}
    for seed in (0, 1):
        params = {**GIVEN, "random_state": seed, "subsample": 0.5}
        trees = HistGradientBoostingRegressor(**params).fit(X, Y)._trees
        roots[seed] = [int(trees.tree(i).count[0]) for i in range(6)]
    assert roots[0] != roots[1]
    assert len(set(roots[0])) > 1
    # Six standard deviations of a binomial variable.
    assert all(abs(n - 750) < 6 * (1_500 / 4) ** 0.5 for of_seed in roots.values() for n in of_seed)


def test_draws_are_even_and_independent() -> None:
    salt = (draw_by_hash(np.arange(200_000)) >> np.uint64(32)).astype(np.uint32)
    first, then = (draw_rows(salt, make_key(7, 11, i)) / 2.0**32 for i in (3, 4))
    for drawn in (first, then):
        assert abs(drawn.mean() - 0.5) < 0.005
    assert abs(np.corrcoef(first, then)[0, 1]) < 0.01
    assert abs(((first < 0.3) & (then < 0.3)).mean() - 0.09) < 0.005


def test_queries_are_sampled_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[Any] = []
    order = row_sampling._draw_mask

    def spy(*args: Any) -> Any:
        masks.append(order(*args))
        return masks[-1]

    monkeypatch.setattr(row_sampling, "_draw_mask", spy)
    params = {**GIVEN, "max_iter": 2, "run": ALONE}
    HistGradientBoostingRanker(**params, subsample=0.5).fit(X, CLASS, group=QUERY)
    assert len(masks) == 2
    for mask in masks:
        shares = np.bincount(QUERY, mask) / np.bincount(QUERY)
        assert set(shares) == {0.0, 1.0}
        assert 0.3 < shares.mean() < 0.7


class _OneTrainer:
    """Rows of one trainer, whose lanes are processed sequentially."""

    def map_lanes(self, function: Any, items: Any) -> list[Any]:
        return [function(item) for item in items]

    def sum_trainers(self, array: Any) -> Any:
        return array


@pytest.mark.parametrize("ties", [False, True])
def test_the_kth_largest_key_equals_that_of_a_sort(ties: bool) -> None:
    keys = rng.integers(0, 2**63, 10_000).astype(np.uint64) * np.uint64(2)
    if ties:
        keys >>= np.uint64(55)
    rows: Any = _OneTrainer()
    for k in (1, 2, 137, 9_999, 10_000):
        found = select_kth_largest(rows, [keys[:3_000], keys[3_000:3_000], keys[3_000:]], k)
        assert found == np.sort(keys)[-k]


def test_numbers_of_a_grid_sum_exactly() -> None:
    tree = HistGradientBoostingRegressor(**GIVEN).fit(X, Y)._trees.tree(0)
    grid = ValueGrid.choose([tree], np.array([1e4]))
    values = grid.round(rng.normal(size=2_000))
    total = values.sum()
    for order in (np.argsort(values), rng.permutation(len(values))):
        assert np.add.reduce(values[order]) == total == sum(values[order].tolist())
    np.testing.assert_allclose(grid.scale_tree(tree).value, tree.value, rtol=1e-6, atol=1e-9)
    assert ValueGrid.choose([], np.zeros(1)).unit == 0
    with pytest.raises(DivergedError, match="drop_rate=0"):
        grid.check_sum(grid.unit * 2.0**53)


def test_targets_without_spread_have_no_grid() -> None:
    flat = HistGradientBoostingRegressor(**GIVEN, drop_rate=0.5).fit(X, np.ones(len(X)))
    np.testing.assert_array_equal(flat.predict(X), 1.0)


def test_a_sample_of_no_rows_makes_a_leaf() -> None:
    model = HistGradientBoostingRegressor(**GIVEN, subsample=1e-9).fit(X, Y)
    np.testing.assert_allclose(model.predict(X), Y.mean())


@pytest.mark.parametrize("draws", DRAWS)
def test_samples_learn(draws: str) -> None:
    model = HistGradientBoostingRegressor(**{**GIVEN, "max_iter": 80}, **DRAWS[draws])
    # Without sampling the score is 0.83; steps are shorter if trees are dropped.
    assert model.fit(X[:1_000], Y[:1_000]).score(X[1_000:], Y[1_000:]) > 0.5


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"subsample": 0.0}, r"subsample=0.0: use a number of \(0, 1\]"),
        ({"subsample": 1.5}, r"subsample=1.5"),
        ({"subsample": "half"}, "subsample='half'"),
        ({"colsample_bytree": 0}, "colsample_bytree=0"),
        ({"colsample_bylevel": float("nan")}, "colsample_bylevel=nan"),
        ({"sampling_method": "GOSS"}, "Did you mean 'goss'"),
        ({"sampling_method": "goss", "subsample": 0.5}, "Set subsample=1.0"),
        ({"sampling_method": "goss", "top_rate": 0.7, "other_rate": 0.5}, "sum to more than 1"),
        ({"top_rate": 0.0}, "top_rate=0.0"),
        ({"sampling_method": "goss", "loss": "absolute_error"}, "medians and quantiles"),
        ({"grow_policy": "leafwise"}, r"\['lossguide', 'depthwise'\]"),
        ({"drop_rate": -0.1}, "drop_rate=-0.1: use a number from 0 to 1"),
        ({"skip_drop": 2}, "skip_drop=2"),
        ({"max_drop": 0}, "max_drop=0: use an integer >= 1, or None"),
    ],
    ids=str,
)
def test_bad_input_is_named(params: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidParameterError, match=match):
        HistGradientBoostingRegressor(**GIVEN, **params).fit(X, Y)
