"""Faults: their kind, the affected worker, and their time in a fit, all drawn from a seed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from chaos.arenas import Arena
from daskml_dist.policies import POLICIES

__all__ = ["NETWORK_KINDS", "PROCESS_KINDS", "Fault", "Striker", "draw", "prepare"]

PROCESS_KINDS = ("kill", "stop", "stop_long", "retire", "scale", "join", "slow")
NETWORK_KINDS = ("partition", "partition_long", "slow_link")
ROLES = ("trainer", "server", "standby", "both", "random")

#: Number of passes of a fit under each policy, so that it lasts 1 to 3 s.
PASSES = {
    "sync": 25,
    "allreduce": 25,
    "local": 40,
    "average": 60,
    "ssp": 20,
    "async": 20,
    "hogwild": 40,
}
#: Range of the seconds that a fault lasts; the lease is 3 s.
SECONDS = {
    "stop": (0.2, 2.0),
    "stop_long": (4.0, 6.0),
    "slow": (1.0, 3.0),
    "scale": (0.2, 1.0),
    "partition": (0.2, 2.0),
    "partition_long": (4.0, 8.0),
    "slow_link": (1.0, 3.0),
}
#: A slow worker is stopped in the first part of each period; a slow link drops packets in it.
DUTY = {"slow": (0.05, 0.01), "slow_link": (0.02, 0.08)}


@dataclass(frozen=True)
class Fault:
    """One fault in one fit.

    Parameters
    ----------
    seed : int
    policy, kind, role : str
    after_pass : int
        Number of reported passes after which it happens; 0: at the start of the fit.
    delay : float
        Seconds from then until the fault.
    seconds : float
        Duration; 0 if that has no meaning.
    max_iter : int
    persisted : bool
        Whether the workers hold the rows.
    """

    seed: int
    policy: str
    kind: str
    role: str
    after_pass: int
    delay: float
    seconds: float
    max_iter: int
    persisted: bool


def draw(seed: int, kinds: tuple[str, ...]) -> Fault:
    """Return the fault of a seed; policies take turns, a generator draws the rest."""
    rng = np.random.default_rng(seed)
    policy = list(POLICIES)[seed % len(POLICIES)]
    kind = str(rng.choice(kinds))
    max_iter = PASSES[policy] * (2 if kind == "join" else 1)
    return Fault(
        seed=seed,
        policy=policy,
        kind=kind,
        role=str(rng.choice(ROLES)),
        after_pass=int(rng.integers(0, int(0.8 * max_iter))),
        delay=float(rng.uniform(0, 0.2)),
        seconds=float(rng.uniform(*SECONDS.get(kind, (0, 0)))),
        max_iter=max_iter,
        persisted=bool(rng.integers(2)),
    )


def prepare(fault: Fault, arena: Arena) -> None:
    """Restore the full cluster; if a worker is to join later, without that one."""
    arena.heal()
    if fault.kind == "join":
        arena.scale(arena.n_workers - 1)
        while len(arena.workers()) >= arena.n_workers:
            time.sleep(0.02)


class Striker:
    """Callback that injects a fault from a separate thread, and records the fit's reports.

    Parameters
    ----------
    fault : Fault
    arena : Arena
    """

    def __init__(self, fault: Fault, arena: Arena) -> None:
        self.fault = fault
        self.passes: list[int] = []
        #: Seconds from the fault to each new generation, and its description.
        self.generations: list[tuple[float, str]] = []
        self.victims: list[str] = []
        self.error: BaseException | None = None
        self.struck_at: float | None = None
        self._arena = arena
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def on_fit_begin(self, run: Any) -> None:
        self._start_when_due(run)

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.passes.append(record["pass"])
        self._start_when_due(run)

    def on_generation(self, run: Any, event: Any) -> None:
        self.generations.append((time.monotonic() - (self.struck_at or np.nan), str(event)))

    def on_fit_end(self, run: Any) -> None:
        self._ended.set()

    def join(self) -> None:
        """Wait for the end of the fault; raise an error that occurred in it."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self.error is not None:
            raise self.error

    def _start_when_due(self, run: Any) -> None:
        if self._thread is None and len(self.passes) >= self.fault.after_pass:
            self._thread = threading.Thread(target=self._strike, args=(run,), daemon=True)
            self._thread.start()

    def _strike(self, run: Any) -> None:
        if self._ended.wait(self.fault.delay):
            return
        try:
            self.victims = _victims(self.fault, self._arena, run)
            act = _ACTS[self.fault.kind](self.fault, self._arena, self.victims)
            self.struck_at = time.monotonic()
            act(self._ended)
        except BaseException as error:
            self.error = error


