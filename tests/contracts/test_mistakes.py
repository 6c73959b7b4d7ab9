"""Typical mistakes: each raises an error of the package's tree whose message names the remedy."""

from __future__ import annotations

import inspect
import warnings
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning

from daskml_dist.cluster import KMeans
from daskml_dist.ensemble import VotingClassifier
from daskml_dist.errors import DaskMLDistError, InvalidDataError, InvalidTypeError
from daskml_dist.linear_model import LinearRegression, LogisticRegression, SGDClassifier
from daskml_dist.model_selection import GridSearchCV, cross_val_score
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.preprocessing import TargetEncoder
from tests.contracts.mistakes import FRAME, LABELLED, MISTAKES, T, X, Y, lazy

ROWS = [
    pytest.param(mistake, id=f"{subpackage}: {name}")
    for subpackage, mistakes in MISTAKES.items()
    for name, mistake in mistakes.items()
]


@pytest.mark.parametrize("mistake", ROWS)
def test_a_mistake_raises_with_its_remedy(
    mistake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, kind, words = mistake
    monkeypatch.chdir(tmp_path)  # messages about files are checked without their folder
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception) as raised:  # noqa: PT011 - checked below
            call()
    assert type(raised.value) is kind, f"{type(raised.value).__name__}: {raised.value}"
    assert isinstance(raised.value, DaskMLDistError)
    assert words in str(raised.value)


def test_the_table_has_many_mistakes() -> None:
    assert len(ROWS) >= 176


SUBPACKAGES = ["compose", "frequent_patterns", "graph", "inspection", "metrics", "model_selection"]
FUNCTIONS = [
    pytest.param(function, id=f"{subpackage}.{name}")
    for subpackage in [*SUBPACKAGES, "inference", "serving"]
    for name, function in vars(import_module(f"daskml_dist.{subpackage}")).items()
    if inspect.isfunction(function) and name in import_module(f"daskml_dist.{subpackage}").__all__
    # Some take arguments of any name; `map_rows` is only for custom estimators.
    if name != "map_rows" and inspect.getfullargspec(function).varkw is None
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_errors_of_calls_list_the_arguments(function: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"'no_such'.* Its arguments are \("):
        function(no_such=1)


class Asking(SGDClassifier):
    """Custom estimator whose method takes other arguments."""

    def fit(self, X: Any, y: Any, *, note: str) -> Any:
        """Fit; `note` is required."""
        raise TypeError(note)


def test_errors_of_calls_of_a_custom_class() -> None:
    with pytest.raises(InvalidTypeError, match=r"Asking.fit\(\): missing a required argument"):
        Asking().fit(X, Y)
    with pytest.raises(TypeError, match="mine") as raised:
        Asking().fit(X, Y, note="mine")
    assert not isinstance(raised.value, DaskMLDistError)


def test_warnings_name_the_line_of_the_user() -> None:
    with pytest.warns(ConvergenceWarning) as caught:
        LogisticRegression(max_iter=1).fit(X, Y)
    assert {warning.filename for warning in caught} == {__file__}
    with pytest.warns(ConvergenceWarning) as caught:
        KMeans(3).fit([[1.0, 1.0]] * 10)
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize("is_lazy", [False, True])
def test_the_target_among_the_columns_warns(is_lazy: bool) -> None:
    frame = lazy(LABELLED) if is_lazy else LABELLED
    with pytest.warns(UserWarning, match=r"is the target itself.*X.drop\(columns='label'\)"):
        GaussianNB().fit(frame, frame["label"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GaussianNB().fit(frame, "label")
        GaussianNB().fit(frame[["age", "pay"]], frame["label"])
        GaussianNB().fit(frame, 1 - frame["label"])  # of the same name


def test_many_whole_numbers_are_refused_as_classes_for_encoding() -> None:
    y = np.arange(80.0) % 60
    rows = pd.DataFrame({"a": ["b", "c"] * 40})
    for data in ((rows, y), (lazy(rows), da.from_array(y, chunks=40))):
        with pytest.warns(UserWarning, match='60 different.*target_type="continuous"'):
            TargetEncoder().fit(*data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TargetEncoder(target_type="multiclass").fit(rows, y)
        TargetEncoder().fit(rows, y % 9)


@pytest.mark.parametrize("values", [FRAME["pay"], LABELLED["label"] > 0, [Decimal(1), 2.5] * 20])
def test_object_columns_of_numbers_are_accepted_in_frames_and_arrays(values: Any) -> None:
    frame = FRAME.assign(pay=pd.Series(list(values), dtype=object))
    plain = frame.astype({"pay": float})
    model, same = (LinearRegression().fit(rows, T) for rows in (frame, plain))
    np.testing.assert_array_equal(model.coef_, same.coef_)
    np.testing.assert_array_equal(model.predict(frame), same.predict(plain))
    array = LinearRegression().fit(frame.to_numpy(), T)
    np.testing.assert_array_equal(array.coef_, same.coef_)
    with pytest.raises(InvalidDataError, match=r"\['pay'\] of X are not numeric"):
        LinearRegression().fit(frame.assign(pay=["1", 2.0] * 20), T)


def test_a_target_may_be_a_column_name_in_memory() -> None:
    X, y = LABELLED.drop(columns="label"), LABELLED["label"]
    search = GridSearchCV(GaussianNB(), {"var_smoothing": [1e-9]}, cv=2)
    assert search.fit(LABELLED, "label").best_score_ == search.fit(X, y).best_score_
    scores = cross_val_score(GaussianNB(), LABELLED, "label", cv=2)
    np.testing.assert_array_equal(scores, cross_val_score(GaussianNB(), X, y, cv=2))
    votes = VotingClassifier([("nb", GaussianNB())])
    assert votes.fit(LABELLED, "label").score(X, y) == votes.fit(X, y).score(X, y)
