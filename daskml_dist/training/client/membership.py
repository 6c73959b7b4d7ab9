"""Membership: the workers of the cluster, and which of them still answer."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable, Set
from enum import Enum
from typing import Any

from daskml_dist.dask_internals.cluster import (
    evict_worker,
    is_process_busy,
    list_workers,
    renew_client_timers,
    renew_scheduler_timers,
    renew_timers,
)
from daskml_dist.data.computing import (
    ACCEPTING_STATUSES,
    FIRST_TASK_NOTICE_SECONDS,
    Deadline,
    configured_timeout,
    wait_for_workers,
)
from daskml_dist.training.spec import configured_lease

#: Seconds for which a worker must be new, or paused, before the run reacts.
SETTLED = 1.0

#: Seconds of silence that a worker may need to import the modules for its first part of a run,
#: which blocks its event loop.
_IMPORT = 30.0
#: Seconds between two roll calls beyond which silence means nothing, since the client itself slept.
_GAP = 2.0
#: Seconds for which a roll call that found workers need not be repeated.
_FRESH = 0.1
#: Lease in seconds while a host is reported as silent: two of Dask's heartbeats.
_SUSPECTED_LEASE = 1.0
#: Duration of this state: longer than confirming a silence takes.
_SUSPICION_SECONDS = 4.0
#: Seconds in which a worker without heartbeats may still answer, and the longest iteration of the
#: client's event loop that counts in full.
_CONFIRM, _TURN = 0.5, 0.1
#: Seconds until a busy worker is queried again.
_REPROBE_SECONDS = 0.5
#: Seconds by which a wall clock must be set back for timers to be restarted; less only delays them.
_SET_BACK = 1.0


class Sign(Enum):
    """Sign of life of a worker that is queried."""

    ANSWERS = "answers"
    #: Does not answer, but its process computes, or waits for a core or a disk.
    BUSY = "busy"
    #: Is stopped, lost or unreachable; or sleeps, with a blocked event loop.
    NONE = "none"


class _Probes:
    """Queries of workers that do not answer, and of the nannies that watch their processes.

    A query of a worker that was busy a moment ago is not awaited.

    Parameters
    ----------
    client : distributed.Client
    patience : float
        Seconds for which a worker may be busy without an answer.
    """

    def __init__(self, client: Any, patience: float) -> None:
        self._client = client
        self._patience = patience
        #: Open queries; only used in the client's event loop.
        self._open: dict[str, asyncio.Task[Sign]] = {}
        #: Workers that were busy at the last query.
        self._busy: dict[str, Deadline] = {}

    def probe(self, addresses: Collection[str]) -> dict[str, Sign]:
        """Return the sign of life of each of the workers."""
        signs: dict[str, Sign] = self._client.sync(self._probe_all, addresses)
        for address in addresses:
            if signs[address] is not Sign.BUSY:
                self._busy.pop(address, None)
            elif not self._note_busy(address).has_time_left():
                signs[address] = Sign.NONE
        return signs

    def forget_others(self, quiet: Set[str]) -> None:
        """Forget workers that are gone, or have sent a heartbeat since the last roll call."""
        for address in self._busy.keys() - quiet:
            del self._busy[address]
            self._client.loop.add_callback(self._drop, address)

    def _note_busy(self, address: str) -> Deadline:
        """Return the time limit for a busy worker."""
        return self._busy.setdefault(
            address,
            Deadline(
                f"worker {address} to answer",
                self._patience,
                "Its process is busy. Does a task hold Python's global lock, or do too many "
                "processes share the cores of its host?",
                tell_after=FIRST_TASK_NOTICE_SECONDS,
            ),
        )

    async def _probe_all(self, addresses: Collection[str]) -> dict[str, Sign]:
        """Query workers without an open query; wait for those queried for the first time."""
        for address in addresses:
            if address not in self._open:
                pause = _REPROBE_SECONDS if address in self._busy else 0.0
                self._open[address] = asyncio.ensure_future(
                    _find_sign(self._client, address, pause)
                )
        new_queries = [self._open[address] for address in addresses if address not in self._busy]
        if new_queries:
            await asyncio.wait(new_queries)
        signs = {}
        for address in addresses:
            has_answered = self._open[address].done()
            signs[address] = self._open.pop(address).result() if has_answered else Sign.BUSY
        return signs

    def _drop(self, address: str) -> None:
        """Drop the open query of a worker; runs in the event loop."""
        if (task := self._open.pop(address, None)) is not None:
            task.cancel()


async def _find_sign(client: Any, address: str, pause: float) -> Sign:
    """Query a worker and its nanny together, and wait a moment for the worker's answer."""
    await asyncio.sleep(pause)
    # In the client's own loop, `run` is a coroutine.
    running: Any = client.run(_renew_and_answer, workers=[address])
    answer = asyncio.ensure_future(running)
    busy = asyncio.ensure_future(is_process_busy(client, address))
    try:
        seconds_left = _CONFIRM
        while seconds_left > 0 and not answer.done():
            # If this loop itself waits for a core, an answer may have arrived but not been read. So
            # the extra time of a long iteration does not count.
            await asyncio.wait({answer}, timeout=_TURN)
            seconds_left -= _TURN
        if answer.done():
            return Sign.NONE if answer.exception() else Sign.ANSWERS
        return Sign.BUSY if busy.done() and busy.result() else Sign.NONE
    finally:
        for task in (answer, busy):
            task.cancel()


