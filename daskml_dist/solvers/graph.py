"""Solvers on the vertices of a graph: vertex programs, PageRank and connected components.

All are solvers over keys (:mod:`daskml_dist.solvers.keyed`): a trainer owns the values of its
vertices and the edges at them, and fetches the values of their neighbours in each iteration. A
trainer pulls along its own edges rather than pushing to others, so that no two threads write to the
same vertex, and sums have the same order on any number of trainers.

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

#: Maximum rounds of FastSV. It never needs this many: the number of trees falls geometrically.
_MAX_ROUNDS = 1000
#: Name of the only space of keys.
_KEY_SPACE = "vertex"
#: Functions that combine messages, and the total of a vertex without messages.
COMBINE_FUNCTIONS: dict[str, tuple[Any, float]] = {
    "sum": (np.add, 0.0),
    "min": (np.minimum, np.inf),
    "max": (np.maximum, -np.inf),
}
#: Sides of the edges that messages come along, by the program's direction.
DIRECTIONS: dict[str, tuple[str, ...]] = {"in": ("in",), "out": ("out",), "both": ("in", "out")}
#: Edges whose messages are computed at once: 512 KiB of float64 stay in a core's L2 cache.
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
    # In the matrix of edges, a row for each target ("in", transposed) or for each source ("out").
    axis_of = {"in": 1, "out": 0}
    return tuple(
        EntrySide(name, _KEY_SPACE, _KEY_SPACE, axis_of[name]) for name in DIRECTIONS[direction]
    )


@dataclass(frozen=True)
class VertexSolver(KeyedSolver):
    """Solver that iterates a user's vertex program: gather, combine and apply, in supersteps.

    Parameters
    ----------
    program : VertexProgramLike
    """

    program: VertexProgramLike
    space: ClassVar[str] = _KEY_SPACE

    @property
    def max_passes(self) -> int:
        return self.program.max_iter

    def solve(self, keyed: KeyedEntries) -> KeyedSolution:
        """Iterate until no vertex changes."""
        program, ranges = self.program, keyed.ranges(_KEY_SPACE)
        sides = DIRECTIONS[program.direction]
        _, identity = COMBINE_FUNCTIONS[program.combine]
        # Degree of a vertex: the weights of the edges along which it sends.
        strengths = {"in": [0], "out": [1], "both": [0, 1]}[program.direction]
        degrees = np.concatenate([vertices.strengths[strengths].sum(axis=0) for vertices in ranges])
        values = np.concatenate(
            [
                _check_user_numbers(
                    program.start(vertices.ids, degrees[vertices.own_slice]), len(vertices), "start"
                )
                for vertices in ranges
            ]
        )
        if keyed.kept is not None:
            values = keyed.kept[_KEY_SPACE].copy()
        (n_nan,) = keyed.sum([[np.isnan(values[vertices.own_slice]).sum()] for vertices in ranges])
        if n_nan:
            raise DivergedError(
                f"`start` of {type(program).__name__} made NaN of {n_nan:.0f} vertices. Give "
                "each an initial number, or infinity."
            )
        # Senders' degrees do not change: they are fetched once (a copy, of a buffer used again).
        sender_degrees = {side: keyed.touched(side, degrees).copy() for side in sides}
        n_iter, changed = keyed.n_done, np.inf
        total = np.empty_like(values)
        while n_iter < program.max_iter and changed and not keyed.should_stop:
            total.fill(identity)
            for side in sides:
                # Gather: messages of the neighbours, combined vertex by vertex.
                gather = _MessageGatherer(
                    program, keyed.touched(side, values), sender_degrees[side], total
                )
                keyed.map(gather, side)
            # Apply: all vertices at once, from the values of the iteration before.
            parts = []
            for vertices in ranges:
                old = values[vertices.own_slice]
                updated = _check_user_numbers(
                    program.apply(old.copy(), total[vertices.own_slice]), len(vertices), "apply"
                )
                parts.append([_count_changes(old, updated, program.tol), np.isnan(updated).sum()])
                values[vertices.own_slice] = updated
            changed, n_nan = keyed.sum(parts)
            _check_no_nan(n_nan, type(program).__name__)
            n_iter += 1
            keyed.keep({_KEY_SPACE: values}, n_iter, loss=changed)
        return KeyedSolution(
            np.empty(0), n_iter, not changed, f"{changed:.0f} vertices are still changing",
            values={_KEY_SPACE: values},
        )  # fmt: skip


class _MessageGatherer:
    """Function that combines the messages along a lane's edges into `total`, by vertex."""

    def __init__(
        self, program: VertexProgramLike, values: Array, degrees: Array, total: Array
    ) -> None:
        self._program, self._values, self._degrees = program, values, degrees
        self._total = total
        self._ufunc = COMBINE_FUNCTIONS[program.combine][0]

    def __call__(self, rows: KeyedRows) -> None:
        indptr = rows.indptr
        # Vertices with edges: `reduceat` has no empty segments.
        filled = np.flatnonzero(np.diff(indptr))
        total = self._total[rows.range.own_slice]
        first = 0
        while first < len(filled):
            first_edge = indptr[filled[first]]
            # At least one vertex, with all of its edges.
            last = int(np.searchsorted(indptr[filled], first_edge + _EDGES_PER_CHUNK))
            last = max(last, first + 1)
            receivers = filled[first:last]
            edges = slice(first_edge, indptr[receivers[-1] + 1])
            # The messages of a vertex are adjacent, as its edges are in a CSR row.
            combined = self._ufunc.reduceat(
                self._make_messages(rows, edges), indptr[receivers] - first_edge
            )
            total[receivers] = self._ufunc(total[receivers], combined)
            first = last

    def _make_messages(self, rows: KeyedRows, edges: slice) -> Array:
        senders = rows.indices[edges]
        weight = np.ones(len(senders)) if rows.values is None else rows.values[edges]
        messages = self._program.gather(self._values[senders], self._degrees[senders], weight)
        return _check_user_numbers(messages, len(senders), "gather")


