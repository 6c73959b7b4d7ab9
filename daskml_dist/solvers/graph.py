"""Solvers on the vertices of a graph: vertex programs, PageRank and connected components.

All are solvers over keys (:mod:`daskml_dist.solvers.keyed`): a trainer owns the values of its
vertices and fetches those of their neighbours.

References
----------
L. Page, S. Brin, R. Motwani and T. Winograd, "The PageRank citation ranking", 1999. Y. Zhang, A.
Azad and Z. Hu, "FastSV: A distributed-memory connected component algorithm", 2020, after Y.
Shiloach and U. Vishkin, 1982.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError
from daskml_dist.solvers.base import Array
from daskml_dist.solvers.keyed import (
    EntrySide,
    KeyedEntries,
    KeyedRows,
    KeyedSolution,
    KeyedSolver,
    KeyRange,
)

#: Rounds at most; none takes so many, since at least half the trees vanish in every two rounds.
_MAX_ROUNDS = 1000
#: Name of the only space of keys.
_SPACE = "vertex"
#: How messages are combined, and what a vertex without messages gets.
COMBINE_FUNCTIONS: dict[str, tuple[Any, float]] = {
    "sum": (np.add, 0.0),
    "min": (np.minimum, np.inf),
    "max": (np.maximum, -np.inf),
}
#: Sides of the edges that messages come along, by the program's direction.
DIRECTIONS: dict[str, tuple[str, ...]] = {"in": ("in",), "out": ("out",), "both": ("in", "out")}
#: Edges whose messages are made at once: 512 KiB of float64 stay in a core's L2 cache.
_EDGES_PER_CHUNK = 1 << 16


class VertexProgramLike(Protocol):
    """A user's vertex program, as the solver calls it; see `graph.VertexProgram`."""

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


def edge_sides(direction: str) -> tuple[EntrySide, ...]:
    """Return the sides of the edges that messages come along."""
    by = {"in": 1, "out": 0}
    return tuple(EntrySide(name, _SPACE, _SPACE, by[name]) for name in DIRECTIONS[direction])


@dataclass(frozen=True)
class VertexSolver(KeyedSolver):
    """Solver that iterates a user's vertex program.

    Parameters
    ----------
    program : VertexProgramLike
    """

    program: VertexProgramLike
    space: ClassVar[str] = _SPACE

    @property
    def max_passes(self) -> int:
        return self.program.max_iter

    def solve(self, keyed: KeyedEntries) -> KeyedSolution:
        """Iterate until no vertex changes."""
        program, ranges = self.program, keyed.ranges(_SPACE)
        sides = DIRECTIONS[program.direction]
        _, nothing = COMBINE_FUNCTIONS[program.combine]
        degrees = np.concatenate([self._vertex_degrees(at) for at in ranges])
        values = np.concatenate(
            [
                _check_user_numbers(program.start(at.ids, degrees[at.own]), len(at), "start")
                for at in ranges
            ]
        )
        if keyed.kept is not None:
            values = keyed.kept[_SPACE].copy()
        (wrong,) = keyed.sum([[np.isnan(values[at.own]).sum()] for at in ranges])
        if wrong:
            raise DivergedError(
                f"`start` of {type(program).__name__} made NaN of {wrong:.0f} vertices. Give each "
                "a number to begin with, or infinity."
            )
        # Degrees do not change: fetched once.
        of_sender = {side: keyed.touched(side, degrees).copy() for side in sides}
        n_iter, changed = keyed.n_done, np.inf
        total = np.empty_like(values)
        while n_iter < program.max_iter and changed and not keyed.should_stop:
            total.fill(nothing)
            for side in sides:
                # Gather: messages of the neighbours, combined vertex by vertex.
                gather = _MessageGatherer(
                    program, keyed.touched(side, values), of_sender[side], total
                )
                keyed.map(gather, side)
            parts = []
            for at in ranges:
                old = values[at.own]
                new = _check_user_numbers(
                    program.apply(old.copy(), total[at.own]), len(at), "apply"
                )
                parts.append([_count_changes(old, new, program.tol), np.isnan(new).sum()])
                values[at.own] = new
            changed, wrong = keyed.sum(parts)
            _check_no_nan(wrong, type(program).__name__)
            n_iter += 1
            keyed.keep({_SPACE: values}, n_iter, loss=changed)
        return KeyedSolution(
            np.empty(0), n_iter, not changed, f"{changed:.0f} vertices still change",
            values={_SPACE: values},
        )  # fmt: skip

    def _vertex_degrees(self, at: KeyRange) -> Array:
        """Sum of the weights of the edges along which each vertex sends."""
        rows = {"in": [0], "out": [1], "both": [0, 1]}[self.program.direction]
        found: Array = at.strengths[rows].sum(axis=0)
        return found


