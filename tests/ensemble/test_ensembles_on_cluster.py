"""Ensembles of any members do not depend on the number of workers, nor on a killed one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, get_worker

from daskml_dist import Run
from daskml_dist.calibration import CalibratedClassifierCV
from daskml_dist.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from daskml_dist.linear_model import LogisticRegression, RidgeClassifier
from daskml_dist.tree import DecisionTreeClassifier

RNG = np.random.default_rng(4)
X = RNG.normal(size=(1200, 5))
Y = np.digitize(X[:, 0] + X[:, 1] * X[:, 2] + RNG.normal(size=1200), [-0.5, 0.5])


def logistic() -> Any:
    return LogisticRegression(tol=1e-8, max_iter=1000, run=Run(n_lanes=3))


def tree() -> Any:
    return DecisionTreeClassifier(max_depth=3, random_state=0, run=Run(n_lanes=3))


MODELS: dict[str, Callable[[], Any]] = {
    "bagging": lambda: BaggingClassifier(tree(), n_estimators=4, random_state=0),
    "bagged lines": lambda: BaggingClassifier(logistic(), n_estimators=4, random_state=0),
    "calibration": lambda: CalibratedClassifierCV(logistic(), cv=3),
    "stacking": lambda: StackingClassifier(
        [("a", logistic()), ("b", tree()), ("c", RidgeClassifier(run=Run(n_lanes=3)))],
        logistic(), cv=3,
    ),
    "voting": lambda: VotingClassifier([("a", logistic()), ("b", tree())], voting="soft"),
}  # fmt: skip


def rows(source: Callable[[Any], Any] | None = None) -> tuple[Any, Any]:
    lazy = da.from_array(X, chunks=(100, 5))
    lazy = lazy if source is None else lazy.map_blocks(source, meta=np.empty((0, 5)))
    return lazy, da.from_array(Y, chunks=100)


@pytest.mark.slow
@pytest.mark.parametrize("n_workers", [1, 2, 8])
def test_bags_of_any_number_of_workers(n_workers: int) -> None:
    found = []
    for n in (1, n_workers):
        with (
            LocalCluster(
                n_workers=n, threads_per_worker=1, processes=True, host="127.0.0.1",
                dashboard_address=":0",
            ) as cluster,
            Client(cluster),
        ):  # fmt: skip
            model = MODELS["bagging"]().fit(*rows())
            drawn = [np.asarray(one.compute()) for one in model.estimators_samples_]
        found.append((model.predict_proba(X), drawn))
    (truth, samples), (proba, drawn) = found
    assert proba.tobytes() == truth.tobytes()
    assert all(map(np.array_equal, drawn, samples))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_killed_worker_changes_nothing(name: str, crew: LocalCluster, tmp_path: Path) -> None:
    reads, kills = tmp_path / "reads", tmp_path / "kills"
    reads.mkdir()
    kills.mkdir()

    def source_that_kills(at: int | None) -> Callable[[Any], Any]:
        def source(block: Any) -> Any:
            if len(block):
                get_worker()
                (reads / os.urandom(8).hex()).touch()
                if at is not None and len(list(reads.iterdir())) >= at:
                    try:
                        (kills / "one").touch(exist_ok=False)
                    except FileExistsError:
                        return block
                    os.kill(os.getpid(), signal.SIGKILL)
            return block

        return source

    with Client(crew) as client:
        client.wait_for_workers(3)
        undisturbed = MODELS[name]().fit(*rows(source_that_kills(None)))
        n_reads = len(list(reads.iterdir()))
        for one in reads.iterdir():
            one.unlink()
        client.wait_for_workers(3)
        struck = MODELS[name]().fit(*rows(source_that_kills(n_reads // 2)))
    assert list(kills.iterdir())
    np.testing.assert_allclose(struck.predict_proba(X), undisturbed.predict_proba(X), atol=1e-6)