def _check_user_numbers(result: Any, n: int, method: str) -> Array:
    """Return a user method's result as an array of `n` numbers; a scalar is repeated."""
    try:
        if np.iscomplexobj(result):
            raise TypeError("they are complex")
        array = np.asarray(result, dtype=np.float64)
        if array.ndim and array.shape != (n,):
            raise ValueError(f"its array is of shape {array.shape}")
        numbers: Array = np.ascontiguousarray(np.broadcast_to(array, (n,)))
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(
            f"`{method}` of the vertex program must return {n} numbers, as many as it was given: "
            f"{error}."
        ) from error
    return numbers if numbers.flags.writeable else numbers.copy()


def _count_changes(old: Array, new: Array, tol: float) -> int:
    """Return how many values change by more than `tol`."""
    # An infinite value that stays is not a change, though infinity minus infinity is NaN.
    with np.errstate(invalid="ignore"):
        return int(np.count_nonzero((new != old) & ~(np.abs(new - old) <= tol)))


def _check_no_nan(n_nan: float, name: str) -> None:
    if n_nan:
        raise DivergedError(
            f"`apply` of {name} made NaN of {n_nan:.0f} vertices. Check what it does with "
            "`total` if a vertex has no messages (0 for a sum, +inf for the smallest, -inf for "
            "the largest)."
        )


