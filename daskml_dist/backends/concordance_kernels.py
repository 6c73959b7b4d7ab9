"""Compiled count of the pairs of times that a prediction orders correctly.

Importing this module loads numba, so it is imported at first use.

References
----------
P. M. Fenwick, "A new data structure for cumulative frequency tables", Software: Practice and
Experience 24(3), 1994.
"""

from __future__ import annotations

from typing import Any

from daskml_dist.backends.compiled import compiled_entry

_exact = compiled_entry()


@_exact
def count_concordant(
    begins: Any, ends: Any, begin_order: Any, end_order: Any, places: Any, weight: Any, tree: Any
) -> tuple[float, float, float]:
    """Return the weights of pairs in the right order, of tied predictions, and of all pairs.

    A pair (i, j) counts if ``begins[j] >= ends[i]``: row i's event is certainly before row j's.
    Rows j are added to a Fenwick tree by decreasing `begins`, at the ranks of their predictions;
    each row i then looks up the rows with larger and with equal predictions.

    Parameters
    ----------
    begins, ends : ndarray of int64 of shape (n,)
    begin_order, end_order : ndarray of int64 of shape (n,)
        Rows in the order of `begins` and of `ends`.
    places : ndarray of int64 of shape (n,)
        Rank of each prediction from 1; equal predictions have equal ranks.
    weight : ndarray of float64 of shape (n,)
    tree : ndarray of float64 of shape (largest place + 1,)
        Zeros.
    """
    n, size = len(begins), len(tree) - 1
    right, tied, pairs, added = 0.0, 0.0, 0.0, 0.0
    next_position = n - 1
    # By decreasing `ends`: the set of comparable rows only grows.
    for k in range(n - 1, -1, -1):
        i = end_order[k]
        while next_position >= 0 and begins[begin_order[next_position]] >= ends[i]:
            j = begin_order[next_position]
            place = places[j]
            # The lowest set bit is the number of ranks that a node sums; go up through its parents.
            while place <= size:
                tree[place] += weight[j]
                place += place & -place
            added += weight[j]
            next_position -= 1
        if added == 0.0:
            continue
        # Sums up to the row's rank, and below it: their difference is the weight of ties.
        up_to, below = 0.0, 0.0
        place = places[i]
        while place > 0:
            up_to += tree[place]
            place -= place & -place
        place = places[i] - 1
        while place > 0:
            below += tree[place]
            place -= place & -place
        right += weight[i] * (added - up_to)
        tied += weight[i] * (up_to - below)
        pairs += weight[i] * added
    return right, tied, pairs
