"""Phases of fits: their order, and a final one however the fit ends."""

from __future__ import annotations

from itertools import groupby
from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist.cluster import KMeans
from daskml_dist.data.computing import wait_for_workers
from daskml_dist.errors import InvalidDataError
from daskml_dist.linear_model import LogisticRegression, SGDClassifier
from daskml_dist.training.checkpoint import Checkpoint

HERE = {
    "steps": ["reading", "finding a learning rate", "begin", "training", "end of fit", "end"],
    "rounds": ["reading", "begin", "training", "end of fit", "end"],
}
THERE = {
    "steps": ["reading", "placing", "finding a learning rate", "begin", "placing", "training",
              "gathering", "end of fit", "end"],
    "rounds": ["reading", "placing", "begin", "placing", "training", "gathering", "end of fit",
               "end"],
}  # fmt: skip
ESTIMATORS = {
    "steps": lambda *callbacks: SGDClassifier(callbacks=list(callbacks), max_iter=2, tol=None),
    "rounds": lambda *callbacks: LogisticRegression(callbacks=list(callbacks)),
}


class Recorder:
    """Callback that records the phases and raises at one of them."""

    def __init__(self, raises_at: str = "") -> None:
        self.raises_at = raises_at
        self.reports: list[tuple[str, int, int | None]] = []

    def on_phase(self, phase: str, done: int, total: int | None) -> None:
        self.reports.append((phase, done, total))
        if phase == self.raises_at:
            raise OSError("no disk")

    def on_fit_begin(self, run: Any) -> None:
        self.reports.append(("begin", 0, None))

    def on_fit_end(self, run: Any) -> None:
        self.reports.append(("end of fit", 0, None))

    @property
    def phases(self) -> list[str]:
        return [phase for phase, _ in groupby(phase for phase, _, _ in self.reports)]


def _rows(n_blocks: int = 0) -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(200, 3))
    y = X[:, 0] > 0
    if not n_blocks:
        return X, y
    size = 200 // n_blocks
    return da.from_array(X, chunks=(size, -1)), da.from_array(y, chunks=size)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_a_fit_in_one_process_reports_its_phases(kind: str) -> None:
    recorder = Recorder()
    ESTIMATORS[kind](recorder).fit(*_rows())
    assert recorder.phases == HERE[kind]
    assert [report[1:] for report in recorder.reports if report[0] == "reading"] == [(0, 1), (1, 1)]


@pytest.mark.parametrize("persisted", [False, True])
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_a_fit_on_a_cluster_reports_its_phases(client: Client, kind: str, persisted: bool) -> None:
    recorder = Recorder()
    X, y = _rows(n_blocks=4)
    if persisted:
        X, y = client.persist([X, y])
    ESTIMATORS[kind](recorder).fit(X, y)
    assert recorder.phases == THERE[kind]
    read = [report[1:] for report in recorder.reports if report[0] == "reading"]
    assert read[-1] == (4, 4)
    assert {total for _, total in read} == {None, 4}


def test_checkpointed_parts_and_summaries_report_phases_of_one_fit(tmp_path: Any) -> None:
    recorder = Recorder()
    clf = ESTIMATORS["steps"](recorder).set_params(checkpoint=Checkpoint(tmp_path / "fit.npz"))
    clf.fit(*_rows())
    assert recorder.phases == HERE["steps"]
    recorder.reports.clear()
    KMeans(2, callbacks=recorder, random_state=0).fit(_rows()[0])
    assert recorder.phases == HERE["rounds"]


@pytest.mark.parametrize("on_cluster", [False, True])
def test_phases_end_if_a_fit_fails_before_its_start(client: Client, on_cluster: bool) -> None:
    def unreadable(block: Any) -> Any:
        raise ValueError("no such file")

    recorder = Recorder()
    X, y = _rows(n_blocks=4)
    if on_cluster:
        X = X.map_blocks(unreadable, dtype=X.dtype, meta=X._meta)
    else:
        X, y = np.full((4, 3), np.nan), np.arange(4) > 1
    with pytest.raises(InvalidDataError):
        SGDClassifier(callbacks=[recorder]).fit(X, y, client=client if on_cluster else None)
    assert recorder.phases[0] == "reading"
    assert recorder.phases[-1] == "end"
    assert recorder.phases.count("begin") == recorder.phases.count("end of fit")


@pytest.mark.parametrize("phase", ["reading", "placing", "training", "gathering", "end"])
def test_an_error_in_on_phase_is_raised_unchanged(client: Client, phase: str) -> None:
    recorder = Recorder(phase)
    with pytest.raises(OSError, match="no disk") as caught:
        ESTIMATORS["steps"](recorder).fit(*_rows(n_blocks=4))
    assert caught.value.__notes__ == ["raised by the callback Recorder.on_phase"]
    assert recorder.phases[-1] == "end"


def test_only_waits_for_workers_are_reported_as_phases() -> None:
    waits: list[str] = []
    looks = iter([[], [], [{"status": "running"}]])
    client: Any = SimpleNamespace(
        submit=lambda *args, **more: SimpleNamespace(release=lambda: None)
    )
    wait_for_workers(client, lambda: next(looks), 60.0, lambda: waits.append("waiting"))
    wait_for_workers(client, lambda: [{"status": "running"}], 60.0, lambda: waits.append("again"))
    assert waits == ["waiting"]
