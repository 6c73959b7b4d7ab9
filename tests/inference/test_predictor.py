"""Predictors equal the estimator's methods bit for bit, including their error messages."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn import linear_model as sklearn_linear
from sklearn import preprocessing as sklearn_preprocessing
from sklearn.base import clone
from sklearn.pipeline import Pipeline, make_pipeline

import daskml_dist
from daskml_dist import cluster, ensemble, linear_model, preprocessing, tree
from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.transformer import BlockTransformer
from daskml_dist.inference import Predictor
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.neural_network import MLPClassifier
from tests.inference.test_to_sklearn import MODELS, OTHERS, fitted
from tests.quick import in_turn

D = 5
X = np.random.default_rng(0).normal(size=(400, D))
SIGNAL = X[:, 0] - X[:, 1] ** 2
TARGETS = {
    "two": (SIGNAL > 0).astype(int),
    "three": np.array(["a", "b", "c"])[np.digitize(SIGNAL, [-1, 0])],
    "number": SIGNAL,
    "count": np.floor(abs(SIGNAL)),
    "numbers": X[:, :2],
}
SGD: Any = {"learning_rate": 0.1, "max_iter": 2, "tol": None, "random_state": 0}
#: Models, their targets, and whether few rows use the fast path without validation.
TABLE: dict[str, tuple[Any, str, bool]] = {
    "logistic": (linear_model.LogisticRegression(), "two", True),
    "logistic, no intercept": (linear_model.LogisticRegression(fit_intercept=False), "two", True),
    "softmax": (linear_model.LogisticRegression(), "three", True),
    "hinge": (linear_model.SGDClassifier("hinge", **SGD), "three", True),
    "modified huber": (linear_model.SGDClassifier("modified_huber", **SGD), "three", True),
    "ridge": (linear_model.Ridge(), "number", True),
    "ridge, no intercept": (linear_model.Ridge(fit_intercept=False), "number", True),
    "ridge of two": (linear_model.Ridge(), "numbers", True),
    "poisson": (linear_model.PoissonRegressor(), "count", True),
    "tree": (tree.DecisionTreeClassifier(max_depth=4), "three", True),
    "forest": (ensemble.RandomForestRegressor(3, max_depth=4, random_state=0), "number", True),
    "boosting": (ensemble.HistGradientBoostingClassifier(max_iter=3), "two", True),
    "bayes": (GaussianNB(), "three", True),
    "k-means": (cluster.KMeans(3, random_state=0), "number", True),
    "network": (MLPClassifier((3,), max_iter=2, solver="lbfgs", random_state=0), "three", True),
    "scaled": (
        make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression()),
        "two", True,
    ),
    "scaled twice": (
        make_pipeline(
            preprocessing.MinMaxScaler(clip=True), "passthrough",
            sklearn_preprocessing.RobustScaler(), linear_model.LogisticRegression(),
        ), "three", True,
    ),
    "not scaled": (Pipeline([("a", linear_model.Ridge())]), "number", True),
    "standard": (preprocessing.StandardScaler(), "number", True),
    "standard of scikit-learn": (sklearn_preprocessing.StandardScaler(), "number", True),
    "shrunk": (preprocessing.MaxAbsScaler(), "number", True),
    "squared": (
        make_pipeline(preprocessing.PolynomialFeatures(), linear_model.Ridge()), "number", False
    ),
    "scikit-learn's": (sklearn_linear.Ridge(), "number", False),
}  # fmt: skip
METHODS = (
    "predict", "predict_proba", "predict_log_proba", "decision_function", "transform", "apply",
    "score_samples", "inverse_transform",
)  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:.*failed to converge", "ignore:divide by zero")


class Whole(np.ndarray[Any, Any]):
    """Array subclass, which disables the fast path: every layer validates it."""


class Framed(pd.DataFrame):
    """The same for a frame."""


class Listed(list[Any]):
    """The same for lists."""


@cache
def model_of(name: str) -> Any:
    model, target, _ = TABLE[name]
    return clone(model).fit(X, TARGETS[target])


def predict_or_error(model: Any, method: str, rows: Any) -> Any:
    """Return the method's predictions, or its error, with full validation."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")
            found = getattr(model, method)(rows)
            return np.asarray(found.toarray() if sparse.issparse(found) else found)
    except Exception as error:
        return type(error), str(error).replace("'Listed'", "'list'")


def call_predictor(predictor: Any, rows: Any) -> Any:
    return predict_or_error(predictor, "__call__", rows)


def assert_same(found: Any, wanted: Any, about: Any) -> None:
    if isinstance(wanted, tuple):
        assert found == wanted, about
        return
    assert_array_equal(found, wanted, str(about))
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), about


