"""Canaries: what `distributed` does not document still works as the package uses it."""

from __future__ import annotations

import asyncio
import gc
import inspect
import io
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np
import pytest
from distributed import CancelledError, Client, Event, LocalCluster, get_client, get_worker
from distributed.comm import CommClosedError

from daskml_dist.dask_internals import cluster
from daskml_dist.dask_internals.cluster import (
    HEARTBEAT_FAILED,
    count_actors,
    evict_worker,
    finish_retirement,
    forget_before_closing,
    is_client_of_worker,
    is_dask_error,
    is_killed_worker,
    is_process_busy,
    is_task_wanted,
    list_workers,
    release_stuck_tasks,
    renew_timers,
    request_data,
    run_before_closing,
    shorten_lost_connections,
)
from daskml_dist.dask_internals.interrupt_shields import (
    end_shield,
    process_group,
    shield_from_interrupts,
)
from daskml_dist.data.collection import as_collection
from daskml_dist.diagnostics.operation_progress import report_operation
from daskml_dist.errors import TrainingError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.preprocessing import StandardScaler
from daskml_dist.training.client.on_cluster import ClusterEngine


class _Actor:
    run_id = "canary"


async def _nothing() -> None:
    pass


def _until(condition: Callable[[], bool], seconds: float = 200.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_all_workers_are_listed(client: Client) -> None:
    workers = list_workers(client)
    assert len(workers) == 2
    assert all(worker["nthreads"] == 1 for worker in workers.values())


def test_errors_of_dask_are_distinguished(client: Client) -> None:
    future = client.submit(_nothing, pure=False)
    future.cancel()
    with pytest.raises(CancelledError) as caught:
        future.result(timeout=200)
    assert is_dask_error(caught.value)
    assert not is_dask_error(ValueError())


def test_callbacks_before_closing_are_registered_and_removed(client: Client) -> None:
    def note() -> None:
        run_before_closing(get_worker(), "canary", _nothing)

    def is_registered(dask_worker: Any) -> bool:
        return "canary" in dask_worker.plugins

    async def forget(dask_worker: Any) -> None:
        await forget_before_closing(dask_worker, "canary")

    client.submit(note, pure=False).result(timeout=200)
    assert _until(lambda: any(client.run(is_registered).values()))
    client.run(forget)
    assert not any(client.run(is_registered).values())


def test_actors_of_a_run_are_counted(client: Client) -> None:
    def count(dask_worker: Any) -> int:
        return count_actors(dask_worker, "canary")

    future = client.submit(_Actor, actor=True)
    actor = future.result(timeout=200)
    assert sum(client.run(count).values()) == 1
    del actor, future
    assert _until(lambda: not any(client.run(count).values()))


def test_a_running_task_knows_whether_it_is_wanted(client: Client) -> None:
    def until_unwanted(event: str) -> None:
        worker = get_worker()
        key = worker.get_current_task()
        assert is_task_wanted(worker, key)
        worker.log_event("canary", event)
        deadline = time.monotonic() + 200
        while is_task_wanted(worker, key) and time.monotonic() < deadline:
            time.sleep(0.02)
        worker.log_event("canary", "unwanted" if time.monotonic() < deadline else "wanted")

    def user_log() -> list[Any]:
        return [event for _, event in client.get_events("canary")]

    future = client.submit(until_unwanted, "begun", pure=False)
    assert _until(lambda: "begun" in user_log())
    future.cancel()
    assert _until(lambda: "unwanted" in user_log())


def test_data_is_asked_for_by_its_key(client: Client) -> None:
    first, second = sorted(list_workers(client))
    future = client.submit(lambda: 7, workers=[first], pure=False)

    def fetch(key: str) -> int:
        requested = request_data(get_client(), key)
        value: int = requested.result(timeout=200)
        requested.release()
        return value

    assert future.result(timeout=200) == 7
    assert client.submit(fetch, future.key, workers=[second], pure=False).result(timeout=200) == 7


def test_a_client_inside_a_task_is_recognised(client: Client) -> None:
    assert client.submit(lambda: is_client_of_worker(get_client()), pure=False).result(timeout=200)
    assert not is_client_of_worker(client)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_a_worker_in_disk_sleep_is_busy(client: Client, tmp_path: Path) -> None:
    """A thread that starts a process sleeps so until that process has opened its files."""
    os.mkfifo(pipe := tmp_path / "pipe")
    at = min(client.run(os.getpid))
    held = client.submit(_spawn_that_opens, str(pipe), workers=[at], pure=False)
    try:
        assert _until(lambda: bool(client.sync(is_process_busy, client, at)), 20)
    finally:
        os.close(os.open(pipe, os.O_WRONLY))  # waits for the reader
    held.result(timeout=200)


def _spawn_that_opens(file: str) -> None:
    spawned = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", ""],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 0, file, os.O_RDONLY, 0)],
    )
    os.waitpid(spawned, 0)


