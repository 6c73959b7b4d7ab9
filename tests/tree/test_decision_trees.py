"""Decision trees beside scikit-learn's: the same splits, but where two are worth the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.tree as peers

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.tree import DecisionTreeClassifier, DecisionTreeRegressor

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
    assert _compared(a, b, 0, 0) >= 5
    ties = "max_leaf_nodes" in params or "ccp_alpha" in params
    assert ours.get_depth() == peer.get_depth() or ties
    assert ours.feature_importances_.sum() == pytest.approx(1)
    assert abs(ours.feature_importances_ - peer.feature_importances_).max() < 0.02


def _compared(a: Any, b: Any, i: int, k: int) -> int:
    """Splits that two trees share from a node on.

    Where they differ, both must lower the impurity alike: of equal splits either may be made.
    """
    np.testing.assert_allclose(a.impurity[i], b.impurity[k], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(a.value[i], b.value[k], rtol=1e-7, atol=1e-12)
    assert a.n_node_samples[i] == b.n_node_samples[k]
    at, bt = (a.children_left[i], a.children_right[i]), (b.children_left[k], b.children_right[k])
    if at[0] < 0 or bt[0] < 0:
        return 0
    same = a.feature[i] == b.feature[k] and np.isclose(a.threshold[i], b.threshold[k])
    same &= a.n_node_samples[at[0]] == b.n_node_samples[bt[0]]
    if not same:
        left = [t.impurity[list(c)] @ t.weighted_n_node_samples[list(c)]
                for t, c in ((a, at), (b, bt))]  # fmt: skip
        np.testing.assert_allclose(left[0], left[1], rtol=1e-8, atol=1e-9)
        return 0
    return 1 + _compared(a, b, at[0], bt[0]) + _compared(a, b, at[1], bt[1])


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
    times = rng.integers(1, 4, len(X))
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
    ({"criterion": "absolute_error"}, "squared_error"),
    ({"criterion": "gini"}, "criterion"),
    ({"max_features": 0}, "max_features"),
    ({"min_samples_leaf": 1.5}, "min_samples_leaf"),
    ({"splitter": "worst"}, "splitter"),
    ({"max_bins": 300}, "max_bins"),
    ({"monotonic_cst": [1]}, "monotonic_cst"),
]


@pytest.mark.parametrize(("params", "word"), BAD, ids=str)
def test_what_is_refused_is_named(params: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidParameterError, match=word):
        DecisionTreeRegressor(**params).fit(X[:50], Y[:50])


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
