"""Ranking scores of batched models are computed together and exactly."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy.special import expit
from sklearn.metrics import (
    average_precision_score,
    get_scorer,
    make_scorer,
    roc_auc_score,
    top_k_accuracy_score,
)
from sklearn.model_selection import KFold, ShuffleSplit

from daskml_dist.linear_model import LogisticRegression, LogisticRegressionCV, SGDClassifier
from daskml_dist.model_selection import GridSearchCV, _batched_fits
from daskml_dist.solvers import batched_scores

RNG = np.random.default_rng(0)
N = 400
#: Many rows have bitwise equal scores in any order of sums: only one summand is not zero.
X = RNG.integers(-4, 5, (N, 1)) * np.eye(4)[RNG.integers(0, 4, N)]
Y = (RNG.random(N) < expit(X[:, 0] - X[:, 1])).astype(int)
WEIGHTS = RNG.integers(0, 4, N) / 3
TRUTHS = {"roc_auc": roc_auc_score, "average_precision": average_precision_score}
CV = ShuffleSplit(2, test_size=0.4, random_state=0)
SGD = SGDClassifier(max_iter=2, tol=None, random_state=0)


@pytest.mark.parametrize("kind", ["ties", "few", "constant", "none tied"])
def test_scores_of_columns_equal_scikit_learn(kind: str) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        n = 3 if kind == "few" else 50
        y, weight = np.append([0, 1], rng.integers(0, 2, n)), rng.random(n + 2) ** 4
        scores = {"constant": np.zeros(n + 2), "none tied": rng.normal(size=n + 2)}.get(
            kind, rng.integers(0, 5, n + 2) / 3
        )
        found = batched_scores.ranking_scores(scores, np.where(y == 1, weight, -weight))
        truth = [metric(y, scores, sample_weight=weight) for metric in TRUTHS.values()]
        np.testing.assert_allclose(found, truth, rtol=1e-12)


def test_undefined_ranking_scores_are_nan() -> None:
    for scores, signed in (
        ([], []), ([1.0, 2.0], [1.0, 1.0]), ([1.0, 2.0], [-1.0, -1.0]),
        ([np.nan, 2.0], [-1.0, 1.0]),
    ):  # fmt: skip
        assert np.isnan(batched_scores.ranking_scores(np.array(scores), np.array(signed))).all()


class _Kept(GridSearchCV):
    """Search that keeps its fits."""

    def _fit_candidates(self, splits: Any, candidates: Any, scorers: Any) -> Any:
        self.fits = super()._fit_candidates(splits, candidates, scorers)
        return self.fits


def _check(
    estimator: Any, name: str, rows: Any, y: Any, weight: Any, cv: Any = CV
) -> None:  # fmt: skip
    search = _Kept(
        estimator, {name: [1e-3, 1.0, 0.1]}, cv=cv, refit=False, scoring=list(TRUTHS),
        return_train_score=True,
    ).fit(rows, y, sample_weight=weight)  # fmt: skip
    for row in search.fits:
        for fit, sides in zip(row, cv.split(X), strict=True):
            for side, found in zip(sides, (fit.train, fit.test), strict=True):
                scores = fit.estimator.decision_function(X[side])
                for metric, truth in TRUTHS.items():
                    sample_weight = WEIGHTS[side] if weight is not None else None
                    expected = truth(Y[side], scores, sample_weight=sample_weight)
                    assert found[metric] == pytest.approx(expected, rel=1e-12)


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a column is scored in a separate pass over the rows."""

    def look(*args: Any, **named: Any) -> Any:
        raise AssertionError("A column was scored alone.")

    monkeypatch.setattr(_batched_fits, "score_sides", look)


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("weight", [None, WEIGHTS], ids=["", "weights"])
def test_columns_are_ranked_together(monkeypatch: pytest.MonkeyPatch, weight: Any) -> None:
    _check(LogisticRegression(), "C", X, Y, weight)
    # As many passes as pairs of columns.
    monkeypatch.setattr(batched_scores, "_MAX_SCORES_PER_PASS", 4 * N)
    _check(SGD, "alpha", X, Y, weight)


