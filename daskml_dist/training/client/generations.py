"""Generations of a run: its servers, standbys and trainers, and the change to the next one.

When a worker is lost, leaves or joins, `Generations.renew` pauses the servers, chooses the latest
state from which all can continue (`choose_recovery_point`), moves lanes (`lane_assignments.py`),
and gives servers and trainers their parts. Generation 0 begins the same way, without anything to
recover. `Standbys` keeps a copy of each server on another worker, `SavedSnapshots` one at the
client.
"""

from __future__ import annotations

import logging
import os
import pickle
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client

from daskml_dist.dask_internals.cluster import flush_client
from daskml_dist.data.computing import configured_number
from daskml_dist.errors import DataLostError
from daskml_dist.ps.snapshots import AvailableSnapshots, ServerSnapshot, standby_generation
from daskml_dist.training.client.calls import call_workers
from daskml_dist.training.client.cluster_rows import ClusterRows
from daskml_dist.training.client.held_blocks import describe_lost_blocks
from daskml_dist.training.client.lane_assignments import LaneAssignments, Placement, TrainerLanes
from daskml_dist.training.client.membership import Membership
from daskml_dist.training.client.recovery import RecoveryPoint, choose_recovery_point
from daskml_dist.training.client.run_actors import (
    ActorHandle,
    EarlyHost,
    RunActors,
    TrainerTask,
    WorkerUnreachableError,
)
from daskml_dist.training.spec import FitSpec, TrainerSpec
from daskml_dist.training.worker.control import give_generation_orders
from daskml_dist.training.worker.servers import count_fit_servers

logger = logging.getLogger(__name__)
#: Seconds that a server may take to pause, and orders may take to arrive.
_PAUSE, _DELIVERY = 2.0, 3.0
#: Most bytes of snapshots that the client keeps in memory; larger ones go to its disk.
_MOST_SAVED = 2**25
#: Largest factor by which snapshots of large parameters are rarer, as steps take longer by about as
#: much.
_MOST_LARGER = 32
#: Snapshot and records of a server.
Saved = tuple[ServerSnapshot, list[Any]]


