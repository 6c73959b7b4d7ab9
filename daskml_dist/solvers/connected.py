"""Connected components in few rounds: FastSV (Zhang, Azad and Hu 2020), after Shiloach and Vishkin.

Each vertex points at a vertex with a smaller number, or at itself: a forest. In every round trees
are hooked to neighbouring trees with smaller roots, and vertices point further up; so rounds grow
with the logarithm of the longest way, not with the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.solvers.keyed import Keyed, KeyedRows, KeyedSolution, KeyedSolver, Side

__all__ = ["ComponentsSolver"]

_SPACE = "vertex"
#: Rounds that no graph needs: trees at least halve in each two.
_MOST = 1000


@dataclass(frozen=True)
class ComponentsSolver(KeyedSolver):
    """Smallest number of the vertices of each one's component."""

    sides: ClassVar[tuple[Side, ...]] = (
        Side("in", _SPACE, _SPACE, 1),
        Side("out", _SPACE, _SPACE, 0),
    )

    @property
    def max_passes(self) -> int:
        return _MOST

    def solve(self, keyed: Keyed) -> KeyedSolution:
        """Hook and point further until nothing changes."""
        own = [np.arange(at.first, at.first + len(at)) for at in keyed.ranges(_SPACE)]
        parent = np.concatenate(own)
        if keyed.kept is not None:
            parent = keyed.kept[_SPACE].copy()
        n_iter, changed = keyed.n_done, np.inf
        grand = keyed.at(_SPACE, parent, parent)
        while changed and not keyed.should_stop:
            least = _least_around(keyed, grand)
            _hook(keyed, parent, least, grand)
            np.minimum(parent, least, out=parent)
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


def _least_around(keyed: Keyed, grand: NDArray[np.int64]) -> NDArray[np.int64]:
    """The smallest number that a vertex or a neighbour of it points at, but one further up."""
    from daskml_dist.backends.graph_kernels import pull_smallest

    least = grand.copy()
    for side in ("in", "out"):
        touched = keyed.touched(side, grand)

        def pull(rows: KeyedRows, touched: Any = touched) -> None:
            pull_smallest(rows.indptr, rows.indices, touched, least[rows.range.own])

        keyed.map(pull, side)
    return least


def _hook(
    keyed: Keyed, parent: NDArray[np.int64], least: NDArray[np.int64], grand: NDArray[np.int64]
) -> None:
    """Let the root of each tree point at a smaller number around it."""
    lower = np.flatnonzero(least < grand)
    roots, order = parent[lower], np.argsort(parent[lower], kind="stable")
    roots, least = roots[order], least[lower][order]
    first = np.flatnonzero(np.diff(roots, prepend=-1))
    found = np.minimum.reduceat(least, first) if len(first) else least
    np.minimum.at(parent, *keyed.sent(_SPACE, roots[first], found))
