"""Multilabel ridge classification equals scikit-learn, also for lazy rows."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn import linear_model as truths
from sklearn import model_selection as truth
from sklearn.utils import get_tags

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import LogisticRegression, RidgeClassifier, RidgeClassifierCV
from daskml_dist.model_selection import GridSearchCV
from daskml_dist.neural_network import MLPClassifier

RNG = np.random.default_rng(0)
N = 200
X = RNG.normal(size=(N, 5))
Y = (X @ RNG.normal(size=(5, 3)) + RNG.normal(size=(N, 3)) > 0.2).astype(int)
WEIGHT = RNG.random(N)

ROWS: dict[str, Any] = {
    "memory": lambda y: (X, y, WEIGHT),
    "array": lambda y: tuple(da.from_array(v, chunks=(70, *v.shape[1:])) for v in (X, y, WEIGHT)),
    "frame": lambda y: tuple(
        dd.from_pandas(pd.DataFrame(v).add_prefix("c") if v.ndim == 2 else pd.Series(v), 3)
        for v in (X, y, WEIGHT)
    ),
}


def test_tags_tell_which_classifiers_take_several_labels() -> None:
    kinds: list[Any] = [RidgeClassifier, RidgeClassifierCV, MLPClassifier, LogisticRegression]
    found = [get_tags(kind()).classifier_tags.multi_label for kind in kinds]
    assert found == [True, True, True, False]


@pytest.mark.parametrize("n_labels", [2, 3])
@pytest.mark.parametrize("kind", ROWS)
def test_fits_equal_scikit_learn(kind: str, n_labels: int) -> None:
    y = Y[:, :n_labels]
    theirs = truths.RidgeClassifier(alpha=2.0).fit(X, y, WEIGHT)
    rows, labels, weight = ROWS[kind](y)
    ours = RidgeClassifier(alpha=2.0).fit(rows, labels, weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-10)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-10)
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    np.testing.assert_allclose(
        np.asarray(ours.decision_function(rows)), theirs.decision_function(X), atol=1e-12
    )
    np.testing.assert_array_equal(np.asarray(ours.predict(rows)), theirs.predict(X))
    assert ours.score(rows, labels, weight) == pytest.approx(theirs.score(X, y, WEIGHT))


def test_the_scikit_learn_twin_predicts_the_same() -> None:
    ours = RidgeClassifier().fit(X, Y)
    np.testing.assert_array_equal(ours.to_sklearn().predict(X), ours.predict(X))
    refitted = ours.fit(X, Y[:, 0])  # single-label after multilabel
    np.testing.assert_array_equal(
        refitted.predict(X), truths.RidgeClassifier().fit(X, Y[:, 0]).predict(X)
    )


@pytest.mark.parametrize("kind", ["memory", "array"])
def test_searches(kind: str) -> None:
    rows, labels, _ = ROWS[kind](Y)
    grid = {"alpha": [1.0, 300.0]}
    ours = GridSearchCV(RidgeClassifier(), grid, error_score="raise").fit(rows, labels)
    theirs = truth.GridSearchCV(truths.RidgeClassifier(), grid).fit(X, Y)
    np.testing.assert_allclose(
        ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"]
    )


CHOSEN: dict[str, dict[str, Any]] = {
    "rows left out": {"store_cv_results": True},
    "folds": {"cv": 3},
    "folds, by f1": {"cv": 3, "scoring": "f1_macro"},
}


@pytest.mark.parametrize("how", CHOSEN)
@pytest.mark.parametrize("kind", ["memory", "array"])
def test_penalties_are_chosen(kind: str, how: str) -> None:
    params = {"alphas": [1e-2, 1.0, 30.0, 1e3], **CHOSEN[how]}
    rows, labels, weight = ROWS[kind](Y)
    more = () if how == "folds, by f1" else (WEIGHT,)
    theirs = truths.RidgeClassifierCV(**params).fit(X, Y, *more)
    ours = RidgeClassifierCV(**params).fit(rows, labels, *((weight,) if more else ()))
    assert (ours.alpha_, ours.coef_.shape) == (theirs.alpha_, theirs.coef_.shape)
    assert ours.best_score_ == pytest.approx(
        theirs.best_score_, abs=0.01 if "cv" in params else 1e-9
    )
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-8)
    np.testing.assert_array_equal(np.asarray(ours.predict(rows)), theirs.predict(X))
    if how == "rows left out":
        np.testing.assert_allclose(ours.cv_results_, theirs.cv_results_, rtol=1e-8)


def test_leave_one_out_scores_use_all_labels() -> None:
    """scikit-learn's uses only the first label of each row."""
    alphas = [1e-2, 30.0, 1e4]
    ours = RidgeClassifierCV(alphas, scoring="accuracy").fit(X[:60], Y[:60])
    hits = np.zeros(len(alphas))
    for i in range(60):
        train = np.arange(60) != i
        for k, alpha in enumerate(alphas):
            one = truths.RidgeClassifier(alpha=alpha).fit(X[:60][train], Y[:60][train])
            hits[k] += (one.predict(X[i : i + 1]) == Y[i]).all()
    assert ours.best_score_ == pytest.approx(hits.max() / 60)
    assert ours.alpha_ == alphas[hits.argmax()]


def test_invalid_labels_are_refused() -> None:
    for cv in (None, 3):
        with pytest.raises(
            InvalidParameterError, match="rows with several labels have no single class"
        ):
            RidgeClassifierCV(class_weight="balanced", cv=cv).fit(X, Y)
        with pytest.raises(InvalidDataError, match="give one column of 0 and 1 for each"):
            RidgeClassifierCV(cv=cv).fit(X, Y + 1)
    with pytest.raises(
        InvalidParameterError, match="rows with several labels have no single class"
    ):
        RidgeClassifier(class_weight="balanced").fit(X, Y)
    with pytest.raises(InvalidDataError, match="give one column of 0 and 1 for each"):
        RidgeClassifier().fit(X, Y + 1)
