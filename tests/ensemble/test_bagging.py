"""Bagging on Dask collections: draws do not depend on chunks, and members are fits to them."""

from __future__ import annotations

import pickle
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn import ensemble as truth
from sklearn.linear_model import LogisticRegression as TheirLogisticRegression
from sklearn.metrics import accuracy_score, r2_score
from sklearn.neighbors import KNeighborsClassifier

from daskml_dist.ensemble import BaggingClassifier, BaggingRegressor, StackingRegressor, bagging
from daskml_dist.ensemble.bagging import RowDraws
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import Lasso, LogisticRegression, Ridge
from daskml_dist.svm import LinearSVC
from tests.quick import quick

RNG = np.random.default_rng(0)
N = 300
X = RNG.normal(size=(N, 4))
LABELS = np.array(["a", "b", "c"])[np.digitize(X[:, 0] + X[:, 1] + RNG.normal(size=N), [-1, 1])]
CODES = np.unique(LABELS, return_inverse=True)[1]
NUMBERS = X @ RNG.normal(size=4) + RNG.normal(size=N)
WEIGHTS = RNG.random(N)
LOGISTIC = LogisticRegression(tol=1e-10)


def _rows(chunk: int | str, y: Any) -> tuple[Any, Any, Any]:
    if chunk == "frame":
        frame = pd.DataFrame(X, columns=list("abcd")).assign(target=y)
        rows = dd.from_pandas(frame, npartitions=4)
        return rows, "target", rows[list("abcd")]
    rows = da.from_array(X, chunks=(chunk, 4))
    return rows, da.from_array(y, chunks=chunk), rows


CASES: dict[str, dict[str, Any]] = {
    "counts": {"estimator": LOGISTIC, "oob_score": True},
    "columns": {"estimator": TheirLogisticRegression(tol=1e-10), "max_features": 0.5},
    "pasted": {"estimator": LOGISTIC, "bootstrap": False, "max_samples": 100},
    "repeated": {"estimator": KNeighborsClassifier(3), "max_samples": 0.5},
    "columns again": {"estimator": LOGISTIC, "bootstrap_features": True},
}


SLOW = ("columns", "pasted")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] if c in SLOW else []) for c in CASES]
)
def test_members_equal_fits_to_their_samples(case: str, client: Any) -> None:
    options = {"n_estimators": 3, "random_state": 0} | CASES[case]
    found = []
    for chunk in ("frame", 70):
        rows, target, new = _rows(chunk, LABELS)
        if case == "counts" and chunk == 70:
            with pytest.warns(UserWarning, match="do not have OOB scores"):
                model = BaggingClassifier(**options).fit(rows, target)
        else:
            model = BaggingClassifier(**options | {"oob_score": False}).fit(rows, target)
        found.append(model.predict_proba(new).compute())
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-8)
    # Columns are drawn as scikit-learn draws them.
    theirs = truth.BaggingClassifier(**options | {"oob_score": False}).fit(X, LABELS)
    samples = [np.sort(drawn.compute()) for drawn in model.estimators_samples_]
    for member, drawn, features, wanted in zip(
        model.estimators_, samples, model.estimators_features_, theirs.estimators_features_,
        strict=True,
    ):  # fmt: skip
        assert (features == wanted).all()
        alone = type(member)(**member.get_params()).fit(X[drawn][:, features], CODES[drawn])
        np.testing.assert_allclose(
            alone.predict_proba(X[:, features]), member.predict_proba(X[:, features]), atol=1e-4
        )
    assert model.score(X, LABELS) > 0.5
    unpickled = pickle.loads(pickle.dumps(model))
    assert unpickled.predict(X).tolist() == model.to_sklearn().predict(X).tolist()
    assert np.sort(unpickled.estimators_samples_[0].compute()).tolist() == samples[0].tolist()
    if case == "pasted":
        assert all(len(np.unique(drawn)) == 100 for drawn in samples)
    if case == "counts":
        _check_unseen(model, samples)


def _check_unseen(model: Any, samples: list[Any]) -> None:
    sums = np.zeros((N, 3))
    for member, drawn in zip(model.estimators_, samples, strict=True):
        unseen = np.setdiff1d(np.arange(N), drawn)
        sums[unseen] += member.predict_proba(X[unseen])
    assert model.oob_score_ == pytest.approx(accuracy_score(CODES, sums.argmax(axis=1)))
    with np.errstate(invalid="ignore"):
        shares = sums / sums.sum(axis=1)[:, None]
    np.testing.assert_allclose(model.oob_decision_function_.compute(), shares)


