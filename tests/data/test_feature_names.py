"""Columns of Dask and pandas frames are matched by name in every method of every estimator."""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
import warnings
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.preprocessing import MaxAbsScaler as Plain
from sklearn.utils import get_tags

import daskml_dist
from daskml_dist.compose import Blockwise, ColumnTransformer
from daskml_dist.errors import InvalidDataError
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.model_selection._search import DaskSearch
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.preprocessing import StandardScaler
from tests.quick import in_turn

# Non-negative integers, which all estimators accept, and labels that also serve as targets.
rng = np.random.default_rng(0)
FRAME = pd.DataFrame(rng.integers(0, 4, size=(40, 4)).astype(float), columns=list("abcd"))
Y = pd.Series(rng.integers(1, 3, size=40), name="y")

CHANGES = {
    "reordered": FRAME[list("badc")],
    "renamed": FRAME.rename(columns={"b": "B"}),
    "missing": FRAME[list("abc")],
    "extra": FRAME.assign(e=1.0),
}
METHODS = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "score",
    "transform",
    "partial_fit",
)
ARGUMENTS: dict[str, Any] = {
    "BlockwiseVotingClassifier": lambda: PUBLIC["BlockwiseVotingClassifier"](GaussianNB()),
    "BlockwiseVotingRegressor": lambda: PUBLIC["BlockwiseVotingRegressor"](PUBLIC["Ridge"]()),
    "AdaptiveConformalInference": lambda: PUBLIC["AdaptiveConformalInference"](
        PUBLIC["SGDRegressor"]()
    ),
    "ConformalClassifier": lambda: PUBLIC["ConformalClassifier"](GaussianNB(), cv=2),
    "ConformalRegressor": lambda: PUBLIC["ConformalRegressor"](PUBLIC["Ridge"](), cv=2),
    "ConformalizedQuantileRegressor": lambda: PUBLIC["ConformalizedQuantileRegressor"](
        PUBLIC["SGDRegressor"]("quantile"), alpha=0.5
    ),
    "Blockwise": lambda: Blockwise(Plain().fit(FRAME)),
    "Incremental": lambda: PUBLIC["Incremental"](GaussianNB()),
    "ParallelPostFit": lambda: PUBLIC["ParallelPostFit"](GaussianNB()),
    "KBinsDiscretizer": lambda: PUBLIC["KBinsDiscretizer"](n_bins=2),
    "ColumnTransformer": lambda: ColumnTransformer([("s", StandardScaler(), ["b", "c"])]),
    "StackingClassifier": lambda: PUBLIC["StackingClassifier"](_members("GaussianNB"), cv=2),
    "StackingRegressor": lambda: PUBLIC["StackingRegressor"](_members("Ridge"), cv=2),
    "TorchClassifier": lambda: _linear("TorchClassifier", 2),
    "TorchRegressor": lambda: _linear("TorchRegressor", 1),
    "VotingClassifier": lambda: PUBLIC["VotingClassifier"](_members("GaussianNB")),
    "VotingRegressor": lambda: PUBLIC["VotingRegressor"](_members("Ridge")),
}


def _members(name: str) -> list[tuple[str, Any]]:
    return [("one", PUBLIC[name]()), ("other", PUBLIC[name]())]


def _linear(name: str, n_outputs: int) -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    options = {"module__in_features": 4, "module__out_features": n_outputs, "max_iter": 2}
    return PUBLIC[name](torch.nn.Linear, **options)


def _public() -> dict[str, type]:
    """Return every public estimator and transformer of rows."""
    subpackages = [m.name for m in pkgutil.iter_modules(daskml_dist.__path__) if m.ispkg]
    found = {}
    for subpackage in subpackages:
        module = importlib.import_module(f"daskml_dist.{subpackage}")
        for name in getattr(module, "__all__", []):
            value = getattr(module, name)
            if inspect.isclass(value) and issubclass(value, BaseEstimator):
                found[name] = value
    # Hashers take text and are stateless; label encoders have no columns.
    return {name: value for name, value in found.items() if _learns(name, value)}


def _learns(name: str, kind: type) -> bool:
    if name in ARGUMENTS:
        return True
    if issubclass(kind, DaskSearch):  # the wrapped estimator stores names
        return False
    tags = get_tags(kind())
    return bool(tags.requires_fit and tags.input_tags.two_d_array)


PUBLIC = _public()


