"""Workers that join a fit do not delay others while they import its modules."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, LocalCluster

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.training.client import membership_changes as reasons
from daskml_dist.training.client.membership_changes import Newcomers
from tests.training.recovery.strikes import lazy_rows

#: Seconds after which a blocked import ends by timeout, so that the test fails.
PATIENCE = 60.0
#: Passes during the import: longer than two roll calls, at each of which a worker could join.
MANY = 100
#: Module whose import waits for a file, and records the waiting processes.
SLOW_PART = """
import os, time
from pathlib import Path

here = Path(__file__).parent
(here / f"begun-{os.getpid()}").touch()
while not (here / "go").exists():
    time.sleep(0.01)

class Resting:
    def on_step_end(self, step):
        time.sleep(1e-3)
"""


@pytest.fixture
def slow_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provide the folder of a module `slow_part` on the path of this process and new workers."""
    (tmp_path / "slow_part.py").write_text(SLOW_PART)
    (tmp_path / "go").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *filter(None, sys.path)]))
    yield tmp_path
    sys.modules.pop("slow_part", None)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new workers be admitted as soon as they are seen."""
    monkeypatch.setattr(reasons, "SETTLED", -1.0)


class _Joins:
    """Callback that adds a worker after the first pass and ends its import some passes later."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.before = len(self._begun())
        self.passes_meanwhile = 0
        self.joined = ""

    def _begun(self) -> list[Path]:
        return list(self.folder.glob("begun-*"))

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        go = self.folder / "go"
        if record["pass"] == 1:
            self.before = len(self._begun())
            go.unlink()
            self.cluster.scale(2)
        elif not go.exists() and len(self._begun()) > self.before:
            self.passes_meanwhile += 1
            if self.passes_meanwhile == MANY:
                go.touch()

    def on_generation(self, run: Any, event: Any) -> None:
        self.joined = event.reason
        run.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("settled")
def test_other_workers_continue_while_a_new_one_imports(
    slow_part: Path,
) -> None:
    import slow_part as user_module  # type: ignore[import-not-found]

    rows = lazy_rows()
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster),
    ):
        joins = _Joins(cluster, slow_part)
        late = threading.Timer(PATIENCE, (slow_part / "go").touch)
        late.start()
        try:
            clf = SGDClassifier(
                policy="allreduce",
                max_iter=10**5,
                tol=None,
                batch_size=600,
                run=Run(n_lanes=2),
                random_state=0,
                callbacks=[joins, user_module.Resting()],
            )
            clf.fit(*rows)
        finally:
            late.cancel()
    assert "joined" in joins.joined
    assert joins.passes_meanwhile == MANY


# --- ready workers --------------------------------------------------------------------------


class _Tasks:
    """Actor pool whose tasks have the states that the test sets."""

    def __init__(self) -> None:
        self.tasks: dict[str, Any] = {}
        self.let_go: list[Any] = []

    def preload_fit(self, address: str) -> Any:
        self.tasks[address] = task = SimpleNamespace(status="pending", exception=lambda: None)
        return task

    def discard_futures(self, futures: Any) -> None:
        self.let_go.extend(futures)


def _make_pool(*addresses: str) -> tuple[Any, _Tasks, Newcomers]:
    membership: Any = SimpleNamespace(ready=dict.fromkeys(addresses, 1))
    fleet: Any = _Tasks()
    return membership, fleet, Newcomers(membership, fleet)


@pytest.mark.usefixtures("settled")
def test_a_new_worker_is_ready_once_its_import_task_has_ended() -> None:
    _, fleet, found = _make_pool("old", "new")
    assert found.find_ready_workers({"old"}) == []
    assert list(fleet.tasks) == ["new"]
    fleet.tasks["new"].status = "finished"
    assert found.find_ready_workers({"old"}) == ["new"]
    assert fleet.let_go == [fleet.tasks["new"]]
    assert found.find_ready_workers({"old", "new"}) == []


@pytest.mark.usefixtures("settled")
def test_an_import_task_is_dropped_with_its_worker_and_repeated_if_lost() -> None:
    membership, fleet, found = _make_pool("new")
    found.find_ready_workers(set())
    first = fleet.tasks["new"]
    first.status = "lost"
    found.find_ready_workers(set())
    found.find_ready_workers(set())
    assert fleet.tasks["new"] is not first
    membership.ready.clear()
    found.find_ready_workers(set())
    assert fleet.let_go == [first, fleet.tasks["new"]]


@pytest.mark.usefixtures("settled")
def test_a_worker_that_cannot_load_the_fit_is_skipped_with_one_warning(
    user_log: pytest.LogCaptureFixture,
) -> None:
    _, fleet, found = _make_pool("new")
    found.find_ready_workers(set())
    fleet.tasks["new"].status = "error"
    fleet.tasks["new"].exception = lambda: ModuleNotFoundError("No module named 'mine'")
    for _ in range(3):
        assert found.find_ready_workers(set()) == []
    (record,) = (one for one in user_log.records if one.name.startswith("daskml_dist"))
    assert "'mine'" in record.getMessage()
    assert "packages" in record.getMessage()
