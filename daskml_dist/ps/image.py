"""Images: copies of a server at one moment, from which another one can go on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from daskml_dist.ps.ledger import LEDGER_PARTS, LedgerImage
from daskml_dist.ps.shard_state import ShardImage

__all__ = ["SENT", "Holding", "Images", "LaneImage", "ServerImage", "shadow_of"]

#: Images that are kept of one server: servers in lock-step are one round apart at most, so the
#: last three of each have one in common.
_KEPT = 3


def shadow_of(generation: int) -> int:
    """The generation of a server that only keeps images of another one, below 0.

    A server that was replaced thus cannot send images to its successor's shadow.
    """
    return -1 - generation


@dataclass(frozen=True)
class LaneImage:
    """A lane that a trainer steps by itself: its sums in the open pass, and its parameters.

    Parameters
    ----------
    loss, rows : float
    steps : int
    shard : ShardImage or None
        None where all lanes share the parameters, and another lane has them.
    """

    loss: float
    rows: float
    steps: int
    shard: ShardImage | None = None


@dataclass(frozen=True)
class ServerImage:
    """A server at one moment.

    Parameters
    ----------
    at : int
        Its place among the images of a server: the clock of all lanes where they step together,
        else the version of the shard.
    clocks : dict of lane to clock
    shard : ShardImage or None
    ledger : LedgerImage or None
    lanes : dict of lane to LaneImage
        Where trainers hold the parameters.
    """

    at: int
    clocks: dict[int, int]
    shard: ShardImage | None = None
    ledger: LedgerImage | None = None
    lanes: dict[int, LaneImage] = field(default_factory=dict)


#: What images are made of, as it goes from one process to another.
SENT: tuple[type, ...] = (ServerImage, LaneImage, ShardImage, *LEDGER_PARTS)


@dataclass(frozen=True)
class Holding:
    """Places that a server could go on from.

    Parameters
    ----------
    now : int or None
        Its present place; None for one that cannot go on as it is.
    clocks : dict of int to (dict of lane to clock)
        Clocks at its present place and at each image that it keeps.
    """

    now: int | None
    clocks: dict[int, dict[int, int]]

    @property
    def places(self) -> set[int]:
        """All places that it could go on from."""
        return set(self.clocks)


class Images:
    """The last images of a server, by their place."""

    def __init__(self) -> None:
        self._kept: deque[ServerImage] = deque(maxlen=_KEPT)

    def add(self, image: ServerImage) -> None:
        """Keep an image; one of the same place is replaced, the oldest is dropped."""
        self.drop_from(image.at)
        self._kept.append(image)

    def drop_from(self, at: int) -> None:
        """Drop the images of a place and later: the server has gone back."""
        self._kept = deque((kept for kept in self._kept if kept.at < at), maxlen=_KEPT)

    @property
    def last(self) -> ServerImage | None:
        """The latest, if any."""
        return self._kept[-1] if self._kept else None

    def get(self, at: int) -> ServerImage | None:
        """The image of a place, if it is kept."""
        return next((image for image in self._kept if image.at == at), None)

    def __getitem__(self, at: int) -> ServerImage:
        return next(image for image in self._kept if image.at == at)

    @property
    def clocks(self) -> dict[int, dict[int, int]]:
        """Clocks of each image, by its place."""
        return {image.at: image.clocks for image in self._kept}
