"""Compiled loops that count items, pairs and larger itemsets of baskets.

Rows are bits of words, with a run of words for each item (the vertical layout of Zaki, "Scalable
algorithms for association mining", IEEE TKDE 12(3), 2000). Importing this module loads numba, so it
is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry, compiled_inside
from daskml_dist.backends.intrinsics import copy_values

_exact = compiled_entry()
_inside = compiled_inside(error_model="numpy")

#: Maximum number of rows whose ones a byte can count.
_MAX_BYTE_ROWS = 255
#: If more than one in this many words of a prefix is not zero, all words are read.
_DENSE_WORD_SHARE = 4


# --- items ------------------------------------------------------------------------------------


@_exact
def count_items(bought: Any, out: Any) -> None:
    """Add to `out` how often each column is nonzero.

    Parameters
    ----------
    bought : ndarray of uint8 of shape (n, n_items)
        0 or 1.
    out : ndarray of float64 of shape (n_items,)
    """
    n, d = bought.shape
    byte_counts = np.empty(d, np.uint8)
    # Bytes are summed in bytes, 64 per vector, and added to the floats before any can overflow.
    for start in range(0, n, _MAX_BYTE_ROWS):
        byte_counts[:] = 0
        for i in range(start, min(n, start + _MAX_BYTE_ROWS)):
            for j in range(d):
                byte_counts[j] += bought[i, j]
        for j in range(d):
            out[j] += byte_counts[j]


@_exact
def count_csr_items(indptr: Any, indices: Any, bought: Any, rows: Any, out: Any) -> None:
    """Add to `out` how often each column of CSR rows is nonzero; see `count_items`."""
    for i in rows:
        for e in range(indptr[i], indptr[i + 1]):
            out[indices[e]] += bought[e]


# --- bits -------------------------------------------------------------------------------------


@_exact
def pack_rows(bought: Any, items: Any, first: int, bit_words: Any) -> None:
    """Write the bits of some rows.

    Parameters
    ----------
    bought : ndarray of uint8 of shape (n, n_columns)
        0 or 1.
    items : ndarray of int64 of shape (n_items,)
        Columns, sorted.
    first : int
        Word whose first bit is the first of the rows.
    bit_words : ndarray of uint64 of shape (n_tiles, n_items, n_words)
    """
    n, m, width = len(bought), len(items), bit_words.shape[2]
    all_columns = m == bought.shape[1]
    row_bits = np.empty(m, np.uint64)
    for start in range(0, n, 64):
        row_bits[:] = 0
        for i in range(start, min(n, start + 64)):
            row, bit = bought[i], np.uint64(i - start)
            if all_columns:
                for j in range(m):
                    # 64 rows become one word per item.
                    row_bits[j] |= np.uint64(row[j]) << bit
            else:
                for j in range(m):
                    row_bits[j] |= np.uint64(row[items[j]]) << bit
        word = first + start // 64
        tile, place = word // width, word % width
        for j in range(m):
            bit_words[tile, j, place] = row_bits[j]


@_exact
def pack_csr_rows(
    indptr: Any, indices: Any, bought: Any, rows: Any, rank: Any, bit_words: Any
) -> None:  # fmt: skip
    """Set the bits of some rows of a CSR matrix, in words that are zero.

    Parameters
    ----------
    indptr, indices : ndarray of int
    bought : ndarray of uint8
        0 or 1 for each entry.
    rows : ndarray of int of shape (n,)
    rank : ndarray of int32 of shape (n_columns,)
        Position of each column among the items; -1: none.
    bit_words : ndarray of uint64 of shape (n_tiles, n_items, n_words)
    """
    # Tiles of `width` words: the words of all items of a tile fit in a cache.
    width = bit_words.shape[2]
    for i in range(len(rows)):
        word, bit = i // 64, np.uint64(1) << np.uint64(i % 64)
        tile, place = word // width, word % width
        for e in range(indptr[rows[i]], indptr[rows[i] + 1]):
            j = rank[indices[e]]
            if bought[e] and j >= 0:
                bit_words[tile, j, place] |= bit


@_inside
def _count_ones(x: Any) -> Any:
    """Return the number of set bits of 64; LLVM compiles it to one popcount instruction."""
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (x * np.uint64(0x0101010101010101)) >> np.uint64(56)


@_exact
def count_supports(bit_words: Any, prefix: Any, bounds: Any, last: Any, out: Any) -> None:
    """Add to `out` the number of rows that contain all items of each candidate.

    Candidates that share all but the last item are contiguous. The rows with the items of such a
    prefix are found once, starting from those of the items shared with the previous prefix.

    Parameters
    ----------
    bit_words : ndarray of uint64 of shape (n_tiles, n_items, n_words)
    prefix : ndarray of int32 of shape (n_prefixes, k - 1)
        Items of each prefix, by position in `bit_words`; sorted.
    bounds : ndarray of int64 of shape (n_prefixes + 1,)
        First candidate of each prefix.
    last : ndarray of int32 of shape (n,)
        Last item of each candidate.
    out : ndarray of float64 of shape (n,)
    """
    n_prefixes, depth = prefix.shape
    width = bit_words.shape[2]
    prefix_bits = np.empty((depth, width), np.uint64)
    live, live_words = np.empty(width, np.int64), np.empty(width, np.uint64)
    # Tile by tile, so that words stay cached over all candidates.
    for tile in range(len(bit_words)):
        bits = bit_words[tile]
        for p in range(n_prefixes):
            same = 0
            if p > 0:
                # Candidates are sorted: the intersections of the items that this prefix shares with
                # the previous one are still stored.
                while same < depth and prefix[p, same] == prefix[p - 1, same]:
                    same += 1
            for level in range(same, depth):
                item_bits, level_bits = bits[prefix[p, level]], prefix_bits[level]
                if level == 0:
                    copy_values(level_bits, item_bits)
                else:
                    before = prefix_bits[level - 1]
                    for w in range(width):
                        level_bits[w] = before[w] & item_bits[w]
            top = prefix_bits[depth - 1]
            n_live = 0
            for w in range(width):
                # Without a branch: an index with no common row is overwritten by the next one.
                live[n_live] = w
                live_words[n_live] = top[w]
                n_live += top[w] != 0
            if n_live == 0:
                continue
            # Most words are nonzero: reading all of them, vector by vector, beats a gather.
            if n_live * _DENSE_WORD_SHARE > width:
                for c in range(bounds[p], bounds[p + 1]):
                    item_bits, support = bits[last[c]], np.uint64(0)
                    for w in range(width):
                        support += _count_ones(top[w] & item_bits[w])
                    out[c] += support
            else:
                for c in range(bounds[p], bounds[p + 1]):
                    item_bits, support = bits[last[c]], np.uint64(0)
                    for w in range(n_live):
                        support += _count_ones(live_words[w] & item_bits[live[w]])
                    out[c] += support


# --- pairs ------------------------------------------------------------------------------------


@_exact
def count_row_pairs(indptr: Any, indices: Any, bought: Any, rows: Any, rank: Any) -> float:
    """Return the number of pairs of items in all rows, with repetitions; see `pack_csr_rows`."""
    total = 0.0
    for i in rows:
        n_items = 0
        for e in range(indptr[i], indptr[i + 1]):
            n_items += bought[e] and rank[indices[e]] >= 0
        total += n_items * (n_items - 1) / 2
    return total


@_exact
def count_pairs(
    indptr: Any, indices: Any, bought: Any, rows: Any, rank: Any, first: int, end: int, m: int,
    out: Any,
) -> None:  # fmt: skip
    """Add to `out` the number of rows that contain each pair of items, row by row."""
    row_items = np.empty(m, np.int64)
    begins = np.empty(m, np.int64)
    offset = 0
    for j in range(first, end):
        # Where the pairs (j, j + 1), (j, j + 2)... of the upper triangle begin.
        begins[j] = offset - j - 1
        offset += m - 1 - j
    for i in rows:
        n = 0
        for e in range(indptr[i], indptr[i + 1]):
            j = rank[indices[e]]
            if bought[e] and j >= 0:
                row_items[n] = j
                n += 1
        for a in range(n):
            j = row_items[a]
            if first <= j < end:
                pair_offset = begins[j]
                for b in range(a + 1, n):
                    out[pair_offset + row_items[b]] += 1.0


# --- candidates -------------------------------------------------------------------------------


@_exact
def join_frequent_sets(sets: Any, max_candidates: int) -> Any:
    """Return the candidates of the next length whose subsets are all frequent (Apriori's join)."""
    n, k = sets.shape
    # Pairs of sets with a common prefix bound the number of candidates.
    capacity = 0
    start = 0
    while start < n:
        stop = _end_of_prefix(sets, start)
        capacity += (stop - start) * (stop - start - 1) // 2
        start = stop
    last = np.empty(min(capacity, max_candidates + 1), np.int32)
    prefix_sets, bounds = np.empty(n, np.int64), np.empty(n + 1, np.int64)
    cursors, ends = np.empty(k - 1, np.int64), np.empty(k - 1, np.int64)
    n_prefixes = n_candidates = 0
    start = 0
    while start < n and n_candidates <= max_candidates:
        stop = _end_of_prefix(sets, start)
        # Apriori's join and prune (Agrawal and Srikant, VLDB 1994): sets a < b that differ in their
        # last item make a candidate; it stays if all other subsets are frequent.
        for a in range(start, stop):
            first_candidate = n_candidates
            # Sets that begin like set `a` without one of its items: if one of them ends with b's
            # last item, that subset of the candidate is frequent.
            for q in range(k - 1):
                cursors[q], ends[q] = _subset_bounds(sets, a, q)
            for b in range(a + 1, stop):
                item = sets[b, k - 1]
                all_frequent = True
                for q in range(k - 1):
                    while cursors[q] < ends[q] and sets[cursors[q], k - 1] < item:
                        cursors[q] += 1
                    if cursors[q] == ends[q] or sets[cursors[q], k - 1] != item:
                        all_frequent = False
                        break
                if all_frequent and n_candidates <= max_candidates:
                    last[n_candidates] = item
                    n_candidates += 1
            if n_candidates > first_candidate:
                prefix_sets[n_prefixes], bounds[n_prefixes] = a, first_candidate
                n_prefixes += 1
        start = stop
    bounds[n_prefixes] = n_candidates
    return (
        prefix_sets[:n_prefixes].copy(),
        bounds[: n_prefixes + 1].copy(),
        last[:n_candidates].copy(),
    )


@_inside
def _end_of_prefix(sets: Any, start: int) -> int:
    """Return the end of the run of sets that differ from one only in the last item."""
    n, k = sets.shape
    stop = start + 1
    while stop < n:
        for j in range(k - 1):
            if sets[stop, j] != sets[start, j]:
                return stop
        stop += 1
    return stop


@_inside
def _subset_bounds(sets: Any, a: int, q: int) -> Any:
    """Return the bounds of the sets that begin with set `a` without its item number `q`."""
    first = _count_sets_below(sets, a, q, False)
    return first, _count_sets_below(sets, a, q, True)


@_inside
def _count_sets_below(sets: Any, a: int, q: int, also: bool) -> int:
    """Return how many sets sort before those of `_subset_bounds`; with `also`, include these."""
    n, k = sets.shape
    low, high = 0, n
    while low < high:
        # Binary search: sets are sorted, and compared by their first k - 1 items.
        middle = (low + high) >> 1
        order = 0
        for j in range(k - 1):
            item = sets[a, j if j < q else j + 1]
            if sets[middle, j] != item:
                order = -1 if sets[middle, j] < item else 1
                break
        if order < 0 or (order == 0 and also):
            low = middle + 1
        else:
            high = middle
    return low
