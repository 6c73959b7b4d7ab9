"""Generations of a run: who is a server, a shadow or a trainer, and how the next one begins.

A new generation stops the servers, finds the latest place from which all can go on
(`recovery.choose`), moves lanes, and tells servers and trainers. Generation 0 begins in the same
way, with nothing to go on from.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from itertools import cycle, islice

import dask
import numpy as np
from distributed import Client

from daskml_dist.comm.base import Endpoint
from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.placement import Placement, reassign
from daskml_dist.errors import DataLostError
from daskml_dist.ps.image import Holding, shadow_of
from daskml_dist.training.cluster_rows import ClusterRows
from daskml_dist.training.fleet import Fleet, Gone, Host, Seat, call_workers
from daskml_dist.training.held_blocks import tell_lost
from daskml_dist.training.membership import Membership
from daskml_dist.training.orders import give_orders
from daskml_dist.training.recovery import GoOn, choose
from daskml_dist.training.saved import Saved, SavedImages
from daskml_dist.training.servers import n_servers
from daskml_dist.training.spec import FitSpec, TrainerSpec

__all__ = ["Generations", "Server"]

logger = logging.getLogger(__name__)

#: Seconds that a server may take to stop, and orders to arrive.
_PAUSE, _DELIVERY = 2.0, 3.0
#: Bytes of images that the client keeps in memory at most; more go to its disk.
_MOST_SAVED = 2**25
#: Threads that a worker counts for which is to get no more lanes.
_NO_ROOM = 1e-6


@dataclass
class Server:
    """A server of the run, and its shadow."""

    host: Host
    shadow: Host | None = None
    shadow_ships: bool = False
    keeps_images: bool = False

    @property
    def hosts(self) -> list[Host]:
        """The server, and its shadow if it has one."""
        return [host for host in (self.host, self.shadow) if host is not None]


@dataclass
class _Part:
    """Lanes, and the trainer that runs them; None: a new one."""

    address: str
    lanes: list[LaneSpec]
    seat: Seat | None = None


class Generations:
    """The servers and trainers of a run on the cluster, from one generation to the next.

    Parameters
    ----------
    client : Client
    fit : FitSpec
    placement : Placement
        Of generation 0.
    rows : ClusterRows
    membership : Membership
    fleet : Fleet
    run_id : str
    secret : bytes
    """

    def __init__(
        self,
        client: Client,
        fit: FitSpec,
        placement: Placement,
        rows: ClusterRows,
        membership: Membership,
        fleet: Fleet,
        run_id: str,
        secret: bytes,
    ) -> None:
        self.number = -1
        self.servers: list[Server] = []
        self.seats: list[Seat] = []
        #: Trainers without lanes, until they have ended.
        self.dismissed: list[Seat] = []
        #: Servers and shadows that are not needed any more.
        self.old_hosts: list[Host] = []
        #: Workers that had a part in the run.
        self.visited: set[str] = set()
        #: Names of trainers that their workers have begun.
        self.begun: set[int] = set()
        self.lost_rows = 0
        #: Trainers that this generation took over from the one before it.
        self.kept = 0
        #: Speed of slow workers, as a share of the others'.
        self.speeds: dict[str, float] = {}
        self._client = client
        self._fit = fit
        self._lanes = placement.lanes
        self._lane_rows = fit.lane_rows
        self._workers = dict(enumerate(placement.workers))
        self._rows = rows
        self._membership = membership
        self._fleet = fleet
        self._run_id = run_id
        self._secret = secret
        self._every = _shadow_every(fit)
        #: Image and records of each server, that the client keeps.
        self._saved = SavedImages()

    @property
    def workers(self) -> dict[int, str]:
        """Worker of each lane."""
        return self._workers

    @property
    def first_trainers(self) -> list[str]:
        """Workers that run lanes, in the order of their first lane."""
        return list(dict.fromkeys(self._workers[lane.lane] for lane in self._lanes))

    @property
    def members(self) -> set[str]:
        """Workers without which this generation cannot go on."""
        running = {seat.address for seat in self.seats}
        return running | {server.host.address for server in self.servers}

    @property
    def not_begun(self) -> set[str]:
        """Workers that have not begun a trainer of theirs."""
        return {seat.address for seat in self.seats if seat.spec.name not in self.begun}

    def place_servers(self) -> list[str]:
        """Workers for the servers, spread: those without rows to train on first."""
        workers = self._threads()
        trainers = [w for w in self.first_trainers if w in workers]
        spread = [*sorted(set(workers).difference(trainers)), *trainers]
        return list(islice(cycle(spread), n_servers(self._fit)))

    # -- the next generation -------------------------------------------------------------------

    def renew(self, *, even: bool = False) -> GoOn[Host] | None:
        """Begin the next generation.

        Parameters
        ----------
        even : bool
            Whether lanes move also from workers that are there, to even them out.

        Returns
        -------
        GoOn, or None where nothing was there to go on from.

        Raises
        ------
        Gone
            Somebody was lost on the way: begin another one.
        """
        self.number += 1
        go_on = choose(self._fit.policy, [self._pause(server) for server in self.servers])
        if go_on is None and (saved := self._saved.get()):
            go_on = self._choose_saved(saved)
        self._mend_rows()
        parts = self._assign(even)
        n_trainers = sum(bool(part.lanes) for part in parts)
        if go_on is None:
            self._open_servers(n_trainers)
            clocks = {lane.lane: self._fit.first_clock for lane in self._lanes}
        else:
            self._go_on(go_on, n_trainers)
            clocks = go_on.clocks
        self._deliver(parts, clocks)
        for host in self.old_hosts:
            self._fleet.discard_host(host)
        self.old_hosts = []
        return go_on

    def _pause(self, server: Server) -> list[tuple[Host, Holding]]:
        """Stop a server and its shadow, where they answer; what each could go on from."""
        held = []
        for host in server.hosts:
            if host.proxy is None or host.address not in self._membership.threads:
                continue
            try:
                if self._is_leaving(host):
                    # It still answers: its shadow gets its last state, and takes its place.
                    if host is server.host and server.shadow_ships:
                        self._fleet.ask(host, "hand_over", self.number, timeout=_PAUSE)
                    continue
                held.append((host, self._fleet.ask(host, "pause", self.number, timeout=_PAUSE)))
            except Gone as gone:
                self._membership.cast_out(gone.address)
        return held

    def _choose_saved(self, saved: list[Saved]) -> GoOn[Host] | None:
        """Give new servers the images that the client has."""
        self._open_servers(0)
        for server, (image, records) in zip(self.servers, saved, strict=True):
            self._fleet.ask(server.host, "stand_by", self.number)
            self._fleet.ask(server.host, "take", image, records)
        return choose(self._fit.policy, [self._pause(server) for server in self.servers])

    def _is_leaving(self, host: Host) -> bool:
        there = self._membership
        return host.address not in there.staying and host.address not in there.ready

    def _go_on(self, go_on: GoOn[Host], n_trainers: int) -> None:
        """Make the chosen hosts the servers of this generation."""
        for server, host, place in zip(self.servers, go_on.hosts, go_on.places, strict=True):
            self._fleet.ask(host, "renew", self.number, n_trainers, place)
            others = [other for other in server.hosts if other is not host]
            server.shadow, server.shadow_ships, server.keeps_images = None, False, False
            for other in others:
                if other is server.host or other.proxy is None or self._is_leaving(other):
                    self.old_hosts.append(other)
                else:
                    self._fleet.ask(other, "stand_by", self.number)
                    server.shadow = other
            server.host = host

    def _open_servers(self, n_trainers: int) -> None:
        """New servers in their first state."""
        self._threads()
        self.old_hosts += [host for server in self.servers for host in server.hosts]
        self.servers = [
            Server(self._fleet.open_host(number, address, self.number, n_trainers))
            for number, address in enumerate(self.place_servers())
        ]
        for server in self.servers:
            self._fleet.meet(server.host)

    # -- rows and lanes ------------------------------------------------------------------------

    def _mend_rows(self) -> None:
        lost = self._rows.mend()
        if not any(s.block in lost for lane in self._lanes for s in lane.segments):
            return
        if self._fit.on_lost_data == "raise":
            raise DataLostError(tell_lost(lost))
        before = sum(lane.n_rows for lane in self._lanes)
        self._lanes = [
            replace(lane, segments=tuple(s for s in lane.segments if s.block not in lost))
            for lane in self._lanes
        ]
        self.lost_rows += before - sum(lane.n_rows for lane in self._lanes)
        self._lane_rows = self._fit.rows_of(self._lanes)

    def _assign(self, even: bool) -> list[_Part]:
        """Who runs which lanes: trainers that stay, then new ones."""
        seats = [seat for seat in self.seats if self._stays(seat)]
        for seat in self.seats:
            if seat not in seats:
                self._fleet.discard_trainer(seat)
        # One that is paused keeps what it runs, and is given no more.
        paused = set(self._membership.paused).difference(self._membership.leaving)
        paused &= {seat.address for seat in seats}
        capacity = self._capacity() | dict.fromkeys(sorted(paused), _NO_ROOM)
        run_on = {lane.lane for seat in seats for lane in seat.lanes}
        given = {
            lane: worker
            for lane, worker in self._workers.items()
            if worker not in self._membership.paused or lane in run_on
        }
        if even or len(given) < len(self._workers) or not set(given.values()) <= capacity.keys():
            holders = self._rows.holders_now()
            self._workers = reassign(self._lanes, given, holders, capacity, even=even)
        self.seats = []
        self.kept = len(seats)
        parts = []
        seated: set[int] = set()
        lanes = {lane.lane: lane for lane in self._lanes}
        for seat in seats:
            here = [lanes[n.lane] for n in seat.lanes if self._workers[n.lane] == seat.address]
            parts.append(_Part(seat.address, here, seat))
            seated.update(lane.lane for lane in here)
        rest: dict[str, list[LaneSpec]] = {}
        for lane in self._lanes:
            if lane.lane not in seated:
                rest.setdefault(self._workers[lane.lane], []).append(lane)
        return parts + [_Part(address, here) for address, here in rest.items()]

    def _stays(self, seat: Seat) -> bool:
        """Whether a trainer may go on as it is: at a paused worker only once it has begun."""
        there = self._membership
        if seat.address not in there.threads or seat.future.status != "pending":
            return False
        return seat.address not in there.paused or seat.spec.name in self.begun

    def _threads(self) -> dict[str, int]:
        """Threads of the workers that can be given work."""
        threads = self._membership.ready
        if not threads:
            # The scheduler may have named workers that were dead already.
            raise Gone("of every lane", "all were lost at once")
        return threads

    def _capacity(self) -> dict[str, float]:
        return {a: n * self.speeds.get(a, 1.0) for a, n in self._threads().items()}

    def would_even_out(self) -> bool:
        """Whether lanes would move if they were spread evenly over the workers that stay."""
        even = reassign(self._lanes, self._workers, {}, self._capacity(), even=True)
        return even != self._workers

    # -- trainers ------------------------------------------------------------------------------

    def _deliver(self, parts: list[_Part], clocks: dict[int, int]) -> None:
        """Give all trainers their part: orders to those that run, tasks to new ones."""
        working = sorted((p for p in parts if p.lanes), key=lambda part: part.lanes[0].lane)
        orders: dict[str, dict[int, TrainerSpec | None]] = {}
        for rank, part in enumerate(working):
            spec = self._spec(part, rank, len(working), clocks)
            if part.seat is None:
                blocks = {s.block for lane in spec.lanes for s in lane.segments}
                taken = self._rows.blocks_for(blocks)
                part.seat = self._fleet.open_trainer(spec, part.address, taken)
            else:
                orders.setdefault(part.address, {})[spec.name] = spec
                part.seat.spec = spec
            self.seats.append(part.seat)
        idle = [part.seat for part in parts if part.seat is not None and not part.lanes]
        there = self._membership.call() if idle else {}
        for seat in idle:
            self.dismissed.append(seat)
            if seat.address in there:
                orders.setdefault(seat.address, {})[seat.spec.name] = None
        self.visited |= self.members
        calls = {a: (self._run_id, self.number, specs) for a, specs in orders.items()}
        heard = call_workers(self._client, give_orders, calls, _DELIVERY)
        # One that leaves may be gone by now; the trainer there has no part any more.
        if deaf := sorted(set(calls).difference(heard, self._membership.leaving)):
            raise Gone(deaf[0], "takes no orders")

    def _spec(self, part: _Part, rank: int, n_trainers: int, clocks: dict[int, int]) -> TrainerSpec:
        return TrainerSpec(
            self._run_id,
            self._fleet.next_name() if part.seat is None else part.seat.spec.name,
            rank,
            n_trainers,
            self.number,
            tuple(part.lanes),
            tuple(clocks[lane.lane] for lane in part.lanes),
            self._membership.threads.get(part.address, 1),
            tuple(_endpoint(server.host) for server in self.servers),
            self._secret,
            0 if self._fit.policy.uses_shards else self._every,
            self._lane_rows,
        )

    # -- shadows -------------------------------------------------------------------------------

    def mind_shadows(self) -> None:
        """See that each server has a shadow on another worker."""
        for number, server in enumerate(self.servers):
            shadow = server.shadow
            try:
                if shadow is not None and not self._may_stay(shadow):
                    raise Gone(shadow.address, "lost")
                if shadow is None:
                    server.shadow = self._open_shadow(number)
                    if server.shadow is None and not server.keeps_images:
                        self._fleet.ask(server.host, "keep_images", self._every)
                        server.keeps_images = True
                elif not server.shadow_ships and self._fleet.is_ready(shadow):
                    endpoint = shadow.endpoint or self._fleet.meet(shadow)
                    self._fleet.ask(server.host, "shadow_to", endpoint, self._every)
                    server.shadow_ships = True
            except Gone as gone:
                if shadow is None or gone.address != shadow.address:
                    raise
                server.shadow, server.shadow_ships = None, False
                self._fleet.discard_host(shadow)

    def _may_stay(self, shadow: Host) -> bool:
        """Whether a shadow is there and stays, or will be: at a paused worker none begins."""
        begins = shadow.address in self._membership.ready or self._fleet.is_ready(shadow)
        return begins and not self._is_leaving(shadow)

    def _open_shadow(self, number: int) -> Host | None:
        own = self.servers[number].host.address
        others = sorted(set(self._membership.ready) - {own})
        if not others:
            return None
        address = others[number % len(others)]
        self.visited.add(address)
        return self._fleet.open_host(number, address, shadow_of(self.number), 1)

    @property
    def is_shadowed(self) -> bool:
        """Whether another worker has images of each server."""
        return all(server.shadow_ships for server in self.servers)

    def save(self) -> None:
        """Get the servers' last images to the client, for the day when all workers are lost."""
        kept = [self._fleet.ask(server.host, "kept") for server in self.servers]
        common = set.intersection(*map(set, kept)) if self._fit.policy.lockstep else None
        if not all(kept) or (common is not None and not common):
            return
        saved = []
        for server, places in zip(self.servers, kept, strict=True):
            place = max(places if common is None else common)
            saved.append(self._fleet.ask(server.host, "image_at", place))
        if all(saved):
            try:
                self._saved.put(saved, on_disk=not self._are_small)
            except OSError as error:
                # The fit goes on, with an older image or none.
                logger.warning(
                    "The images of a fit cannot be kept (%s): should its last worker be lost, more "
                    "is made again. Free the disk, or set temporary-directory in Dask's "
                    "configuration.",
                    error,
                )

    @property
    def may_save(self) -> bool:
        """Whether the client is to have the images: small ones, and all that are nowhere else."""
        return self._are_small or not self.is_shadowed

    @property
    def _are_small(self) -> bool:
        fit = self._fit
        shape, dtype = fit.model.shape, np.dtype(fit.dtype)
        arrays = shape[0] * shape[1] * (3 + len(fit.rule.optimizer.slot_names))
        policy = fit.policy
        one = policy.uses_shards or policy.sums_gradients
        copies = 1 if one else len(self._lanes)
        return arrays * dtype.itemsize * copies <= _MOST_SAVED

    @property
    def saved(self) -> list[Saved]:
        """The images that the client has; empty where there are none."""
        return self._saved.get()

    def close(self) -> None:
        """Leave nothing on the cluster."""
        hosts = [host for server in self.servers for host in server.hosts]
        self._fleet.close([*hosts, *self.old_hosts], [*self.seats, *self.dismissed])
        self._saved.close()
        self.servers, self.seats, self.dismissed, self.old_hosts = [], [], [], []


def _endpoint(host: Host) -> Endpoint:
    assert host.endpoint is not None
    return host.endpoint


def _shadow_every(fit: FitSpec) -> int:
    """Updates between two images of a server, or steps between those of trainers' own state.

    A shadow is at most two images behind, ``daskml_dist.shadow_lag`` updates (64 by default).
    """
    every = max(1, int(dask.config.get("daskml_dist.shadow_lag", 64)) // 2)
    policy = fit.policy
    if policy.averages and not policy.average_every:
        return 8 * every
    if not policy.uses_shards:
        every *= 2  # trainers wait until the first server has their images
    if policy.averages:
        return -(-every // policy.average_every) * policy.average_every
    if fit.rule.coordinates:
        # A sparse step costs little next to an image of the whole shard.
        return every * max(1, fit.model.shape[0] * fit.model.width // 2**14)
    return every