def test_workers_of_the_process_group_ignore_ctrl_c(client: Client) -> None:
    """`Client.run` calls in a worker's event loop, and that runs in the main thread."""
    pids = client.run(os.getpid)
    group = process_group()
    assert group is not None
    assert not any(
        client.run(shield_from_interrupts, "canary", os.getpid(), (*group, "other")).values()
    )
    assert all(client.run(shield_from_interrupts, "canary", os.getpid(), group).values())
    for pid in pids.values():
        os.kill(pid, signal.SIGINT)
    assert client.run(os.getpid) == pids
    client.run(end_shield, "canary")
    assert not any(client.run(_ignores_ctrl_c).values())


def _ignores_ctrl_c() -> bool:
    return (
        getattr(signal.getsignal(signal.SIGINT), "__module__", "")
        == shield_from_interrupts.__module__
    )


def _wait_for_shield(block: Any) -> Any:
    if block.any() and not _until(_ignores_ctrl_c, 20):
        raise TimeoutError
    return block


def test_computations_are_shielded_from_ctrl_c(client: Client) -> None:
    """Not only fits: Dask alone loses its workers, and their nannies start none."""
    X = da.ones((4, 2), chunks=2).map_blocks(_wait_for_shield)
    StandardScaler().fit(X)
    assert _until(lambda: not any(client.run(_ignores_ctrl_c).values()))
    with report_operation("search", None):
        client.submit(_wait_for_shield, np.ones(2)).result(timeout=200)
    assert _until(lambda: not any(client.run(_ignores_ctrl_c).values()))


class _ShieldIsAwaited:
    def __init__(self, client: Client) -> None:
        self._client = client

    def on_pass_end(self, run: Any, record: Any) -> None:
        assert _until(lambda: all(self._client.run(_ignores_ctrl_c).values()), 20)


def test_idle_workers_are_shielded_while_this_process_fits(client: Client) -> None:
    clf = SGDClassifier(max_iter=1, callbacks=_ShieldIsAwaited(client))
    clf.fit(np.eye(4), [0, 1, 0, 1], client="inline")
    assert _until(lambda: not any(client.run(_ignores_ctrl_c).values()))


