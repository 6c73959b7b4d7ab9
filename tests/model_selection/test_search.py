"""Cross-validation and searches equal scikit-learn, for rows in memory and in Dask."""

from __future__ import annotations

import os
import signal
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from scipy import sparse
from sklearn import linear_model as truths
from sklearn import model_selection as truth
from sklearn.exceptions import FitFailedWarning
from sklearn.naive_bayes import GaussianNB as TheirGaussianNB

from daskml_dist import linear_model, model_selection
from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.batched_fits import solver_rounds
from daskml_dist.models.base import r2_of_sums
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.solvers import batched_gradients
from daskml_dist.training.callbacks import CallbackList
from tests.quick import in_turn

RNG = np.random.default_rng(0)
N = 600
X = RNG.normal(size=(N, 5))
BINARY = np.where(X[:, 0] + 0.5 * X[:, 1] + RNG.logistic(size=N) > 0, "yes", "no")
THREE = np.digitize(X[:, 0] + X[:, 1] + RNG.normal(size=N), [-1, 1])
NUMBERS = X @ RNG.normal(size=5) + RNG.normal(size=N)
COUNTS = RNG.poisson(np.exp(X[:, 0] / 2))
WEIGHTS = RNG.random(N)

TIGHT = {"tol": 1e-9}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, list[Any]], Any, list[str]]] = {
    "binary": (
        "LogisticRegression", TIGHT, {"C": [0.001, 1, 10], "fit_intercept": [True, False]},
        BINARY, ["accuracy", "neg_log_loss", "roc_auc", "f1_macro", "matthews_corrcoef"],
    ),
    "classes": (
        "LogisticRegression", TIGHT, {"C": [0.01, 1]}, THREE,
        ["accuracy", "neg_log_loss", "f1_weighted", "balanced_accuracy"],
    ),
    "class weights": (
        "LogisticRegression", TIGHT,
        {"C": [0.01, 1], "class_weight": ["balanced", {1: 3.0}, None]}, THREE, ["f1_macro"],
    ),
    "signs": (
        "RidgeClassifier", {"class_weight": {"yes": 3.0}}, {"alpha": [1.0, 100.0]}, BINARY,
        ["accuracy"],
    ),
    "signs of classes": (
        "RidgeClassifier", {}, {"alpha": [1.0, 100.0], "class_weight": [None, {0: 2.0}]}, THREE,
        ["accuracy", "f1_macro"],
    ),
    "least squares": ("LinearRegression", {}, {"fit_intercept": [True, False]}, NUMBERS, ["r2"]),
    "ridge": (
        "Ridge", {}, {"alpha": [0.1, 10, 1000]}, NUMBERS,
        ["r2", "neg_mean_squared_error", "neg_mean_absolute_error", "neg_root_mean_squared_error"],
    ),
    "lasso": ("Lasso", TIGHT, {"alpha": [0.001, 0.1]}, NUMBERS, ["r2"]),
    "elastic net": (
        "ElasticNet", TIGHT, {"alpha": [0.001, 0.1], "l1_ratio": [0.2, 0.8]}, NUMBERS, ["r2"],
    ),
    "counts": ("PoissonRegressor", TIGHT, {"alpha": [0.001, 0.1]}, COUNTS, ["r2"]),
    "huber": ("HuberRegressor", {"tol": 1e-7}, {"alpha": [0.001, 0.1]}, NUMBERS, ["r2"]),
}  # fmt: skip
SPLITTERS = {
    "folds": 4,
    "drawn": truth.ShuffleSplit(3, random_state=0),
    "time": truth.TimeSeriesSplit(3),
}


