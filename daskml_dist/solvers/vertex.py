"""Vertex programs: a user's own iterations along the edges of a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import DivergedError, InvalidParameterError
from daskml_dist.solvers.keyed import Keyed, KeyedRows, KeyedSolution, KeyedSolver, KeyRange, Side

__all__ = ["COMBINE", "DIRECTIONS", "Program", "VertexSolver", "sides_of"]

Array = NDArray[np.float64]

_SPACE = "vertex"
#: How messages come together, and what no message is.
COMBINE: dict[str, tuple[Any, float]] = {
    "sum": (np.add, 0.0),
    "min": (np.minimum, np.inf),
    "max": (np.maximum, -np.inf),
}
#: Sides that messages come along, and which strengths of their senders count their edges.
DIRECTIONS: dict[str, tuple[str, ...]] = {"in": ("in",), "out": ("out",), "both": ("in", "out")}
#: Edges whose messages are made at once: their arrays stay in a processor's cache.
_EDGES = 1 << 16


class Program(Protocol):
    """A user's program, as the solver asks it; see `graph.VertexProgram`."""

    @property
    def direction(self) -> str: ...

    @property
    def combine(self) -> str: ...

    @property
    def max_iter(self) -> int: ...

    @property
    def tol(self) -> float: ...

    def start(self, vertices: NDArray[Any], degree: Array) -> Any: ...

    def gather(self, value: Array, degree: Array, weight: Any) -> Any: ...

    def apply(self, old: Array, total: Array) -> Any: ...


def sides_of(direction: str) -> tuple[Side, ...]:
    """Sides of the edges that messages come along."""
    by = {"in": 1, "out": 0}
    return tuple(Side(name, _SPACE, _SPACE, by[name]) for name in DIRECTIONS[direction])


@dataclass(frozen=True)
class VertexSolver(KeyedSolver):
    """Iterations of a user's program.

    Parameters
    ----------
    program : Program
    """

    program: Program
    space: ClassVar[str] = _SPACE

    @property
    def max_passes(self) -> int:
        return self.program.max_iter

    def solve(self, keyed: Keyed) -> KeyedSolution:
        """Iterate until no vertex changes."""
        program, ranges = self.program, keyed.ranges(_SPACE)
        sides = DIRECTIONS[program.direction]
        _, nothing = COMBINE[program.combine]
        degrees = np.concatenate([self._degree(at) for at in ranges])
        values = np.concatenate(
            [_checked(program.start(at.ids, degrees[at.own]), len(at), "start") for at in ranges]
        )
        if keyed.kept is not None:
            values = keyed.kept[_SPACE].copy()
        (wrong,) = keyed.sum([[np.isnan(values[at.own]).sum()] for at in ranges])
        if wrong:
            raise DivergedError(
                f"`start` of {type(program).__name__} made NaN of {wrong:.0f} vertices. Give each "
                "a number to begin with, or infinity."
            )
        of_sender = {side: keyed.touched(side, degrees).copy() for side in sides}
        n_iter, changed = keyed.n_done, np.inf
        total = np.empty_like(values)
        while n_iter < program.max_iter and changed and not keyed.should_stop:
            total.fill(nothing)
            for side in sides:
                gather = _Gather(program, keyed.touched(side, values), of_sender[side], total)
                keyed.map(gather, side)
            parts = []
            for at in ranges:
                old = values[at.own]
                new = _checked(program.apply(old.copy(), total[at.own]), len(at), "apply")
                parts.append([_changed(old, new, program.tol), np.isnan(new).sum()])
                values[at.own] = new
            changed, wrong = keyed.sum(parts)
            _check_numbers(wrong, type(program).__name__)
            n_iter += 1
            keyed.keep({_SPACE: values}, n_iter, loss=changed)
        return KeyedSolution(
            np.empty(0), n_iter, not changed, f"{changed:.0f} vertices still change",
            values={_SPACE: values},
        )  # fmt: skip

    def _degree(self, at: KeyRange) -> Array:
        """Sum of the weights of the edges along which each vertex sends."""
        rows = {"in": [0], "out": [1], "both": [0, 1]}[self.program.direction]
        found: Array = at.strengths[rows].sum(axis=0)
        return found


class _Gather:
    """Brings the messages of a lane's edges together."""

    def __init__(self, program: Program, values: Array, degrees: Array, total: Array) -> None:
        self._program, self._values, self._degrees = program, values, degrees
        self._total = total
        self._ufunc = COMBINE[program.combine][0]

    def __call__(self, rows: KeyedRows) -> None:
        indptr = rows.indptr
        filled = np.flatnonzero(np.diff(indptr))
        total = self._total[rows.range.own]
        first = 0
        while first < len(filled):
            begin = indptr[filled[first]]
            # At least one vertex, with all of its edges.
            last = int(np.searchsorted(indptr[filled], begin + _EDGES))
            last = max(last, first + 1)
            some = filled[first:last]
            edges = slice(begin, indptr[some[-1] + 1])
            found = self._ufunc.reduceat(self._messages(rows, edges), indptr[some] - begin)
            total[some] = self._ufunc(total[some], found)
            first = last

    def _messages(self, rows: KeyedRows, edges: slice) -> Array:
        at = rows.indices[edges]
        weight = np.ones(len(at)) if rows.values is None else rows.values[edges]
        made = self._program.gather(self._values[at], self._degrees[at], weight)
        return _checked(made, len(at), "gather")


def _checked(found: Any, n: int, method: str) -> Array:
    """Numbers that a user's method gave, one for each; a single one is for all."""
    try:
        if np.iscomplexobj(found):
            raise TypeError("they are complex")
        array = np.asarray(found, dtype=np.float64)
        if array.ndim and array.shape != (n,):
            raise ValueError(f"its array is of shape {array.shape}")
        made: Array = np.ascontiguousarray(np.broadcast_to(array, (n,)))
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(
            f"`{method}` of the vertex program must return {n} numbers, as many as it was given: "
            f"{error}."
        ) from error
    return made if made.flags.writeable else made.copy()


def _changed(old: Array, new: Array, tol: float) -> int:
    # An infinite value that stays is no change, though their difference is no number.
    with np.errstate(invalid="ignore"):
        return int(np.count_nonzero((new != old) & ~(np.abs(new - old) <= tol)))


def _check_numbers(wrong: float, name: str) -> None:
    if wrong:
        raise DivergedError(
            f"`apply` of {name} made NaN of {wrong:.0f} vertices. Look at what it makes of "
            "`total` where a vertex has no messages (0 for a sum, +inf for the smallest, -inf for "
            "the largest)."
        )
