"""Which workers count as silent, by heartbeats, reports of other workers, and nannies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, LocalCluster

from daskml_dist.dask_internals.cluster import list_workers
from daskml_dist.training.client import membership as module
from daskml_dist.training.client.membership import Membership, Sign
from tests.training.recovery.strikes import hold_lock, release_lock


def _make_roll(
    monkeypatch: pytest.MonkeyPatch, *addresses: str
) -> tuple[SimpleNamespace, dict[str, dict[str, Any]], Membership]:
    """Return a stopped clock, the scheduler's listing, and a roll in which "ours" has lanes."""
    clock = SimpleNamespace(now=100.0)
    workers = {a: {"last_seen": 1.0, "nthreads": 1, "status": "running"} for a in addresses}
    for name in ("monotonic", "time"):
        monkeypatch.setattr(module.time, name, lambda: clock.now)
    monkeypatch.setattr(module, "list_workers", lambda client: workers)
    client: Any = None
    members = Membership(client, lease=3.0)
    members.note_work_begun("ours")
    return clock, workers, members


def test_suspicion_does_not_shorten_the_lease_of_an_importing_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its event loop is blocked by the import, and no other worker waits for it yet."""
    clock, workers, members = _make_roll(monkeypatch, "ours", "new")
    members.call()
    clock.now += 1.5
    members.call()
    assert members.find_silent(workers) == []
    members.suspect_silence()
    assert members.find_silent(workers) == ["ours"]


@pytest.mark.parametrize(
    ("beat", "after"),
    [(1.5, 1.0), (1.1, 0.6), (0.5, 0.5), (3_601.1, 1.0)],
    ids=["at the roll call", "before it", "clock set back", "clock set forward"],
)
def test_silence_counts_from_the_heartbeat_not_from_the_roll_call(
    monkeypatch: pytest.MonkeyPatch, beat: float, after: float
) -> None:
    """Its time is of the scheduler's clock, but not before the last roll call or after this one."""
    clock, workers, members = _make_roll(monkeypatch, "ours")
    members.call()
    members.suspect_silence()
    clock.now += 0.5
    workers["ours"]["last_seen"] = beat
    members.call()
    clock.now += after - 0.01
    members.call()
    assert members.find_silent(["ours"]) == []
    clock.now += 0.02
    members.call()
    assert members.find_silent(["ours"]) == ["ours"]


def test_clocks_that_were_set_back_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's clock is checked by heartbeats, the client's by a monotonic clock."""
    now, wall, renewed = 100.0, 5_000.0, []
    workers = {"ours": {"last_seen": 1.0, "nthreads": 1, "status": "running"}}
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    monkeypatch.setattr(module.time, "time", lambda: wall)
    monkeypatch.setattr(module, "list_workers", lambda client: workers)
    for name in ("renew_client_timers", "renew_scheduler_timers"):
        monkeypatch.setattr(module, name, lambda client, name=name: renewed.append(name))
    client: Any = None
    members = Membership(client)
    for beat, ahead in [(1.0, 0.0), (1.5, 0.5), (1.4, 0.4), (3_601.4, 3_600.4)]:
        now, wall, workers["ours"]["last_seen"] = now + 0.5, 5_000.0 + ahead, beat
        members.call()
    assert renewed == []  # a clock that is set forward, or slightly corrected
    wall -= 3_600
    members.call()
    assert renewed == ["renew_client_timers"]
    workers["ours"]["last_seen"] = 5.0
    members.call()
    assert renewed == ["renew_client_timers", "renew_scheduler_timers"]
    members.call()
    assert len(renewed) == 2


# --- busy workers -------------------------------------------------------------------------------


class _Loop:
    """Client whose event loop runs only during `sync`."""

    def __init__(self) -> None:
        self.running = asyncio.new_event_loop()
        self.loop = SimpleNamespace(add_callback=self.running.call_soon)

    def sync(self, function: Any, *args: Any) -> Any:
        return self.running.run_until_complete(function(*args))


def test_a_busy_worker_is_kept_until_the_general_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls do not wait for a reply of a worker that was busy a moment ago."""
    now, sign, pauses = 100.0, Sign.BUSY, []
    answered = asyncio.Event()
    answered.set()

    async def find_sign(client: Any, address: str, pause: float) -> Sign:
        pauses.append(pause)
        await answered.wait()
        return sign

    monkeypatch.setattr(module, "_find_sign", find_sign)
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    client = _Loop()
    try:
        probes = module._Probes(client, patience=300.0)
        assert probes.probe(["a"]) == {"a": Sign.BUSY}
        answered.clear()
        for _ in range(3):
            now += 99.0
            assert probes.probe(["a"]) == {"a": Sign.BUSY}
        assert len(pauses) == 2  # one request is pending
        now += 4.0
        assert probes.probe(["a"]) == {"a": Sign.NONE}
        # A worker that sends heartbeats again is treated as new.
        probes.forget_others(set())
        sign = Sign.ANSWERS
        answered.set()
        assert probes.probe(["a"]) == {"a": Sign.ANSWERS}
        assert [pause > 0 for pause in pauses] == [False, True, False]
    finally:
        client.running.close()


