"""The Dask actor that hosts the lanes of a stream on one worker, and their thread.

Three threads of control are involved. The client's messages arrive as coroutines in the worker's
event loop (`LaneHost`), which must never block. The lanes run in their own thread (`_run_trainer`),
which runs the same `Trainer` and the same step loops as a fit. Between them is a queue of
functions, each with a future for its result (`_LaneThreadQueue`). A `Learner` adapts a policy's
step loop, which in a fit draws its own batches, to steps that are given by calls.
"""

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
from dataclasses import replace
from typing import Any, cast

import numpy as np
from distributed import get_worker
from numpy.typing import NDArray

from daskml_dist.comm.base import WaitBound
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

#: For each share that was learned: number of the step, lane, and sum of the losses of its rows.
Losses = list[tuple[int, int, float]]


class CallReader(BatchReader):
    """Reader of a lane whose batches are its shares of the steps of calls, in order.

    Parameters
    ----------
    *args
        Arguments of :class:`BatchReader`, which reads blocks instead.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: Batches that no step has used yet, the oldest first.
        self.waiting: deque[LaneBatch] = deque()

    def put(self, step_number: int, X: Any, y: Any, weight: Any) -> None:
        """Add the lane's share of step `step_number`."""
        n_rows, device = X.shape[0], self._backend.to_device
        y, weight = (None if a is None else device(a) for a in (y, weight))
        # All rows, but in the backend's own type: CSR matrices become its sparse rows.
        X = self._backend.rows(device(X), slice(0, n_rows))
        # Random streams depend on the number of the step, so a call that is learned again after a
        # loss draws the same numbers.
        key = (*self._stream, step_number, 0)
        pieces = [BatchRows(X, y, weight, key)] if n_rows else []
        self.waiting.append(LaneBatch(pieces, n_rows, self._touched_parameters(pieces)))

    def seek(self, clock: int) -> None:
        """Do nothing: batches come in step order."""

    def next(self, may_gather: bool) -> LaneBatch:
        """Return the next batch; an empty one after the last step of the calls so far."""
        # Step loops draw the batch of the next step while the servers apply this one, so they draw
        # one more batch after the last step of a call.
        return self.waiting.popleft() if self.waiting else self._make_batch([], 0)


class Learner(ABC):
    """Lanes of one worker that learn the calls of a stream, using the step loop of a policy.

    :meth:`load` must be called before the first call.

    Parameters
    ----------
    context : Context
    connection : ShardedConnection
    first : int
        Number of the first step of this generation, counted from the start of the stream.
    """

    def __init__(self, context: Context, connection: ShardedConnection, first: int) -> None:
        self._context, self._connection = context, connection
        self._work = context.fit.steps
        self._lanes = {lane.number: lane for lane in context.lanes}
        self._readers = {n: cast(CallReader, lane.reader) for n, lane in self._lanes.items()}
        self._first = first

    def make_steps(self, steps: list[Step]) -> Losses:
        """Make the steps of a call; return the losses of the shares, each before its step."""
        # All shares are added before the first step, since a step's loop also draws the next batch.
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
        """Prepare the first step of a call."""

    @abstractmethod
    def _step(self, step_number: int, n_rows: int, lanes: list[Lane]) -> None:
        """Make a step of `n_rows` rows, in which some lanes have shares."""

    def _end_call(self) -> None:  # noqa: B027 (lanes at a pace of their own have no such moment)
        """Apply the pending penalty of untouched parameters, as at the end of a pass."""

    @abstractmethod
    def load(self, states: dict[int, ShardState]) -> None:
        """Start or continue from the parameters of each lane; servers already have them."""

    def flush(self) -> None:  # noqa: B027 (most learners push immediately)
        """Push all gradients that have not been pushed, and wait until the servers have them."""

    def states(self) -> dict[int, ShardState]:
        """Return the states that lanes on this worker hold, by lane; equal ones only once."""
        return {}

    def rescale(self, largest: NDArray[np.float64], norm: float) -> None:  # noqa: B027
        """Adapt the optimizer's feature scales to rows of larger values."""


