"""Rows in splits: rows in several folds, per-row arguments, and predictions of held-out rows."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn import linear_model as truths
from sklearn import metrics
from sklearn import model_selection as truth
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.naive_bayes import GaussianNB as TheirGaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import StandardScaler as TheirScaler
from sklearn.tree import DecisionTreeClassifier

from daskml_dist import linear_model, model_selection
from daskml_dist.ensemble import RandomForestRegressor
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import LassoCV, LogisticRegression, RidgeCV, SGDClassifier
from daskml_dist.preprocessing import StandardScaler

RNG = np.random.default_rng(0)
N = 240
X = RNG.normal(size=(N, 3))
Y = np.digitize(X @ [1.0, -1.0, 0.5] + RNG.normal(size=N), [-1, 1])
WEIGHTS = RNG.random(N)
AT = np.arange(N)
#: Splits in which rows are in several test folds, or in none.
REPEATED = {
    "all in both": [(AT, AT)],
    "drawn with repeats": [(RNG.integers(0, N, N), AT[:80]), (RNG.integers(0, N, N), AT[80:])],
    "some in both": [(AT[:160], AT[120:])],
    "tested twice": [(AT[:160], np.r_[AT[160:], AT[160:200]])],
}
TIGHT: dict[str, Any] = {"tol": 1e-9}


def _lazy(values: Any) -> da.Array:
    return da.from_array(values, chunks=(100, *values.shape[1:]))


@pytest.mark.parametrize("cv", REPEATED.values(), ids=list(REPEATED))
def test_rows_in_several_folds(cv: Any) -> None:
    grid = {"C": [0.01, 1.0]}
    ours = model_selection.GridSearchCV(
        LogisticRegression(**TIGHT), grid, cv=cv, scoring="neg_log_loss", refit=False
    ).fit(X, Y)
    theirs = truth.GridSearchCV(
        truths.LogisticRegression(**TIGHT), grid, cv=cv, scoring="neg_log_loss", refit=False
    ).fit(X, Y)
    for split in range(len(cv)):
        name = f"split{split}_test_score"
        np.testing.assert_allclose(ours.cv_results_[name], theirs.cv_results_[name], atol=1e-6)
    for fit in (
        lambda: LassoCV(cv=cv).fit(X, X[:, 0]),
        lambda: RidgeCV(cv=cv).fit(X, X[:, 0]),
        lambda: model_selection.cross_validate(LogisticRegression(), _lazy(X), _lazy(Y), cv=cv),
    ):
        with pytest.raises(InvalidParameterError, match="a row may have one role per split"):
            fit()


def test_hyperband_with_rows_in_several_folds() -> None:
    search = model_selection.HyperbandSearchCV(
        SGDClassifier(tol=None, random_state=0), {"alpha": [1e-4, 1e-2]}, max_iter=3, cv=[(AT, AT)]
    )
    search.fit(X, Y)
    assert not hasattr(search, "stacks_")
    assert search.best_score_ == pytest.approx(search.best_estimator_.score(X, Y), abs=0.05)


@pytest.mark.parametrize("ours", [True, False])
def test_weights_of_a_step_are_split(client: Any, ours: bool) -> None:
    scaler, last = (StandardScaler(), LogisticRegression(**TIGHT))
    theirs = make_pipeline(TheirScaler(), truths.LogisticRegression(**TIGHT))
    tried = make_pipeline(scaler, last) if ours else theirs
    name = "logisticregression__sample_weight"
    options: dict[str, Any] = {"cv": 3, "scoring": "neg_log_loss"}
    expected = truth.cross_val_score(theirs, X, Y, params={name: WEIGHTS}, **options)
    for weights in (_lazy(WEIGHTS), WEIGHTS):
        found = model_selection.cross_val_score(
            tried, _lazy(X), _lazy(Y), params={name: weights}, **options
        )
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("frame", [False, True])
def test_predictions_of_estimators_without_dask_support(client: Any, frame: bool) -> None:
    rows: Any = _lazy(X)
    if frame:
        rows = dd.from_pandas(pd.DataFrame(X, columns=list("abc")), npartitions=3)
    rows = rows[rows["a"] > -9] if frame else rows[rows[:, 0] > -9]  # with unknown chunk sizes
    labels = dd.from_pandas(pd.Series(Y), npartitions=3) if frame else _lazy(Y)
    cv = truth.KFold(3)
    for method in ("predict", "predict_proba"):
        found = model_selection.cross_val_predict(
            TheirGaussianNB(), rows, labels, cv=cv, method=method
        )
        expected = truth.cross_val_predict(TheirGaussianNB(), X, Y, cv=cv, method=method)
        assert found.ndim == expected.ndim
        np.testing.assert_allclose(np.asarray(found), expected, atol=1e-9)


def test_probabilities_of_several_labels_are_a_list_of_arrays() -> None:
    labels = np.c_[Y, X[:, 1] > 0].astype(int)
    cv, tree = truth.KFold(3), DecisionTreeClassifier(max_depth=2, random_state=0)
    found = model_selection.cross_val_predict(
        tree, _lazy(X), _lazy(labels), cv=cv, method="predict_proba"
    )
    expected = truth.cross_val_predict(tree, X, labels, cv=cv, method="predict_proba")
    assert len(found) == len(expected) == 2
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_several_labels_a_row_may_be_lists() -> None:
    labels = (X[:, :2] > 0).astype(int)
    found, expected = (
        model_selection.GridSearchCV(linear_model.RidgeClassifier(), {"alpha": [1, 9]}, cv=3).fit(
            X, y
        )
        for y in (labels.tolist(), labels)
    )
    np.testing.assert_array_equal(
        found.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"]
    )


@pytest.mark.parametrize("make", [np.asarray, _lazy])
@pytest.mark.parametrize(
    ("model", "method", "match"),
    [
        (LogisticRegression(), "predict_prob", "Did you mean 'predict_proba'"),
        (LogisticRegression(), "classes_", "no such method"),
        (LogisticRegression(), None, "no such method"),
        (SGDClassifier("hinge", max_iter=1, tol=None), "predict_proba", "with these parameters"),
    ],
)
def test_a_missing_method_is_named(make: Any, model: Any, method: Any, match: str) -> None:
    with pytest.raises(InvalidParameterError, match=match):
        model_selection.cross_val_predict(model, make(X), make(Y), cv=2, method=method)


def test_predictions_of_fits_that_lack_a_label(client: Any) -> None:
    labels, cv = Y.copy(), truth.KFold(4)
    labels[:5] = 7
    ours, theirs = LogisticRegression(**TIGHT), truths.LogisticRegression(**TIGHT)
    for method in ("predict_proba", "decision_function", "predict_log_proba"):
        options: dict[str, Any] = {"cv": cv, "method": method}
        with pytest.warns(RuntimeWarning, match="Number of classes in training fold"):
            found = model_selection.cross_val_predict(ours, _lazy(X), _lazy(labels), **options)
        with pytest.warns(RuntimeWarning, match="Number of classes in training fold"):
            expected = truth.cross_val_predict(theirs, X, labels, **options)
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-3, atol=1e-4)
    two = np.where(AT < 5, 7, Y > 1)
    with pytest.raises(InvalidDataError, match="decision function has no values"):
        model_selection.cross_val_predict(
            ours, _lazy(X), _lazy(two), cv=cv, method="decision_function"
        )


def test_a_callable_that_returns_several_scores_is_refused(client: Any) -> None:
    def several(model: Any, rows: Any, labels: Any) -> dict[str, float]:
        return {"one": 1.0}

    with pytest.raises(InvalidParameterError, match="Name each of them"):
        model_selection.cross_validate(
            linear_model.LogisticRegression(), _lazy(X), _lazy(Y), scoring=several, cv=2
        )


def test_targets_by_name_for_estimators_without_dask_support(client: Any) -> None:
    table = dd.from_pandas(pd.DataFrame(X, columns=list("abc")).assign(y=Y), npartitions=3)
    grid = {"var_smoothing": [1e-9, 0.1]}
    search = model_selection.GridSearchCV(TheirGaussianNB(), grid, cv=2).fit(table, "y")
    assert search.best_estimator_.n_features_in_ == 3


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("kind", ["GridSearchCV", "HalvingGridSearchCV", "HyperbandSearchCV"])
def test_the_best_of_another_package_is_fitted_to_a_frame(
    client: Any, kind: str, as_list: bool
) -> None:
    table = pd.DataFrame(
        {"size": X[:, 0], "colour": pd.Categorical(np.array(["red", "blue"])[Y % 2])}
    )
    rows: Any = dd.from_pandas(table, npartitions=3)
    labels: Any = dd.from_pandas(pd.Series(Y), npartitions=3)
    columns = make_column_transformer((OneHotEncoder(), ["colour"]), (TheirScaler(), ["size"]))
    estimator: Any = make_pipeline(columns, truths.LogisticRegression())
    grid: dict[str, list[Any]] = {"logisticregression__C": [0.1, 1.0]}
    options: dict[str, Any] = {"cv": 2}
    if kind == "HyperbandSearchCV":
        # A pipeline has no partial_fit.
        estimator, grid = truths.SGDClassifier(random_state=0), {"alpha": [0.1]}
        rows = rows[["size"]]
        options["max_iter"] = 3
    if as_list:
        rows, labels = rows.to_delayed(), labels.to_delayed()
    search = getattr(model_selection, kind)(estimator, grid, **options).fit(rows, labels)
    best = search.best_estimator_
    assert best.feature_names_in_[0] == "size"
    if kind != "HyperbandSearchCV":
        expected = clone(best).fit(table, Y).predict_proba(table)
        np.testing.assert_allclose(best.predict_proba(table), expected, atol=1e-6)


def test_scorers_that_scikit_learn_made(client: Any) -> None:
    scoring: dict[str, Any] = {
        "f1": metrics.make_scorer(metrics.f1_score, average="macro"),
        "auc": metrics.make_scorer(
            metrics.roc_auc_score, response_method="predict_proba", multi_class="ovr"
        ),
        "loss": metrics.make_scorer(
            metrics.log_loss, response_method="predict_proba", greater_is_better=False
        ),
    }
    options: dict[str, Any] = {"scoring": scoring, "cv": 2, "error_score": "raise"}
    found = model_selection.cross_validate(
        LogisticRegression(**TIGHT), _lazy(X), _lazy(Y), **options
    )
    expected = truth.cross_validate(truths.LogisticRegression(**TIGHT), X, Y, **options)
    for name in scoring:
        np.testing.assert_allclose(found[f"test_{name}"], expected[f"test_{name}"], atol=1e-6)
    options["scoring"] = metrics.make_scorer(metrics.hinge_loss)
    with pytest.raises(InvalidParameterError, match=r"make_scorer with a metric of daskml_dist"):
        model_selection.cross_validate(LogisticRegression(), _lazy(X), _lazy(Y), **options)


def test_chosen_penalties_give_sparse_coefficients() -> None:
    clf = linear_model.LogisticRegressionCV(Cs=2, cv=2, use_legacy_attributes=False).fit(X, Y)
    expected = clf.predict_proba(X)
    assert sparse.issparse(clf.sparsify().coef_)
    np.testing.assert_allclose(clf.predict_proba(X), expected)
    assert isinstance(clf.densify().coef_, np.ndarray)


def test_the_choice_of_a_refit_function_is_checked() -> None:
    grid: dict[str, Any] = {"C": [0.1, 1.0, 10.0]}
    search = model_selection.HalvingGridSearchCV(
        LogisticRegression(), grid, cv=2, refit=lambda results: 1
    ).fit(X, Y)
    assert search.best_index_ == 1
    assert not hasattr(search, "best_score_")
    with pytest.raises(IndexError, match="out of range"):
        search.set_params(refit=lambda results: 99).fit(X, Y)


def test_masks_select_rows_of_a_frame() -> None:
    table = pd.DataFrame(X, columns=list("abc")).assign(y=Y)
    frame = dd.from_pandas(table, npartitions=3)
    for named in ("y", frame["y"]):
        pairs = model_selection.StratifiedKFold(3).split(frame, named)
        expected = truth.StratifiedKFold(3).split(X, Y)
        for (train, test), (_, expected_test) in zip(pairs, expected, strict=True):
            assert len(frame[train]) == N - len(expected_test)
            np.testing.assert_array_equal(frame["y"][test].compute(), Y[expected_test])
    for _, test in model_selection.KFold(3).split(frame.clear_divisions()):
        assert isinstance(test, da.Array)
    for rows in (table, dd.from_pandas(table, npartitions=3)):
        _, test = model_selection.train_test_split(rows, stratify="y", random_state=0)
        shares = np.bincount(np.asarray(test["y"])) / np.bincount(Y)
        np.testing.assert_allclose(shares, 0.25, atol=0.02)


def test_folds_of_delayed_blocks() -> None:
    grid = {"max_depth": [1, 2]}
    search = model_selection.GridSearchCV(RandomForestRegressor(4, random_state=0), grid, cv=3)
    arrays = _lazy(X), _lazy(X[:, 0])
    blocks = [list(values.to_delayed().ravel()) for values in arrays]
    expected = search.fit(*arrays).cv_results_["mean_test_score"]
    np.testing.assert_allclose(search.fit(*blocks).cv_results_["mean_test_score"], expected)
    assert search.score(*blocks) == pytest.approx(search.score(*arrays))
