"""Hash index from 64-bit ids to integers, using compiled loops.

Importing this module does not load numba; the first search does.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

#: Places of an empty index. As it grows it is between 3/8 and 3/4 full; a search then visits 2.5
#: places on average, which mostly lie in one cache line (of 4).
_FIRST_PLACES = 1 << 8
#: Entries that array operations without a compiled loop process at a time, so that their temporary
#: arrays stay small compared to a large table.
_BLOCK_ENTRIES = 1 << 20
_NOTHING: Ids = np.empty(0, np.int64)
#: Larger than any number in the index.
_LARGEST_INT64 = np.iinfo(np.int64).max


def load_kernels() -> ModuleType:
    """Return the module of compiled loops; this loads numba."""
    from daskml_dist.backends import row_store_kernels

    return row_store_kernels


def as_plain_ids(ids: Ids) -> Ids:
    """Return ids as the one kind of array for which the loops are compiled."""
    return np.require(ids, np.int64, ["C", "A", "W"])


class IdIndex:
    """Hash table from ids to integers, at most three quarters full."""

    def __init__(self) -> None:
        self.table = np.full((_FIRST_PLACES, 2), -1, np.int64)
        self.n = 0

    def reserve(self, n: int) -> None:
        """Make room for `n` ids in total."""
        n_places = len(self.table)
        while 4 * n > 3 * n_places:
            n_places *= 2
        if n_places > len(self.table):
            old_table, self.table = self.table, np.full((n_places, 2), -1, np.int64)
            # Neighbours stay close: a new home place is the old one, or that plus the old size.
            for start in range(0, len(old_table), _BLOCK_ENTRIES):
                part = old_table[start : start + _BLOCK_ENTRIES]
                self._enter(part[part[:, 0] >= 0])

    def insert(self, ids: Ids, values: Ids) -> None:
        """Add ids that are not in the table."""
        self.reserve(self.n + len(ids))
        load_kernels().insert_ids(self.table, ids, values)
        self.n += len(ids)

    def _enter(self, entries: Ids) -> None:
        """Add entries of the old table."""
        ids, numbers = entries.T.copy()
        load_kernels().insert_ids(self.table, ids, numbers)

    def remove(self, ids: Ids) -> None:
        """Remove ids; ids that are not in the table are ignored."""
        self.n -= load_kernels().remove_ids(self.table, ids)

    def find(self, ids: Ids, touched: Ids = _NOTHING, step: int = -1) -> tuple[Ids, int]:
        """Return the number of each id, or -1, and how many ids are missing; see `find_slots`."""
        numbers = np.empty(len(ids), np.int64)
        return numbers, load_kernels().find_slots(self.table, ids, touched, step, numbers)

    def items(self, least: int = 0, bound: int = _LARGEST_INT64) -> tuple[Ids, Ids]:
        """Return the ids whose numbers are from `least` to below `bound`, and these numbers."""
        ids, numbers = np.empty(self.n, np.int64), np.empty(self.n, np.int64)
        n = load_kernels().collect_entries(self.table, least, bound, ids, numbers)
        return ids[:n], numbers[:n]

    def keep(self, ids: Ids, values: Ids) -> None:
        """Replace the content by these ids and numbers, without new memory."""
        self.table.fill(-1)
        load_kernels().insert_ids(self.table, ids, values)
        self.n = len(ids)
