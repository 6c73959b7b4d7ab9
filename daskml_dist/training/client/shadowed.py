"""The servers of a run as the client holds them, and the shadow that each is to have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daskml_dist.training.client.fleet import Fleet, Gone, Host
from daskml_dist.training.client.membership import Membership

__all__ = ["Server", "Shadows"]


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


class Shadows:
    """Shadows of servers, on other workers.

    Parameters
    ----------
    fleet : Fleet
    membership : Membership
    every : int
        Updates between two images.
    visit : callable
        Takes the address of a worker before a shadow is opened there.
    """

    def __init__(
        self, fleet: Fleet, membership: Membership, every: int, visit: Callable[[str], None]
    ) -> None:
        self._fleet = fleet
        self._membership = membership
        self._every = every
        self._visit = visit

    def mind(self, servers: Sequence[Server], generation: int) -> None:
        """See to the shadows of all servers; returns before new ones are there.

        Parameters
        ----------
        servers : sequence of Server
        generation : int
            That of new shadows.
        """
        for number, server in enumerate(servers):
            shadow = server.shadow
            try:
                self._mind(number, server, generation)
            except Gone as gone:
                if shadow is None or gone.address != shadow.address:
                    raise
                server.shadow, server.shadow_ships = None, False
                self._fleet.discard_host(shadow)

    def _mind(self, number: int, server: Server, generation: int) -> None:
        shadow = server.shadow
        if shadow is not None and not self._may_stay(shadow):
            raise Gone(shadow.address, "lost")
        if shadow is None:
            server.shadow = self._open(number, server.host.address, generation)
            if server.shadow is None and not server.keeps_images:
                self._fleet.ask(server.host, "keep_images", self._every)
                server.keeps_images = True
        elif not server.shadow_ships and self._fleet.is_ready(shadow):
            endpoint = shadow.endpoint or self._fleet.meet(shadow)
            self._fleet.ask(server.host, "shadow_to", endpoint, self._every)
            server.shadow_ships = True

    def _may_stay(self, shadow: Host) -> bool:
        """Whether a shadow is there and stays, or will be: at a paused worker none begins."""
        begins = shadow.address in self._membership.ready or self._fleet.is_ready(shadow)
        return begins and not self._membership.is_leaving(shadow.address)

    def _open(self, number: int, own: str, generation: int) -> Host | None:
        others = sorted(set(self._membership.ready) - {own})
        if not others:
            return None
        address = others[number % len(others)]
        self._visit(address)
        return self._fleet.open_host(number, address, generation, 1)