@dataclass(frozen=True)
class PageRankSolver(KeyedSolver):
    """Solver of PageRank, the stationary distribution of a random surfer, by power iteration.

    Parameters
    ----------
    damping : float
        Probability with which the surfer follows an edge instead of jumping.
    max_iter : int
    tol : float
        The iteration ends if the sum of the ranks' absolute changes is at most `tol` times the
        number of vertices.
    jumps : VertexShares or None
        Distribution of the vertices that the surfer jumps to (personalisation); None: uniform.
    dangling : VertexShares or None
        Distribution of the vertices after one without outgoing edges; None: as `jumps`.
    start : VertexShares or None
        Initial ranks; None: equal ones.
    """

    damping: float
    max_iter: int
    tol: float
    jumps: VertexShares | None = None
    dangling: VertexShares | None = None
    start: VertexShares | None = None

    sides: ClassVar[tuple[EntrySide, ...]] = (EntrySide("in", _KEY_SPACE, _KEY_SPACE, 1),)

    @property
    def max_passes(self) -> int:
        return self.max_iter

    def solve(self, keyed: KeyedEntries) -> KeyedSolution:
        """Iterate until the ranks settle."""
        from daskml_dist.backends.graph_kernels import update_ranks

        n = keyed.n_keys[_KEY_SPACE]
        lanes = {
            vertices.lane: _PageRankLane(vertices, n, self) for vertices in keyed.ranges(_KEY_SPACE)
        }
        ranks = np.concatenate([lane.start for lane in lanes.values()])
        sent_ranks = np.empty_like(ranks)
        if keyed.kept is not None:
            ranks[...] = keyed.kept[_KEY_SPACE]

        def send(rows: KeyedRows) -> float:
            # What a vertex sends by an edge of weight 1; return the rank of those that send none.
            lane, vertices = lanes[rows.range.lane], rows.range.own_slice
            np.multiply(ranks[vertices], lane.inverse, out=sent_ranks[vertices])
            return float(ranks[vertices][lane.dangling].sum())

        def pull(rows: KeyedRows) -> tuple[float, float]:
            # rank = (1 - d) jumps + d (sum of the ranks received + dangling rank * its shares).
            lane, vertices = lanes[rows.range.lane], rows.range.own_slice
            weights = np.empty(0) if rows.values is None else rows.values
            change = update_ranks(
                rows.indptr, rows.indices, weights, touched, lane.fixed, lane.spread,
                self.damping, dangling, ranks[vertices],
            )  # fmt: skip
            return change, send(rows)

        (dangling,) = keyed.sum([[lane_rank] for lane_rank in keyed.map(send, "in")])
        n_iter, change = keyed.n_done, np.inf
        while n_iter < self.max_iter and not keyed.should_stop:
            touched = keyed.touched("in", sent_ranks)
            change, dangling = keyed.sum(keyed.map(pull, "in"))
            n_iter += 1
            keyed.keep({_KEY_SPACE: ranks}, n_iter, loss=change)
            if change <= n * self.tol:  # also with tol=0, once nothing changes
                break
        has_settled = bool(change <= n * self.tol)
        return KeyedSolution(
            np.empty(0), n_iter, has_settled, f"the ranks are still changing by {change:.3g}",
            values={_KEY_SPACE: ranks},
        )  # fmt: skip


class _PageRankLane:
    """Arrays of a lane's vertices that every step needs.

    Attributes
    ----------
    dangling : ndarray of int
        Positions of the vertices without outgoing edges.
    inverse : ndarray of float64 of shape (n,)
        Inverse of the weight of a vertex's outgoing edges; 0 without any.
    fixed, spread : ndarray of float64 of shape (n,) or (1,)
        Rank that a vertex gets by jumps, and its share of the dangling rank.
    start : ndarray of float64 of shape (n,)
        Initial ranks.
    """

    def __init__(self, key_range: KeyRange, n: int, solver: PageRankSolver) -> None:
        def shares(distribution: VertexShares | None) -> Any:
            return (
                np.array([1.0 / n]) if distribution is None else distribution.take_range(key_range)
            )

        strength = key_range.strengths[0]
        self.dangling = np.flatnonzero(strength == 0)
        with np.errstate(over="ignore"):
            self.inverse = np.divide(1.0, strength, out=np.zeros_like(strength), where=strength > 0)
        if not (np.isfinite(strength).all() and np.isfinite(self.inverse).all()):
            raise InvalidDataError(
                "The weights of some vertex's edges add up to infinity, or to a number too "
                "small to divide by. Scale the weights: only their ratios matter."
            )
        jumps = shares(solver.jumps)
        self.fixed = (1.0 - solver.damping) * jumps
        self.spread = jumps if solver.dangling is None else shares(solver.dangling)
        self.start = (
            np.full(len(key_range), 1.0 / n)
            if solver.start is None
            else solver.start.take_range(key_range)
        )


