"""One call that predicts each row separately equals one call per row, bit for bit."""

from __future__ import annotations

from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn import ensemble as their_ensemble
from sklearn import tree as their_tree
from sklearn.pipeline import make_pipeline

from daskml_dist import ensemble, linear_model, preprocessing, tree
from daskml_dist.inference import Predictor
from daskml_dist.inference.independent_rows import multiply_each_row
from daskml_dist.neural_network import MLPClassifier, MLPRegressor
from tests.inference.test_predictor import TABLE, D, model_of
from tests.quick import in_turn

pytestmark = pytest.mark.filterwarnings("ignore:.*failed to converge")
RANDOM = np.random.default_rng(0)
DTYPES = (np.float32, np.float64)


def scattered(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Return values of many magnitudes, whose sums are rounded in each step."""
    return (RANDOM.normal(size=shape) * 10.0 ** RANDOM.integers(-3, 4, size=shape)).astype(dtype)


@pytest.mark.parametrize("n_columns", [None, 1, 2, 3, 8, 33])
@pytest.mark.parametrize("weights", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_equal_those_of_a_single_row(dtype: Any, weights: Any, n_columns: Any) -> None:
    for width in (*range(1, 70), 127, 128, 129, 500, 1000, 5003):
        w = scattered((width, n_columns or 1), weights)
        w = w[:, 0] if n_columns is None else w
        X = scattered((int(RANDOM.integers(2, 40)), width), dtype)
        alone = np.concatenate([X[at : at + 1].copy() @ w for at in range(len(X))])
        assert_array_equal(multiply_each_row(X, w), alone, f"{width} features")


NETWORKS = {
    "two classes": ((64, 32), "relu", 2),
    "three": ((7,), "tanh", 3),
    "eleven": ((5, 3), "logistic", 11),
    "no hidden layer's function": ((33,), "identity", 2),
    "targets": ((20, 9), "relu", None),
}


@pytest.mark.parametrize("trained", DTYPES)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_equal_single_rows(name: str, trained: Any) -> None:
    sizes, activation, n_classes = NETWORKS[name]
    X = RANDOM.normal(size=(100, 28))
    settings: dict[str, Any] = {"max_iter": 2, "tol": None, "random_state": 0}
    kind = MLPRegressor if n_classes is None else MLPClassifier
    y = X[:, 0] if n_classes is None else np.arange(100) % n_classes
    model = kind(hidden_layer_sizes=sizes, activation=activation, **settings).fit(
        X.astype(trained), y
    )
    for method in ("predict_proba", "predict"):
        for dtype in DTYPES if hasattr(model, method) else ():
            rows = scattered((200, 28), dtype)
            single_rows = [getattr(model, method)(rows[at : at + 1].copy()) for at in range(200)]
            found = Predictor(model, method).each(rows)
            assert_array_equal(found, np.concatenate(single_rows), f"{method}, {dtype}")


#: Methods that predict each row separately in one call; all others are called row by row.
LINEAR = {"predict_proba", "decision_function", "predict"}
EACH = {
    "logistic": LINEAR,
    "logistic, no intercept": LINEAR,
    "ridge": {"predict"},
    "ridge, no intercept": {"predict"},
    "poisson": {"predict"},
    "scaled": LINEAR,
    "scaled twice": LINEAR,
    "not scaled": {"predict"},
    "softmax": LINEAR,
    "hinge": LINEAR - {"predict_proba"},
    "modified huber": LINEAR,
    "ridge of two": {"predict"},
    "network": {"predict_proba", "predict"},
}
#: Methods with independent rows, for requests of any size.
APART = {
    "tree": {"predict_proba", "predict"},
    "forest": {"predict"},
    "boosting": {"predict_proba", "decision_function", "predict"},
    "standard": {"transform"},
    "standard of scikit-learn": {"transform"},
    "shrunk": {"transform"},
}
METHODS = ("predict_proba", "decision_function", "predict", "transform")


@pytest.mark.parametrize(("name", "dtype"), in_turn(TABLE, DTYPES))
def test_predictions_equal_those_of_a_single_row(name: str, dtype: Any) -> None:
    model, found = model_of(name), set()
    for method in METHODS:
        if not hasattr(model, method):
            continue
        predictor = Predictor(model, method)
        for n in (1, 2, 3, 17, 256):
            X = scattered((n, D), dtype)
            if (answers := predictor.each(X)) is None:
                break
            found.add(method)
            single_rows = [getattr(model, method)(X[at : at + 1].copy()) for at in range(n)]
            assert_array_equal(answers, np.concatenate(single_rows), method)
            assert answers.dtype == single_rows[0].dtype
    assert found == EACH.get(name, APART.get(name, set()))


#: Further models with independent rows: deep and wide trees, categories, outputs, links.
MADE: dict[str, Any] = {
    "deep": tree.DecisionTreeRegressor(),
    "of several outputs": ensemble.ExtraTreesRegressor(7, random_state=0),
    "of small trees": ensemble.HistGradientBoostingRegressor(max_iter=30, max_leaf_nodes=31),
    "of large trees": ensemble.HistGradientBoostingRegressor(max_iter=9, max_leaf_nodes=400),
    "of categories": ensemble.HistGradientBoostingRegressor(max_iter=9, categorical_features=[4]),
    "of counts": ensemble.HistGradientBoostingRegressor(loss="poisson", max_iter=9),
    "of classes": ensemble.HistGradientBoostingClassifier(max_iter=9),
    "scaled": make_pipeline(preprocessing.StandardScaler(), tree.DecisionTreeClassifier()),
}


@cache
def _apart(name: str) -> Any:
    if name in APART:
        return model_of(name)
    X = RANDOM.normal(size=(3000, D))
    X[:, 4] = np.floor(abs(3 * X[:, 4]))
    y: Any = np.floor(abs(X[:, 0] * X[:, 1] * 5))
    return MADE[name].fit(X, np.column_stack([y, -y]) if "outputs" in name else y)


@pytest.mark.parametrize(("name", "dtype"), in_turn([*APART, *MADE], DTYPES))
def test_independent_rows_do_not_depend_on_batches(name: str, dtype: Any) -> None:
    """For any split into batches; some values are missing, or unknown categories."""
    model, found = _apart(name), set()
    X = RANDOM.normal(size=(8_000, D)).astype(dtype)
    X[:, 4] = np.floor(X[:, 4] * 5)
    if "tree" not in name and "transform" not in dir(model):
        X[RANDOM.random(X.shape) < 0.02] = np.nan
    for method in METHODS:
        if not hasattr(model, method) or not Predictor(model, method).rows_apart:
            continue
        found.add(method)
        predictor = Predictor(model, method)
        whole = getattr(model, method)(X)
        sizes = RANDOM.choice([1, 1, 2, 7, 40, 127, 128, 129, 256, 257, 700, 5000], size=30)
        for start, n in zip(RANDOM.integers(len(X) - 5000, size=30), sizes, strict=True):
            part = X[start : start + n].copy()
            assert_array_equal(predictor(part), whole[start : start + n], f"{method} of {n}")
            assert_array_equal(getattr(model, method)(part), whole[start : start + n])
    assert found == APART.get(name, found)
    assert found


def test_unusual_rows() -> None:
    X = scattered((3, 4), np.float64)
    predictor = Predictor(linear_model.LogisticRegression().fit(X, [0, 1, 1]))
    assert predictor.each(X) is not None
    for strange in (
        np.where(np.arange(12).reshape(3, 4) == 5, np.nan, X),
        X[:, :3].copy(),
        np.zeros((257, 4)),
        X.astype(np.int64),
        np.empty((0, 4)),
    ):
        assert predictor.each(strange) is None


_THEIRS = {
    "tree": their_tree.DecisionTreeClassifier,
    "regression tree": their_tree.ExtraTreeRegressor,
    "forest": partial(their_ensemble.RandomForestClassifier, 7),
    "regression forest": partial(their_ensemble.ExtraTreesRegressor, 7),
}


@pytest.mark.parametrize(("name", "n_classes"), in_turn(_THEIRS, [2, 3, 11]))
def test_rows_of_scikit_learn_trees_are_independent(name: str, n_classes: int) -> None:
    X = RANDOM.normal(size=(150, 28))
    model = _THEIRS[name](random_state=0).fit(X, np.arange(150) % n_classes)
    for method in [one for one in ("predict", "predict_proba") if hasattr(model, one)]:
        predict = Predictor(model, method)
        assert predict.rows_apart
        alone = np.concatenate([predict(X[at : at + 1]) for at in range(len(X))])
        ends = [0, *np.sort(RANDOM.choice(150, 12, replace=False)), 150]
        cuts = [predict(X[a:b]) for a, b in pairwise(ends) if a < b]
        assert_array_equal(np.concatenate(cuts), alone)
    # With threads, trees are summed in the order in which they finish.
    threads = their_ensemble.RandomForestClassifier(3, n_jobs=2).fit(X[:50], np.arange(50) % 2)
    assert not Predictor(threads).rows_apart
    boosted = their_ensemble.GradientBoostingClassifier(n_estimators=2)
    assert not Predictor(boosted.fit(X[:50], np.arange(50) % 2)).rows_apart
