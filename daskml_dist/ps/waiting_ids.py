"""Ids that were seen but have no row of a table yet, with their sightings.

Counts are exact: a hash index takes 21 to 43 bytes per waiting id, and an id that is not seen for
long is dropped, so memory depends on the ids in a window of steps and not on the whole stream. (A
sketch of counts, such as count-min by Cormode and Muthukrishnan, takes a third of that if one id in
a hundred may get its row too early. Two servers would then make other errors than one.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from daskml_dist.ps.id_index import IdIndex, Ids, as_plain_ids, load_kernels

#: Previous sightings of ids before a change: ids, and combined numbers of step and count.
SightingLog = list[tuple[Ids, Ids]]


class WaitingIds:
    """Sightings by id; one number combines the step of the last sighting and the count.

    Parameters
    ----------
    admit_after : int
    max_ids : int or None
        Most ids that may wait; beyond it, only the half that was seen last is kept.

    Attributes
    ----------
    floor : int
        No waiting id had its last sighting before this step.
    """

    def __init__(self, admit_after: int, max_ids: int | None) -> None:
        self.floor = 0
        self._admit_after, self._max_ids = admit_after, max_ids
        self._index = IdIndex()
        #: Log of sightings needed to go back to a mark, and the mark's step.
        self._log: SightingLog | None = None
        self._log_step = -1

    @property
    def n(self) -> int:
        """Return the number of ids."""
        return self._index.n

    def contains(self, ids: Ids) -> NDArray[np.bool_]:
        """Return which ids are waiting."""
        is_waiting: NDArray[np.bool_] = self._index.find(as_plain_ids(ids))[0] >= 0
        return is_waiting

    def count(self, ids: Ids, step: int) -> NDArray[np.bool_]:
        """Count a sighting of each id; return which ids have now been seen `admit_after` times."""
        is_due, old_sightings = np.empty(len(ids), np.bool_), np.empty(len(ids), np.int64)
        self._index.reserve(self.n + len(ids))
        self._index.n += load_kernels().count_sightings(
            self._index.table, ids, step, self._admit_after, is_due, old_sightings
        )
        self._note(ids, old_sightings)
        if self._max_ids is not None and self.n > self._max_ids:
            self.expire(self._find_younger_half())
        return is_due

    def _find_younger_half(self) -> int:
        """Return the step such that about half of the most waiting ids were seen since."""
        steps = self._index.items()[1] >> load_kernels().COUNT_BITS
        assert self._max_ids is not None
        position = len(steps) - max(self._max_ids // 2, 1)
        return int(np.partition(steps, position)[position])

    def remove(self, ids: Ids) -> None:
        """Remove ids; ids that do not wait are ignored."""
        if not self.n:
            return
        if self._log is not None:
            self._note(ids, self._index.find(ids)[0])
        self._index.remove(ids)

    def expire(self, bound: int) -> None:
        """Drop ids whose last sighting is before step `bound`."""
        if bound <= self.floor:
            return
        self.floor = bound
        if not self.n:
            return
        bits = load_kernels().COUNT_BITS
        kept_items = self._index.items(bound << bits)
        if len(kept_items[0]) < self.n:
            if self._log is not None:
                self._note(*self._index.items(0, min(bound, self._log_step + 1) << bits))
            self._index.keep(*kept_items)

    def since(self, step: int) -> tuple[Ids, Ids]:
        """Return the ids whose last sighting is after a step, and their sightings."""
        return self._index.items((step + 1) << load_kernels().COUNT_BITS)

    def take_over(self, ids: Ids, sightings: Ids, floor: int) -> None:
        """Add ids that do not wait here, with the sightings of another store."""
        self._index.insert(as_plain_ids(ids), as_plain_ids(sightings))
        self.expire(floor)

    # -- marks -----------------------------------------------------------------------------------

    # Going back to a mark removes all ids last seen after it, so these need no log. Most ids of a
    # stream come and go between two marks; a mark costs at most a copy of the ids that waited at
    # it.

    def log_to(self, log: SightingLog | None, step: int) -> None:
        """Log changes of sightings up to a mark's step from now on; None stops logging."""
        self._log, self._log_step = log, step

    def _note(self, ids: Ids, old_sightings: Ids) -> None:
        """Log sightings that are about to change, unless they are later than the mark."""
        if self._log is None:
            return
        is_logged = (old_sightings >= 0) & (
            old_sightings >> load_kernels().COUNT_BITS <= self._log_step
        )
        if is_logged.any():
            self._log.append((ids[is_logged], old_sightings[is_logged]))

    def go_back(self, log: SightingLog, step: int, floor: int) -> None:
        """Restore the sightings of a mark, from its step and its log."""
        bound = (step + 1) << load_kernels().COUNT_BITS
        self._index.keep(*self._index.items(0, bound))
        for ids, old_sightings in log:
            self._index.insert(ids, old_sightings)
        self.floor = floor
