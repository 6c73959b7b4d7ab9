"""Context of every loop: the trainer's lanes, connections, compute threads and reports.

`DevicePlacement` moves the arrays that a trainer holds to the fit's device and back.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from itertools import chain, islice, product
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.namespace import is_host
from daskml_dist.comm.base import Communicator, WaitBound
from daskml_dist.comm.server_connections import ShardedConnection, SoloCommunicator
from daskml_dist.errors import DivergedError, RunAbortedError, is_consequence
from daskml_dist.ps.ledger import PassReport
from daskml_dist.ps.messages import LaneGradient
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training.spec import FitSpec, InterruptedState, TrainerSpec
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.reader import get_fit_backend

T = TypeVar("T")
R = TypeVar("R")


def gather_lane_parts(
    communicator: Communicator | None, lane_arrays: list[tuple[int, NDArray[Any]]]
) -> list[LaneGradient]:
    """Return the arrays of all trainers' lanes, in the form of `sum_in_lane_order`."""
    own_arrays = [np.array([lane for lane, _ in lane_arrays]), *(part for _, part in lane_arrays)]
    return [
        (lane, None, part)
        for lanes, *trainer_parts in (
            [own_arrays] if communicator is None else communicator.allgather(own_arrays)
        )
        for lane, part in zip(lanes.tolist(), trainer_parts, strict=True)
    ]


def gather_lane_arrays(
    communicator: Communicator, own_arrays: dict[int, list[NDArray[Any]]]
) -> dict[int, list[NDArray[Any]]]:
    """Return the arrays of each lane of all trainers, in the order of the lanes' numbers."""
    sizes = np.array([(n, len(arrays)) for n, arrays in own_arrays.items()], np.int64)
    lane_arrays = {}
    for trainer_sizes, *arrays in communicator.allgather(
        [sizes, *chain.from_iterable(own_arrays.values())]
    ):
        remaining = iter(arrays)
        for n, count in trainer_sizes.tolist():
            lane_arrays[n] = list(islice(remaining, count))
    return dict(sorted(lane_arrays.items()))


class LaneScatter:
    """Exchange of bytes between single lanes, on any trainers.

    Parameters
    ----------
    communicator : Communicator
    lanes : list of int
        The lanes of this trainer.
    """

    def __init__(self, communicator: Communicator, lanes: list[int]) -> None:
        self._communicator = communicator
        lane_numbers = np.array(lanes, np.int64)
        #: Lanes of each rank.
        self._lanes = [
            trainer_lanes.tolist() for (trainer_lanes,) in communicator.allgather([lane_numbers])
        ]

    def __call__(
        self, outgoing: dict[int, dict[int, NDArray[np.uint8]]]
    ) -> dict[int, dict[int, NDArray[np.uint8]]]:
        """Return the bytes that all lanes send to this trainer's lanes, by receiver and sender."""
        # All lanes send to the same receivers, and the same number of bytes to each receiver.
        lengths = {receiver: len(data) for receiver, data in next(iter(outgoing.values())).items()}
        # Ordered by receiving lane, then by sending lane.
        parts = [
            np.concatenate(
                [
                    np.empty(0, np.uint8),
                    *(
                        outgoing[sender][receiver]
                        for receiver in lanes
                        if receiver in lengths
                        for sender in outgoing
                    ),
                ]
            )
            for lanes in self._lanes
        ]
        received = self._communicator.alltoall(parts)
        bytes_by_receiver: dict[int, dict[int, NDArray[np.uint8]]] = {
            receiver: {} for receiver in outgoing if receiver in lengths
        }
        for lanes, data in zip(self._lanes, received, strict=True):
            offset = 0
            for receiver, sender in product(bytes_by_receiver, lanes):
                bytes_by_receiver[receiver][sender] = data[offset : offset + lengths[receiver]]
                offset += lengths[receiver]
        return bytes_by_receiver