def _largest_difference(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    assert set(ours) == set(theirs)
    assert ours["params"] == theirs["params"]
    names = [name for name in theirs if name.startswith(("split", "mean_t", "std_t"))]
    return max(float(np.abs(ours[name] - theirs[name]).max()) for name in names)


@pytest.mark.parametrize(
    ("pair", "weighted"),
    in_turn(
        # Other splitters make no difference to most estimators.
        [(case, "folds") for case in CASES]
        + [(case, cv) for case in ("binary", "ridge") for cv in SPLITTERS if cv != "folds"],
        [False, True],
    ),
)
def test_batched_fits_equal_scikit_learn(pair: tuple[str, str], weighted: bool) -> None:
    case, cv = pair
    name, options, grid, y, scoring = CASES[case]
    params = {"sample_weight": WEIGHTS} if weighted else {}
    more = {"scoring": scoring, "refit": scoring[0], "cv": SPLITTERS[cv]}
    ours, theirs = (
        search(getattr(models, name)(**options), grid, return_train_score=True, **more).fit(
            X, y, **params
        )
        for search, models in (
            (model_selection.GridSearchCV, linear_model),
            (truth.GridSearchCV, truths),
        )
    )
    assert ours.stacks_ == 1
    assert _largest_difference(ours.cv_results_, theirs.cv_results_) < 1e-6
    assert ours.best_params_ == theirs.best_params_
    found, expected = ours.best_estimator_.coef_, theirs.best_estimator_.coef_
    # For two classes scikit-learn's dual signs lack a dimension.
    np.testing.assert_allclose(found, np.reshape(expected, found.shape), rtol=1e-4)


def test_starting_values_are_found_on_a_share_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimum is still that of all rows."""
    monkeypatch.setattr(batched_gradients, "_SAMPLE_RUN_ROWS", 8)
    found = []
    for many in (1 << 40, 0):
        monkeypatch.setattr(solver_rounds, "_MIN_ENTRIES_FOR_SHARE", many)
        search = model_selection.GridSearchCV(
            linear_model.LogisticRegression(**TIGHT), {"C": [0.01, 1]}, scoring="neg_log_loss"
        )
        estimator = linear_model.LogisticRegressionCV(Cs=[0.01, 1], cv=3, tol=1e-9)
        scores = search.fit(X, THREE).cv_results_["mean_test_score"]
        estimator.fit(X, BINARY, sample_weight=WEIGHTS)
        found.append((scores, estimator.coefs_paths_["yes"], estimator.n_iter_.sum()))
    (scores, paths, n_iter), (other_scores, other_paths, less) = found
    np.testing.assert_allclose(other_scores, scores, atol=1e-8)
    np.testing.assert_allclose(other_paths, paths, atol=1e-6)
    assert less != n_iter  # other starting values


@pytest.mark.parametrize(
    ("case", "kind"),
    # Each case and each kind; all other pairs are slow.
    [
        pytest.param(case, kind, marks=[] if kind in quick else pytest.mark.slow)
        for case, quick in (("binary", "array frame"), ("classes", "sparse"), ("ridge", "array"))
        for kind in ("array", "frame", "sparse")
    ],
)
def test_dask_collections_give_the_results_of_rows_in_memory(
    case: str, kind: str, client: Any
) -> None:
    name, options, grid, y, _ = CASES[case]
    rows, labels = da.from_array(X, chunks=(250, 5)), da.from_array(y, chunks=250)
    target: Any = labels
    if kind == "frame":
        frame = pd.DataFrame(X, columns=list("abcde")).assign(target=y)
        rows, target = dd.from_pandas(frame, npartitions=3), "target"
    elif kind == "sparse":
        rows = rows.map_blocks(sparse.csr_array)
    search = model_selection.GridSearchCV(getattr(linear_model, name)(**options), grid, cv=4)
    search.fit(rows, target)
    expected = truth.GridSearchCV(getattr(truths, name)(**options), grid, cv=4).fit(X, y)
    assert search.stacks_ == 1
    assert _largest_difference(search.cv_results_, expected.cv_results_) < 1e-6
    assert search.best_params_ == expected.best_params_
    if kind == "array":
        assert search.score(rows, labels) == pytest.approx(expected.score(X, y))
        np.testing.assert_array_equal(search.predict(rows).compute() == y, expected.predict(X) == y)


def test_models_that_cannot_be_batched_are_fitted_singly(client: Any) -> None:
    rows, labels = da.from_array(X, chunks=(250, 5)), da.from_array(BINARY, chunks=250)
    grid = {"var_smoothing": [1e-9, 1e-2]}
    expected = truth.GridSearchCV(TheirGaussianNB(), grid, cv=3).fit(X, BINARY)
    for estimator in (GaussianNB(), TheirGaussianNB()):
        search = model_selection.GridSearchCV(estimator, grid, cv=3, refit=False)
        search.fit(rows, labels)
        assert not hasattr(search, "stacks_")
        assert _largest_difference(search.cv_results_, expected.cv_results_) < 1e-12


def test_cross_validation_on_dask_collections(client: Any) -> None:
    rows, labels = da.from_array(X, chunks=(250, 5)), da.from_array(BINARY, chunks=250)
    ours, theirs = linear_model.LogisticRegression(**TIGHT), truths.LogisticRegression(**TIGHT)
    scoring = ["accuracy", "neg_log_loss"]
    found = model_selection.cross_validate(
        ours, rows, labels, scoring=scoring, cv=3, return_estimator=True, return_indices=True
    )
    expected = truth.cross_validate(theirs, X, BINARY, scoring=scoring, cv=3)
    for name in scoring:
        np.testing.assert_allclose(found[f"test_{name}"], expected[f"test_{name}"], atol=1e-9)
    assert len(found["estimator"]) == len(found["indices"]["test"]) == 3
    predicted = model_selection.cross_val_predict(ours, rows, labels, cv=3)
    assert predicted.chunks == labels.chunks
    truly = truth.cross_val_predict(theirs, X, BINARY, cv=3)
    np.testing.assert_array_equal(predicted.compute(), truly)
    of_classes = model_selection.cross_val_predict(ours, rows, labels, cv=3, method="predict_proba")
    assert of_classes.shape == (N, 2)
    with pytest.raises(InvalidParameterError, match="only works for partitions"):
        model_selection.cross_val_predict(ours, rows, labels, cv=truth.TimeSeriesSplit(3)).compute()


def test_custom_groups_and_indices(client: Any) -> None:
    rows, labels = da.from_array(X, chunks=(250, 5)), da.from_array(BINARY, chunks=250)
    groups = RNG.integers(0, 9, N)
    ours, theirs = linear_model.LogisticRegression(**TIGHT), truths.LogisticRegression(**TIGHT)
    for cv in (truth.GroupKFold(3), list(truth.KFold(3, shuffle=True, random_state=0).split(X))):
        lazy = da.from_array(groups, chunks=250)
        found = model_selection.cross_val_score(ours, rows, labels, groups=lazy, cv=cv)
        expected = truth.cross_val_score(theirs, X, BINARY, groups=groups, cv=cv)
        np.testing.assert_allclose(found, expected)


def test_searches_convert_to_scikit_learn(client: Any) -> None:
    rows, labels = da.from_array(X, chunks=(250, 5)), da.from_array(BINARY, chunks=250)
    estimator, grid = linear_model.LogisticRegression(), {"C": [0.1, 1.0]}
    for scoring in (None, "neg_log_loss", ["accuracy", "neg_log_loss"]):
        refit = "accuracy" if isinstance(scoring, list) else True
        options = {"cv": 3, "scoring": scoring, "refit": refit}
        ours = model_selection.GridSearchCV(estimator, grid, **options).fit(rows, labels)
        twin = ours.to_sklearn()
        assert type(twin) is truth.GridSearchCV
        assert type(twin.best_estimator_) is truths.LogisticRegression
        np.testing.assert_array_equal(twin.predict(X), ours.predict(X))
        assert twin.score(X, BINARY) == pytest.approx(ours.score(rows, labels))


def test_random_search_on_dask_collections(client: Any) -> None:
    rows, labels = da.from_array(X, chunks=(250, 5)), da.from_array(NUMBERS, chunks=250)
    options = {"n_iter": 3, "random_state": 0, "cv": 3}
    values = {"alpha": np.logspace(-3, 3, 20)}
    ours = model_selection.RandomizedSearchCV(linear_model.Ridge(), values, **options)
    expected = truth.RandomizedSearchCV(truths.Ridge(), values, **options).fit(X, NUMBERS)
    ours.fit(rows, labels)
    assert _largest_difference(ours.cv_results_, expected.cv_results_) < 1e-9
    assert ours.best_score_ == pytest.approx(expected.best_score_)


def test_candidates_are_drawn_once_and_rows_may_be_lists() -> None:
    values, options = {"alpha": np.logspace(-3, 3, 20)}, {"n_iter": 3, "cv": 3}
    found = [
        module.RandomizedSearchCV(model.Ridge(), values, random_state=state, **options)
        .fit(X.tolist(), NUMBERS.tolist())
        .cv_results_
        for module, model in ((model_selection, linear_model), (truth, truths))
        for state in [np.random.RandomState(5)]
    ]
    assert _largest_difference(*found) < 1e-9


def test_a_failed_fit_gets_the_error_score(client: Any) -> None:
    rows, labels = da.from_array(X, chunks=(250, 5)), da.from_array(THREE, chunks=250)
    # Trained on two labels without the third.
    with_all, without = np.arange(300), np.flatnonzero(THREE < 2)
    cv = [(with_all, np.arange(300, 600)), (without[:100], without[100:])]
    estimator = linear_model.LogisticRegression(class_weight={2: 5.0})
    for lazy in (True, False):
        arguments = (rows, labels) if lazy else (X, THREE)
        search = model_selection.GridSearchCV(estimator, {"C": [1.0]}, cv=cv, error_score=-3.0)
        with pytest.warns(FitFailedWarning, match=r"1 fits failed out of a total of 2(?s:.*)are n"):
            search.fit(*arguments)
        assert search.cv_results_["split1_test_score"].tolist() == [-3.0]
        assert search.cv_results_["split0_test_score"][0] > 0.5


def test_candidates_do_not_warm_start_each_other(client: Any) -> None:
    rows, labels = da.from_array(X, chunks=(250, 5)), da.from_array(BINARY, chunks=250)
    found = [
        model_selection.GridSearchCV(
            linear_model.LogisticRegression(warm_start=warm, **TIGHT), {"C": [0.1, 1.0]}, cv=2
        ).fit(rows, labels)
        for warm in (True, False)
    ]
    assert found[0].stacks_ == 1
    warm, cold = (search.cv_results_["mean_test_score"] for search in found)
    assert warm.tolist() == cold.tolist()


def test_the_first_cause_is_named_if_all_fits_fail(client: Any) -> None:
    rows, labels = da.from_array(X, chunks=(250, 5)), da.from_array(BINARY, chunks=250)
    text = r"All the 2 fits failed(?s:.*)InvalidParameterError: var_smoothing=-1"
    with pytest.raises(InvalidParameterError, match=text):
        model_selection.cross_val_score(GaussianNB(var_smoothing=-1), rows, labels, cv=2)
    with pytest.raises(InvalidParameterError, match=r"^var_smoothing"):
        model_selection.cross_val_score(
            GaussianNB(var_smoothing=-1), rows, labels, cv=2, error_score="raise"
        )
    with pytest.raises(InvalidParameterError, match=r"All the 4 fits failed(?s:.*)C=-1"):
        model_selection.GridSearchCV(
            linear_model.LogisticRegression(), {"C": [-1.0, -2.0]}, cv=2
        ).fit(rows, labels)


def test_an_invalid_candidate_does_not_affect_its_batch(client: Any) -> None:
    rows, labels = da.from_array(X, chunks=(250, 5)), da.from_array(BINARY, chunks=250)
    search = model_selection.GridSearchCV(
        linear_model.LogisticRegression(), {"C": [1.0, -1.0]}, cv=2
    )
    with (
        pytest.warns(FitFailedWarning, match="2 fits failed out of a total of 4"),
        pytest.warns(UserWarning, match="test scores are non-finite"),
    ):
        search.fit(rows, labels)
    assert search.best_params_ == {"C": 1.0}


def test_a_failed_score_warns(client: Any) -> None:
    rows, labels = da.from_array(X, chunks=(250, 5)), da.from_array(BINARY, chunks=250)

    def broken(estimator: Any, X: Any, y: Any) -> float:
        raise RuntimeError("a broken score")

    options = {"cv": 2, "scoring": broken}
    with pytest.warns(UserWarning, match=r"Scoring failed(?s:.*)a broken score"):
        scores = model_selection.cross_val_score(GaussianNB(), rows, labels, **options)
    assert np.isnan(scores).all()
    with pytest.raises(RuntimeError, match="a broken score"):
        model_selection.cross_val_score(GaussianNB(), rows, labels, error_score="raise", **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cv": 1}, "at least 2 folds"),
        ({"cv": "five"}, "number of folds"),
        ({"scoring": "acuracy"}, "not the name of a score"),
        ({"scoring": "rand_score"}, "not available for Dask"),
        ({"scoring": ["accuracy", "roc_auc"]}, "refit must be set"),
    ],
)
def test_wrong_arguments_name_the_remedy(options: dict[str, Any], text: str) -> None:
    rows, labels = da.from_array(X, chunks=(250, 5)), da.from_array(BINARY, chunks=250)
    search = model_selection.GridSearchCV(
        linear_model.LogisticRegression(), {"C": [1]}, **{"error_score": "raise", **options}
    )
    with pytest.raises(InvalidParameterError, match=text):
        search.fit(rows, labels)


@pytest.mark.parametrize(
    ("cv", "refit", "kind", "text"),
    [
        (2, lambda results: None, TypeError, "best_index_ returned is not an integer"),
        (2, lambda results: 1, IndexError, "best_index_ index out of range"),
        (2, lambda results: -1, IndexError, "best_index_ index out of range"),
        ([], True, ValueError, "Was the CV iterator empty"),
    ],
)
def test_results_of_user_functions_are_checked(cv: Any, refit: Any, kind: Any, text: str) -> None:
    search = model_selection.GridSearchCV(
        linear_model.Ridge(), {"alpha": [1.0]}, cv=cv, refit=refit
    )
    with pytest.raises(kind, match=text):
        search.fit(X, BINARY == BINARY[0])


class Killer:
    """Callback that kills the worker of a trainer once during a batched fit."""

    def __init__(self, client: Client, rank: int) -> None:
        self.client, self.rank, self.passes = client, rank, 0

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.passes += 1
        if self.passes == 4:
            address = run.trainer_addresses[self.rank]
            (pid,) = self.client.run(os.getpid, workers=[address]).values()
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_changes_nothing(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = da.from_array(X, chunks=(100, 5)), da.from_array(BINARY, chunks=100)
    grid = {"C": np.logspace(-3, 3, 8).tolist()}
    estimator = linear_model.LogisticRegression(tol=1e-6)
    expected = truth.GridSearchCV(truths.LogisticRegression(tol=1e-6), grid, cv=4).fit(X, BINARY)
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(host="127.0.0.1", **options) as cluster, Client(cluster) as client:
        killer = Killer(client, rank)
        monkeypatch.setattr(
            solver_rounds, "CallbackList", lambda callbacks=(): CallbackList([*callbacks, killer])
        )
        struck = model_selection.GridSearchCV(estimator, grid, cv=4).fit(rows, labels)
    assert killer.passes > 4
    assert _largest_difference(struck.cv_results_, expected.cv_results_) < 1e-4
    assert struck.best_params_ == expected.best_params_


def test_predictions_of_a_best_estimator_of_another_package_are_lazy() -> None:
    rows, labels = da.from_array(X, chunks=(250, 5)), da.from_array(BINARY, chunks=250)
    grid = {"var_smoothing": [1e-9, 1e-3]}
    search = model_selection.GridSearchCV(TheirGaussianNB(), grid, cv=2).fit(rows, labels)
    for name in ("predict", "predict_proba"):
        answers = getattr(search, name)(rows)
        assert answers.chunks[0] == rows.chunks[0]
        truly = getattr(search.best_estimator_, name)(X)
        if name == "predict":
            np.testing.assert_array_equal(answers.compute(), truly)
        else:
            np.testing.assert_allclose(answers.compute(), truly)
        np.testing.assert_array_equal(getattr(search, name)(X), truly)
    assert not hasattr(search, "decision_function")
    unfitted = model_selection.GridSearchCV(TheirGaussianNB(), grid, cv=2, refit=False)
    with pytest.raises(AttributeError, match="no attribute 'predict'"):
        unfitted.fit(rows, labels).predict(rows)


@pytest.mark.parametrize("value", [2.0, 1e6, 0.0])
def test_a_constant_target_scores_as_in_scikit_learn(value: float) -> None:
    """R^2 of a split whose targets are all equal is 0, or 1 if they are predicted exactly."""
    y = X @ np.arange(1.0, 1 + X.shape[1])
    y[: len(y) // 3] = value
    cv, grid = truth.KFold(3), {"alpha": [0.1, 1.0]}
    found = model_selection.GridSearchCV(linear_model.Ridge(), grid, cv=cv).fit(X, y)
    expected = truth.GridSearchCV(truths.Ridge(), grid, cv=cv).fit(X, y)
    for name in ("split0_test_score", "mean_test_score", "rank_test_score"):
        np.testing.assert_allclose(found.cv_results_[name], expected.cv_results_[name], rtol=1e-6)
    ones = np.ones(len(y))
    exact = [np.sum(a) for a in (ones, 0 * ones, value * ones, value**2 * ones)]
    assert r2_of_sums(*exact) == 1
    assert np.isnan(r2_of_sums(exact[0], np.inf, *exact[2:]))
    assert np.isnan(r2_of_sums(*np.zeros(4)))
