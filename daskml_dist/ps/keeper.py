"""The keeper of a server's images: the last ones, and their way to the shadow."""

from __future__ import annotations

from collections.abc import Callable

from daskml_dist.ps.image import Images, LaneImage, ServerImage
from daskml_dist.ps.ledger import PassLedger

__all__ = ["ImageKeeper", "Ship"]

#: Hands an image to the shadow; must not block.
Ship = Callable[[ServerImage], None]
#: Images under way to the shadow from which on nobody is let go.
_MOST_UNDER_WAY = 2


class ImageKeeper:
    """Keeper of a server's last images, which hands each on to its shadow.

    Not thread-safe: the server that holds it guards it.

    Parameters
    ----------
    n_lanes : int
        Lanes whose images make a whole one, where trainers hold the parameters.
    """

    def __init__(self, n_lanes: int) -> None:
        self.kept = Images()
        #: The lanes' images that this generation goes on from; none at the start.
        self.lanes: dict[int, LaneImage] = {}
        self._n_lanes = n_lanes
        self._storing: dict[int, dict[int, LaneImage]] = {}
        self._ship: Ship | None = None
        self._every = 0
        self._under_way = 0

    @property
    def is_behind(self) -> bool:
        """Whether images under way to the shadow are so many that no lane is let go."""
        return self._under_way >= _MOST_UNDER_WAY

    def is_due(self, version: int) -> bool:
        """Whether an image is to be made after update number `version`."""
        return bool(self._every) and version % self._every == 0

    def add(self, image: ServerImage) -> None:
        """Keep an image of this server, and hand it on."""
        self.kept.add(image)
        self._hand_on(image)

    def _hand_on(self, image: ServerImage) -> None:
        if self._ship is not None:
            self._under_way += 1
            self._ship(image)

    def hand_on_last(self) -> None:
        """Hand the last image on, if there is one."""
        if self.kept.last is not None:
            self._hand_on(self.kept.last)

    def store(self, clock: int, lanes: dict[int, LaneImage], ledger: PassLedger | None) -> None:
        """Take images of lanes at a clock; they are an image once those of all lanes are there."""
        stored = self._storing.setdefault(clock, {})
        stored.update(lanes)
        if len(stored) == self._n_lanes:
            self._storing = {c: part for c, part in self._storing.items() if c > clock}
            counted = None if ledger is None else ledger.image()
            clocks = dict.fromkeys(stored, clock)
            self.add(ServerImage(clock, clocks, None, counted, stored))

    # -- the shadow ----------------------------------------------------------------------------

    def begin(self, ship: Ship | None, every: int) -> None:
        """Have images made every so many updates, and hand them to `ship`, if any."""
        self._ship, self._every, self._under_way = ship, every, 0

    def ships_to(self, ship: Ship) -> bool:
        """Whether images go there."""
        return self._ship is ship

    def drop_shadow(self) -> None:
        """Hand no more images on."""
        self._ship, self._under_way = None, 0

    def shipped(self) -> None:
        """Note that the shadow has an image."""
        self._under_way = max(self._under_way - 1, 0)

    # -- generations ---------------------------------------------------------------------------

    def pause(self) -> None:
        """Have no more images made."""
        self.begin(None, 0)

    def renew(self) -> None:
        """Begin a new generation: images of some lanes alone are dropped."""
        self._storing.clear()
        self.drop_shadow()

    def go_back_to(self, image: ServerImage) -> None:
        """Forget the images after one that this generation goes on from."""
        self.lanes = image.lanes
        self.kept.drop_from(image.at + 1)