def make_learner(context: Context, connection: ShardedConnection, first: int) -> Learner:
    """Return the learner for the step loop of the fit's policy."""
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

    #: Whether the last step has pulled the parameters for the next one.
    _has_parameters = False

    def load(self, states: dict[int, ShardState]) -> None:
        self._steps = BulkSteps(self._context, self._connection)

    def _begin_call(self) -> None:
        # The last step of a call has pulled the parameters for the step after it. This is not
        # possible if a step pulls only the coordinates that its rows touch: they depend on the next
        # call.
        if self._has_parameters and not self._work.coordinates:
            self._steps.draw_first_batches()
        else:
            self._steps.pull_first_parameters()
        self._has_parameters = True

    def _step(self, step_number: int, n_rows: int, lanes: list[Lane]) -> None:
        self._steps.step()

    def _end_call(self) -> None:
        # Only rank 0 sends the request, since the servers serve all lanes. No lane steps meanwhile:
        # the client sends the next call after all hosts have answered this one.
        if self._work.rule.penalty_is_lazy and self._context.rank == 0:
            self._connection.call_all("apply_pending_penalty")

    def rescale(self, largest: NDArray[np.float64], norm: float) -> None:
        self._has_parameters = False  # the servers change them, so they are pulled again


class _ReplicaLearner(Learner):
    """Lanes that step on replicas of the parameters."""

    #: Replicas by lane; a replica that several lanes share has the key 0.
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
    """Lanes that share one replica on each worker, and sum all gradients (``"allreduce"``)."""

    def load(self, states: dict[int, ShardState]) -> None:
        self._steps = SummedSteps(self._context, states[0])
        self._replicas = {0: self._steps.replica}

    def _step(self, step_number: int, n_rows: int, lanes: list[Lane]) -> None:
        self._steps.step(n_rows)

    def states(self) -> dict[int, ShardState]:
        # All workers apply equal sums to equal replicas, so rank 0 returns the state of all.
        return {} if self._context.rank else super().states()


class _AveragedLearner(_ReplicaLearner):
    """Lanes with a replica each, averaged every few steps (``"local"``) or never (``"average"``).

    Replicas that are never averaged here become their mean in `ClusterSteps.synchronize`.
    """

    def load(self, states: dict[int, ShardState]) -> None:
        # A copy for each lane: replicas change in place, and several may start from that of lane 0.
        self._steps = AveragedSteps(
            self._context, lambda lane: states.get(lane, states[0]).slice_rows(slice(None))
        )
        self._replicas = self._steps.replicas

    def _step(self, step_number: int, n_rows: int, lanes: list[Lane]) -> None:
        self._steps.steps(step_number, 1)


class _FreeLearner(Learner):
    """Lanes that pull, and push their gradients, independently (``"async"``, ``"ssp"``).

    A bound on the lead (SSP, Ho et al. 2013) cannot deadlock a stream: steps are assigned to lanes
    in turn, so the steps of slower lanes that a lane waits for were sent before its own.
    """

    def load(self, states: dict[int, ShardState]) -> None:
        self._steps = {
            number: FreeLaneSteps(self._context, self._connection, lane, ahead=False)
            for number, lane in self._lanes.items()
        }  # `ahead=False`: the rows of a lane's next step may not have arrived

    def _step(self, step_number: int, n_rows: int, lanes: list[Lane]) -> None:
        for lane in lanes:
            self._steps[lane.number].step()

    def flush(self) -> None:
        for steps in self._steps.values():
            steps.push_rest()
        # This is a barrier: servers process the messages of a connection in order, so all pushes
        # have been applied when they answer. "restore" of no lanes is a request without an effect.
        self._connection.call_all("restore", lanes=[])


