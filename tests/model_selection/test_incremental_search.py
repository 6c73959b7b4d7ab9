"""Incremental search: fewer and fewer candidates, without those that no longer improve."""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy.stats import loguniform
from sklearn.base import clone
from sklearn.linear_model import SGDClassifier as TheirSGDClassifier
from sklearn.model_selection import KFold, ParameterSampler

from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.model_selection import HyperbandSearchCV, IncrementalSearchCV
from daskml_dist.model_selection._candidate_training import (
    PromotionLadder,
    has_plateaued,
    plan_decaying_bracket,
)

RNG = np.random.default_rng(0)
N = 400
X = RNG.normal(size=(N, 5))
LABELS = np.where(X[:, 0] - X[:, 1] + RNG.logistic(size=N) > 0, "yes", "no")
ALPHA = {"alpha": loguniform(1e-5, 1e1)}
OWN = SGDClassifier(tol=None, random_state=0)
THEIRS = TheirSGDClassifier(loss="log_loss", random_state=0)


def scores_of(search: Any) -> dict[int, dict[int, float]]:
    """Return the scores of each candidate by number of passes."""
    found: dict[int, dict[int, float]] = {}
    for record in search.history_:
        found.setdefault(record["candidate"], {})[record["passes"]] = record["mean_test_score"]
    return found


def directly(params: Any, passes: int) -> float:
    """Return scikit-learn's score after a number of passes, averaged over two splits."""
    found = []
    for train, test in KFold(2).split(X):
        model = clone(THEIRS).set_params(**params)
        for _ in range(passes):
            model.partial_fit(X[train], LABELS[train], classes=["no", "yes"])
        found.append(model.score(X[test], LABELS[test]))
    return float(np.mean(found))


@pytest.mark.parametrize("decay", [None, 1.0])
def test_the_number_of_candidates_follows_the_decay(decay: float | None) -> None:
    search = IncrementalSearchCV(
        OWN,
        ALPHA,
        n_initial_parameters=6,
        decay_rate=decay,
        max_iter=4,
        cv=KFold(2),
        random_state=0,
    ).fit(X, LABELS)
    assert search.stacks_ == 1
    scores = scores_of(search)
    for k in range(4):
        n = 6 if decay is None else ceil(6 / (1 + k))
        candidates = [i for i in scores if k + 1 in scores[i]]
        assert len(candidates) == n
        before = [i for i in scores if k in scores[i]]
        left_out = [scores[i][k] for i in before if i not in candidates]
        assert min([scores[i][k] for i in candidates if k], default=1) >= max(left_out, default=0)
    assert search.metadata_["partial_fit_calls"] == sum(map(max, scores.values()))


def test_candidates_equal_fits_of_as_many_passes() -> None:
    search = IncrementalSearchCV(
        THEIRS, ALPHA, n_initial_parameters=3, max_iter=5, fits_per_score=2, cv=KFold(2),
        random_state=0,
    ).fit(X, LABELS)  # fmt: skip
    drawn = list(ParameterSampler(ALPHA, 3, random_state=0))
    scores = scores_of(search)
    assert sorted(map(max, scores.values())) == [2, 4, 5]
    for i, by_passes in scores.items():
        for passes, score in by_passes.items():
            assert score == pytest.approx(directly(drawn[i], passes))


def test_candidates_that_do_not_improve_are_stopped() -> None:
    params: dict[str, Any] = {"n_initial_parameters": 4, "decay_rate": None, "max_iter": 12}
    search = IncrementalSearchCV(
        OWN, ALPHA, patience=3, tol=0.01, cv=KFold(2), random_state=0, **params
    ).fit(X, LABELS)
    whole = IncrementalSearchCV(OWN, ALPHA, cv=KFold(2), random_state=0, **params).fit(X, LABELS)
    found, full = scores_of(search), scores_of(whole)
    assert min(map(len, found.values())) < 12
    for i, scores in found.items():
        assert scores == {passes: full[i][passes] for passes in scores}
        ends = [
            n for n in range(4, 13)
            if max(full[i][m] for m in range(n - 2, n + 1)) <= full[i][n - 3] + 0.01
        ]  # fmt: skip
        assert max(scores) == (ends[0] if ends else 12)


