"""The Dask actor that hosts the lanes of a stream on one worker, and their thread."""

from __future__ import annotations

import asyncio
import queue
import threading
import traceback
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, cast

import numpy as np
from distributed import get_worker
from numpy.typing import NDArray

from daskml_dist.comm.base import Wait
from daskml_dist.comm.server_connections import ShardedConnection
from daskml_dist.errors import DaskMLDistError, TrainingError
from daskml_dist.models.base import BatchRows
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.streaming.cluster.calls import Step
from daskml_dist.training.spec import FitSpec, TrainerSpec
from daskml_dist.training.worker.control import count_working_trainer
from daskml_dist.training.worker.host import credentials_of, find_reachable_host
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops.bulk import BulkSteps
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.free import FreeLaneSteps
from daskml_dist.training.worker.loops.replicas import AveragedSteps, SummedSteps
from daskml_dist.training.worker.loops.shared import SharedReplica
from daskml_dist.training.worker.reader import BatchReader, LaneBatch
from daskml_dist.training.worker.trainer import Trainer

#: Number of a step, lane, and the sum of the losses of its share.
Losses = list[tuple[int, int, float]]


class CallReader(BatchReader):
    """Batches of a lane that are its shares of the steps of calls, in their order.

    Parameters
    ----------
    *args
        As of :class:`BatchReader`, which reads blocks instead.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: Batches that no step has taken yet.
        self.waiting: deque[LaneBatch] = deque()

    def put(self, number: int, X: Any, y: Any, weight: Any) -> None:
        """Add the lane's share of step `number`."""
        n_rows, device = X.shape[0], self._backend.to_device
        y, weight = (None if a is None else device(a) for a in (y, weight))
        X = self._backend.rows(device(X), slice(0, n_rows))
        # Random streams follow from the number of the step, so a call that is learned again after a
        # loss draws the same numbers.
        pieces = [BatchRows(X, y, weight, (*self._stream, number, 0))] if n_rows else []
        self.waiting.append(LaneBatch(pieces, n_rows, self._touched_parameters(pieces)))

    def seek(self, clock: int) -> None:
        """Do nothing: batches come in the order of their steps."""

    def next(self, may_gather: bool) -> LaneBatch:
        """Return the next batch; an empty one after the last step of the calls so far."""
        return self.waiting.popleft() if self.waiting else self._make_batch([], 0)


class Learner(ABC):
    """Lanes of one worker, which learn the calls of a stream, from :meth:`load` on.

    Parameters
    ----------
    context : Context
    connection : ShardedConnection
    first : int
        Number of the step that comes first.
    """

    def __init__(
        self,
        context: Context,
        connection: ShardedConnection,
        first: int,
    ) -> None:
        self._context, self._connection = context, connection
        self._work = context.fit.steps
        self._lanes = {lane.number: lane for lane in context.lanes}
        self._readers = {n: cast(CallReader, lane.reader) for n, lane in self._lanes.items()}
        self._first = first

    def take(self, steps: list[Step]) -> Losses:
        """Take the steps of a call; return the losses of the shares, each before its step."""
        for number, _, shares in steps:
            for lane, *rows in shares:
                self._readers[lane].put(number, *rows)
        losses = []
        self._begin_call()
        for number, n_rows, shares in steps:
            lanes = [self._lanes[lane] for lane, *_ in shares]
            self._step(number, n_rows, lanes)
            losses += [(number, lane.number, lane.last_batch_loss) for lane in lanes]
        self._end_call()
        return losses

    def _begin_call(self) -> None:  # noqa: B027 (most loops have nothing to do before a step)
        """Make ready what the first step of a call needs."""

    @abstractmethod
    def _step(self, number: int, n_rows: int, lanes: list[Lane]) -> None:
        """Take a step of `n_rows` rows, in which some lanes have shares."""

    def _end_call(self) -> None:  # noqa: B027 (lanes at a pace of their own have no such moment)
        """Apply the penalty that is pending for untouched parameters, as a pass's end does."""

    @abstractmethod
    def load(self, states: dict[int, ShardState]) -> None:
        """Begin with parameters, or go on from others; by lane, where lanes hold them."""

    def flush(self) -> None:  # noqa: B027 (most push what they have at once)
        """Push all gradients that have not been pushed, and wait until the servers have them."""

    def states(self) -> dict[int, ShardState]:
        """Return the states that lanes here hold; of equal ones that of the first lane alone."""
        return {}

    def rescale(self, largest: NDArray[np.float64], norm: float) -> None:  # noqa: B027
        """Go on with rows of larger values."""


def make_learner(context: Context, connection: ShardedConnection, first: int) -> Learner:
    """Return the learner that drives the loop of the fit's policy."""
    policy = context.fit.steps.policy
    kinds: dict[str, type[Learner]] = {
        "bulk": _BulkLearner,
        "replicas": _SummedLearner if policy.sums_gradients else _AveragedLearner,
        "free": _FreeLearner,
        "shared": _SharedLearner,
    }
    return kinds[policy.loop](context, connection, first)


class _BulkLearner(Learner):
    """Lanes that step together through the servers (``"sync"``)."""

    _has_parameters = False

    def load(self, states: dict[int, ShardState]) -> None:
        self._steps = BulkSteps(self._context, self._connection)

    def _begin_call(self) -> None:
        # The last step of a call pulls all parameters for the next one, unless each step pulls
        # those that its rows touch: which these are, only the next call tells.
        if self._has_parameters and not self._work.coordinates:
            self._steps.draw_first_batches()
        else:
            self._steps.pull_first_parameters()
        self._has_parameters = True

    def _step(self, number: int, n_rows: int, lanes: list[Lane]) -> None:
        self._steps.step()

    def _end_call(self) -> None:
        # Nobody begins the next call before the first worker has answered.
        if self._work.rule.penalty_is_lazy and self._context.rank == 0:
            self._connection.call_all("apply_pending_penalty")

    def rescale(self, largest: NDArray[np.float64], norm: float) -> None:
        self._has_parameters = False  # the servers change them


