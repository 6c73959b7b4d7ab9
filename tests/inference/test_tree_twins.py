"""Twins of trees, forests and boosting predict the same, bit for bit."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.tree import export_text

from daskml_dist.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from daskml_dist.errors import ExportError
from daskml_dist.inference import Predictor
from daskml_dist.inference.export.sklearn_parts import check_fields
from daskml_dist.tree import DecisionTreeClassifier, DecisionTreeRegressor
from tests.inference.twins import assert_alone, assert_answers

RNG = np.random.default_rng(0)
N = 400
#: Rows exactly representable in float32, as scikit-learn's trees need, with missing values.
X = RNG.normal(size=(N, 4)).astype(np.float32)
Y = X[:, 0] - X[:, 1] ** 2 + 0.1 * RNG.normal(size=N)
X[RNG.random(X.shape) < 0.1] = np.nan
TARGETS = {"number": Y, "count": np.floor(np.exp(Y)), "2": Y > 0, "3": np.digitize(Y, [-1, 0])}
TARGETS |= {
    "numbers": np.column_stack([Y, -Y, Y**2]),
    "labels": np.column_stack([Y > 0, TARGETS["3"]]),
    "several": np.column_stack([Y > 0, Y > 1, Y < 0]),
}
LABELS = np.array(["a", "b", "c"])[TARGETS["3"]]
FEW = {"n_estimators": 3, "random_state": 0}

TREES: dict[str, tuple[Any, str]] = {
    "tree of 2": (DecisionTreeClassifier(max_depth=4), "2"),
    "tree of 3": (DecisionTreeClassifier(criterion="entropy", max_leaf_nodes=9), "3"),
    "tree": (DecisionTreeRegressor(min_samples_leaf=5), "number"),
    "random tree": (DecisionTreeRegressor(splitter="random", random_state=0), "number"),
    "tree of counts": (DecisionTreeRegressor(criterion="poisson", max_depth=5), "count"),
    "tree of a leaf": (DecisionTreeRegressor(min_samples_split=N + 1), "number"),
    "forest of 2": (RandomForestClassifier(**FEW), "2"),
    "forest of 3": (RandomForestClassifier(class_weight="balanced", oob_score=False, **FEW), "3"),
    "forest": (RandomForestRegressor(max_features=2, **FEW), "number"),
    "extra trees of 3": (ExtraTreesClassifier(**FEW), "3"),
    "extra trees": (ExtraTreesRegressor(**FEW), "number"),
    "tree of numbers": (DecisionTreeRegressor(max_depth=4), "numbers"),
    "tree of labels": (DecisionTreeClassifier(max_depth=4), "labels"),
    "forest of numbers": (RandomForestRegressor(**FEW), "numbers"),
    "forest of several": (RandomForestClassifier(**FEW), "several"),
    "extra trees of labels": (ExtraTreesClassifier(**FEW), "labels"),
}


@pytest.mark.parametrize("name", TREES)
def test_trees_and_forests_to_the_bit(name: str) -> None:
    model, target = TREES[name]
    model = model.fit(X, TARGETS[target])
    twin = assert_alone(model.to_sklearn())
    with np.errstate(divide="ignore"):
        assert_answers(model, twin, X, rtol=0)
    assert_allclose(twin.feature_importances_, model.feature_importances_, atol=1e-12)
    if target not in ("labels", "several"):  # scikit-learn has no score of several outputs
        assert twin.score(X, TARGETS[target]) == pytest.approx(model.score(X, TARGETS[target]))


def test_trees_of_a_twin_have_all_attributes() -> None:
    """Tools that read scikit-learn's trees can read these."""
    model = RandomForestClassifier(max_depth=3, **FEW).fit(X, LABELS)
    twin = model.to_sklearn()
    assert_array_equal(twin.classes_, ["a", "b", "c"])
    tree, ours = twin.estimators_[1].tree_, model.estimators_[1].tree_
    for field in ("threshold", "n_node_samples", "weighted_n_node_samples", "value", "impurity"):
        assert_array_equal(getattr(tree, field), getattr(ours, field))
    assert (tree.max_depth, tree.n_leaves) == (ours.max_depth, ours.n_leaves)
    assert "class: " in export_text(twin.estimators_[0])
    paths, roots = model.decision_path(X[:9])
    their_paths, their_roots = twin.decision_path(X[:9])
    assert (paths != their_paths).nnz == 0
    assert_array_equal(roots, their_roots)


def test_float64_rows_agree_up_to_scikit_learn_s_rounding() -> None:
    """scikit-learn's trees round rows to float32; no row here is that close to a threshold."""
    rows = np.random.default_rng(1).normal(size=(300, 3))
    model = RandomForestRegressor(**FEW).fit(rows, rows[:, 0])
    assert_array_equal(model.to_sklearn().predict(rows), model.predict(rows))


