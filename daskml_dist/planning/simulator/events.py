"""An event simulator of training: the real policies, with modelled time.

The gates of :mod:`daskml_dist.policies`, the same objects that servers use, determine which workers
may continue and which pushes are applied. Time is modelled: the computation of each worker with its
stragglers, and first-come-first-served queues at every network card and at each server's processor.
If a `Training` is given, every push carries a real gradient, computed from the parameters that the
worker had pulled in simulated time.

It is a discrete-event simulation: a heap holds the future events, and the clock jumps from one to
the next. A queue needs no events of its own: if jobs are processed in the order of arrival, its
state is one number, the time `free` at which the resource is free again. A job that arrives at time
t and takes s seconds ends at max(t, free) + s, which is the new `free` (Lindley's recursion). Under
policies without servers all workers synchronize together, so their time is a sum of maxima, without
any events.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.socket_group import choose_allreduce
from daskml_dist.errors import InvalidParameterError
from daskml_dist.planning.costs import PackedMessage
from daskml_dist.policies.base import Gate, Policy, QuorumGate
from daskml_dist.ps.gradient_table import GradientTable, TableEntry
from daskml_dist.training.worker.loops.shared import STEPS_BETWEEN_EXCHANGES


@dataclass(frozen=True)
class OperationCosts:
    """Costs of operations in seconds, and the bandwidth in bytes per second.

    Parameters
    ----------
    compute : float
        Time of one gradient on an undisturbed worker.
    message : float
        Processor time of a server for one push and its answer, of any size.
    apply, add : float
        Processor time of a server per byte of an update, and per byte of each push summed in a
        round.
    peer : float
        Time to send and read one small message between trainers.
    latency : float
        Time of a message in the network, one way.
    bandwidth : float
        Bandwidth of each network card, in each direction.
    """

    compute: float
    message: float = 0.0
    apply: float = 0.0
    add: float = 0.0
    peer: float = 0.0
    latency: float = 0.0
    bandwidth: float = math.inf


@dataclass(frozen=True)
class Stragglers:
    """Random causes of longer steps.

    Parameters
    ----------
    noise : float
        Sigma of a lognormal factor with mean 1 on each step.
    pause_share, pause : float
        Share of steps with a pause, and its mean length in undisturbed steps (exponential).
    slow_share, slow_factor : float
        Share of the workers (rounded up) that are always slow, and the factor on their time.
    """

    noise: float = 0.0
    pause_share: float = 0.0
    pause: float = 0.0
    slow_share: float = 0.0
    slow_factor: float = 1.0

    def seconds(self, compute: float, workers: int, steps: int, seed: int) -> NDArray[np.float64]:
        """Return the seconds of each step, of shape (workers, steps).

        They depend only on the seed, so that policies are compared on the same stragglers.
        """
        rng = np.random.default_rng(seed)
        # The mean of exp(N(m, s**2)) is exp(m + s**2 / 2). With m = -s**2 / 2 it is 1, so noise
        # makes steps uneven, but not longer on average.
        factor = np.exp(self.noise * rng.standard_normal((workers, steps)) - self.noise**2 / 2)
        paused = rng.random((workers, steps)) < self.pause_share
        factor += paused * rng.exponential(self.pause or 1.0, (workers, steps))
        factor[: math.ceil(self.slow_share * workers)] *= self.slow_factor
        return compute * factor


class Training(Protocol):
    """Real gradient steps, in the order of simulated events."""

    is_over: bool

    def pull(self) -> Any:
        """Return a copy of the parameters."""

    def gradient(self, worker: int, copy: Any) -> Any:
        """Return the gradient of the worker's next batch."""

    def apply(self, gradients: list[Any], now: float) -> None:
        """Make one step with the mean of the gradients."""


