"""Faults injected into the workers of a fit, and records of the reactions of their lanes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster, WorkerPlugin
from distributed.utils import get_mp_context

WORKERS = 3
#: Faults come up to this many seconds later, at random: not at a fixed phase of the client's own
#: checks of the fit.
JITTER = 0.2


class Until:
    """Callback that ends a fit after a number of seconds of passes."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.left -= record["seconds"]
        if self.left <= 0:
            run.stop()


class PassClock:
    """Callback that times passes by the wall clock: records leave out the cost of losses."""

    def __init__(self, seconds: float = np.inf) -> None:
        #: The fit ends this many seconds after its first pass.
        self._seconds = seconds
        self._first = 0.0
        self._by_pass: dict[int, float] = {}

    @property
    def closed(self) -> list[float]:
        """Return the second at which each pass closed; for a repeated pass, the last time."""
        return list(self._by_pass.values())

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        now = time.monotonic()
        self._first = self._first or now
        self._by_pass[record["pass"]] = now - self._first
        if now - self._first > self._seconds:
            run.stop()


class Striker:
    """Callback that kills or stops a random worker at regular times, from the first pass on.

    Parameters
    ----------
    client : Client
    every : float
        Seconds between two faults.
    first : float or None, default=None
        Seconds before the first fault; None: `every`.
    killed_share : float, default=1.0
        Share of the faults that are kills.
    stopped : tuple of float
        Minimum and maximum of the seconds for which a process is stopped.
    """

    def __init__(
        self,
        client: Client,
        every: float,
        killed_share: float = 1.0,
        stopped: tuple[float, float] = (1.0, 1.0),
        first: float | None = None,
    ) -> None:
        self._client, self._every = client, every
        self._first = every if first is None else first
        self._killed_share, self._stopped = killed_share, stopped
        self._draw = random.Random(0)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        #: The fit, as passed to callbacks, from the first pass on.
        self._run: Any = None
        self.kills = self.stops = 0

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self._run = run
        if self._thread is None:
            self._thread = threading.Thread(target=self._strike_on)
            self._thread.start()

    def on_fit_end(self, run: Any) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _strike_on(self) -> None:
        due = time.monotonic() + self._first
        while not self._over.wait(max(0.0, due - time.monotonic())):
            due += self._every
            self.strike()

    def strike(self) -> None:
        """Kill or stop a random worker now; return when it is dead or has resumed."""
        with contextlib.suppress(OSError, ProcessLookupError):
            self._strike(self._draw.choice(sorted(self._client.run(os.getpid).values())))

    def _strike(self, pid: int) -> None:
        if self._draw.random() < self._killed_share:
            os.kill(pid, signal.SIGKILL)
            self.kills += 1
            return
        os.kill(pid, signal.SIGSTOP)
        self.stops += 1
        self._over.wait(self._draw.uniform(*self._stopped))
        os.kill(pid, signal.SIGCONT)


@dataclass
class Strike:
    """Callback that signals workers from a separate thread, some seconds after the first pass."""

    client: Client
    pids: dict[str, int]
    who: str
    after: float
    signal: signal.Signals
    at: float = np.inf
    victims: list[str] = field(default_factory=list)
    lanes: set[int] = field(default_factory=set)
    events: list[tuple[float, Any]] = field(default_factory=list)
    thread: threading.Thread | None = None
    over: bool = False

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self._strike, args=(run,))
            self.thread.start()

    def on_generation(self, run: Any, event: Any) -> None:
        self.events.append((time.monotonic(), event))
        if self.signal == signal.SIGSTOP:
            run.stop()  # everything has been observed

    def on_fit_end(self, run: Any) -> None:
        self.over = True

    def _strike(self, run: Any) -> None:
        self.victims = victims_of(run, self.who)
        if self.after:
            time.sleep(self.after + np.random.default_rng().uniform(0, JITTER))
            lives = self.client.run(lives_of_lanes, workers=self.victims)
            self.lanes = {life.lane for there in lives.values() for life in there}
        if self.over:
            return
        self.at = time.monotonic()
        for address in self.victims:
            os.kill(self.pids[address], self.signal)

    def struck(self) -> bool:
        """Return whether the fit was hit, and noticed it."""
        if self.thread is not None:
            self.thread.join()
        return bool(self.events)


