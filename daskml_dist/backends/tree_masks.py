"""Compiled loops of binned rows through small trees, without a branch: leaves as bits.

Importing this module loads numba, so it is imported at first use.

References
----------
C. Lucchese et al., "QuickScorer: a fast algorithm to rank documents with additive ensembles of
regression trees", SIGIR 2015: a node where a row goes right rules out the leaves on its left, and
of those left over the first is the row's. Here a table for each feature of a tree tells at once,
for each bin, what all nodes that ask for the feature rule out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from daskml_dist.backends.array_copies import copy_values
from daskml_dist.backends.compiled import compiled_entry, compiled_inside

__all__ = ["add_masked"]

_exact = compiled_entry()
_inside = compiled_inside(error_model="numpy")
#: Zeros below the lowest bit that is set.
_zeros_below: Any = trailing_zeros

#: Rows that go through a tree together, so that what they need of it stays in the nearest cache.
_ROWS = 512


@_exact
def add_masked(
    columns: Any, roots: Any, first: int, last: int, n_outputs: int, nodes: Any, value: Any,
    missing: int, tables: Any, out: Any,
) -> None:  # fmt: skip
    """Add the values of trees `first` to `last` to raw predictions.

    Parameters
    ----------
    columns : ndarray of uint8 of shape (n_features, n)
        Bins of rows.
    nodes : tuple
        Of `models.trees.Trees`: feature, bin, left, missing_left, category, bitsets.
    missing : int
        Bin of missing values.
    tables : ndarray of uint32 or uint64 of shape (n_features + 3, 256)
        Room to work in. A tree of more leaves than an entry has bits takes several turns.
    out : ndarray of float64 of shape (n, n_outputs)
    """
    n, bits = len(out), 8 * tables.itemsize
    alive = np.empty(_ROWS, tables.dtype)
    values = np.empty(bits)
    used = np.empty(len(tables), np.int64)
    for t in range(first, last):
        output = (t - first) % n_outputs
        n_leaves = (roots[t + 1] - roots[t] + 1) // 2
        n_words = (n_leaves + bits - 1) // bits
        for low in range(0, n_words * bits, bits):
            n_used = _fill(
                roots[t],
                roots[t + 1],
                low,
                n_words > 1,
                nodes,
                value,
                missing,
                tables,
                used,
                values,
            )
            for start in range(0, n, _ROWS):
                m = min(n - start, _ROWS)
                rest = alive[:m]
                rest[:] = _bits(0, n_leaves - low, tables)
                _rule_out(columns[:, start:], tables, used, n_used, rest)
                if n_words == 1:
                    for i in range(m):
                        out[start + i, output] += values[_zeros_below(rest[i])]
                else:
                    for i in range(m):
                        if rest[i] != 0:
                            out[start + i, output] += values[_zeros_below(rest[i])]


@_inside
def _rule_out(columns: Any, tables: Any, used: Any, n_used: int, rest: Any) -> None:
    """Take away the leaves that some rows cannot reach."""
    for s in range(0, n_used, 4):
        a, b, c, d = (
            columns[used[s]],
            columns[used[s + 1]],
            columns[used[s + 2]],
            columns[used[s + 3]],
        )
        of_a, of_b, of_c, of_d = tables[s], tables[s + 1], tables[s + 2], tables[s + 3]
        for i in range(len(rest)):
            rest[i] &= of_a[a[i]] & of_b[b[i]] & of_c[c[i]] & of_d[d[i]]


@_inside
def _bits(first: int, end: int, tables: Any) -> Any:
    """Bits `first` to `end` of a word, of those that it has."""
    word, n = tables.dtype.type, 8 * tables.itemsize
    first, end = max(first, 0), min(end, n)
    if end <= first:
        return word(0)
    return word(word(word(~word(0)) >> word(n - end + first)) << word(first))


@_inside
def _fill(
    root: int, end: int, low: int, both: bool, nodes: Any, value: Any, missing: int, tables: Any,
    used: Any, values: Any,
) -> int:  # fmt: skip
    """Make a tree's tables, in the order of `used` features; say how many, a multiple of four."""
    feature, bins, left, missing_left, category, bitsets = nodes
    size, begin = np.ones(end - root, np.int64), np.zeros(end - root, np.int64)
    slots = np.full(len(tables), -1)
    for k in range(end - 1, root - 1, -1):
        if feature[k] >= 0:
            child = left[k] - root
            size[k - root] = size[child] + size[child + 1]
    n_used = 0
    for k in range(root, end):
        at = begin[k - root]
        if feature[k] < 0:
            if 0 <= at - low < len(values):
                values[at - low] = value[k]
            continue
        child = left[k] - root
        middle = begin[child + 1] = at + size[child]
        begin[child] = at
        stay = ~_bits(at - low, middle - low, tables)
        leave = ~_bits(middle - low, at + size[k - root] - low if both else 0, tables)
        if stay == leave:  # no leaf of the word is under the node
            continue
        slot = slots[feature[k]]
        if slot < 0:
            slot = slots[feature[k]] = n_used
            used[slot] = feature[k]
            tables[slot] = ~tables.dtype.type(0)
            n_used += 1
        table = tables[slot]
        if category[k] >= 0:
            for b in range(missing):
                goes = (bitsets[category[k], b >> 6] >> np.uint64(b & 63)) & np.uint64(1) == 1
                table[b] &= leave if goes else stay
        else:
            _and(table[bins[k] + 1 : missing], stay)
            if both:
                _and(table[: min(bins[k] + 1, missing)], leave)
        table[missing] &= leave if missing_left[k] else stay
    while n_used % 4:
        # Once more the first: what is ruled out twice stays so.
        used[n_used] = used[0]
        copy_values(tables[n_used], tables[0])
        n_used += 1
    return n_used


@_inside
def _and(row: Any, word: Any) -> None:
    for b in range(len(row)):
        row[b] &= word
