"""Control of trainers by the client, and alarms from trainers and servers to the client.

Trainers are tasks that run as long as the fit, and Dask cannot send messages to a running task. So
the client stores orders in the worker's process (`Client.run`), which trainers check during each
wait. Trainers and servers raise an alarm (`Worker.log_event`) when a peer of theirs is lost.
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

from daskml_dist.comm.base import CHECK_SECONDS
from daskml_dist.comm.server_connections import count_servers
from daskml_dist.dask_internals.cluster import count_actors, forget_before_closing
from daskml_dist.dask_internals.interrupt_shields import end_shield
from daskml_dist.errors import MessageError, RunAbortedError, SilentPeerError, TrainingError
from daskml_dist.training.spec import TrainerSpec
from daskml_dist.training.worker.kept_values import forget_kept_values
from daskml_dist.training.worker.notifications import note_trainer_end

#: Topic of the alarms of all runs in Dask's event log.
TOPIC = "daskml_dist"
#: Seconds for which a closing worker waits; cluster managers kill it after four.
_LEAVE_SECONDS = 3.0
#: Seconds between two checks of what remains of a run.
_TIDY_POLL = 0.5

Order = tuple[int, TrainerSpec | None]

_orders: dict[str, dict[int, Order]] = {}
_aborted: set[str] = set()
_released: set[str] = set()
_trainers: Counter[str] = Counter()
#: Runs that a worker will forget soon, by run and worker (a process may have several workers), each
#: with an event that is set when a part of the run has ended.
_tidying: dict[tuple[str, str], asyncio.Event] = {}
_changed = threading.Condition()

# -- called by the client, in the worker's process -------------------------------------------------


def give_generation_orders(
    run_id: str, generation: int, specs: Mapping[int, TrainerSpec | None]
) -> None:
    """Set the part of trainers, by name, in a generation; None dismisses a trainer."""
    with _changed:
        # Only the newest order for each trainer counts.
        run = _orders.setdefault(run_id, {})
        run.update({name: (generation, spec) for name, spec in specs.items()})
        _changed.notify_all()


def abort_run(run_id: str) -> None:
    """Make the trainers of a run in this process stop at their next wait."""
    with _changed:
        _aborted.add(run_id)
        _changed.notify_all()


def release_worker(run_id: str) -> None:
    """Allow this worker to close: the run does not need it any more."""
    _released.add(run_id)


async def forget_run(run_id: str, dask_worker: Any) -> int:
    """Forget a run once its trainers are gone; return how many of its actors remain.

    After a successful fit the worker does this itself. It is called in the worker's event loop.
    """
    # Restore the normal effect of Ctrl-C in this process.
    end_shield(run_id)
    note_trainer_end(dask_worker, run_id)
    with _changed:
        _aborted.discard(run_id)
        _orders.pop(run_id, None)
        forget_kept_values(run_id)
        _released.add(run_id)
    await forget_before_closing(dask_worker, run_id)
    _released.discard(run_id)
    return count_actors(dask_worker, run_id)


@contextmanager
def count_working_trainer(worker: Any, run_id: str) -> Iterator[None]:
    """Count a trainer of a run as working in this process; clean up after the last one."""
    with _changed:
        _trainers[run_id] += 1
    try:
        yield
    finally:
        with _changed:
            _trainers[run_id] -= 1
            if not _trainers[run_id]:
                del _trainers[run_id]  # now: a cluster in this process may end with the fit
        note_trainer_end(worker, run_id)
        forget_when_inactive(worker, run_id)


def _is_run_active(run_id: str) -> bool:
    """Return whether a trainer or a server of a run is active in this process."""
    return bool(_trainers.get(run_id)) or count_servers(run_id) > 0


def forget_when_inactive(worker: Any, run_id: str) -> None:
    """Forget a run once no part of it is left in this process, even if its client died."""

    async def forget() -> None:
        """Wait until the run is inactive, then forget it."""
        # Several workers of one process share the run's parts, but each has its own plugin.
        for (run, _), event in _tidying.items():
            if run == run_id:
                event.set()
        name = run_id, worker.address
        if name in _tidying:
            return
        ended = _tidying[name] = asyncio.Event()
        try:
            # The client may be gone, so the trainers and servers themselves are polled.
            while _is_run_active(run_id):
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), _TIDY_POLL)
                ended.clear()
            await forget_run(run_id, worker)
        finally:
            del _tidying[name]

    with suppress(Exception):  # the worker itself is closing
        worker.loop.add_callback(forget)


# -- the trainer's side ----------------------------------------------------------------------------


class ClientLine:
    """Connection of a running trainer to its client.

    Parameters
    ----------
    spec : TrainerSpec
        Spec of the generation in which it begins.
    alarm : callable
        Takes the error (for the client), the spec with which the trainer cannot continue, and the
        clock that each lane had reached.
    is_wanted : callable
        Returns whether the cluster still wants the trainer's result.
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
        """Return whether the client has ended the run."""
        return self._run in _aborted

    def raise_if_aborted(self) -> None:
        """Raise if the client has ended the run; called between two steps."""
        if self._run in _aborted:
            raise RunAbortedError("The fit was stopped by its client.")

    def is_renewed(self) -> bool:
        """Return whether an order for a newer generation has arrived."""
        order = _orders.get(self._run, {}).get(self._name)
        return order is not None and order[0] > self._generation

    def next_spec(
        self, spec: TrainerSpec, error: TrainingError, reached: dict[int, int]
    ) -> TrainerSpec | None:
        """Raise the alarm and wait for the next generation's order; None dismisses the trainer."""
        # The client itself has aborted the run, so no order will follow.
        if type(error) is RunAbortedError:
            raise error
        # The alarm comes first, since the client starts the next generation in response to it.
        self._alarm(error, spec, reached)
        deadline = time.monotonic() + self._patience
        # Orders and aborts notify the condition; the timeout is for checking that the client still
        # exists.
        with _changed:
            while not self.is_renewed():
                if self.is_aborted() or not self._is_wanted() or time.monotonic() > deadline:
                    raise error
                _changed.wait(CHECK_SECONDS)
            self._generation, order = _orders[self._run][self._name]
        return order


