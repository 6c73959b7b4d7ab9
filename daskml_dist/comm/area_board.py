"""Areas of the ranks of one host as a board, for loops that sum gradients there by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.shared_buffer import SharedBuffer
from daskml_dist.comm.shared_memory import WORD, Bell, SharedSegment

__all__ = ["ASLEEP", "ENDED", "TURN", "AreaBoard", "room"]

#: Words of a rank: the turn that it has written, whether it sleeps, and whether it is done.
TURN, ASLEEP, ENDED = 0, WORD, 2 * WORD
#: Bytes that processors pass to each other: what two write lies in different ones.
_LINE = 128
#: Nanoseconds that a loop looks for the others before it goes to sleep: some gradients' worth.
_PATIENCE = 1_000_000


class _Group(Protocol):
    """A group of ranks, as far as a board needs it."""

    rank: int

    @property
    def turn(self) -> int: ...

    def wait(self, turn: int) -> None: ...

    def took(self, turns: int, written: int) -> None: ...


def room(size: int) -> int:
    """Bytes from one gradient to the next."""
    return -(-size // _LINE) * _LINE


class AreaBoard(SharedBuffer):
    """The areas of a group as a board; each rank's gradients lie there one after the other.

    Parameters
    ----------
    group : SharedGroup
    places : sequence of (SharedSegment, Bell)
        Of each rank.
    area : int
        Bytes of an area.
    lanes : list of list of int
        Numbers of each rank's lanes.
    size : int
        Bytes of a gradient.
    in_order : bool
        Whether to add up in the order of lanes; else each rank's first.
    """

    def __init__(
        self,
        group: _Group,
        places: Sequence[tuple[SharedSegment, Bell]],
        area: int,
        lanes: list[list[int]],
        size: int,
        in_order: bool,
    ) -> None:
        # In their order, each lane has a place; else each rank, for the sum of its own.
        every = lanes if in_order else [some[:1] for some in lanes]
        self._group, self._size = group, size * len(every[group.rank])
        segments = [segment for segment, _ in places]
        found = [
            [
                (number, s.address_of(area + k * room(size)), s.address_of(k * room(size)))
                for k, number in enumerate(some)
            ]
            for s, some in zip(segments, every, strict=True)
        ]
        joined = [place for some in found for place in some]
        others = [
            (s.word(TURN), s.word(ASLEEP), bell.descriptor)
            for rank, (s, bell) in enumerate(places)
            if rank != group.rank
        ]
        super().__init__(
            segments[group.rank].word(TURN),
            _by_turn(found[group.rank]),
            _by_turn(sorted(joined) if in_order else joined),
            np.array(others, np.int64),
            _PATIENCE,
            True,
            lanes,
            group.rank,
            size,
        )

    @property
    def turn(self) -> int:
        return self._group.turn

    def wait(self, turn: int) -> None:
        self._group.wait(turn)

    def took(self, turns: int, written: int | None = None) -> None:
        self._group.took(turns, self._size * turns if written is None else written)


def _by_turn(places: list[tuple[int, int, int]]) -> NDArray[np.int64]:
    """Addresses in even turns, and in odd ones."""
    return np.ascontiguousarray(np.array(places, np.int64).reshape(-1, 3)[:, 1:].T)
