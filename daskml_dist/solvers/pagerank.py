"""PageRank by power iteration (Page, Brin, Motwani and Winograd 1999)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidDataError
from daskml_dist.solvers.keyed import Keyed, KeyedRows, KeyedSolution, KeyedSolver, KeyRange, Side

__all__ = ["Chosen", "PageRankSolver"]

Array = NDArray[np.float64]

_SPACE = "vertex"


@dataclass(frozen=True)
class Chosen:
    """Shares of some vertices, all others' being 0.

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
        """Shares of a range of vertices."""
        a, b = np.searchsorted(self.numbers, [at.first, at.first + len(at)])
        found = np.zeros(len(at))
        found[self.numbers[a:b] - at.first] = self.shares[a:b]
        return found


@dataclass(frozen=True)
class PageRankSolver(KeyedSolver):
    """Ranks of vertices: how often a surfer is at each who follows edges, and jumps now and then.

    Parameters
    ----------
    damping : float
        How often the surfer follows an edge.
    max_iter : int
    tol : float
        The iteration ends where the ranks' absolute changes add up to less than so much a vertex.
    jumps : Chosen or None
        Where the surfer jumps to; None: anywhere.
    dangling : Chosen or None
        Where from vertices without edges; None: as `jumps`.
    start : Chosen or None
        Ranks to start from; None: equal ones.
    """

    damping: float
    max_iter: int
    tol: float
    jumps: Chosen | None = None
    dangling: Chosen | None = None
    start: Chosen | None = None

    sides: ClassVar[tuple[Side, ...]] = (Side("in", _SPACE, _SPACE, 1),)

    @property
    def max_passes(self) -> int:
        return self.max_iter

    def solve(self, keyed: Keyed) -> KeyedSolution:
        """Iterate until the ranks settle."""
        from daskml_dist.backends.graph_kernels import pull_ranks

        n = keyed.n_keys[_SPACE]
        lanes = {at.lane: _Lane(at, n, self) for at in keyed.ranges(_SPACE)}
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
            change = pull_ranks(
                rows.indptr, rows.indices, weights, touched, lane.fixed, lane.spread,
                self.damping, dangling, ranks[at],
            )  # fmt: skip
            return change, send(rows)

        (dangling,) = keyed.sum([[part] for part in keyed.map(send, "in")])
        n_iter, change = keyed.n_done, np.inf
        while n_iter < self.max_iter and not keyed.should_stop:
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


class _Lane:
    """Facts of a lane's vertices that every step needs."""

    def __init__(self, at: KeyRange, n: int, solver: PageRankSolver) -> None:
        def shares(chosen: Chosen | None) -> Any:
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