# -- alarms ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alarm:
    """Message that the client of a run must receive without delay.

    Parameters
    ----------
    message : str
    trainer : int or None
        Name of the trainer that waits for an order because of it, or that has begun.
    generation : int
        Generation in which the trainer cannot continue.
    reached : sequence of (lane, clock)
        Clock that each of its lanes had reached.
    leaving : str or None
        Address of a worker that is about to leave.
    at_work : str or None
        Address of a worker that has begun its part; not an error.
    garbled : bool
        Whether the cause is a malformed message.
    silent : bool
        Whether the cause is a host that does not acknowledge data.
    job : str or None
        Slurm job in which the worker has begun.
    """

    message: str
    trainer: int | None = None
    generation: int = 0
    reached: Sequence[tuple[int, int]] = ()
    leaving: str | None = None
    at_work: str | None = None
    garbled: bool = False
    silent: bool = False
    job: str | None = None


def raise_alarm(
    worker: Any,
    run_id: str,
    cause: Exception | str,
    spec: TrainerSpec | None = None,
    reached: Mapping[int, int] | None = None,
) -> None:
    """Report a problem to the client of a run without delay."""
    event: dict[str, Any] = {"run": run_id, "message": str(cause)}
    event["garbled"] = isinstance(cause, MessageError)
    event["silent"] = isinstance(cause, SilentPeerError)
    if spec is not None:
        event |= {"trainer": spec.name, "generation": spec.generation}
        event["reached"] = list((reached or {}).items())
    _log_event(worker, event)


def announce_beginning(worker: Any, run_id: str, trainer: int | None = None) -> None:
    """Report to the client that this worker has begun its part, with the trainer's name if any."""
    event = {
        "run": run_id,
        "message": "at work",
        "at_work": worker.address,
        "trainer": trainer,
    }
    # The client can then query Slurm for the reason of a worker's loss.
    if job := os.environ.get("SLURM_JOB_ID"):
        event["job"] = job
    _log_event(worker, event)


def _log_event(worker: Any, event: dict[str, Any]) -> None:
    """Send a message to the client through the scheduler's event log."""
    with suppress(Exception):  # a worker that is closing may be unable to send
        worker.log_event(TOPIC, event)


async def announce_worker_leaving(worker: Any, run_id: str) -> None:
    """Report to the client that this worker is about to close; wait until it may, or must.

    After the fit no farewell is sent, but then no trainer or server of it is left here.
    """
    _log_event(worker, {"run": run_id, "message": "leaving", "leaving": worker.address})
    deadline = time.monotonic() + _LEAVE_SECONDS
    while _is_run_active(run_id) and run_id not in _released and time.monotonic() < deadline:
        await asyncio.sleep(0.02)


def parse_alarm(event: dict[str, Any]) -> Alarm:
    """Return the alarm from an event of the log."""
    keys = (
        "trainer",
        "generation",
        "reached",
        "leaving",
        "at_work",
        "garbled",
        "silent",
        "job",
    )
    return Alarm(event["message"], **{key: event[key] for key in keys if key in event})
