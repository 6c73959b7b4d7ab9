"""Dropout of trees in boosting (DART): each iteration ignores some of the earlier trees.

Before an iteration some earlier iterations are dropped, and the new trees are fitted without their
trees. New and dropped trees then share their common prediction: with k dropped, the new ones are
divided by k + 1, and the dropped ones multiplied by k / (k + 1).

Trees change, so raw predictions are added to and subtracted from repeatedly, while a trainer that
joins after a loss adds up all trees once. Both must get the same bits, so leaf values are rounded
to multiples of a power of two (:class:`ValueGrid`), whose sums in float64 are exact.

References
----------
R. K. Vinayak and R. Gilad-Bachrach, "DART: Dropouts meet multiple additive regression trees",
AISTATS 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import DivergedError
from daskml_dist.models.bins import draw_by_hash
from daskml_dist.models.trees import Tree

#: Hashed with the seed, so that these draws are independent of other kinds of draws.
_DROP_DRAW, _SKIP_DRAW = 13, 14
#: Bits of the largest value of the first tree. With the 20 bits that float64 has left, raw
#: predictions may become a million times as large; gradients have 24 bits.
_VALUE_BITS = 32
#: Bits of the start, which may be far larger than the trees' values.
_START_BITS = 50
#: Bits of a float64 that a sum may use, without the sign.
_SUM_BITS = 52


@dataclass(frozen=True)
class TreeDropout:
    """Rule by which earlier iterations are dropped.

    Parameters
    ----------
    rate : float
        Probability that an iteration is dropped.
    skip : float
        Probability that nothing is dropped.
    most : int or None
        Maximum number of iterations dropped together; None: no limit.
    """

    rate: float
    skip: float = 0.0
    most: int | None = None

    def draw(self, n_iter: int, seed: int) -> list[int]:
        """Return which of the `n_iter` earlier iterations the next one ignores."""
        # Hashed only from the seed and the iteration's number: after a loss, or in a warm start,
        # the draws are the same.
        if _as_shares(draw_by_hash([n_iter], seed, _SKIP_DRAW))[0] < self.skip:
            return []
        draws = _as_shares(draw_by_hash(np.arange(n_iter), seed, _DROP_DRAW, n_iter))
        order = np.argsort(draws, kind="stable")[: self.most]
        dropped: list[int] = np.sort(order[draws[order] < self.rate]).tolist()
        return dropped


def _as_shares(draws: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return 64-bit draws as numbers in [0, 1)."""
    return np.asarray((draws >> np.uint64(11)) * 2.0**-53, np.float64)


@dataclass(frozen=True)
class ValueGrid:
    """Multiples of a unit, a power of two, with few enough bits that their sums are exact.

    Parameters
    ----------
    unit : float
        0.0 while all trees predict zero: the grid is then not chosen yet.
    """

    unit: float = 0.0

    @classmethod
    def choose(cls, trees: Sequence[Tree], start: NDArray[np.float64]) -> ValueGrid:
        """Return a grid suitable for the given trees, which are added to a start."""
        largest = max((_largest_leaf(tree) for tree in trees), default=0.0)
        if not largest or not np.isfinite(largest):
            return cls()
        exponents = [int(np.frexp(largest)[1]) - _VALUE_BITS]
        if of_start := _largest(start):
            exponents.append(int(np.frexp(of_start)[1]) - _START_BITS)
        return cls(float(np.ldexp(1.0, max(exponents))))

    def round(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the nearest numbers on the grid, or the values themselves if there is no grid."""
        if not self.unit:
            return values
        return np.asarray(np.rint(values / self.unit) * self.unit, np.float64)

    def scale_tree(self, tree: Tree, factor: float = 1.0) -> Tree:
        """Return a tree whose values are multiplied, and rounded to the grid."""
        return replace(tree, value=self.round(tree.value * factor))

    def check_sum(self, largest: float) -> None:
        """Raise if a sum of numbers on the grid, with a given maximum, may not be exact."""
        if self.unit and not largest < self.unit * 2.0**_SUM_BITS:
            raise DivergedError(
                "Leaf values grew a million times larger than those of the first tree. Lower "
                "learning_rate, scale the targets, or raise l2_regularization; without dropout "
                "(drop_rate=0) there is no such limit."
            )


def sum_largest(trees: Sequence[Tree]) -> float:
    """Return the sum of the trees' largest values, which bounds the sum of any row's leaves."""
    return sum(_largest_leaf(tree) for tree in trees)


def _largest_leaf(tree: Tree) -> float:
    """Return the largest value of a tree's leaves."""
    return _largest(tree.value[tree.feature < 0])


def _largest(values: Any) -> float:
    """Return the largest absolute value."""
    return float(np.abs(values).max(initial=0.0))
