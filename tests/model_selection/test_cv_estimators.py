"""Linear models with cross-validated penalties equal scikit-learn, in memory and in Dask."""

from __future__ import annotations

import os
import pickle
import signal
import warnings
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
from sklearn.exceptions import ConvergenceWarning

from daskml_dist import linear_model, model_selection
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import _least_squares
from tests.quick import in_turn
from tests.versions import OLD_SCIKIT_LEARN

# An old scikit-learn passes removed options to SciPy, and warns of its own parameters.
_THEIRS = ("ignore:scipy.optimize", "ignore:l1_ratios parameter")
_OTHERWISE = ("lasso, positive", "logistic, log loss", "logistic, ratios")
_TOO_OLD = pytest.mark.skipif(OLD_SCIKIT_LEARN, reason="an old scikit-learn does otherwise")
pytestmark = [pytest.mark.filterwarnings(text) for text in _THEIRS if OLD_SCIKIT_LEARN]

RNG = np.random.default_rng(0)
N = 300
X = RNG.normal(size=(N, 5)) + np.array([0, 3, 0, 0, 0])
NUMBERS = X @ [1.0, 0, -2, 0, 0.5] + RNG.normal(size=N) + 4
TARGETS = np.column_stack([NUMBERS, 3 * X[:, 1] - NUMBERS, RNG.normal(size=N)])
BINARY = np.where(NUMBERS > 4, "yes", "no")
THREE = np.digitize(NUMBERS, [2, 6])
WEIGHTS = RNG.random(N)
GROUPS = RNG.integers(0, 9, N)

ALPHAS = np.logspace(-3, 3, 7)
PENALTIES = {"Cs": 3, "tol": 1e-9, "max_iter": 1_000}
SHUFFLED = truth.KFold(3, shuffle=True, random_state=0)
DRAWN = truth.ShuffleSplit(3, random_state=0)
#: Class, parameters and targets; with weights if scikit-learn gives them the same meaning.
CASES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "lasso": ("LassoCV", {"tol": 1e-8}, NUMBERS),
    "lasso, positive": ("LassoCV", {"tol": 1e-8, "positive": True, "cv": SHUFFLED}, NUMBERS),
    "lasso, given": (
        "LassoCV", {"tol": 1e-8, "alphas": [0.01, 0.3, 0.1], "fit_intercept": False}, NUMBERS,
    ),
    "elastic net": (
        "ElasticNetCV",
        {"tol": 1e-8, "l1_ratio": [0.2, 0.9], "alphas": 20, "cv": truth.TimeSeriesSplit(3)},
        NUMBERS,
    ),
    "ridge, rows": ("RidgeCV", {"alphas": ALPHAS, "store_cv_results": True}, NUMBERS),
    "ridge, rows, scored": (
        "RidgeCV",
        {
            "alphas": ALPHAS, "scoring": "neg_mean_absolute_error", "fit_intercept": False,
            "store_cv_results": True,
        },
        TARGETS,
    ),
    "ridge, a penalty a target": ("RidgeCV", {"alphas": ALPHAS, "alpha_per_target": True}, TARGETS),
    "ridge, folds": ("RidgeCV", {"alphas": ALPHAS, "cv": 4}, TARGETS),
    "ridge, shuffled": (
        "RidgeCV",
        {"alphas": ALPHAS, "cv": SHUFFLED, "scoring": "neg_mean_absolute_error"}, NUMBERS,
    ),
    "ridge, other score": (
        "RidgeCV", {"alphas": [1, 100], "cv": DRAWN, "scoring": "explained_variance"}, NUMBERS,
    ),
    "ridge classes": ("RidgeClassifier", {"class_weight": {1: 3}}, THREE),
    "ridge labels": ("RidgeClassifier", {"alpha": 10.0, "fit_intercept": False}, BINARY),
    "ridge classes, rows": ("RidgeClassifierCV", {"alphas": ALPHAS}, THREE),
    "ridge classes, scored": (
        "RidgeClassifierCV", {"alphas": ALPHAS, "scoring": "accuracy"}, THREE,
    ),
    "ridge labels, folds": (
        "RidgeClassifierCV", {"alphas": ALPHAS, "cv": 4, "class_weight": {"yes": 2}}, BINARY,
    ),
    "ridge classes, folds": (
        "RidgeClassifierCV", {"alphas": [1, 100], "cv": 3, "scoring": "balanced_accuracy"}, THREE,
    ),
    "logistic": ("LogisticRegressionCV", {**PENALTIES, "class_weight": "balanced"}, BINARY),
    "logistic, log loss": (
        "LogisticRegressionCV",
        {
            **PENALTIES, "scoring": "neg_log_loss", "refit": False, "fit_intercept": False,
            "class_weight": {1: 2.0},
        },
        THREE,
    ),
    "logistic, other score": (
        "LogisticRegressionCV", {**PENALTIES, "scoring": "roc_auc", "cv": DRAWN}, BINARY,
    ),
    "logistic, ratios": (
        "LogisticRegressionCV",
        {**PENALTIES, "Cs": [0.1, 1.0], "cv": 2, "l1_ratios": (0.0, 0.5)}, THREE,
    ),
}  # fmt: skip
ATTRIBUTES = (
    "coef_", "intercept_", "alpha_", "alphas_", "best_score_", "cv_results_", "mse_path_",
    "l1_ratio_", "C_", "Cs_", "l1_ratios_", "scores_", "coefs_paths_", "classes_",
)  # fmt: skip