@dataclass
class SimulatedRun:
    """Outcome of a simulated run.

    Parameters
    ----------
    workers : int
    seconds : float
        Simulated time.
    busy : float
        Seconds that the workers computed, summed over workers.
    steps : int
        Number of gradients that counted.
    dropped : int
        Gradients that a round did not wait for.
    updates : int
    staleness : float
        Mean number of updates between a pull and the apply of its gradient.
    lead : int
        Largest lead of a worker's clock over the slowest clock when the worker continued.
    use : dict of str to float
        Share of the time in which the busiest server or network card was used.
    """

    workers: int
    seconds: float = 0.0
    busy: float = 0.0
    steps: int = 0
    dropped: int = 0
    updates: int = 0
    staleness: float = 0.0
    lead: int = 0
    use: dict[str, float] = field(default_factory=dict)

    @property
    def idle(self) -> float:
        """Return the share of the workers' time in which they did not compute."""
        return 1 - self.busy / (self.workers * self.seconds)

    @property
    def rate(self) -> float:
        """Return the gradients that counted, per second."""
        return self.steps / self.seconds

    def efficiency(self, costs: OperationCosts) -> float:
        """Return the rate as a share of that of undisturbed workers that never wait."""
        return self.rate * costs.compute / self.workers


#: No stragglers.
_UNDISTURBED = Stragglers()


def simulate(
    policy: Policy,
    costs: OperationCosts,
    workers: int,
    *,
    servers: int = 1,
    n_bytes: float = 1024,
    steps: int = 100,
    stragglers: Stragglers = _UNDISTURBED,
    seed: int = 0,
    cached: bool = False,
    colocated: bool = False,
    training: Training | None = None,
    packed: PackedMessage | None = None,
    fixed_shares: bool = False,
) -> SimulatedRun:
    """Simulate until `steps` gradients per worker have been applied, or the training is over.

    Servers hold equal parts of the `n_bytes` of parameters. If `cached`, workers under bounded
    staleness pull only if their copy is too old (the rule of Ho et al. 2013). If `colocated`,
    server i runs on the machine of worker i, without a network between the two. Workers send
    `packed` messages, if given, instead of all parameters; compression itself takes no time. With
    `fixed_shares`, a worker that has made its steps is done, as in a fit whose lanes have their own
    rows; else fast workers make steps instead of slow ones.
    """
    seconds = stragglers.seconds(costs.compute, workers, steps, seed)
    if policy.loop == "parts":
        raise InvalidParameterError(
            f"{policy!r}: parts of a model that follow different policies are not simulated. "
            "Simulate the policy of each part with its bytes."
        )
    if policy.loop == "replicas":
        return _simulate_replicas(policy, costs, seconds, n_bytes, packed)
    if policy.loop == "decoupled":
        return _DecoupledSimulation(policy, costs, seconds, n_bytes, packed).outcome()
    run = _ServerSimulation(
        policy, costs, seconds, servers, n_bytes, cached, colocated, training, packed,
        fixed_shares,
    )  # fmt: skip
    return run.outcome(workers * steps)


# --- without servers -------------------------------------------------------------------------


def allreduce_seconds(costs: OperationCosts, workers: int, n_bytes: float) -> float:
    """Return the seconds of an all-reduce as :mod:`daskml_dist.comm.socket_group` performs it.

    Small messages go to every other worker (a mesh); for larger ones each worker sums a range; and
    large ones go around a ring in two rounds.
    """
    n_others = workers - 1
    if n_others == 0:
        return 0.0
    algorithm = choose_allreduce(workers, n_bytes)
    # Mesh: one latency, but all bytes to each other worker.
    if algorithm == "mesh":
        sending = n_others * (costs.peer + n_bytes / costs.bandwidth)
        return costs.latency + sending + n_others * n_bytes * costs.add
    part = n_bytes / workers
    # Ranges: a part of 1/n of the bytes to each other worker, first to sum, then to share.
    if algorithm == "ranges":
        hop = costs.latency + n_others * (costs.peer + part / costs.bandwidth)
        return 2 * hop + n_others * part * costs.add
    # Ring: each worker passes on a part of 1/n, n - 1 times to sum (reduce-scatter) and n - 1 times
    # to share (all-gather). 2 (n - 1)/n of the bytes go through each card, which is the minimum
    # (Patarasu and Yuan 2009), at the price of 2 (n - 1) latencies.
    hop = costs.latency + costs.peer + part / costs.bandwidth
    return 2 * n_others * hop + n_others * part * costs.add


