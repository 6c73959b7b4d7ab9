"""Trees and forests of several outputs, and of sparse rows, beside scikit-learn's."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import sklearn.tree as peers
from distributed import Client

from daskml_dist.ensemble import (
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.models import trees as tree_models
from daskml_dist.solvers import forest_rows
from daskml_dist.tree import DecisionTreeClassifier, DecisionTreeRegressor
from tests.tree.splits import shared_splits

rng = np.random.default_rng(0)
X = np.clip(np.round(rng.normal(size=(900, 5)) * 20) / 20, -3, 3).astype(np.float32)
SIGNAL = np.column_stack([X[:, 0] * X[:, 1], X[:, 2] + 3 * X[:, 3], np.sin(X[:, 4])])
Y = SIGNAL + rng.normal(size=SIGNAL.shape) * 0.1
CLASSES = np.column_stack([(Y[:, 0] > 0) * 1 + (Y[:, 0] > 1), (Y[:, 1] > 0) + 5, Y[:, 2] > 0])
WEIGHT = rng.integers(0, 3, len(X)).astype(float)
SPARSE = sp.csr_matrix(np.where(abs(X) < 0.8, 0, X))

CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "squared error": (Y, None, {}),
    "weights": (Y, WEIGHT, {}),
    "poisson": (np.exp(Y), None, {"criterion": "poisson"}),
    "absolute error": (Y, None, {"criterion": "absolute_error"}),
    "gini": (CLASSES, None, {}),
    "entropy": (CLASSES, WEIGHT, {"criterion": "entropy"}),
    "balanced": (CLASSES, None, {"class_weight": "balanced"}),
    "weights of classes": (
        CLASSES, None, {"class_weight": [{0: 2, 1: 1, 2: 1}, {5: 3, 6: 1}, {0: 1, 1: 2}]},
    ),
    "least gain": (Y, None, {"min_impurity_decrease": 0.02}),
    "pruned": (CLASSES, None, {"ccp_alpha": 0.004}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_trees_of_several_outputs_are_those_of_scikit_learn(case: str) -> None:
    y, weight, params = CASES[case]
    ours, peer = _both(y, {"max_depth": 4, **params})
    a, b = ours.fit(X, y, weight), peer.fit(X, y, weight)
    assert a.n_outputs_ == b.n_outputs_ == 3
    assert a.tree_.value.shape[1:] == b.tree_.value.shape[1:]
    assert shared_splits(a.tree_, b.tree_, 0, 0) >= 4
    np.testing.assert_allclose(a.feature_importances_, b.feature_importances_, atol=0.05)
    if y is not CLASSES:
        np.testing.assert_allclose(a.score(X, y, weight), b.score(X, y, weight), atol=0.01)
        return
    for k, shares in enumerate(a.predict_proba(X)):
        np.testing.assert_array_equal(a.classes_[k], b.classes_[k])
        assert shares.shape == (len(X), len(a.classes_[k]))
    right = (a.predict(X) == y).all(axis=1)
    assert a.score(X, y) == pytest.approx(right.mean())
    assert right.mean() == pytest.approx((b.predict(X) == y).all(axis=1).mean(), abs=0.02)
    assert len(a.predict_log_proba(X)) == 3


def _both(y: Any, params: dict[str, Any]) -> tuple[Any, Any]:
    if y is CLASSES:
        return DecisionTreeClassifier(**params), peers.DecisionTreeClassifier(
            random_state=0, **params
        )
    return DecisionTreeRegressor(**params), peers.DecisionTreeRegressor(random_state=0, **params)


def test_outputs_do_not_depend_on_the_trainers(client: Client) -> None:
    rows, y = client.persist([da.from_array(X, chunks=(250, -1)), da.from_array(Y, chunks=250)])
    few = {"n_estimators": 3, "random_state": 0, "max_depth": 5}
    expected = RandomForestRegressor(**few).fit(X, Y).predict(X)
    for decomposition in ("functional", "data"):
        found = RandomForestRegressor(decomposition=decomposition, **few).fit(rows, y)
        np.testing.assert_array_equal(found.predict(rows).compute(), expected)
    labels = da.from_array(CLASSES, chunks=250)
    expected = RandomForestClassifier(**few).fit(X, CLASSES).predict_proba(X)
    found = RandomForestClassifier(decomposition="data", **few).fit(rows, labels)
    for a, b in zip(found.predict_proba(rows), expected, strict=True):
        np.testing.assert_array_equal(a.compute(), b)
    np.testing.assert_array_equal(found.predict(rows).compute(), found.predict(X))


def test_sparse_rows_are_dense_ones(client: Client) -> None:
    dense = SPARSE.toarray()
    few = {"n_estimators": 3, "random_state": 0, "max_depth": 6}
    expected = RandomForestRegressor(**few).fit(dense, Y[:, 0])
    blocks = da.from_array(dense, chunks=(250, -1)).map_blocks(sp.csr_matrix)
    lazy = client.persist(blocks)
    for rows in (SPARSE, SPARSE.tocsc(), sp.coo_array(SPARSE), lazy):
        found = RandomForestRegressor(**few).fit(rows, Y[:, 0])
        answers = found.predict(rows)
        np.testing.assert_array_equal(np.asarray(answers), expected.predict(dense))
    np.testing.assert_array_equal(found.apply(SPARSE), expected.apply(dense))
    assert (found.decision_path(SPARSE)[0] != expected.decision_path(dense)[0]).nnz == 0


def test_more_columns_than_one_dense_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forest_rows, "_MAX_TILE_ENTRIES", 2**18)
    monkeypatch.setattr(tree_models, "_ENTRIES_AT_ONCE", 2**18)
    wide = sp.random(300, 4_000, density=0.01, random_state=0, format="csr", dtype=np.float32)
    y = np.asarray(wide[:, 7].todense()).ravel() > 0
    model = DecisionTreeClassifier(max_depth=2, random_state=0).fit(wide, y)
    assert model.score(wide, y) == 1.0
    assert model.tree_.feature[0] == 7


def test_out_of_bag_scores_of_outputs() -> None:
    model = RandomForestRegressor(30, random_state=0, oob_score=True).fit(X, Y)
    assert model.oob_prediction_.shape == Y.shape
    assert 0.5 < model.oob_score_ < model.score(X, Y)
    two = CLASSES[:, 1:]
    of = RandomForestClassifier(30, random_state=0, oob_score=True).fit(X, two)
    assert of.oob_decision_function_.shape == (len(X), 2, 2)
    labels = np.array([5, 0]) + of.oob_decision_function_.argmax(axis=1)
    assert of.oob_score_ == pytest.approx((labels == two).all(axis=1).mean())
    assert of.estimators_[0].n_outputs_ == 2


BAD: list[tuple[Any, dict[str, Any], str]] = [
    (CLASSES, {"oob_score": True}, "multiclass-multioutput"),
    (CLASSES, {"class_weight": "balanced_subsample"}, "balanced"),
    (CLASSES, {"class_weight": {0: 1}}, "list of dicts"),
    (CLASSES, {"class_weight": [{0: 1}]}, "match number of outputs"),
    (CLASSES, {"class_weight": [{0: 1}, {9: 1}, {0: 1}]}, "not in y"),
    (CLASSES[:, 0], {"class_weight": [{0: 1}, {0: 1}]}, "match number of outputs"),
    (CLASSES, {"monotonic_cst": [1, 0, 0, 0, 0]}, "multiple outputs"),
    (sp.csr_matrix(CLASSES), {}, "sparse"),
    ([[1, 2]] * 899 + [[1]], {}, "equal length"),
    (np.where(CLASSES == 1, np.nan, CLASSES), {}, "NaN"),
]


@pytest.mark.parametrize(("y", "params", "words"), BAD)
def test_bad_outputs_are_named(y: Any, params: dict[str, Any], words: str) -> None:
    with pytest.raises((InvalidDataError, InvalidParameterError), match=words):
        RandomForestClassifier(2, **params).fit(X, y)


def test_warm_start_keeps_to_its_outputs() -> None:
    model = ExtraTreesRegressor(2, warm_start=True, random_state=0).fit(X, Y)
    assert model.set_params(n_estimators=3).fit(X, Y).predict(X).shape == Y.shape
    with pytest.raises(InvalidDataError, match="outputs"):
        model.set_params(n_estimators=4).fit(X, Y[:, 0])