def test_nodes_of_an_unknown_kind_are_refused() -> None:
    dtype = np.dtype([("left_child", int), ("is_categorical", bool)])
    with pytest.raises(ExportError, match=r"Nodes of trees in scikit-learn .*newer daskml-dist"):
        check_fields(dtype, {"left_child"}, "trees")


# --- boosting --------------------------------------------------------------------------------

SHORT = {"max_iter": 4, "max_leaf_nodes": 7, "random_state": 0}
BOOSTING: dict[str, tuple[Any, str]] = {
    "2": (HistGradientBoostingClassifier(**SHORT), "2"),
    "3": (HistGradientBoostingClassifier(l2_regularization=1.0, **SHORT), "3"),
    "large trees": (HistGradientBoostingRegressor(max_iter=2, max_leaf_nodes=None), "number"),
    "stopped early": (
        HistGradientBoostingRegressor(early_stopping=True, n_iter_no_change=2, **SHORT), "number"
    ),
    **{
        loss: (HistGradientBoostingRegressor(loss, quantile=0.3, **SHORT), target)
        for loss, target in {
            "squared_error": "number", "absolute_error": "number", "quantile": "number",
            "poisson": "count", "gamma": "positive",
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("name", BOOSTING)
def test_boosting_to_the_bit(name: str) -> None:
    model, target = BOOSTING[name]
    y = np.exp(Y) if target == "positive" else TARGETS[target]
    rows = X.astype(np.float64)
    model = model.fit(rows, y)
    twin = assert_alone(model.to_sklearn())
    assert_answers(model, twin, rows, rtol=0)
    # Rows near thresholds, and rows outside of the fit.
    assert_answers(model, twin, np.nextafter(rows, np.inf), rtol=0)
    for ours, theirs in zip(model.staged_predict(rows), twin.staged_predict(rows), strict=True):
        assert_array_equal(ours, theirs)
    assert twin.n_iter_ == model.n_iter_
    assert_array_equal(twin.train_score_, model.train_score_)


def _frame(kind: str) -> pd.DataFrame:
    """Return string categories, some missing, between numeric columns."""
    rng = np.random.default_rng(2)
    words = np.array(["red", "blue", "green", "zz", "a"], dtype=object)[rng.integers(0, 5, N)]
    words[::17] = None
    ages = pd.Series(rng.integers(3, 9, N) * 10)
    return pd.DataFrame({
        "size": X[:, 0].astype(float), "colour": pd.Series(words).astype(kind),
        "age": ages.astype("category"), "hours": X[:, 1].astype(float),
    })  # fmt: skip


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("target", ["number", "3"])
def test_boosting_with_categories_of_frames(target: str, lazy: bool) -> None:
    frame = _frame("category")
    y = TARGETS[target] + frame["colour"].isin(["red", "a"])
    kind = HistGradientBoostingRegressor if target == "number" else HistGradientBoostingClassifier
    model = kind(max_iter=5, random_state=0)
    if lazy:
        model.fit(dd.from_pandas(frame, npartitions=3), dd.from_pandas(y, npartitions=3))
    else:
        model.fit(frame, y)
    assert (model._trees.nodes.category >= 0).any()
    assert Predictor(model).dtypes == ["float64", "category", "category", "float64"]
    words = frame.astype({"colour": object})
    assert_array_equal(model.predict(words), model.predict(frame))  # as in a service
    twin = assert_alone(model.to_sklearn())
    assert_answers(model, twin, frame, rtol=0)
    strange = frame.head(20).assign(colour=pd.Categorical(["pink", "red"] * 10))
    assert_answers(model, twin, strange, rtol=0)
    assert_array_equal(twin.is_categorical_, [False, True, True, False])


def test_boosting_with_categories_of_arrays() -> None:
    rows = np.column_stack([X[:, 0], RNG.integers(0, 40, N) * 3.0 - 7, X[:, 1]]).astype(float)
    rows[::13, 1] = np.nan
    y = Y + (np.nan_to_num(rows[:, 1]) % 2)
    model = HistGradientBoostingRegressor(categorical_features=[1], max_iter=5)
    model.fit(da.from_array(rows, chunks=(100, 3)), da.from_array(y, chunks=100))
    twin = assert_alone(model.to_sklearn())
    assert_answers(model, twin, rows, rtol=0)
    strange = rows.copy()
    strange[:, 1] += 0.5
    assert_answers(model, twin, strange, rtol=0)


def test_a_twin_can_be_fitted_again() -> None:
    model = HistGradientBoostingClassifier(max_iter=1).fit(X[:100], Y[:100] > 0)
    refitted = model.to_sklearn().fit(X[:100], Y[:100] > 0)
    assert_allclose(refitted.predict_proba(X), model.predict_proba(X), atol=1e-6)