class _ReplicaLearner(Learner):
    """Lanes that step on replicas of the parameters, by lane."""

    _replicas: dict[int, Shard]

    def _end_call(self) -> None:
        for replica in self._replicas.values() if self._work.rule.penalty_is_lazy else ():
            replica.apply_pending_penalty()

    def states(self) -> dict[int, ShardState]:
        return {lane: replica.state() for lane, replica in self._replicas.items()}

    def rescale(self, largest: NDArray[np.float64], norm: float) -> None:
        for replica in self._replicas.values():
            replica.rescale(largest, norm)


class _SummedLearner(_ReplicaLearner):
    """Lanes that share a replica a worker, and sum all gradients (``"allreduce"``)."""

    def load(self, states: dict[int, ShardState]) -> None:
        self._steps = SummedSteps(self._context, states[0])
        self._replicas = {0: self._steps.replica}

    def _step(self, number: int, n_rows: int, lanes: list[Lane]) -> None:
        self._steps.step(n_rows)

    def states(self) -> dict[int, ShardState]:
        return {} if self._context.rank else super().states()


class _AveragedLearner(_ReplicaLearner):
    """Lanes with a replica each, averaged now and then (``"local"``) or never (``"average"``)."""

    def load(self, states: dict[int, ShardState]) -> None:
        self._steps = AveragedSteps(
            self._context, lambda lane: states.get(lane, states[0]).part(slice(None))
        )
        self._replicas = self._steps.replicas

    def _step(self, number: int, n_rows: int, lanes: list[Lane]) -> None:
        self._steps.steps(number, 1)


class _FreeLearner(Learner):
    """Lanes that pull, and push their gradients, each at its own pace (``"async"``, ``"ssp"``).

    Steps come to lanes in turn, so those that a lane waits for under a bound on its lead were dealt
    before its own: nobody waits for a step that is not under way.
    """

    def load(self, states: dict[int, ShardState]) -> None:
        self._steps = {
            number: FreeLaneSteps(self._context, self._connection, lane, ahead=False)
            for number, lane in self._lanes.items()
        }

    def _step(self, number: int, n_rows: int, lanes: list[Lane]) -> None:
        for lane in lanes:
            self._steps[lane.number].step()

    def flush(self) -> None:
        for steps in self._steps.values():
            steps.push_rest()
        # Servers take messages in their order, so they have taken all pushes once they answer.
        self._connection.call_all("restore", lanes=[])


class _SharedLearner(_ReplicaLearner):
    """Lanes that share a replica, whose changes go to the servers after each call (``"hogwild"``).

    Lanes of a worker take their steps one after the other; workers do not wait for each other.
    Where steps touch few of the parameters, the replica knows the others as they were when it
    touched them last.
    """

    def load(self, states: dict[int, ShardState]) -> None:
        self._shared = SharedReplica(self._context, self._connection, states[0])
        self._replicas = {0: self._shared.replica}

    def _begin_call(self) -> None:
        waiting = [batch for reader in self._readers.values() for batch in reader.waiting]
        few = [batch.index for batch in waiting if batch.index is not None]
        self._index = np.unique(np.concatenate(few)) if few else None
        self._shared.pull_parameters(self._index)

    def _step(self, number: int, n_rows: int, lanes: list[Lane]) -> None:
        for lane in lanes:
            # Rates follow from the steps of all workers.
            self._shared.replica.version = number - self._first
            self._shared.step(lane)

    def _end_call(self) -> None:
        self._shared.exchange_changes(pull=False, index=self._index)

    def flush(self) -> None:
        if self._work.rule.penalty_is_lazy:
            self._shared.pull_parameters()
            self._shared.replica.apply_pending_penalty()
            self._shared.exchange_changes(pull=False)
        self._connection.call_all("restore", lanes=[])

    def states(self) -> dict[int, ShardState]:
        return {} if self._context.rank else super().states()


class _OrderQueue:
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
                    result.set_exception(_as_package_error(error))
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


class _LaneTrainer(Trainer):
    """Trainer whose rows come with its orders."""

    desk: _OrderQueue
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
        self._desk = desk = _OrderQueue()
        self._early: dict[int, tuple[list[Step], Future[Any]]] = {}
        self._next = 0
        wait = Wait(fit.run.timeout, lambda: bool(desk.ended))
        credentials = credentials_of(worker, spec.secret, fit.run.shared_memory)
        trainer = _LaneTrainer(fit, spec, wait, credentials, find_reachable_host(worker))
        trainer.desk, trainer.first = desk, first
        # The scheduler drops the actor when its client goes; the thread must not hold it.
        self._end = weakref.finalize(self, desk.end)
        given = trainer, desk, worker, spec.run_id
        threading.Thread(target=_run_trainer, args=given, daemon=True, name="daskml-stream").start()

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


def _run_trainer(trainer: _LaneTrainer, desk: _OrderQueue, worker: Any, run_id: str) -> None:
    try:
        with count_working_trainer(worker, run_id):
            trainer.run({})
    except BaseException as error:
        desk.ended.append(_as_package_error(error))
    finally:
        desk.ended.append(None)
        desk.refuse()


def _as_package_error(error: BaseException) -> BaseException:
    """An error as the client is told of it, who takes others than ours for a loss."""
    if isinstance(error, DaskMLDistError):
        return error
    told = TrainingError(f"A lane of the stream failed: {error!r}")
    told.add_note("".join(traceback.format_exception(error)))
    return told