class _SharedLearner(_ReplicaLearner):
    """Lanes that share a replica, whose changes go to the servers after each call (``"hogwild"``).

    Lanes of a worker make their steps one after the other; workers do not wait for each other. If
    steps touch few of the parameters, only these are pulled; the other parameters of the replica
    are as old as their last pull.
    """

    def load(self, states: dict[int, ShardState]) -> None:
        self._shared = SharedReplica(self._context, self._connection, states[0])
        self._replicas = {0: self._shared.replica}

    def _begin_call(self) -> None:
        # Union of the parameters that the call's batches touch; None: all.
        waiting_batches = [batch for reader in self._readers.values() for batch in reader.waiting]
        touched = [batch.index for batch in waiting_batches if batch.index is not None]
        self._index = np.unique(np.concatenate(touched)) if touched else None
        self._shared.pull_parameters(self._index)

    def _step(self, step_number: int, n_rows: int, lanes: list[Lane]) -> None:
        for lane in lanes:
            # A schedule counts the steps of all workers, but the replica counts only its own.
            self._shared.replica.version = step_number - self._first
            self._shared.step(lane)

    def _end_call(self) -> None:
        self._shared.exchange_changes(pull=False, index=self._index)

    def flush(self) -> None:
        # Calls push only the parameters that they touched; penalties of all others are pending
        # here.
        if self._work.rule.penalty_is_lazy:
            self._shared.pull_parameters()
            self._shared.replica.apply_pending_penalty()
            self._shared.exchange_changes(pull=False)
        self._connection.call_all("restore", lanes=[])

    def states(self) -> dict[int, ShardState]:
        return {} if self._context.rank else super().states()


