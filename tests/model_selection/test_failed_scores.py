"""Failing scores are replaced by the user's `error_score`."""

from __future__ import annotations

import warnings
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import SGDClassifier as TheirSGDClassifier
from sklearn.linear_model import SGDRegressor as TheirSGDRegressor
from sklearn.model_selection import KFold

from daskml_dist import linear_model, model_selection
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import LogisticRegression, Ridge, SGDClassifier
from daskml_dist.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    HyperbandSearchCV,
    RandomizedSearchCV,
    cross_val_score,
)
from daskml_dist.naive_bayes import GaussianNB
from tests.quick import in_turn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(101, 3))  # folds of 51 and 50 rows
LABELS = (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize(("ours", "lazy"), in_turn([False, True], [False, True]))
def test_a_score_that_fails_on_a_split(client: Any, ours: bool, lazy: bool) -> None:
    def score(estimator: Any, rows: Any, labels: Any) -> float:
        if len(np.asarray(labels)) == 51:
            raise ValueError("not of 51 rows")
        return 0.5

    rows = (da.from_array(X, chunks=(40, 3)), da.from_array(LABELS, chunks=40))
    data = rows if lazy else (X, LABELS)
    search = HyperbandSearchCV(
        (SGDClassifier if ours else TheirSGDClassifier)(random_state=0), {"alpha": [1e-4, 1e-2]},
        max_iter=3, cv=KFold(2), scoring=score, random_state=0, refit=False,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = search.fit(*data).cv_results_
    assert np.isnan(table["split0_test_score"]).all()
    assert (table["split1_test_score"] == 0.5).all()
    with pytest.raises(ValueError, match="not of 51 rows"):
        search.set_params(error_score="raise").fit(*data)


#: Only rows of the first fold have weights above 0.
WEIGHT = (np.arange(101) < 51).astype(float)


def _lazy(*values: Any) -> list[Any]:
    return [da.from_array(v, chunks=(40, *v.shape[1:])) for v in values]


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("LogisticRegressionCV", {"Cs": 2}),
        ("RidgeClassifierCV", {}),
        ("RidgeCV", {}),
        ("LassoCV", {"alphas": 2}),
    ],
)
def test_penalties_are_not_chosen_by_rows_without_weight(name: str, params: dict[str, Any]) -> None:
    model = getattr(linear_model, name)(cv=KFold(3), **params)
    with pytest.raises(InvalidDataError, match=r"rows of split 2 have no weight.*shuffle=True"):
        model.fit(X, LABELS, sample_weight=(np.arange(101) < 60).astype(float))


