"""Board: memory in which the members of a team put their gradients, and flags that say so."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Board"]


class Board(ABC):
    """Places of the gradients of all lanes of a team, for loops that numba compiles.

    A member writes the gradients of its own lanes, raises its flag to the number of the turn, and
    waits until all flags have that number. Two places of each lane take turns: who has begun a turn
    has read all of the one before the last.

    Parameters
    ----------
    own : int
        Address of the own flag.
    own_at : ndarray of int64 of shape (2, n_own)
        Addresses of the own lanes' gradients, in even turns and odd ones.
    all_at : ndarray of int64 of shape (2, n_lanes)
        Addresses of all gradients, in the order in which they are added up.
    firsts : ndarray of int64 of shape (n_groups + 1,)
        Where each group of lanes begins in `all_at`: a group is added up by itself.
    others : ndarray of int64 of shape (n_others, 3)
        Of each other member: addresses of its flag and of the one that says that it sleeps, and the
        descriptor of the bell that wakes it.
    patience : int
        Nanoseconds to wait for others in a loop.
    yields : bool
        Whether others may need this member's core.
    """

    def __init__(
        self,
        own: int,
        own_at: NDArray[np.int64],
        all_at: NDArray[np.int64],
        firsts: NDArray[np.int64],
        others: NDArray[np.int64],
        patience: int,
        yields: bool,
    ) -> None:
        self.numbers: tuple[Any, ...] = own, own_at, all_at, firsts, others, patience, yields

    @property
    @abstractmethod
    def turn(self) -> int:
        """Number of the last turn."""

    @abstractmethod
    def wait(self, turn: int) -> None:
        """Sleep until all flags have a number.

        Raises
        ------
        TrainingError
            Where a member is gone, or the fit is over.
        """

    @abstractmethod
    def took(self, turns: int) -> None:
        """Count turns that a loop has taken."""
