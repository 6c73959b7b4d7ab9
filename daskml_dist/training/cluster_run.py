"""One fit on a cluster: place, launch, watch, recover, gather, and leave nothing behind.

The client is the authority on who belongs to the run. Whenever a worker is lost, leaves or joins,
it begins a new *generation*: it stops the servers, finds the latest place from which all can go
on (`recovery.choose`), moves lanes, and tells servers and trainers. Generation 0 begins in the
same way, with nothing to go on from.
"""

from __future__ import annotations

import secrets
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from typing import Any

import dask
from distributed import Client

from daskml_dist.comm.base import Endpoint
from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.placement import Placement, reassign
from daskml_dist.errors import (
    DaskMLDistError,
    TrainingError,
    WorkerLostError,
    is_consequence,
)
from daskml_dist.policies import LocalSGD, ModelAveraging
from daskml_dist.ps.image import Holding, shadow_of
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.cluster_rows import ClusterRows
from daskml_dist.training.dask_internals import evict
from daskml_dist.training.engine import FitResult, RunView
from daskml_dist.training.fleet import Fleet, Gone, Host, Seat, call_workers
from daskml_dist.training.host import Outcome
from daskml_dist.training.membership import Membership
from daskml_dist.training.orders import (
    Alarm,
    abort_run,
    forget_run,
    give_orders,
    listen,
    stop_listening,
)
from daskml_dist.training.recovery import GoOn, choose
from daskml_dist.training.servers import joined_state, n_servers
from daskml_dist.training.spec import FitSpec, TrainerResult, TrainerSpec

__all__ = ["GenerationEvent", "TrainingRun"]

#: Seconds between two looks at the fit: short at first, so that short fits end at once.
_FIRST_LOOK, _LOOK = 0.01, 0.2
#: Seconds between two roll calls.
_ROLL_CALL = 0.5
#: Seconds after an alarm in which the scheduler is asked again who is gone.
_SOON = 0.3
#: Seconds that the end of all trainers after an error, and the delivery of orders, may take.
_WIND_DOWN, _DELIVERY = 15.0, 3.0
#: Seconds that a fit must last before it gets shadows: a short one is sooner begun anew.
_SHADOW_AFTER = 0.25
#: Seconds for which a new worker must be there before lanes move to it.
_SETTLED = 1.0
#: Generations without any progress after which a fit is given up.
_MOST_FAILURES = 6
#: Seconds that actors may take to end.
_CLEAN = 2.0
#: Seconds in which a worker without heartbeats may still show that it lives.
_CONFIRM = 0.5


@dataclass(frozen=True)
class GenerationEvent:
    """A new membership of a run, as callbacks and the history see it.

    Parameters
    ----------
    generation : int
    reason : str
    lost_versions : int
        Updates that are made again.
    anew : bool
        Whether the fit began anew (from its checkpoint, where it has one).
    seconds : float
        From the moment the reason was known until all had their orders.
    """

    generation: int
    reason: str
    lost_versions: int
    anew: bool
    seconds: float

    def __str__(self) -> str:
        what = "begins anew" if self.anew else f"goes on, {self.lost_versions} updates made again"
        return f"generation {self.generation} ({self.reason}): the fit {what}"


@dataclass
class _Server:
    """A server of the run, and its shadow."""

    host: Host
    shadow: Host | None = None
    shadow_ships: bool = False

    @property
    def hosts(self) -> list[Host]:
        return [host for host in (self.host, self.shadow) if host is not None]


@dataclass
class _Part:
    """Lanes, and the trainer that runs them; None: a new one."""

    address: str
    lanes: list[LaneSpec]
    seat: Seat | None = None


@dataclass
class _Progress:
    """How often the fit was interrupted since it last came further."""

    failures: int = 0
    clocks: int = 0
    events: list[GenerationEvent] = field(default_factory=list)


