"""The servers of a run as the client holds them, and the standby that each is to have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daskml_dist.training.client.membership import Membership
from daskml_dist.training.client.run_actors import Host, RunActors, WorkerUnreachableError

__all__ = ["Server", "Standbys"]


@dataclass
class Server:
    """A server of the run, and its standby."""

    host: Host
    standby: Host | None = None
    standby_ships: bool = False
    keeps_snapshots: bool = False

    @property
    def hosts(self) -> list[Host]:
        """The server, and its standby if it has one."""
        return [host for host in (self.host, self.standby) if host is not None]


class Standbys:
    """Standbys of servers, on other workers.

    Parameters
    ----------
    fleet : RunActors
    membership : Membership
    every : int
        Updates between two snapshots.
    visit : callable
        Takes the address of a worker before a standby is opened there.
    """

    def __init__(
        self, fleet: RunActors, membership: Membership, every: int, visit: Callable[[str], None]
    ) -> None:
        self._fleet = fleet
        self._membership = membership
        self._every = every
        self._visit = visit

    def mind(self, servers: Sequence[Server], generation: int) -> None:
        """See to the standbys of all servers; returns before new ones are there.

        Parameters
        ----------
        servers : sequence of Server
        generation : int
            That of new standbys.
        """
        for number, server in enumerate(servers):
            standby = server.standby
            try:
                self._mind(number, server, generation)
            except WorkerUnreachableError as gone:
                if standby is None or gone.address != standby.address:
                    raise
                server.standby, server.standby_ships = None, False
                self._fleet.discard_host(standby)

    def _mind(self, number: int, server: Server, generation: int) -> None:
        standby = server.standby
        if standby is not None and not self._may_stay(standby):
            raise WorkerUnreachableError(standby.address, "lost")
        if standby is None:
            server.standby = self._open(number, server.host.address, generation)
            if server.standby is None and not server.keeps_snapshots:
                self._fleet.ask(server.host, "keep_snapshots", self._every)
                server.keeps_snapshots = True
        elif not server.standby_ships and self._fleet.is_ready(standby):
            endpoint = standby.endpoint or self._fleet.meet(standby)
            self._fleet.ask(server.host, "ship_to", endpoint, self._every)
            server.standby_ships = True

    def _may_stay(self, standby: Host) -> bool:
        """Whether a standby is there and stays, or will be: at a paused worker none begins."""
        begins = standby.address in self._membership.ready or self._fleet.is_ready(standby)
        return begins and not self._membership.is_leaving(standby.address)

    def _open(self, number: int, own: str, generation: int) -> Host | None:
        others = sorted(set(self._membership.ready) - {own})
        if not others:
            return None
        address = others[number % len(others)]
        self._visit(address)
        return self._fleet.open_host(number, address, generation, 1)
