"""The trainer: one a data-holding process; prepares its blocks, meets the others, runs a loop."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from daskml_dist.backends.denormals import arithmetic
from daskml_dist.comm.allreduce import PeerGroup, PeerListener
from daskml_dist.comm.base import Communicator, Endpoint, Wait
from daskml_dist.comm.devices import meet_devices
from daskml_dist.comm.listener import Credentials
from daskml_dist.comm.local import NoPeers
from daskml_dist.comm.meet import share_memory
from daskml_dist.comm.one_host import OneHost, Tell
from daskml_dist.comm.reach import reach
from daskml_dist.comm.sharded import ShardedConnection
from daskml_dist.comm.shared_memory import LONG_LOOK, LOOK
from daskml_dist.data.batches import LaneRows, LaneSpec
from daskml_dist.data.blocks import Block
from daskml_dist.data.streamed_blocks import BlockStream
from daskml_dist.errors import TrainingError, is_consequence
from daskml_dist.ps.shard_state import ShardState, StateParts
from daskml_dist.solvers import Solution
from daskml_dist.training.spec import FitSpec, TrainerResult, TrainerSpec
from daskml_dist.training.threads import OneThread
from daskml_dist.training.worker.cores import Seat, kept_to, share_of
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops import LOOPS, Context
from daskml_dist.training.worker.notifications import TrainerFacts
from daskml_dist.training.worker.ready_blocks import (
    ReadyBlock,
    backend_of,
    fit_memory,
    prepare_block,
    sums_backend_of,
)

__all__ = ["Trainer"]


NextSpec = Callable[[TrainerSpec, TrainingError, dict[int, int]], TrainerSpec | None]


def _no_next(
    spec: TrainerSpec, error: TrainingError, reached: dict[int, int]
) -> TrainerSpec | None:
    raise error


class Trainer:
    """Trainer of the lanes of one process, from the first step to the last.

    Parameters
    ----------
    fit : FitSpec
    spec : TrainerSpec
    wait : Wait
        The bound of every wait.
    credentials : Credentials
    host : str
        Address at which other trainers reach this one.
    idle : callable
        Called in the calling thread after each pass.
    next_spec : callable
        Takes the spec of a generation that has ended, the error that ended it and the clock that
        each lane had reached; waits for the spec of the next one. None dismisses the trainer. By
        default the error is raised.
    rest : callable
        Called before each step of a lane that takes them one by one; may raise.
    """

    def __init__(
        self,
        fit: FitSpec,
        spec: TrainerSpec,
        wait: Wait,
        credentials: Credentials,
        host: str,
        idle: Callable[[], None] = lambda: None,
        next_spec: NextSpec = _no_next,
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        self._fit = fit
        self._spec = spec
        self._wait = self._bound = wait
        self._credentials = credentials
        self._host = host
        self._idle = idle
        self._next_spec = next_spec
        self._rest = rest
        self._memory: dict[str, Any] = {}
        self._cores: frozenset[int] = frozenset()
        self._at_work: list[Lane] = []
        #: Connections to the servers of this generation, and those that are nobody's.
        self._reached: list[ShardedConnection] = []
        self._spare: list[ShardedConnection] = []
        self._communicator: Communicator = NoPeers()

    def run(self, blocks: Mapping[int, Block] | Callable[[int], Block]) -> TrainerResult:
        """Run the fit's passes over the blocks of this trainer's lanes.

        Where the membership of the fit changes on the way, the trainer keeps its blocks and goes
        on as the next generation's spec says.

        Parameters
        ----------
        blocks : mapping of int to Block, or callable
            At least those that the lanes' segments name; a function that makes a block where
            blocks are streamed.

        Raises
        ------
        InvalidDataError
            For NaN or infinity, naming the block.
        TrainingError
            When the fit cannot go on.
        DeviceUnavailableError
            Where this process can use no GPU that was asked for, or the thread another than others.
        """
        sums_backend_of(self._fit).check_current_device()
        ready = blocks if self._fit.rows.streaming is not None else self._prepare(blocks)
        spec: TrainerSpec | None = self._spec
        while spec is not None:
            self._spec = spec
            try:
                state = self._run_generation(ready)
                return TrainerResult(spec.rank, spec.generation, state)
            except TrainingError as error:
                if not is_consequence(error):
                    raise
                reached = {lane.number: lane.reached for lane in self._at_work}
                spec = self._next_spec(spec, error, reached)
        return TrainerResult(self._spec.rank, self._spec.generation)

    def interrupted(self) -> TrainerResult:
        """Result to hand back once :meth:`run` was interrupted."""
        left = self._memory.get("left")
        return TrainerResult(
            self._spec.rank,
            self._spec.generation,
            interrupted=True,
            left=None if left is None else left(),
        )

    def facts(self) -> TrainerFacts:
        """Facts of this moment; in any thread."""
        traffic = Counter(self._communicator.traffic)
        for connection in list(self._reached):
            for transport, moved in connection.traffic:
                traffic[transport] += moved
        lanes = self._at_work
        rows = sum(lane.n_rows for lane in lanes)
        streamed = rows if self._fit.rows.streaming is not None else 0
        steps = {lane.number: lane.reached - lane.began_at for lane in lanes}
        return TrainerFacts(steps, dict(traffic), rows - streamed, streamed)

    def _run_generation(self, ready: Any) -> ShardState | StateParts | Solution | None:
        spec = self._spec
        # Its own, since a loop may add conditions to it.
        self._wait = dataclasses.replace(self._bound)
        with ExitStack() as stack:
            self._at_work = lanes = self._lanes(ready, stack)
            stack.callback(self._close_spare)
            stack.callback(self._forget_ways)
            self._communicator = communicator = self._meet()
            stack.callback(communicator.close)
            stack.enter_context(kept_to(self._cores))
            context = Context(
                self._fit,
                lanes,
                spec,
                self._connect,
                communicator,
                self._wait,
                self._idle,
                self._memory,
                self._rest,
            )
            stack.callback(context.close)
            # One BLAS thread a lane: the lanes are the parallelism, and the sums stay the same.
            with (
                OneThread(),
                arithmetic(self._fit.work.model.flushes),
                self._fit.work.model.computing(self._threads_of_lane),
                np.errstate(over="ignore", invalid="ignore"),
                fit_memory(backend_of(self._fit), "What a step makes of its rows"),
            ):
                return self._loop(context)

    def _loop(self, context: Context) -> ShardState | StateParts | Solution | None:
        return LOOPS[self._fit.work.loop](context)

    def _lanes(self, ready: Any, stack: ExitStack) -> list[Lane]:
        fit = self._fit
        if fit.rows.streaming is None:
            return [
                Lane(s.lane, fit.of_lane(s.lane), self._rows(s), ready) for s in self._spec.lanes
            ]
        readers = ThreadPoolExecutor(max(1, self._spec.n_threads), "daskml-read")
        # Reads that have begun end by themselves; nobody waits for them.
        stack.callback(readers.shutdown, wait=False, cancel_futures=True)
        lanes = []
        for spec in self._spec.lanes:
            rows = self._rows(spec)
            stream = BlockStream(
                lambda number: prepare_block(ready(number), fit),
                rows.blocks,
                fit.work.reads,
                fit.rows.streaming.ahead,
                readers,
                lambda since: self._wait.check(since, "the storage of a block"),
            )
            stack.callback(stream.close)
            lanes.append(Lane(spec.lane, fit, rows, stream))
        return lanes

    def _rows(self, spec: LaneSpec) -> LaneRows:
        fit = self._fit
        group = None if fit.rows.streaming is None else fit.rows.streaming.group
        return LaneRows(
            spec,
            fit.work.n_steps,
            fit.work.seed,
            fit.work.shuffle,
            fit.rows.validation_fraction,
            group,
            fit.work.in_turn,
        )

    def _prepare(self, blocks: Any) -> dict[int, ReadyBlock]:
        needed = sorted({s.block for lane in self._spec.lanes for s in lane.segments})
        if self._spec.n_threads == 1 or len(needed) == 1:
            return {i: prepare_block(blocks[i], self._fit) for i in needed}
        with ThreadPoolExecutor(self._spec.n_threads) as pool:
            ready = pool.map(lambda i: prepare_block(blocks[i], self._fit), needed)
            return dict(zip(needed, ready, strict=True))

    def _connect(self) -> ShardedConnection:
        """A connection to the servers: that of the rendezvous first, then others."""
        with suppress(IndexError):
            return self._spare.pop()
        return self._reach()

    def _close_spare(self) -> None:
        while self._spare:
            self._spare.pop().close()

    def _forget_ways(self) -> None:
        self._reached, self._communicator = [], NoPeers()

    def _reach(self) -> ShardedConnection:
        fit = self._fit
        connections = [
            reach(endpoint, self._credentials, self._wait, fit.bounds(number))
            for number, endpoint in enumerate(self._spec.servers)
        ]
        reached = ShardedConnection(
            connections, fit.work.layout, self._spec.generation, fit.work.compression
        )
        self._reached.append(reached)
        return reached

    def _meet(self) -> Communicator:
        """Wait until every trainer of the fit is there; connect to them where they must talk."""
        spec = self._spec
        if spec.generation and self._fit.work.uses_shards:
            return NoPeers()  # whoever is ready goes on at once, as far as the policy lets it
        connection = self._reach()
        self._spare.append(connection)

        def tell(info: list[Any]) -> list[Any]:
            said: list[Any] = connection.call("rendezvous", rank=spec.rank, info=info)["peers"]
            return said

        if spec.n_trainers == 1 or self._fit.work.uses_shards:
            self._take_seats(tell, [])
            return NoPeers()
        return self._at_one_host(tell) or self._by_sockets(tell)

    def _take_seats(self, tell: Tell, place: list[Any]) -> list[Any]:
        """Wait until every trainer is there, and divide the cores; each one's place."""
        seat = Seat.own(self._spec.n_threads)
        said = tell([seat.host, seat.n_threads, list(seat.cores), place])
        if self._keeps_to_share and backend_of(self._fit).device == "cpu":
            seats = [Seat(where, n, tuple(cores)) for where, n, cores, _ in said]
            self._cores = share_of(self._spec.rank, seats)
        return [place for *_, place in said]

    def _at_one_host(self, tell: Tell) -> Communicator | None:
        """Memory that all trainers share, where nothing more is asked for; else nothing."""
        enough = not self._fit.work.in_pairs and sums_backend_of(self._fit).device == "cpu"
        memory = OneHost(enough and self._credentials.shared_memory)
        try:
            places = self._take_seats(tell, memory.place)
            look = LONG_LOOK if self._cores else LOOK
            return memory.group(self._spec.rank, places, tell, self._wait, look)
        finally:
            memory.close()

    def _by_sockets(self, tell: Tell) -> Communicator:
        """Sockets to all trainers, and memory with those of the same host."""
        spec = self._spec
        listener = PeerListener(self._host, self._credentials, spec.peer_key(spec.rank))
        try:
            at = tell([listener.endpoint.host, listener.endpoint.port])
            endpoints = [Endpoint(spec.peer_key(rank), *where) for rank, where in enumerate(at)]
            group = PeerGroup(spec.rank, endpoints, listener, self._credentials, self._wait)
            if self._fit.work.in_pairs:
                return group
            allowed = self._credentials.shared_memory
            host = share_memory(group, self._wait, allowed, own_core=bool(self._cores))
            # Under "auto" ranks may differ, and all of them must meet to find out.
            if self._fit.run.device == "cpu":
                return host
            return meet_devices(host, group.among, sums_backend_of(self._fit), self._wait)
        except BaseException:
            listener.close()
            raise

    @property
    def _keeps_to_share(self) -> bool:
        # Models of the user's own may start threads that outlive the fit.
        if self._fit.work.linear is not None:
            return True
        starts = getattr(self._fit.work.model, "starts_threads", True)
        return not starts and self._threads_of_lane == 1

    @property
    def _threads_of_lane(self) -> int:
        """Threads that a model's own library may use for a lane; one where sums must not differ."""
        if self._fit.run.deterministic:
            return 1
        spec = self._spec
        # Without a cluster the process is all the trainer's.
        threads = spec.n_threads if spec.secret else max(len(Seat.own(1).cores), 1)
        return max(1, threads // max(1, len(spec.lanes)))
