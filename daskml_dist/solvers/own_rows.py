"""Interface of solvers that every trainer runs on the rows of its own lanes, with all others.

A solver of sums (`solvers.base`) requests sums from outside. A solver that keeps much for each
row, and decides often, runs beside the rows: it reads them once, makes of them what it needs, and
sums what decides over all trainers, which therefore decide alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.base import BatchRows, identity_of
from daskml_dist.solvers.base import Solution

__all__ = ["Array", "OwnRows", "RowSolver"]

Array = NDArray[Any]
#: Makes all that a solver needs to go on from where it is, as arrays by name.
State = Callable[[], Mapping[str, Array]]
T = TypeVar("T")
R = TypeVar("R")


class OwnRows(Protocol):
    """The rows of a fit, as seen by each of the trainers that solve together.

    All trainers make the same calls in the same order. What is to be the same on any number of
    workers must depend on no order of rows: sums of whole numbers, and draws hashed from the
    number that a row has among all.

    Attributes
    ----------
    n_rows : int
        Of all trainers.
    lanes : list of int
        Numbers of the own lanes.
    n_done : int
        Iterations that were made before, where a fit goes on after a loss; 0 at the start.
    kept : mapping of str to ndarray, or None
        What :meth:`keep` was given then.
    should_stop : bool
        Whether the user asked the fit to end, as far as the last :meth:`max_trainers` told; the
        same in all trainers.
    memory : dict
        What a solver leaves for itself after a loss: it may come back with other lanes.
    rank, size : int
        Of this trainer, and how many there are.
    budget : float
        Bytes of memory that what is made of rows may take on this trainer, beside the blocks that
        are held; infinite where its worker has no limit.
    device : {"auto", "cpu", "gpu"}
        That the user asked for. Rows are read in host memory, whichever it is.
    sums_on_device : bool
        Whether :meth:`sum_trainers` and :meth:`sum_own_range` sum arrays on GPUs there; the same in
        all trainers. Otherwise they are to be given NumPy's.
    """

    n_rows: int
    lanes: list[int]
    n_done: int
    kept: Mapping[str, Array] | None
    should_stop: bool
    memory: dict[str, Any]
    rank: int
    size: int
    budget: float
    device: str
    sums_on_device: bool

    def count_rows(self, lane: int) -> int:
        """Return the number of rows of an own lane."""

    def first_row_numbers(self, lane: int) -> NDArray[np.int64]:
        """Return the number of the first row of each part of a block that an own lane has."""

    def iterate_blocks(self, lane: int) -> Iterator[tuple[int, BatchRows]]:
        """Yield the rows of an own lane, a few neighbours at a time, with the first's number."""

    def map_lanes(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Apply a function to items (one a lane) in the trainer's compute threads."""

    def allocate_zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array of zeros, in memory, or in a mapped file beyond the budget."""

    def sum_trainers(self, array: Array) -> Array:
        """Return the sum of all trainers' arrays; of whole numbers, the same on any number."""

    def sum_own_range(self, array: Array) -> Array:
        """Return a new array: the own range (:meth:`split_ranges`) of the sum's first axis."""

    def split_ranges(self, n: int) -> list[slice]:
        """Return each trainer's range where `n` items are divided among all."""

    def max_trainers(self, values: Array) -> Array:
        """Return the elementwise maximum over all trainers."""

    def gather_arrays(self, arrays: list[Array]) -> list[list[Array]]:
        """Return the arrays of every trainer."""

    def exchange_arrays(self, arrays: list[Array]) -> list[Array]:
        """Give one array to each trainer (all to all); return what each gave to this one."""

    def keep(
        self, n_iter: int, state: State, loss: float = float("nan"), scores: Sequence[float] = ()
    ) -> None:
        """Take note that an iteration ended: each counts as a pass of the fit.

        After a loss, and where the user interrupts it, the fit goes on from (ends with) the last
        one that any trainer has kept.
        """


class RowSolver(ABC):
    """Base class of solvers that trainers run on their own rows. Immutable: it travels.

    Attributes
    ----------
    max_passes : int
        Calls of :meth:`OwnRows.keep` at most.
    score_names : tuple of str
        Keys, in the records of a fit, of the scores that :meth:`OwnRows.keep` is given.
    """

    @property
    @abstractmethod
    def max_passes(self) -> int: ...

    @property
    def score_names(self) -> tuple[str, ...]:
        return ()

    @abstractmethod
    def solve(self, model: Any, rows: OwnRows) -> Solution:
        """Solve together with other trainers, which make the same calls.

        Where ``rows.kept`` is not None it goes on from there, as if iteration ``rows.n_done`` had
        just ended. All trainers find the same solution.
        """

    def identity(self) -> dict[str, Any]:
        """Return the facts, as JSON values, that a checkpoint of this solver must agree with."""
        return identity_of(self)

    def interrupted(self, n_iter: int, state: Mapping[str, Array]) -> Solution:
        """Return the solution of a fit that ends after some iterations."""
        extra = dict(state)
        return Solution(np.empty(0), n_iter, converged=False, message="interrupted", extra=extra)
