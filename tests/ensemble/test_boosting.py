"""Gradient boosting: scikit-learn's trees, the same on any number of workers."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn import ensemble as truth

from daskml_dist import Run
from daskml_dist.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError
from daskml_dist.solvers import tree_growth

rng = np.random.default_rng(0)
X = rng.normal(size=(2_000, 6))
X[:, 4] = rng.integers(0, 9, len(X))
Y = 2 * X[:, 0] + np.sin(3 * X[:, 1]) + X[:, 2] * X[:, 3] + (X[:, 4] == 3)
Y += 0.1 * rng.normal(size=len(X))
X[rng.random(X.shape) < 0.05] = np.nan
POSITIVE = np.exp(Y / 3)
WEIGHT = rng.integers(1, 4, len(X)).astype(float)
GIVEN: dict[str, Any] = {"max_iter": 12, "early_stopping": False}
SHORT = Run(n_lanes=1)


def arrays(model: Any) -> dict[str, bytes]:
    """Return all fitted arrays, for bitwise comparison."""
    scores = {"train": model.train_score_, "held": model.validation_score_}
    found = {**model._trees.packed(), **scores, "baseline": model._baseline}
    return {name: array.tobytes() for name, array in found.items()}


@pytest.mark.parametrize("at_once", [1, 5, 10_000])
def test_unbounded_trees_equal_those_with_a_large_bound(at_once: int, monkeypatch: Any) -> None:
    """Nodes have the same numbers and bits whether levels or a few leaves are split together."""
    params: dict[str, Any] = {**GIVEN, "max_iter": 2, "min_samples_leaf": 3, "run": SHORT}
    params["categorical_features"] = [4]
    large_bound = HistGradientBoostingRegressor(**params, max_leaf_nodes=5_000).fit(X, Y)
    monkeypatch.setattr(tree_growth, "_MIN_SPLITS_AT_ONCE", at_once)
    monkeypatch.setattr(tree_growth, "_HISTOGRAM_BYTES", 0)
    unbounded = HistGradientBoostingRegressor(**params, max_leaf_nodes=None).fit(X, Y)
    assert arrays(unbounded) == arrays(large_bound)
    assert unbounded._trees.tree(0).n_leaves > 200


@pytest.mark.parametrize(
    ("params", "y", "weight"),
    [
        ({}, Y, None),
        ({}, Y, WEIGHT),
        ({"loss": "absolute_error"}, Y, None),
        ({"loss": "absolute_error"}, Y, WEIGHT),
        ({"loss": "quantile", "quantile": 0.8}, Y, None),
        ({"loss": "quantile", "quantile": 0.8}, Y, WEIGHT),
        ({"loss": "poisson"}, POSITIVE, None),
        ({"loss": "gamma"}, POSITIVE, None),
        ({"l2_regularization": 3.0, "max_depth": 4, "max_leaf_nodes": None}, Y, None),
        ({"max_bins": 20, "min_samples_leaf": 5, "learning_rate": 0.5}, Y, None),
        ({"monotonic_cst": [1, -1, 0, 0, 0, 0]}, Y, None),
        ({"interaction_cst": [[0, 1], [1, 2, 3]]}, Y, None),
        ({"categorical_features": [4]}, Y, None),
        ({"categorical_features": [False] * 4 + [True, False]}, Y, WEIGHT),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else str(value is not None),
)
def test_regressors_equal_scikit_learn(params: dict[str, Any], y: Any, weight: Any) -> None:
    options = {**GIVEN, **params}
    peer = truth.HistGradientBoostingRegressor(**options).fit(X, y, weight)
    model = HistGradientBoostingRegressor(**options, run=SHORT).fit(X, y, weight)
    np.testing.assert_allclose(model.predict(X), peer.predict(X), rtol=1e-6)
    for (of_peer,), number in zip(peer._predictors, range(12), strict=False):
        nodes, tree = of_peer.nodes, model._trees.tree(number)
        splits = nodes[nodes["is_leaf"] == 0]
        is_split = tree.feature >= 0
        numbers, theirs = [tree.count[is_split]], [splits["count"]]
        if "categorical_features" not in params:  # scikit-learn moves these columns to the front
            numbers, theirs = [*numbers, tree.feature[is_split]], [*theirs, splits["feature_idx"]]
        assert sorted(zip(*numbers, strict=True)) == sorted(zip(*theirs, strict=True))


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_classifiers_equal_scikit_learn(n_classes: int, class_weight: Any) -> None:
    labels = np.array(["a", "b", "c"])[np.digitize(Y, [0.5] if n_classes == 2 else [-1, 1])]
    params = {**GIVEN, "class_weight": class_weight}
    peer = truth.HistGradientBoostingClassifier(**params).fit(X, labels)
    model = HistGradientBoostingClassifier(**params, run=SHORT).fit(X, labels)
    np.testing.assert_allclose(model.predict_proba(X), peer.predict_proba(X), atol=1e-6)
    np.testing.assert_allclose(model.decision_function(X), peer.decision_function(X), atol=1e-6)
    np.testing.assert_array_equal(model.predict(X), peer.predict(X))
    staged = list(model.staged_predict_proba(X[:50]))
    for found, wanted in zip(staged, peer.staged_predict_proba(X[:50]), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("has_validation_set", [False, True])
def test_scores_and_early_stopping_equal_scikit_learn(has_validation_set: bool) -> None:
    params = {"max_iter": 60, "early_stopping": True, "tol": 0.02, "n_iter_no_change": 3}
    more = {"X_val": X[:300], "y_val": Y[:300]} if has_validation_set else {}
    params |= {} if has_validation_set else {"validation_fraction": None}
    peer = truth.HistGradientBoostingRegressor(**params).fit(X, Y, **more)
    model = HistGradientBoostingRegressor(**params).fit(X, Y, **more)
    assert model.n_iter_ == peer.n_iter_ < 60
    np.testing.assert_allclose(model.train_score_, peer.train_score_, rtol=1e-8)
    np.testing.assert_allclose(model.validation_score_, peer.validation_score_, rtol=1e-8)


def test_a_warm_start_continues_bit_for_bit() -> None:
    params = {"early_stopping": True, "random_state": 0, "max_features": 0.5}
    whole = HistGradientBoostingRegressor(max_iter=8, **params).fit(X, Y)
    warm = HistGradientBoostingRegressor(max_iter=3, warm_start=True, **params).fit(X, Y)
    warm.set_params(max_iter=8).fit(X, Y)
    assert arrays(warm) == arrays(whole)
    with pytest.raises(InvalidParameterError, match="max_iter=2 must be larger"):
        warm.set_params(max_iter=2).fit(X, Y)


def test_the_same_trees_on_any_workers_and_lanes(client: Client) -> None:
    params = {"max_iter": 6, "random_state": 0, "max_features": 0.6, "early_stopping": True}
    alone = HistGradientBoostingRegressor(**params, run=SHORT).fit(X, Y, WEIGHT)
    assert len(alone.validation_score_) == 7
    for chunks, n_lanes in ((500, None), (333, 5)):
        lazy = [da.from_array(a, chunks=(chunks, *a.shape[1:])) for a in (X, Y, WEIGHT)]
        model = HistGradientBoostingRegressor(**params, run=Run(n_lanes=n_lanes)).fit(*lazy)
        assert arrays(model) == arrays(alone)
    found = model.predict(lazy[0])
    assert isinstance(found, da.Array)
    np.testing.assert_array_equal(found.compute(), alone.predict(X))
    many = HistGradientBoostingClassifier(max_iter=3).fit(lazy[0], lazy[1] // 1 % 3)
    in_process = HistGradientBoostingClassifier(max_iter=3, run=Run(n_lanes=3)).fit(X, Y // 1 % 3)
    assert arrays(many) == arrays(in_process)


@pytest.mark.parametrize("loss", ["squared_error", "absolute_error"])
def test_streamed_rows_give_the_same_trees(client: Client, loss: str) -> None:
    params = {"loss": loss, "max_iter": 3, "random_state": 0}
    alone = HistGradientBoostingRegressor(**params, run=SHORT).fit(X, Y)
    empty = da.zeros((len(X), 6), chunks=(250, 6))

    def rows(block: Any, block_info: Any = None) -> Any:
        start = block_info[0]["array-location"][0][0]
        return X[start : start + len(block)]

    lazy = empty.map_blocks(rows, dtype=float)
    target = empty[:, 0].map_blocks(_targets(Y), dtype=float)
    run = Run(memory_budget="30 kB")  # half of it for a block of 14,000 bytes
    model = HistGradientBoostingRegressor(**params, run=run).fit(lazy, target)
    assert model.history_.extra["streamed"]
    assert arrays(model) == arrays(alone)


def _targets(y: Any) -> Any:
    def targets(block: Any, block_info: Any = None) -> Any:
        start = block_info[0]["array-location"][0][0]
        return y[start : start + len(block)]

    return targets


def test_stochastic_rounding_keeps_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = Y > 0
    params = {"max_iter": 20, "early_stopping": False, "random_state": 0}
    exact = HistGradientBoostingClassifier(**params).fit(X, labels)
    monkeypatch.setattr("daskml_dist.solvers.gradient_boosting.SAMPLE_ROWS", 1_000)
    found = [
        HistGradientBoostingClassifier(**params, run=Run(n_lanes=n)).fit(X, labels) for n in (1, 3)
    ]
    assert arrays(found[0]) == arrays(found[1]) != arrays(exact)
    given_shares, shares = exact.predict_proba(X)[:, 1], found[0].predict_proba(X)[:, 1]
    loss, rounded = (-np.log(np.where(labels, p, 1 - p)).mean() for p in (given_shares, shares))
    assert abs(rounded - loss) < 0.01


def test_more_rows_than_a_sample_give_bins_of_the_same_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("daskml_dist.solvers.binning.SAMPLE_ROWS", 700)
    params = {"max_iter": 2, "random_state": 0}
    one, three = (
        HistGradientBoostingRegressor(**params, run=Run(n_lanes=n)).fit(X, Y) for n in (1, 3)
    )
    assert arrays(one) == arrays(three)


def test_categories_of_frames() -> None:
    names = pd.Categorical([f"k{v:.0f}" if v == v else None for v in X[:, 4]])
    frame = pd.DataFrame(X, columns=list("abcdef")).assign(e=names)
    peer = truth.HistGradientBoostingRegressor(**GIVEN).fit(frame, Y)
    model = HistGradientBoostingRegressor(**GIVEN).fit(frame, Y)
    np.testing.assert_allclose(model.predict(frame), peer.predict(frame), rtol=1e-6)
    np.testing.assert_array_equal(model.is_categorical_, [0, 0, 0, 0, 1, 0])
    strange = frame.assign(e="never seen")
    np.testing.assert_allclose(model.predict(strange), peer.predict(strange), rtol=1e-6)
    lazy = dd.from_pandas(frame.assign(y=Y), npartitions=3)
    refitted = HistGradientBoostingRegressor(**GIVEN).fit(lazy, "y")
    assert arrays(refitted) == arrays(model)
    found = refitted.predict(lazy.drop(columns="y"))
    np.testing.assert_array_equal(found.compute(), model.predict(frame))
    assert refitted.score(lazy, "y") == pytest.approx(model.score(frame, Y))


@pytest.mark.parametrize(
    ("params", "error", "match"),
    [
        ({"max_depth": 0}, InvalidParameterError, "max_depth=0: use an integer >= 1"),
        ({"max_leaf_nodes": 1}, InvalidParameterError, "max_leaf_nodes=1"),
        ({"max_bins": 256}, InvalidParameterError, "max_bins=256"),
        ({"max_features": 0.0}, InvalidParameterError, "max_features"),
        ({"scoring": "acuracy"}, InvalidParameterError, "get_scorer_names"),
        ({"validation_fraction": 1.5}, InvalidParameterError, "validation_fraction"),
        ({"monotonic_cst": [1]}, InvalidParameterError, "monotonic_cst has shape"),
        ({"monotonic_cst": [2] * 6}, InvalidParameterError, "array-like of -1, 0 or 1"),
        ({"interaction_cst": [[9]]}, InvalidParameterError, "invalid indices"),
        ({"categorical_features": [7]}, InvalidParameterError, "n_features - 1"),
        ({"categorical_features": ["a"]}, InvalidParameterError, "without feature names"),
        ({"categorical_features": [4], "max_bins": 5}, InvalidDataError, "index 4.*cardinality"),
        ({"loss": "gamma"}, InvalidDataError, "'gamma': it needs targets y > 0"),
        ({"loss": "poisson"}, InvalidDataError, "'poisson': it needs targets y >= 0"),
        ({"loss": "quantile"}, InvalidParameterError, "quantile=0.5"),
    ],
    ids=str,
)
def test_bad_input_is_named(params: dict[str, Any], error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        HistGradientBoostingRegressor(**{**GIVEN, **params}).fit(X, Y)


def test_odd_columns_and_targets() -> None:
    odd = np.column_stack([X[:, 0], np.ones(len(X)), np.full(len(X), np.nan)])
    params = {**GIVEN, "max_iter": 3}
    peer = truth.HistGradientBoostingRegressor(**params).fit(odd[:, :2], Y)
    model = HistGradientBoostingRegressor(**params).fit(odd, Y)
    np.testing.assert_allclose(model.predict(odd), peer.predict(odd[:, :2]), rtol=1e-6)
    with pytest.raises(InvalidDataError, match="only one class"):
        HistGradientBoostingClassifier().fit(X, np.zeros(len(X)))
    with pytest.raises(InvalidDataError, match="continuous"):
        HistGradientBoostingClassifier().fit(X, Y)
    flat = HistGradientBoostingRegressor(**params).fit(X, np.ones(len(X)))
    np.testing.assert_array_equal(flat.predict(X), 1.0)


@pytest.mark.parametrize("categories", [None, [4]])
def test_apply_returns_the_leaves_of_rows(categories: Any) -> None:
    """Rows are in one leaf if scikit-learn's tree adds the same value to them."""
    params = {**GIVEN, "max_iter": 3, "categorical_features": categories}
    peer = truth.HistGradientBoostingRegressor(**params).fit(X, Y)
    model = HistGradientBoostingRegressor(**params, run=SHORT).fit(X, Y)
    leaves = model.apply(X)
    assert leaves.dtype == np.int64
    stages = np.column_stack([np.full(len(X), peer._baseline_prediction), *peer.staged_predict(X)])
    for found, added in zip(leaves.T, np.diff(stages).T.round(9), strict=True):
        pairs = {*zip(found.tolist(), added.tolist(), strict=True)}
        assert len(pairs) == len({*found.tolist()}) == len({*added.tolist()})
    lazy = model.apply(da.from_array(X, chunks=(700, 6)))
    assert lazy.shape == leaves.shape
    np.testing.assert_array_equal(lazy.compute(), leaves)
    labels = np.digitize(Y, [-1, 1])
    several = HistGradientBoostingClassifier(**{**params, "max_iter": 2}, run=SHORT).fit(X, labels)
    assert several.apply(X).shape == (len(X), 6)


def test_weights_beyond_float32() -> None:
    model = HistGradientBoostingRegressor(**GIVEN)
    with pytest.raises(DivergedError, match=r"the weights.* Scale the targets and the weights"):
        model.fit(X, Y, sample_weight=np.full(len(X), 1e300))
    # Nodes with hessians below `min_hessian` are not split: the mean remains, as in scikit-learn.
    found = model.fit(X, Y, sample_weight=np.full(len(X), 1e-300)).predict(X)
    np.testing.assert_allclose(found, Y.mean())
