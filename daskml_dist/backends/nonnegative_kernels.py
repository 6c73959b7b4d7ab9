"""Compiled loops of non-negative factorisations: weights of rows, given the components.

Importing this module loads numba, so it is imported at first use.

References
----------
C.-J. Hsieh and I. S. Dhillon, "Fast coordinate descent methods with variable selection for
non-negative matrix factorization", KDD 2011.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry

#: LLVM's fast-math flags for sums whose order does not matter; NaN and infinity are kept.
_REORDERED = {"contract", "reassoc", "nsz"}


@compiled_entry(fastmath={"contract", "nsz"})
def descend_rows(gram: Any, slope: Any, W: Any, max_sweeps: int, tol: float) -> None:
    """Decrease ``w @ gram @ w / 2 - b @ w``, w >= 0, for each row w of W, by coordinate.

    `slope` is ``W @ gram - b`` and is kept up to date. A row ends after `max_sweeps` sweeps, or
    after one that changes no coefficient by more than `tol` of the largest.
    """
    k = len(gram)
    for i in range(len(W)):
        w, g = W[i], slope[i]
        for _ in range(max_sweeps):
            change = largest = gram[0, 0] * 0
            for t in range(k):
                curve, old = gram[t, t], w[t]
                # A coefficient at 0 whose slope is not negative stays there.
                if curve <= 0 or (old == 0 and g[t] >= 0):
                    continue
                # The minimum along the coordinate, clipped at 0 (Hsieh and Dhillon 2011).
                updated = max(old - g[t] / curve, gram[0, 0] * 0)
                step = updated - old
                if step != 0:
                    w[t] = updated
                    row = gram[t]
                    for r in range(k):
                        # Update the gradient by a row of the Gram matrix.
                        g[r] += step * row[r]
                    change = max(change, abs(step))
                largest = max(largest, updated)
            if change <= tol * largest:
                break


@compiled_entry(fastmath=_REORDERED)
def _floored_product(w: Any, h: Any, least: Any) -> Any:
    """Return a product of two vectors, at least `least`, since it is a divisor."""
    product = w[0] * 0
    for c in range(len(w)):
        product += w[c] * h[c]
    return max(product, least)


@compiled_entry(fastmath=_REORDERED)
def multiply_weights(
    indptr: Any, indices: Any, data: Any, rows: Any, H: Any, column_sums: Any, l1: Any, l2: Any,
    least: Any, W: Any, max_steps: int, tol: float,
) -> None:  # fmt: skip
    """Take multiplicative steps of each row's weights for the Kullback-Leibler divergence.

    A row ends after `max_steps` of them, or after one that changes no weight by more than `tol` of
    the largest.
    """
    above = np.empty(W.shape[1], W.dtype)
    for i in range(len(rows)):
        w, row = W[i], rows[i]
        for _ in range(max_steps):
            above[:] = 0
            for entry in range(indptr[row], indptr[row + 1]):
                if data[entry] == 0:
                    continue
                h = H[indices[entry]]
                # Lee and Seung (2001): w *= (H (x / WH)) / (sum of H + penalties).
                share = data[entry] / _floored_product(w, h, least)
                for c in range(len(w)):
                    above[c] += share * h[c]
            change = largest = w[0] * 0
            for c in range(len(w)):
                below = column_sums[c] + l1 + l2 * w[c]
                updated = w[c] * above[c] / (below if below != 0 else least)
                change = max(change, abs(updated - w[c]))
                largest = max(largest, updated)
                w[c] = updated
            if change <= tol * largest:
                break


@compiled_entry(fastmath=_REORDERED)
def add_component_shares(
    indptr: Any,
    indices: Any,
    data: Any,
    rows: Any,
    H: Any,
    W: Any,
    weighted_W: Any,
    least: Any,
    out: Any,
) -> None:
    """Add ``weighted_W[i] * X[i, j] / (W[i] @ H[j])`` of all entries to ``out[j]``."""
    for i in range(len(rows)):
        row, w, own_row = rows[i], W[i], weighted_W[i]
        for entry in range(indptr[row], indptr[row + 1]):
            if data[entry] == 0:
                continue
            h, out_row = H[indices[entry]], out[indices[entry]]
            share = data[entry] / _floored_product(w, h, least)
            for c in range(len(w)):
                out_row[c] += share * own_row[c]


@compiled_entry()
def write_divergences(
    indptr: Any, indices: Any, data: Any, rows: Any, H: Any, W: Any, least: Any, out: Any
) -> None:
    """Write the sum of ``x log(x / (W[i] @ H[j])) - x`` over the entries x of each row i."""
    for i in range(len(rows)):
        row, total = rows[i], 0.0
        for entry in range(indptr[row], indptr[row + 1]):
            x = data[entry]
            if x > least:
                total += x * math.log(x / _floored_product(W[i], H[indices[entry]], least))
            total -= x
        out[i] = total