def _truth(name: str, params: dict[str, Any]) -> Any:
    """Return scikit-learn's estimator, with a solver that supports the penalty."""
    more = {}
    if "l1_ratios" in params:
        more = {"solver": "saga", "max_iter": 10_000, "random_state": 0}
    return getattr(truths, name)(**params | more)


def _assert_alike(ours: Any, theirs: Any, tol: float) -> None:
    for name in ATTRIBUTES:
        if not hasattr(theirs, name):
            assert not hasattr(ours, name)
            continue
        found, expected = getattr(ours, name), getattr(theirs, name)
        if name == "l1_ratios_" and expected[0] is None:
            continue
        if not isinstance(expected, dict):
            found, expected = {"": found}, {"": expected}
        assert list(found) == list(expected)
        for label, values in expected.items():
            values = np.asarray(values)
            if values.dtype.kind not in "fi":
                assert np.array_equal(found[label], values)
                continue
            if name == "intercept_" and not ours.fit_intercept:  # scikit-learn's is 0.0
                values = np.reshape(values, np.shape(found[label]))
            assert np.shape(found[label]) == values.shape, name
            np.testing.assert_allclose(found[label], values, rtol=tol, atol=tol, err_msg=name)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("case", "weighted"), in_turn(CASES, [False, True]))
def test_results_equal_scikit_learn(case: str, weighted: bool) -> None:
    if OLD_SCIKIT_LEARN and case in _OTHERWISE:
        pytest.skip("an old scikit-learn's is another")
    name, params, y = CASES[case]
    weight = {"sample_weight": WEIGHTS} if weighted else {}
    ours = getattr(linear_model, name)(**params).fit(X, y, **weight)
    theirs = _truth(name, params).fit(X, y, **weight)
    tol = 1e-5 if name.startswith("Logistic") else 1e-8
    _assert_alike(ours, theirs, tol)
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y), abs=tol)
    np.testing.assert_array_equal(ours.predict(X[:5]).shape, theirs.predict(X[:5]).shape)
    assert pickle.loads(pickle.dumps(ours)).score(X, y) == ours.score(X, y)


@pytest.mark.parametrize(
    ("case", "kind"),
    # Each case, and each kind twice; all other pairs are slow.
    [
        pytest.param(case, kind, marks=[] if kind in quick else pytest.mark.slow)
        for case, quick in (
            ("elastic net", "array frame"),
            ("ridge, rows, scored", "sparse"),
            ("ridge classes, folds", "array"),
            ("logistic", "frame sparse"),
        )
        for kind in ("array", "frame", "sparse")
        if not (kind == "frame" and CASES[case][2].ndim > 1)  # a frame's target is one column
    ],
)
def test_dask_collections_give_the_results_of_rows_in_memory(
    case: str, kind: str, client: Any
) -> None:
    name, params, y = CASES[case]
    rows, target = da.from_array(X, chunks=(130, 5)), da.from_array(y, chunks=(130, *y.shape[1:]))
    weight: Any = da.from_array(WEIGHTS, chunks=130)
    if kind == "frame":
        frame = pd.DataFrame(X, columns=list("abcde")).assign(y=y, w=WEIGHTS)
        rows, target, weight = dd.from_pandas(frame, npartitions=3), "y", "w"
    elif kind == "sparse":
        rows = rows.map_blocks(sparse.csr_array)
    estimator = getattr(linear_model, name)
    found = estimator(**params).fit(rows, target, sample_weight=weight)
    expected = estimator(**params).fit(X, y, sample_weight=WEIGHTS)
    _assert_alike(found, expected, 1e-7)
    if kind == "array":
        scored = found.score(rows, target, sample_weight=weight)
        assert scored == pytest.approx(expected.score(X, y, sample_weight=WEIGHTS), abs=1e-7)
        twin = found.to_sklearn()
        assert type(twin) is getattr(truths, name)
        np.testing.assert_array_equal(twin.predict(X), found.predict(rows).compute())


