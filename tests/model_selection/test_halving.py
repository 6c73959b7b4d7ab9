"""Successive halving equals scikit-learn's rungs, scores and winners, in memory and in Dask."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn import linear_model as truths
from sklearn.experimental import enable_halving_search_cv  # noqa: F401

from sklearn import model_selection as truth  # isort: skip
from sklearn.naive_bayes import GaussianNB as TheirGaussianNB

from daskml_dist import linear_model, model_selection
from daskml_dist.errors import InvalidParameterError
from daskml_dist.model_selection import _validation
from tests.quick import quick

RNG = np.random.default_rng(0)
N = 900
X = RNG.normal(size=(N, 5))
LABELS = np.where(X[:, 0] + 0.5 * X[:, 1] + RNG.logistic(size=N) > 0, "yes", "no")
NUMBERS = X @ RNG.normal(size=5) + RNG.normal(size=N)
RUNGS = ("n_resources_", "n_candidates_", "n_iterations_", "n_required_iterations_",
         "n_possible_iterations_", "n_remaining_candidates_", "min_resources_",
         "max_resources_")  # fmt: skip
GRID = {"C": np.logspace(-3, 2, 9)}
CASES: dict[str, tuple[str, str, dict[str, Any], Any, Any, dict[str, Any]]] = {
    "grid": ("HalvingGridSearchCV", "LogisticRegression", {"tol": 1e-9}, GRID, LABELS, {}),
    "smallest": (
        "HalvingGridSearchCV", "LogisticRegression", {"tol": 1e-9}, GRID, LABELS,
        {"min_resources": 90, "scoring": "neg_log_loss"},
    ),
    "aggressive": (
        "HalvingGridSearchCV", "LogisticRegression", {"tol": 1e-9}, GRID, LABELS,
        {"min_resources": 200, "aggressive_elimination": True, "factor": 2},
    ),
    "drawn": (
        "HalvingRandomSearchCV", "Ridge", {}, {"alpha": np.logspace(-3, 3, 50)}, NUMBERS,
        {"n_candidates": 12, "min_resources": 100},
    ),
    "as many as fit": (
        "HalvingRandomSearchCV", "Ridge", {}, {"alpha": np.logspace(-3, 3, 50)}, NUMBERS,
        {"min_resources": 60},
    ),
}  # fmt: skip


def test_any_sparse_format_is_thinned() -> None:
    found = [
        model_selection.HalvingRandomSearchCV(
            linear_model.Ridge(), {"alpha": [0.1, 10.0]}, n_candidates=2, min_resources=200, cv=2,
            random_state=0,
        ).fit(make(X), NUMBERS).best_score_
        for make in (sparse.csr_array, sparse.bsr_array)
    ]  # fmt: skip
    assert found[0] == found[1]


@pytest.mark.parametrize("case", quick(CASES, "smallest", "aggressive", "drawn", "as many as fit"))
def test_batched_fits_equal_scikit_learn(case: str) -> None:
    search, name, options, grid, y, more = CASES[case]
    ours, theirs = (
        getattr(module, search)(
            getattr(models, name)(**options), grid, random_state=0, cv=3, **more
        ).fit(X, y)
        for module, models in ((model_selection, linear_model), (truth, truths))
    )
    assert ours.stacks_ == ours.n_iterations_
    assert set(ours.cv_results_) == set(theirs.cv_results_)
    assert [getattr(ours, n) for n in RUNGS] == [getattr(theirs, n) for n in RUNGS]
    # Candidates with equal scores may have another order.
    for name in ("iter", "n_resources", "mean_test_score", "std_test_score", "mean_train_score"):
        found, expected = (np.sort(s.cv_results_[name]) for s in (ours, theirs))
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert ours.best_score_ == pytest.approx(theirs.best_score_)
    if more.get("scoring") or name == "Ridge":
        assert ours.best_params_ == theirs.best_params_


def test_dask_rungs_use_a_share_of_each_block(client: Any) -> None:
    rows, labels = da.from_array(X, chunks=(250, 5)), da.from_array(LABELS, chunks=250)
    ours = model_selection.HalvingGridSearchCV(
        linear_model.LogisticRegression(), GRID, random_state=0, cv=3
    ).fit(rows, labels)
    theirs = truth.HalvingGridSearchCV(truths.LogisticRegression(), GRID, random_state=0, cv=3).fit(
        X, LABELS
    )
    assert ours.stacks_ == 3
    assert [getattr(ours, n) for n in RUNGS] == [getattr(theirs, n) for n in RUNGS]
    # The last rung has all rows, so its candidates have scikit-learn's scores.
    last = ours.cv_results_["iter"] == 2
    estimator = truths.LogisticRegression(C=ours.best_params_["C"])
    expected = truth.cross_val_score(estimator, X, LABELS, cv=3).mean()
    assert ours.cv_results_["mean_test_score"][last].max() == pytest.approx(expected, abs=2e-3)
    assert ours.score(rows, labels) > 0.7
    twin = ours.to_sklearn()
    assert type(twin) is truth.HalvingGridSearchCV
    np.testing.assert_array_equal(twin.predict(X), ours.predict(X))


def test_shares_of_rows_grow_and_add_up(client: Any) -> None:
    rows, labels = da.from_array(X, chunks=((7, 400, 493), 5)), da.from_array(LABELS)
    splits = _validation.Splits(
        truths.LogisticRegression(), rows, labels.rechunk(((7, 400, 493),)), None, {}, 3
    )
    before = np.zeros(N, bool)
    for fraction in (0.01, 0.1, 0.5, 1.0):
        some = splits.thin(fraction, 0)
        used = np.concatenate([np.asarray(codes) for codes in _computed(some.rows.code_parts)]) > 0
        assert used.sum() == int(N * fraction)
        assert not (before & ~used).sum() > 3  # except for rounding of a block's share
        before = used
        tests = sum(_computed(some.rows.make_mask(i, 2) for i in range(3)))
        np.testing.assert_array_equal(tests, used)


def _computed(lazy: Any) -> list[Any]:
    """Return results computed in this thread: a cluster that repeatedly gets the same tasks while
    it still releases them may keep some forever.
    """
    return list(dask.compute(*lazy, scheduler="synchronous"))


def test_resources_may_be_parameters_and_other_models_are_fitted_singly(client: Any) -> None:
    rows, labels = da.from_array(X, chunks=(450, 5)), da.from_array(LABELS, chunks=450)
    grid = {"var_smoothing": np.logspace(-9, 0, 4)}
    ours = model_selection.HalvingGridSearchCV(TheirGaussianNB(), grid, cv=2, random_state=0)
    ours.fit(rows, labels)
    assert not hasattr(ours, "stacks_")
    assert ours.n_candidates_ == [4, 2]
    searches = [
        module.HalvingGridSearchCV(
            models.LogisticRegression(tol=1e-9), {"C": [0.01, 1.0, 100.0]}, resource="max_iter",
            min_resources=30, max_resources=90, cv=3, random_state=0, scoring="neg_log_loss",
        ).fit(X, LABELS)
        for module, models in ((model_selection, linear_model), (truth, truths))
    ]  # fmt: skip
    ours, theirs = searches
    assert ours.n_resources_ == theirs.n_resources_ == [30, 90]
    assert ours.best_params_ == theirs.best_params_
    assert ours.best_estimator_.max_iter == 90


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cv": truth.KFold(3, shuffle=True)}, "consistent folds"),
        ({"resource": "nothing"}, "not supported by estimator"),
        ({"resource": "max_iter"}, "max_resources='auto'"),
        ({"min_resources": 10**6}, "greater than"),
        ({"resource": "C", "max_resources": 10}, "part of the searched"),
        ({"scoring": ["accuracy"]}, "one score"),
    ],
)
def test_invalid_halving_settings_are_refused(options: dict[str, Any], message: str) -> None:
    search = model_selection.HalvingGridSearchCV(linear_model.LogisticRegression(), GRID, **options)
    with pytest.raises(InvalidParameterError, match=message):
        search.fit(X, LABELS)