class DevicePlacement:
    """Device of a trainer's replicas, with moves to and from it.

    Parameters
    ----------
    context : Context
    alone : bool
        Whether each replica belongs to a single lane.
    """

    def __init__(self, context: Context, alone: bool) -> None:
        self._rule = context.fit.steps.rule
        self._backend = get_fit_backend(context.fit)
        self._is_host = self._backend.device == "cpu"
        if self._rule.coordinates and not self._is_host:
            # The host gathers and scatters parameter rows by index, unless a device makes whole
            # steps for every lane without the host. All trainers make the same choice.
            gathers = [lane.gather for lane in context.lanes if lane.n_rows]
            self._is_host = not alone or None in gathers

    def make_replica(
        self, state: ShardState, start: int = 0, rule: UpdateRule | None = None
    ) -> Shard:
        """Make a replica, or its rows from `start` on, from a state on the host."""
        backend = None if self._is_host else self._backend
        return Shard(rule or self._rule, self.enter(state), start, backend=backend)

    def enter(self, record: R) -> R:
        """Return a state or snapshot (a dataclass) with its arrays on the device."""
        return record if self._is_host else move_arrays(record, self._backend.to_device)

    def leave(self, record: R) -> R:
        """Return a state or snapshot with its arrays on the host."""
        return record if self._is_host else move_arrays(record, self._backend.to_numpy)

    def to_host(self, array: Any) -> Any:
        """Return an array on the host."""
        return array if is_host(array) else self._backend.to_numpy(array)

    def to_device(self, array: Any) -> Any:
        """Return an array on the device of the replicas."""
        return array if self._is_host else self._backend.to_device(array)


def move_arrays(record: Any, move: Callable[[Any], Any]) -> Any:
    """Return a copy of a dataclass with moved arrays."""

    def one(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: one(part) for name, part in value.items()}
        return move(value) if hasattr(value, "ndim") else value

    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return dataclasses.replace(record, **{name: one(value) for name, value in values.items()})


#: Groups of lanes per compute thread: several, to balance lanes of different sizes.
_SHARES_PER_THREAD = 4


