"""Searches over pipelines equal scikit-learn, with transformers fitted once per split."""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from sklearn import model_selection as truth
from sklearn.linear_model import LogisticRegression as TheirLogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures as TheirPolynomialFeatures
from sklearn.preprocessing import StandardScaler as TheirStandardScaler

from daskml_dist.estimators.batched_fits import solver_rounds
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.model_selection import GridSearchCV, cross_validate
from daskml_dist.preprocessing import PolynomialFeatures, StandardScaler
from daskml_dist.training.callbacks import CallbackList
from tests.quick import quick

RNG = np.random.default_rng(0)
N = 300
X = RNG.normal(size=(N, 3)) * [1, 2, 9] + 3
# Folds differ, and so do the transformers fitted to them.
Y = np.where(X[:, 0] + RNG.normal(size=N) + np.arange(N) / N > 3, "yes", "no")
C, SCORING = {"logisticregression__C": [0.01, 1.0]}, ["accuracy", "neg_log_loss", "roc_auc"]
GRID = {**C, "polynomialfeatures__degree": [1, 2]}
OPTIONS: dict[str, Any] = {"cv": 2, "scoring": SCORING, "refit": "accuracy"}


def _ours() -> Any:
    last = LogisticRegression(tol=1e-8, max_iter=1_000)
    return make_pipeline(StandardScaler(), PolynomialFeatures(include_bias=False), last)


def _theirs(grid: dict[str, Any]) -> Any:
    last = TheirLogisticRegression(tol=1e-8, max_iter=1_000)
    pipeline = make_pipeline(
        TheirStandardScaler(), TheirPolynomialFeatures(include_bias=False), last
    )
    return truth.GridSearchCV(pipeline, grid, **OPTIONS).fit(X, Y)


@pytest.mark.parametrize("kind", quick(["memory", "array", "frame"], "memory", "frame"))
def test_results_equal_scikit_learn(kind: str, client: Any) -> None:
    rows: Any = {
        "memory": lambda: (X, Y),
        "array": lambda: (da.from_array(X, chunks=(130, 3)), da.from_array(Y, chunks=130)),
        "frame": lambda: (
            dd.from_pandas(pd.DataFrame(X, columns=list("abc")), npartitions=3),
            dd.from_pandas(pd.Series(Y, name="y"), npartitions=3),
        ),
    }[kind]()
    grid = GRID if kind == "memory" else C
    search, theirs = GridSearchCV(_ours(), grid, **OPTIONS).fit(*rows), _theirs(grid)
    assert search.stacks_ == 2 * len(grid)  # one for each degree and split
    for name in SCORING:
        for split in range(2):
            key = f"split{split}_test_{name}"
            np.testing.assert_allclose(
                search.cv_results_[key], theirs.cv_results_[key], atol=1e-6, err_msg=key
            )
    assert search.best_params_ == theirs.best_params_
    found = search.predict(rows[0])
    assert (np.asarray(found) == theirs.predict(X)).all()


def test_a_scorer_receives_the_whole_pipeline() -> None:
    def degree(estimator: Any, X: Any, y: Any) -> float:
        return float(estimator["polynomialfeatures"].degree)

    search = GridSearchCV(_ours(), GRID, cv=2, scoring={"own": degree}, refit=False).fit(X, Y)
    assert search.cv_results_["mean_test_own"].tolist() == [1, 2, 1, 2]
    assert not hasattr(search, "stacks_")


def test_invalid_parameters_raise() -> None:
    search = GridSearchCV(_ours(), {"logisticregression__C": [-1.0]}, cv=2, error_score="raise")
    with pytest.raises(ValueError, match="C=-1"):
        search.fit(X, Y)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_changes_nothing(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies during a batched fit on transformed rows."""
    rows, labels = da.from_array(X, chunks=(100, 3)), da.from_array(Y, chunks=100)
    theirs = _theirs(GRID)
    passes: list[Any] = []
    killed: list[int] = []
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(host="127.0.0.1", **options) as cluster, Client(cluster) as client:

        class Killer:
            def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
                passes.append(record)
                if len(run.trainer_addresses) > rank and len(passes) > 12 and not killed:
                    address = run.trainer_addresses[rank]
                    killed.extend(client.run(os.getpid, workers=[address]).values())
                    os.kill(killed[0], signal.SIGKILL)

        killer = Killer()
        monkeypatch.setattr(
            solver_rounds, "CallbackList", lambda callbacks=(): CallbackList([*callbacks, killer])
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the warning about the loss
            struck = GridSearchCV(_ours(), GRID, **OPTIONS).fit(rows, labels)
    assert killed
    assert struck.stacks_ == 4
    for name in SCORING:
        for split in range(2):
            key = f"split{split}_test_{name}"
            np.testing.assert_allclose(
                struck.cv_results_[key], theirs.cv_results_[key], atol=1e-6, err_msg=key
            )
    assert struck.best_params_ == theirs.best_params_
    best = struck.best_estimator_[-1], theirs.best_estimator_[-1]
    np.testing.assert_allclose(best[0].coef_, best[1].coef_, atol=1e-4)


def test_cross_validation_fits_each_split_once(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, labels = da.from_array(X, chunks=(130, 3)), da.from_array(Y, chunks=130)
    fits: list[int] = []
    found_by = solver_rounds.CandidateFits.compute_fits

    def counted(self: solver_rounds.CandidateFits) -> Any:
        found = found_by(self)
        fits.append(len(found))
        return found

    monkeypatch.setattr(solver_rounds.CandidateFits, "compute_fits", counted)
    last = LogisticRegression(tol=1e-8, max_iter=1_000)
    truly = TheirLogisticRegression(tol=1e-8, max_iter=1_000)
    options: dict[str, Any] = {"cv": 3, "scoring": SCORING, "return_train_score": True}
    for ours, theirs, expected_fits in (
        (last, truly, [3]),
        (
            make_pipeline(StandardScaler(), last),
            make_pipeline(TheirStandardScaler(), truly),
            [1] * 3,
        ),
    ):
        fits.clear()
        found = cross_validate(ours, rows, labels, **options)
        expected = truth.cross_validate(theirs, X, Y, **options)
        assert found.keys() == expected.keys()
        for name in expected.keys() - {"fit_time", "score_time"}:
            np.testing.assert_allclose(found[name], expected[name], atol=1e-6)
        assert fits == expected_fits


def test_reads_of_the_source_do_not_depend_on_the_splits(tmp_path: Any, client: Client) -> None:
    def read(part: int) -> Any:
        with (tmp_path / f"{part}-{os.urandom(8).hex()}").open("w"):
            pass  # one file for each read
        at = slice(part * 100, part * 100 + 100)
        return pd.DataFrame(X[at], columns=list("abc")).assign(y=Y[at])

    meta = pd.DataFrame(X[:0], columns=list("abc")).assign(y=Y[:0])
    frame = dd.from_map(read, range(3), meta=meta)
    readings, found = [], {}
    for cv in (2, 3):
        before = len(list(tmp_path.iterdir()))
        search = GridSearchCV(_ours(), C, cv=cv)
        found[cv] = search.fit(frame[list("abc")], frame["y"]).cv_results_["mean_test_score"]
        readings.append(len(list(tmp_path.iterdir())) - before)
    # Labels, one block to estimate the size, and all blocks once.
    assert readings == [3 + 1 + 3] * 2
    expected = truth.GridSearchCV(_theirs(C).estimator, C, cv=3).fit(X, Y)
    np.testing.assert_allclose(found[3], expected.cv_results_["mean_test_score"])