@pytest.mark.parametrize(
    ("estimator", "grid", "lazy"),
    [
        (LogisticRegression(), {"C": [1.0, 2.0]}, True),
        (Ridge(), {"alpha": [1.0, 2.0]}, False),
        (SGDClassifier(max_iter=2, tol=None, random_state=0), {"alpha": [1e-4, 1e-2]}, False),
    ],
    ids=["rounds", "regressor", "steps"],
)
def test_a_search_warns_of_test_rows_without_weight(
    estimator: Any, grid: Any, lazy: bool, client: Any
) -> None:
    X_, y, weight = _lazy(X, LABELS, WEIGHT) if lazy else (X, LABELS, WEIGHT)
    weight = weight[::-1]  # like the test rows of the first split
    search = GridSearchCV(estimator, grid, cv=[(np.arange(51, 101), np.arange(50))], refit=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = search.fit(X_, y, sample_weight=weight).cv_results_
    assert np.isnan(table["mean_test_score"]).all()
    texts = [str(one.message) for one in caught]
    assert any("Scoring failed" in t and "split 0 have no weight" in t for t in texts)
    assert any("test scores are non-finite" in text for text in texts)
    with pytest.raises(InvalidDataError, match="split 0 have no weight"):
        search.set_params(error_score="raise").fit(X_, y, sample_weight=weight)


@pytest.mark.parametrize(
    "model", [LogisticRegression(), Ridge(), linear_model.PoissonRegressor()], ids=repr
)
def test_rows_without_weight_have_no_score(model: Any) -> None:
    with pytest.raises(InvalidDataError, match="sum to zero, so there is no score"):
        model.fit(X, LABELS).score(X, LABELS, sample_weight=np.zeros(101))


@pytest.mark.parametrize(
    ("kind", "estimator"),
    [
        (HyperbandSearchCV, TheirSGDClassifier()),
        (HyperbandSearchCV, TheirSGDRegressor()),
        (GridSearchCV, TheirSGDClassifier()),
    ],
    ids=["labels", "hyperband", "grid"],
)
def test_rows_that_cannot_be_read_name_their_block(kind: Any, estimator: Any, client: Any) -> None:
    def read(rows: Any, block_info: Any = None) -> Any:
        if block_info[0]["chunk-location"][0] == 1:
            raise OSError("no such file")
        return rows

    rows, labels = _lazy(X, LABELS)
    rows = rows.map_blocks(read, dtype=float)
    more = {"max_iter": 3} if kind is HyperbandSearchCV else {}
    search = kind(estimator, {"alpha": [1e-4, 1e-2]}, cv=KFold(2), **more)
    with pytest.raises(InvalidDataError, match=r"Block 1 could not be read.*no such file"):
        search.fit(rows, labels)


@pytest.mark.parametrize("clf", [LogisticRegression(), TheirSGDClassifier(random_state=0)])
@pytest.mark.parametrize("cv", [KFold(2), model_selection.ShuffleSplit(2, random_state=0)])
def test_labels_that_are_lazy_beside_rows_in_memory(clf: Any, cv: Any) -> None:
    for rows in (X, pd.DataFrame(X)):
        found = model_selection.cross_val_score(clf, rows, da.from_array(LABELS, chunks=17), cv=cv)
        np.testing.assert_array_equal(found, model_selection.cross_val_score(clf, X, LABELS, cv=cv))
    if isinstance(cv, KFold):
        lazy = da.from_array(LABELS, chunks=17)
        assert len(model_selection.cross_val_predict(clf, X, lazy, cv=cv)) == len(X)


def test_weights_that_are_lazy_beside_rows_in_memory() -> None:
    (lazy,), weight = _lazy(1 + WEIGHT), 1 + WEIGHT
    clf, cv = LogisticRegression(), KFold(2)

    def results(sample_weight: Any) -> list[Any]:
        curve = model_selection.learning_curve(
            clf, X, LABELS, cv=cv, train_sizes=[0.5, 1.0], params={"sample_weight": sample_weight}
        )
        scores = model_selection.cross_val_score(
            clf, X, LABELS, cv=cv, params={"sample_weight": sample_weight}
        )
        search = GridSearchCV(clf, {"C": [0.1, 1.0]}, cv=cv).fit(
            X, LABELS, sample_weight=sample_weight
        )
        ridge = linear_model.RidgeCV(cv=cv).fit(X, LABELS, sample_weight)
        found = search.cv_results_["mean_test_score"], search.best_estimator_.coef_
        return [*curve, scores, *found, ridge.coef_]

    for found, expected in zip(results(lazy), results(weight), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_scorers_that_cannot_be_called_and_values_that_are_none() -> None:
    with pytest.raises(InvalidParameterError, match=r"cannot be called with .estimator, X, y."):
        linear_model.RidgeCV(cv=2, scoring=lambda estimator: 1.0).fit(X, LABELS)
    with pytest.raises(InvalidParameterError, match="param_range=3: give a sequence"):
        model_selection.validation_curve(
            LogisticRegression(), X, LABELS, param_name="C", param_range=3
        )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda e: GridSearchCV(e, {"alpha": []}), "non-empty"),
        (lambda e: GridSearchCV(e, {"alpha": 0.1}), "wrapped in a list"),
        (lambda e: GridSearchCV(e, ["alpha"]), "not a dict"),
        (lambda e: GridSearchCV(type(e), {"alpha": [0.1]}), r"instance, SGDClassifier\(\)"),
        (lambda e: RandomizedSearchCV(e, {"alpha": [0.1]}, n_iter=0), "n_iter"),
        (lambda e: RandomizedSearchCV(e, {"alpha": 0.1}), "distribution"),
        (lambda e: HyperbandSearchCV(e, {"alpha": []}, max_iter=3), "non-empty|empty"),
        (
            lambda e: HalvingGridSearchCV(e, {"alpha": [0.1]}, factor=1),
            "factor=1: use a number > 1",
        ),
        (lambda e: HalvingGridSearchCV(e, {"alpha": [0.1]}, resource="max_itr"), "mean 'max_iter'"),
    ],
)
def test_invalid_searches_raise_before_any_fit(make: Any, words: str) -> None:
    rows, y = da.from_array(X, chunks=(40, 3)), da.from_array(LABELS, chunks=40)
    with pytest.raises(InvalidParameterError, match=words):
        make(SGDClassifier()).fit(rows, y)


def test_a_missing_target_is_refused() -> None:
    rows = da.from_array(np.eye(6), chunks=(3, 6))
    for ask in (GridSearchCV(SGDClassifier(), {"alpha": [0.1]}).fit, _cross_validated):
        with pytest.raises(InvalidDataError, match="y is None, and SGDClassifier requires y"):
            ask(rows)


def _cross_validated(rows: Any) -> Any:
    return cross_val_score(SGDClassifier(), rows)


@pytest.mark.parametrize("score", ["good", None, np.ones(2)], ids=repr)
def test_scores_that_are_no_numbers_are_refused(score: Any) -> None:
    search = GridSearchCV(GaussianNB(), {"var_smoothing": [1e-9]}, cv=2, scoring=lambda *_: score)
    with pytest.raises(InvalidDataError, match="must return a number"):
        search.fit(*_lazy(X, LABELS))


@pytest.mark.parametrize(
    "score", [np.float32(0.5), np.array([0.5]), da.ones(2, chunks=1).mean() / 2]
)
def test_scores_may_be_numbers_of_any_kind(score: Any) -> None:
    found = cross_val_score(GaussianNB(), *_lazy(X, LABELS), cv=2, scoring=lambda *_: score)
    assert found.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("make", [lambda *values: values, _lazy], ids=["memory", "lazy"])
@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"param_grid": []}, "no candidates"),
        ({"cv": [(np.arange(50), np.array([101]))]}, "nor a mask of the 101 rows"),
        ({"scoring": ["accuracy", "accuracy"], "refit": False}, "each once"),
    ],
)
def test_searches_without_fits_or_with_equal_scores_are_refused(
    make: Any, params: dict[str, Any], match: str
) -> None:
    search = GridSearchCV(LogisticRegression(), **{"param_grid": {"C": [1.0]}, **params})
    with pytest.raises(InvalidParameterError, match=match):
        search.fit(*make(X, LABELS))


def test_one_score_is_asked_of_a_function_that_returns_several() -> None:
    with pytest.raises(InvalidParameterError, match="cross_validate for several"):
        cross_val_score(GaussianNB(), X, LABELS, scoring=lambda *_: {"a": 1.0, "b": 2.0})