#: Arguments of `fit` and `score` besides rows and targets.
BESIDES: dict[str, dict[str, Any]] = {
    "HistGradientBoostingRanker": {"group": np.arange(len(FRAME)) // 8}
}


def _fitted(name: str, X: Any = FRAME, y: Any = Y) -> Any:
    estimator = ARGUMENTS[name]() if name in ARGUMENTS else PUBLIC[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(X, y, **BESIDES.get(name, {}))


def _outcome(estimator: Any, method: str, X: Any, y: Any) -> str | None:
    """Return the error message of a call with scikit-learn's wording; None without an error."""
    try:
        if method in ("score", "partial_fit"):
            getattr(estimator, method)(X, y, **BESIDES.get(type(estimator).__name__, {}))
        else:
            getattr(estimator, method)(X)
    except ValueError as error:
        return str(error).partition("\nPass the columns")[0].strip()
    return None


def lazy(frame: pd.DataFrame) -> Any:
    return dd.from_pandas(frame, npartitions=3)


def test_every_subpackage_is_covered() -> None:
    assert {"LogisticRegression", "GaussianNB", "LinearSVC", "StandardScaler"} <= set(PUBLIC)
    assert {"SimpleImputer", "TfidfTransformer", "ColumnTransformer", "Blockwise"} <= set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_other_columns_are_refused_as_in_memory(name: str) -> None:
    estimator = _fitted(name)
    methods = [method for method in METHODS if hasattr(estimator, method)]
    assert methods
    for change, method in itertools.product(CHANGES, methods):
        truth = _outcome(estimator, method, CHANGES[change], Y)
        with dask.config.set(scheduler=_nothing):
            found = _outcome(estimator, method, lazy(CHANGES[change]), lazy(Y))
        # scikit-learn's ColumnTransformer takes columns by their names.
        assert truth or (name == "ColumnTransformer" and change != "renamed"), (change, method)
        assert str(found).startswith(str(truth)), (change, method)


def _nothing(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("something was computed")


@pytest.mark.parametrize("name", ["GaussianNB", "LogisticRegression", "OneHotEncoder"])
def test_names_of_a_lazy_fit_equal_those_in_memory(name: str) -> None:
    X, y = lazy(FRAME), lazy(Y)
    estimator = _fitted(name, X, y)
    assert estimator.feature_names_in_.tolist() == list("abcd")
    method = "predict" if hasattr(estimator, "predict") else "transform"
    for changed in CHANGES.values():
        assert "feature names should match" in str(_outcome(estimator, method, changed, None))
        assert _outcome(estimator, method, lazy(changed), None) == _outcome(
            estimator, method, changed, None
        )


@pytest.mark.parametrize("estimator", [GaussianNB(), LogisticRegression(), StandardScaler()])
def test_rows_without_names_warn_as_in_scikit_learn(estimator: Any) -> None:
    method = "predict" if hasattr(estimator, "predict") else "transform"
    array = da.from_array(FRAME.to_numpy(), chunks=(20, 4))
    named = estimator.fit(FRAME, Y)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        result = getattr(named, method)(array)
    np.testing.assert_array_equal(result.compute(), getattr(named, method)(FRAME))
    bare = estimator.fit(FRAME.to_numpy(), Y)
    with pytest.warns(UserWarning, match="has feature names, but .* was fitted without"):
        getattr(bare, method)(lazy(FRAME))


REPEATED = FRAME.set_axis(list("abbd"), axis=1)
DUPLICATES_MESSAGE = (
    r"several columns of the dataframe are named \['b'\].*X.loc\[:, ~X.columns.duplicated"
)


@pytest.mark.parametrize(("name", "lazy"), in_turn(sorted(PUBLIC), [False, True]))
def test_columns_of_one_name_are_refused(name: str, lazy: bool) -> None:
    X = dd.from_pandas(REPEATED, npartitions=2) if lazy else REPEATED
    with pytest.raises(InvalidDataError, match=DUPLICATES_MESSAGE):
        _fitted(name, X, dd.from_pandas(Y, npartitions=2) if lazy else Y)
    fitted = _fitted(name)
    for method in ("predict", "transform"):
        if hasattr(fitted, method):
            with pytest.raises(InvalidDataError, match=DUPLICATES_MESSAGE):
                getattr(fitted, method)(X)


def test_a_target_of_two_columns_of_one_name_is_refused() -> None:
    with pytest.raises(InvalidDataError, match=DUPLICATES_MESSAGE):
        LogisticRegression().fit(REPEATED, "b")
