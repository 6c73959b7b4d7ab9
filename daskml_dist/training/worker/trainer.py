"""Trainer of one process: prepares its blocks, connects to the others, and runs its lanes.

It is the same on a cluster (a Dask task, `worker.host.run_trainer`) and in the calling process
(`in_process`). When the membership of the fit changes, it keeps its blocks and continues in the
next generation.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskml_dist.backends.host_threads import BlasThreads, count_cores, flush_denormals
from daskml_dist.comm.base import Communicator, Endpoint, WaitBound
from daskml_dist.comm.choosing_communicators import (
    ExchangeValues,
    OneHostSetup,
    choose_communicator,
)
from daskml_dist.comm.devices import make_device_communicator
from daskml_dist.comm.listener import Credentials
from daskml_dist.comm.server_connections import (
    ShardedConnection,
    SoloCommunicator,
    connect_to_server,
)
from daskml_dist.comm.shared_memory import LONG_SPIN_SECONDS, SPIN_SECONDS
from daskml_dist.comm.socket_group import PeerGroup, PeerListener
from daskml_dist.data.batches import ClientRows, LaneRows, LaneSpec, PoissonRows
from daskml_dist.data.blocks import Block
from daskml_dist.data.streamed_blocks import BlockStream
from daskml_dist.errors import TrainingError, is_consequence
from daskml_dist.ps.shard_state import ShardState, StateParts
from daskml_dist.solvers.base import Solution
from daskml_dist.training.spec import FitSpec, TrainerResult, TrainerSpec
from daskml_dist.training.worker.cores import (
    TrainerCores,
    choose_core_share,
    pin_to_processors,
)
from daskml_dist.training.worker.kept_values import kept_values
from daskml_dist.training.worker.lane import BlocksLane, Lane
from daskml_dist.training.worker.loops import LOOPS, Context
from daskml_dist.training.worker.reader import (
    ReadyBlock,
    explain_memory_errors,
    get_fit_backend,
    prepare_block,
    sums_backend_of,
)

#: Name of the prepared blocks among the values that a trainer's run keeps in the process.
_READY_BLOCKS = "ready"

NextSpec = Callable[[TrainerSpec, TrainingError, dict[int, int]], TrainerSpec | None]


@dataclass(frozen=True)
class TrainerFacts:
    """Facts about a trainer at one moment.

    Parameters
    ----------
    steps : dict of int to int
        Steps that each lane has made in this generation; for a solver, sums over its rows.
    traffic : dict of str to int
        Bytes sent and received in this generation, by transport.
    rows_here, rows_streamed : int
        Training rows of its lanes that are in memory, and that are read again in each pass.
    """

    steps: dict[int, int]
    traffic: dict[str, int]
    rows_here: int
    rows_streamed: int


def _raise_instead(
    spec: TrainerSpec, error: TrainingError, reached: dict[int, int]
) -> TrainerSpec | None:
    """Raise the error: without a client, no other generation is started."""
    raise error


class Trainer:
    """Trainer of the lanes of one process, from the first step to the last.

    Parameters
    ----------
    fit : FitSpec
    spec : TrainerSpec
    wait : WaitBound
        Bound of every wait.
    credentials : Credentials
    host : str
        Address at which other trainers reach this one.
    idle : callable
        Called in the calling thread after each pass.
    next_spec : callable
        Takes the spec of a generation that has ended, the error that ended it and the clock that
        each lane had reached; waits for the spec of the next one. None dismisses the trainer. By
        default the error is raised.
    raise_if_stopped : callable
        Called before each single step of a lane; may raise.
    """

    def __init__(
        self,
        fit: FitSpec,
        spec: TrainerSpec,
        wait: WaitBound,
        credentials: Credentials,
        host: str,
        idle: Callable[[], None] = lambda: None,
        next_spec: NextSpec = _raise_instead,
        raise_if_stopped: Callable[[], None] = lambda: None,
    ) -> None:
        self._fit = fit
        self._spec = spec
        self._wait = self._bound = wait
        self._credentials = credentials
        self._host = host
        self._idle = idle
        self._next_spec = next_spec
        self._raise_if_stopped = raise_if_stopped
        self._memory: dict[str, Any] = {}
        self._cores: frozenset[int] = frozenset()
        #: Whether the host has a core for each thread of its trainers.
        self._has_own_core = False
        self._at_work: Sequence[Lane | BlocksLane] = []
        #: Connections to the servers of this generation, and connections that no loop has taken
        #: yet.
        self._reached: list[ShardedConnection] = []
        self._spare_connections: list[ShardedConnection] = []
        self._communicator: Communicator = SoloCommunicator()
        #: Bytes that trainers exchange after the last pass, such as for an average at the end.
        self._moved_last = 0, 0

    def run(self, blocks: Mapping[int, Block] | Callable[[int], Block]) -> TrainerResult:
        """Run the passes of the fit over the blocks of this trainer's lanes.

        If the membership of the fit changes meanwhile, the trainer keeps its blocks and continues
        with the next generation's spec.
        """
        sums_backend_of(self._fit).check_current_device()
        # Blocks are prepared once: checked, encoded, moved to the device. Streamed blocks are
        # prepared when lanes read them.
        is_streamed = self._fit.rows.streaming is not None
        # A function gets its blocks unchanged.
        as_they_are = is_streamed or self._fit.work.call is not None
        ready = blocks if as_they_are else self._prepare_blocks(blocks)
        spec: TrainerSpec | None = self._spec
        # One iteration per generation; a generation ends with an error if a member is lost.
        while spec is not None:
            self._spec = spec
            try:
                state = self._run_generation(ready)
                return TrainerResult(spec.rank, spec.generation, state, moved=self._moved_last)
            except TrainingError as error:
                if not is_consequence(error):
                    raise
                # The client counts how many steps are repeated: none if replicas are kept.
                repeated_lanes = [] if self._fit.work.keeps_lanes else self._at_work
                clocks = {lane.number: lane.reached for lane in repeated_lanes}
                spec = self._next_spec(spec, error, clocks)
        return TrainerResult(self._spec.rank, self._spec.generation)

    def interrupted(self) -> TrainerResult:
        """Return the result after :meth:`run` was interrupted."""
        interrupted_state = self._memory.get("left")
        return TrainerResult(
            self._spec.rank,
            self._spec.generation,
            interrupted=True,
            interrupted_state=None if interrupted_state is None else interrupted_state(),
        )

    def close(self) -> None:
        """Drop what the loops kept: the rows and shared memory of a fit end with the fit.

        A loop that is kept here refers to this memory itself. Without this, the blocks would stay
        until Python's garbage collector runs, which may take many fits.
        """
        self._memory.clear()
        self._at_work = []

    def get_facts(self) -> TrainerFacts:
        """Return facts about this moment; may be called in any thread."""
        # Bytes of all-reduces, and of messages to the servers, by transport.
        traffic = Counter(self._communicator.traffic)
        for connection in list(self._reached):
            for transport, n_bytes in connection.traffic:
                traffic[transport] += n_bytes
        lanes = self._at_work
        rows = sum(lane.n_rows for lane in lanes)
        streamed_rows = rows if self._fit.rows.streaming is not None else 0
        steps = {lane.number: lane.reached - lane.began_at for lane in lanes}
        return TrainerFacts(steps, dict(traffic), rows - streamed_rows, streamed_rows)

    def _run_generation(self, ready_blocks: Any) -> ShardState | StateParts | Solution | None:
        """Run the loop in one generation; return the state if this trainer holds it."""
        spec = self._spec
        # A copy, since a loop may add conditions to it.
        self._wait = dataclasses.replace(self._bound)
        with ExitStack() as stack:
            self._at_work = lanes = self._make_lanes(ready_blocks, stack)
            # Resources of a generation are closed at its end, in the opposite order.
            stack.callback(self._close_unused_connection)
            stack.callback(self._forget_connections)
            self._communicator = communicator = self._connect_trainers()
            stack.callback(communicator.close)
            if self._cores:
                stack.enter_context(pin_to_processors(self._cores))
            context = Context(
                self._fit,
                lanes,
                spec,
                self._take_connection,
                communicator,
                self._wait,
                self._idle,
                self._memory,
                self._raise_if_stopped,
            )
            stack.callback(context.close)
            # One BLAS thread per lane: lanes provide the parallelism, and sums stay the same. A
            # function is a single computation, with all threads of its worker.
            with (
                BlasThreads(1 if self._fit.work.call is None else spec.n_threads),
                flush_denormals(self._fit.work.model.flushes),
                self._fit.work.model.computing(self._threads_per_lane),
                np.errstate(over="ignore", invalid="ignore"),
                explain_memory_errors(get_fit_backend(self._fit), "What a step makes of its rows"),
            ):
                state = self._run_loop(context)
                self._moved_last = context.count_unreported_bytes()
                return state

    def _run_loop(self, context: Context) -> ShardState | StateParts | Solution | None:
        """Run the loop of this kind of work."""
        return LOOPS[self._fit.work.loop](context)

    def _make_lanes(self, ready_blocks: Any, stack: ExitStack) -> list[Any]:
        """Make this generation's lanes, with streams of blocks if blocks are not kept in memory."""
        fit = self._fit
        if fit.work.call is not None:
            return [
                BlocksLane(s.lane, self._make_lane_rows(s), ready_blocks) for s in self._spec.lanes
            ]
        if fit.rows.streaming is None:
            return [
                Lane(s.lane, fit.of_lane(s.lane), self._make_lane_rows(s), ready_blocks)
                for s in self._spec.lanes
            ]
        # Separate threads read blocks ahead, so that steps overlap with storage.
        readers = ThreadPoolExecutor(max(1, self._spec.n_threads), "daskml-read")
        # Reads in progress end by themselves; closing does not wait for them.
        stack.callback(readers.shutdown, wait=False, cancel_futures=True)
        lanes = []
        for spec in self._spec.lanes:
            rows = self._make_lane_rows(spec)
            stream = BlockStream(
                lambda number: prepare_block(ready_blocks(number), fit),
                rows.blocks,
                fit.work.passes_to_read,
                fit.rows.streaming.ahead,
                readers,
                lambda since: self._wait.check(since, "the storage of a block"),
            )
            stack.callback(stream.close)
            lanes.append(Lane(spec.lane, fit, rows, stream))
        return lanes

    def _make_lane_rows(self, spec: LaneSpec) -> LaneRows:
        """Return the rows of a lane, which draw its batches."""
        fit = self._fit
        if fit.work.privacy is not None:
            return PoissonRows(spec, fit.work.n_steps, fit.work.privacy.batch_seed)
        group = None if fit.rows.streaming is None else fit.rows.streaming.group
        if fit.work.clients:
            return ClientRows(
                spec,
                fit.work.clients[spec.lane],
                fit.work.seed,
                fit.work.shuffle,
                fit.rows.validation_fraction,
                group,
                alone=fit.work.n_steps == 1,
            )
        return LaneRows(
            spec,
            fit.work.n_steps,
            fit.work.seed,
            fit.work.shuffle,
            fit.rows.validation_fraction,
            group,
            fit.work.steps_single_rows,
        )

    def _prepare_blocks(self, blocks: Any) -> dict[int, ReadyBlock]:
        """Prepare the blocks of this trainer's lanes, in its compute threads."""
        # Only the blocks in the lanes' segments; a trainer may be given more.
        block_numbers = sorted({s.block for lane in self._spec.lanes for s in lane.segments})
        known_blocks: dict[int, ReadyBlock] = {}
        if self._fit.work.keeps_lanes:
            # Blocks of the trainer whose lanes this one takes over.
            known_blocks = kept_values(self._spec.run_id).get(_READY_BLOCKS, {})

        def prepare(block_number: int) -> ReadyBlock:
            return known_blocks.get(block_number) or prepare_block(blocks[block_number], self._fit)

        if self._spec.n_threads == 1 or len(block_numbers) == 1:
            ready = [prepare(number) for number in block_numbers]
        else:
            with ThreadPoolExecutor(self._spec.n_threads) as pool:
                ready = list(pool.map(prepare, block_numbers))
        ready_blocks = dict(zip(block_numbers, ready, strict=True))
        if self._fit.work.keeps_lanes:
            kept_values(self._spec.run_id)[_READY_BLOCKS] = ready_blocks
        return ready_blocks

    def _take_connection(self) -> ShardedConnection:
        """Return a connection to all servers: the one of the rendezvous first, then new ones."""
        with suppress(IndexError):
            return self._spare_connections.pop()
        return self._connect_to_servers()

    def _close_unused_connection(self) -> None:
        """Close the connection of the rendezvous if no loop took it."""
        while self._spare_connections:
            self._spare_connections.pop().close()

    def _forget_connections(self) -> None:
        """Drop the connections of a generation, which its traffic is counted from."""
        self._reached, self._communicator = [], SoloCommunicator()

    def _connect_to_servers(self) -> ShardedConnection:
        """Open a connection to all servers of the generation."""
        fit = self._fit
        connections = [
            connect_to_server(endpoint, self._credentials, self._wait, fit.bounds(number))
            for number, endpoint in enumerate(self._spec.servers)
        ]
        connection = ShardedConnection(
            connections, fit.work.layout, self._spec.generation, fit.work.compression
        )
        self._reached.append(connection)
        return connection

    def _connect_trainers(self) -> Communicator:
        """Wait until all trainers have arrived; connect to the trainers that this one needs."""
        spec = self._spec
        # If servers hold all parameters, trainers never communicate with each other.
        independent = not self._fit.work.trainers_communicate
        if spec.generation and independent:
            # A trainer that is ready continues immediately, within the policy's bounds.
            return SoloCommunicator()
        # The first server answers each trainer at the rendezvous when all have arrived.
        connection = self._connect_to_servers()
        self._spare_connections.append(connection)

        def exchange(info: list[Any]) -> list[Any]:
            replies: list[Any] = connection.call("rendezvous", rank=spec.rank, info=info)["peers"]
            return replies

        if spec.n_trainers == 1:
            exchange([])
            return SoloCommunicator()
        if independent:
            self._divide_cores(exchange, [])
            return SoloCommunicator()
        return self._share_one_host(exchange) or self._connect_by_sockets(exchange)

    def _divide_cores(self, exchange: ExchangeValues, memory_handle: list[Any]) -> list[Any]:
        """Wait until all trainers have arrived, and divide the host's cores among them."""
        cores_here = TrainerCores.detect(self._spec.n_threads)
        replies = exchange(
            [cores_here.host, cores_here.n_threads, list(cores_here.cores), memory_handle]
        )
        keeps_share, is_function = self._keeps_to_core_share, self._fit.work.call is not None
        if (keeps_share or is_function) and get_fit_backend(self._fit).device == "cpu":
            # Every trainer computes the same division from the same list, so no messages are
            # needed.
            trainer_cores = [
                TrainerCores(trainer_host, n, tuple(cores)) for trainer_host, n, cores, _ in replies
            ]
            share = choose_core_share(self._spec.rank, trainer_cores)
            self._has_own_core = bool(share)
            # Threads of a function's libraries would inherit the pinning, and outlive the function.
            self._cores = share if keeps_share else frozenset()
        return [place for *_, place in replies]

    def _share_one_host(self, exchange: ExchangeValues) -> Communicator | None:
        """Return a communicator in memory that all trainers share; None if that is impossible."""
        # Shared memory is for collectives of the CPU; pipelines send in pairs, and GPUs use NCCL.
        can_share = not self._fit.work.sends_in_pairs and sums_backend_of(self._fit).device == "cpu"
        memory = OneHostSetup(can_share and self._credentials.settings.shared_memory)
        try:
            places = self._divide_cores(exchange, memory.memory_handle)
            spin_seconds = LONG_SPIN_SECONDS if self._has_own_core else SPIN_SECONDS
            return memory.group(self._spec.rank, places, exchange, self._wait, spin_seconds)
        finally:
            memory.close()

    def _connect_by_sockets(self, exchange: ExchangeValues) -> Communicator:
        """Return a communicator over sockets, with shared memory within each host."""
        spec = self._spec
        listener = PeerListener(self._host, self._credentials, spec.listener_key(spec.rank))
        try:
            # A second rendezvous exchanges the addresses of the listeners.
            addresses = exchange([listener.endpoint.host, listener.endpoint.port])
            endpoints = [
                Endpoint(spec.listener_key(rank), *address)
                for rank, address in enumerate(addresses)
            ]
            group = PeerGroup(spec.rank, endpoints, listener, self._credentials, self._wait)
            if self._fit.work.sends_in_pairs:
                return group
            may_share = self._credentials.settings.shared_memory
            host = choose_communicator(group, self._wait, may_share, own_core=self._has_own_core)
            # Under "auto" ranks may differ, so all of them must take part in the decision.
            if self._fit.run.device == "cpu":
                return host
            return make_device_communicator(
                host, group.make_subgroup, sums_backend_of(self._fit), self._wait
            )
        except BaseException:
            listener.close()
            raise

    @property
    def _keeps_to_core_share(self) -> bool:
        """Return whether this trainer may be pinned to a share of the cores."""
        # A user's own model may start threads that outlive the fit.
        if self._fit.work.linear is not None:
            return True
        starts = getattr(self._fit.work.model, "starts_threads", True)
        return not starts and self._threads_per_lane == 1

    @property
    def _threads_per_lane(self) -> int:
        """Return the threads that a model's own library may use per lane."""
        # With another number of threads, libraries sum in another order.
        if self._fit.run.deterministic:
            return 1
        spec = self._spec
        # Without a cluster, the trainer may use the whole process.
        threads = spec.n_threads if spec.secret else count_cores()
        return max(1, threads // max(1, len(spec.lanes)))
