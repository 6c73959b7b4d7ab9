"""Faults at one moment of a run's life, for every kind of work.

A seed from 200 on determines everything; smaller seeds are `faults`, only during training.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from chaos.arenas import Arena
from chaos.faults import PASSES
from daskml_dist.data import computing
from daskml_dist.policies import POLICIES
from daskml_dist.training.client.cluster_rows import ClusterRows
from daskml_dist.training.client.cluster_run import RunEnding, TrainingRun
from daskml_dist.training.client.generations import Generations
from daskml_dist.training.client.on_cluster import ClusterEngine

__all__ = ["NETWORK_TROUBLES", "PROCESS_TROUBLES", "Trouble", "TroubleMaker", "draw_trouble"]

PROCESS_TROUBLES = ("kill", "kill", "kills", "pause", "adapt", "restart", "stop", "retire")
NETWORK_TROUBLES = ("cut", "cut", "cuts", "kill")

#: Estimators and functions in addition to `SGDClassifier` under each policy.
WORKS = ("lbfgs", "least squares", "scaler", "metric")
#: Function whose call marks each moment of a run's life; "step" is marked by a callback.
MOMENTS: dict[str, tuple[Any, str]] = {
    "survey": (ClusterRows, "inspect_blocks"),
    "scales": (ClusterRows, "scales"),
    "placement": (ClusterEngine, "choose_lanes"),
    "rendezvous": (Generations, "_deliver_parts"),
    "report": (TrainingRun, "_report_passes"),
    "gather": (RunEnding, "gather"),
    "clean-up": (RunEnding, "clean_up"),
    "read": (computing, "compute"),
}
#: Moments of a fit by steps; other work has no scales, and no passes worth testing.
OF_STEPS = ("survey", "placement", "rendezvous", "step", "report", "gather", "clean-up")
OF_ROUNDS = ("survey", "placement", "rendezvous", "gather", "clean-up")
#: Seconds between two losses of a repeated fault, and their largest number.
EVERY, MOST = 2.2, 4


@dataclass(frozen=True)
class Trouble:
    """One fault in one piece of work.

    Parameters
    ----------
    seed : int
    work : str
        A policy of `SGDClassifier`, or one of `WORKS`.
    kind, moment : str
    at_once : bool
        Whether the client waits while it happens; otherwise it continues.
    after : int
        Number of times the moment must occur.
    delay, seconds : float
        Seconds from the moment to the fault, and its duration.
    rows : {"lazy", "persisted", "memory"}
    max_iter : int
    """

    seed: int
    work: str
    kind: str
    moment: str
    at_once: bool
    after: int
    delay: float
    seconds: float
    rows: str
    max_iter: int


def draw_trouble(seed: int, kinds: tuple[str, ...]) -> Trouble:
    """Return the fault of a seed; kinds of work take turns, a generator draws the rest."""
    rng = np.random.default_rng([seed, 2])
    works = [*POLICIES, *WORKS]
    work = works[seed % len(works)]
    moments = OF_STEPS if work in POLICIES else OF_ROUNDS
    moment = "read" if work in ("scaler", "metric") else str(rng.choice(moments))
    return Trouble(
        seed=seed,
        work=work,
        kind=str(rng.choice(kinds)),
        moment=moment,
        at_once=bool(rng.integers(2)),
        after=int(rng.integers(1, 10)) if moment == "report" else 1,
        delay=float(rng.uniform(0, 0.6 if moment in ("survey", "step", "read") else 0.1)),
        seconds=float(rng.uniform(0.5, 4)),
        rows=str(rng.choice(["lazy", "persisted", "memory"]) if moment != "read" else "lazy"),
        max_iter=PASSES.get(work, 40) // 2,
    )


class TroubleMaker:
    """Injector of the fault at its moment; also a callback, for moments between steps.

    Parameters
    ----------
    trouble : Trouble
    arena : Arena
    """

    def __init__(self, trouble: Trouble, arena: Arena) -> None:
        self.trouble = trouble
        self.passes: list[int] = []
        self.victims: list[str] = []
        self.error: BaseException | None = None
        self._arena = arena
        self._rng = np.random.default_rng([trouble.seed, 3])
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen = 0
        #: Seconds that the work took.
        self.seconds = float("nan")

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.passes.append(record["pass"])
        if self.trouble.moment == "step":
            self._see()

    @property
    def struck(self) -> bool:
        """Return whether the moment of the fault came."""
        return self._thread is not None

    @contextmanager
    def at_its_moment(self) -> Iterator[None]:
        """Watch for the moment while the work is done."""
        place = MOMENTS.get(self.trouble.moment)
        with ExitStack() as stack:
            if place is not None:
                owner, name = place
                inner = getattr(owner, name)
                stack.enter_context(mock.patch.object(owner, name, self._watched(inner)))
            try:
                yield
            finally:
                self._ended.set()
                if self._thread is not None:
                    self._thread.join()
        if self.error is not None:
            raise self.error

    def _watched(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **more: Any) -> Any:
            self._see()
            return inner(*args, **more)

        return watched

    def _see(self) -> None:
        self._seen += 1
        if self._thread is not None or self._seen < self.trouble.after:
            return
        self._thread = threading.Thread(target=self._strike, daemon=True)
        begun = threading.Event()
        self._begun = begun
        self._thread.start()
        if self.trouble.at_once:
            begun.wait(10)

    def _strike(self) -> None:
        try:
            self._ended.wait(0 if self.trouble.at_once else self.trouble.delay)
            _ACTS[self.trouble.kind](self)
        except BaseException as error:
            self.error = error
        finally:
            self._begun.set()

    # -- faults --------------------------------------------------------------------------------

    def _victim(self) -> str | None:
        workers = sorted(self._arena.workers())
        victim = str(self._rng.choice(workers)) if workers else None
        if victim is not None:
            self.victims.append(victim)
        return victim

    def _pids(self, victim: str | None) -> list[int]:
        if victim is None:
            return []
        with suppress(Exception):  # the worker may have gone in the meantime
            return self._arena.pids([victim])
        return []

    def _send(self, number: signal.Signals, pids: list[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _kill(self) -> None:
        self._send(signal.SIGKILL, self._pids(self._victim()))
        self._begun.set()

    def _kills(self) -> None:
        for _ in range(MOST):
            self._kill()
            if self._ended.wait(EVERY):
                return

    def _stop(self) -> None:
        pids = self._pids(self._victim())
        self._send(signal.SIGSTOP, pids)
        self._begun.set()
        time.sleep(min(self.trouble.seconds, 2))
        self._send(signal.SIGCONT, pids)

    def _pause(self) -> None:
        victim = self._victim()
        self._set_pause(victim, 1e-9)
        self._begun.set()
        self._ended.wait(self.trouble.seconds)
        self._set_pause(victim, 0.8)

    def _set_pause(self, victim: str | None, share: float) -> None:
        def pause_at(share: float, dask_worker: Any) -> None:  # local, so pickled by value
            dask_worker.memory_manager.memory_pause_fraction = share

        if victim in self._arena.workers():
            with suppress(Exception):
                self._arena.client.run(pause_at, share, workers=[victim])

    def _restart(self) -> None:
        victim = self._victim()
        self._begun.set()
        with suppress(Exception):
            self._arena.client.restart_workers([victim], timeout=20, raise_for_error=False)

    def _retire(self) -> None:
        victim = self._victim()
        self._begun.set()
        with suppress(Exception):
            self._arena.client.retire_workers([victim])

    def _adapt(self) -> None:
        self._arena.adapt(int(self._rng.integers(0, 2)))
        self._begun.set()
        self._ended.wait(2 * self.trouble.seconds)
        self._arena.end_adapting()

    def _cut(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._arena.cut([victim])
            self._begun.set()
            self._ended.wait(2 * self.trouble.seconds)
            self._arena.mend([victim])

    def _cuts(self) -> None:
        for _ in range(MOST):
            self._cut()
            if self._ended.wait(1):
                return


_ACTS: dict[str, Callable[[TroubleMaker], None]] = {
    name: getattr(TroubleMaker, f"_{name}") for name in {*PROCESS_TROUBLES, *NETWORK_TROUBLES}
}