class _MessageGatherer:
    """Function that combines the messages along a lane's edges."""

    def __init__(
        self, program: VertexProgramLike, values: Array, degrees: Array, total: Array
    ) -> None:
        self._program, self._values, self._degrees = program, values, degrees
        self._total = total
        self._ufunc = COMBINE_FUNCTIONS[program.combine][0]

    def __call__(self, rows: KeyedRows) -> None:
        indptr = rows.indptr
        filled = np.flatnonzero(np.diff(indptr))
        total = self._total[rows.range.own]
        first = 0
        while first < len(filled):
            begin = indptr[filled[first]]
            # At least one vertex, with all of its edges.
            last = int(np.searchsorted(indptr[filled], begin + _EDGES_PER_CHUNK))
            last = max(last, first + 1)
            some = filled[first:last]
            edges = slice(begin, indptr[some[-1] + 1])
            # Combine each vertex's messages; CSR rows are neighbours, so `reduceat` takes them.
            found = self._ufunc.reduceat(self._make_messages(rows, edges), indptr[some] - begin)
            total[some] = self._ufunc(total[some], found)
            first = last

    def _make_messages(self, rows: KeyedRows, edges: slice) -> Array:
        at = rows.indices[edges]
        weight = np.ones(len(at)) if rows.values is None else rows.values[edges]
        made = self._program.gather(self._values[at], self._degrees[at], weight)
        return _check_user_numbers(made, len(at), "gather")


def _check_user_numbers(found: Any, n: int, method: str) -> Array:
    """Return the numbers that a user's method gave, one for each; a scalar stands for all."""
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


def _count_changes(old: Array, new: Array, tol: float) -> int:
    # An infinite value that stays is no change, though their difference is no number.
    with np.errstate(invalid="ignore"):
        return int(np.count_nonzero((new != old) & ~(np.abs(new - old) <= tol)))


def _check_no_nan(wrong: float, name: str) -> None:
    if wrong:
        raise DivergedError(
            f"`apply` of {name} made NaN of {wrong:.0f} vertices. Look at what it makes of "
            "`total` where a vertex has no messages (0 for a sum, +inf for the smallest, -inf for "
            "the largest)."
        )


@dataclass(frozen=True)
class PageRankSolver(KeyedSolver):
    """PageRank: how often a random surfer is at each vertex.

    Parameters
    ----------
    damping : float
        How often the surfer follows an edge.
    max_iter : int
    tol : float
        The iteration ends where the ranks' absolute changes add up to less than so much a vertex.
    jumps : VertexShares or None
        Where the surfer jumps to; None: anywhere.
    dangling : VertexShares or None
        Where from vertices without edges; None: as `jumps`.
    start : VertexShares or None
        Ranks to start from; None: equal ones.
    """

    damping: float
    max_iter: int
    tol: float
    jumps: VertexShares | None = None
    dangling: VertexShares | None = None
    start: VertexShares | None = None

    sides: ClassVar[tuple[EntrySide, ...]] = (EntrySide("in", _SPACE, _SPACE, 1),)

    @property
    def max_passes(self) -> int:
        return self.max_iter

    def solve(self, keyed: KeyedEntries) -> KeyedSolution:
        """Iterate until the ranks settle."""
        from daskml_dist.backends.graph_kernels import update_ranks

        n = keyed.n_keys[_SPACE]
        lanes = {at.lane: _PageRankLane(at, n, self) for at in keyed.ranges(_SPACE)}
        ranks = np.concatenate([lane.start for lane in lanes.values()])
        sent = np.empty_like(ranks)
        if keyed.kept is not None:
            ranks[...] = keyed.kept[_SPACE]

        def send(rows: KeyedRows) -> float:
            lane, at = lanes[rows.range.lane], rows.range.own
            np.multiply(ranks[at], lane.inverse, out=sent[at])
            return float(ranks[at][lane.without].sum())

        def pull(rows: KeyedRows) -> tuple[float, float]:
            lane, at = lanes[rows.range.lane], rows.range.own
            weights = np.empty(0) if rows.values is None else rows.values
            change = update_ranks(
                rows.indptr, rows.indices, weights, touched, lane.fixed, lane.spread,
                self.damping, dangling, ranks[at],
            )  # fmt: skip
            return change, send(rows)

        # Rank of the vertices without edges, which is spread over others in each step.
        (dangling,) = keyed.sum([[part] for part in keyed.map(send, "in")])
        n_iter, change = keyed.n_done, np.inf
        while n_iter < self.max_iter and not keyed.should_stop:
            # Power iteration: pull the neighbours' ranks along the edges.
            touched = keyed.touched("in", sent)
            change, dangling = keyed.sum(keyed.map(pull, "in"))
            n_iter += 1
            keyed.keep({_SPACE: ranks}, n_iter, loss=change)
            if change < n * self.tol:
                break
        done = bool(change < n * self.tol)
        return KeyedSolution(
            np.empty(0), n_iter, done, f"the ranks still change by {change:.3g}",
            values={_SPACE: ranks},
        )  # fmt: skip


