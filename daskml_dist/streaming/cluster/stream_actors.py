"""Servers and lanes of a stream on a cluster, as the client holds them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from distributed import Client

from daskml_dist.comm.base import CHECK_SECONDS, Endpoint
from daskml_dist.dask_internals.cluster import submit_tasks, wait_for_actor
from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.computing import FIRST_TASK_NOTICE_SECONDS, Deadline
from daskml_dist.errors import DaskMLDistError, is_consequence
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.streaming.cluster.calls import Call
from daskml_dist.streaming.cluster.host import LaneHost
from daskml_dist.training.client.membership import Membership
from daskml_dist.training.client.run_actors import BUSY, Early, WorkerUnreachableError
from daskml_dist.training.spec import FitSpec, TrainerSpec
from daskml_dist.training.worker.host import ServerHost, ServerOutcome
from daskml_dist.training.worker.servers import count_fit_servers

__all__ = ["StreamActors"]

#: Seconds in which the actors are to close.
_CLEAN = 2.0


class _Member:
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
        self._early = Early(client)
        self._servers: list[_Member] = []
        self._hosts: list[_Member] = []
        self._lanes: list[frozenset[int]] = []
        self._under_way: list[list[tuple[_Member, Any]]] = []
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
            future = self._early.host(address, f"{self.run_id}-{number}")
            self._servers.append(_Member(ServerHost, address, future))
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
        self._hosts = [_Member(LaneHost, pins[key], futures[key]) for key in tasks]
        self._bind(self._hosts)
        held = [
            {n: state for n, state in self._states.items() if n in lanes or not n}
            for lanes in self._lanes
        ]
        self._ask_each(self._hosts, "load", [(states,) for states in held])

    def _bind(self, members: Sequence[_Member]) -> None:
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

    def _proxy(self, member: _Member) -> Any:
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

    def _check(self, member: _Member) -> None:
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

    def _ask(self, members: Sequence[_Member], method: str, *args: Any) -> list[Any]:
        """Call a method of several actors at once."""
        return self._ask_each(members, method, [args] * len(members))

    def _ask_each(
        self, members: Sequence[_Member], method: str, args: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """The same, with arguments of its own for each."""
        pairs = zip(members, args, strict=True)
        return self._answers([(m, self._call(m, method, *given)) for m, given in pairs])

    def _call(self, member: _Member, method: str, *args: Any) -> Any:
        try:
            return getattr(member.proxy, method)(*args)
        except (OSError, RuntimeError) as error:
            raise WorkerUnreachableError(member.address, repr(error)) from error

    def _answers(self, calls: Sequence[tuple[_Member, Any]]) -> list[Any]:
        """Answers to calls."""
        return [self._answer(member, call, calls) for member, call in calls]

    def _answer(self, member: _Member, call: Any, others: Sequence[tuple[_Member, Any]]) -> Any:
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
