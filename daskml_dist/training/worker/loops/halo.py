"""Values of other trainers' keys: those that the own entries touch, by a plan; and any others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import Communicator
from daskml_dist.data.keyed.blocks import KeyedBlock, by_use
from daskml_dist.solvers.keyed import KeyRange

__all__ = ["Halo", "Owners"]

Array = NDArray[Any]


class Owners:
    """Owners of the keys of a space, and where each has its keys' values.

    Parameters
    ----------
    communicator : Communicator
    bounds : ndarray of int64 of shape (n_lanes + 1,)
        Number of the first key of each lane.
    own : sequence of KeyRange
    """

    def __init__(
        self, communicator: Communicator, bounds: NDArray[np.int64], own: Sequence[KeyRange]
    ) -> None:
        self._communicator = communicator
        self._bounds = bounds
        self._firsts = np.array([at.first for at in own])
        self._starts = np.array([at.own.start for at in own])
        lanes = np.array([at.lane for at in own], np.int64)
        self._owner = np.zeros(len(bounds) - 1, np.intp)
        for rank, (its,) in enumerate(communicator.allgather([lanes])):
            self._owner[its] = rank

    def places(self, numbers: NDArray[np.int64]) -> list[NDArray[np.intp]]:
        """Places of each rank's keys among some."""
        # Of lanes without keys several begin at one number: the last of them has it.
        of_rank = self._owner[np.searchsorted(self._bounds, numbers, side="right") - 1]
        return [np.flatnonzero(of_rank == rank) for rank in range(self._communicator.size)]

    def positions(self, numbers: NDArray[np.int64]) -> NDArray[np.intp]:
        """Positions of own keys in the own array."""
        lane = np.searchsorted(self._firsts, numbers, side="right") - 1
        found: NDArray[np.intp] = (numbers - self._firsts[lane] + self._starts[lane]).astype(
            np.intp
        )
        return found

    def sent(self, numbers: NDArray[np.int64], parts: Array) -> tuple[NDArray[np.intp], Array]:
        """Give parts to the owners of keys; what others gave for the own ones, by rank."""
        places = self.places(numbers)
        asked = self._communicator.alltoall([numbers[at] for at in places])
        given = self._communicator.alltoall([parts[at] for at in places])
        return self.positions(np.concatenate(asked)), np.concatenate(given)

    def at(self, numbers: NDArray[np.int64], values: Array) -> Array:
        """Values of any keys, of the own ones of all ranks."""
        places = self.places(numbers)
        asked = self._communicator.alltoall([numbers[at] for at in places])
        found = self._communicator.alltoall([values[self.positions(some)] for some in asked])
        out = np.empty((len(numbers), *values.shape[1:]), values.dtype)
        for at, some in zip(places, found, strict=True):
            out[at] = some
        return out


class Halo:
    """Plan of whose values a trainer gets for one side of its entries, and whom it gives its own.

    Parameters
    ----------
    communicator : Communicator
    blocks : sequence of KeyedBlock
        Of one side, of the own lanes.
    owners : Owners
        Of the side's columns.

    Attributes
    ----------
    indices : list of ndarray
        Of each block's entries, where the values of their columns lie in what `fetch` gives.
    """

    def __init__(
        self, communicator: Communicator, blocks: Sequence[KeyedBlock], owners: Owners
    ) -> None:
        self._communicator = communicator
        wanted, self.indices = _arranged(blocks)
        #: Where what comes of each rank is put.
        self._place = owners.places(wanted)
        asked = communicator.alltoall([wanted[at] for at in self._place])
        #: Which of the own values each rank gets.
        self._give = [owners.positions(numbers) for numbers in asked]
        self._n_touched = len(wanted)
        self._room: Array | None = None

    def fetch(self, values: Array) -> Array:
        """The touched values, of the own ones of all ranks; good until the next call."""
        shape = (self._n_touched, *values.shape[1:])
        room = self._room
        if room is None or room.shape != shape or room.dtype != values.dtype:
            room = self._room = np.empty(shape, values.dtype)
        rank = self._communicator.rank
        # What is the trainer's own goes nowhere.
        nothing = values[:0]
        given = [nothing if r == rank else values[at] for r, at in enumerate(self._give)]
        found = self._communicator.alltoall(given)
        for r, at in enumerate(self._place):
            room[at] = values[self._give[r]] if r == rank else found[r]
        return room


def _arranged(blocks: Sequence[KeyedBlock]) -> tuple[NDArray[np.int64], list[Array]]:
    """Numbers of all touched keys in the order of their values, and the entries' positions."""
    if len(blocks) == 1:
        return blocks[0].touched, [blocks[0].indices]
    wanted = np.unique(np.concatenate([block.touched for block in blocks]))
    places = [np.searchsorted(wanted, block.touched) for block in blocks]
    uses = np.zeros(len(wanted), np.int64)
    for place, block in zip(places, blocks, strict=True):
        uses[place] += np.bincount(block.indices, minlength=len(block.touched))
    order, at = by_use(uses)
    return wanted[order], [
        at[place][block.indices] for place, block in zip(places, blocks, strict=True)
    ]