def victims_of(run: Any, who: str) -> list[str]:
    """Return the server's worker, and the last of the workers without a server."""
    server = run.server_addresses[0]
    trainer = max(set(run.trainer_addresses) - {server})
    return {"trainer": [trainer], "server": [server], "both": [server, trainer]}[who]


@contextlib.contextmanager
def open_workers(n_workers: int, preload: str, **options: Any) -> Iterator[Client]:
    """Open workers that are restarted when lost, forked from a process that imported a module."""
    config = {
        # By default a cluster gives up a worker that is missing 15 s after a loss.
        "distributed.deploy.lost-worker-timeout": "1h",
        "distributed.worker.multiprocessing-method": "forkserver",
    }
    with dask.config.set(config):
        # Restarted workers do not import everything again, which leaves the cores to the fit.
        get_mp_context().set_forkserver_preload([preload, "daskml_dist.training.worker.host"])
        cluster = LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
            silence_logs=50,
            **options,
        )
        with cluster, Client(cluster) as client:
            yield client


def all_there(client: Client, n_workers: int = WORKERS) -> dict[str, int]:
    """Wait until lost workers have been replaced, and return the process id of each."""
    while True:
        with contextlib.suppress(OSError):  # a worker that is just being lost
            found = client.run(forget)
            if len(found) == n_workers:
                return found
        time.sleep(0.05)


def find_standbys(client: Client, run: Any) -> dict[int, tuple[str, set[int]]]:
    """Return, by server number, the worker of its standby and the positions of its snapshots."""
    found = client.run(_list_standbys, run.run_id)
    return {number: (address, places) for address, some in found.items() for number, places in some}


def have_standbys(client: Client, run: Any) -> bool:
    """Return whether lanes in lock-step could resume from the standbys of all servers."""
    kept = [places for _, places in find_standbys(client, run).values()]
    return len(kept) == len(run.server_addresses) > 0 and bool(set.intersection(*kept))


# -- on a worker -----------------------------------------------------------------------------------


@dataclass
class Life:
    """Steps of a lane on one worker in one generation."""

    lane: int
    since: float
    first_clock: int
    steps: int = 1


_noted: list[Life] = []


class Watch(WorkerPlugin):
    """Plugin that watches the lanes of every worker, including restarted ones."""

    def setup(self, worker: Any) -> None:
        _watch_lanes()


def _watch_lanes() -> None:
    """Record from now on when lanes step."""
    from daskml_dist.training.worker.lane import Lane

    add_gradient = Lane.add_gradient

    def noting(self: Any, w: Any, batch: Any, out: Any) -> None:
        add_gradient(self, w, batch, out)
        # Each generation has its own `Lane` objects.
        if hasattr(self, "life"):
            self.life.steps += 1
        else:
            self.life = Life(self.number, time.monotonic(), self.clock)
            _noted.append(self.life)

    Lane.add_gradient = noting  # type: ignore[method-assign]


def forget() -> int:
    """Delete all records; return the process id."""
    _noted.clear()
    return os.getpid()


def lives_of_lanes() -> list[Life]:
    return list(_noted)


def _list_standbys(run_id: str, dask_worker: Any) -> list[tuple[int, set[int]]]:
    from daskml_dist.training.worker.host import ServerHost

    hosts = [host for host in dask_worker.state.actors.values() if isinstance(host, ServerHost)]
    return [
        (host._server_index, set(host._server.get_snapshot_clocks()))
        for host in hosts
        # A host that has just been created has no server yet.
        if host.run_id == run_id and "_server" in vars(host) and host._server.generation < 0
    ]