def _exchange_seconds(
    costs: OperationCosts, workers: int, n_bytes: float, packed: PackedMessage | None
) -> float:
    """Return the seconds in which workers of one lane each exchange their messages."""
    if packed is None or packed.way == "sum":
        return allreduce_seconds(costs, workers, n_bytes if packed is None else packed.n_bytes)
    # Every worker reads the messages of all others; ranges take two turns with smaller messages.
    turns = 2 if packed.way == "ranges" else 1
    sending = (workers - 1) * costs.peer * turns
    return turns * costs.latency + sending + packed.count_sent(workers, workers) / costs.bandwidth


def _simulate_replicas(
    policy: Policy,
    costs: OperationCosts,
    seconds: NDArray[np.float64],
    n_bytes: float,
    packed: PackedMessage | None = None,
) -> SimulatedRun:
    """Simulate policies without servers: after every few steps all workers all-reduce."""
    workers, steps = seconds.shape
    interval = 1 if policy.sums_gradients else min(policy.average_every or steps, steps)
    if policy.draws_lanes:
        # A worker that is not drawn for a round computes nothing, and no worker waits for it.
        seconds = seconds.copy()
        for number, first_step in enumerate(range(0, steps, interval)):
            clients = policy.draw_clients(0, number, [1] * workers)
            seconds[
                np.setdiff1d(np.arange(workers), clients), first_step : first_step + interval
            ] = 0.0
    # Seconds of each worker between two synchronizations; each waits for the slowest worker.
    rounds = np.add.reduceat(seconds, np.arange(0, steps, interval), axis=1).max(axis=0)
    n_exchanges = len(rounds)
    exchange_seconds = _exchange_seconds(costs, workers, n_bytes, packed)
    # An all-reduced step is applied once per synchronization, a local one in each step.
    applies = costs.apply * n_bytes * (n_exchanges if interval == 1 else steps)
    total = float(rounds.sum() + n_exchanges * exchange_seconds + applies)
    # Bytes through a card: those of a ring, or n - 1 times all bytes for a mesh.
    network = n_exchanges * 2 * (workers - 1) / workers * n_bytes / costs.bandwidth
    if choose_allreduce(workers, n_bytes) == "mesh":
        network *= workers / 2
    if packed is not None:
        network = n_exchanges * packed.count_sent(workers, workers) / costs.bandwidth
    return SimulatedRun(
        workers,
        total,
        float(seconds.sum()),
        workers * steps,
        updates=n_exchanges,
        use={"worker network": network / total},
    )


# --- decoupled lanes -------------------------------------------------------------------------


