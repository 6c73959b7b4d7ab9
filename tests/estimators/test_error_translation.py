"""Errors of scikit-learn's code are translated into the package's; users' errors are not."""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import sklearn.exceptions
from sklearn.base import BaseEstimator, ClassifierMixin

from daskml_dist import compose, ensemble, feature_extraction, linear_model, preprocessing
from daskml_dist import model_selection as ms
from daskml_dist.errors import (
    DaskMLDistError,
    InvalidDataError,
    InvalidParameterError,
    InvalidTypeError,
    NotFittedError,
)
from daskml_dist.errors.sklearn_errors import translate_errors, translate_parameter_errors

X = np.random.default_rng(0).normal(size=(12, 2))
Y = np.arange(12) % 2
VECTORIZERS = ["CountVectorizer", "TfidfVectorizer", "HashingVectorizer"]
LOGISTIC = linear_model.LogisticRegression()

ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "folds": (lambda: ms.KFold(1), InvalidParameterError, "n_splits=2 or more"),
    "folds in time": (lambda: ms.TimeSeriesSplit(0), InvalidParameterError, "n_splits=2 or more"),
    "a share of a fold": (lambda: ms.KFold(2.5), InvalidParameterError, "Integral type"),
    "more folds than rows": (
        lambda: next(ms.KFold(99).split(X)), InvalidDataError, "greater than the number of samples",
    ),
    "no groups": (lambda: next(ms.GroupKFold(2).split(X)), InvalidDataError, "'groups' parameter"),
    "test rows": (
        lambda: ms.train_test_split(X, test_size=99), InvalidDataError, "test_size=99 should be",
    ),
    "a share of test rows": (
        lambda: ms.train_test_split(X, test_size=1.5), InvalidParameterError, "must be a float in",
    ),
    "both sizes": (
        lambda: ms.train_test_split(X, test_size=0.8, train_size=0.8), InvalidDataError, "Reduce",
    ),
    "nothing to split": (lambda: ms.train_test_split(), InvalidDataError, "At least one array"),
    "other rows": (lambda: ms.train_test_split(X, Y[:3]), InvalidDataError, "inconsistent"),
    "one fold of scores": (
        lambda: ms.cross_val_score(LOGISTIC, X, Y, cv=1), InvalidParameterError, "cv",
    ),
    "one fold of predictions": (
        lambda: ms.cross_val_predict(LOGISTIC, X, Y, cv=1), InvalidParameterError, "cv",
    ),
    "a parameter's value": (
        lambda: preprocessing.KBinsDiscretizer(1).fit(X), InvalidParameterError, "n_bins",
    ),
    "a parameter's name": (
        lambda: preprocessing.StandardScaler().set_params(means=1), InvalidParameterError, "means",
    ),
    "values": (
        lambda: preprocessing.StandardScaler().fit([[np.inf]]), InvalidDataError, "infinity",
    ),
    "members": (
        lambda: ensemble.VotingRegressor([]).fit(X, Y), InvalidDataError, "estimators",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_refusals_of_scikit_learn_are_translated(name: str) -> None:
    call, kind, words = ERRORS[name]
    with pytest.raises(kind, match=words) as caught:
        call()
    assert type(pickle.loads(pickle.dumps(caught.value))) is kind


@pytest.mark.parametrize("text", ["one text", b"one text"], ids=["str", "bytes"])
@pytest.mark.parametrize("method", ["fit", "transform", "fit_transform"])
@pytest.mark.parametrize("name", VECTORIZERS)
def test_a_single_string_is_refused_as_documents(name: str, method: str, text: Any) -> None:
    model = getattr(feature_extraction, name)()
    with pytest.raises(InvalidDataError, match=r"Pass a list of strings; for one text, \[text\]"):
        getattr(model, method)(text)


class Failing(ClassifierMixin, BaseEstimator):
    """Custom estimator."""

    def __init__(self, error: Any = None) -> None:
        self.error = error

    def fit(self, X: Any, y: Any) -> Any:
        raise self.error


class OwnError(ValueError):
    """Custom error."""


USERS = [ValueError("mine"), TypeError("mine"), OwnError("mine"), KeyError("mine")]


@pytest.mark.parametrize("error", USERS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("method", ["search", "vote", "scores"])
def test_errors_of_users_are_not_translated(method: str, error: Exception) -> None:
    fits: dict[str, Callable[..., Any]] = {
        "search": ms.GridSearchCV(Failing(), {"error": [error]}, cv=2, error_score="raise").fit,
        "vote": ensemble.VotingClassifier([("one", Failing(error))]).fit,
        "scores": partial(ms.cross_val_score, Failing(error), cv=2, error_score="raise"),
    }
    with pytest.raises(type(error), match="mine") as caught:
        fits[method](X, Y)
    assert type(caught.value) is type(error)


def _theirs(error: Exception) -> Exception:
    """Return an error raised in a function of scikit-learn."""
    space: dict[str, Any] = {"__name__": "sklearn.somewhere", "error": error}
    exec("def fail():\n    raise error", space)
    try:
        space["fail"]()
    except Exception as raised:
        return raised
    raise AssertionError


@pytest.mark.parametrize("translate", [translate_parameter_errors, translate_errors])
@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (ValueError("why"), (InvalidParameterError, InvalidDataError)),
        (TypeError("why"), (InvalidParameterError, InvalidTypeError)),
        (sklearn.exceptions.NotFittedError("why"), (NotFittedError,) * 2),
    ],
    ids=["ValueError", "TypeError", "NotFittedError"],
)
def test_each_kind_of_error_is_translated(translate: Any, error: Exception, kinds: Any) -> None:
    with pytest.raises(DaskMLDistError, match="why") as caught, translate():
        raise _theirs(error)
    assert type(caught.value) is kinds[translate is translate_errors]


def test_methods_keep_their_signatures_and_docs() -> None:
    scaler, search = preprocessing.StandardScaler, ms.GridSearchCV(LOGISTIC, {"C": [1.0]})
    assert list(inspect.signature(scaler.fit).parameters) == ["self", "X", "y", "sample_weight"]
    assert list(inspect.signature(ms.KFold).parameters) == ["n_splits", "shuffle", "random_state"]
    assert not hasattr(preprocessing.PolynomialFeatures(), "inverse_transform")
    assert hasattr(search, "predict")
    assert not hasattr(search.set_params(refit=False), "no such")
    members = compose.ColumnTransformer([("one", scaler(), [0])])
    assert members.get_params()["one__with_mean"]  # defined by scikit-learn's class, not its base
    assert scaler().fit(X).get_feature_names_out().tolist() == ["x0", "x1"]


@pytest.mark.parametrize("weight", [0, 0.0, True], ids=repr)
def test_a_scalar_weight_error_is_shown_as_in_scikit_learn(weight: Any) -> None:
    words = re.escape(f"got scalar `{np.array(float(weight))!r}` instead")
    with pytest.raises(InvalidTypeError, match=words):
        LOGISTIC.fit(X, Y, sample_weight=np.array(weight))
