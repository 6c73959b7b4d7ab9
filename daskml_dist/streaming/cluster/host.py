"""The Dask actor that hosts the lanes of a stream on one worker, and their thread."""

from __future__ import annotations

import asyncio
import queue
import threading
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from distributed import get_worker

from daskml_dist.comm.base import Wait
from daskml_dist.errors import DaskMLDistError, TrainingError
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.streaming.cluster.calls import Step
from daskml_dist.streaming.cluster.learner import CallReader, Learner, Losses, make_learner
from daskml_dist.training.spec import FitSpec, TrainerSpec
from daskml_dist.training.worker.control import count_working_trainer
from daskml_dist.training.worker.host import credentials_of, find_reachable_host
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.trainer import Trainer

__all__ = ["LaneHost"]


class _Desk:
    """Orders to the thread of the lanes, and their results. It does not hold the actor."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        #: What ended the thread, or will; a list, since the garbage collector may add to it.
        self.ended: list[BaseException | None] = []

    def order(self, function: Callable[[Learner], Any]) -> Future[Any]:
        """Have the lanes' thread call a function, after all earlier ones."""
        result: Future[Any] = Future()
        self._orders.put((function, result))
        if self.ended:
            self.refuse()
        return result

    def end(self) -> None:
        """Let the thread end; may be called by the garbage collector, in any thread."""
        self.ended.append(None)
        self._orders.put(None)

    def work(self, learner: Learner) -> None:
        """Carry out orders until the end, or an error."""
        while (order := self._orders.get()) is not None:
            function, result = order
            try:
                result.set_result(function(learner))
            except BaseException as error:
                with suppress(InvalidStateError):
                    result.set_exception(_told(error))
                raise

    def refuse(self) -> None:
        """Answer what nobody will carry out any more."""
        error = next((e for e in self.ended if e is not None), None)
        with suppress(queue.Empty):
            while True:
                order = self._orders.get_nowait()
                if order is not None:
                    with suppress(InvalidStateError):
                        order[1].set_exception(error or TrainingError("The stream has ended."))


class _Lanes(Trainer):
    """Trainer whose rows come with its orders."""

    desk: _Desk
    first: int

    def _make_lanes(self, ready: Any, stack: Any) -> list[Lane]:
        return [
            Lane(spec.lane, self._fit, self._make_lane_rows(spec), {}, CallReader)
            for spec in self._spec.lanes
        ]

    def _run_loop(self, context: Context) -> None:
        connection = context.connect()
        try:
            self.desk.work(make_learner(context, connection, self.first))
        finally:
            connection.close()


class LaneHost:
    """Actor: lanes of a stream on one worker, which learn in a thread of their own.

    Its methods wait in the worker's event loop, so that streams side by side never hold a thread
    that another one waits for.

    Parameters
    ----------
    fit : FitSpec
    spec : TrainerSpec
    first : int
        As of :class:`Learner`.
    """

    def __init__(self, fit: FitSpec, spec: TrainerSpec, first: int) -> None:
        worker = get_worker()
        self.run_id = spec.run_id
        self._desk = desk = _Desk()
        self._early: dict[int, tuple[list[Step], Future[Any]]] = {}
        self._next = 0
        wait = Wait(fit.run.timeout, lambda: bool(desk.ended))
        credentials = credentials_of(worker, spec.secret, fit.run.shared_memory)
        trainer = _Lanes(fit, spec, wait, credentials, find_reachable_host(worker))
        trainer.desk, trainer.first = desk, first
        # The scheduler drops the actor when its client goes; the thread must not hold it.
        self._end = weakref.finalize(self, desk.end)
        given = trainer, desk, worker, spec.run_id
        threading.Thread(target=_run, args=given, daemon=True, name="daskml-stream").start()

    async def learn(self, number: int, steps: list[Step]) -> Losses:
        """Learn call `number` (from 0): the losses of the shares, each before its step."""
        result: Future[Any] = Future()
        self._early[number] = steps, result
        # Messages may overtake each other.
        while self._next in self._early:
            self._begin(*self._early.pop(self._next))
            self._next += 1
        found: Losses = await asyncio.wrap_future(result)
        return found

    def _begin(self, steps: list[Step], result: Future[Any]) -> None:
        def tell(done: Future[Any]) -> None:
            with suppress(InvalidStateError):
                if (error := done.exception()) is not None:
                    result.set_exception(error)
                else:
                    result.set_result(done.result())

        self._desk.order(lambda learner: learner.take(steps)).add_done_callback(tell)

    async def flush(self) -> None:
        """See that the servers have all that was learned."""
        await asyncio.wrap_future(self._desk.order(lambda learner: learner.flush()))

    async def states(self) -> dict[int, ShardState]:
        """States that lanes here hold."""
        found: dict[int, ShardState] = await asyncio.wrap_future(
            self._desk.order(lambda learner: learner.states())
        )
        return found

    async def load(self, states: dict[int, ShardState]) -> None:
        """Go on from parameters, the first ones too; waits until the lanes have met the others."""
        await asyncio.wrap_future(self._desk.order(lambda learner: learner.load(states)))

    async def rescale(self, largest: Any, norm: float) -> None:
        """Go on with rows of larger values."""
        await asyncio.wrap_future(self._desk.order(lambda learner: learner.rescale(largest, norm)))

    async def close(self) -> None:
        """Let the lanes end."""
        self._end()


def _run(trainer: _Lanes, desk: _Desk, worker: Any, run_id: str) -> None:
    try:
        with count_working_trainer(worker, run_id):
            trainer.run({})
    except BaseException as error:
        desk.ended.append(_told(error))
    finally:
        desk.ended.append(None)
        desk.refuse()


def _told(error: BaseException) -> BaseException:
    """An error as the client is told of it, who takes others than ours for a loss."""
    if isinstance(error, DaskMLDistError):
        return error
    told = TrainingError(f"A lane of the stream failed: {error!r}")
    told.add_note("".join(traceback.format_exception(error)))
    return told
