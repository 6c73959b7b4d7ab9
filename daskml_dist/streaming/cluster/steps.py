"""Steps of a stream on a cluster: what a session sees in place of those of its own process."""

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

from daskml_dist.comm.base import CHECK_SECONDS, Endpoint
from daskml_dist.dask_internals.cluster import submit_tasks, wait_for_actor
from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.blocks import Block
from daskml_dist.data.computing import FIRST_TASK_NOTICE_SECONDS, Deadline
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
from daskml_dist.streaming.steps import Steps
from daskml_dist.training.client.membership import Membership
from daskml_dist.training.client.run_actors import BUSY, EarlyHost, WorkerUnreachableError
from daskml_dist.training.client.shielding import Shielding
from daskml_dist.training.interrupts import Interrupts
from daskml_dist.training.spec import FitSpec, TrainerSpec
from daskml_dist.training.worker.host import ServerHost, ServerOutcome
from daskml_dist.training.worker.servers import count_fit_servers

__all__ = ["ClusterSteps", "StreamActors"]

#: Seconds in which the actors are to close.
_CLEAN = 2.0


class _StreamActor:
    """An actor of the crew."""

    def __init__(self, kind: type, address: str, future: Any) -> None:
        self.kind, self.address, self.future = kind, address, future
        self.proxy: Any = None