@pytest.fixture
def signs(monkeypatch: pytest.MonkeyPatch) -> list[Sign]:
    """Record the signs of life of workers, in order."""
    found_signs: list[Sign] = []
    find = module._find_sign

    async def find_sign(*args: Any) -> Sign:
        found_signs.append(sign := await find(*args))
        return sign

    monkeypatch.setattr(module, "_find_sign", find_sign)
    return found_signs


def _look_until(members: Membership, address: str, is_over: Callable[[], bool]) -> set[str]:
    """Call the roll until a condition holds or the worker is lost; return the worker if lost."""
    deadline = time.monotonic() + 200
    gone: set[str] = set()
    while not (gone or is_over()):
        assert time.monotonic() < deadline
        gone = set(members.find_lost({address}))
        time.sleep(0.05)
    return gone


def _watch(client: Client, address: str) -> Membership:
    """Return the roll of a cluster in which one worker has an assignment."""
    members = Membership(client, lease=1.0)
    members.note_work_begun(address)
    return members


def test_a_worker_that_holds_pythons_lock_is_kept_and_a_stopped_one_evicted(
    crew_client: Client, signs: list[Sign], tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    flag.write_bytes(b"\0")
    address = min(list_workers(crew_client))
    (pid,) = crew_client.run(os.getpid, workers=[address]).values()
    members = _watch(crew_client, address)
    holding = crew_client.submit(hold_lock, str(flag), workers=[address], pure=False)
    assert not _look_until(members, address, lambda: signs.count(Sign.BUSY) > 1)
    release_lock(flag)
    holding.result()
    assert not _look_until(members, address, lambda: not members.find_silent([address]))
    signs.clear()
    os.kill(pid, signal.SIGSTOP)
    assert _look_until(members, address, lambda: False) == {address}
    assert signs == [Sign.NONE]


@pytest.mark.slow
@pytest.mark.parametrize("whole_host", [False, True], ids=["worker", "nanny too"])
def test_a_busy_worker_that_is_stopped_is_evicted(
    whole_host: bool, signs: list[Sign], tmp_path: Path
) -> None:
    """Also if its nanny does not reply either, as on a lost host."""
    flag = tmp_path / "flag"
    flag.write_bytes(b"\0")
    options: dict[str, Any] = {"host": "127.0.0.1", "dashboard_address": ":0", "silence_logs": 50}
    with LocalCluster(n_workers=0, **options) as cluster, Client(cluster) as client:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address]
        command += ["--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1"]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": path}
        with subprocess.Popen(command, cwd=tmp_path, env=environment, **quiet) as nanny:
            pids = [nanny.pid]
            try:
                client.wait_for_workers(1, timeout=200)
                (address,) = list_workers(client)
                pids += client.run(os.getpid).values()
                members = _watch(client, address)
                holding = client.submit(hold_lock, str(flag), pure=False)
                assert not _look_until(members, address, lambda: signs.count(Sign.BUSY) > 1)
                for pid in pids if whole_host else pids[1:]:
                    os.kill(pid, signal.SIGSTOP)
                assert _look_until(members, address, lambda: False) == {address}
                del holding
            finally:
                for pid in reversed(pids):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
