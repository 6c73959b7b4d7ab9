"""Halo: the values of other trainers' keys that the own entries touch, by a plan made once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import Communicator
from daskml_dist.data.keyed.blocks import KeyedBlock
from daskml_dist.solvers.keyed import KeyRange

__all__ = ["Halo"]

Array = NDArray[Any]

#: Touched keys from which those that are touched most lie together: the others' values do not fit
#: in a processor's cache.
_MANY = 1 << 16


class Halo:
    """Plan of whose values a trainer gets for one side of its entries, and whom it gives its own.

    Parameters
    ----------
    communicator : Communicator
    blocks : sequence of KeyedBlock
        Of one side, of the own lanes.
    own : sequence of KeyRange
        The own keys of the side's columns.

    Attributes
    ----------
    indices : list of ndarray
        Of each block's entries, where the values of their columns lie in what `fetch` gives.
    """

    def __init__(
        self, communicator: Communicator, blocks: Sequence[KeyedBlock], own: Sequence[KeyRange]
    ) -> None:
        self._communicator = communicator
        wanted, self.indices = _arranged(blocks)
        bounds = blocks[0].column_bounds
        owner = self._owners(len(bounds) - 1, [at.lane for at in own])
        of_rank = owner[np.searchsorted(bounds, wanted, side="right") - 1]
        #: Where what comes of each rank is put.
        self._place = [np.flatnonzero(of_rank == rank) for rank in range(communicator.size)]
        asked = communicator.alltoall([wanted[at] for at in self._place])
        #: Which of the own values each rank gets.
        self._give = [_own_positions(own, numbers) for numbers in asked]
        self._n_touched = len(wanted)
        self._room: Array | None = None

    def _owners(self, n_lanes: int, own: list[int]) -> NDArray[np.intp]:
        """Rank of each lane."""
        owner = np.zeros(n_lanes, np.intp)
        for rank, (lanes,) in enumerate(self._communicator.allgather([np.array(own, np.int64)])):
            owner[lanes] = rank
        return owner

    def fetch(self, values: Array) -> Array:
        """The touched values, of the own ones of all ranks; good until the next call."""
        shape = (self._n_touched, *values.shape[1:])
        room = self._room
        if room is None or room.shape != shape or room.dtype != values.dtype:
            room = self._room = np.empty(shape, values.dtype)
        rank = self._communicator.rank
        nothing = np.empty((0, *values.shape[1:]), values.dtype)
        given = [nothing if r == rank else values[at] for r, at in enumerate(self._give)]
        found = self._communicator.alltoall(given)
        for r, at in enumerate(self._place):
            # What is the trainer's own goes nowhere.
            room[at] = values[self._give[r]] if r == rank else found[r].reshape(-1, *shape[1:])
        return room


def _own_positions(own: Sequence[KeyRange], numbers: Array) -> NDArray[np.intp]:
    """Where own keys lie in the own array, by their numbers."""
    firsts = np.array([at.first for at in own])
    starts = np.array([at.own.start for at in own])
    lane = np.searchsorted(firsts, numbers, side="right") - 1
    # Of lanes without keys several begin at one number: the last of them has it, or none.
    found: NDArray[np.intp] = (numbers - firsts[lane] + starts[lane]).astype(np.intp)
    return found


def _arranged(blocks: Sequence[KeyedBlock]) -> tuple[NDArray[np.int64], list[Array]]:
    """Numbers of all touched keys in the order of their values, and the entries' positions."""
    if len(blocks) == 1:
        wanted, places = blocks[0].touched, [None]
    else:
        wanted = np.unique(np.concatenate([block.touched for block in blocks]))
        places = [np.searchsorted(wanted, block.touched) for block in blocks]
    dtype = np.int32 if len(wanted) < 2**31 else np.int64
    if len(wanted) >= _MANY:
        wanted, places = _by_use(wanted, places, blocks)
    indices = [
        block.indices if place is None else place.astype(dtype)[block.indices]
        for block, place in zip(blocks, places, strict=True)
    ]
    return wanted, indices


def _by_use(
    wanted: NDArray[np.int64], places: list[Any], blocks: Sequence[KeyedBlock]
) -> tuple[NDArray[np.int64], list[Any]]:
    """The same, those that most entries touch first."""
    uses = np.zeros(len(wanted), np.int64)
    for place, block in zip(places, blocks, strict=True):
        at = slice(None) if place is None else place
        uses[at] += np.bincount(block.indices, minlength=len(block.touched))
    order = np.argsort(-uses, kind="stable")
    at = np.empty(len(order), np.int64)
    at[order] = np.arange(len(order))
    return wanted[order], [at if place is None else at[place] for place in places]