def _victims(fault: Fault, arena: Arena, run: Any) -> list[str]:
    """Return the workers that the fault hits; if none has the role, another one."""
    rng = np.random.default_rng([fault.seed, 1])
    workers = sorted(arena.workers())
    servers = [a for a in run.server_addresses if a in workers] or workers[:1]
    others = [a for a in workers if a not in servers]
    if fault.role in {"trainer", "both"} or fault.role == "standby":
        pool = arena.actors() & set(others) if fault.role == "standby" else set()
        other = [str(rng.choice(sorted(pool) or others or workers))]
        return other if fault.role != "both" else list({*servers[:1], *other})
    return servers[:1] if fault.role == "server" else [str(rng.choice(workers))]


# -- faults: each function prepares, and returns the action, which waits for the end of the fit ---

_Act = Callable[[threading.Event], Any]


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it may have been killed for being silent
            os.kill(pid, number)


def _kill(fault: Fault, arena: Arena, victims: list[str]) -> _Act:
    pids = arena.pids(victims)
    return lambda ended: _send(pids, signal.SIGKILL)


def _stop(fault: Fault, arena: Arena, victims: list[str]) -> _Act:
    pids = arena.pids(victims)

    def act(ended: threading.Event) -> None:
        _send(pids, signal.SIGSTOP)
        ended.wait(fault.seconds)
        _send(pids, signal.SIGCONT)

    return act


def _slow(fault: Fault, arena: Arena, victims: list[str]) -> _Act:
    pids = arena.pids(victims)
    return lambda ended: _duty(
        fault, ended, lambda: _send(pids, signal.SIGSTOP), lambda: _send(pids, signal.SIGCONT)
    )


def _duty(
    fault: Fault, ended: threading.Event, off: Callable[[], None], on: Callable[[], None]
) -> None:
    """Switch off and on repeatedly, until the fault is over or the fit has ended."""
    off_for, on_for = DUTY[fault.kind]
    deadline = time.monotonic() + fault.seconds
    while time.monotonic() < deadline and not ended.is_set():
        off()
        time.sleep(off_for)
        on()
        ended.wait(on_for)


def _retire(fault: Fault, arena: Arena, victims: list[str]) -> _Act:
    return lambda ended: arena.client.retire_workers(victims)


def _scale(fault: Fault, arena: Arena, victims: list[str]) -> _Act:
    def act(ended: threading.Event) -> None:
        arena.scale(arena.n_workers - 1)
        ended.wait(fault.seconds)
        arena.scale(arena.n_workers)

    return act


def _join(fault: Fault, arena: Arena, victims: list[str]) -> _Act:
    return lambda ended: arena.scale(arena.n_workers)


def _partition(fault: Fault, arena: Arena, victims: list[str]) -> _Act:
    def act(ended: threading.Event) -> None:
        arena.cut(victims)
        ended.wait(fault.seconds)
        arena.mend(victims)

    return act


def _slow_link(fault: Fault, arena: Arena, victims: list[str]) -> _Act:
    return lambda ended: _duty(
        fault, ended, lambda: arena.cut(victims), lambda: arena.mend(victims)
    )


_ACTS: dict[str, Callable[[Fault, Arena, list[str]], _Act]] = {
    "kill": _kill,
    "stop": _stop,
    "stop_long": _stop,
    "slow": _slow,
    "retire": _retire,
    "scale": _scale,
    "join": _join,
    "partition": _partition,
    "partition_long": _partition,
    "slow_link": _slow_link,
}