STACKED: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "labels": (BaggingClassifier, LOGISTIC, LABELS, {}),
    "two labels": (
        BaggingClassifier, LogisticRegression(tol=1e-10, class_weight="balanced"), LABELS == "a",
        {"bootstrap": False, "max_samples": 0.4},
    ),
    "moments": (BaggingRegressor, Ridge(), NUMBERS, {"max_samples": 900}),
    "steps by column": (BaggingRegressor, Lasso(0.01, tol=1e-10), NUMBERS, {}),
    "signs": (BaggingClassifier, LinearSVC(tol=1e-10), LABELS == "a", {}),
}  # fmt: skip


@pytest.mark.parametrize("case", quick(STACKED, "labels", "moments", "steps by column"))
def test_linear_members_are_fitted_together(
    case: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, member, y, options = STACKED[case]
    rows, target, _ = _rows(70, y)
    # Only for separately fitted members.
    monkeypatch.setattr(bagging, "fit_members", None)
    model = kind(member, n_estimators=3, random_state=0, **options).fit(rows, target)
    y = np.unique(y, return_inverse=True)[1] if kind is BaggingClassifier else y
    for one, drawn in zip(model.estimators_, model.estimators_samples_, strict=True):
        times = np.bincount(drawn.compute(), minlength=N).astype(float)
        assert "max_samples" in options or times.max() > 2
        alone = type(one)(**one.get_params()).fit(X, y, sample_weight=times)
        np.testing.assert_allclose(one.coef_, alone.coef_, atol=1e-6)
        np.testing.assert_allclose(one.intercept_, alone.intercept_, atol=1e-6)
        assert set(vars(one)) | {"_feature_dtypes"} == set(vars(alone))


def test_members_without_some_label_are_fitted_separately() -> None:
    rare = np.where(np.arange(N) == 7, "rare", LABELS)
    rows, target, _ = _rows(300, rare)
    model = BaggingClassifier(LogisticRegression(tol=1e-3), n_estimators=3, random_state=0).fit(
        rows, target
    )
    assert model.predict_proba(X).shape == (N, 4)


def test_regressors_and_their_out_of_bag_rows(client: Any) -> None:
    rows, target, new = _rows(70, NUMBERS)
    options = {"n_estimators": 20, "random_state": 1, "oob_score": True}
    ours = BaggingRegressor(Ridge(), **options).fit(rows, target)
    unseen = ours.oob_prediction_.compute()
    assert ours.oob_score_ == pytest.approx(r2_score(NUMBERS, unseen))
    theirs = truth.BaggingRegressor(Ridge(), **options).fit(X, NUMBERS)
    assert ours.oob_score_ == pytest.approx(theirs.oob_score_, abs=0.02)
    means = np.mean([member.predict(X) for member in ours.estimators_], axis=0)
    np.testing.assert_allclose(ours.predict(new).compute(), means)
    constant = BaggingRegressor(Ridge(), **options).fit(rows, 2.0 + 0 * target)
    assert constant.oob_score_ in (0, 1)  # as of scikit-learn's r2_score


def test_sampling_uses_weights_and_warm_start_adds_members(client: Any) -> None:
    rows, target, _ = _rows(70, LABELS)
    none = np.where(np.arange(N) < 100, 0.0, WEIGHTS)
    options = {"n_estimators": 2, "random_state": 0, "warm_start": True, "max_samples": 200}
    model = BaggingClassifier(LOGISTIC, **options).fit(
        rows, target, sample_weight=da.from_array(none, chunks=70)
    )
    drawn = np.concatenate([s.compute() for s in model.estimators_samples_])
    assert drawn.min() >= 100
    assert abs(len(drawn) - 400) < 5 * 400**0.5
    first = list(model.estimators_)
    model.set_params(n_estimators=3).fit(rows, target)
    assert model.estimators_[:2] == first
    assert len(model.estimators_) == 3
    with pytest.warns(UserWarning, match="Warm-start fitting without increasing"):
        model.fit(rows, target)


@pytest.mark.parametrize("lazy", [False, True])
def test_warm_start_refuses_other_columns_and_labels(lazy: bool) -> None:
    rows, target, _ = _rows(70, LABELS) if lazy else (X, LABELS, None)
    model = BaggingClassifier(LOGISTIC, n_estimators=2, warm_start=True).fit(rows, target)
    model.set_params(n_estimators=3)
    for other, labels, match in (
        (rows[:, :3], target, "X has 3 features"), (rows, target == "a", "know the labels"),
    ):  # fmt: skip
        with pytest.raises(InvalidDataError, match=match):
            model.fit(other, labels)
    assert len(model.fit(rows, target).estimators_) == 3


@pytest.mark.parametrize("n", [1, 5])
def test_predictions_are_of_the_fitted_members(n: int) -> None:
    for kind, member, target in (
        (BaggingClassifier, LOGISTIC, LABELS), (BaggingRegressor, Ridge(), NUMBERS),
    ):  # fmt: skip
        model = kind(member, n_estimators=2, random_state=0).fit(X, target)
        name = "predict_proba" if kind is BaggingClassifier else "predict"
        expected = getattr(model, name)(X)
        model.set_params(n_estimators=n)
        np.testing.assert_array_equal(getattr(model, name)(X), expected)
        np.testing.assert_array_equal(getattr(model, name)(da.from_array(X, (70, 4))), expected)


def test_draws_are_poisson_and_differ_between_members() -> None:
    n = 200_000
    draws = RowDraws(np.array([3, 4]), n, n // 2, replace=True)
    first, second = draws.count_range(0, 0, n), draws.count_range(1, 0, n)
    assert (draws.count_range(0, 1_000, 50) == first[1_000:1_050]).all()
    expected = stats.poisson.pmf(np.arange(5), 0.5) * n
    assert (np.abs(np.bincount(first)[:5] - expected) < 5 * expected**0.5).all()
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 * n**-0.5
    weights = np.where(np.arange(n) % 2, 3.0, 1.0)
    by_weight = RowDraws(np.array([3]), n, n, replace=True, weight=float(weights.sum()))
    drawn = by_weight.count_range(0, 0, n, weights)
    assert drawn[1::2].mean() / drawn[::2].mean() == pytest.approx(3.0, rel=0.05)


def test_invalid_sampling_settings_are_refused() -> None:
    rows, target, _ = _rows(70, LABELS)
    weights = da.from_array(WEIGHTS, chunks=70)
    for options, fit_params, text in [
        ({"bootstrap": False, "max_samples": 400}, {}, "must be <= n_samples=300"),
        ({"bootstrap": False, "oob_score": True}, {}, "only available if bootstrap=True"),
        ({"bootstrap": False}, {"sample_weight": weights}, "drawing with replacement"),
        ({"max_features": 9}, {}, "must be <= n_features"),
        ({"n_estimators": 0}, {}, "n_estimators"),
        ({"warm_start": True, "oob_score": True}, {}, "warm_start=False"),
    ]:
        with pytest.raises(InvalidParameterError, match=text):
            BaggingClassifier(LOGISTIC, **options).fit(rows, target, **fit_params)
    with pytest.raises(InvalidDataError, match="holds 0 sample"):
        BaggingClassifier(LOGISTIC).fit(rows[rows[:, 0] > 99], target[rows[:, 0] > 99])
    for estimator, text in ((Ridge(), "is a regressor"), (3, "implementing 'fit'")):
        for inputs in ((rows, target), (X, LABELS)):
            with pytest.raises(InvalidParameterError, match=text):
                BaggingClassifier(estimator).fit(*inputs)


@pytest.mark.parametrize("dtype", ["Float64", "Int64", "double[pyarrow]"])
def test_lazy_targets_may_be_nullable_or_arrow_columns(dtype: str) -> None:
    numbers = np.round(NUMBERS)
    rows, target = dd.from_pandas(pd.DataFrame(X), npartitions=2), pd.Series(numbers)
    typed = target.astype(dtype)
    for model in (
        BaggingRegressor(n_estimators=2, random_state=0),
        StackingRegressor([("ridge", Ridge())], cv=2),
    ):
        expected = model.fit(rows, dd.from_pandas(target, npartitions=2)).predict(X)
        found = model.fit(rows, dd.from_pandas(typed, npartitions=2)).predict(X)
        np.testing.assert_allclose(found, expected)