class _DecoupledSimulation:
    """Simulation of lanes that step independently, and exchange their changes with one server.

    All fragments are modelled as one message of all parameters, sent at one time.
    """

    def __init__(
        self,
        policy: Policy,
        costs: OperationCosts,
        seconds: NDArray[np.float64],
        n_bytes: float,
        packed: PackedMessage | None,
    ) -> None:
        self._policy, self._costs, self._bytes = policy, costs, n_bytes
        # Servers answer with all parameters, even if lanes send compressed messages.
        pushed = n_bytes if packed is None else packed.n_bytes
        #: Seconds in which a message passes the server's card, inwards and outwards.
        self._transfers = pushed / costs.bandwidth, n_bytes / costs.bandwidth
        self._workers, self._steps = seconds.shape
        self._push_every = min(policy.average_every, self._steps)
        #: Cumulative seconds of the steps of each worker: the time between two clocks is a
        #: difference.
        self._until = np.concatenate([np.zeros((self._workers, 1)), seconds.cumsum(axis=1)], axis=1)
        self._gate = policy.gate(range(self._workers))
        self._now = 0.0
        if isinstance(self._gate, QuorumGate):
            self._gate.now = lambda: self._now
        #: Steps of each worker between two pushes.
        self._n_steps = [self._push_every] * self._workers
        self._clocks = [0] * self._workers
        #: Clock of the last push of each worker.
        self._pushed = [0] * self._workers
        #: Workers whose push has no answer yet, and those that wait for it without stepping.
        self._open: set[int] = set()
        self._idle: set[int] = set()
        #: Workers that have sent their last push.
        self._finished_workers: set[int] = set()
        #: Heap of (time, tie-breaker, function to call, its worker; -1: all workers).
        self._events: list[tuple[float, int, Callable[[int], None], int]] = []
        self._ties = itertools.count()
        #: Times at which the server's card can receive and send again, and seconds used for each.
        self._free, self._used_seconds = [0.0, 0.0], [0.0, 0.0]
        self._updates = 0

    def outcome(self) -> SimulatedRun:
        """Run until each worker has made all steps, and the server has applied them."""
        for worker in range(self._workers):
            self._step_on(worker)
        while self._events:
            self._now, _, happen, worker = heapq.heappop(self._events)
            happen(worker)
        return SimulatedRun(
            self._workers,
            self._now,
            float(self._until[:, -1].sum()),
            self._workers * self._steps,
            updates=self._updates,
            use={"server network": max(self._used_seconds) / self._now},
        )

    def _schedule(self, time: float, happen: Callable[[int], None], worker: int) -> None:
        heapq.heappush(self._events, (time, next(self._ties), happen, worker))

    def _step_on(self, worker: int) -> None:
        """Make the steps of a worker up to its next push."""
        clock = self._clocks[worker]
        self._clocks[worker] = reached = min(clock + self._n_steps[worker], self._steps)
        seconds = self._until[worker, reached] - self._until[worker, clock]
        self._schedule(self._now + seconds, self._push_or_wait, worker)

    def _push_or_wait(self, worker: int) -> None:
        """Push if the last push was answered; else wait for the answer, or continue without it."""
        waits = self._policy.quorum is None or self._clocks[worker] == self._steps
        if worker in self._open and waits:
            self._idle.add(worker)
            return
        if worker not in self._open:
            self._open.add(worker)
            self._pushed[worker] = self._clocks[worker]
            self._schedule(self._pass_card(0, self._costs.latency), self._arrive, worker)
            if self._clocks[worker] == self._steps:
                self._finished_workers.add(worker)
        if self._policy.fragments and self._clocks[worker] < self._steps:
            self._step_on(worker)

    def _pass_card(self, direction: int, delay: float) -> float:
        """Return when a push (way 0) or an answer (way 1) has passed the server's card."""
        transfer = self._transfers[direction]
        self._free[direction] = max(self._free[direction], self._now + delay) + transfer
        self._used_seconds[direction] += transfer
        return self._free[direction]

    def _arrive(self, worker: int) -> None:
        """Process a push at the server."""
        self._gate.push(worker, self._pushed[worker])
        self._apply(worker)

    def _apply(self, _: int) -> None:
        """Apply the pushes that are due, and answer; check again after the round's grace."""
        group = self._gate.pop_due_lanes()
        if not group:
            if (seconds := self._gate.seconds_to_due()) is not None:
                self._schedule(self._now + seconds, self._apply, -1)
            return
        self._updates += 1
        costs = self._costs
        seconds = costs.message * len(group) + costs.apply * self._bytes
        seconds += costs.add * self._bytes * (len(group) - 1)
        for worker in group:
            self._schedule(self._pass_card(1, seconds) + costs.latency, self._take_answer, worker)

    def _take_answer(self, worker: int) -> None:
        """Continue if the worker was waiting; leave if it is done."""
        self._open.discard(worker)
        self._n_steps[worker] = self._gate.count_steps(worker) or self._n_steps[worker]
        if worker in self._idle:
            self._idle.discard(worker)
            self._push_or_wait(worker)
        elif worker in self._finished_workers:
            self._gate.leave(worker)
            self._apply(-1)
        elif not self._policy.fragments:
            self._step_on(worker)


# --- with servers ----------------------------------------------------------------------------


class _Server:
    """Server of one shard: its gate, and when its processor and network card are free again."""

    def __init__(self, gate: Gate, table: GradientTable | None) -> None:
        self.gate, self.table = gate, table
        #: Version and gradients of each lane's push that has not been applied yet.
        self.pending: dict[int, tuple[int, list[Any]]] = {}
        #: Heap of (clock, lane), for lanes whose answers the gate holds back.
        self.waiting: list[tuple[int, int]] = []
        self.version = 0
        #: Times at which the card (inwards), the processor and the card (outwards) are free again,
        #: and seconds for which each was used. Cards can send and receive at the same time.
        self.read_free = self.cpu_free = self.write_free = 0.0
        self.read_used = self.cpu_used = self.write_used = 0.0


