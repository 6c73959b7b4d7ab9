"""Rows are read despite lost workers, and waiting users are told the reason."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, Scheduler, Worker, wait

from daskml_dist import Run
from daskml_dist.dask_internals.cluster import list_workers
from daskml_dist.data import computing
from daskml_dist.data.collection import as_collection
from daskml_dist.errors import DataLostError, InvalidDataError, TrainingError
from daskml_dist.linear_model import LinearRegression, SGDClassifier
from daskml_dist.preprocessing import StandardScaler
from daskml_dist.training.client.cluster_rows import ClusterRows
from daskml_dist.training.worker import control as orders

N_ROWS = 3_000


@pytest.fixture
def crew_client(crew: LocalCluster, assert_clean: Callable[..., None]) -> Iterator[Client]:
    with Client(crew) as client:
        client.wait_for_workers(3, timeout=200)
        yield client
        assert_clean(client)


def _rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, 4))
    return X, X[:, 0] + 0.3 * rng.normal(size=N_ROWS) > 0


def _read(block: Any, folder: str, seconds: float) -> Any:
    """Read slowly, after signalling the start of the read."""
    Path(folder, f"{os.getpid()}-{time.monotonic_ns()}").touch()
    time.sleep(seconds)
    return block


def _lazy(folder: Path, seconds: float = 0.0, read: Any = _read) -> tuple[Any, Any]:
    X, y = _rows()
    dX = da.from_array(X, chunks=(N_ROWS // 6, -1))
    dX = dX.map_blocks(read, str(folder), seconds, dtype=X.dtype, meta=X[:0])
    return dX, da.from_array(y, chunks=N_ROWS // 6)


def _kill(client: Client, addresses: list[str]) -> None:
    # The scheduler still lists a killed worker for some milliseconds.
    pids = client.run(os.getpid, workers=addresses, on_error="return")
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)


def _until(condition: Callable[[], Any], seconds: float = 200.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _summary(rows: ClusterRows) -> list[tuple[int, int]]:
    return [(info.index, info.n_rows) for info in rows.infos]


WHOLE = [(i, N_ROWS // 6) for i in range(6)]


SLOW = pytest.mark.slow


@SLOW
@pytest.mark.parametrize("persisted", [False, True])
def test_workers_that_die_while_rows_are_read(
    crew_client: Client, tmp_path: Path, persisted: bool
) -> None:
    """Two of three workers die, one after the other."""
    X, y = _lazy(tmp_path, 0.3)
    if persisted:
        X, y = crew_client.persist([X, y])
        wait([X, y])
    rows = ClusterRows(crew_client, as_collection(X, y, classification=True), None)
    if persisted:
        rows.find_persisted_homes()
        _kill(crew_client, [home for home in rows.home_workers if home][:1])
        rows._read_in_waves()
    else:
        killer = threading.Thread(target=_kill_readers, args=(crew_client, tmp_path))
        killer.start()
        rows.inspect_blocks()
        killer.join()
    assert _summary(rows) == WHOLE
    _kill(crew_client, sorted(list_workers(crew_client))[:1])
    assert rows.scales().largest.shape == (4,)
    assert rows.seconds_a_row() > 0
    assert set(rows.find_holders()) == set(range(6))
    rows.release()


def _kill_readers(client: Client, folder: Path) -> None:
    for n_begun in (2, 5):
        _until(lambda n=n_begun: len(list(folder.iterdir())) >= n)  # type: ignore[misc]
        _kill(client, sorted(list_workers(client))[:1])


def test_a_repeatedly_lost_block_is_recomputed(crew_client: Client, tmp_path: Path) -> None:
    X, y = crew_client.persist(list(_lazy(tmp_path)))
    rows = ClusterRows(crew_client, as_collection(X, y, classification=True), None)
    rows.inspect_blocks()
    for _ in range(3):
        holders = {
            address for addresses in rows.find_current_holders().values() for address in addresses
        }
        _kill(crew_client, sorted(holders)[:1])
        _until(lambda gone=holders: not gone <= set(list_workers(crew_client)))  # type: ignore[misc]
        assert rows.remake_lost_blocks() == {}
        _until(
            lambda: (
                rows.remake_lost_blocks() == {}
                and rows.are_blocks_made
                and all(rows.find_current_holders().values())
            )
        )
    rows.release()


@SLOW
def test_a_failing_block_raises_with_its_cause(crew_client: Client, tmp_path: Path) -> None:
    def read_once(block: Any, folder: str, seconds: float) -> Any:
        if Path(folder, "gone").exists():
            raise FileNotFoundError("the file went")
        return block

    X, y = _lazy(tmp_path, read=read_once)
    rows = ClusterRows(crew_client, as_collection(X, y, classification=True), None)
    rows.inspect_blocks()
    (tmp_path / "gone").touch()
    _kill(crew_client, sorted(list_workers(crew_client)))
    _until(lambda: len(rows.remake_lost_blocks()) == 6)
    assert "the file went" in rows.remake_lost_blocks()[0]
    rows.release()
    again = ClusterRows(crew_client, as_collection(X, y, classification=True), None)
    with pytest.raises(InvalidDataError, match=r"Block \d could not be read: .*the file went"):
        again.inspect_blocks()
    again.release()


def test_lost_rows_that_cannot_be_recomputed_raise(crew_client: Client) -> None:
    X, y = _rows()
    first = sorted(list_workers(crew_client))[0]
    (future,) = crew_client.scatter([X], workers=[first], hash=False)
    dX = da.from_delayed(dask.delayed(future), X.shape, dtype=X.dtype)
    rows = ClusterRows(
        crew_client, as_collection(dX, da.from_array(y, chunks=-1), classification=True), None
    )
    _kill(crew_client, [first])
    _until(lambda: future.status == "cancelled")
    with pytest.raises(DataLostError, match="cannot be recomputed"):
        rows.inspect_blocks()
    rows.release()


# --- workers that start no tasks -------------------------------------------------------------


def _pause(share: float | None, dask_worker: Any) -> None:
    """Set the share of memory at which a worker is paused."""
    dask_worker.memory_manager.memory_pause_fraction = share


def _paused(client: Client) -> int:
    return sum(worker["status"] == "paused" for worker in list_workers(client).values())


def _classifier(**more: Any) -> SGDClassifier:
    return SGDClassifier(max_iter=3, tol=None, run=Run(n_lanes=3), random_state=0, **more)


@pytest.mark.parametrize("persisted", [pytest.param(False, marks=SLOW), True])
def test_a_paused_worker_is_avoided(crew_client: Client, tmp_path: Path, persisted: bool) -> None:
    X, y = _lazy(tmp_path)
    if persisted:
        X, y = crew_client.persist([X, y])
        wait([X, y])
    victim = sorted(list_workers(crew_client))[:1]
    crew_client.run(_pause, 1e-9, workers=victim)
    try:
        _until(lambda: _paused(crew_client) == 1)
        clf = _classifier().fit(X, y)
        assert _paused(crew_client) == 1
    finally:
        crew_client.run(_pause, 0.8, workers=victim)
        _until(lambda: not _paused(crew_client))
    assert {record["rows"] for record in clf.history_.records} == {N_ROWS}
    np.testing.assert_allclose(clf.coef_, _classifier().fit(X, y).coef_, rtol=1e-6)


def test_a_fit_waits_while_all_workers_are_paused(
    crew_client: Client,
    tmp_path: Path,
    user_log: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(computing, "_NOTICE_SECONDS", 0.1)
    crew_client.run(_pause, 1e-9)
    try:
        _until(lambda: _paused(crew_client) == 3)
        short = dask.config.set({"daskml_dist.timeout": 0.4})
        with short, pytest.raises(TrainingError, match="0 of 3: 3 at their memory limit"):
            _classifier().fit(*_lazy(tmp_path))
        assert any(
            m.startswith("waiting for workers (0 of 3: 3 at their memory")
            for m in user_log.messages
        )
    finally:
        crew_client.run(_pause, 0.8)
        _until(lambda: not _paused(crew_client))


# --- no worker yet ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pytest.param("dask", marks=SLOW), "memory"])
def test_a_fit_makes_an_adaptive_cluster_grow(kind: str, tmp_path: Path) -> None:
    with (
        LocalCluster(
            n_workers=0,
            threads_per_worker=1,
            processes=False,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        cluster.adapt(minimum=0, maximum=2, interval="100ms")
        X, y = _rows() if kind == "memory" else _lazy(tmp_path)
        model = LinearRegression().fit(X, y)
        np.testing.assert_allclose(model.coef_, LinearRegression().fit(*_rows()).coef_)
        _until(lambda: not client.futures)


def test_waiting_for_workers_is_logged_once(
    user_log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computing, "_NOTICE_SECONDS", 0.1)
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster),
        dask.config.set({"daskml_dist.timeout": 0.4}),
    ):
        with pytest.raises(TrainingError, match=r"No worker accepted work within 0.4 s"):
            _classifier().fit(*_rows())
        with pytest.raises(TrainingError, match=r"within 0.4 s \(0\)"):
            StandardScaler().fit(da.zeros((4, 2), chunks=2))
    assert [m[:34] for m in user_log.messages if m.startswith("waiting")] == [
        "waiting for workers (0; 0.4 s). Sc"
    ] * 2


def test_a_cluster_without_restartable_workers_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask does not restart a worker that fails again soon, so the fit must not wait."""
    monkeypatch.setattr(computing, "_GIVE_UP_SECONDS", 0.1)
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1ms"}),
        LocalCluster(n_workers=2, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        for worker in list(cluster.workers.values()):
            cluster.sync(worker.close)
        _until(lambda: not cluster.workers)
        gone = r"gave up the places of its 2 workers.* client\.cluster\.scale\(2\)"
        with pytest.raises(TrainingError, match=gone):
            _classifier().fit(*_rows())
        with pytest.raises(TrainingError, match=gone):
            StandardScaler().fit(da.zeros((4, 2), chunks=2))
        cluster.scale(2)
        _classifier().fit(*_rows())
        _until(lambda: not client.futures)


def test_workers_that_start_slowly_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask's cluster counts a worker or job only once it runs; until then it is not given up."""
    looks = 0
    are_given_up = computing._WorkerPlaces.are_given_up

    def look(places: Any) -> bool:
        nonlocal looks
        looks += 1
        return are_given_up(places)

    class SlowWorker(Worker):
        async def start_unsafe(self) -> Any:
            while looks < 3:
                await asyncio.sleep(0.01)
            return await super().start_unsafe()

    monkeypatch.setattr(computing, "_GIVE_UP_SECONDS", 0.0)
    monkeypatch.setattr(computing._WorkerPlaces, "are_given_up", look)
    with (
        LocalCluster(
            n_workers=0, processes=False, worker_class=SlowWorker, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        cluster.scale(2)
        _classifier().fit(*_rows())
        _until(lambda: not client.futures)


def _nodes() -> set[int]:
    gc.collect()
    return {id(node) for node in gc.get_objects() if type(node) in (Scheduler, Worker)}


def test_a_fit_without_a_client_leaves_nothing_in_the_process(tmp_path: Path) -> None:
    before = _nodes()
    _classifier().fit(*_lazy(tmp_path))
    left = [orders._orders, orders._aborted, orders._released, orders._trainers]
    assert not any(left)
    assert _nodes() <= before


@SLOW
def test_compute_raises_when_all_workers_are_lost(
    tmp_path: Path, user_log: pytest.LogCaptureFixture
) -> None:
    """Dask itself would wait forever without a message."""
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        dask.config.set({"daskml_dist.timeout": 2}),
    ):

        def read(block: Any, folder: str, seconds: float) -> Any:  # pickled by value
            if block.any():
                Path(folder, "begun").touch()
                time.sleep(seconds)
            return block

        def leave() -> None:
            _until((tmp_path / "begun").exists)
            cluster.scale(0)

        leaver = threading.Thread(target=leave)
        leaver.start()
        with pytest.raises(TrainingError, match=r"No worker accepted work within 2 s \(0\)"):
            StandardScaler().fit(_lazy(tmp_path, seconds=60, read=read)[0])
        leaver.join()
        _until(lambda: not client.futures)
    assert any(m.startswith("waiting for workers (0; 2 s)") for m in user_log.messages)


def test_a_watch_cancels_tasks_without_workers(
    client: Client, monkeypatch: pytest.MonkeyPatch, user_log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(computing, "_NOTICE_SECONDS", 0.02)
    nowhere = client.submit(bool, workers=["tcp://127.0.0.1:1"], pure=False)
    gone = pytest.raises(
        TrainingError, match=r"No worker accepted work within 0.1 s \(0\).*see their logs"
    )
    with gone, computing.watch_workers(client, list, 0.1, nowhere.key):
        nowhere.result(timeout=200)
    assert any(m.startswith("waiting for workers (0; 0.1 s)") for m in user_log.messages)
    with computing.watch_workers(client, lambda: [{"status": "running"}], 0.1, nowhere.key):
        time.sleep(0.3)  # no task is cancelled while there is a worker


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"resources": {"GPU": 1}}, r"no worker has the resources {'GPU': 1}\. Start workers"),
        ({"workers": ["tcp://127.0.0.1:1"]}, r"no worker is one of \['tcp://127.0.0.1:1'\]\."),
    ],
    ids=["resources", "workers"],
)
def test_tasks_that_ask_for_what_no_worker_has_say_so(
    client: Client, monkeypatch: pytest.MonkeyPatch, asked: Any, reason: str
) -> None:
    monkeypatch.setattr(computing, "_NOTICE_SECONDS", 0.05)
    with dask.annotate(**asked):
        X = da.ones((8, 2), chunks=4).map_blocks(np.negative)
    told = pytest.raises(TrainingError, match=reason)
    with dask.config.set({"daskml_dist.timeout": 0.1, "optimization.fuse.active": False}):
        with told:
            StandardScaler().fit(X)
        if "resources" in asked:  # a fit frees its tasks from lost workers
            with told:
                LinearRegression().fit(X, da.arange(8, chunks=4))