def test_a_shield_ends_with_its_client() -> None:
    """Tested in a separate process, which has a main thread like a worker."""
    script = (
        "import signal, subprocess, sys\n"
        "from daskml_dist.dask_internals import interrupt_shields as shields\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "client = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "assert shields.shield_from_interrupts('fit', client.pid, shields.process_group())\n"
        "signal.raise_signal(signal.SIGINT)\n"
        "client.communicate(b'\\n')\n"
        "try:\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"
        "    print('ended')\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout == "ended\n", found.stderr


def _pause(share: float, dask_worker: Any) -> None:
    dask_worker.memory_manager.memory_pause_fraction = share


def _states(keys: list[Any], dask_scheduler: Any) -> list[str | None]:
    tasks = dask_scheduler.tasks
    return [tasks[key].state if key in tasks else None for key in keys]


def test_tasks_of_a_paused_worker_are_freed(client: Client) -> None:
    def tell_and_wait() -> bool:
        Event("begun").set()
        return Event("paused").wait(200)

    first = sorted(list_workers(client))[:1]
    begun = client.submit(tell_and_wait, workers=first, pure=False)
    behind = client.submit(int, 6, workers=first, pure=False)
    assert Event("begun").wait(200)
    client.run(_pause, 1e-9, workers=first)
    try:
        assert _until(lambda: list_workers(client)[first[0]]["status"] == "paused")
        pinned = client.submit(int, 7, workers=first, pure=False)
        needs = client.submit(int.__add__, pinned, behind, pure=False)
        # Submitted tasks use another code path than functions run on the scheduler.
        keys, states = [pinned.key, behind.key, needs.key], ["no-worker", "processing", "waiting"]
        assert _until(lambda: client.run_on_scheduler(_states, keys) == states)
        Event("paused").set()
        assert begun.result(timeout=200)
        assert not pinned.done()
        release_stuck_tasks(client, [needs.key])
        assert needs.result(timeout=200) == 13
    finally:
        Event("paused").set()  # else a failure here would keep the worker from the next test
        client.run(_pause, 0.8, workers=first)


def _die_unless_exists(file: str) -> int:
    if not os.path.exists(file):
        os.kill(os.getpid(), signal.SIGKILL)
    return 5


@pytest.mark.slow
def test_a_task_that_dask_gave_up_is_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "flag"
    with (
        dask.config.set(
            {
                "distributed.scheduler.allowed-failures": 0,
                "distributed.deploy.lost-worker-timeout": "1h",
            }
        ),
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        future = client.submit(_die_unless_exists, str(file), pure=False)
        assert is_killed_worker(future.exception(timeout=200))
        file.touch()
        release_stuck_tasks(client, [future.key], [future.key])
        assert _until(lambda: future.status == "finished", 60)


def test_a_worker_is_evicted_and_another_retired() -> None:
    with (
        LocalCluster(
            n_workers=3,
            threads_per_worker=1,
            processes=False,
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        first, second, _ = sorted(list_workers(client))
        evict_worker(client, first)
        assert _until(lambda: first not in list_workers(client))
        finish_retirement(client, second)
        assert _until(lambda: second not in list_workers(client))


@pytest.mark.parametrize(
    ("name", "text", "error", "expected"),
    [
        ("worker", HEARTBEAT_FAILED, CommClosedError("closed"), "the scheduler is gone"),
        ("worker", HEARTBEAT_FAILED, ValueError("another"), "Traceback"),
        ("worker", "Another failure", CommClosedError("closed"), "Traceback"),
        ("client", "", asyncio.CancelledError(), None),
        ("client", "", CommClosedError("closed"), "Traceback"),
    ],
)
def test_a_lost_scheduler_is_logged_in_one_line(
    name: str, text: str, error: BaseException, expected: str | None
) -> None:
    shorten_lost_connections()
    logger, stream = logging.getLogger(f"distributed.{name}"), io.StringIO()
    handler = logging.StreamHandler(stream)
    logger.addHandler(handler)
    try:
        raise error
    except BaseException:
        logger.exception(text)
    finally:
        logger.removeHandler(handler)
    found = stream.getvalue()
    assert (expected or "") in found
    assert ("Traceback" in found) == (expected == "Traceback")
    if expected != "Traceback":
        assert len(found.splitlines()) == (expected is not None)


def test_the_log_message_of_a_failed_heartbeat_is_unchanged() -> None:
    assert HEARTBEAT_FAILED in inspect.getsource(distributed.Worker.heartbeat)


def test_a_private_event_loop_ends_without_warnings(user_log: pytest.LogCaptureFixture) -> None:
    """For example while tornado's `Event.wait` times out, whose waiter is never notified."""
    gc.collect()  # warnings left by other tests have been issued
    user_log.clear()
    engine = ClusterEngine.on_own_cluster(as_collection(np.zeros((2, 1)), np.zeros(2)))
    loop = engine._client.loop.asyncio_loop  # type: ignore[attr-defined]
    engine.close()
    for error in (TimeoutError("Timeout"), OSError("user_log")):
        loop.create_future().set_exception(error)
    gc.collect()
    messages = [record.getMessage() for record in user_log.records if record.name == "asyncio"]
    assert len(messages) == 1
    assert "user_log" in messages[0]


def test_clusters_of_our_own_are_silent_in_whatever_order_they_end() -> None:
    handler = logging.StreamHandler(stream := io.StringIO())
    dasks = logging.getLogger("distributed")
    dasks.addHandler(handler)
    try:
        rows = as_collection(np.zeros((2, 1)), np.zeros(2))
        first, second = (ClusterEngine.on_own_cluster(rows) for _ in range(2))
        first.close()
        dasks.error("of the second")
        second.close()
        dasks.error("of the user")
    finally:
        dasks.removeHandler(handler)
    assert stream.getvalue() == "of the user\n"


def test_a_cluster_of_our_own_is_reached_from_this_machine_only() -> None:
    rows = as_collection(np.zeros((2, 1)), np.zeros(2))
    with (
        dask.config.set({"distributed.comm.require-encryption": True}),
        ClusterEngine.on_own_cluster(rows) as engine,
    ):
        own: Any = engine._client.cluster
        nodes = [own.scheduler, *own.workers.values()]
        sockets = [s for node in nodes for s in node.http_server._sockets.values()]
        assert {socket.getsockname()[0] for socket in sockets} == {"127.0.0.1"}


def test_a_cluster_of_our_own_that_cannot_start_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        dask.config.set({"temporary-directory": str(tmp_path / "file")}),
        pytest.raises(TrainingError, match="temporary-directory"),
    ):
        ClusterEngine.on_own_cluster(as_collection(np.zeros((2, 1)), np.zeros(2)))


def _set_back(node: Any) -> tuple[int, int, bool]:
    """Let all timers of a node wait an hour; return how many, how many renewed, if all go on."""
    timers = node._periodic_callbacks if isinstance(node, Client) else node.periodic_callbacks
    timers = [timer for timer in timers.values() if timer.is_running()]
    for timer in timers:
        timer._next_timeout += 3_600
    streams = cluster._list_message_streams(node)
    for stream in streams:
        stream.next_deadline = time.time() + 3_600
    found = renew_timers(node)
    now = time.time()
    soon = all(timer._next_timeout - now <= timer.callback_time / 1e3 for timer in timers)
    soon &= all(stream.next_deadline is None for stream in streams)
    return len(timers) + len(streams), found, soon and renew_timers(node) == 0


def test_timers_continue_after_a_clock_was_set_back(client: Client) -> None:
    def of_scheduler(dask_scheduler: Any) -> tuple[int, int, bool]:
        return _set_back(dask_scheduler)

    def of_worker(dask_worker: Any) -> tuple[int, int, bool]:
        return _set_back(dask_worker)

    async def of_client() -> tuple[int, int, bool]:
        return _set_back(client)

    found = [client.run_on_scheduler(of_scheduler), client.sync(of_client)]
    for n_timers, n_renewed, go_on in [*found, *client.run(of_worker).values()]:
        assert go_on
        assert n_timers == n_renewed > 1
    # What waited in a stream has been sent.
    assert client.submit(int, 3).result() == 3


def test_no_timer_is_restarted_that_waits_its_turn(client: Client) -> None:
    def renew(dask_worker: Any) -> int:
        return renew_timers(dask_worker)

    assert set(client.run(renew).values()) == {0}
