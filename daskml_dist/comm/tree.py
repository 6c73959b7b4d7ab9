"""Trees of ranks: the pairs in which what is no sum is merged, and who tells whom.

Both take as many rounds as the number of ranks has binary digits (binomial trees; Thakur et al.,
"Optimization of collective communication operations in MPICH", 2005).
"""

from __future__ import annotations

from collections.abc import Callable

from daskml_dist.comm.base import Arrays, Merge

__all__ = ["children", "merge_in_pairs", "parent"]

#: Gives arrays to a lower rank (`to`), or takes those of a higher one (`source`); all ranks call.
HandDown = Callable[[Arrays, int | None, int | None], Arrays]


def merge_in_pairs(
    rank: int, size: int, arrays: Arrays, merge: Merge, hand_down: HandDown
) -> Arrays:
    """Merge the arrays of all ranks; rank 0 gets the result, others what they have given."""
    step = 1
    while step < size:
        place, source = rank % (2 * step), rank + step
        if place == step:
            hand_down(arrays, rank - step, None)
        elif place == 0 and source < size:
            arrays = merge(arrays, hand_down([], None, source))
        else:
            hand_down([], None, None)
        step *= 2
    return arrays


def parent(rank: int) -> int:
    """The rank that tells this one what rank 0 has to tell."""
    return rank & (rank - 1)


def children(rank: int, size: int) -> list[int]:
    """The ranks that this one tells, the one with the most to tell others first."""
    lowest = rank & -rank if rank else 1 << size.bit_length()
    steps = [1 << k for k in reversed(range(size.bit_length())) if 1 << k < lowest]
    return [rank + step for step in steps if rank + step < size]