class Generations:
    """Servers and trainers of a run on the cluster, from one generation to the next.

    Parameters
    ----------
    client : Client
    fit : FitSpec
    placement : Placement
        Placement of generation 0.
    rows : ClusterRows
    membership : Membership
    actors : RunActors
    early : EarlyHost
        The run's name and secret, and its first actor if one was started early.
    """

    def __init__(
        self,
        client: Client,
        fit: FitSpec,
        placement: Placement,
        rows: ClusterRows,
        membership: Membership,
        actors: RunActors,
        early: EarlyHost,
    ) -> None:
        self.generation = -1
        self.servers: list[ServerPair] = []
        self.trainers: list[TrainerTask] = []
        #: Trainers without lanes that have not ended yet.
        self.dismissed: list[TrainerTask] = []
        #: Servers and standbys that are not needed any more.
        self.old_hosts: list[ActorHandle] = []
        #: Workers that had a part in the run.
        self.visited_workers: set[str] = set()
        #: Names of trainers that have begun on their workers.
        self.begun_trainers: set[int] = set()
        self.lost_rows = 0
        #: Number of trainers that this generation took over from the previous one.
        self.n_kept_trainers = 0
        self.assignments = LaneAssignments(fit, placement, rows, membership)
        self._client = client
        self._fit = fit
        self._rows = rows
        self._membership = membership
        self._actors = actors
        self._early = early
        self._run_id, self._secret = early.run_id, early.secret
        # Updates between snapshots: a trade-off between repeated work after a loss and copying.
        self._snapshot_interval = _choose_snapshot_interval(fit)
        #: Snapshot and records of each server, kept by the client.
        self.saved = SavedSnapshots()
        self._standbys = Standbys(
            actors, membership, self._snapshot_interval, self.visited_workers.add
        )
        #: Server that its standby will replace in the next generation although none is lost.
        self._moving: ServerPair | None = None

    @property
    def members(self) -> set[str]:
        """Return the workers without which this generation cannot continue."""
        running = {trainer.address for trainer in self.trainers}
        return running | {server.host.address for server in self.servers}

    @property
    def trainers_not_begun(self) -> list[TrainerTask]:
        """Return the trainers that have not begun on their workers."""
        return [
            trainer for trainer in self.trainers if trainer.spec.name not in self.begun_trainers
        ]

    def place_servers(self) -> list[str]:
        """Return workers for the servers, spread out; workers without training rows come first."""
        workers, early_worker = self.assignments.threads(), self._early.address
        trainers = [w for w in self.assignments.first_trainers if w in workers]
        idle = sorted(set(workers).difference(trainers))
        # Workers without rows first, and among them the one on which an actor is already starting.
        candidates = [
            w for group in (idle, trainers) for w in sorted(group, key=lambda w: w != early_worker)
        ]
        return list(islice(cycle(candidates), count_fit_servers(self._fit)))

    def move_crowded_server(self) -> str | None:
        """Make the next generation move a server to its standby's worker, with fewer servers.

        After losses, servers accumulate on the remaining workers; workers that return have none.

        Returns
        -------
        str or None
            The worker that it leaves; None if servers are distributed evenly enough.
        """
        n_servers = Counter(server.host.address for server in self.servers)
        for server in self.servers:
            if server.standby is None or not server.standby_ships:
                continue
            # A difference of at least two, so that servers are not moved back and forth.
            if n_servers[server.host.address] - n_servers[server.standby.address] < 2:
                continue
            other_hosts = [other.host for other in self.servers if other is not server]
            # A standby that has just started has no place yet from which all servers could
            # continue.
            if self._find_common_places([server.standby, *other_hosts]):
                self._moving = server
                return server.host.address
        return None

    def _find_common_places(self, hosts: Sequence[ActorHandle]) -> list[set[int]]:
        """Return the places of each host's snapshots from which all can continue together."""
        kept_places = [set(self._actors.call(host, "kept")) for host in hosts]
        if self._fit.work.lockstep:
            # In lock-step, all snapshots must have the same clock.
            kept_places = [set.intersection(*kept_places)] * len(kept_places)
        return kept_places if all(kept_places) else []

    # -- the next generation -------------------------------------------------------------------

    def renew(self, *, rebalance: bool = False) -> RecoveryPoint[ActorHandle] | None:
        """Begin the next generation."""
        self.generation += 1
        recovery_point = choose_recovery_point(
            self._fit.work, [self._pause_hosts(server) for server in self.servers]
        )
        self._moving = None
        # If no server is left: the client's own snapshots.
        if recovery_point is None and (saved := self.saved.get()):
            recovery_point = self._restore_saved(saved)
        # Rows first: the lanes that a trainer can run depend on the existing blocks.
        self._repair_rows()
        parts = self._assign_lanes(rebalance)
        n_trainers = sum(bool(part.lanes) for part in parts)
        if recovery_point is None:
            self._start_servers(n_trainers)
            clocks = {lane.lane: self._fit.work.first_clock for lane in self.assignments.lanes}
        else:
            self._renew_servers(recovery_point, n_trainers)
            clocks = recovery_point.clocks
        self._deliver_parts(parts, clocks)
        for host in self.old_hosts:
            self._actors.discard_host_actor(host)
        self.old_hosts = []
        return recovery_point

    def _pause_hosts(self, server: ServerPair) -> list[tuple[ActorHandle, AvailableSnapshots]]:
        """Pause a server and its standby; return the places from which each could continue."""
        places_by_host = []
        # The server and its standby; one of them is enough to continue.
        for host in server.hosts:
            if host.proxy is None or host.address not in self._membership.threads:
                continue
            try:
                is_moving = server is self._moving and host is server.host
                if is_moving or self._membership.is_leaving(host.address):
                    # The server still answers: it sends its last state to its standby, which
                    # replaces it.
                    if host is server.host and server.standby_ships:
                        self._actors.call(host, "hand_over", self.generation, timeout=_PAUSE)
                    continue
                places_by_host.append(
                    (host, self._actors.call(host, "pause", self.generation, timeout=_PAUSE))
                )
            except WorkerUnreachableError as gone:
                self._membership.count_as_lost(gone.address)
        return places_by_host

    def _restore_saved(self, saved: list[Saved]) -> RecoveryPoint[ActorHandle] | None:
        """Start new servers with the client's snapshots; return where to continue."""
        self._start_servers(0)
        self._actors.begin_waiting_hosts([server.host for server in self.servers])
        for server, (snapshot, records) in zip(self.servers, saved, strict=True):
            self._actors.call(server.host, "stand_by", self.generation)
            self._actors.call(server.host, "take", snapshot, records)
        return choose_recovery_point(
            self._fit.work, [self._pause_hosts(server) for server in self.servers]
        )

    def _renew_servers(self, recovery_point: RecoveryPoint[ActorHandle], n_trainers: int) -> None:
        """Make the chosen hosts the servers of this generation."""
        # A standby may become the server, and a server that is behind becomes its standby.
        for server, host, place in zip(
            self.servers, recovery_point.hosts, recovery_point.places, strict=True
        ):
            self._actors.call(host, "renew", self.generation, n_trainers, place)
            other_hosts = [other for other in server.hosts if other is not host]
            server.standby, server.standby_ships, server.keeps_snapshots = None, False, False
            for other in other_hosts:
                is_leaving = self._membership.is_leaving(other.address)
                if other is server.host or other.proxy is None or is_leaving:
                    self.old_hosts.append(other)
                else:
                    self._actors.call(other, "stand_by", self.generation)
                    server.standby = other
            server.host = host

    def _start_servers(self, n_trainers: int) -> None:
        """Start new servers in their initial state."""
        self.assignments.threads()
        self.old_hosts += [host for server in self.servers for host in server.hosts]
        self.servers = [
            ServerPair(self._actors.start_host_actor(number, address, self.generation, n_trainers))
            for number, address in enumerate(self.place_servers())
        ]
        # No server has taken it if the state of the fit is large, or its worker is another one.
        self._early.close()
        self._actors.wait_for_endpoints([server.host for server in self.servers])

    # -- rows and lanes ------------------------------------------------------------------------

    def _repair_rows(self) -> None:
        """Make lost blocks again; drop rows that are lost for good if the user allows it."""
        if not self.generation and self._rows.were_just_seen():
            return
        # Blocks that cannot be made again are lost for good.
        lost = self._rows.remake_lost_blocks()
        if not self.assignments.have_rows_of(lost):
            return
        # The user may prefer to lose rows rather than the whole fit.
        if self._fit.run.on_lost_data == "raise":
            raise DataLostError(describe_lost_blocks(lost))
        self.lost_rows += self.assignments.drop_blocks(lost)

    def _assign_lanes(self, rebalance: bool) -> list[TrainerLanes]:
        """Return the lanes of each trainer: first of running trainers, then of new ones."""
        # Trainers that continue keep their blocks in memory.
        trainers = [trainer for trainer in self.trainers if self._may_stay_trainer(trainer)]
        for trainer in self.trainers:
            if trainer not in trainers:
                self._actors.discard_futures([trainer.future])
        parts = self.assignments.assign_lanes(trainers, rebalance)
        # Set already, in case another worker is lost before all trainers have their parts.
        self.trainers, self.n_kept_trainers = trainers, len(trainers)
        return parts

    def _may_stay_trainer(self, trainer: TrainerTask) -> bool:
        """Return whether a trainer may continue; on a paused worker only if it has begun."""
        membership = self._membership
        if trainer.address not in membership.threads or trainer.future.status != "pending":
            return False
        return trainer.address not in membership.paused or trainer.spec.name in self.begun_trainers

    # -- trainers ------------------------------------------------------------------------------

    def _deliver_parts(self, all_trainer_lanes: list[TrainerLanes], clocks: dict[int, int]) -> None:
        """Give all trainers their parts: orders to running trainers, tasks to new ones."""
        # Ranks follow the lanes, so rank 0 has lane 0.
        working_parts = sorted(
            (p for p in all_trainer_lanes if p.lanes), key=lambda part: part.lanes[0].lane
        )
        addresses = tuple(part.address for part in working_parts)
        orders: dict[str, dict[int, TrainerSpec | None]] = {}
        new_parts = []
        for rank, part in enumerate(working_parts):
            spec = self._make_trainer_spec(part, rank, addresses, clocks)
            if part.trainer is None:
                blocks = {s.block for lane in spec.lanes for s in lane.segments}
                new_parts.append((part, spec, self._rows.blocks_for_trainer(blocks)))
            else:
                orders.setdefault(part.address, {})[spec.name] = spec
                part.trainer.spec = spec
        trainers = self._actors.start_trainers(
            [(spec, p.address, trainer_blocks) for p, spec, trainer_blocks in new_parts]
        )
        flush_client(self._client)
        for (part, _, _), trainer in zip(new_parts, trainers, strict=True):
            part.trainer = trainer
        self.trainers = [part.trainer for part in working_parts if part.trainer is not None]
        idle = [
            part.trainer
            for part in all_trainer_lanes
            if part.trainer is not None and not part.lanes
        ]
        self.dismissed += idle
        # Recorded first: if a server cannot begin, its trainers must be stopped.
        self.visited_workers |= self.members
        # Trainers wait at the gate of a server that has no part yet.
        self._actors.begin_waiting_hosts([server.host for server in self.servers])
        workers = self._membership.call() if idle else {}
        for trainer in idle:
            if trainer.address in workers:
                orders.setdefault(trainer.address, {})[trainer.spec.name] = None
        calls = {a: (self._run_id, self.generation, specs) for a, specs in orders.items()}
        # A running task cannot receive messages, but its process can (`worker.control`).
        while calls:
            delivered = call_workers(self._client, give_generation_orders, calls, _DELIVERY)
            # A leaving worker may be gone by now; its trainer has no part any more.
            unreached = sorted(set(calls).difference(delivered, self._membership.leaving))
            for address in unreached:
                if not self._membership.is_busy(address):
                    raise WorkerUnreachableError(address, "does not accept instructions")
            calls = {address: calls[address] for address in unreached}

    def _make_trainer_spec(
        self,
        trainer_lanes: TrainerLanes,
        rank: int,
        addresses: tuple[str, ...],
        clocks: dict[int, int],
    ) -> TrainerSpec:
        """Return a trainer's part in this generation."""
        return TrainerSpec(
            self._run_id,
            self._actors.next_serial_number()
            if trainer_lanes.trainer is None
            else trainer_lanes.trainer.spec.name,
            rank,
            len(addresses),
            self.generation,
            tuple(trainer_lanes.lanes),
            tuple(clocks[lane.lane] for lane in trainer_lanes.lanes),
            self._membership.threads.get(trainer_lanes.address, 1),
            tuple(e for server in self.servers if (e := server.host.endpoint) is not None),
            self._secret,
            self._snapshot_interval if self._fit.work.trainers_communicate else 0,
            self.assignments.lane_rows,
            addresses,
        )

    # -- standbys -------------------------------------------------------------------------------

    def ensure_standbys(self) -> None:
        """Make sure that each server has a standby on another worker."""
        self._standbys.ensure_standbys(self.servers, standby_generation(self.generation))

    @property
    def has_standbys(self) -> bool:
        """Return whether another worker has snapshots of each server."""
        return all(server.standby_ships for server in self.servers)

    def save(self) -> None:
        """Fetch the servers' last snapshots, in case all workers are lost."""
        common_places = self._find_common_places([server.host for server in self.servers])
        if not common_places:
            return
        saved = [
            self._actors.call(server.host, "snapshot_at", max(places))
            for server, places in zip(self.servers, common_places, strict=True)
        ]
        if all(saved):
            try:
                self.saved.put(saved, on_disk=not self._has_small_snapshots)
            except OSError as error:
                # A full disk must not end the fit, which needs the snapshot only after a loss: it
                # continues with an older snapshot or none.
                logger.warning(
                    "The snapshots of a fit cannot be saved (%s): if its last worker is lost, "
                    "more work is repeated. Free disk space, or set temporary-directory in "
                    "Dask's configuration.",
                    error,
                )

    @property
    def may_save_at_client(self) -> bool:
        """Return whether the client needs snapshots: if they are small, or without standbys."""
        return self._has_small_snapshots or not self.has_standbys

    @property
    def _has_small_snapshots(self) -> bool:
        """Return whether the snapshots of all servers are small."""
        fit = self._fit
        if fit.work.remembers_course:  # no process holds parameters
            return True
        dtype = np.dtype(fit.rows.dtype)
        arrays = fit.steps.n_parameters * (3 + len(fit.steps.rule.state_names))
        policy = fit.steps.policy
        has_one_copy = policy.uses_shards or policy.sums_gradients
        copies = 1 if has_one_copy else len(self.assignments.lanes)
        return arrays * dtype.itemsize * copies <= _MOST_SAVED

    def release_run(self) -> bool:
        """Release everything that the run holds; return False if a clean-up is needed, too."""
        is_released = not (self.generation or self.dismissed or self.old_hosts)
        if not is_released or any(server.standby is not None for server in self.servers):
            return False
        if not self._actors.release_if_ended():
            return False
        self.saved.close()
        self.servers, self.trainers = [], []
        return True

    def close(self) -> None:
        """Remove everything of the run from the cluster."""
        hosts = [host for server in self.servers for host in server.hosts]
        self._actors.close([*hosts, *self.old_hosts])
        self.saved.close()
        self.servers, self.trainers, self.dismissed, self.old_hosts = [], [], [], []


