"""What a client tells the trainers of a process while they run, and what they tell it.

Trainers are tasks that run for as long as the fit; Dask has no way to speak to a running task. So
the client leaves orders in the worker's process (`Client.run`), where trainers look at each wait,
and trainers and servers raise an alarm (`Worker.log_event`) when somebody they talk to is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from daskml_dist.comm.local import count_servers
from daskml_dist.errors import RunAbortedError, TrainingError
from daskml_dist.training.spec import TrainerSpec

__all__ = [
    "Alarm",
    "Line",
    "abort_run",
    "forget_run",
    "give_orders",
    "listen",
    "raise_alarm",
    "stop_listening",
]

#: Topic of the alarms of all runs.
_TOPIC = "daskml_dist"
#: Seconds between two looks at whether an order will still come.
_SLICE = 0.2

Order = tuple[int, TrainerSpec | None]

_orders: dict[str, dict[int, Order]] = {}
_aborted: set[str] = set()
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


def forget_run(run_id: str) -> int:
    """Forget a run, once its trainers are gone; return how many servers of it are still there."""
    with _changed:
        _aborted.discard(run_id)
        _orders.pop(run_id, None)
    return count_servers(run_id)


# -- the trainer's side ----------------------------------------------------------------------------


class Line:
    """A trainer's line to its client.

    Parameters
    ----------
    spec : TrainerSpec
        Of the generation that it begins in.
    alarm : callable
        Takes a message to the client, and the spec that the trainer cannot go on with.
    is_wanted : callable
        Whether the cluster still wants the trainer's result.
    patience : float
        Seconds to wait for an order.
    """

    def __init__(
        self,
        spec: TrainerSpec,
        alarm: Callable[[str, TrainerSpec], None],
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

    def is_renewed(self) -> bool:
        """Whether there is an order of a newer generation."""
        order = _orders.get(self._run, {}).get(self._name)
        return order is not None and order[0] > self._generation

    def next_spec(self, spec: TrainerSpec, error: TrainingError) -> TrainerSpec | None:
        """Wait for the order of the next generation; None: the trainer has no part in it.

        Raises
        ------
        TrainingError
            The given one: the run has ended, or no order came.
        """
        if type(error) is RunAbortedError:
            raise error
        if not self.is_renewed():
            self._alarm(str(error), spec)
        deadline = time.monotonic() + self._patience
        with _changed:
            while not self.is_renewed():
                if self.is_aborted() or not self._is_wanted() or time.monotonic() > deadline:
                    raise error
                _changed.wait(_SLICE)
            self._generation, order = _orders[self._run][self._name]
        return order


# -- alarms ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alarm:
    """Something is wrong with a run.

    Parameters
    ----------
    message : str
    trainer : int or None
        Name of the trainer that waits for orders because of it.
    generation : int
        The one that it cannot go on in.
    """

    message: str
    trainer: int | None = None
    generation: int = 0


def raise_alarm(worker: Any, run_id: str, message: str, spec: TrainerSpec | None = None) -> None:
    """Tell the client of a run, at once, that something is wrong.

    Parameters
    ----------
    worker : distributed.Worker
    run_id, message : str
    spec : TrainerSpec or None
        Of a trainer that waits for orders because of it.
    """
    told: dict[str, Any] = {"run": run_id, "message": message}
    if spec is not None:
        told |= {"trainer": spec.name, "generation": spec.generation}
    with suppress(Exception):  # a worker that is closing cannot tell anybody
        worker.log_event(_TOPIC, told)


_listeners: WeakKeyDictionary[Any, dict[str, Callable[[Alarm], None]]] = WeakKeyDictionary()
_subscribing = threading.Lock()


def listen(client: Any, run_id: str, on_alarm: Callable[[Alarm], None]) -> None:
    """Call `on_alarm(alarm)` for each alarm of a run, in a thread of the client's."""
    with _subscribing:
        runs = _listeners.setdefault(client, {})
        runs[run_id] = on_alarm
        if len(runs) == 1:
            # A client has one handler a topic, and perhaps several fits.
            client.subscribe_topic(_TOPIC, _Dispatch(runs))


def stop_listening(client: Any, run_id: str) -> None:
    """Undo :func:`listen`."""
    with _subscribing:
        runs = _listeners.get(client, {})
        if runs.pop(run_id, None) is not None and not runs:
            with suppress(Exception):
                client.unsubscribe_topic(_TOPIC)


class _Dispatch:
    """Hands an alarm to the run that it is of."""

    def __init__(self, runs: dict[str, Callable[[Alarm], None]]) -> None:
        self._runs = runs

    def __call__(self, event: tuple[float, Any]) -> None:
        _, told = event
        on_alarm = self._runs.get(told["run"])
        if on_alarm is not None:
            on_alarm(Alarm(told["message"], told.get("trainer"), told.get("generation", 0)))