@pytest.mark.usefixtures("together")
def test_columns_are_ranked_on_workers(client: Client) -> None:
    rows, y, weight = (da.from_array(a, chunks=(70, *a.shape[1:])) for a in (X, Y, WEIGHTS))
    _check(SGD, "alpha", rows, y, weight, KFold(2))


def test_too_long_columns_are_scored_singly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched_scores, "_MAX_SCORES_PER_PASS", 10)
    _check(SGD, "alpha", X, Y, None)


def test_the_metrics_default_positive_label_is_used() -> None:
    """The metric calls 1 positive, though 2 is larger."""
    found = GridSearchCV(
        SGD, {"alpha": [0.1]}, cv=CV, refit=False, scoring="average_precision"
    ).fit(X, 2 - Y)  # fmt: skip
    single_fit = SGDClassifier(alpha=0.1, max_iter=2, tol=None, random_state=0)
    train, test = next(CV.split(X))
    single_fit.fit(X[train], 2 - Y[train])
    expected = average_precision_score(Y[test], -single_fit.decision_function(X[test]))
    assert found.cv_results_["split0_test_score"][0] == pytest.approx(expected, abs=0.02)


def test_paths_are_ranked_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def scores(name: str) -> Any:
        model = LogisticRegressionCV(
            Cs=3, cv=CV, scoring=name, refit=False, use_legacy_attributes=False
        )
        return model.fit(X, Y).scores_

    together = [scores(name) for name in TRUTHS]
    monkeypatch.setattr(batched_scores, "_MAX_SCORES_PER_PASS", 10)
    alone = [scores(name) for name in TRUTHS]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


SEVERAL = np.array(["low", "mid", "high", "top"])[
    np.clip(X[:, 0] + RNG.integers(-1, 2, N), -1, 2).astype(int) + 1
]
OF_CLASSES = [
    "roc_auc_ovr", "roc_auc_ovr_weighted", "roc_auc_ovo", "roc_auc_ovo_weighted", "top_k_accuracy",
]  # fmt: skip


@pytest.mark.parametrize("weight", [None, WEIGHTS], ids=["", "weights"])
@pytest.mark.parametrize("model", [LogisticRegression(), SGD], ids=["rounds", "steps"])
def test_several_classes_are_ranked_together(
    request: pytest.FixtureRequest, model: Any, weight: Any
) -> None:
    names = OF_CLASSES if weight is None else [n for n in OF_CLASSES if "ovo" not in n]
    third = make_scorer(
        top_k_accuracy_score, response_method=("decision_function", "predict_proba"), k=3
    )
    scoring = {name: name for name in names} | {"third": third}
    if weight is not None:
        scoring["third"] = "accuracy"  # a scorer in memory would need a metadata request
    request.getfixturevalue("together")
    name = "C" if isinstance(model, LogisticRegression) else "alpha"
    search = _Kept(model, {name: [1e-2, 1.0]}, cv=CV, refit=False, scoring=scoring)
    search.fit(X, SEVERAL, sample_weight=weight)
    for row in search.fits:
        for fit, (_, test) in zip(row, CV.split(X), strict=True):
            for metric, scorer_name in scoring.items():
                truth = get_scorer(scorer_name)
                more = {} if weight is None else {"sample_weight": WEIGHTS[test]}
                expected = truth(fit.estimator, X[test], SEVERAL[test], **more)
                assert fit.test[metric] == pytest.approx(expected, rel=1e-12)


def test_several_classes_are_ranked_on_workers_and_in_paths(client: Client) -> None:
    rows, y = (da.from_array(a, chunks=(70, *a.shape[1:])) for a in (X, SEVERAL))
    scores = [
        LogisticRegressionCV(
            Cs=2, cv=KFold(3), scoring="roc_auc_ovr", refit=False, use_legacy_attributes=False
        ).fit(*data).scores_
        for data in ((rows, y), (X, SEVERAL))
    ]  # fmt: skip
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-6)