class TrainingRun:
    """The client's side of one fit.

    Parameters
    ----------
    client : Client
    fit : FitSpec
    placement : Placement
    rows : ClusterRows
    """

    def __init__(
        self, client: Client, fit: FitSpec, placement: Placement, rows: ClusterRows
    ) -> None:
        self._client = client
        self._fit = fit
        self._rows = rows
        self._lanes = placement.lanes
        self._workers = dict(enumerate(placement.workers))
        self._id = f"daskml-{uuid.uuid4().hex}"
        self._secret = secrets.token_bytes(32)
        self._membership = Membership(client)
        self._awake = threading.Event()
        self._alarms: list[Alarm] = []
        self._fleet = Fleet(client, fit, self._id, self._secret, self._is_there, self._awake.set)
        self._generation = -1
        self._servers: list[_Server] = []
        self._seats: list[Seat] = []
        self._old_hosts: list[Host] = []
        self._dismissed: list[Seat] = []
        self._visited: set[str] = set()
        self._evens = False
        self._every = _shadow_every(fit)
        #: When each worker was first seen, and those that lanes were dealt to.
        self._known: dict[str, float] = {}
        self._old_members: set[str] = set()
        self._trainer_addresses: list[str] = list(placement.by_worker())
        self._server_addresses: list[str] = []
        self._told = 0
        self._stopping = False
        self._progress = _Progress()
        self._began = time.monotonic()

    def run(self, callbacks: CallbackList) -> FitResult:
        """Run the fit to its end, or clean up and raise."""
        self._membership.call()
        self._old_members.update(self._membership.threads)
        self._server_addresses[:] = self._places_of_servers()
        view = RunView(
            self._id,
            self._fit,
            self._trainer_addresses,
            self._server_addresses,
            self._stop,
        )
        try:
            callbacks.on_fit_begin(view)
            listen(self._client, self._id, self._on_alarm)
            self._begin("the fit begins", callbacks, view)
            result = self._watch(callbacks, view)
            self._tell(callbacks, view, result.records)
        except BaseException as error:
            cause = error
            try:
                cause = self._wind_down(error)
            finally:  # also when the user interrupts once more
                self._clean_up()
                callbacks.on_fit_end(view, cause)
            if cause is error:
                raise
            raise cause from error
        self._clean_up()
        callbacks.on_fit_end(view)
        return result

    def _on_alarm(self, alarm: Alarm) -> None:
        self._alarms.append(alarm)
        self._awake.set()

    def _is_there(self, address: str) -> bool:
        return address in self._membership.call()

    # -- a generation --------------------------------------------------------------------------

    def _begin(self, reason: str, callbacks: CallbackList, view: RunView) -> None:
        """Begin the next generation, and again where it loses somebody on the way."""
        since = time.monotonic()
        while True:
            self._generation += 1
            self._count_failure(reason)
            try:
                go_on = self._renew()
                break
            except Gone as gone:
                self._note_gone(gone)
                reason = f"{reason}; {gone}"
        self._began = time.monotonic()
        if self._generation == 0:
            return
        event = GenerationEvent(
            self._generation,
            reason,
            0 if go_on is None else go_on.lost,
            go_on is None,
            time.monotonic() - since,
        )
        self._progress.events.append(event)
        callbacks.on_generation(view, event)

    def _count_failure(self, reason: str) -> None:
        progress = self._progress
        progress.failures += 1
        if progress.failures > _MOST_FAILURES:
            raise WorkerLostError(
                f"The fit lost workers {progress.failures - 1} times without coming further in "
                f"between ({reason}). Look at the workers' logs: do they run out of memory? Use "
                "smaller chunks, memory_budget, or workers with more memory, then fit again."
            )

    def _note_gone(self, gone: Gone) -> None:
        """Count a worker that does not answer as lost, also where the scheduler does not yet."""
        if gone.address in self._membership.call():
            self._membership.cast_out(gone.address)

    def _renew(self) -> GoOn[Host] | None:
        threads = self._membership.call() or self._membership.wait_for_any(self._fit.timeout)
        held = self._pause()
        go_on = choose(self._fit.policy, held)
        parts = self._assign(threads)
        n_trainers = sum(bool(part.lanes) for part in parts)
        if go_on is None:
            self._open_servers(n_trainers)
            first = self._fit.first_clock
            clocks = {lane.lane: first for lane in self._lanes}
        else:
            self._go_on(go_on, n_trainers)
            clocks = go_on.clocks
            if sum(clocks.values()) > self._progress.clocks:
                self._progress.failures = 0
            self._progress.clocks = sum(clocks.values())
        endpoints = tuple(self._endpoint(server.host) for server in self._servers)
        self._deliver(parts, clocks, endpoints)
        self._server_addresses[:] = [server.host.address for server in self._servers]
        self._visited |= self._members
        self._trainer_addresses[:] = list(dict.fromkeys(seat.address for seat in self._seats))
        if self._stopping:
            self._fleet.ask(self._servers[0].host, "stop")
        for host in self._old_hosts:
            self._fleet.discard_host(host)
        self._old_hosts = []
        return go_on

    def _endpoint(self, host: Host) -> Endpoint:
        assert host.endpoint is not None
        return host.endpoint

    def _pause(self) -> list[list[tuple[Host, Holding]]]:
        """Stop all servers and shadows that answer; what each could go on from."""
        return [
            [(host, holding) for host in server.hosts if (holding := self._holding(host))]
            for server in self._servers
        ]

    def _holding(self, host: Host) -> Holding | None:
        if host.proxy is None or host.address not in self._membership.staying:
            return None
        try:
            holding: Holding = self._fleet.ask(host, "pause", self._generation, timeout=2)
        except Gone as gone:
            self._note_gone(gone)
            return None
        return holding

    def _go_on(self, go_on: GoOn[Host], n_trainers: int) -> None:
        """Make the chosen hosts the servers of this generation."""
        for server, host, place in zip(self._servers, go_on.hosts, go_on.places, strict=True):
            others = [other for other in server.hosts if other is not host]
            self._fleet.ask(host, "renew", self._generation, n_trainers, place)
            server.shadow, server.shadow_ships = None, False
            for other in others:
                if other is server.host or other.address not in self._membership.staying:
                    self._old_hosts.append(other)
                elif other.proxy is not None:
                    self._fleet.ask(other, "stand_by", self._generation)
                    server.shadow = other
                else:
                    self._old_hosts.append(other)
            server.host = host

    def _open_servers(self, n_trainers: int) -> None:
        """New servers in their first state."""
        self._old_hosts += [host for server in self._servers for host in server.hosts]
        self._servers = []
        self._servers = [
            _Server(self._fleet.open_host(number, address, self._generation, n_trainers))
            for number, address in enumerate(self._places_of_servers())
        ]
        for server in self._servers:
            self._fleet.meet(server.host)

    def _places_of_servers(self) -> list[str]:
        """Spread over the workers: those without rows to train on first."""
        workers = self._membership.staying or self._membership.threads
        busy = set(self._workers.values())
        spread = [*sorted(set(workers) - busy), *[w for w in workers if w in busy]]
        if self._generation < 0:
            spread = [*sorted(set(workers) - busy), *self._trainer_addresses]
        return list(islice(cycle(spread), n_servers(self._fit)))

    # -- trainers ------------------------------------------------------------------------------

    def _assign(self, threads: dict[str, int]) -> list[_Part]:
        """Who runs which lanes: trainers that stay, then new ones."""
        seats = [s for s in self._seats if s.address in threads and s.future.status == "pending"]
        for seat in self._seats:
            if seat not in seats:
                self._fleet.discard_trainer(seat)
        capacity: dict[str, float] = dict(self._membership.staying or threads)
        if self._generation:
            holders = self._rows.holders_now()
            self._workers = reassign(
                self._lanes, self._workers, holders, capacity, even=self._evens
            )
        self._seats, self._evens = [], False
        parts = []
        seated: set[int] = set()
        for seat in seats:
            lanes = [n for n in seat.lanes if self._workers[n.lane] == seat.address]
            parts.append(_Part(seat.address, lanes, seat))
            seated.update(lane.lane for lane in lanes)
        rest: dict[str, list[LaneSpec]] = {}
        for lane in self._lanes:
            if lane.lane not in seated:
                rest.setdefault(self._workers[lane.lane], []).append(lane)
        return parts + [_Part(address, lanes) for address, lanes in rest.items()]

    def _deliver(
        self, parts: list[_Part], clocks: dict[int, int], servers: tuple[Endpoint, ...]
    ) -> None:
        """Give all trainers their part: orders to those that run, tasks to new ones."""
        working = sorted((p for p in parts if p.lanes), key=lambda part: part.lanes[0].lane)
        orders: dict[str, dict[int, TrainerSpec | None]] = {}
        new: list[tuple[TrainerSpec, str]] = []
        for rank, part in enumerate(working):
            name = self._fleet.next_name() if part.seat is None else part.seat.spec.name
            spec = TrainerSpec(
                self._id,
                name,
                rank,
                len(working),
                self._generation,
                tuple(part.lanes),
                tuple(clocks[lane.lane] for lane in part.lanes),
                self._membership.threads.get(part.address, 1),
                servers,
                self._secret,
                0 if self._fit.policy.uses_shards or self._alone else self._every,
            )
            if part.seat is None:
                new.append((spec, part.address))
            else:
                orders.setdefault(part.address, {})[name] = spec
                part.seat.spec = spec
                self._seats.append(part.seat)
        for part in parts:
            if part.seat is not None and not part.lanes:
                orders.setdefault(part.address, {})[part.seat.spec.name] = None
                self._dismissed.append(part.seat)
        for spec, address in new:
            blocks = self._rows.blocks_for({s.block for lane in spec.lanes for s in lane.segments})
            self._seats.append(self._fleet.open_trainer(spec, address, blocks))
        calls = {a: (self._id, self._generation, specs) for a, specs in orders.items()}
        heard = call_workers(self._client, give_orders, calls, _DELIVERY)
        if deaf := sorted(set(calls).difference(heard)):
            raise Gone(deaf[0], "takes no orders")

    @property
    def _alone(self) -> bool:
        return len(self._membership.threads) < 2

    # -- watch ---------------------------------------------------------------------------------

    def _watch(self, callbacks: CallbackList, view: RunView) -> FitResult:
        look, roll_call = _FIRST_LOOK, time.monotonic()
        while True:
            try:
                self._pause_for(look)
                look = min(look * 1.5, _LOOK)
                reason = self._trouble()
                if reason is None and time.monotonic() - roll_call > _ROLL_CALL:
                    reason = self._roll_call()
                    roll_call = time.monotonic()
                if reason is None:
                    result = self._gather() if self._all_done() else None
                    if result is not None:
                        return result
                    self._tell(callbacks, view)
                    self._mind_shadows()
            except Gone as gone:
                self._note_gone(gone)
                reason = str(gone)
            if reason is not None:
                self._begin(reason, callbacks, view)
                look = _FIRST_LOOK

    def _pause_for(self, seconds: float) -> None:
        """Sleep until something happens, but no longer than so many seconds."""
        self._awake.wait(seconds)
        self._awake.clear()

    def _all_done(self) -> bool:
        return all(seat.future.status == "finished" for seat in self._seats)

    @property
    def _members(self) -> set[str]:
        """Workers without which this generation cannot go on."""
        running = {seat.address for seat in self._seats}
        return running | {server.host.address for server in self._servers}

    def _trouble(self) -> str | None:
        """Why a new generation must begin, from what was heard; None: all is well."""
        for seat in self._seats:
            if seat.future.status in {"lost", "cancelled"}:
                return self._who_is_gone() or f"worker {seat.address} lost a part of the fit"
            if seat.future.status == "error":
                error = seat.future.exception(timeout=_LOOK)
                if not (isinstance(error, TrainingError) and is_consequence(error)):
                    raise error
                return self._who_is_gone() or f"a trainer stopped: {error}"
        alarms, self._alarms = self._alarms, []
        if not alarms:
            return None
        if gone := self._who_is_gone():
            return gone
        for alarm in alarms:
            if alarm.trainer is not None and alarm.generation == self._generation:
                return alarm.message
        for server in self._servers:
            server.shadow_ships = False  # perhaps it was its connection that broke
        return None

    def _who_is_gone(self) -> str | None:
        """A closed connection is often seen before the scheduler notes the worker's loss."""
        deadline = time.monotonic() + _SOON
        while True:
            if gone := sorted(self._members.difference(self._membership.call())):
                return f"worker {', '.join(gone)} was lost"
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)

    def _roll_call(self) -> str | None:
        """Why a new generation should begin, from who is there."""
        membership = self._membership
        there = membership.call()
        if gone := sorted(self._members.difference(there)):
            return f"worker {', '.join(gone)} was lost"
        for address in membership.silent(self._members):
            if not call_workers(self._client, _are_you_there, {address: ()}, _CONFIRM):
                membership.cast_out(address)
                evict(self._client, address)
                return f"worker {address} stopped answering"
        leaving = sorted(self._members & membership.leaving)
        if leaving and membership.staying:
            return f"worker {', '.join(leaving)} is leaving"
        return self._joined()

    def _joined(self) -> str | None:
        """New workers take lanes over once they have been there for a moment."""
        now = time.monotonic()
        staying = self._membership.staying
        fresh = [a for a in staying if now - self._known.setdefault(a, now) > _SETTLED]
        fresh = [a for a in fresh if a not in self._old_members]
        self._old_members.update(fresh)
        if not fresh or not self._servers:
            return None
        capacity: dict[str, float] = dict(staying)
        if reassign(self._lanes, self._workers, {}, capacity, even=True) == self._workers:
            return None
        self._evens = True
        return f"worker {', '.join(fresh)} joined"

    def _tell(
        self,
        callbacks: CallbackList,
        view: RunView,
        records: list[dict[str, Any]] | None = None,
    ) -> None:
        if records is None:
            records = self._fleet.ask(self._servers[0].host, "records", self._told)
        else:
            records = records[self._told :]
        for record in records:
            self._told += 1
            callbacks.on_pass_end(view, record)

    def _stop(self) -> None:
        self._stopping = True
        with suppress(Gone):  # the next generation is told
            self._fleet.ask(self._servers[0].host, "stop")

    # -- shadows -------------------------------------------------------------------------------

    def _mind_shadows(self) -> None:
        """See that each server has a shadow on another worker, once the fit proves long."""
        if time.monotonic() - self._began < _SHADOW_AFTER:
            return
        for at, server in enumerate(self._servers):
            shadow = server.shadow
            try:
                if shadow is not None and shadow.address not in self._membership.staying:
                    raise Gone(shadow.address, "lost")
                if shadow is None:
                    server.shadow = self._open_shadow(at)
                elif not server.shadow_ships and self._fleet.is_ready(shadow):
                    endpoint = shadow.endpoint or self._fleet.meet(shadow)
                    self._fleet.ask(server.host, "shadow_to", endpoint, self._every)
                    server.shadow_ships = True
            except Gone as gone:
                if shadow is None or gone.address != shadow.address:
                    raise
                server.shadow, server.shadow_ships = None, False
                self._fleet.discard_host(shadow)

    def _open_shadow(self, number: int) -> Host | None:
        own = self._servers[number].host.address
        others = sorted(set(self._membership.staying) - {own})
        if not others:
            return None
        address = others[number % len(others)]
        self._visited.add(address)
        return self._fleet.open_host(number, address, shadow_of(self._generation), 1)

    # -- the end -------------------------------------------------------------------------------

    def _gather(self) -> FitResult | None:
        """The result; None where a trainer ended before it heard of this generation."""
        results: list[TrainerResult] = []
        for seat in self._seats:
            try:
                results.append(seat.future.result(timeout=self._fit.timeout))
            except Exception as error:
                raise Gone(seat.address, repr(error)) from error
        if any(result.generation != self._generation for result in results):
            self._alarms.append(Alarm("a trainer ended early", 0, self._generation))
            self._awake.set()
            return None
        ask = self._fleet.ask
        shards = [ask(server.host, "state") for server in self._servers]
        outcome: Outcome = ask(self._servers[0].host, "end")
        records = ask(self._servers[0].host, "records", 0)
        return FitResult(
            joined_state(self._fit, shards, results),
            records,
            outcome.stopping,
            outcome.partial_rows,
            outcome.dropped,
            [asdict(event) for event in self._progress.events],
        )

    def _wind_down(self, error: BaseException) -> BaseException:
        """Stop all that runs; return the error to tell the user."""
        for server in self._servers:
            with suppress(Exception):
                server.host.proxy.abort(str(error)).result(timeout=2)
        with suppress(Exception):
            self._on_workers(abort_run)
        deadline = time.monotonic() + _WIND_DOWN
        while time.monotonic() < deadline:
            there = self._membership.call()
            if all(seat.future.done() or seat.address not in there for seat in self._seats):
                break
            self._pause_for(_LOOK)
        return self._root_cause(error)

    def _root_cause(self, error: BaseException) -> BaseException:
        if not isinstance(error, Exception) or (
            isinstance(error, DaskMLDistError) and not is_consequence(error)
        ):
            return error
        for seat in self._seats:
            if seat.future.status == "error":
                own = seat.future.exception(timeout=_LOOK)
                if isinstance(own, DaskMLDistError) and not is_consequence(own):
                    return own
        if isinstance(error, DaskMLDistError):
            return error
        return TrainingError(f"The fit failed on a worker: {error!r}. See the cause above.")

    def _on_workers(self, function: Any) -> dict[str, Any]:
        """Call a function of the run's name on all workers that had a part in it."""
        there = self._membership.call()
        workers = self._visited.intersection(there)
        return call_workers(self._client, function, {w: (self._id,) for w in workers}, _DELIVERY)

    def _clean_up(self) -> None:
        """Leave no actor, task, socket or order behind."""
        stop_listening(self._client, self._id)
        hosts = [host for server in self._servers for host in server.hosts]
        self._fleet.close([*hosts, *self._old_hosts], [*self._seats, *self._dismissed])
        deadline = time.monotonic() + _CLEAN
        with suppress(Exception):
            # Actors end in the background; whoever looks after the fit finds none.
            while any(self._on_workers(forget_run).values()) and time.monotonic() < deadline:
                time.sleep(0.01)
        self._servers, self._seats, self._dismissed, self._old_hosts = [], [], [], []


def _are_you_there() -> bool:
    return True


def _shadow_every(fit: FitSpec) -> int:
    """Updates between two images of a server, or steps between those of trainers' own state.

    A shadow is at most two images behind, ``daskml_dist.shadow_lag`` updates (64 by default).
    """
    every = max(1, int(dask.config.get("daskml_dist.shadow_lag", 64)) // 2)
    policy = fit.policy
    if isinstance(policy, LocalSGD):
        return -(-every // policy.sync_every) * policy.sync_every
    if isinstance(policy, ModelAveraging):
        return 8 * every
    if fit.rule.coordinates:
        # A sparse step costs little next to an image of the whole shard.
        return every * max(1, fit.model.shape[0] * fit.model.width // 2**14)
    return every