@_TOO_OLD
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("score", "y", "lazy"),
    [("d2_log_loss_score", THREE, False), ("neg_brier_score", BINARY, True)],
    ids=["three", "two"],
)
def test_test_rows_that_lack_a_class(score: str, y: Any, lazy: bool, client: Any) -> None:
    folds = np.arange(N) % 3
    folds[(folds == 2) & (y == y[-1])] = 0
    params = {"Cs": [0.1], "tol": 1e-7, "cv": truth.PredefinedSplit(folds), "scoring": score}
    theirs = truths.LogisticRegressionCV(**params).fit(X, y)
    rows, target = (da.from_array(X, chunks=(130, 5)), da.from_array(y, chunks=130))
    arguments = (rows, target) if lazy else (X, y)
    found = linear_model.LogisticRegressionCV(**params).fit(*arguments).scores_
    for label, scores in theirs.scores_.items():
        np.testing.assert_allclose(found[label], scores, rtol=1e-4)


@_TOO_OLD
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("score", "n_labels"), in_turn(["neg_brier_score", "neg_log_loss", "accuracy"], [2, 3])
)
def test_training_rows_that_lack_a_label(n_labels: int, score: str) -> None:
    """Each fold has one label, and fits train without it, so that hardly anything is learned."""
    y = np.repeat(["a", "b", "c"], 2)[: 2 * n_labels]
    rows = np.arange(2.0 * n_labels)[:, None]
    params = {"cv": truth.KFold(n_labels), "scoring": score, "Cs": np.logspace(-6, 6, 5)}
    ours = linear_model.LogisticRegressionCV(**params).fit(rows, y)
    theirs = truths.LogisticRegressionCV(**params).fit(rows, y)
    np.testing.assert_array_equal(ours.C_, theirs.C_)
    if score != "neg_log_loss":  # it depends on how close to zero the probability is
        for label, scores in theirs.scores_.items():
            np.testing.assert_allclose(ours.scores_[label][:, :3], scores[:, :3], atol=1e-3)


@pytest.mark.parametrize("unit", ["s", "ns"])
@pytest.mark.parametrize("name", ["LogisticRegressionCV", "RidgeClassifierCV"])
def test_lazy_labels_may_be_dates(name: str, unit: str) -> None:
    dates = np.array(["2024-01-01", "2024-01-02"], f"M8[{unit}]")[(NUMBERS > 4).astype(int)]
    rows, lazy = da.from_array(X, chunks=(130, 5)), da.from_array(dates, chunks=130)
    model = getattr(linear_model, name)(cv=3).fit(rows, lazy)
    assert model.classes_.dtype == dates.dtype
    assert model.score(rows, lazy) > 0.5


def test_float32_rows_give_the_same_penalty() -> None:
    for case in ("lasso", "ridge, rows", "ridge, shuffled", "ridge classes, folds"):
        name, params, y = CASES[case]
        ours = getattr(linear_model, name)(**params).fit(X.astype(np.float32), y)
        theirs = getattr(truths, name)(**params).fit(X, y)
        assert ours.coef_.dtype == np.float32
        assert ours.alpha_ == pytest.approx(theirs.alpha_, rel=1e-5)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-5, atol=1e-5)


@_TOO_OLD
def test_splitters_with_groups_and_scores_of_the_users_own(client: Any) -> None:
    rows, y, groups = (da.from_array(a, chunks=100) for a in (X, NUMBERS, GROUPS))
    ours = linear_model.LassoCV(cv=model_selection.GroupKFold(3), alphas=9)
    theirs = truths.LassoCV(cv=list(truth.GroupKFold(3).split(X, NUMBERS, GROUPS)), alphas=9)
    found = ours.fit(rows, y, groups=groups).mse_path_
    np.testing.assert_allclose(found, theirs.fit(X, NUMBERS).mse_path_)

    def least(estimator: Any, X: Any, y: Any) -> float:
        return -float(abs(estimator.predict(X) - y).max())

    for cv in (None, 3):
        ours = linear_model.RidgeCV(ALPHAS[::3], scoring=least, cv=cv).fit(rows, y)
        theirs = truths.RidgeCV(ALPHAS[::3], scoring=least, cv=cv).fit(X, NUMBERS)
        assert ours.alpha_ == theirs.alpha_
        assert ours.best_score_ == pytest.approx(theirs.best_score_)


