"""Compiled loops of a store of rows by id: hash index, copies of rows, and initial values.

An index is a table of pairs (id, number) of int64, whose length is a power of two, with open
addressing by linear probing (Knuth, The Art of Computer Programming, vol. 3, 6.4). Ids are stored
completely, so two ids are never confused; a free entry holds -1 twice. Each search waits for memory
once or twice, far longer than it computes: entries for the following ids are prefetched, so that
many waits overlap. Importing this module loads numba (about half a second), so it is imported at
first use.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry, compiled_inside
from daskml_dist.backends.elementary_functions import logarithm
from daskml_dist.backends.forest_kernels import hash_number
from daskml_dist.backends.intrinsics import prefetch

#: Id of a free entry, and its number.
FREE = -1
#: Lowest bits of a sighting counter: the count. The bits above hold the step of the last sighting.
COUNT_BITS = 16
#: Mask of the count's bits.
_COUNT_MASK = (1 << COUNT_BITS) - 1
#: Searches, and copies of rows, whose memory is prefetched ahead: about as many cache misses as a
#: core can have outstanding.
_SEARCHES_AHEAD, _MOVES_AHEAD = 16, 8
_PAIR_BYTES, _CACHE_LINE_BYTES = 16, 64
#: Lines of a row that are prefetched; the hardware prefetches the rest.
_MAX_LINES_AHEAD = 8

_exact = compiled_entry()
_inside = compiled_inside(error_model="numpy")


@_inside
def _fetch_place(table: Any, row_id: Any) -> None:
    """Prefetch the entry at which the search for an id begins."""
    home = hash_number(row_id) & np.uint64(len(table) - 1)
    prefetch(table.ctypes.data + np.int64(home) * _PAIR_BYTES)


@_inside
def _search(table: Any, row_id: Any) -> Any:
    """Return the position of an id, or the free entry at which its search ends."""
    last = np.uint64(len(table) - 1)
    position = hash_number(row_id) & last
    while table[position, 0] != row_id and table[position, 0] != FREE:
        position = (position + np.uint64(1)) & last
    return position


@_exact
def find_slots(table: Any, ids: Any, touched: Any, step: int, slots: Any) -> int:
    """Write the slot of each id, -1 if it has none; return how many have none.

    Parameters
    ----------
    table : ndarray of int64 of shape (n_places, 2)
    ids : ndarray of int64 of shape (n,)
    touched : ndarray of int64 of shape (capacity,)
        The step is written at the slots found, if it is not negative.
    step : int
    slots : ndarray of int64 of shape (n,)
    """
    n, n_missing = len(ids), 0
    for i in range(-_SEARCHES_AHEAD, n):
        if i + _SEARCHES_AHEAD < n:
            _fetch_place(table, ids[i + _SEARCHES_AHEAD])
        if i >= 0:
            # The number of a free entry is -1, so an absent id needs no branch.
            slot = table[_search(table, ids[i]), 1]
            slots[i] = slot
            n_missing += slot < 0
    if step < 0:
        return n_missing
    base = touched.ctypes.data
    for i in range(-_SEARCHES_AHEAD, n):
        if i + _SEARCHES_AHEAD < n:
            prefetch(base + slots[i + _SEARCHES_AHEAD] * 8)
        if i >= 0 and slots[i] >= 0:
            touched[np.uint64(slots[i])] = step
    return n_missing


@_exact
def insert_ids(table: Any, ids: Any, row_numbers: Any) -> None:
    """Insert ids that are not in the table, each with its number; there must be free entries."""
    n = len(ids)
    for i in range(-_SEARCHES_AHEAD, n):
        if i + _SEARCHES_AHEAD < n:
            _fetch_place(table, ids[i + _SEARCHES_AHEAD])
        if i >= 0:
            position = _search(table, ids[i])
            table[position, 0], table[position, 1] = ids[i], row_numbers[i]


@_exact
def collect_entries(table: Any, least: int, bound: int, ids: Any, row_numbers: Any) -> int:
    """Write the entries whose numbers are at least `least` and below `bound`; return how many.

    Parameters
    ----------
    table : ndarray of int64 of shape (n_places, 2)
    least, bound : int
    ids, row_numbers : ndarray of int64
        With space for all entries.
    """
    n = 0
    for position in range(len(table)):
        number = table[np.uint64(position), 1]
        if number >= least and number < bound:
            ids[np.uint64(n)], row_numbers[np.uint64(n)] = table[np.uint64(position), 0], number
            n += 1
    return n


@_exact
def remove_ids(table: Any, ids: Any) -> int:
    """Remove the given ids that are in the table; return how many.

    Entries after a removed one move up (Knuth's algorithm R), so that searches never pass over
    entries of removed ids, however many there were.
    """
    n, n_removed = len(ids), 0
    last, step = np.uint64(len(table) - 1), np.uint64(1)
    for i in range(-_SEARCHES_AHEAD, n):
        if i + _SEARCHES_AHEAD < n:
            _fetch_place(table, ids[i + _SEARCHES_AHEAD])
        if i < 0:
            continue
        hole = _search(table, ids[i])
        if table[hole, 0] == FREE:
            continue
        n_removed += 1
        position = hole
        while True:
            position = (position + step) & last
            if table[position, 0] == FREE:
                break
            # An entry may fill the hole unless its search begins after it: it must be at least as
            # far from its home as from the hole.
            home = hash_number(table[position, 0]) & last
            if ((position - home) & last) >= ((position - hole) & last):
                table[hole, 0], table[hole, 1] = table[position, 0], table[position, 1]
                hole = position
        table[hole, 0], table[hole, 1] = FREE, FREE
    return n_removed


@_exact
def count_sightings(
    table: Any, ids: Any, step: int, admit_after: int, due: Any, previous_values: Any
) -> int:
    """Count a sighting of each id in a table of counts; return how many ids are new.

    Parameters
    ----------
    table : ndarray of int64 of shape (n_places, 2)
        With free entries for all ids. Its numbers are the step of the last sighting and the count,
        ``step << COUNT_BITS | count``.
    ids : ndarray of int64 of shape (n,)
    step : int
    admit_after : int
        At least 2. The count of an id stops one below, so that an id for whose row there is no
        space is due again at its next sighting.
    due : ndarray of bool of shape (n,)
        Set if this was sighting number `admit_after`, or a later one.
    previous_values : ndarray of int64 of shape (n,)
        The previous numbers; -1 for a new id.
    """
    n, n_new = len(ids), 0
    for i in range(-_SEARCHES_AHEAD, n):
        if i + _SEARCHES_AHEAD < n:
            _fetch_place(table, ids[i + _SEARCHES_AHEAD])
        if i < 0:
            continue
        position, count = _search(table, ids[i]), 1
        previous_values[i] = table[position, 1]
        if table[position, 0] == FREE:
            table[position, 0] = ids[i]
            n_new += 1
        else:
            count += table[position, 1] & _COUNT_MASK
        due[i] = count >= admit_after
        table[position, 1] = (step << COUNT_BITS) | min(count, admit_after - 1)
    return n_new


@_inside
def _fetch_row(rows: Any, slot: Any) -> None:
    """Prefetch the first lines of a row; the slot may be negative."""
    stride = rows.strides[0]
    row_address = rows.ctypes.data + slot * stride
    for offset in range(0, min(stride, _MAX_LINES_AHEAD * _CACHE_LINE_BYTES), _CACHE_LINE_BYTES):
        prefetch(row_address + offset)


@_exact
def gather_rows(rows: Any, slots: Any, out: Any) -> None:
    """Copy the rows at slots into consecutive rows; zeros if a slot is negative."""
    n, width = out.shape
    for i in range(-_MOVES_AHEAD, n):
        if i + _MOVES_AHEAD < n:
            _fetch_row(rows, slots[i + _MOVES_AHEAD])
        if i < 0:
            continue
        slot = slots[i]
        if slot >= 0:
            for j in range(width):
                out[np.uint64(i), j] = rows[np.uint64(slot), j]
        else:
            for j in range(width):
                out[np.uint64(i), j] = 0


@_exact
def scatter_rows(rows: Any, slots: Any, values: Any) -> None:
    """Write rows to their slots; negative slots are skipped."""
    n, width = values.shape
    for i in range(-_MOVES_AHEAD, n):
        if i + _MOVES_AHEAD < n:
            _fetch_row(rows, slots[i + _MOVES_AHEAD])
        if i < 0 or slots[i] < 0:
            continue
        slot = np.uint64(slots[i])
        for j in range(width):
            rows[slot, j] = values[np.uint64(i), j]


# Coefficients of Wichura's PPND7: near the median, and in the tails.
_A0, _A1, _A2, _A3 = 3.3871327179, 50.434271938, 159.29113202, 59.109374720
_B1, _B2, _B3 = 17.895169469, 78.757757664, 67.187563600
_C0, _C1, _C2, _C3 = 1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103
_D1, _D2 = 0.73700164250, 0.12021132975
#: Distance from the median beyond which a probability is in the tails.
_CENTRE = 0.425


@_exact
def draw_rows(ids: Any, places: Any, seed: Any, scales: Any, out: Any) -> None:
    """Write initial values for the ids at some positions into the rows at these positions.

    A value depends only on seed, id and column: two columns share a word of the splitmix64 stream
    that the hash of seed and id begins (Steele, Lea and Flood, OOPSLA 2014), and half of it becomes
    a normal number by inversion (M. J. Wichura, "Algorithm AS 241: the percentage points of the
    normal distribution", Applied Statistics 37, 1988). It uses only integers and operations that
    IEEE 754 defines exactly, so it has the same bits on every machine.

    Parameters
    ----------
    ids : ndarray of int64 of shape (n,)
    places : ndarray of int64 of shape (n_places,)
    seed : uint64
        Already hashed.
    scales : ndarray of float64 of shape (width,)
        Standard deviation of each column.
    out : ndarray of float32 of shape (n, width)
    """
    width = out.shape[1]
    offset = np.empty(width + 1)
    for place in places:
        i = np.uint64(place)
        word = hash_number(seed + np.uint64(ids[i]))
        for j in range(0, width, 2):
            word += np.uint64(1)
            bits = hash_number(word)
            # Probabilities from 2**-33 to 1 - 2**-33, as their distance from 1/2.
            high, low = np.int64(bits >> np.uint64(32)), np.int64(bits & np.uint64(0xFFFFFFFF))
            offset[j] = (high + 0.5) * 2.0**-32 - 0.5
            offset[j + 1] = (low + 0.5) * 2.0**-32 - 0.5
        for j in range(width):
            # Both branches of the algorithm are computed and one is chosen: one number in seven is
            # in the tails, so the processor would often mispredict a branch.
            q = offset[j]
            r = _CENTRE * _CENTRE - q * q
            value = q * (((_A3 * r + _A2) * r + _A1) * r + _A0)
            value /= ((_B3 * r + _B2) * r + _B1) * r + 1.0
            # At the smallest probability, 2**-33, the root is 4.78: below 5, where the algorithm
            # has a third branch.
            r = math.sqrt(-logarithm(0.5 - abs(q))) - 1.6
            tail = (((_C3 * r + _C2) * r + _C1) * r + _C0) / ((_D2 * r + _D1) * r + 1.0)
            tail = -tail if q < 0 else tail
            value = tail if abs(q) > _CENTRE else value
            # Adding zero turns -0.0 into 0.0, if a scale is 0.
            out[i, j] = scales[j] * value + 0.0