def _choose_snapshot_interval(fit: FitSpec) -> int:
    """Return the updates (or steps, if trainers hold the state) between two snapshots.

    A standby is at most two snapshots behind, ``daskml_dist.standby_lag`` updates (64 by default).
    This is multiplied by the number of parameters divided by 16,384; by at most 32 if a step
    touches all parameters, since a step then takes longer by about as much.
    """
    interval = max(1, int(configured_number("daskml_dist.standby_lag", 64)) // 2)
    if fit.work.remembers_course:
        return 2 * interval
    policy = fit.steps.policy
    # A snapshot of many parameters takes longer; a dense step does, too, but a sparse one does not.
    size_factor = max(1, fit.steps.n_parameters // 2**14)
    if fit.steps.model.table is not None:
        # A snapshot has the rows that changed since the last one: it costs as much as some steps,
        # whatever the size of the table.
        rows = sum(fit.rows.lane_rows) / fit.work.n_steps
        entries = rows * (fit.steps.model.touches or 1.0) * fit.steps.shape[1]
        return interval * max(1, int(entries) >> 17)
    interval *= size_factor if fit.work.coordinates else min(size_factor, _MOST_LARGER)
    if policy.averages and not policy.average_every:
        return 8 * interval
    if policy.averages_on_servers:
        # An update combines many steps of many lanes.
        return max(1, interval // (policy.average_every * len(fit.rows.lane_rows)))
    if not policy.uses_shards:
        interval *= 2  # trainers wait at the next snapshot until the standby has the previous one
    if policy.averages:
        return -(-interval // policy.average_every) * policy.average_every
    return interval


class SavedSnapshots:
    """Last snapshots of all servers: small ones in memory, large ones in a private file.

    The file is in Dask's ``temporary-directory``, if it is set, and is deleted with the fit.
    """

    def __init__(self) -> None:
        self._snapshots: list[Saved] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def put(self, snapshots: list[Saved], on_disk: bool) -> None:
        """Replace the previous snapshots."""
        if not on_disk:
            self._snapshots = snapshots
            return
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(
                prefix="daskml-dist-",
                dir=dask.config.get("temporary-directory", None),
                ignore_cleanup_errors=True,
            )
        # Written to another file and renamed, so that a crash leaves the last complete file.
        new_path = self._file_path.with_suffix(".new")
        with new_path.open("wb") as file:
            pickle.dump(snapshots, file, protocol=pickle.HIGHEST_PROTOCOL)
        os.replace(new_path, self._file_path)

    def get(self) -> list[Saved]:
        """Return the last snapshots; empty if there are none."""
        if self._folder is None or not self._file_path.exists():
            return self._snapshots
        with self._file_path.open("rb") as file:
            snapshots: list[Saved] = pickle.load(file)
        return snapshots

    def close(self) -> None:
        """Forget the snapshots."""
        self._snapshots = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    @property
    def _file_path(self) -> Path:
        """Return the path of the file."""
        assert self._folder is not None
        return Path(self._folder.name) / "snapshots"


@dataclass
class ServerPair:
    """Server of the run, and its standby."""

    host: ActorHandle
    standby: ActorHandle | None = None
    standby_ships: bool = False
    keeps_snapshots: bool = False

    @property
    def hosts(self) -> list[ActorHandle]:
        """Return the server's actor, and its standby's if it has one."""
        return [host for host in (self.host, self.standby) if host is not None]


class Standbys:
    """Standbys of servers on other workers.

    Parameters
    ----------
    actors : RunActors
    membership : Membership
    snapshot_interval : int
        Updates between two snapshots.
    visit : callable
        Takes the address of a worker before a standby is started there.
    """

    def __init__(
        self,
        actors: RunActors,
        membership: Membership,
        snapshot_interval: int,
        visit: Callable[[str], None],
    ) -> None:
        self._actors = actors
        self._membership = membership
        self._snapshot_interval = snapshot_interval
        self._visit = visit

    def ensure_standbys(self, servers: Sequence[ServerPair], generation: int) -> None:
        """Check and start the standbys of all servers; do not wait for new ones."""
        for number, server in enumerate(servers):
            standby = server.standby
            try:
                self._protect_server(number, servers, generation)
            except WorkerUnreachableError as gone:
                if standby is None or gone.address != standby.address:
                    raise
                server.standby, server.standby_ships = None, False
                self._actors.discard_host_actor(standby)

    def _protect_server(
        self, server_index: int, servers: Sequence[ServerPair], generation: int
    ) -> None:
        """Start a server's standby, or make the server send it snapshots."""
        server = servers[server_index]
        standby = server.standby
        if standby is not None and not self._may_stay(standby):
            raise WorkerUnreachableError(standby.address, "lost")
        if standby is None:
            n_servers = Counter(other.host.address for other in servers)
            server.standby = self._open_standby(
                server_index, server.host.address, n_servers, generation
            )
            if server.standby is None and not server.keeps_snapshots:
                self._actors.call(server.host, "keep_snapshots", self._snapshot_interval)
                server.keeps_snapshots = True
        elif not server.standby_ships and self._actors.is_ready(standby):
            endpoint = standby.endpoint or self._actors.wait_for_endpoints([standby])[0]
            self._actors.call(server.host, "ship_to", endpoint, self._snapshot_interval)
            server.standby_ships = True

    def _may_stay(self, standby: ActorHandle) -> bool:
        """Return whether a standby exists, or will soon, and its worker is not leaving."""
        begins = standby.address in self._membership.ready or self._actors.is_ready(standby)
        return begins and not self._membership.is_leaving(standby.address)

    def _open_standby(
        self, server_index: int, server_address: str, n_servers: Counter[str], generation: int
    ) -> ActorHandle | None:
        """Start a standby on another worker with the fewest servers; return None without one."""
        ready = set(self._membership.ready) - {server_address}
        fewest = min((n_servers[address] for address in ready), default=0)
        candidates = sorted(address for address in ready if n_servers[address] == fewest)
        if not candidates:
            return None
        address = candidates[server_index % len(candidates)]
        self._visit(address)
        return self._actors.start_host_actor(server_index, address, generation, 1)