def assert_alike(
    model: Any, rows: np.ndarray[Any, Any], dtypes: Sequence[Any] = (np.float64, np.float32)
) -> set[str]:
    """Assert that predictors and methods agree on all rows; return the plain methods."""
    bare = set()
    for method in METHODS:
        if not hasattr(model, method):
            continue
        predictor = Predictor(model, method)
        bare |= {method} if predictor.bare else set()
        for X in several(rows, dtypes):
            before = X.copy()
            about = method, X.dtype, X.shape
            for same, whole in otherwise(X):
                wanted = predict_or_error(model, method, whole)
                assert_same(call_predictor(predictor, same), wanted, (about, type(same)))
                assert_same(predict_or_error(model, method, same), wanted, (about, type(same)))
            assert_array_equal(X, before)
    return bare


def otherwise(X: np.ndarray[Any, Any]) -> list[tuple[Any, Any]]:
    """Return rows in several containers, and in those that are always validated."""
    found: list[tuple[Any, Any]] = [(X, X.view(Whole))]
    if X.ndim == 2:
        frame, lists = pd.DataFrame(X), X.tolist()
        found += [(frame, Framed(frame)), (lists, Listed(lists))]
    return found


def several(rows: np.ndarray[Any, Any], dtypes: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Return rows of all kinds that a predictor distinguishes, including refused ones."""
    found = []
    for dtype in dtypes:
        rows = rows.astype(dtype)
        bad = [rows[:2].copy() for _ in range(4)]
        for one, value in zip(bad, (np.nan, np.inf, -np.inf, np.finfo(dtype).max), strict=True):
            one[1, -1] = value
        bad[3][:] = np.finfo(dtype).max
        frozen = rows[:1].copy()
        frozen.flags.writeable = False
        crooked = np.frombuffer(b"." + rows[:3].tobytes(), np.uint8)[1:].view(dtype)
        found += [
            rows[:1], rows[:64], rows, rows[:0], rows[::2][:3], np.asfortranarray(rows[:3]),
            frozen, crooked.reshape(3, -1), rows[:3].astype(rows.dtype.newbyteorder()),
            rows[:1, 1:], np.hstack([rows[:1], rows[:1]]), rows[0], *bad,
        ]  # fmt: skip
    return [*found, np.ones((2, rows.shape[1]), int), rows[:2].astype(object)]


@pytest.mark.parametrize(("name", "dtype"), in_turn(TABLE, [np.float64, np.float32]))
def test_predictors_equal_the_methods(name: str, dtype: Any) -> None:
    with np.errstate(all="ignore"):
        bare = assert_alike(model_of(name), X, [dtype])
    assert bool(bare) is TABLE[name][2]
    if "logistic" in name or name == "scaled":
        assert bare >= {"predict", "predict_proba", "decision_function"}


def test_ten_thousand_rows() -> None:
    rows = np.random.default_rng(1).normal(size=(10_000, D)).astype(np.float32)
    for name in ("logistic", "softmax", "poisson", "scaled", "forest"):
        model = model_of(name)
        assert_array_equal(Predictor(model, "predict")(rows), model.predict(rows.view(Whole)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:n_quantiles", "ignore:.*failed to converge")
@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_predictors_of_all_models(name: str) -> None:
    model, rows = fitted(name)
    try:
        rows = np.asarray(rows, np.float64)
    except (TypeError, ValueError):
        pytest.skip("its rows are no numbers")
    if rows.ndim != 2:
        pytest.skip("its rows are no matrix")
    with np.errstate(all="ignore"):
        assert_alike(model, np.resize(rows, (300, rows.shape[1])))


def test_arrays_need_no_names_but_frames_are_checked() -> None:
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = linear_model.Ridge().fit(frame, SIGNAL)
    predictor = Predictor(model)
    assert (predictor.names, predictor.n_features) == (list("abcde"), D)
    wanted = model.predict(frame[:3])
    assert_array_equal(predictor(X[:3]), wanted)
    assert_array_equal(predictor(frame[:3]), wanted)
    with pytest.raises(ValueError, match="feature names"):
        predictor(frame[["b", "a", "c", "d", "e"]])


NAMES = list("abcde")
FRAMES: dict[str, pd.DataFrame] = {
    "float64": pd.DataFrame(X[:3], columns=NAMES),
    "float32": pd.DataFrame(X[:3].astype("f4"), columns=NAMES),
    "both": pd.DataFrame(X[:3], columns=NAMES).astype({"b": "f4"}),
    "whole numbers": pd.DataFrame(np.arange(15).reshape(3, 5), columns=NAMES),
    "small whole numbers, float32": pd.DataFrame(X[:3], columns=NAMES).astype("f4").astype(
        {"a": "i1", "c": "i2"}
    ),
    "bool": pd.DataFrame(X[:3], columns=NAMES).assign(b=[True, False, True]),
    "nullable": pd.DataFrame(X[:3], columns=NAMES).astype({"b": "Float64", "c": "Float32"}),
    "nullable, missing": pd.DataFrame(X[:3], columns=NAMES).astype("Float64").assign(b=pd.NA),
    "categories": pd.DataFrame(X[:3], columns=NAMES).astype({"b": "category"}),
    "sparse": pd.DataFrame(X[:3], columns=NAMES).astype({"b": pd.SparseDtype("f8")}),
    "missing": pd.DataFrame(X[:3], columns=NAMES).assign(b=[1.0, np.nan, 2.0]),
    "another order": pd.DataFrame(X[:3], columns=NAMES[::-1]),
    "too few": pd.DataFrame(X[:3, :4], columns=NAMES[:4]),
    "words": pd.DataFrame(X[:3], columns=NAMES).assign(b="x"),
    "no names": pd.DataFrame(X[:3]),
    "some names": pd.DataFrame(X[:3], columns=[*NAMES[:4], 4]),
    "none": pd.DataFrame(X[:0], columns=NAMES),
}  # fmt: skip


@pytest.mark.parametrize("name", ["ridge", "logistic", "scaled", "network", "standard", "forest"])
@pytest.mark.parametrize("named", [True, False])
def test_frames_on_the_fast_path_equal_validated_ones(name: str, named: bool) -> None:
    model, target, _ = TABLE[name]
    rows = pd.DataFrame(X, columns=NAMES) if named else X
    model = clone(model).fit(rows, TARGETS[target])
    for kind, frame in FRAMES.items():
        for method in ("predict", "predict_proba", "transform"):
            if hasattr(model, method):
                wanted = predict_or_error(model, method, Framed(frame))
                assert_same(predict_or_error(model, method, frame), wanted, (kind, method))
                assert_same(call_predictor(Predictor(model, method), frame), wanted, (kind, method))


TRANSFORMERS = [name for name, s in MODELS.items() if isinstance(s.model, BlockTransformer)]


@pytest.mark.filterwarnings("ignore:n_quantiles")
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_on_the_fast_path_equal_validated_ones(name: str) -> None:
    model, rows = fitted(name)
    wrong = {
        "missing": rows.assign(age=None), "new": rows.assign(size="none of them"),
        "another order": rows[rows.columns[::-1]], "narrow": rows[rows.columns[1:]],
        "without names": rows.set_axis(range(rows.shape[1]), axis=1),
        "mixed": rows.assign(age=1), "float32": rows.astype("f4", errors="ignore"),
        "objects": rows.astype(object), "missing object": rows.astype(object).assign(age=pd.NA),
    }  # fmt: skip
    for kind, frame in {"same": rows, **wrong}.items():
        for few in (frame[:1], frame[:9]):
            assert_same(
                predict_or_error(model, "transform", few),
                predict_or_error(model, "transform", Framed(few)),
                (name, kind),
            )


def test_custom_scalers_and_outputs_use_scikit_learn() -> None:
    class Doubled(preprocessing.StandardScaler):
        def transform(self, X: Any, copy: bool | None = None) -> Any:
            return 2 * super().transform(X, copy)

    scaler = Doubled().fit(X)
    assert_array_equal(Predictor(scaler)(X[:1]), scaler.transform(X[:1]))
    framed = preprocessing.StandardScaler().fit(X).set_output(transform="pandas")
    assert isinstance(framed.transform(X[:1]), pd.DataFrame)
    in_place, row = preprocessing.StandardScaler(copy=False).fit(X.copy()), X[:1].copy()
    assert in_place.transform(row) is row
    again = X[:1].copy()
    assert preprocessing.StandardScaler().fit(X).transform(again, copy=False) is again
    assert_array_equal(row, again)


def test_predictors_can_be_pickled_and_shared(tmp_path: Path) -> None:
    model = model_of("scaled")
    predictor = Predictor(model, "decision_function")
    unpickled = cloudpickle.loads(cloudpickle.dumps(predictor))
    assert (unpickled.method, unpickled.bare, unpickled.classes) == (
        "decision_function",
        True,
        [0, 1],
    )
    daskml_dist.save(model, tmp_path / "model.skops")
    read = Predictor.of_file(tmp_path / "model.skops", "decision_function")
    wanted = [model.decision_function(row.view(Whole)) for row in X[:, None]]
    for one in (unpickled, read):
        assert_array_equal([one(row) for row in X[:, None]], wanted)
    with ThreadPoolExecutor(4) as pool:
        assert_array_equal(list(pool.map(predictor, X[:, None])), wanted)
        many = Predictor(model_of("network"))
        found = list(pool.map(many, X[:, None]))
    assert_array_equal(found, [model_of("network").predict_proba(row) for row in X[:, None]])


@pytest.mark.parametrize("encode", ["onehot", "onehot-dense"])
def test_bins_are_thread_safe(encode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """scikit-learn's encoder changes its dtype temporarily, which is observed here."""
    model = preprocessing.KBinsDiscretizer(3, encode=encode).fit(X)
    inner = sklearn_preprocessing.OneHotEncoder.transform
    dtypes = []

    def transform(self: Any, rows: Any) -> Any:
        dtypes.append(self.dtype)
        assert model._encoder.dtype == np.float64
        return inner(self, rows)

    monkeypatch.setattr(sklearn_preprocessing.OneHotEncoder, "transform", transform)
    assert Predictor(model)(X[:1].astype("f4")).dtype == np.float32
    assert dtypes == [np.float32]


def test_a_missing_method_raises() -> None:
    with pytest.raises(InvalidParameterError, match="Ridge has no method predict_proba"):
        Predictor(model_of("ridge"), "predict_proba")