class Membership:
    """Roll call of a cluster's workers.

    A process that is stopped or unreachable stays on the scheduler's list for minutes. Its
    heartbeats stop immediately, though, so a worker without any for `lease` seconds is called
    silent, and queried. If it does not answer, it counts as lost, unless its nanny sees that its
    process is only busy: it compiles, or a task holds Python's lock, or other processes use the
    cores. This may last for ``daskml_dist.timeout`` seconds.

    Only the times at which heartbeats changed are used, measured by a monotonic clock. The
    scheduler's clock is only used to find when, between two roll calls, a heartbeat changed; no
    other clock is compared. Dask's own timers use the wall clock: if it is set back they are
    restarted, since otherwise a worker would send no heartbeat for that long.

    Parameters
    ----------
    client : distributed.Client
    lease : float or None
        Seconds; None: the configuration's ``daskml_dist.lease``, 3 by default. Dask's workers send
        a heartbeat every half second, or less often if there are many workers.
    """

    def __init__(self, client: Any, lease: float | None = None) -> None:
        self._client = client
        self._lease = lease or configured_lease()
        self._probes = _Probes(client, configured_timeout())
        self._last_heartbeats: dict[str, tuple[float, float]] = {}
        self._last_call = -1e9
        #: Wall clock minus monotonic clock at the last roll call.
        self._wall_clock = -math.inf
        #: Client's monotonic clock minus the scheduler's wall clock, or slightly more: the smallest
        #: difference seen between a heartbeat and a roll call.
        self._clock_lead = math.inf
        self._suspected_at = -1e9
        self._at_work: set[str] = set()
        #: Threads of each worker that may have a part in the run.
        self.threads: dict[str, int] = {}
        self._excluded: set[str] = set()
        #: Workers that are about to leave.
        self.leaving: set[str] = set()
        self._announced: set[str] = set()
        #: Workers at their memory limit, and since when: their running tasks continue and their
        #: data can be fetched, but they start no tasks.
        self.paused: dict[str, float] = {}
        self._workers: dict[str, dict[str, Any]] = {}
        #: Called before a wait for workers.
        self.on_wait: Callable[[], None] = ignore_event
        #: Returns a sentence about why workers were lost, for the error after waiting in vain.
        self.why_lost: Callable[[], str] = str

    def call(self) -> dict[str, int]:
        """Take the roll; return the threads of each worker that may have a part."""
        workers = list_workers(self._client)
        now = time.monotonic()
        # The client itself was suspended, so missing heartbeats do not show a loss.
        if now - self._last_call > _GAP:
            self._last_heartbeats.clear()
        last_call, self._last_call = self._last_call, now
        offset_before, self._wall_clock = self._wall_clock, time.time() - now
        if self._wall_clock < offset_before - _SET_BACK:
            renew_client_timers(self._client)
        quiet_workers = set()
        newest_beat = max((worker["last_seen"] for worker in workers.values()), default=-math.inf)
        self._clock_lead = min(self._clock_lead, now - newest_beat)
        for address, worker in workers.items():
            last_beat, _ = self._last_heartbeats.get(address, (-math.inf, now))
            # Only changes of the heartbeat are timed, by the client's clock. It arrived as long ago
            # as the scheduler reports, but not before the last roll call, even if the scheduler's
            # clock changes.
            if worker["last_seen"] != last_beat:
                arrival = (
                    worker["last_seen"] + self._clock_lead
                    if address in self._last_heartbeats
                    else now
                )
                self._last_heartbeats[address] = worker["last_seen"], max(arrival, last_call)
            else:
                quiet_workers.add(address)
            if worker["last_seen"] < last_beat - _SET_BACK:  # by the scheduler's clock
                renew_scheduler_timers(self._client)
                self._clock_lead = now - newest_beat
        self._probes.forget_others(quiet_workers)
        self._excluded &= set(workers)
        self._announced &= set(workers)
        self._workers = workers
        closing = {
            a for a, w in workers.items() if w.get("status") not in {*ACCEPTING_STATUSES, "paused"}
        }
        paused = {a for a, w in workers.items() if w.get("status") == "paused"}
        self.paused = {a: self.paused.get(a, now) for a in paused}
        self.leaving = closing | self._announced
        self.threads = {
            address: worker["nthreads"]
            for address, worker in workers.items()
            if address not in self._excluded
        }
        return self.threads

    @property
    def staying_workers(self) -> dict[str, int]:
        """Return the threads of each existing worker that is not about to leave."""
        return {a: threads for a, threads in self.threads.items() if a not in self.leaving}

    @property
    def ready(self) -> dict[str, int]:
        """Return the threads of workers that accept work; leaving ones only if alone."""
        begins = {
            a: n
            for a, n in self.threads.items()
            if self.get_worker_info(a).get("status") in ACCEPTING_STATUSES
        }
        return {a: n for a, n in begins.items() if a not in self.leaving} or begins

    def is_leaving(self, address: str) -> bool:
        """Return whether a worker should not be used, unless there are no others."""
        return address not in self.staying_workers and address not in self.ready

    def is_member(self, address: str) -> bool:
        """Return whether a worker still counts; takes the roll."""
        return not self.find_lost({address})

    def find_lost(self, addresses: Set[str]) -> Set[str]:
        """Return the workers that do not count any more; takes the roll once for all of them."""
        lost = addresses - self.call().keys()
        return lost | set(self.evict_stopped(addresses - lost))

    def begins_new_work(self, address: str) -> bool:
        """Return whether a worker starts new tasks; one that is paused for long does not."""
        since = self.paused.get(address)
        return since is None or time.monotonic() - since < SETTLED

    def get_worker_info(self, address: str) -> dict[str, Any]:
        """Return the scheduler's facts of a worker at the last roll call."""
        return self._workers.get(address, {})

    def evict_stopped(self, addresses: Iterable[str]) -> list[str]:
        """Evict the workers that send no heartbeats and give no sign of life; return them."""
        silent_workers = self.find_silent(addresses)
        if not silent_workers:
            return []
        # Busy event loops send heartbeats late, and workers whose clock was set back send none; a
        # direct query decides.
        signs = self._probes.probe(silent_workers)
        stopped = [address for address in silent_workers if signs[address] is Sign.NONE]
        for address in stopped:
            self.count_as_lost(address)
            evict_worker(self._client, address)
        return stopped

    def is_busy(self, address: str) -> bool:
        """Return whether a worker that has not answered in time is only busy; queries it."""
        return self._probes.probe([address])[address] is Sign.BUSY

    def find_silent(self, addresses: Iterable[str]) -> list[str]:
        """Return the workers without a heartbeat during the lease, as of the last roll call."""
        return [
            a
            for a in addresses
            if a in self._last_heartbeats
            and self._last_call - self._last_heartbeats[a][1] > self._find_lease(a)
        ]

    def _find_lease(self, address: str) -> float:
        """Return the seconds of silence after which a worker counts as stopped."""
        # Peers report a silent host when it acknowledges no data; two missing heartbeats are then
        # enough to query a worker.
        lease = min(self._lease, _SUSPECTED_LEASE) if self.has_suspicion else self._lease
        # Dask sends fewer heartbeats on large clusters.
        lease = max(lease, 4 * (len(self.threads) / 200))
        return lease if address in self._at_work else max(lease, _IMPORT)

    @property
    def has_suspicion(self) -> bool:
        """Return whether a host was reported as silent a moment ago; callable in any thread."""
        return time.monotonic() - self._suspected_at < _SUSPICION_SECONDS

    def note_work_begun(self, address: str) -> None:
        """Record that a worker has begun its part: from now on silence means a loss."""
        self._at_work.add(address)
        self._last_heartbeats.pop(address, None)

    def suspect_silence(self) -> None:
        """Record that a worker's host does not acknowledge data; callable in any thread."""
        self._suspected_at = time.monotonic()

    def count_as_lost(self, address: str) -> None:
        """Count a worker as gone for as long as the scheduler lists it."""
        self._excluded.add(address)
        self.threads.pop(address, None)

    def announce_leaving(self, address: str) -> None:
        """Count a worker as leaving for as long as it exists, whatever the scheduler reports."""
        self._announced.add(address)
        self.leaving.add(address)

    def wait_for_any_worker(self, timeout: float) -> dict[str, int]:
        """Wait until any worker accepts work; return the threads of all that do."""

        def list_workers() -> list[dict[str, Any]]:
            return [self.get_worker_info(address) for address in self.call()]

        if time.monotonic() - self._last_call < _FRESH and self.ready:
            return self.ready
        wait_for_workers(self._client, list_workers, timeout, self.on_wait, self.why_lost)
        return self.ready


def ignore_event(*event: Any) -> None:
    """Do nothing, as a listener."""


def _renew_and_answer(dask_worker: Any) -> int:
    """Restart timers that wait for a clock that was set back, on a worker that still answers."""
    return renew_timers(dask_worker)