def test_more_features_than_rows_and_columns_that_repeat() -> None:
    wide = RNG.normal(size=(30, 45))
    for rows, y in ((wide, wide[:, 0] + 1), (np.hstack([X, X[:, :2]]), NUMBERS)):
        for params in ({}, {"cv": 3}):
            ours = linear_model.RidgeCV(ALPHAS, **params).fit(rows, y)
            theirs = truths.RidgeCV(ALPHAS, **params).fit(rows, y)
            _assert_alike(ours, theirs, 1e-6)
        ours = linear_model.LassoCV(alphas=9, tol=1e-9, max_iter=10_000).fit(rows, y)
        theirs = truths.LassoCV(alphas=9, tol=1e-9, max_iter=10_000).fit(rows, y)
        assert ours.alpha_ == pytest.approx(theirs.alpha_)
        np.testing.assert_allclose(ours.mse_path_, theirs.mse_path_, rtol=1e-5)


@pytest.mark.parametrize("kind", ["array", "sparse"])
def test_features_too_many_for_a_gram_matrix(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_least_squares, "_FEW_FEATURES", 2)
    monkeypatch.setattr("daskml_dist.dask_internals.cluster.MEMORY_LIMIT", 1_000)
    rows = sparse.csr_array(X) if kind == "sparse" else X
    params = {"l1_ratio": [0.5, 0.9], "alphas": 4, "cv": 3, "tol": 1e-9, "max_iter": 2_000}
    for weight in (None, WEIGHTS):
        ours = linear_model.ElasticNetCV(**params).fit(rows, NUMBERS, sample_weight=weight)
        theirs = truths.ElasticNetCV(**params).fit(X, NUMBERS, sample_weight=weight)
        _assert_alike(ours, theirs, 1e-6)
        assert np.isnan(ours.dual_gap_)
    for name, params in (("LassoCV", {"positive": True}), ("RidgeCV", {"cv": 3})):
        with pytest.raises((InvalidDataError, InvalidParameterError), match="Gram matrix"):
            getattr(linear_model, name)(**params).fit(X, NUMBERS)


@pytest.mark.filterwarnings("ignore:R. :sklearn.exceptions.UndefinedMetricWarning")
@pytest.mark.filterwarnings("ignore:One or more of the test scores")
def test_folds_of_one_row_have_no_r2() -> None:
    params = {"alphas": ALPHAS, "cv": truth.LeaveOneOut()}
    ours = linear_model.RidgeCV(**params).fit(X[:7], NUMBERS[:7])
    theirs = truths.RidgeCV(**params).fit(X[:7], NUMBERS[:7])
    assert np.isnan(ours.best_score_)
    _assert_alike(ours, theirs, 1e-8)


def test_paths_that_do_not_converge_warn() -> None:
    with pytest.warns(ConvergenceWarning, match="failed to converge"):
        linear_model.LassoCV(max_iter=1, tol=1e-12).fit(X, NUMBERS)
    with pytest.warns(ConvergenceWarning, match="of the fits failed"):
        linear_model.LogisticRegressionCV(Cs=2, max_iter=1, cv=2).fit(X, BINARY)


@pytest.mark.parametrize(
    ("name", "params", "text"),
    [
        ("RidgeCV", {"alphas": [1, 0]}, r"alphas\[1\] == 0, must be > 0.0"),
        ("RidgeCV", {"alphas": [1, "2"]}, "must be an instance of float"),
        ("RidgeCV", {"cv": 3, "store_cv_results": True}, "are incompatible"),
        ("RidgeCV", {"cv": 3, "alpha_per_target": True}, "are incompatible"),
        ("RidgeCV", {"scoring": "good"}, "not the name of a score"),
        ("LassoCV", {"eps": 0}, "eps=0"),
        ("LassoCV", {"cv": 1}, "at least 2 folds"),
        ("ElasticNetCV", {"l1_ratio": [0, 0.5]}, "not supported for l1_ratio=0"),
        ("LogisticRegressionCV", {"l1_ratios": [2]}, "between 0 and 1"),
        ("LogisticRegressionCV", {"Cs": []}, "Cs is empty"),
        ("LogisticRegressionCV", {"dual": True}, "no solver here solves the dual"),
        ("LogisticRegressionCV", {"class_weight": {7: 1.0}}, "class labels as keys"),
    ],
)
def test_wrong_arguments_name_the_remedy(name: str, params: dict[str, Any], text: str) -> None:
    y = THREE if name.startswith("Logistic") else NUMBERS
    with pytest.raises(InvalidParameterError, match=text):
        getattr(linear_model, name)(**params).fit(X, y)


