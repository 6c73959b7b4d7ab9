"""Buffers in which the members of a team publish their gradients, and flags that signal this.

Compiled loops synchronise here without Python between their steps: they know the addresses of the
places and flags of all members, and wait by polling the flags.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray


class SharedBuffer(ABC):
    """Buffer of the gradients of a team, for loops compiled by numba.

    A member writes the gradients of its lanes, or their sum, raises its flag to the number of the
    turn, and waits until all flags have that number. Each member alternates between two places: a
    member that has begun a turn has read everything of the turn before the last.

    Parameters
    ----------
    own_flag : int
        Address of the member's own flag.
    own_at : ndarray of int64 of shape (2, n_own)
        Addresses of the own gradients, in even and odd turns: one for each own lane, or one for
        all.
    all_at : ndarray of int64 of shape (2, n)
        Addresses of all gradients, in the order in which they are added up.
    other_members : ndarray of int64 of shape (n_others, 3)
        For each other member, the addresses of its flag and of the flag that it sleeps, and the
        descriptor of the pipe that wakes it.
    patience : int
        Nanoseconds to wait for others within a loop.
    yields : bool
        Whether others may need this member's core.
    lanes : list of list of int
        Numbers of each member's lanes.
    rank : int
        Position of this member among them.
    size : int
        Bytes of a place.
    """

    def __init__(
        self,
        own_flag: int,
        own_at: NDArray[np.int64],
        all_at: NDArray[np.int64],
        other_members: NDArray[np.int64],
        patience: int,
        yields: bool,
        lanes: list[list[int]],
        rank: int = 0,
        size: int = 0,
    ) -> None:
        #: Arguments of compiled loops.
        self.loop_arguments: tuple[Any, ...] = (
            own_flag,
            own_at,
            all_at,
            other_members,
            patience,
            yields,
        )
        self.lanes, self.rank, self.size = lanes, rank, size

    @property
    @abstractmethod
    def last_turn(self) -> int:
        """Return the number of the last turn."""

    @abstractmethod
    def wait(self, turn: int) -> None:
        """Sleep until all flags have reached a number."""

    @abstractmethod
    def count_turns(self, turns: int, n_bytes_written: int | None = None) -> None:
        """Record turns made by a loop, and bytes written; None: a whole place in each turn."""


class LocalBuffer(SharedBuffer):
    """Buffer of a team with one member, which never waits.

    Parameters
    ----------
    lanes : list of int
    """

    last_turn = 0

    def __init__(self, lanes: list[int]) -> None:
        no_places = np.zeros((2, 1), np.int64)
        super().__init__(0, no_places, no_places, np.empty((0, 3), np.int64), 0, False, [lanes])

    def wait(self, turn: int) -> None:
        """Return immediately: there are no other members."""

    def count_turns(self, turns: int, n_bytes_written: int | None = None) -> None:
        """Record nothing."""