class _LaneThreadQueue:
    """Queue of functions that the lanes' thread calls, each with a future for its result.

    It holds no reference to the actor, so that the actor's finalizer can end the thread.
    """

    def __init__(self) -> None:
        #: Pairs of a function and its future; None ends the thread.
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        #: Not empty once the thread ends: its error, or None. A list and a SimpleQueue, since a
        #: finalizer may add to both at any time, even while this thread holds a lock.
        self.ended: list[BaseException | None] = []

    def submit(self, function: Callable[[Learner], Any]) -> Future[Any]:
        """Add a function for the lanes' thread to call after earlier ones; return its future."""
        result: Future[Any] = Future()
        self._tasks.put((function, result))
        # Checked after the put: a thread that ended before it has already emptied the queue.
        if self.ended:
            self.refuse_rest()
        return result

    def end(self) -> None:
        """End the thread; may be called by the garbage collector, in any thread."""
        self.ended.append(None)
        self._tasks.put(None)

    def run(self, learner: Learner) -> None:
        """Call the functions in order, until the end or an error."""
        while (task := self._tasks.get()) is not None:
            function, result = task
            try:
                result.set_result(function(learner))
            except BaseException as error:
                with suppress(InvalidStateError):  # its caller no longer waits
                    result.set_exception(_as_package_error(error))
                raise

    def refuse_rest(self) -> None:
        """Set an error on the futures of all functions that the thread will not call."""
        error = next((e for e in self.ended if e is not None), None)
        with suppress(queue.Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    with suppress(InvalidStateError):
                        task[1].set_exception(error or TrainingError("The stream has ended."))


class _LaneTrainer(Trainer):
    """Trainer that gets its rows and steps from a queue, instead of blocks and passes."""

    tasks: _LaneThreadQueue
    first: int

    def _make_lanes(self, ready_blocks: Any, stack: Any) -> list[Lane]:
        return [
            Lane(spec.lane, self._fit, self._make_lane_rows(spec), {}, CallReader)
            for spec in self._spec.lanes
        ]

    def _run_loop(self, context: Context) -> None:
        connection = context.connect()
        try:
            self.tasks.run(make_learner(context, connection, self.first))
        finally:
            connection.close()


class LaneHost:
    """Actor that hosts lanes of a stream on one worker; the lanes run in their own thread.

    Its methods are coroutines of the worker's event loop. Dask runs blocking methods of all actors
    of a worker in one thread; there, concurrent streams whose lanes wait for other workers would
    deadlock.

    Parameters
    ----------
    fit : FitSpec
    spec : TrainerSpec
    first : int
        Number of the first step, as in :class:`Learner`.
    """

    def __init__(self, fit: FitSpec, spec: TrainerSpec, first: int) -> None:
        worker = get_worker()
        self.run_id = spec.run_id
        self._tasks = tasks = _LaneThreadQueue()
        #: Calls that arrived before an earlier one: steps, and the future that the message awaits.
        self._early: dict[int, tuple[list[Step], Future[Any]]] = {}
        self._next_call = 0
        wait = WaitBound(fit.run.timeout, lambda: bool(tasks.ended))
        # No process monitors a stream between its calls: the first silence breaks its connections.
        settings = replace(fit.run.connections, broken_after=1.0)
        credentials = credentials_of(worker, spec.secret, settings)
        trainer = _LaneTrainer(fit, spec, wait, credentials, find_reachable_host(worker))
        trainer.tasks, trainer.first = tasks, first
        # The scheduler releases the actor when its client disconnects. The thread holds no
        # reference to the actor, so that this finalizer then runs and ends the thread.
        self._end = weakref.finalize(self, tasks.end)
        args = trainer, tasks, worker, spec.run_id
        threading.Thread(target=_run_trainer, args=args, daemon=True, name="daskml-stream").start()

    async def learn(self, call_index: int, steps: list[Step]) -> Losses:
        """Learn call `call_index` (from 0); return the losses of the shares before their steps."""
        result: Future[Any] = Future()
        self._early[call_index] = steps, result
        # Messages of a client may arrive out of order; lanes learn calls in order.
        while self._next_call in self._early:
            self._submit_call(*self._early.pop(self._next_call))
            self._next_call += 1
        losses: Losses = await asyncio.wrap_future(result)
        return losses

    def _submit_call(self, steps: list[Step], result: Future[Any]) -> None:
        """Add a call to the lanes' queue, and copy its outcome to the awaited future."""

        def copy_outcome(future: Future[Any]) -> None:
            with suppress(InvalidStateError):  # the message was cancelled
                if (error := future.exception()) is not None:
                    result.set_exception(error)
                else:
                    result.set_result(future.result())

        learned = self._tasks.submit(lambda learner: learner.make_steps(steps))
        learned.add_done_callback(copy_outcome)

    async def flush(self) -> None:
        """Wait until the servers have everything that was learned."""
        await asyncio.wrap_future(self._tasks.submit(lambda learner: learner.flush()))

    async def states(self) -> dict[int, ShardState]:
        """Return the states that lanes on this worker hold, by lane."""
        states: dict[int, ShardState] = await asyncio.wrap_future(
            self._tasks.submit(lambda learner: learner.states())
        )
        return states

    async def load(self, states: dict[int, ShardState]) -> None:
        """Start or continue from the lanes' states; the first time, wait for all trainers."""
        await asyncio.wrap_future(self._tasks.submit(lambda learner: learner.load(states)))

    async def rescale(self, largest: Any, norm: float) -> None:
        """Adapt the optimizer's feature scales to rows of larger values."""
        future = self._tasks.submit(lambda learner: learner.rescale(largest, norm))
        await asyncio.wrap_future(future)

    async def close(self) -> None:
        """End the thread of the lanes."""
        self._end()


def _run_trainer(trainer: _LaneTrainer, tasks: _LaneThreadQueue, worker: Any, run_id: str) -> None:
    """Run the lanes until their queue ends; then refuse all calls that were not learned."""
    try:
        with count_working_trainer(worker, run_id):
            trainer.run({})
    except BaseException as error:
        tasks.ended.append(_as_package_error(error))
    finally:
        trainer.close()
        tasks.ended.append(None)
        tasks.refuse_rest()


def _as_package_error(error: BaseException) -> BaseException:
    """Return an error of the package: the client treats any other error as the loss of a worker."""
    if isinstance(error, DaskMLDistError):
        return error
    translated = TrainingError(f"A lane of the stream failed: {error!r}")
    translated.add_note("".join(traceback.format_exception(error)))
    return translated