def test_targets_that_do_not_suit_are_refused() -> None:
    with pytest.raises(InvalidDataError, match="should be a 1d array"):
        linear_model.LassoCV().fit(X, TARGETS)
    with pytest.raises(InvalidDataError, match="one class"):
        linear_model.RidgeClassifierCV(cv=3).fit(X, np.ones(N, int))
    with pytest.raises(InvalidDataError, match="continuous"):
        linear_model.RidgeClassifierCV(cv=3).fit(da.from_array(X), da.from_array(THREE / 2))
    for rows, words in (
        (X, THREE.astype(str)),
        (da.from_array(X), da.from_array(THREE.astype(str))),
    ):
        with pytest.raises(InvalidDataError, match="y is not numeric"):
            linear_model.LassoCV(cv=3).fit(rows, words)


@pytest.mark.parametrize("name", ["LogisticRegressionCV", "RidgeClassifierCV"])
def test_weights_that_cannot_be_balanced_are_named(name: str) -> None:
    model = getattr(linear_model, name)(cv=3, class_weight="balanced")
    for weight, text in ((THREE > 0, "sum to zero"), (THREE - 9.0, "Negative"),
                         (np.where(THREE > 0, 1, np.nan), "contains NaN")):  # fmt: skip
        with pytest.raises(InvalidDataError, match=text):
            model.fit(X, THREE, weight.astype(float))


class Killer:
    """Callback that kills the worker of a trainer after some passes."""

    def __init__(self, client: Client, passes: int) -> None:
        self.client, self.left = client, passes

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.left -= 1
        if self.left == 0:
            (pid,) = self.client.run(os.getpid, workers=[run.trainer_addresses[1]]).values()
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "passes"), [("logistic", 5), ("lasso", 1), ("ridge, rows", 1), ("ridge, folds", 1)]
)
def test_a_killed_worker_changes_nothing(case: str, passes: int) -> None:
    name, params, y = CASES[case]
    expected = getattr(linear_model, name)(**params).fit(X, y)
    rows, target = da.from_array(X, chunks=(50, 5)), da.from_array(y, chunks=(50, *y.shape[1:]))
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(host="127.0.0.1", **options) as cluster, Client(cluster) as client:
        killer = Killer(client, passes)
        params = params | {"callbacks": [killer]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the warning about the loss
            struck = getattr(linear_model, name)(**params).fit(rows, target)
        assert killer.left <= 0
    _assert_alike(struck, expected, 1e-5)


def test_columns_far_from_zero_keep_their_precision() -> None:
    """The reference uses an orthogonal factorisation, whose error grows only with the condition."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(150, 4)) + np.array([0, 1e4, 0, -1e5])
    y, weight = rng.normal(size=150), rng.integers(1, 4, 150)
    ridge = linear_model.RidgeCV([0.1, 5.0], fit_intercept=False)
    ridge.fit(rows, y, sample_weight=weight)
    # A penalty equals four additional rows with targets of 0.
    root = np.sqrt(weight)
    more = np.vstack([rows * root[:, None], np.sqrt(ridge.alpha_) * np.eye(4)])
    exact = np.linalg.lstsq(more, np.append(y * root, np.zeros(4)), rcond=None)[0]
    np.testing.assert_allclose(ridge.coef_, exact, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:A column-vector y")
@pytest.mark.parametrize("name", ["ElasticNetCV", "LassoCV", "RidgeCV"])
def test_a_lazy_target_of_one_column_gives_the_shapes_of_scikit_learn(name: str) -> None:
    column = NUMBERS[:, None]
    expected = getattr(truths, name)().fit(X, column)
    rows, target = da.from_array(X, chunks=(130, 5)), da.from_array(column, chunks=(130, 1))
    found = getattr(linear_model, name)().fit(rows, target)
    assert found.coef_.shape == expected.coef_.shape
    assert np.shape(found.intercept_) == np.shape(expected.intercept_)
    assert found.predict(X).shape == expected.predict(X).shape
