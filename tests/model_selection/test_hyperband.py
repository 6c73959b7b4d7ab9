"""Hyperband: brackets, continued training, and promotion on a cluster's workers."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from scipy.stats import loguniform
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import SGDClassifier as TheirSGDClassifier
from sklearn.model_selection import KFold, RandomizedSearchCV
from sklearn.naive_bayes import BernoulliNB as TheirBernoulliNB
from sklearn.naive_bayes import GaussianNB as TheirGaussianNB

from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.batched_fits import gradient_steps
from daskml_dist.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from daskml_dist.model_selection import HyperbandSearchCV, IncrementalSearchCV
from daskml_dist.model_selection._candidate_training import Bracket, PromotionLadder, plan_brackets
from daskml_dist.naive_bayes import GaussianNB, MultinomialNB
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.training.job import FitJob

RNG = np.random.default_rng(0)
N = 400
X = RNG.normal(size=(N, 5))
LABELS = np.where(X[:, 0] - X[:, 1] + RNG.logistic(size=N) > 0, "yes", "no")
NUMBERS = X @ RNG.normal(size=5) + RNG.normal(size=N)
ALPHA = {"alpha": loguniform(1e-5, 1e1)}
OWN = SGDClassifier(tol=None, random_state=0)
THEIRS = TheirSGDClassifier(loss="log_loss", random_state=0)
#: Models with ``partial_fit`` that converge in one pass.
COUNTERS = [GaussianNB(), MultinomialNB(), TheirGaussianNB(), TheirBernoulliNB()]


def test_brackets_equal_those_of_the_paper() -> None:
    # Table 1 of Li et al. (2018): R = 81, eta = 3.
    assert [bracket.rungs for bracket in plan_brackets(81, 3)] == [
        ((81, 1), (27, 3), (9, 9), (3, 27), (1, 81)),
        ((34, 3), (11, 9), (3, 27), (1, 81)),
        ((15, 9), (5, 27), (1, 81)),
        ((8, 27), (2, 81)),
        ((5, 81),),
    ]
    assert plan_brackets(1, 3) == [Bracket(0, ((1, 1),))]
    for max_iter in (2, 10, 20, 100):
        for bracket in plan_brackets(max_iter, 2.5):
            assert bracket.rungs[-1][1] == max_iter
            for one, other in itertools.pairwise(bracket.rungs):
                assert one[0] >= other[0]
                assert one[1] < other[1]


def _check_rungs(search: HyperbandSearchCV, exact: bool = True) -> None:
    """Check that each rung has the best candidates of the previous one."""
    table = search.cv_results_
    for facts in search.metadata_["brackets"]:
        rungs = [
            {
                record["candidate"]: record["mean_test_score"]
                for record in search.history_
                if record["bracket"] == facts["bracket"] and record["passes"] == passes
            }
            for _, passes in facts["rungs"]
        ]
        assert [len(rung) for rung in rungs] == [n for n, _ in facts["rungs"]]
        for before, after in itertools.pairwise(rungs):
            best = sorted(before, key=lambda i: -before[i])[: len(after)]
            worst = min(before[i] for i in best)
            assert set(after) <= set(before)
            assert not exact or all(before[i] >= worst for i in after)
        for rung, (_, passes) in zip(rungs, facts["rungs"], strict=True):
            for i, score in rung.items():
                if table["partial_fit_calls"][i] == passes:
                    assert table["mean_test_score"][i] == pytest.approx(score)
    assert search.best_score_ == pytest.approx(table["mean_test_score"].max())


def test_resumed_batched_fits_equal_separate_fits() -> None:
    search = HyperbandSearchCV(OWN, ALPHA, max_iter=9, cv=KFold(3), random_state=0)
    assert search.metadata["n_models"] == 17
    search.fit(X, LABELS)
    assert search.stacks_ == 1
    assert search.metadata_ == search.metadata
    _check_rungs(search)
    table = search.cv_results_
    for i in (0, 8, 16, search.best_index_):
        single_fit = SGDClassifier(
            tol=None, random_state=0, max_iter=int(table["partial_fit_calls"][i]),
            **table["params"][i],
        )  # fmt: skip
        masks = [np.isin(np.arange(N), train).astype(float) for train, _ in KFold(3).split(X)]
        for split, mask in enumerate(masks):
            single_fit.fit(X, LABELS, sample_weight=mask)
            expected = single_fit.score(X[mask == 0], LABELS[mask == 0])
            assert table[f"split{split}_test_score"][i] == pytest.approx(expected)
    assert search.best_estimator_.n_iter_ == table["partial_fit_calls"][search.best_index_]
    assert search.score(X, LABELS) > 0.7


@pytest.mark.parametrize("scoring", ["roc_auc", "neg_log_loss"])
def test_scores_and_resource_counts(scoring: str) -> None:
    search = HyperbandSearchCV(
        OWN, ALPHA, max_iter=3, cv=2, random_state=0, scoring=scoring, return_train_score=True
    ).fit(X, LABELS)
    _check_rungs(search)
    assert np.isfinite(search.cv_results_["mean_train_score"]).all()
    regressor = SGDRegressor(tol=None, random_state=0)
    found = HyperbandSearchCV(regressor, ALPHA, max_iter=3, cv=2, random_state=0).fit(X, NUMBERS)
    assert found.stacks_ == 1
    assert found.best_score_ > 0.3


def test_other_candidates_continue_by_partial_fit() -> None:
    calls: list[int] = []

    class Counted(TheirSGDClassifier):
        def partial_fit(self, *args: Any, **named: Any) -> Any:
            calls.append(1)
            return super().partial_fit(*args, **named)

    search = HyperbandSearchCV(
        Counted(loss="log_loss", random_state=0), ALPHA, max_iter=3, cv=2, random_state=0
    ).fit(X, LABELS)
    assert not hasattr(search, "stacks_")
    _check_rungs(search)
    passes = search.metadata_["partial_fit_calls"]
    assert passes == search.metadata["partial_fit_calls"]
    refit = search.cv_results_["partial_fit_calls"][search.best_index_]
    assert len(calls) == 2 * passes + refit


@pytest.mark.parametrize("search", [HyperbandSearchCV, IncrementalSearchCV])
def test_other_candidates_on_dask_collections_without_a_client(search: Any) -> None:
    options = {"max_iter": 3, "cv": KFold(2), "random_state": 0}
    in_memory = search(THEIRS, ALPHA, **options).fit(X, LABELS)
    lazy = search(THEIRS, ALPHA, **options).fit(_delayed_blocks(X), da.from_array(LABELS, 200))
    np.testing.assert_array_equal(
        lazy.cv_results_["mean_test_score"], in_memory.cv_results_["mean_test_score"]
    )


def _delayed_blocks(values: Any) -> da.Array:
    """Return rows whose blocks are chains of tasks, which Dask fuses under other names."""
    halves = [(values[at], dask.delayed(np.array)(values[at])) for at in np.split(np.arange(N), 2)]
    return da.concatenate([da.from_delayed(d, v.shape, dtype=v.dtype) for v, d in halves])


def test_networks_on_dask_collections(client: Any) -> None:
    """Nothing is left on the scheduler, which would keep tasks of a key with two graphs."""
    rows, labels = _delayed_blocks(X), _delayed_blocks(LABELS)
    network = MLPClassifier(hidden_layer_sizes=(4,), random_state=0)
    values = {"alpha": [1e-4, 1e-2]}
    half = [(np.arange(N // 2), np.arange(N // 2, N))]
    search = HyperbandSearchCV(network, values, max_iter=2, factor=2, cv=half, random_state=0)
    search.fit(rows, labels)
    assert search.metadata_["n_models"] == len(search.cv_results_["params"]) == 4
    _check_rungs(search)
    assert search.predict(rows).shape == (N,)


def test_batched_fits_on_dask_collections(client: Any) -> None:
    rows, labels = da.from_array(X, chunks=(100, 5)), da.from_array(LABELS, chunks=100)
    search = HyperbandSearchCV(OWN, ALPHA, max_iter=3, cv=KFold(2), random_state=0)
    search.fit(rows, labels)
    assert search.stacks_ == 1
    _check_rungs(search)
    twin = search.to_sklearn()
    assert type(twin) is RandomizedSearchCV
    np.testing.assert_array_equal(twin.predict(X), search.predict(X))


def test_workers_promote_candidates_among_the_best(client: Any) -> None:
    rows, labels = da.from_array(X, chunks=(100, 5)), da.from_array(LABELS, chunks=100)
    search = HyperbandSearchCV(THEIRS, ALPHA, max_iter=9, cv=KFold(2), random_state=0)
    search.fit(rows, labels)
    assert not hasattr(search, "stacks_")
    _check_rungs(search, exact=False)
    # Rows of a fold are in the order of blocks, so models equal those of rows in memory.
    i = search.best_index_
    single_fit = TheirSGDClassifier(loss="log_loss", random_state=0, **search.best_params_)
    scores = []
    for train, test in KFold(2).split(X):
        for _ in range(search.cv_results_["partial_fit_calls"][i]):
            single_fit.partial_fit(X[train], LABELS[train], classes=np.unique(LABELS))
        scores.append(single_fit.score(X[test], LABELS[test]))
        single_fit = TheirSGDClassifier(loss="log_loss", random_state=0, **search.best_params_)
    assert search.best_score_ == pytest.approx(np.mean(scores))
    assert search.best_estimator_.score(X, LABELS) > 0.6


def test_a_ladder_promotes_without_waiting() -> None:
    ladder = PromotionLadder(Bracket(1, ((4, 1), (2, 2))), range(4), 2)
    assert [ladder.find_next() for _ in range(3)] == [(0, 0), (1, 0), (2, 0)]
    ladder.add_score(0, 0, 0.1)
    assert ladder.find_next() == (3, 0)
    assert ladder.find_next() is None
    ladder.add_score(2, 0, 0.5)
    assert ladder.find_next() == (2, 1)
    ladder.add_score(1, 0, float("nan"))
    assert ladder.find_next() is None
    ladder.add_score(3, 0, 0.2)
    assert ladder.find_next() == (3, 1)
    assert ladder.find_next() is None


def test_a_failed_candidate_is_not_promoted() -> None:
    values = {"alpha": [1e-3, -1.0]}
    with (
        pytest.warns(FitFailedWarning, match="alpha"),
        pytest.warns(UserWarning, match="non-finite"),
    ):
        search = HyperbandSearchCV(THEIRS, values, max_iter=4, factor=2, cv=2, random_state=0).fit(
            X, LABELS
        )
    table = search.cv_results_
    bad = np.array([params["alpha"] < 0 for params in table["params"]])
    assert bad.any()
    np.testing.assert_array_equal(np.isnan(table["mean_test_score"]), bad)
    assert search.best_params_["alpha"] > 0


@pytest.mark.parametrize(
    ("estimator", "options", "message"),
    [
        (LogisticRegression(), {}, "no partial_fit"),
        (OWN, {"scoring": ["accuracy"]}, "one score"),
        (OWN, {"max_iter": 0}, "max_iter"),
        (OWN, {"factor": 1}, "factor"),
        (OWN, {"param_distributions": {"max_iter": [1]}}, "Leave it out"),
        *[(model, {}, "would count the same rows again.*RandomizedSearchCV") for model in COUNTERS],
    ],
)
def test_invalid_arguments_are_refused(
    estimator: Any, options: dict[str, Any], message: str
) -> None:
    params = {"param_distributions": {"C": [1]} if not hasattr(estimator, "alpha") else ALPHA}
    search = HyperbandSearchCV(estimator, **{**params, **options})
    with pytest.raises(InvalidParameterError, match=message):
        search.fit(X, LABELS)


@pytest.mark.slow
def test_killed_workers_do_not_change_models() -> None:
    rows, labels = da.from_array(X, chunks=(100, 5)), da.from_array(LABELS, chunks=100)
    with (
        LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        begun = threading.Event()

        class Slow(TheirSGDClassifier):
            def partial_fit(self, *args: Any, **named: Any) -> Any:
                from distributed import get_worker

                get_worker().log_event("passes", 1)
                return super().partial_fit(*args, **named)

        client.subscribe_topic("passes", lambda event: begun.set())

        def kill() -> None:
            assert begun.wait(200)
            os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        search = HyperbandSearchCV(
            Slow(loss="log_loss", random_state=0), ALPHA, max_iter=9, cv=KFold(2), random_state=0,
            refit=False,
        ).fit(rows, labels)  # fmt: skip
        killer.join()
    table = search.cv_results_
    assert search.metadata_["n_models"] == 17
    one = int(np.argmax(table["partial_fit_calls"] == 1))
    scores = []
    for train, test in KFold(2).split(X):
        single_fit = TheirSGDClassifier(loss="log_loss", random_state=0, **table["params"][one])
        single_fit.partial_fit(X[train], LABELS[train], classes=np.unique(LABELS))
        scores.append(single_fit.score(X[test], LABELS[test]))
    assert table["mean_test_score"][one] == pytest.approx(np.mean(scores))


def test_rows_are_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []

    class CountedJob(FitJob):
        def __enter__(self) -> CountedJob:
            copies.append(1)
            return super().__enter__()

    monkeypatch.setattr(gradient_steps, "FitJob", CountedJob)
    search = HyperbandSearchCV(OWN, ALPHA, max_iter=3, cv=2, random_state=0, refit=False)
    assert search.fit(X, LABELS).stacks_ == len(copies) == 1
