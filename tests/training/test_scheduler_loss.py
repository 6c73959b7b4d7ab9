"""Loss of the scheduler: the fit fails promptly and is resumed on another cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist import Run
from daskml_dist.errors import SchedulerLostError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.training.checkpoint import Checkpoint

pytestmark = pytest.mark.slow


def _start(part: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"distributed.cli.dask_{part}", "--host", "127.0.0.1"]
    return subprocess.Popen([*command, *arguments, "--no-dashboard"], stderr=subprocess.DEVNULL)


@contextmanager
def _cluster(folder: Path) -> Iterator[tuple[Client, subprocess.Popen[bytes]]]:
    """Start a scheduler and two workers as separate processes, as on an HPC site."""
    file = ["--scheduler-file", str(folder / "scheduler.json")]
    scheduler = _start("scheduler", *file, "--port", "0")
    worker = [*file, "--nthreads", "1", "--death-timeout", "60"]
    processes = [scheduler, *(_start("worker", *worker) for _ in range(2))]
    client = Client(scheduler_file=str(folder / "scheduler.json"), timeout=200)
    try:
        client.wait_for_workers(2, timeout=200)
        yield client, scheduler
    finally:
        with suppress(Exception):
            client.close(timeout=3)
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=100)


def _rows() -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(20_000, 10))
    return X, X[:, 0] > 0


def _classifier(**params: Any) -> SGDClassifier:
    return SGDClassifier(
        max_iter=20, tol=None, batch_size=32, run=Run(n_lanes=2), random_state=0, **params
    )


class _Kill:
    def __init__(self, scheduler: subprocess.Popen[bytes]) -> None:
        self._scheduler = scheduler

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        if record["pass"] == 8:
            self._scheduler.kill()


class _Passes:
    def __init__(self) -> None:
        self.passes: list[int] = []

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.passes.append(record["pass"])


def test_a_fit_is_resumed_after_the_loss_of_its_scheduler(tmp_path: Path) -> None:
    X, y = _rows()
    path = str(tmp_path / "checkpoint")
    lazy = da.from_array(X, chunks=(2_000, -1)), da.from_array(y, chunks=2_000)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with _cluster(tmp_path / "a") as (client, scheduler):
        clf = _classifier(checkpoint=Checkpoint(path, every=5), callbacks=_Kill(scheduler))
        with pytest.raises(SchedulerLostError, match="resume=True"):
            clf.fit(*lazy, client=client)
    passes = _Passes()
    with _cluster(tmp_path / "b") as (client, _):
        resumed = Checkpoint(path, every=5, resume=True)
        clf = _classifier(checkpoint=resumed, callbacks=passes).fit(*lazy, client=client)
    assert passes.passes == list(range(6, 21))
    assert len(clf.history_) == 20
    undisturbed = _classifier().fit(*lazy)
    np.testing.assert_allclose(clf.coef_, undisturbed.coef_, rtol=1e-10)