class Context:
    """Lanes, connections and threads of a trainer in one generation.

    Parameters
    ----------
    fit : FitSpec
    lanes : list of Lane
        Sorted by number.
    spec : TrainerSpec
    connect : callable
        Opens a new connection to all servers, for one thread.
    communicator : Communicator
    wait : WaitBound
    idle : callable
        Called in the trainer's own thread after each pass.
    memory : dict
        Values that a loop keeps for the trainer's next generation.
    raise_if_stopped : callable
        To be called between steps; may raise.
    """

    def __init__(
        self,
        fit: FitSpec,
        lanes: list[Lane],
        spec: TrainerSpec,
        connect: Callable[[], ShardedConnection],
        communicator: Communicator,
        wait: WaitBound,
        idle: Callable[[], None],
        memory: dict[str, Any],
        raise_if_stopped: Callable[[], None] = lambda: None,
    ) -> None:
        self.fit = fit
        self.lanes = lanes
        self.rank = spec.rank
        self.generation = spec.generation
        self.run_id = spec.run_id
        #: Dask address of each rank's worker; empty without a cluster.
        self.addresses = spec.addresses
        #: Compute threads of the worker, even if it has fewer lanes.
        self.n_worker_threads = spec.n_threads
        #: Whether the trainer runs in the client's process, without a cluster.
        self.is_alone = not spec.secret
        #: Clock at which each lane begins.
        self.clocks = {s.lane: clock for s, clock in zip(spec.lanes, spec.clocks, strict=True)}
        #: Clock at which the lanes begin if all step together.
        self.clock = max(self.clocks.values(), default=0)
        #: Steps between two snapshots of the trainers' parameters; 0 if none are made.
        self.snapshot_every = spec.snapshot_every
        #: Training rows of each lane.
        self.lane_rows = spec.lane_rows
        # Additional threads would have no work.
        self.n_threads = max(1, min(spec.n_threads, len(lanes)))
        self.communicator = communicator
        self.wait = wait
        self.memory = memory
        self.raise_if_stopped = raise_if_stopped
        self._idle = idle
        self._connect = connect
        self._reported: dict[int, tuple[int, int]] = {}
        self._moved = 0, 0
        #: Bytes of the communicator that pass reports have counted; None if they count none.
        self._in_reports: tuple[int, int] | None = None
        self._failed = threading.Event()
        self.pool = None
        if self.n_threads > 1:
            self.pool = ThreadPoolExecutor(self.n_threads, "daskml-lane")

    def of_host(self) -> Context:
        """Return the context of this host's trainers only, in which other lanes have no rows."""
        context = copy.copy(self)
        context.communicator = self.communicator.within_host or SoloCommunicator()
        lane_numbers = np.array([lane.number for lane in self.lanes])
        host_lanes = np.concatenate(
            [lanes for (lanes,) in context.communicator.allgather([lane_numbers])]
        )
        context.lane_rows = tuple(n if i in host_lanes else 0 for i, n in enumerate(self.lane_rows))
        return context

    @property
    def averages_by_weights(self) -> bool:
        """Return whether lanes are averaged by the weights of their rows, not their numbers."""
        fit = self.fit
        # The weights of streamed rows are not known before they are read; amounts that lanes add to
        # sums count each row once in any case; private fits bound the rows by their weights. A
        # single lane has the mean weight of all rows.
        return not (
            fit.rows.weight_scale is None
            or len(fit.rows.lane_rows) == 1
            or fit.rows.streaming is not None
            or fit.work.privacy is not None
            or any(group.additive for group in fit.steps.rule.groups)
        )

    def weigh_lanes(self) -> tuple[float, ...]:
        """Return the weight of each lane of all trainers in a mean of lanes that step alone.

        It is the sum of the weights of its training rows; without weights, their number.
        """
        n_rows = tuple(map(float, self.lane_rows))
        if not self.averages_by_weights:
            return n_rows
        own_weights = [np.array([lane.number, lane.sum_weights()]) for lane in self.lanes]
        lane_weights = np.zeros(len(self.lane_rows))
        for arrays in self.communicator.allgather(own_weights):
            for number, weight in arrays:
                lane_weights[int(number)] = weight
        # All weights may be those of held-out rows.
        return tuple(lane_weights.tolist()) if lane_weights.any() else n_rows

    def step_rows(self, step: Any) -> Any:
        """Return the rows of all lanes in a step (from 0) of a pass, or in several."""
        n_steps, privacy = self.fit.work.n_steps, self.fit.work.privacy
        if privacy is not None:
            return sum(map(privacy.expect_rows, self.lane_rows)) + 0.0 * step
        return sum((step + 1) * n // n_steps - step * n // n_steps for n in self.lane_rows)

    @property
    def address(self) -> str:
        """Return the Dask address of the trainer's worker; empty without a cluster."""
        return self.addresses[self.rank] if self.addresses else ""

    @property
    def resumed(self) -> bool:
        """Return whether the lanes continue from an earlier generation's steps."""
        return self.clock > self.fit.work.first_clock

    def set_left_behind(self, get_state: Callable[[], InterruptedState | None]) -> None:
        """Set the function that returns the trainer's result if it is interrupted."""
        self.memory["left"] = get_state

    def connect(self) -> ShardedConnection:
        """Open a connection to all servers for the calling thread."""
        return self._connect()

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Apply a function to items in the compute threads, or here if there is only one."""
        # With one item or one thread, futures would only cost time.
        items = list(items)
        if self.pool is None or len(items) == 1:
            return [function(item) for item in items]
        # With very many lanes of few rows, a future would take longer than the sum over one lane.
        size = max(1, len(items) // (_SHARES_PER_THREAD * self.n_threads))
        shares = [items[start : start + size] for start in range(0, len(items), size)]
        results = self.pool.map(lambda share: [function(item) for item in share], shares)
        return list(chain.from_iterable(results))

    def report(
        self,
        connection: ShardedConnection,
        pass_number: int,
        lanes: list[Lane],
        weights: list[Any | None],
    ) -> bool:
        """Report pass `pass_number` of some lanes; return whether the fit ends with it."""
        self.send_pass_report(connection, pass_number, lanes, weights)
        return self.take_report_answer(connection)

    def take_report_answer(self, connection: ShardedConnection) -> bool:
        """Wait for the answer to the report of a pass; return whether the fit ends with it."""
        answer = connection.answer()
        # In all other cases each compute thread reports itself.
        if self.pool is None or self.fit.work.lockstep or self.fit.work.trainers_communicate:
            self._idle()
        return bool(answer["stop"])

    def send_pass_report(
        self,
        connection: ShardedConnection,
        pass_number: int,
        lanes: list[Lane],
        weights: list[Any | None],
    ) -> None:
        """Send the report of a pass; the caller takes the answer."""
        # One report for all given lanes.
        total = PassReport([lane.number for lane in lanes])
        for lane, w in zip(lanes, weights, strict=True):
            part = lane.take_pass_report(w if self.fit.rows.validation_fraction else None)
            total.loss += part.loss
            total.rows += part.rows
            total.steps += part.steps
            total.busy += part.busy
            total.busy_steps += part.busy_steps
            if self.fit.work.clients and part.rows:
                total.clients.append(lane.number)
            total.add_validation(part.validation)
        if self.fit.work.lockstep:
            total.steps //= max(len(lanes), 1)
        # Bytes moved since the connection's last report.
        pushed, pulled = connection.bytes_moved
        if self.fit.work.trainers_communicate:
            self._in_reports = self.communicator.bytes_sent, self.communicator.bytes_received
            pushed += self._in_reports[0]
            pulled += self._in_reports[1]
        reported = self._reported.get(id(connection), (0, 0))
        self._reported[id(connection)] = pushed, pulled
        total.bytes_pushed, total.bytes_pulled = pushed - reported[0], pulled - reported[1]
        # Raise for divergence here, with the pass, before more passes compute with NaN.
        if not np.isfinite(total.loss):
            raise DivergedError(
                f"The training loss became {total.loss} in pass {pass_number}: floating-point "
                "overflow. Lower learning_rate, or scale the features (StandardScaler)."
            )
        # Servers count loss, rows and steps of the pushes that they apply, so these counts survive
        # a lost trainer.
        if self.fit.work.uses_shards:
            total.loss, total.rows, total.steps = 0.0, 0.0, 0
        connection.send_call("report", **{"pass": pass_number, "report": dict(vars(total))})

    def end_pass(self) -> None:
        """Run the work of the trainer's own thread after a pass, such as callbacks."""
        self._idle()

    def count_moved_bytes(self) -> tuple[int, int]:
        """Return the bytes sent to, and received from, other trainers since the last call."""
        # Counters grow during the whole generation; passes report differences.
        moved_before = self._moved
        self._moved = self.communicator.bytes_sent, self.communicator.bytes_received
        return self._moved[0] - moved_before[0], self._moved[1] - moved_before[1]

    def count_unreported_bytes(self) -> tuple[int, int]:
        """Return the bytes sent and received since the last pass report, if reports count them."""
        if self._in_reports is None:
            return 0, 0
        moved_bytes = self.communicator.bytes_sent, self.communicator.bytes_received
        return moved_bytes[0] - self._in_reports[0], moved_bytes[1] - self._in_reports[1]

    def run_in_threads(self, run: Callable[[list[Lane]], None]) -> None:
        """Run a function in each compute thread with its share of lanes; raise the first error."""
        # Lanes are distributed in turn, so that threads have nearly equal numbers.
        groups = [self.lanes[i :: self.n_threads] for i in range(self.n_threads)]
        if self.pool is None:
            run(groups[0])
            return

        def guarded(lanes: list[Lane]) -> None:
            try:
                run(lanes)
            except BaseException:
                self._failed.set()
                raise

        # The function must not refer to this object, which holds it: the rows would stay until
        # Python's garbage collector runs.
        aborted, failed = self.wait.is_aborted, self._failed
        self.wait.is_aborted = lambda: aborted() or failed.is_set()
        futures = [self.pool.submit(guarded, group) for group in groups]
        try:
            # The trainer's own thread stays available for callbacks and Ctrl-C.
            while wait_for(futures, timeout=0.05).not_done:
                self._idle()
        except BaseException:
            self._failed.set()
            raise
        errors = [e for e in (f.exception() for f in futures) if e is not None]
        # A thread that fails makes the others stop; its error is the one to raise.
        if errors:
            raise min(errors, key=lambda e: (is_consequence(e), type(e) is RunAbortedError))

    @property
    def failed(self) -> bool:
        """Return whether a compute thread, or the trainer's own, has failed."""
        return self._failed.is_set()

    def close(self) -> None:
        """End the compute threads."""
        if self.pool is not None:
            self.pool.shutdown(wait=True)
