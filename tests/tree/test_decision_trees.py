"""Decision trees beside scikit-learn's: the same splits, but where two are worth the same."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import sklearn.tree as peers

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.tree import DecisionTreeClassifier, DecisionTreeRegressor
from tests.tree.splits import shared_splits

rng = np.random.default_rng(0)
# Fewer distinct values than bins.
X = np.clip(np.round(rng.normal(size=(1500, 6)) * 20) / 20, -3, 3).astype(np.float32)
SIGNAL = X[:, 0] * X[:, 1] + np.sin(3 * X[:, 2]) + X[:, 3]
Y = SIGNAL + rng.normal(size=len(X)) * 0.3
CLASS = (SIGNAL > 0).astype(int) + (SIGNAL > 1)
WEIGHT = (rng.random(len(X)) * 3).astype(np.float32)
HOLES = np.where(rng.random(X.shape) < 0.2, np.nan, X).astype(np.float32)
SIGNS = [0, 0, 0, 1, 0, -1]

CASES: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "squared error": (X, Y, None, {"max_depth": 6}),
    "gini": (X, CLASS, None, {"max_depth": 6}),
    "entropy": (X, CLASS, None, {"max_depth": 6, "criterion": "entropy"}),
    "poisson": (X, np.exp(Y), None, {"max_depth": 5, "criterion": "poisson"}),
    "weights": (X, Y, WEIGHT, {"max_depth": 5}),
    "class weights": (X, CLASS, WEIGHT, {"max_depth": 5, "class_weight": {0: 1, 1: 3, 2: 2}}),
    "missing": (HOLES, Y, None, {"max_depth": 6}),
    "missing, classes": (HOLES, CLASS, None, {"max_depth": 6}),
    "leaves": (X, Y, None, {"max_leaf_nodes": 17}),
    "least rows": (X, CLASS, None, {"min_samples_leaf": 20, "min_samples_split": 0.05}),
    "least weight": (X, Y, WEIGHT, {"min_weight_fraction_leaf": 0.03}),
    "least gain": (X, CLASS, None, {"min_impurity_decrease": 0.004}),
    "pruned": (X, CLASS, None, {"ccp_alpha": 0.003}),
    "pruned, regression": (X, Y, None, {"ccp_alpha": 0.02}),
    "absolute error": (X, Y, None, {"max_depth": 5, "criterion": "absolute_error"}),
    "medians of weights": (X, Y, WEIGHT, {"max_depth": 4, "criterion": "absolute_error"}),
    "medians, missing": (HOLES, Y, None, {"max_depth": 4, "criterion": "absolute_error"}),
    "rising medians": (
        X,
        Y,
        None,
        {"max_depth": 5, "criterion": "absolute_error", "monotonic_cst": SIGNS},
    ),
    "rising": (X, Y, None, {"max_depth": 5, "monotonic_cst": SIGNS}),
    "likelier": (X, CLASS > 0, None, {"max_depth": 5, "monotonic_cst": SIGNS}),
}


@pytest.mark.parametrize("case", CASES)
def test_splits_are_those_of_scikit_learn(case: str) -> None:
    rows, y, weight, params = CASES[case]
    regression = y.dtype == np.float64
    ours = DecisionTreeRegressor(**params) if regression else DecisionTreeClassifier(**params)
    kind = peers.DecisionTreeRegressor if regression else peers.DecisionTreeClassifier
    peer = kind(random_state=0, **params)
    a = ours.fit(rows, y, weight).tree_
    b = peer.fit(rows, y, weight).tree_
    assert shared_splits(a, b, 0, 0) >= 5
    ties = "max_leaf_nodes" in params or "ccp_alpha" in params
    assert ours.get_depth() == peer.get_depth() or ties
    assert ours.feature_importances_.sum() == pytest.approx(1)
    assert abs(ours.feature_importances_ - peer.feature_importances_).max() < 0.02


def test_nodes_have_the_numbers_of_scikit_learn() -> None:
    y = X[:, 0] + 10 * (X[:, 1] > 0)
    ours, peer = (t(max_depth=4).fit(X, y) for t in (DecisionTreeRegressor,
                                                   peers.DecisionTreeRegressor))  # fmt: skip
    for name in ("children_left", "children_right", "feature", "n_node_samples"):
        np.testing.assert_array_equal(getattr(ours.tree_, name), getattr(peer.tree_, name))
    np.testing.assert_allclose(ours.tree_.threshold, peer.tree_.threshold)
    np.testing.assert_array_equal(ours.apply(X), peer.apply(X))
    assert (ours.decision_path(X) != peer.decision_path(X)).nnz == 0
    assert ours.get_n_leaves() == peer.get_n_leaves()


def test_a_weight_of_k_is_a_row_k_times() -> None:
    times = rng.integers(0, 4, len(X))
    often = np.repeat(np.arange(len(X)), times)
    for kind, y in ((DecisionTreeClassifier, CLASS), (DecisionTreeRegressor, np.round(Y, 2))):
        a = kind(max_depth=6, random_state=0).fit(X, y, times).tree_
        b = kind(max_depth=6, random_state=0).fit(X[often], y[often]).tree_
        for name in ("feature", "threshold", "value", "weighted_n_node_samples"):
            np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-6, atol=1e-9)


def test_random_cuts_lie_between_the_values_of_a_node() -> None:
    tree = DecisionTreeRegressor(splitter="random", random_state=0, min_samples_leaf=5).fit(X, Y)
    nodes = tree.tree_
    paths = tree.decision_path(X).tocsc()
    for node in np.flatnonzero(nodes.feature >= 0):
        values = X[paths[:, [node]].nonzero()[0], nodes.feature[node]]
        assert values.min() <= nodes.threshold[node] < values.max()
    assert tree.score(X, Y) > 0.5


BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_depth": 0}, "max_depth"),
    ({"criterion": "absolute_error", "decomposition": "data"}, "functional"),
    ({"monotonic_cst": "up"}, "monotonic_cst"),
    ({"max_leaf_nodes": 1}, "max_leaf_nodes"),
    ({"min_weight_fraction_leaf": 0.6}, "min_weight_fraction_leaf"),
    ({"criterion": "gini"}, "criterion"),
    ({"max_features": 0}, "max_features"),
    ({"min_samples_leaf": 1.5}, "min_samples_leaf"),
    ({"splitter": "worst"}, "splitter"),
    ({"max_bins": 300}, "max_bins"),
    ({"monotonic_cst": [1]}, "monotonic_cst"),
]


@pytest.mark.parametrize(("params", "word"), BAD, ids=str)
def test_refused_parameters_are_named(params: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidParameterError, match=word):
        DecisionTreeRegressor(**params).fit(X[:50], Y[:50])


NONE = np.full(50, np.nan)
ODD: dict[str, tuple[Any, Any, Any, str]] = {
    "targets of nan": (X[:50], NONE, None, "NaN"),
    "infinite targets": (X[:50], np.append(Y[:49], np.inf), None, "infinity"),
    "zero weights": (X[:50], Y[:50], np.zeros(50), "zero"),
    "negative weights": (X[:50], Y[:50], -np.ones(50), "[Nn]egative"),
    "another length": (X[:50], Y[:49], None, "inconsistent"),
    "no columns of targets": (X[:50], np.empty((50, 0)), None, "no columns"),
    "no rows": (X[:0], Y[:0], None, "0 sample"),
    "no features": (X[:50, :0], Y[:50], None, "0 feature"),
    "strings": (np.full((50, 2), "a"), Y[:50], None, "numeric"),
    "targets too large": (X[:50].astype(float), Y[:50] * 1e300, None, "overflow"),
    "a tensor of targets": (X[:50], np.zeros((50, 2, 2)), None, "1d"),
}


@pytest.mark.parametrize("case", ODD)
def test_bad_rows_are_named(case: str) -> None:
    rows, y, weight, words = ODD[case]
    with pytest.raises(InvalidDataError, match=words):
        DecisionTreeRegressor().fit(rows, y, weight)


def test_labels_of_two_types_are_named() -> None:
    mixed = np.array([["a", 1]] * 50, object)
    with pytest.raises(InvalidDataError, match="types"):
        DecisionTreeClassifier().fit(X[:50], mixed)


def test_uninformative_rows() -> None:
    """All can be fitted, and predictions are finite."""
    constant, missing = np.ones((20, 2)), np.full((20, 2), np.nan)
    for rows in (constant, missing, X[:20, [0] * 300], X[:20] * 1e37, X[:20] > 0):
        for model, y in ((DecisionTreeRegressor(), Y[:20]), (DecisionTreeClassifier(), CLASS[:20])):
            assert np.isfinite(model.fit(rows, y).predict(rows)).all()
    empty = da.concatenate([da.from_array(part) for part in (X[:20], X[:0], X[20:40])])
    y = da.concatenate([da.from_array(part) for part in (CLASS[:20], CLASS[:0], CLASS[20:40])])
    assert DecisionTreeClassifier().fit(empty, y).score(empty, y) > 0.9
    some = DecisionTreeRegressor().fit(X[:40], Y[:40], np.arange(40) < 20).tree_
    assert some.n_node_samples[0] == 20


@pytest.mark.parametrize("y", [CLASS, Y], ids=["classes", "regression"])
def test_pruning_paths_are_those_of_scikit_learn(y: Any) -> None:
    ours, peer = (
        (DecisionTreeRegressor(), peers.DecisionTreeRegressor())
        if y is Y
        else (DecisionTreeClassifier(), peers.DecisionTreeClassifier())
    )
    bounds = {"max_leaf_nodes": 25, "min_samples_leaf": 10}
    a = ours.set_params(**bounds).cost_complexity_pruning_path(X, y)
    b = peer.set_params(**bounds).cost_complexity_pruning_path(X, y)
    np.testing.assert_allclose(a.ccp_alphas, b.ccp_alphas, atol=1e-9)
    np.testing.assert_allclose(a.impurities, b.impurities, atol=1e-9)


def test_deprecated_names_warn() -> None:
    with pytest.warns(FutureWarning, match="friedman_mse"):
        tree = DecisionTreeRegressor(criterion="friedman_mse", max_depth=3).fit(X, Y).tree_
    plain = DecisionTreeRegressor(max_depth=3).fit(X, Y).tree_
    np.testing.assert_array_equal(tree.feature, plain.feature)
    assert tree.capacity == tree.node_count
    assert tree.max_n_classes == 1
    np.testing.assert_allclose(tree.predict(X)[:, 0], tree.value[tree.apply(X), 0, 0])


def test_odd_rows() -> None:
    one = DecisionTreeClassifier().fit(X[:20], np.full(20, 3.0))
    assert one.predict(X[:2]).tolist() == [3.0, 3.0]
    assert one.predict_proba(X[:2]).tolist() == [[1.0], [1.0]]
    empty = np.full((50, 2), np.nan, np.float32)
    empty[:, 1] = 7
    assert DecisionTreeRegressor().fit(empty, Y[:50]).get_n_leaves() == 1
    with pytest.raises(InvalidDataError, match="continuous"):
        DecisionTreeClassifier().fit(X[:20], Y[:20])
    with pytest.raises(InvalidDataError, match="negative"):
        DecisionTreeRegressor(criterion="poisson").fit(X[:20], np.arange(20.0) - 1)