@dataclass(frozen=True)
class VertexShares:
    """Distribution over some vertices; all others have 0.

    Parameters
    ----------
    vertex_indices : ndarray of int64
        Indices of the vertices, ascending, without duplicates.
    shares : ndarray of float64
        Their probabilities, whose sum is 1.
    """

    vertex_indices: NDArray[np.int64]
    shares: Array

    def take_range(self, key_range: KeyRange) -> Array:
        """Return the shares of a range of vertices."""
        a, b = np.searchsorted(
            self.vertex_indices, [key_range.first, key_range.first + len(key_range)]
        )
        range_shares = np.zeros(len(key_range))
        range_shares[self.vertex_indices[a:b] - key_range.first] = self.shares[a:b]
        return range_shares


@dataclass(frozen=True)
class ConnectedComponentsSolver(KeyedSolver):
    """Solver of connected components by FastSV: the smallest index in each vertex's component.

    Every vertex points at a parent with an index no larger than its own, at first at itself. The
    pointers form trees, each within one component; rounds of hooking and shortcutting merge them to
    one tree of depth 1 for each component.
    """

    sides: ClassVar[tuple[EntrySide, ...]] = (
        EntrySide("in", _KEY_SPACE, _KEY_SPACE, 1),
        EntrySide("out", _KEY_SPACE, _KEY_SPACE, 0),
    )
    max_passes = _MAX_ROUNDS

    def solve(self, keyed: KeyedEntries) -> KeyedSolution:
        """Hook trees and shorten their paths until no grandparent changes."""
        lane_vertices = [
            np.arange(vertices.first, vertices.first + len(vertices))
            for vertices in keyed.ranges(_KEY_SPACE)
        ]
        parent = np.concatenate(lane_vertices)
        if keyed.kept is not None:
            parent = keyed.kept[_KEY_SPACE].copy()
        n_iter, changed = keyed.n_done, np.inf
        grand = keyed.gather(_KEY_SPACE, parent, parent)
        while changed and not keyed.should_stop:
            smallest = _smallest_neighbours(keyed, grand)
            # Stochastic hooking: the parent of a vertex points at the smallest grandparent among
            # the vertex's neighbours.
            _hook_roots(keyed, parent, smallest, grand)
            # Aggressive hooking: the vertex itself points there too.
            np.minimum(parent, smallest, out=parent)
            # Shortcutting: point at the grandparent, which halves the trees' depth.
            np.minimum(parent, grand, out=parent)
            new_grand = keyed.gather(_KEY_SPACE, parent, parent)
            has_changed = new_grand != grand
            (changed,) = keyed.sum(
                [[has_changed[vertices.own_slice].sum()] for vertices in keyed.ranges(_KEY_SPACE)]
            )
            grand = new_grand
            n_iter += 1
            keyed.keep({_KEY_SPACE: parent}, n_iter, loss=changed)
        return KeyedSolution(
            np.empty(0), n_iter, not changed, "the fit was stopped", values={_KEY_SPACE: grand}
        )


def _smallest_neighbours(keyed: KeyedEntries, grand: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each vertex, the smallest grandparent of it and its neighbours."""
    from daskml_dist.backends.graph_kernels import update_smallest_labels

    smallest = grand.copy()
    for side in ("in", "out"):
        touched = keyed.touched(side, grand)

        def pull(rows: KeyedRows, touched: Any = touched) -> None:
            update_smallest_labels(
                rows.indptr, rows.indices, touched, smallest[rows.range.own_slice]
            )

        keyed.map(pull, side)
    return smallest


def _hook_roots(
    keyed: KeyedEntries,
    parent: NDArray[np.int64],
    least: NDArray[np.int64],
    grand: NDArray[np.int64],
) -> None:
    """Point the parents of vertices at the smaller indices found, on whichever trainer they are."""
    # Only vertices whose `least` is below their grandparent can lower a parent.
    lower = np.flatnonzero(least < grand)
    parents, order = parent[lower], np.argsort(parent[lower], kind="stable")
    parents, least = parents[order], least[lower][order]
    # Send each parent the smallest index only.
    first = np.flatnonzero(np.diff(parents, prepend=-1))
    smallest = np.minimum.reduceat(least, first) if len(first) else least
    np.minimum.at(parent, *keyed.scatter(_KEY_SPACE, parents[first], smallest))