class _Worker:
    """Worker that runs one lane: its clock, its copy of the parameters, its network card."""

    def __init__(self, number: int, seconds: list[float]) -> None:
        self.number = number
        #: Seconds of its steps; after the last one the list is used again from the start.
        self.seconds = seconds
        #: Number of steps begun, including those whose gradients a round did not wait for.
        self.n_begun = 0
        self.clock = 0
        #: Clock up to which a cached copy is fresh enough.
        self.horizon = 0
        #: Parameters that it pulled last, and their version.
        self.copy: Any = None
        self.version = 0
        #: Gradients since its last push.
        self.gradients: list[Any] = []
        #: Time at which its current step began, and seconds that it has computed.
        self.began = self.busy = 0.0
        #: As for a server's card; `moved` is the seconds in which it sent or received.
        self.write_free = self.read_free = self.moved = 0.0
        #: Time at which the first byte of each server's answer arrives, and seconds to read it.
        self.answers: list[tuple[float, float]] = []


#: Time, tie-breaker, worker, server (-1: a gradient is ready), clock, (push, pull), version,
#: gradients.
_Event = tuple[float, int, _Worker, int, int, tuple[bool, bool], int, list[Any]]


class _ServerSimulation:
    """Simulation of a run with servers: a queue of events in time order."""

    def __init__(
        self,
        policy: Policy,
        costs: OperationCosts,
        seconds: NDArray[np.float64],
        servers: int,
        n_bytes: float,
        cached: bool,
        colocated: bool,
        training: Training | None,
        packed: PackedMessage | None,
        fixed_shares: bool,
    ) -> None:
        workers = len(seconds)
        self._policy = policy
        self._costs = costs
        self._bytes = n_bytes / servers
        self._transfer = self._bytes / costs.bandwidth
        #: Seconds of a push; answers are not compressed.
        self._push_transfer = self._transfer
        if packed is not None:
            self._push_transfer = packed.n_bytes / servers / costs.bandwidth
        self._colocated = colocated
        self._training = training
        self._fixed_shares = fixed_shares
        self._push_every, self._pull_every = _find_pace(policy)
        self._staleness: int | None = getattr(policy, "staleness", None)
        self._cached = cached and self._staleness is not None
        self._servers = [
            _Server(policy.gate(range(workers)), GradientTable() if policy.gradient_table else None)
            for _ in range(servers)
        ]
        self._workers = [_Worker(i, row) for i, row in enumerate(seconds.tolist())]
        self._events: list[_Event] = []
        #: Second key of the heap: events of the same time keep their order, and the rest of their
        #: tuples is never compared.
        self._ties = itertools.count()
        self._ended = 0.0
        self._staleness_sum = 0
        self.result = SimulatedRun(workers)

    def outcome(self, steps: int) -> SimulatedRun:
        """Run until `steps` gradients have been applied in all."""
        result, events = self.result, self._events
        for worker in self._workers:
            self._give(worker, 0)
            self._start_step(worker, 0.0)
        while result.steps < steps and events and not (self._training and self._training.is_over):
            now, _, worker, server, clock, wants, version, gradients = heapq.heappop(events)
            if server < 0:
                self._handle_gradient(worker, now)
            else:
                self._handle_message(now, worker, server, clock, wants, version, gradients)
        return self._summary()

    def _start_step(self, worker: _Worker, now: float) -> None:
        """Start the next step of a worker, if it has one left."""
        if self._fixed_shares and worker.clock >= len(worker.seconds):
            return
        worker.began = now
        end_time = now + worker.seconds[worker.n_begun % len(worker.seconds)]
        worker.n_begun += 1
        self._schedule((end_time, next(self._ties), worker, -1, 0, (False, False), 0, []))

    def _schedule(self, event: _Event) -> None:
        """Add an event to the heap."""
        heapq.heappush(self._events, event)

    def _handle_gradient(self, worker: _Worker, now: float) -> None:
        """Process a ready gradient: push and pull as the policy's loop does, else step again."""
        worker.busy += now - worker.began
        worker.clock += 1
        # In the order of simulated time, with the parameters that the worker had pulled: a gradient
        # is as stale as it would be on the cluster.
        if self._training is not None:
            worker.gradients.append(self._training.gradient(worker.number, worker.copy))
        push = worker.clock % self._push_every == 0
        pull = worker.clock % self._pull_every == 0
        # Ho et al. 2013: a cached copy is used as long as it includes all updates that are older
        # than the bound.
        if self._cached:
            pull = worker.clock > worker.horizon
        if push or pull:
            self._send(worker, now, push, pull)
        if pull:  # it waits for the answers
            worker.answers = []
        else:
            self._start_step(worker, now)

    def _send(self, worker: _Worker, now: float, push: bool, pull: bool) -> None:
        """Send a push, a pull or both to all servers, through the worker's network card."""
        gradients: list[Any] = []
        if push:
            gradients, worker.gradients = worker.gradients, []
        duration = self._push_transfer if push else 0.0  # a request has almost no bytes
        for s in range(len(self._servers)):
            # The first byte arrives one latency after it was sent. The rest follows at the speed of
            # the sender's card; the receiver's card reads it at the same time, unless it is busy.
            first_byte = now
            if not self._is_local(worker, s):
                start = max(worker.write_free, now)
                worker.write_free = start + duration
                worker.moved += duration
                first_byte = start + self._costs.latency
            self._schedule(
                (first_byte, next(self._ties), worker, s, worker.clock, (push, pull),
                 worker.version, gradients)
            )  # fmt: skip

    def _is_local(self, worker: _Worker, server: int) -> bool:
        """Return whether worker and server share a machine, and use no network."""
        return self._colocated and worker.number == server

    def _handle_message(
        self,
        now: float,
        worker: _Worker,
        server_index: int,
        clock: int,
        wants: tuple[bool, bool],
        version: int,
        gradients: list[Any],
    ) -> None:
        """Process a message whose first byte has reached a server, in the order of arrival."""
        server, (push, pull) = self._servers[server_index], wants
        # Two queues, one after the other: the card reads the message, then the processor works.
        read = now
        if push and not self._is_local(worker, server_index):
            read = server.read_free = max(server.read_free, now) + self._push_transfer
            server.read_used += self._push_transfer
        server.cpu_free = max(server.cpu_free, read)
        self._work(server, self._costs.message)
        if push:
            self._push(server, worker.number, clock, version, gradients)
        if pull:
            self._release(server, server_index, worker)

    def _work(self, server: _Server, seconds: float) -> None:
        """Use the processor of a server for some seconds."""
        server.cpu_free += seconds
        server.cpu_used += seconds

    def _push(
        self, server: _Server, lane: int, clock: int, version: int, gradients: list[Any]
    ) -> None:
        """Pass a push to the gate of a server, and apply the pushes that are due."""
        gate, first = server.gate, server is self._servers[0]
        if self._policy.loop == "shared":
            # As a real server does: the change of the trainer is added, and its lane's clock is
            # set.
            n_made = clock - gate.clock(lane)
            gate.join(lane, clock)
            self._apply(server, [(version, gradients)], n_made)
            return
        # A push of a round that has closed is dropped (backup workers).
        if not gate.push(lane, clock):
            self.result.dropped += first
            return
        server.pending[lane] = version, gradients
        # Groups of lanes whose pushes become one update: all of a round, or a single lane.
        while group := gate.pop_due_lanes():
            pushes = [server.pending.pop(member) for member in group]
            n_steps = len(pushes) * self._push_every
            if server.table is not None:
                pushes = self._add_to_table(server, server.table, lane, pushes)
            if pushes:
                self._apply(server, pushes, n_steps)
            elif first:  # a gradient that fills the table makes no update
                self.result.steps += n_steps

    def _add_to_table(
        self, server: _Server, table: GradientTable, lane: int, pushes: list[tuple[int, list[Any]]]
    ) -> list[tuple[int, list[Any]]]:
        """Add a lane's push to a server's table; return the push of its mean, if it is applied."""
        self._work(server, self._costs.add * self._bytes)
        ((version, gradients),) = pushes
        total = np.asarray(sum(gradients)) if self._training is not None else np.zeros(1)
        push = TableEntry(None, total, max(len(gradients), 1))
        step = table.add(lane, push, server.gate.clocks)
        return [] if step is None else [(version, [step.values / step.rows])]

    def _apply(self, server: _Server, pushes: list[tuple[int, list[Any]]], steps: int) -> None:
        """Apply pushes as one update, unless they are too old; only the first server counts it."""
        oldest = max(server.version - version for version, _ in pushes)
        if not self._policy.applies(oldest, len(self._workers)):
            self.result.dropped += server is self._servers[0]
            return
        # A round first sums its pushes, then makes one update with the sum.
        seconds_per_byte = self._costs.apply
        if self._policy.loop == "bulk":
            seconds_per_byte += len(pushes) * self._costs.add
        self._work(server, seconds_per_byte * self._bytes)
        if server is self._servers[0]:
            self.result.steps += steps
            self.result.updates += 1
            # Number of updates applied since the oldest of the pulled parameters.
            self._staleness_sum += oldest
            self._ended = server.cpu_free
            if self._training is not None:
                gradients = [g for _, part in pushes for g in part]
                self._training.apply(gradients, server.cpu_free)
        server.version += 1

    def _release(self, server: _Server, server_index: int, worker: _Worker) -> None:
        """Answer the requesting lane if it may continue, then waiting lanes, slowest clock first.

        A gate never lets a lane continue while it holds back a slower one, so the first refusal
        ends the search; checking all lanes at each push would be quadratic in their number.
        """
        gate, waiting = server.gate, server.waiting
        if gate.may_proceed(worker.number):
            self._answer(server, server_index, worker)
        else:
            heapq.heappush(waiting, (gate.clocks[worker.number], worker.number))
        while waiting and gate.may_proceed(waiting[0][1]):
            _, lane = heapq.heappop(waiting)
            self._answer(server, server_index, self._workers[lane])

    def _answer(self, server: _Server, server_index: int, worker: _Worker) -> None:
        """Send the parameters to a worker, which steps again once all servers have answered."""
        if self._is_local(worker, server_index):
            worker.answers.append((server.cpu_free, 0.0))
        else:
            start = max(server.write_free, server.cpu_free)
            server.write_free = start + self._transfer
            server.write_used += self._transfer
            worker.answers.append((start + self._costs.latency, self._transfer))
        if server_index == 0:
            self._give(worker, server.gate.clock(worker.number))
        # A worker needs the shards of all servers for its next step.
        if len(worker.answers) == len(self._servers):
            self._start_step(worker, self._received(worker))

    def _give(self, worker: _Worker, clock: int) -> None:
        """Give a worker the current parameters of the first server, which represents all shards."""
        server = self._servers[0]
        worker.version = server.version
        if self._policy.loop == "bulk":
            # A round may have closed without this worker, which then joins the open one.
            worker.clock = clock
        if self._training is not None:
            worker.copy = self._training.pull()
        # The copy includes all updates up to the slowest lane's clock.
        if self._staleness is not None:
            slowest = server.gate.slowest_clock()
            worker.horizon = slowest + self._staleness
            self.result.lead = max(self.result.lead, clock - slowest)

    def _received(self, worker: _Worker) -> float:
        """Return the time at which the last answer has been read through the worker's card."""
        for first, duration in sorted(worker.answers):
            worker.read_free = max(worker.read_free, first) + duration
            worker.moved += duration
        return worker.read_free

    def _summary(self) -> SimulatedRun:
        """Return the result, with totals and means filled in."""
        result, end = self.result, self._ended
        result.seconds = end
        for worker in self._workers:
            result.busy += worker.busy
        # Add the steps that were still being computed at the end.
        for _, _, worker, server, *_ in self._events:
            if server < 0:
                result.busy += max(end - worker.began, 0.0)
        result.staleness = self._staleness_sum / max(result.updates, 1)
        servers = self._servers
        result.use = {
            "server processor": max(s.cpu_used for s in servers) / end,
            "server network": max(max(s.read_used, s.write_used) for s in servers) / end,
            # Half, since `moved` sums both directions of a card.
            "worker network": max(w.moved for w in self._workers) / 2 / end,
        }
        return result


def _find_pace(policy: Policy) -> tuple[int, int]:
    """Return the steps between two pushes and between two pulls in the policy's loop."""
    if policy.loop == "shared":
        return STEPS_BETWEEN_EXCHANGES, STEPS_BETWEEN_EXCHANGES
    return policy.push_every, policy.pull_every