class _PageRankLane:
    """Arrays of a lane's vertices that every step needs."""

    def __init__(self, at: KeyRange, n: int, solver: PageRankSolver) -> None:
        def shares(chosen: VertexShares | None) -> Any:
            return np.array([1.0 / n]) if chosen is None else chosen.of(at)

        strength = at.strengths[0]
        self.without = np.flatnonzero(strength == 0)
        with np.errstate(over="ignore"):
            self.inverse = np.divide(1.0, strength, out=np.zeros_like(strength), where=strength > 0)
        if not (np.isfinite(strength).all() and np.isfinite(self.inverse).all()):
            raise InvalidDataError(
                "The weights of some vertex's edges add up to infinity, or to so little that "
                "nothing can be divided by it. Scale the weights: their ratios alone count."
            )
        jumps = shares(solver.jumps)
        self.fixed = (1.0 - solver.damping) * jumps
        self.spread = jumps if solver.dangling is None else shares(solver.dangling)
        self.start = np.full(len(at), 1.0 / n) if solver.start is None else solver.start.of(at)


@dataclass(frozen=True)
class VertexShares:
    """Shares of some vertices; all others have 0.

    Parameters
    ----------
    numbers : ndarray of int64
        Ascending, each once.
    shares : ndarray of float64
        Their sum is 1.
    """

    numbers: NDArray[np.int64]
    shares: Array

    def of(self, at: KeyRange) -> Array:
        """Return the shares of a range of vertices."""
        a, b = np.searchsorted(self.numbers, [at.first, at.first + len(at)])
        found = np.zeros(len(at))
        found[self.numbers[a:b] - at.first] = self.shares[a:b]
        return found


@dataclass(frozen=True)
class ConnectedComponentsSolver(KeyedSolver):
    """FastSV: the smallest number of the vertices of each vertex's component."""

    sides: ClassVar[tuple[EntrySide, ...]] = (
        EntrySide("in", _SPACE, _SPACE, 1),
        EntrySide("out", _SPACE, _SPACE, 0),
    )
    max_passes = _MAX_ROUNDS

    def solve(self, keyed: KeyedEntries) -> KeyedSolution:
        """Hook and point further until nothing changes."""
        own = [np.arange(at.first, at.first + len(at)) for at in keyed.ranges(_SPACE)]
        parent = np.concatenate(own)
        if keyed.kept is not None:
            parent = keyed.kept[_SPACE].copy()
        n_iter, changed = keyed.n_done, np.inf
        grand = keyed.at(_SPACE, parent, parent)
        while changed and not keyed.should_stop:
            # Hook: roots point at the smallest grandparent around their trees.
            least = _smallest_neighbours(keyed, grand)
            _hook_roots(keyed, parent, least, grand)
            np.minimum(parent, least, out=parent)
            # Shortcut: point at the grandparent, which halves the trees' depth.
            np.minimum(parent, grand, out=parent)
            further = keyed.at(_SPACE, parent, parent)
            moved = further != grand
            (changed,) = keyed.sum([[moved[at.own].sum()] for at in keyed.ranges(_SPACE)])
            grand = further
            n_iter += 1
            keyed.keep({_SPACE: parent}, n_iter, loss=changed)
        return KeyedSolution(
            np.empty(0), n_iter, not changed, "the fit was stopped", values={_SPACE: grand}
        )


def _smallest_neighbours(keyed: KeyedEntries, grand: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the smallest grandparent of each vertex and its neighbours."""
    from daskml_dist.backends.graph_kernels import update_smallest_labels

    least = grand.copy()
    for side in ("in", "out"):
        touched = keyed.touched(side, grand)

        def pull(rows: KeyedRows, touched: Any = touched) -> None:
            update_smallest_labels(rows.indptr, rows.indices, touched, least[rows.range.own])

        keyed.map(pull, side)
    return least


def _hook_roots(
    keyed: KeyedEntries,
    parent: NDArray[np.int64],
    least: NDArray[np.int64],
    grand: NDArray[np.int64],
) -> None:
    """Let the root of each tree point at a smaller number around it."""
    lower = np.flatnonzero(least < grand)
    roots, order = parent[lower], np.argsort(parent[lower], kind="stable")
    roots, least = roots[order], least[lower][order]
    # The smallest offer to each root.
    first = np.flatnonzero(np.diff(roots, prepend=-1))
    found = np.minimum.reduceat(least, first) if len(first) else least
    np.minimum.at(parent, *keyed.sent(_SPACE, roots[first], found))
