"""Ids that were seen and have no row of a table yet, with their sightings.

Counts are exact: a hash index has 21 to 43 bytes an id that waits, and an id that is not seen for
long waits no longer, so that memory follows the ids of a window of steps and not of a stream. (A
sketch of counts, such as count-min by Cormode and Muthukrishnan, takes a third of that where one id
in a hundred may get its row too early, and two servers would err otherwise than one.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from daskml_dist.ps.id_index import IdIndex, Ids, as_plain_ids, load_kernels

#: Sightings of ids as they were before a change: ids, and numbers of step and count.
SightingLog = list[tuple[Ids, Ids]]


class WaitingIds:
    """Sightings by id, each one number of the last sighting's step and the count.

    Parameters
    ----------
    admit_after : int
    most : int or None
        Ids that wait at most: beyond it the half that was seen last stays.

    Attributes
    ----------
    floor : int
        Step before which no id was seen last that still waits.
    """

    def __init__(self, admit_after: int, most: int | None) -> None:
        self.floor = 0
        self._admit_after, self._most = admit_after, most
        self._index = IdIndex()
        #: Where sightings that a mark must give back are noted, and the mark's step.
        self._log: SightingLog | None = None
        self._log_step = -1

    @property
    def n(self) -> int:
        """Return the number of ids."""
        return self._index.n

    def contains(self, ids: Ids) -> NDArray[np.bool_]:
        """Return which ids wait."""
        found: NDArray[np.bool_] = self._index.find(as_plain_ids(ids))[0] >= 0
        return found

    def count(self, ids: Ids, step: int) -> NDArray[np.bool_]:
        """Count a sighting of each id; return for which it was number `admit_after` or later."""
        due, before = np.empty(len(ids), np.bool_), np.empty(len(ids), np.int64)
        self._index.reserve(self.n + len(ids))
        self._index.n += load_kernels().count_sightings(
            self._index.table, ids, step, self._admit_after, due, before
        )
        self._note(ids, before)
        if self._most is not None and self.n > self._most:
            self.expire(self._find_younger_half())
        return due

    def _find_younger_half(self) -> int:
        """Return the step since which half as many ids as may wait, or a few more, were seen."""
        steps = self._index.items()[1] >> load_kernels().COUNT_BITS
        assert self._most is not None
        at = len(steps) - max(self._most // 2, 1)
        return int(np.partition(steps, at)[at])

    def remove(self, ids: Ids) -> None:
        """Remove ids, some of which may not wait."""
        if not self.n:
            return
        if self._log is not None:
            self._note(ids, self._index.find(ids)[0])
        self._index.remove(ids)

    def expire(self, bound: int) -> None:
        """Drop ids that were not seen since a step."""
        if bound <= self.floor:
            return
        self.floor = bound
        if not self.n:
            return
        bits = load_kernels().COUNT_BITS
        kept = self._index.items(bound << bits)
        if len(kept[0]) < self.n:
            if self._log is not None:
                self._note(*self._index.items(0, min(bound, self._log_step + 1) << bits))
            self._index.keep(*kept)

    def since(self, step: int) -> tuple[Ids, Ids]:
        """Return the ids that were seen after a step, and their sightings."""
        return self._index.items((step + 1) << load_kernels().COUNT_BITS)

    def take_over(self, ids: Ids, sightings: Ids, floor: int) -> None:
        """Add ids that do not wait here, as another store tells of them."""
        self._index.insert(as_plain_ids(ids), as_plain_ids(sightings))
        self.expire(floor)

    # -- marks -----------------------------------------------------------------------------------

    # To go back to a mark, ids that were last seen after it need no note: they go. Most ids of a
    # stream come and go between two marks, so a mark costs a copy of what waited then at most.

    def log_to(self, log: SightingLog | None, step: int) -> None:
        """Note from now on what changes of the sightings up to a step, of a mark; None: nothing."""
        self._log, self._log_step = log, step

    def _note(self, ids: Ids, before: Ids) -> None:
        """Note sightings that are about to change, unless the mark knows nothing of them."""
        if self._log is None:
            return
        known = (before >= 0) & (before >> load_kernels().COUNT_BITS <= self._log_step)
        if known.any():
            self._log.append((ids[known], before[known]))

    def go_back(self, log: SightingLog, step: int, floor: int) -> None:
        """Take up the sightings of a mark, from its step and what was noted since."""
        bound = (step + 1) << load_kernels().COUNT_BITS
        self._index.keep(*self._index.items(0, bound))
        for changed, before in log:
            self._index.insert(changed, before)
        self.floor = floor
