"""Calibration on Dask collections: scikit-learn's probabilities, of the same folds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.calibration as truth
from sklearn.cluster import KMeans
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import KFold, LeaveOneOut
from sklearn.naive_bayes import GaussianNB as TheirGaussianNB
from sklearn.neighbors import KNeighborsClassifier

from daskml_dist.calibration import CalibratedClassifierCV, calibration_curve
from daskml_dist.calibration.calibrated_classifier_cv import (
    HeldOutPredictions,
    fit_label_calibrators,
)
from daskml_dist.data.collection import Collection
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.svm import LinearSVC

RNG = np.random.default_rng(0)
N = 360
X = RNG.normal(size=(N, 4))
THREE = np.digitize(X[:, 0] + X[:, 1] + RNG.normal(size=N), [-1, 1])
TWO = np.array(["no", "yes"])[(THREE > 0).astype(int)]
WEIGHTS = RNG.random(N)
LOGISTIC = LogisticRegression(tol=1e-10)

needs_temperature = pytest.mark.skipif(
    not hasattr(truth, "_TemperatureScaling"), reason="scikit-learn 1.8 has it"
)


def _rows(kind: str, y: Any, weighted: bool) -> tuple[Any, Any, dict[str, Any], Any]:
    """X and y of a fit, its arguments, and rows to predict."""
    if kind == "frame":
        frame = pd.DataFrame(X, columns=list("abcd")).assign(target=y)
        rows = dd.from_pandas(frame.assign(w=WEIGHTS) if weighted else frame, npartitions=3)
        params = {"sample_weight": "w"} if weighted else {}
        return rows, "target", params, rows[list("abcd")]
    rows, labels, weights = (da.from_array(v, chunks=100) for v in (X, y, WEIGHTS))
    rows = rows.rechunk((100, 4))
    if kind == "unknown chunks":
        all_rows = rows[:, 0] > -99
        rows, labels, weights = rows[all_rows], labels[all_rows], weights[all_rows]
    return rows, labels, {"sample_weight": weights} if weighted else {}, rows


MEMBERS: dict[str, tuple[Any, Any, dict[str, Any], str, bool]] = {
    "stacked": (LOGISTIC, TWO, {"cv": 3}, "array", True),
    "frame": (LOGISTIC, THREE, {"cv": 3}, "frame", True),
    "one fit": (GaussianNB(), THREE, {"cv": 4, "ensemble": False}, "unknown chunks", False),
    "scikit-learn's": (TheirGaussianNB(), TWO, {"cv": KFold(3)}, "frame", False),
    "frozen": (
        FrozenEstimator(LogisticRegression(tol=1e-10).fit(X, TWO)), TWO, {}, "array", False,
    ),
}  # fmt: skip
#: One case of each at least; all others are slow ones.
QUICK = [("stacked", "sigmoid"), ("frame", "isotonic"), ("one fit", "temperature"),
         ("scikit-learn's", "sigmoid"), ("frozen", "isotonic")]  # fmt: skip


def _cases() -> Iterator[Any]:
    for member in MEMBERS:
        for method in ("sigmoid", "isotonic", "temperature"):
            marks = [] if (member, method) in QUICK else [pytest.mark.slow]
            if method == "temperature":
                marks.append(needs_temperature)
            yield pytest.param(member, method, marks=marks)


@pytest.mark.parametrize(("member_name", "method"), list(_cases()))
def test_probabilities_are_scikit_learns(member_name: str, method: str, client: Any) -> None:
    member, y, options, kind, weighted = MEMBERS[member_name]
    rows, labels, params, new = _rows(kind, y, weighted)
    weights = {"sample_weight": WEIGHTS} if weighted else {}
    theirs = truth.CalibratedClassifierCV(member, method=method, **options).fit(X, y, **weights)
    ours = CalibratedClassifierCV(member, method=method, **options).fit(rows, labels, **params)
    found = ours.predict_proba(new)
    assert isinstance(found, da.Array)
    np.testing.assert_allclose(found.compute(), theirs.predict_proba(X), atol=1e-6)
    assert (ours.predict(new).compute() == theirs.predict(X)).all()
    assert ours.score(new, y) == pytest.approx(theirs.score(X, y))
    assert len(ours.calibrated_classifiers_) == len(theirs.calibrated_classifiers_)
    assert ours.n_features_in_ == 4
    twin = ours.to_sklearn()
    np.testing.assert_allclose(twin.predict_proba(new.compute()), found.compute(), atol=1e-12)


@needs_temperature
def test_texts_that_a_fitted_classifier_knows_are_not_encoded() -> None:
    member = FrozenEstimator(LOGISTIC.fit(X, TWO))
    options: dict[str, Any] = {"method": "temperature", "cv": 3, "ensemble": True}
    theirs = truth.CalibratedClassifierCV(member, **options).fit(X, TWO)
    rows, labels = da.from_array(X, chunks=(100, 4)), da.from_array(TWO, chunks=100)
    ours = CalibratedClassifierCV(member, **options).fit(rows, labels)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)


def test_the_default_is_this_packages(client: Any) -> None:
    rows, labels, _, _ = _rows("array", TWO, False)
    ours = CalibratedClassifierCV(cv=3).fit(rows, labels)
    assert isinstance(ours.calibrated_classifiers_[0].estimator, LinearSVC)
    in_memory = CalibratedClassifierCV(cv=3).fit(X, TWO)
    np.testing.assert_allclose(ours.predict_proba(X), in_memory.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_bins_of_many_scores_are_near_all_of_them(method: str) -> None:
    scores = RNG.normal(size=20_000)
    labels = (scores + RNG.logistic(size=len(scores)) > 0).astype(np.int64)
    lots = [HeldOutPredictions(part[:, :1], part[:, 1].astype(int), np.ones(len(part)))
            for part in np.array_split(np.column_stack([scores, labels]), 5)]  # fmt: skip
    parts = [([lot], None, None) for lot in lots]
    rows = Collection("memory", parts, None, None, None)
    ((exact,),) = fit_label_calibrators(rows, [[1]], method)
    grid = np.linspace(-3, 3, 101)
    # A step of isotonic regression may be a bin nearer or farther.
    factor = 5 if method == "isotonic" else 1
    for limit, bound in ((500, 2e-3), (5_000, 2e-4)):
        ((binned,),) = fit_label_calibrators(rows, [[1]], method, limit=limit)
        assert np.abs(binned.predict(grid) - exact.predict(grid)).mean() < factor * bound


def test_weights_that_a_classifier_does_not_take_are_of_the_calibration(client: Any) -> None:
    rows, labels, params, _ = _rows("array", TWO, True)
    member = KNeighborsClassifier()
    with pytest.warns(UserWarning, match="does not appear to accept sample_weight"):
        ours = CalibratedClassifierCV(member, cv=3).fit(rows, labels, **params)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = truth.CalibratedClassifierCV(member, cv=3).fit(X, TWO, sample_weight=WEIGHTS)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)


@pytest.mark.filterwarnings("ignore:Since KNeighborsClassifier")
@pytest.mark.parametrize(
    "method", ["sigmoid", "isotonic", pytest.param("temperature", marks=needs_temperature)]
)
def test_splits_without_weight_are_refused(method: str) -> None:
    rows, labels, _, _ = _rows("array", THREE, False)
    weight = da.from_array((np.arange(N) < N // 2).astype(float), chunks=100)
    model = CalibratedClassifierCV(KNeighborsClassifier(), method=method, cv=KFold(2))
    with pytest.raises(InvalidDataError, match="zero in the test rows of a split"):
        model.fit(rows, labels, sample_weight=weight)


def test_invalid_arguments_are_refused() -> None:
    rows, labels, _, _ = _rows("array", THREE, False)
    rare = da.from_array(np.where(np.arange(N) < 2, 7, THREE), chunks=100)
    for options, y, text in [
        ({"cv": 3}, rare, "less than 3 examples for at least one class"),
        ({"cv": LeaveOneOut()}, labels, "LeaveOneOut cross-validation does not allow"),
        ({"method": "linear"}, labels, "method"),
        ({"cv": 3}, labels + 0.5, "continuous"),
    ]:
        with pytest.raises((InvalidDataError, InvalidParameterError), match=text):
            CalibratedClassifierCV(LOGISTIC, **options).fit(rows, y)
    with pytest.raises(InvalidParameterError, match="cannot be split into folds"):
        CalibratedClassifierCV(LOGISTIC).fit(rows, labels, offset=labels)
    with pytest.raises(InvalidParameterError, match="'estimator' parameter"):
        CalibratedClassifierCV(KMeans()).fit(rows, labels)


def test_the_curve_is_that_of_the_metrics() -> None:
    guess = RNG.random(N)
    labels = (guess + RNG.random(N) > 1).astype(int)
    found = calibration_curve(da.from_array(labels, chunks=50), da.from_array(guess, chunks=50))
    np.testing.assert_allclose(found, truth.calibration_curve(labels, guess))
