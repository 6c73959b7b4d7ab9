"""Strikes at the workers of a fit, and what their lanes did then, noted where they ran."""

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
#: Strikes come so many seconds later, at random: at no fixed moment of the client's own looks at
#: the fit.
JITTER = 0.2


class Until:
    """Ends a fit after so many seconds of passes."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.left -= record["seconds"]
        if self.left <= 0:
            run.stop()


class PassClock:
    """Notes when passes close, by a wall clock: records leave out what losses cost."""

    def __init__(self, seconds: float = np.inf) -> None:
        #: The fit ends so many seconds after its first pass.
        self._seconds = seconds
        self._first = 0.0
        self._by_pass: dict[int, float] = {}

    @property
    def closed(self) -> list[float]:
        """Seconds at which each pass closed, by the last time where one was made again."""
        return list(self._by_pass.values())

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        now = time.monotonic()
        self._first = self._first or now
        self._by_pass[record["pass"]] = now - self._first
        if now - self._first > self._seconds:
            run.stop()


class Striker:
    """Kills or stops a drawn worker at even times, from the first pass of a fit to its end.

    Parameters
    ----------
    client : Client
    every : float
        Seconds between two strikes.
    first : float or None, default=None
        Seconds before the first one; None: `every`.
    killed_share : float, default=1.0
        Share of the strikes that are kills.
    stopped : tuple of float
        Seconds for which a process is stopped, at least and at most.
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
        #: The fit, as its callbacks see it, from the first pass on.
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
        """Kill or stop a drawn worker now; return when it is dead or goes on."""
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
    """Signals workers of a fit from a thread of its own, some seconds after the first pass."""

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
            run.stop()  # all is seen

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
        """Whether the fit was hit, and noticed."""
        if self.thread is not None:
            self.thread.join()
        return bool(self.events)


def victims_of(run: Any, who: str) -> list[str]:
    """The server's worker, and the last of those without one."""
    server = run.server_addresses[0]
    trainer = max(set(run.trainer_addresses) - {server})
    return {"trainer": [trainer], "server": [server], "both": [server, trainer]}[who]


@contextlib.contextmanager
def open_workers(n_workers: int, preload: str, **options: Any) -> Iterator[Client]:
    """Workers that come back when they are lost, forked of a process that imported a module."""
    config = {
        # By default a cluster gives up a worker that happens to be away 15 s after a loss.
        "distributed.deploy.lost-worker-timeout": "1h",
        "distributed.worker.multiprocessing-method": "forkserver",
    }
    with dask.config.set(config):
        # Lost workers come back without importing all again, which leaves the cores to the fit.
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
    """Wait for lost workers to come back, and return the process of each."""
    while True:
        with contextlib.suppress(OSError):  # one that is just being lost
            found = client.run(forget)
            if len(found) == n_workers:
                return found
        time.sleep(0.05)


def find_standbys(client: Client, run: Any) -> dict[int, tuple[str, set[int]]]:
    """The worker of each server's standby, by the server's number, and the places that it keeps."""
    found = client.run(_list_standbys, run.run_id)
    return {number: (address, places) for address, some in found.items() for number, places in some}


def have_standbys(client: Client, run: Any) -> bool:
    """Whether lanes in lock-step could go on from the standbys of all servers."""
    kept = [places for _, places in find_standbys(client, run).values()]
    return len(kept) == len(run.server_addresses) > 0 and bool(set.intersection(*kept))


# -- on a worker -----------------------------------------------------------------------------------


@dataclass
class Life:
    """A lane's steps on one worker in one generation."""

    lane: int
    since: float
    first_clock: int
    steps: int = 1


_noted: list[Life] = []


class Watch(WorkerPlugin):
    """Watches the lanes of every worker, those that come back too."""

    def setup(self, worker: Any) -> None:
        _watch_lanes()


def _watch_lanes() -> None:
    """Note from now on when lanes step."""
    from daskml_dist.training.worker.lane import Lane

    add_gradient = Lane.add_gradient

    def noting(self: Any, w: Any, batch: Any, out: Any) -> None:
        add_gradient(self, w, batch, out)
        # A generation has `Lane` objects of its own.
        if hasattr(self, "life"):
            self.life.steps += 1
        else:
            self.life = Life(self.number, time.monotonic(), self.clock)
            _noted.append(self.life)

    Lane.add_gradient = noting  # type: ignore[method-assign]


def forget() -> int:
    """Forget what was noted; return the process."""
    _noted.clear()
    return os.getpid()


def lives_of_lanes() -> list[Life]:
    return list(_noted)


def _list_standbys(run_id: str, dask_worker: Any) -> list[tuple[int, set[int]]]:
    from daskml_dist.training.worker.host import ServerHost

    hosts = [host for host in dask_worker.state.actors.values() if isinstance(host, ServerHost)]
    return [
        (host._number, set(host._server.kept()))
        for host in hosts
        # One that has just been made has no server yet.
        if host.run_id == run_id and "_server" in vars(host) and host._server.generation < 0
    ]