class StreamActors:
    """Actors of one generation of a stream: its servers, and the lanes of each worker.

    Use it until a method raises `WorkerUnreachableError`; then :meth:`close` it, and open another
    one.

    Parameters
    ----------
    client : distributed.Client
    fit : FitSpec
        With the state that servers begin with.
    states : dict of int to ShardState
        What lanes that hold parameters begin with.
    first : int
        Number of the step that comes first.
    membership : Membership

    Attributes
    ----------
    sent, learned : int
        Calls since it was opened that were sent, and of which the losses are known.
    """

    def __init__(
        self,
        client: Client,
        fit: FitSpec,
        states: dict[int, ShardState],
        first: int,
        membership: Membership,
    ) -> None:
        self._client = client
        self._fit = fit
        self._states, self._first = states, first
        self._membership = membership
        self._early = EarlyHost(client)
        self._servers: list[_StreamActor] = []
        self._hosts: list[_StreamActor] = []
        self._lanes: list[frozenset[int]] = []
        self._under_way: list[list[tuple[_StreamActor, Any]]] = []
        self._numbers: list[int] = []
        self.sent = self.learned = 0

    @property
    def run_id(self) -> str:
        """Name of the generation."""
        return self._early.run_id

    # -- opening and closing -------------------------------------------------------------------

    def open(self) -> None:
        """Place the actors, and wait until all have met."""
        addresses = sorted(self._membership.wait_for_any_worker(self._fit.run.timeout))
        n_lanes = len(self._fit.rows.lane_rows)
        n_hosts = min(len(addresses), n_lanes)
        ends = [n_lanes * rank // n_hosts for rank in range(n_hosts + 1)]
        self._lanes = [frozenset(range(a, b)) for a, b in itertools.pairwise(ends)]
        self._numbers = [0] * n_hosts
        self._open_hosts(addresses, self._open_servers(addresses))
        for member in (*self._servers, *self._hosts):
            self._membership.note_work_begun(member.address)

    def _open_servers(self, addresses: list[str]) -> tuple[Endpoint, ...]:
        """Place the servers; the endpoints at which lanes reach them."""
        for number in range(count_fit_servers(self._fit)):
            address = addresses[number % len(addresses)]
            future = self._early.start_host(address, f"{self.run_id}-{number}")
            self._servers.append(_StreamActor(ServerHost, address, future))
        self._bind(self._servers)
        # Whatever has a size goes to actors that are there: graphs are for little.
        parts = [(self._fit, number, len(self._lanes), 0) for number in range(len(self._servers))]
        self._ask_each(self._servers, "begin", parts)
        return tuple(self._ask(self._servers, "endpoint"))

    def _open_hosts(self, addresses: list[str], endpoints: tuple[Endpoint, ...]) -> None:
        """Place the lanes, and wait until they have met."""
        fit, n_hosts = self._fit.replace_work(initial=None), len(self._lanes)
        secret = self._early.secret
        tasks: dict[Any, Any] = {}
        for rank, lanes in enumerate(self._lanes):
            spec = TrainerSpec(
                self.run_id, rank, rank, n_hosts, 0,
                tuple(LaneSpec(lane, ()) for lane in sorted(lanes)), (0,) * len(lanes), 1,
                endpoints, secret, 0, fit.rows.lane_rows,
            )  # fmt: skip
            given = fit, spec, self._first
            tasks[f"{LaneHost.__name__}-{self.run_id}-{rank}"] = LaneHost, given
        pins = dict(zip(tasks, addresses, strict=False))
        futures = submit_tasks(self._client, tasks, dict(pins), list(tasks))
        self._hosts = [_StreamActor(LaneHost, pins[key], futures[key]) for key in tasks]
        self._bind(self._hosts)
        held = [
            {n: state for n, state in self._states.items() if n in lanes or not n}
            for lanes in self._lanes
        ]
        self._ask_each(self._hosts, "load", [(states,) for states in held])

    def _bind(self, members: Sequence[_StreamActor]) -> None:
        """Wait until actors are there."""
        for member in members:
            what = f"worker {member.address} to begin its part"
            patience = Deadline(
                what, self._fit.run.timeout, BUSY, tell_after=FIRST_TASK_NOTICE_SECONDS
            )
            while member.proxy is None:
                with suppress(TimeoutError):
                    member.proxy = self._proxy(member)
                    break
                self._check(member)
                if not patience.lasts():
                    raise WorkerUnreachableError(
                        member.address, f"no answer within {self._fit.run.timeout:g} s"
                    )

    def _proxy(self, member: _StreamActor) -> Any:
        try:
            return wait_for_actor(
                self._client, member.future, member.kind, member.address, CHECK_SECONDS
            )
        except (TimeoutError, DaskMLDistError):
            raise
        except Exception as error:
            if self._membership.is_there(member.address) and member.future.status == "error":
                raise
            raise WorkerUnreachableError(member.address, repr(error)) from error

    def _check(self, member: _StreamActor) -> None:
        if member.future.status in {"lost", "cancelled"}:
            raise WorkerUnreachableError(member.address, "lost")
        if not self._membership.is_there(member.address):
            raise WorkerUnreachableError(member.address, "stopped answering, or lost")

    def close(self) -> None:
        """Leave nothing on the cluster; may be called twice."""
        members = [*self._hosts, *self._servers]
        self._hosts, self._servers, self._under_way = [], [], []
        closing = []
        for member in members:
            if member.proxy is not None:
                with suppress(Exception):
                    closing.append(member.proxy.close())
            member.proxy = None
        until = time.monotonic() + _CLEAN
        for call in closing:
            with suppress(Exception):
                call.result(timeout=max(0.01, until - time.monotonic()))
        futures = [member.future for member in members]
        with suppress(Exception):
            self._client.cancel(futures, force=True)
        for future in futures:
            future.release()
        self._early.close()

    # -- asking --------------------------------------------------------------------------------

    def _ask(self, members: Sequence[_StreamActor], method: str, *args: Any) -> list[Any]:
        """Call a method of several actors at once."""
        return self._ask_each(members, method, [args] * len(members))

    def _ask_each(
        self, members: Sequence[_StreamActor], method: str, args: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """The same, with arguments of its own for each."""
        pairs = zip(members, args, strict=True)
        return self._answers([(m, self._call(m, method, *given)) for m, given in pairs])

    def _call(self, member: _StreamActor, method: str, *args: Any) -> Any:
        try:
            return getattr(member.proxy, method)(*args)
        except (OSError, RuntimeError) as error:
            raise WorkerUnreachableError(member.address, repr(error)) from error

    def _answers(self, calls: Sequence[tuple[_StreamActor, Any]]) -> list[Any]:
        """Answers to calls."""
        return [self._answer(member, call, calls) for member, call in calls]

    def _answer(
        self, member: _StreamActor, call: Any, others: Sequence[tuple[_StreamActor, Any]]
    ) -> Any:
        since = time.monotonic()
        while True:
            try:
                return call.result(timeout=CHECK_SECONDS)
            except DaskMLDistError as error:
                if is_consequence(error):
                    raise WorkerUnreachableError("", f"{member.address}: {error}") from error
                raise
            except TimeoutError:
                self._check(member)
            except (OSError, RuntimeError) as error:
                raise WorkerUnreachableError(member.address, repr(error)) from error
            for other, one in others:
                if one.done() and other is not member:
                    self._answer(other, one, ())  # raises where it went
                self._check(other)
            if time.monotonic() - since > self._fit.run.timeout:
                raise WorkerUnreachableError(
                    member.address, f"no answer within {self._fit.run.timeout:g} s"
                )

    # -- learning ------------------------------------------------------------------------------

    def send(self, call: Call, every_step: bool) -> None:
        """Send a call to the lanes that have a share in it."""
        if call.scales is not None:
            assert not self._under_way
            self._ask([*self._servers, *self._hosts], "rescale", *call.scales)
        asked = []
        for at, (host, lanes) in enumerate(zip(self._hosts, self._lanes, strict=True)):
            if steps := call.of(lanes, every_step):
                asked.append((host, self._call(host, "learn", self._numbers[at], steps)))
                self._numbers[at] += 1
        self._under_way.append(asked)
        self.sent += 1

    def receive(self) -> float:
        """Wait for the loss of the first call that is under way."""
        asked = self._under_way[0]
        losses = sorted(one for answer in self._answers(asked) for one in answer)
        del self._under_way[0]
        self.learned += 1
        return float(sum(loss for _, _, loss in losses))

    def may_receive(self) -> bool:
        """Return whether the loss of the first call that is under way is there."""
        return bool(self._under_way) and all(call.done() for _, call in self._under_way[0])

    # -- the state -----------------------------------------------------------------------------

    def states(self) -> tuple[ShardState, dict[int, ShardState]]:
        """Whole state once all calls are learned, and what lanes that hold parameters have."""
        work, lanes = self._fit.steps, dict[int, ShardState]()
        whole = None
        if work.uses_shards:
            self._ask(self._hosts, "flush")
            outcomes: list[ServerOutcome] = self._ask(self._servers, "outcome")
            whole = ShardState.join([o.state for o in outcomes if o.state is not None])
        if self._states:
            for found in self._ask(self._hosts, "states"):
                lanes |= found
        if whole is None:
            return _average_states(lanes), lanes
        if lanes:  # servers have the parameters alone
            whole.opt_state, whole.step = lanes[0].opt_state, lanes[0].step
            lanes = {0: whole}
        return whole, lanes

    def load(self, state: ShardState) -> None:
        """Let lanes that hold parameters go on from others."""
        self._ask(self._hosts, "load", {0: state})


def _average_states(states: dict[int, ShardState]) -> ShardState:
    """Return the mean of the lanes' parameters, with the first lane's optimizer state."""
    first = states[min(states)].part(slice(None))
    if len(states) == 1:
        return first
    some = [states[lane] for lane in sorted(states)]
    first.w = np.mean([state.w for state in some], axis=0, dtype=np.float64).astype(first.w.dtype)
    first.rows = sum(state.rows for state in some)
    if any(state.average is not None for state in some):
        finals = [state.final for state in some]
        first.average = np.mean(finals, axis=0, dtype=np.float64).astype(first.w.dtype)
    return first


R = TypeVar("R")

#: Calls that are kept to be learned again, at least, and their bytes at most.
_CALLS, _BYTES = 64, 1 << 26
#: Bytes of parameters for each call more that is kept before these are fetched.
_BYTES_A_CALL = 1 << 14
#: Losses of workers with no call learned in between, after which a stream is given up.
_MANY_LOSSES = 8
#: Seconds of rest after the first of them.
_REST = 0.05


@dataclass(eq=False)
class _StateAndCalls:
    """A state that the client has, and the calls since.

    Parameters
    ----------
    state : ShardState
    lanes : dict of int to ShardState
        States of lanes that hold parameters; all that of lane 0 where theirs are missing.
    first : int
        Number of the step that comes after the state.
    calls : list of Call
    """

    state: ShardState
    lanes: dict[int, ShardState]
    first: int
    calls: list[Call] = field(default_factory=list)
    nbytes: int = field(default=0, init=False)

    def add(self, call: Call) -> None:
        """Keep a call more."""
        self.calls.append(call)
        self.nbytes += call.nbytes

    @property
    def next(self) -> int:
        """Number of the step that comes after the calls."""
        return self.calls[-1].steps[-1][0] + 1 if self.calls else self.first

    @property
    def then(self) -> Callable[[ShardState], ShardState | None] | None:
        """Change of the state that is to follow the last call; None: none."""
        return self.calls[-1].then if self.calls else None


class ClusterSteps:
    """Steps of one model by lanes on the workers of a cluster.

    The client keeps the last state that it has fetched and all calls since: after the loss of a
    worker a new generation of actors begins with that state and learns these calls again, so that
    each counts once.

    Parameters
    ----------
    client : distributed.Client
    plan : StreamLayout
    fit : FitSpec
        Of one lane.
    base : Steps
        In the calling process, not begun.
    """

    def __init__(self, client: Client, plan: StreamLayout, fit: FitSpec, base: Steps) -> None:
        self._client = client
        self._plan, self._fit, self._base = plan, fit, base
        self._membership = Membership(client)
        workers = self._membership.wait_for_any_worker(fit.run.timeout)
        self._n_lanes = plan.n_lanes or len(workers)
        #: Calls that may be under way when another one is given.
        self._window = 0 if plan.together else 2 * self._n_lanes
        state = base.shard.state()
        self._course = self._begun_at(state, 0)
        self._crew: StreamActors | None = None
        #: Calls whose losses nobody has asked for yet.
        self._finished: deque[Call] = deque()
        self._losses = 0
        self._failed: BaseException | None = None
        self._is_closed = False
        #: Rows of a step that the rule is for.
        self._ruled: int | None = None
        #: Tag of the last call that was given.
        self.last: Any = None
        self._scale: Any = state.opt_state.get("scale")
        self._shielding: Shielding | None = None

    def _begun_at(self, state: ShardState, first: int) -> _StateAndCalls:
        """The course of a stream that goes on from a state in all its lanes."""
        holds = self._plan.policy.loop in {"replicas", "shared"}
        return _StateAndCalls(state, {0: state} if holds else {}, first)

    # -- learning ------------------------------------------------------------------------------

    def check(self, n_rows: int) -> None:
        """Check that each lane's share of a step has as many rows as the model needs."""
        fewest, most = getattr(self._fit.steps.model, "fewest_rows", 1), self._base.batch_rows
        n_steps = 1 if most is None else -(-n_rows // most)
        share = n_rows // n_steps // (self._n_lanes if self._plan.together else 1)
        if 1 < fewest and share < fewest:
            raise InvalidDataError(
                f"A lane's share of a step of this call has {share} rows, and a batch "
                f"normalisation needs {fewest}. Gather more rows for a call, raise batch_size, or "
                "take fewer lanes: Run(n_lanes=...)."
            )

    def take(self, rows: BatchRows, block: Block, tag: Any = None) -> None:
        """Take the steps of a call's rows, or begin to; `finished` tells of their losses."""
        if self._failed is not None:
            raise TrainingError(
                "The lanes of this stream have failed before. Begin another one, from the last "
                "checkpoint: stream(checkpoint=Checkpoint(..., resume=True))."
            ) from self._failed
        if self._course.then is not None:  # an interrupt came before
            self.state()
        self._prepare(rows, block)
        then, most = self._then(block), self._base.batch_rows
        self._follow(block.n_rows if most is None else min(block.n_rows, most))
        course = self._course
        steps = deal_rows(
            rows, block.n_rows, most, self._n_lanes, course.next,
            self._plan.together,
        )  # fmt: skip
        scales = self._scales(block)
        course.add(Call(steps, tag, scales, then))
        self.last = tag
        self._run(len(course.calls) - self._window)
        most_calls = max(_CALLS, course.state.w.nbytes // _BYTES_A_CALL)
        if then is not None or len(course.calls) >= most_calls or course.nbytes >= _BYTES:
            self.state()

    def _prepare(self, rows: BatchRows, block: Any) -> None:
        """Make ready what the steps of a call need of the client."""

    def _then(self, block: Block) -> Callable[[ShardState], ShardState | None] | None:
        """Change of the state that the client makes after the call that comes next; None: none."""
        return None

    def _follow(self, n_rows: int) -> None:
        """Have a crew that steps by the rule of steps of so many rows."""
        if n_rows == self._ruled:
            return
        rule = self._base.rule_of(n_rows)
        if rule != self._fit.steps.rule:
            self.state()
            self._drop()
            self._fit = self._fit.replace_work(rule=rule)
        self._ruled = n_rows

    def finished(self) -> tuple[Any, float] | None:
        """The next call whose loss is known, in the order of the calls: its tag, and the loss."""
        if not self._finished:
            return None
        call = self._finished.popleft()
        assert call.loss is not None
        return call.tag, call.loss

    def settle(self) -> None:
        """Wait until all calls are learned."""
        if self._failed is None:
            self._run(len(self._course.calls))

    def _scales(self, block: Block) -> tuple[Any, float] | None:
        """Scales of a call's rows, where these are larger than those before."""
        found = self._base.scales_of(block)
        if found is None or self._scale is None:
            return None
        units = self._base.units(*found)
        if not (units > self._scale).any():
            return None
        self._scale = np.maximum(self._scale, units)
        return found

    def _run(self, until: int) -> None:
        """Send all calls, and learn at least the first `until` of them."""
        self._with_crew(lambda crew: self._advance(crew, until))

    def _advance(self, crew: StreamActors, until: int) -> None:
        calls, most = self._course.calls, max(self._window, 1)
        while crew.sent < len(calls) or crew.learned < until:
            ready = crew.sent < len(calls) and crew.sent - crew.learned < most
            if ready and calls[crew.sent].scales is not None:
                ready = crew.sent == crew.learned
            if ready:
                crew.send(calls[crew.sent], self._plan.together)
            else:
                self._receive(crew, calls)
        while crew.may_receive():
            self._receive(crew, calls)

    def _receive(self, crew: StreamActors, calls: list[Call]) -> None:
        loss = crew.receive()
        call = calls[crew.learned - 1]
        self._losses = 0
        if call.loss is None:  # else it was learned before a loss, too
            call.loss = loss
            self._finished.append(call)

    def _with_crew(self, do: Callable[[StreamActors], R]) -> R:
        """Do something with the crew, again with another one where somebody goes."""
        try:
            while True:
                try:
                    if self._crew is None:
                        self._crew = self._opened()
                    return do(self._crew)
                except WorkerUnreachableError as gone:
                    self._drop()
                    self._count_loss(gone)
        except BaseException as error:
            # Nobody knows how far it came; the client knows where to begin again.
            self._drop()
            if isinstance(error, Exception):
                self._failed = error
            raise

    def _opened(self) -> StreamActors:
        if self._shielding is None:
            self._shielding = Shielding(self._client, f"daskml-{uuid.uuid4().hex}")
        course = self._course
        fit = self._plan.fit(self._fit, course.state, self._n_lanes)
        crew = StreamActors(self._client, fit, course.lanes, course.first, self._membership)
        try:
            crew.open()
        except BaseException:
            with Interrupts() as interrupts, interrupts.held():
                crew.close()
            raise
        return crew

    def _drop(self) -> None:
        # A second Ctrl-C waits until nothing is left on the cluster.
        with Interrupts() as interrupts, interrupts.held():
            crew, self._crew = self._crew, None
            if crew is not None:
                crew.close()

    def _count_loss(self, gone: WorkerUnreachableError) -> None:
        self._losses += 1
        if self._losses > _MANY_LOSSES:
            raise WorkerLostError(
                f"The stream lost workers {self._losses - 1} times with no call learned in "
                f"between ({gone}). Look at the workers' logs: do they run out of memory? Then "
                "begin again from the last checkpoint."
            ) from gone
        if gone.address and gone.address in self._membership.call():
            self._membership.count_as_gone(gone.address)
        time.sleep(_REST * self._losses)

    # -- the state -----------------------------------------------------------------------------

    def state(self) -> ShardState:
        """State after all calls; after a failure, or once closed, the last one known. A copy."""
        if self._course.calls and self._failed is None and not self._is_closed:
            self._fetch()
        return self._course.state.part(slice(None))

    def meeting(self) -> ShardState:
        """The same, which all lanes go on from."""
        state = self.state()
        if self._plan.policy.averages and len(self._course.lanes) > 1:
            self._course = self._begun_at(state.part(slice(None)), self._course.next)
            if self._crew is not None:  # another one begins there
                self._with_crew(lambda crew: crew.load(state))
        return state

    def _fetch(self) -> None:
        """Get the state of now, so that the calls before need not be kept."""

        def fetch(crew: StreamActors) -> None:
            self._advance(crew, len(self._course.calls))
            state, lanes = crew.states()
            then, after = self._course.then, self._course.next
            changed = None if then is None else then(state)
            # One assignment: an interrupt finds either all of it or nothing.
            if changed is None:
                self._course = _StateAndCalls(state, lanes, after)
                crew.sent = crew.learned = 0
                return
            self._course = self._begun_at(changed, after)
            crew.sent = crew.learned = 0
            self._begin_there(crew)

        self._with_crew(fetch)

    def _begin_there(self, crew: StreamActors) -> None:
        """Have lanes go on from the state of the course."""
        if self._plan.policy.uses_shards:
            self._drop()  # servers begin with it
        else:
            crew.load(self._course.state)

    def reset(self, parameters: bool) -> None:
        """Begin the optimizer and the schedule anew, and the parameters where asked for."""
        base, work = self._base, self._fit.steps
        base.shard = Shard(work.rule, self.state())
        base.reset(parameters)
        self._go_on(self._fit, base.shard.state())

    def _go_on(self, fit: FitSpec, state: ShardState) -> None:
        """Have other lanes, of such a fit, go on from a state; all calls before are learned."""
        self._fit, self._course = fit, self._begun_at(state, self._course.next)
        self._drop()

    def resumed(self) -> None:
        """Note that the rows which come next are not those that the fit was planned by."""
        self._base.resumed()

    @property
    def n_behind(self) -> int:
        """Rows of calls that were told of as learned, and that the last known state lacks."""
        told = [c for c in self._course.calls if c.loss is not None and c not in self._finished]
        return sum(call.n_rows for call in told)

    @property
    def is_cut_off(self) -> bool:
        """Return whether it was closed before all calls were learned, as by a second Ctrl-C."""
        return self._is_closed and bool(self._course.calls)

    def close(self) -> None:
        """Leave nothing on the cluster; may be called twice."""
        self._is_closed = True
        try:
            self._drop()
        finally:
            shielding, self._shielding = self._shielding, None
            if shielding is not None:
                shielding.end()