def test_candidates_that_do_not_improve_leave_their_bracket() -> None:
    params: dict[str, Any] = {"max_iter": 9, "cv": KFold(2), "random_state": 0}
    search = HyperbandSearchCV(OWN, ALPHA, patience=2, tol=0.02, **params).fit(X, LABELS)
    whole = HyperbandSearchCV(OWN, ALPHA, **params).fit(X, LABELS)
    found, full = scores_of(search), scores_of(whole)
    assert search.metadata_["partial_fit_calls"] < whole.metadata_["partial_fit_calls"]
    stopped = 0
    for i, scores in found.items():
        # If some of a rung have stopped, others may be promoted further than otherwise.
        assert scores.items() >= {p: full[i][p] for p in full[i] if p in scores}.items()
        for before, after in pairwise(scores):
            assert not has_plateaued({p: scores[p] for p in scores if p <= before}, 2, 0.02), after
        stopped += has_plateaued(scores, 2, 0.02) and max(scores) < 9
    assert stopped


def test_other_models_are_trained_by_workers(client: Client) -> None:
    rows, labels = da.from_array(X, chunks=(200, 5)), da.from_array(LABELS, chunks=200)
    search = IncrementalSearchCV(
        THEIRS, ALPHA, n_initial_parameters=4, max_iter=3, patience=2, tol=0.0, cv=KFold(2),
        random_state=0,
    ).fit(rows, labels)  # fmt: skip
    drawn = list(ParameterSampler(ALPHA, 4, random_state=0))
    scores = scores_of(search)
    assert len(scores) == 4
    for i, by_passes in scores.items():
        for passes, score in by_passes.items():
            assert score == pytest.approx(directly(drawn[i], passes))
    assert search.best_score_ == max(search.cv_results_["mean_test_score"])


def test_decaying_rungs_promote_the_best_unstopped_candidates() -> None:
    bracket = plan_decaying_bracket(4, 3, 1.0, 1)
    assert bracket.rungs == ((4, 1), (2, 2), (2, 3))
    ladder = PromotionLadder(bracket, range(4), None, lambda scores: has_plateaued(scores, 1, 0.0))
    assert [ladder.find_next() for _ in range(5)] == [(0, 0), (1, 0), (2, 0), (3, 0), None]
    for i, score in enumerate([0.1, 0.4, 0.3, 0.2]):
        ladder.add_score(i, 0, score)
    assert [ladder.find_next() for _ in range(3)] == [(1, 1), (2, 1), None]
    ladder.add_score(1, 1, 0.4)
    ladder.add_score(2, 1, 0.5)
    assert [ladder.find_next() for _ in range(2)] == [(2, 2), None]


def test_plateaus() -> None:
    assert not has_plateaued({1: 0.5, 2: 0.5}, 2, 0.0)
    assert has_plateaued({1: 0.5, 2: 0.5, 3: 0.4}, 2, 0.0)
    assert not has_plateaued({1: 0.5, 2: 0.6, 3: 0.4}, 2, 0.0)
    assert has_plateaued({1: 0.5, 2: 0.6, 3: 0.4}, 2, 0.2)


@pytest.mark.parametrize(
    "options",
    [{"n_initial_parameters": 0}, {"patience": True, "max_iter": 0}, {"decay_rate": -1.0},
     {"patience": 1, "fits_per_score": 2}, {"patience": "long"}, {"tol": -1.0}],
    ids=str,
)  # fmt: skip
def test_bad_parameters(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError):
        IncrementalSearchCV(OWN, ALPHA, **options).fit(X, LABELS)
