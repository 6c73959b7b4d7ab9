"""Interface of solvers that run as a replica in every trainer, on the rows of its own lanes.

A solver of `solvers.base` runs in one trainer and requests sums from all. A solver that holds much
for each row and takes many small decisions (the growth of trees) runs beside the rows instead: it
reads them once, converts them to its own form (binned features), and all-reduces the statistics
that a decision depends on, so that all replicas make the same decision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.base import BatchRows, identity_of
from daskml_dist.solvers.base import Solution

Array = NDArray[Any]
#: Returns a snapshot of a solver, as arrays by name, from which it resumes.
State = Callable[[], Mapping[str, Array]]
T = TypeVar("T")
R = TypeVar("R")


class OwnRows(Protocol):
    """The rows of a fit, as seen by each of the trainers that solve together.

    Methods that exchange data are collective: all trainers call them in the same order. A result
    that must be the same on any number of workers may not depend on the order of rows: it uses
    sums of integers, and pseudo-random numbers hashed from a row's index in the whole data set.

    Attributes
    ----------
    n_rows : int
        Rows of all trainers.
    lanes : list of int
        Indices of the own lanes.
    n_done : int
        Iterations done before the loss from which the fit resumes; 0 at the start.
    kept : mapping of str to ndarray, or None
        The snapshot of iteration `n_done` that :meth:`keep` was given; None at the start.
    should_stop : bool
        Whether the user asked the fit to end. Updated by :meth:`max_trainers`, so that it is the
        same in all trainers.
    memory : dict
        Cache of the solver that survives a restart after a loss, when the trainer may have other
        lanes than before.
    rank, size : int
        Rank of this trainer, and number of trainers.
    budget : float
        Most bytes that the solver's arrays may take on this trainer, in addition to the blocks in
        memory; infinite if its worker has no memory limit.
    device : {"auto", "cpu", "gpu"}
        The device that the user asked for.
    sums_on_device : bool
        Whether :meth:`sum_trainers` and :meth:`sum_own_range` accept GPU arrays, and sum them on
        the GPU; the same in all trainers. Otherwise they must be given NumPy arrays.
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
        """Return the index, among all rows, of the first row of each block part of an own lane."""

    def iterate_blocks(self, lane: int) -> Iterator[tuple[int, BatchRows]]:
        """Yield adjacent rows of an own lane, and the index of the first among all rows.

        Features that lie on a GPU stay there, unless the user asked for a CPU; everything else is
        in host memory.
        """

    def map_lanes(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Apply a function to items (one a lane) in the trainer's compute threads."""

    def allocate_zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array of zeros, in memory, or memory-mapped from a file if over the budget."""

    def sum_trainers(self, array: Array) -> Array:
        """Return the sum of all trainers' arrays (all-reduce).

        Only sums of integers are the same on any number of trainers.
        """

    def sum_own_range(self, array: Array) -> Array:
        """Return the own range of the first axis of the sum of all arrays (reduce-scatter).

        A new array, of the rows that :meth:`split_ranges` assigns to this trainer.
        """

    def split_ranges(self, n: int) -> list[slice]:
        """Return each trainer's range of `n` items."""

    def max_trainers(self, values: Array) -> Array:
        """Return the elementwise maximum over all trainers (all-reduce)."""

    def gather_arrays(self, arrays: list[Array]) -> list[list[Array]]:
        """Return the arrays of every trainer, by rank (all-gather)."""

    def exchange_arrays(self, arrays: list[Array]) -> list[Array]:
        """Send ``arrays[i]`` to the trainer of rank i; return the arrays received, by rank.

        An all-to-all.
        """

    def keep(
        self, n_iter: int, state: State, loss: float = float("nan"), scores: Sequence[float] = ()
    ) -> None:
        """Record the end of an iteration, which counts as a pass over the data.

        After a loss the fit resumes from the last iteration that any trainer recorded; a fit that
        the user interrupts ends with it.

        Parameters
        ----------
        n_iter : int
        state : callable
            Returns a snapshot of the solver.
        loss : float, optional
        scores : sequence of float
            In the order of :attr:`RowSolver.score_names`, for the fit's history.
        """


def gather_to_first(rows: OwnRows, lane_arrays: Sequence[Array]) -> Array:
    """Return the concatenated parts of all trainers in the first one, and no rows in the others."""
    own_values = np.ascontiguousarray(np.concatenate(lane_arrays))
    # An all-to-all in which every trainer sends only to the first.
    values_by_rank = [own_values if rank == 0 else own_values[:0] for rank in range(rows.size)]
    return np.concatenate(rows.exchange_arrays(values_by_rank))


class RowSolver(ABC):
    """Base class of solvers that trainers run on their own rows. Immutable: it is copied to each.

    Attributes
    ----------
    max_passes : int
        Most calls of :meth:`OwnRows.keep`.
    score_names : tuple of str
        Keys, in the records of the fit's history, of the scores that :meth:`OwnRows.keep` is given.
    bytes_per_lane : int or None
        Bytes of rows for which one more thread in one process is worth while; None: as for a sum.
    """

    bytes_per_lane: ClassVar[int | None] = None

    @property
    @abstractmethod
    def max_passes(self) -> int: ...

    @property
    def score_names(self) -> tuple[str, ...]:
        return ()

    @abstractmethod
    def solve(self, model: Any, rows: OwnRows) -> Solution:
        """Solve in step with the other trainers; all return the same solution.

        If ``rows.kept`` is not None, resume from there, as if iteration ``rows.n_done`` had just
        ended.
        """

    def identity(self) -> dict[str, Any]:
        """Return the facts, as JSON values, that a checkpoint of this solver must agree with."""
        return identity_of(self)

    def interrupted(self, n_iter: int, state: Mapping[str, Array]) -> Solution:
        """Return the solution of a fit that was interrupted after `n_iter` iterations.

        Its `extra` is the snapshot `state`.
        """
        extra = dict(state)
        return Solution(np.empty(0), n_iter, converged=False, message="interrupted", extra=extra)
