"""Steps of a stream on a cluster, as the client runs them.

`StreamActors` are the servers and lanes on the workers; one generation of them exists until a
worker is lost. `ClusterSteps` replaces a session's `InProcessSteps`: it sends calls to the actors,
and opens the next generation after a loss.

Recovery replays a log: the client keeps the state that it fetched last and all calls since then
(`_ReplayLog`). A new generation starts from that state and learns these calls again, so that each
call's rows count exactly once, however far the lost actors had processed them. No standby servers
or snapshots on workers are needed, since the client has the rows anyway. The log is emptied
whenever the state is fetched.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from distributed import Client

from daskml_dist.comm.base import Endpoint
from daskml_dist.dask_internals.cluster import submit_tasks
from daskml_dist.dask_internals.interrupt_shields import Shielding
from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.blocks import Block
from daskml_dist.errors import (
    DaskMLDistError,
    InvalidDataError,
    TrainingError,
    WorkerLostError,
    is_consequence,
)
from daskml_dist.models.base import BatchRows
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.streaming.cluster.calls import Call, StreamLayout, deal_rows
from daskml_dist.streaming.cluster.worker import LaneHost
from daskml_dist.streaming.steps import InProcessSteps
from daskml_dist.training.client.membership import Membership
from daskml_dist.training.client.run_actors import (
    ActorCalls,
    ActorHandle,
    EarlyHost,
    WorkerUnreachableError,
)
from daskml_dist.training.interrupts import Interrupts
from daskml_dist.training.spec import FitSpec, TrainerSpec
from daskml_dist.training.worker.host import ServerOutcome
from daskml_dist.training.worker.servers import count_fit_servers

#: Seconds that all actors together may take to close; after that they are cancelled.
_CLOSE_SECONDS = 2.0


class StreamActors(ActorCalls):
    """Actors of one generation of a stream: its servers, and a host of lanes on each worker.

    After a method raises `WorkerUnreachableError`, :meth:`close` this and open another generation.

    Parameters
    ----------
    client : distributed.Client
    fit : FitSpec
        Fit with the state from which the servers start, if there are servers.
    states : dict of int to ShardState
        State from which each lane that holds parameters starts. Lanes without one start from that
        of lane 0.
    first : int
        Number of the first step of the generation.
    membership : Membership

    Attributes
    ----------
    n_sent, n_learned : int
        Numbers of calls that were sent, and whose losses were received, since the generation was
        opened or the client fetched its state.
    """

    def __init__(
        self,
        client: Client,
        fit: FitSpec,
        states: dict[int, ShardState],
        first: int,
        membership: Membership,
    ) -> None:
        super().__init__(client, membership, fit.run.timeout)
        self._fit = fit
        self._states, self._first_step = states, first
        self._early = EarlyHost(client)
        self._servers: list[ActorHandle] = []
        self._hosts: list[ActorHandle] = []
        #: Lanes of each host.
        self._lanes: list[frozenset[int]] = []
        #: Pending answers to each call whose loss was not received yet, with the hosts.
        self._pending: list[list[tuple[ActorHandle, Any]]] = []
        #: Number of calls that were sent to each host, which learns them in this order.
        self._n_sent: list[int] = []
        self.n_sent = self.n_learned = 0

    @property
    def run_id(self) -> str:
        """Return the unique name of the generation."""
        return self._early.run_id

    # -- opening and closing -------------------------------------------------------------------

    def open(self) -> None:
        """Start the actors, and wait until all are connected; lanes are distributed evenly."""
        addresses = sorted(self._membership.wait_for_any_worker(self._fit.run.timeout))
        n_lanes = len(self._fit.rows.lane_rows)
        n_hosts = min(len(addresses), n_lanes)
        bounds = [n_lanes * rank // n_hosts for rank in range(n_hosts + 1)]
        self._lanes = [frozenset(range(a, b)) for a, b in itertools.pairwise(bounds)]
        self._n_sent = [0] * n_hosts
        self._open_hosts(addresses, self._open_servers(addresses))
        for actor in (*self._servers, *self._hosts):
            self._membership.note_work_begun(actor.address)

    def _open_servers(self, addresses: list[str]) -> tuple[Endpoint, ...]:
        """Start the servers; return the endpoints for the lanes."""
        for number in range(count_fit_servers(self._fit)):
            address = addresses[number % len(addresses)]
            future = self._early.start_host(address, f"{self.run_id}-{number}")
            self._servers.append(ActorHandle(number, address, future))
        for server in self._servers:
            self._await_proxy(server)
        # The fit holds the parameters, so it is sent to the running actors: the scheduler would
        # keep the arguments of a task in its memory.
        begin_args = [
            (self._fit, number, len(self._lanes), 0) for number in range(len(self._servers))
        ]
        self._call_each(self._servers, "begin", begin_args)
        return tuple(self._call_actors(self._servers, "endpoint"))

    def _open_hosts(self, addresses: list[str], endpoints: tuple[Endpoint, ...]) -> None:
        """Start the hosts of the lanes, and load the states from which the lanes start."""
        fit, n_hosts = self._fit.replace_work(initial=None), len(self._lanes)
        secret = self._early.secret
        tasks: dict[Any, Any] = {}
        for rank, lanes in enumerate(self._lanes):
            spec = TrainerSpec(
                self.run_id, rank, rank, n_hosts, 0,
                tuple(LaneSpec(lane, ()) for lane in sorted(lanes)), (0,) * len(lanes), 1,
                endpoints, secret, 0, fit.rows.lane_rows,
            )  # fmt: skip
            arguments = fit, spec, self._first_step
            tasks[f"{LaneHost.__name__}-{self.run_id}-{rank}"] = LaneHost, arguments
        pins = dict(zip(tasks, addresses, strict=False))
        futures = submit_tasks(self._client, tasks, dict(pins), list(tasks))
        self._hosts = [
            ActorHandle(rank, pins[key], futures[key], kind=LaneHost)
            for rank, key in enumerate(tasks)
        ]
        for host in self._hosts:
            self._await_proxy(host)
        # The state of lane 0 goes to all hosts: lanes without a state of their own start from it.
        load_args = [
            ({n: state for n, state in self._states.items() if n in lanes or n == 0},)
            for lanes in self._lanes
        ]
        self._call_each(self._hosts, "load", load_args)

    def close(self) -> None:
        """Close and cancel all actors, even on lost workers; a second call does nothing."""
        actors = [*self._hosts, *self._servers]
        self._hosts, self._servers, self._pending = [], [], []
        # An actor that is still running closes its sockets itself; a lost one is only cancelled.
        closing = []
        for actor in actors:
            if actor.proxy is not None:
                with suppress(Exception):
                    closing.append(actor.proxy.close())
            actor.proxy = None
        deadline = time.monotonic() + _CLOSE_SECONDS
        for call in closing:
            with suppress(Exception):
                call.result(timeout=max(0.01, deadline - time.monotonic()))
        futures = [actor.future for actor in actors]
        with suppress(Exception):
            self._client.cancel(futures, force=True)
        for future in futures:
            future.release()
        self._early.close()

    # -- calling the actors' methods -----------------------------------------------------------

    def _call_actors(self, actors: Sequence[ActorHandle], method: str, *args: Any) -> list[Any]:
        """Call a method of several actors concurrently; return their answers."""
        return self._call_each(actors, method, [args] * len(actors))

    def _call_each(
        self, actors: Sequence[ActorHandle], method: str, args: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """Call a method of several actors concurrently, each with its arguments; return answers."""
        pairs = zip(actors, args, strict=True)
        return self._await_answers([(m, self._call_method(m, method, *a)) for m, a in pairs])

    def _await_answers(self, pending: Sequence[tuple[ActorHandle, Any]]) -> list[Any]:
        """Return the answers of pending method calls, in order."""
        return [self._await_together(actor, answer, pending) for actor, answer in pending]

    def _await_together(
        self, actor: ActorHandle, answer: Any, other_calls: Sequence[tuple[ActorHandle, Any]]
    ) -> Any:
        """Return the answer of a pending method call.

        Raises `WorkerUnreachableError` as soon as the actor or one of the `other_calls` is lost: an
        actor that waits for a lost one in a collective step would not answer.
        """

        def check_others() -> None:
            for other, other_answer in other_calls:
                if other_answer.done() and other is not actor:
                    self._await_together(other, other_answer, ())  # raises if that actor failed
                self._check_host(other)

        try:
            deadline = time.monotonic() + self._timeout
            return self._await_answer(actor, answer, deadline, check_others)
        except DaskMLDistError as error:
            if is_consequence(error):  # another actor was lost, and it is not known which
                raise WorkerUnreachableError("", f"{actor.address}: {error}") from error
            raise

    # -- learning ------------------------------------------------------------------------------

    def send(self, call: Call, every_step: bool) -> None:
        """Send a call to the hosts whose lanes have rows of it; with `every_step` to all hosts."""
        if call.scales is not None:  # between two calls: servers and replicas change together
            assert not self._pending
            self._call_actors([*self._servers, *self._hosts], "rescale", *call.scales)
        calls = []
        for rank, (host, lanes) in enumerate(zip(self._hosts, self._lanes, strict=True)):
            if steps := call.select_lanes(lanes, every_step):
                calls.append((host, self._call_method(host, "learn", self._n_sent[rank], steps)))
                self._n_sent[rank] += 1
        self._pending.append(calls)
        self.n_sent += 1

    def receive(self) -> float:
        """Wait for the oldest call that was sent; return the sum of its losses."""
        calls = self._pending[0]
        # In the order of steps and lanes, so that the sum does not depend on the placement of
        # lanes.
        losses = sorted(entry for answer in self._await_answers(calls) for entry in answer)
        del self._pending[0]
        self.n_learned += 1
        return float(sum(loss for _, _, loss in losses))

    def may_receive(self) -> bool:
        """Return whether :meth:`receive` can return the loss of a call without waiting."""
        return bool(self._pending) and all(answer.done() for _, answer in self._pending[0])

    # -- the state -----------------------------------------------------------------------------

    def states(self) -> tuple[ShardState, dict[int, ShardState]]:
        """Return the whole state and the states of lanes that hold parameters, after all calls."""
        work, lanes = self._fit.steps, dict[int, ShardState]()
        joined = None
        if work.uses_shards:
            self._call_actors(self._hosts, "flush")
            outcomes: list[ServerOutcome] = self._call_actors(self._servers, "outcome")
            joined = ShardState.join([o.state for o in outcomes if o.state is not None])
        if self._states:
            for states in self._call_actors(self._hosts, "states"):
                lanes |= states
        if joined is None:
            return _average_states(lanes), lanes
        # Hogwild has both: servers sum only changes of the parameters, and the optimizer's state is
        # that of the first worker's replica.
        if lanes:
            joined.opt_state, joined.step = lanes[0].opt_state, lanes[0].step
            lanes = {0: joined}
        return joined, lanes

    def load(self, state: ShardState) -> None:
        """Set all replicas of the parameters to a state; lanes continue from it."""
        self._call_actors(self._hosts, "load", {0: state})


def _average_states(states: dict[int, ShardState]) -> ShardState:
    """Return the mean of the lanes' parameters, with the first lane's optimizer state."""
    first = states[min(states)].slice_rows(slice(None))
    if len(states) == 1:
        return first
    # Summed in lane order and in float64, so that the mean has the same bits each time.
    in_order = [states[lane] for lane in sorted(states)]
    first.w = np.mean([state.w for state in in_order], axis=0, dtype=np.float64).astype(
        first.w.dtype
    )
    first.rows = sum(state.rows for state in in_order)
    if any(state.average is not None for state in in_order):
        finals = [state.final for state in in_order]
        first.average = np.mean(finals, axis=0, dtype=np.float64).astype(first.w.dtype)
    return first


R = TypeVar("R")

#: Number of calls kept before the state is fetched, for models of up to 1 MiB, and most bytes of
#: their rows (64 MiB). After a loss the kept calls are learned again.
_KEPT_CALLS, _MAX_KEPT_BYTES = 64, 1 << 26
#: Bytes of parameters per kept call for larger models (16 KiB): their state costs more to fetch, so
#: it is fetched after proportionally more calls.
_STATE_BYTES_PER_CALL = 1 << 14
#: Losses of workers without a call learned in between, beyond which the stream fails.
_MAX_LOSSES_IN_A_ROW = 8
#: Seconds to wait after a loss, times the number of losses in a row: a linear backoff, in which a
#: nanny can restart its worker.
_RETRY_SECONDS = 0.05


@dataclass(eq=False)
class _ReplayLog:
    """State that the client fetched last, and the calls since, which are repeated after a loss.

    Parameters
    ----------
    state : ShardState
    lanes : dict of int to ShardState
        States of lanes that hold parameters; lanes without one continue from that of lane 0.
    first : int
        Number of the first step after the state.
    calls : list of Call

    Attributes
    ----------
    nbytes : int
        Bytes of the calls' rows.
    """

    state: ShardState
    lanes: dict[int, ShardState]
    first: int
    calls: list[Call] = field(default_factory=list)
    nbytes: int = field(default=0, init=False)

    def add(self, call: Call) -> None:
        """Append a call."""
        self.calls.append(call)
        self.nbytes += call.nbytes

    @property
    def next_step(self) -> int:
        """Return the number of the first step after the calls."""
        return self.calls[-1].steps[-1][0] + 1 if self.calls else self.first

    @property
    def change_after(self) -> Callable[[ShardState], ShardState | None] | None:
        """Return the change of the state that follows the last call, or None."""
        return self.calls[-1].change_after if self.calls else None


class ClusterSteps:
    """Gradient steps of one model by lanes on the workers of a cluster.

    The client keeps the last state that it fetched and all calls since. After the loss of a worker
    a new generation of actors starts from that state and learns these calls again, so each call
    counts once.

    Parameters
    ----------
    client : distributed.Client
    plan : StreamLayout
    fit : FitSpec
        Specification of a fit of one lane.
    base : InProcessSteps
        Steps in the calling process, with the initial state; they do not step themselves.
    """

    def __init__(
        self, client: Client, plan: StreamLayout, fit: FitSpec, base: InProcessSteps
    ) -> None:
        self._client = client
        self._plan, self._fit, self._base = plan, fit, base
        self._membership = Membership(client)
        workers = self._membership.wait_for_any_worker(fit.run.timeout)
        self._n_lanes = plan.n_lanes or len(workers)
        #: Most calls that may be pending when :meth:`learn_rows` returns; 0 for lanes that step
        #: together.
        self._window = 0 if plan.together else 2 * self._n_lanes
        state = base.shard.state()
        self._log = self._make_log_from(state, 0)
        self._actors: StreamActors | None = None
        #: Calls whose losses are known but were not yet returned by :meth:`pop_finished`.
        self._finished: deque[Call] = deque()
        #: Number of worker losses since a call was learned.
        self._losses_in_a_row = 0
        #: Error that ended the stream, or None.
        self._failure: BaseException | None = None
        self._is_closed = False
        #: Rows of a step for which the actors' rule was made; None before the first call.
        self._rule_rows: int | None = None
        #: Tag of the last call that was sent.
        self.last: Any = None
        #: The optimizer's scale of each parameter, if it keeps one.
        self._scale: Any = state.opt_state.get("scale")
        self._shielding: Shielding | None = None

    def _make_log_from(self, state: ShardState, first: int) -> _ReplayLog:
        """Return an empty log from which all lanes start from `state` at step `first`."""
        holds_parameters = self._plan.policy.loop in {"replicas", "shared"}
        return _ReplayLog(state, {0: state} if holds_parameters else {}, first)

    # -- learning ------------------------------------------------------------------------------

    def check_lane_share(self, n_rows: int) -> None:
        """Raise if a lane's share of a step has fewer rows than the model needs."""
        fewest, max_rows = getattr(self._fit.steps.model, "fewest_rows", 1), self._base.batch_rows
        n_steps = 1 if max_rows is None else -(-n_rows // max_rows)
        share = n_rows // n_steps // (self._n_lanes if self._plan.together else 1)
        if 1 < fewest and share < fewest:
            raise InvalidDataError(
                f"A lane's share of a step of this call has {share} rows, but batch "
                f"normalisation needs {fewest}. Pass more rows per call, raise batch_size, or "
                "use fewer lanes: Run(n_lanes=...)."
            )

    def learn_rows(self, rows: BatchRows, block: Block, tag: Any = None) -> None:
        """Send a call's steps to the lanes; :meth:`pop_finished` returns losses as they arrive."""
        if self._failure is not None:
            raise TrainingError(
                "The lanes of this stream have failed. Start another stream from the last "
                "checkpoint: stream(checkpoint=Checkpoint(..., resume=True))."
            ) from self._failure
        if self._log.change_after is not None:  # an interrupt came before the change was made
            self.state()
        self._prepare(rows, block)
        change, max_rows = self._find_change_after(block), self._base.batch_rows
        self._use_rule_for(block.n_rows if max_rows is None else min(block.n_rows, max_rows))
        log = self._log
        steps = deal_rows(
            rows, block.n_rows, max_rows, self._n_lanes, log.next_step,
            self._plan.together,
        )  # fmt: skip
        scales = self._find_larger_scales(block)
        log.add(Call(steps, tag, scales, change))
        self.last = tag
        self._learn_calls(len(log.calls) - self._window)
        most_calls = max(_KEPT_CALLS, log.state.w.nbytes // _STATE_BYTES_PER_CALL)
        # Fetch the state if the client changes it, or before too many calls are kept.
        if change is not None or len(log.calls) >= most_calls or log.nbytes >= _MAX_KEPT_BYTES:
            self.state()

    def _prepare(self, rows: BatchRows, block: Any) -> None:
        """Prepare the rows of a call in the client before they are sent; by default do nothing."""

    def _find_change_after(self, block: Block) -> Callable[[ShardState], ShardState | None] | None:
        """Return the change of the state that the client makes after this call, or None."""
        return None

    def _use_rule_for(self, n_rows: int) -> None:
        """Make the actors use the rule for steps of `n_rows` rows; this may need new actors."""
        if n_rows == self._rule_rows:
            return
        rule = self._base.rule_of(n_rows)
        if rule != self._fit.steps.rule:
            self.state()
            self._close_actors()
            self._fit = self._fit.replace_work(rule=rule)
        self._rule_rows = n_rows

    def pop_finished(self) -> tuple[Any, float] | None:
        """Return the tag and the loss of the next call whose loss is known, in order; else None."""
        if not self._finished:
            return None
        call = self._finished.popleft()
        assert call.loss is not None
        return call.tag, call.loss

    def wait_until_learned(self) -> None:
        """Wait until all calls are learned."""
        if self._failure is None:
            self._learn_calls(len(self._log.calls))

    def _find_larger_scales(self, block: Block) -> tuple[Any, float] | None:
        """Return the feature scales of a call's rows if they exceed those so far; else None."""
        scales = self._base.find_scales(block)
        if scales is None or self._scale is None:
            return None
        units = self._base.compute_parameter_scales(*scales)
        if not (units > self._scale).any():
            return None
        self._scale = np.maximum(self._scale, units)
        return scales

    def _learn_calls(self, n_calls: int) -> None:
        """Send all calls, and wait for the losses of at least the first `n_calls` of them."""
        self._with_actors(lambda actors: self._advance(actors, n_calls))

    def _advance(self, actors: StreamActors, n_calls: int) -> None:
        """Send all calls, at most `_window` ahead, and receive the first `n_calls` losses."""
        calls, max_pending = self._log.calls, max(self._window, 1)
        while actors.n_sent < len(calls) or actors.n_learned < n_calls:
            ready = actors.n_sent < len(calls) and actors.n_sent - actors.n_learned < max_pending
            # Scales may change only while no lane steps.
            if ready and calls[actors.n_sent].scales is not None:
                ready = actors.n_sent == actors.n_learned
            if ready:
                actors.send(calls[actors.n_sent], self._plan.together)
            else:
                self._receive_loss(actors, calls)
        while actors.may_receive():
            self._receive_loss(actors, calls)

    def _receive_loss(self, actors: StreamActors, calls: list[Call]) -> None:
        """Receive the loss of the next call; a repeated call keeps its first loss."""
        loss = actors.receive()
        call = calls[actors.n_learned - 1]
        self._losses_in_a_row = 0
        if call.loss is None:  # else an earlier generation learned it, and it was counted
            call.loss = loss
            self._finished.append(call)

    def _with_actors(self, function: Callable[[StreamActors], R]) -> R:
        """Call a function with the actors; after each loss of a worker, call it with new actors."""
        try:
            while True:
                try:
                    if self._actors is None:
                        self._actors = self._open_actors()
                    return function(self._actors)
                except WorkerUnreachableError as lost:
                    self._close_actors()
                    self._count_loss(lost)
        except BaseException as error:
            # The actors may have learned part of a call; the next actors start from the log.
            self._close_actors()
            if isinstance(error, Exception):
                self._failure = error
            raise

    def _open_actors(self) -> StreamActors:
        """Return a new generation of actors, which starts from the log's state."""
        if self._shielding is None:
            self._shielding = Shielding(self._client, f"daskml-{uuid.uuid4().hex}")
        log = self._log
        fit = self._plan.fit(self._fit, log.state, self._n_lanes)
        actors = StreamActors(self._client, fit, log.lanes, log.first, self._membership)
        try:
            actors.open()
        except BaseException:
            with Interrupts() as interrupts, interrupts.delay():
                actors.close()
            raise
        return actors

    def _close_actors(self) -> None:
        """Close the actors, if there are any; the log is kept."""
        # A second Ctrl-C is delayed until all actors on the cluster are closed.
        with Interrupts() as interrupts, interrupts.delay():
            actors, self._actors = self._actors, None
            if actors is not None:
                actors.close()

    def _count_loss(self, gone: WorkerUnreachableError) -> None:
        """Count the loss of a worker, and wait a little; raise after too many in a row."""
        self._losses_in_a_row += 1
        if self._losses_in_a_row > _MAX_LOSSES_IN_A_ROW:
            raise WorkerLostError(
                f"The stream lost workers {_MAX_LOSSES_IN_A_ROW} times with no call learned in "
                f"between ({gone}). Check the workers' logs: did they run out of memory? Then "
                "start again from the last checkpoint."
            ) from gone
        if gone.address and gone.address in self._membership.call():
            self._membership.count_as_lost(gone.address)
        time.sleep(_RETRY_SECONDS * self._losses_in_a_row)

    # -- the state -----------------------------------------------------------------------------

    def state(self) -> ShardState:
        """Return a copy of the state after all calls; the last known one once failed or closed."""
        if self._log.calls and self._failure is None and not self._is_closed:
            self._fetch_state()
        return self._log.state.slice_rows(slice(None))

    def synchronize(self) -> ShardState:
        """Return :meth:`state`, from which all lanes continue: replicas become their mean."""
        state = self.state()
        if self._plan.policy.averages and len(self._log.lanes) > 1:
            self._log = self._make_log_from(state.slice_rows(slice(None)), self._log.next_step)
            if self._actors is not None:  # new actors start from the log anyway
                self._with_actors(lambda actors: actors.load(state))
        return state

    def _fetch_state(self) -> None:
        """Fetch the state after all calls, make the pending change, and empty the log."""

        def fetch(actors: StreamActors) -> None:
            self._advance(actors, len(self._log.calls))
            state, lanes = actors.states()
            change, after = self._log.change_after, self._log.next_step
            changed = None if change is None else change(state)
            # The log is assigned once, so that an interrupt leaves either the old one or the new
            # one.
            if changed is None:
                self._log = _ReplayLog(state, lanes, after)
                actors.n_sent = actors.n_learned = 0
                return
            self._log = self._make_log_from(changed, after)
            actors.n_sent = actors.n_learned = 0
            if self._plan.policy.uses_shards:
                self._close_actors()  # servers load a state only when they start
            else:
                actors.load(changed)

        self._with_actors(fetch)

    def reset(self, parameters: bool) -> None:
        """Reset the optimizer and the schedule, and with `parameters` also the parameters."""
        base, work = self._base, self._fit.steps
        base.shard = Shard(work.rule, self.state())
        base.reset(parameters)
        self._continue_from(self._fit, base.shard.state())

    def _continue_from(self, fit: FitSpec, state: ShardState) -> None:
        """Continue with new actors of a fit from a state that includes all calls so far."""
        self._fit, self._log = fit, self._make_log_from(state, self._log.next_step)
        self._close_actors()

    def note_resumed(self) -> None:
        """Record that the next rows are not those from which the fit was planned."""
        self._base.note_resumed()

    @property
    def n_behind(self) -> int:
        """Return the rows of finished calls that the fetched state does not include."""
        counted = [c for c in self._log.calls if c.loss is not None and c not in self._finished]
        return sum(call.n_rows for call in counted)

    @property
    def is_cut_off(self) -> bool:
        """Return whether it was closed before the state had all calls, as by a second Ctrl-C."""
        return self._is_closed and bool(self._log.calls)

    def close(self) -> None:
        """Close all actors and end the shields; a second call does nothing."""
        self._is_closed = True
        try:
            self._close_actors()
        finally:
            shielding, self._shielding = self._shielding, None
            if shielding is not None:
                shielding.end()
