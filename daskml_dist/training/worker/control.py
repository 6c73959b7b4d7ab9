"""Orders of a client to the trainers of a process while they run, and what they tell it.

Trainers are tasks that run for as long as the fit; Dask has no way to speak to a running task. So
the client leaves orders in the worker's process (`Client.run`), where trainers look at each wait,
and trainers and servers raise an alarm (`Worker.log_event`) when somebody they talk to is gone.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from daskml_dist.comm.base import SLICE
from daskml_dist.comm.local import count_servers
from daskml_dist.dask_internals.cluster import count_actors, forget_closing
from daskml_dist.errors import MessageError, RunAbortedError, TrainingError
from daskml_dist.training.interrupts import unshield
from daskml_dist.training.spec import TrainerSpec
from daskml_dist.training.worker.notifications import note_end

__all__ = [
    "TOPIC",
    "Alarm",
    "Line",
    "abort_run",
    "at_work",
    "forget_run",
    "give_orders",
    "raise_alarm",
    "say_farewell",
    "say_hello",
    "take_leave",
    "tidy",
    "to_alarm",
]

#: Topic of the alarms of all runs.
TOPIC = "daskml_dist"
#: Seconds for which a worker that closes waits; cluster managers kill it after four.
_LEAVE = 3.0
#: Seconds between two looks at what is left of a run.
_TIDY = 0.5

Order = tuple[int, TrainerSpec | None]

_orders: dict[str, dict[int, Order]] = {}
_aborted: set[str] = set()
_farewells: set[str] = set()
_trainers: Counter[str] = Counter()
#: Runs that are to be forgotten soon, each with what is set when something of it ended.
_tidying: dict[str, asyncio.Event] = {}
_changed = threading.Condition()


# -- called by the client, in the worker's process -------------------------------------------------


def give_orders(run_id: str, generation: int, specs: Mapping[int, TrainerSpec | None]) -> None:
    """Tell trainers, by name, their part in a generation; None: no part."""
    with _changed:
        run = _orders.setdefault(run_id, {})
        run.update({name: (generation, spec) for name, spec in specs.items()})
        _changed.notify_all()


def abort_run(run_id: str) -> None:
    """Make the trainers of a run in this process stop at their next wait."""
    with _changed:
        _aborted.add(run_id)
        _changed.notify_all()


def say_farewell(run_id: str) -> None:
    """Let this worker close: the run needs it no more."""
    _farewells.add(run_id)


async def forget_run(run_id: str, dask_worker: Any) -> int:
    """Forget a run, once its trainers are gone; return how many actors of it are still there.

    A fit that has ended well leaves it to the worker, in whose event loop it is called.
    """
    unshield(run_id)
    note_end(dask_worker, run_id)
    with _changed:
        _aborted.discard(run_id)
        _orders.pop(run_id, None)
        _farewells.add(run_id)
    await forget_closing(dask_worker, run_id)
    _farewells.discard(run_id)
    return count_actors(dask_worker, run_id)


@contextmanager
def at_work(worker: Any, run_id: str) -> Iterator[None]:
    """While a trainer of a run is at work in this process; afterwards nothing of it stays."""
    with _changed:
        _trainers[run_id] += 1
    try:
        yield
    finally:
        with _changed:
            _trainers[run_id] -= 1
            if not _trainers[run_id]:
                del _trainers[run_id]  # here: a cluster inside the process may end with the fit
        note_end(worker, run_id)
        tidy(worker, run_id)


def _is_here(run_id: str) -> bool:
    """Whether a trainer or a server of a run is at work in this process."""
    return bool(_trainers.get(run_id)) or count_servers(run_id) > 0


def tidy(worker: Any, run_id: str) -> None:
    """Forget a run once nothing of it is left in this process: its client may have died."""

    async def forget() -> None:
        if run_id in _tidying:
            _tidying[run_id].set()
            return
        ended = _tidying[run_id] = asyncio.Event()
        try:
            while _is_here(run_id):
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), _TIDY)
                ended.clear()
            await forget_run(run_id, worker)
        finally:
            del _tidying[run_id]

    with suppress(Exception):  # the worker itself is closing
        worker.loop.add_callback(forget)


# -- the trainer's side ----------------------------------------------------------------------------


class Line:
    """A trainer's line to its client.

    Parameters
    ----------
    spec : TrainerSpec
        Of the generation that it begins in.
    alarm : callable
        Takes the error, for the client, the spec that the trainer cannot go on with, and the clock
        that each lane had reached.
    is_wanted : callable
        Whether the cluster still wants the trainer's result.
    patience : float
        Seconds to wait for an order.
    """

    def __init__(
        self,
        spec: TrainerSpec,
        alarm: Callable[[Exception, TrainerSpec, dict[int, int]], None],
        is_wanted: Callable[[], bool],
        patience: float,
    ) -> None:
        self._run, self._name = spec.run_id, spec.name
        self._generation = spec.generation
        self._alarm = alarm
        self._is_wanted = is_wanted
        self._patience = patience

    def is_aborted(self) -> bool:
        """Whether the client ended the run."""
        return self._run in _aborted

    def rest(self) -> None:
        """Look, between two steps, whether the client ended the run.

        Raises
        ------
        RunAbortedError
        """
        if self._run in _aborted:
            raise RunAbortedError("The fit was stopped by its client.")

    def is_renewed(self) -> bool:
        """Whether there is an order of a newer generation."""
        order = _orders.get(self._run, {}).get(self._name)
        return order is not None and order[0] > self._generation

    def next_spec(
        self, spec: TrainerSpec, error: TrainingError, reached: dict[int, int]
    ) -> TrainerSpec | None:
        """Wait for the order of the next generation; None: the trainer has no part in it.

        Raises
        ------
        TrainingError
            The given one: the run has ended, or no order came.
        """
        if type(error) is RunAbortedError:
            raise error
        self._alarm(error, spec, reached)
        deadline = time.monotonic() + self._patience
        with _changed:
            while not self.is_renewed():
                if self.is_aborted() or not self._is_wanted() or time.monotonic() > deadline:
                    raise error
                _changed.wait(SLICE)
            self._generation, order = _orders[self._run][self._name]
        return order


# -- alarms ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alarm:
    """Something that the client of a run must know at once.

    Parameters
    ----------
    message : str
    trainer : int or None
        Name of the trainer that waits for orders because of it, or that has begun.
    generation : int
        The one that it cannot go on in.
    reached : sequence of (lane, clock)
        How far its lanes had come.
    leaving : str or None
        Address of a worker that is about to leave.
    at_work : str or None
        Address of a worker that has begun its part; no cause for alarm.
    garbled : bool
        Whether its cause is a message without a meaning.
    job : str or None
        Job of Slurm that the worker has begun in.
    """

    message: str
    trainer: int | None = None
    generation: int = 0
    reached: Sequence[tuple[int, int]] = ()
    leaving: str | None = None
    at_work: str | None = None
    garbled: bool = False
    job: str | None = None


def raise_alarm(
    worker: Any,
    run_id: str,
    cause: Exception | str,
    spec: TrainerSpec | None = None,
    reached: Mapping[int, int] | None = None,
) -> None:
    """Tell the client of a run, at once, that something is wrong.

    Parameters
    ----------
    worker : distributed.Worker
    run_id : str
    cause : Exception or str
    spec : TrainerSpec or None
        Of a trainer that waits for orders because of it.
    reached : mapping of lane to clock, or None
        How far its lanes had come.
    """
    told: dict[str, Any] = {"run": run_id, "message": str(cause)}
    told["garbled"] = isinstance(cause, MessageError)
    if spec is not None:
        told |= {"trainer": spec.name, "generation": spec.generation}
        told["reached"] = list((reached or {}).items())
    _send(worker, told)


def say_hello(worker: Any, run_id: str, trainer: int | None = None) -> None:
    """Tell the client that this worker has begun its part, and which trainer that is."""
    told = {"run": run_id, "message": "at work", "at_work": worker.address, "trainer": trainer}
    if job := os.environ.get("SLURM_JOB_ID"):
        told["job"] = job
    _send(worker, told)


def _send(worker: Any, told: dict[str, Any]) -> None:
    with suppress(Exception):  # a worker that is closing cannot tell anybody
        worker.log_event(TOPIC, told)


async def take_leave(worker: Any, run_id: str) -> None:
    """Tell the client that this worker is about to close, and wait until it may (or must).

    After the fit nobody says so: then nothing of it is here any more.
    """
    _send(worker, {"run": run_id, "message": "leaving", "leaving": worker.address})
    deadline = time.monotonic() + _LEAVE
    while _is_here(run_id) and run_id not in _farewells and time.monotonic() < deadline:
        await asyncio.sleep(0.02)


def to_alarm(told: dict[str, Any]) -> Alarm:
    """An alarm as it was raised."""
    keys = ("trainer", "generation", "reached", "leaving", "at_work", "garbled", "job")
    return Alarm(told["message"], **{key: told[key] for key in keys if key in told})
