"""Storage of a growing embedding table within a shard: rows by 64-bit ids that come and go.

A row lies in a slot of arrays that double when they are full, and a hash index leads from its id to
the slot. An id gets a row at its n-th sighting; a row that no step has touched for long goes, and
the oldest rows go where there is no room. Initial values follow from seed, id and column alone:
they are the same in every shard, on every machine and in any order of arrival, and an id without a
row can be read. Equal calls make equal bits.

Importing this module loads no numba; the first store does.
"""

from __future__ import annotations

import math
import mmap
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.id_hashing import find_fields
from daskml_dist.errors import InvalidDataError, InvalidParameterError, MessageError, TrainingError
from daskml_dist.models.base import MOST_SIGHTINGS, MOST_STEPS
from daskml_dist.ps.growing_array import GrowingArray
from daskml_dist.ps.id_index import IdIndex, Ids, as_plain_ids, load_kernels
from daskml_dist.ps.waiting_ids import SightingLog, WaitingIds

#: Dtypes in which rows are computed, and those in which they may be stored in their place.
_DTYPES, _HALF_DTYPES = ("float32", "float64"), ("float16", "bfloat16")
#: Rows for which a store has room at first; it doubles from there.
_FIRST_CAPACITY = 1 << 10
#: Times the rows of a growing array for which memory is reserved: it is copied at each third
#: doubling alone, which would take longer than all else that makes rows.
_RESERVED_GROWTH = 8
#: Entries that array operations without a compiled loop take at once, so that their temporary
#: arrays stay small beside a large table.
_BLOCK_ENTRIES = 1 << 20
#: Share of all rows that are evicted at once: finding the oldest looks at every row, which rows
#: that are made later then need not pay for.
_EVICTED_SHARE = 1 / 16
#: Removed ids that are remembered at least, for changes since a step; more where the table is
#: larger.
_MIN_LOGGED_IDS = 1 << 16
#: Bytes of mapped files that may be in memory whatever the bound: letting go of them more often
#: would take longer than the steps.
_LEAST_MAPPED_BYTES = 1 << 28
#: Ids that may wait for each row of a table whose size is bounded.
_WAITING_PER_ROW = 4


@dataclass(frozen=True)
class RowStoreSettings:
    """Settings of a store of rows.

    Parameters
    ----------
    width : int
        Entries of a row.
    state_widths : dict of str to int
        Arrays of the optimizer's state by name: entries of a row (`width`, or 1 for a state of
        whole rows).
    dtype : {"float32", "float64"}
        Of the rows that are given out, and of the state.
    seed : int
    scale : float or tuple of float of length `width`
        Standard deviation of the normal initial values; one for each column, where they differ: a
        column of 0 begins at 0.
    state_start : dict of str to float
        Initial value of each array of the state; 0 where it is not named.
    admit_after : int
        Sighting at which an id gets its row.
    expire_after : int, optional
        Steps without a sighting after which a row goes; None: never.
    max_rows : int, optional
        Rows for which there is room; of ids that wait for one, four times as many stay at most.
    memory_bytes : int, optional
        Bytes of the arrays beyond which they lie in mapped files, the widest first; of these files
        as many bytes are in memory, or 256 MiB. (The index of the ids, 21 to 43 bytes a row, and
        waiting ids stay in memory.)
    folder : str, optional
        Where mapped files lie; None: the system's temporary folder. They have no names, so nothing
        is left of them whatever ends the process.
    evict : bool
        Whether the rows that were touched longest ago go where there is no room; else a row that
        finds none is an error.
    own_field : int, optional
        Field of ids that belong to a model and not to the data: their rows begin at 0, and are
        there from the first sighting on.
    storage : {"float32", "float64", "float16", "bfloat16"}, optional
        What rows are stored as; None: as `dtype`. Halves (of a float32 `dtype`) are rounded to
        nearest even whenever a row is written; the state is not.
    """

    width: int
    state_widths: dict[str, int]
    dtype: str
    seed: int
    scale: float | tuple[float, ...]
    state_start: dict[str, float] = field(default_factory=dict)
    admit_after: int = 1
    expire_after: int | None = None
    max_rows: int | None = None
    memory_bytes: int | None = None
    folder: str | None = None
    evict: bool = True
    own_field: int | None = None
    storage: str | None = None

    def __post_init__(self) -> None:
        for name, width in (("width", self.width), *self.state_widths.items()):
            _check_int(name, width, 1)
        _check_int("admit_after", self.admit_after, 1, MOST_SIGHTINGS)
        for name, least in (("expire_after", 1), ("max_rows", 1), ("memory_bytes", 0)):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), least)
        if self.dtype not in _DTYPES:
            raise InvalidParameterError(f"dtype must be one of {_DTYPES}; got {self.dtype!r}.")
        stored = (self.dtype, *_HALF_DTYPES) if self.dtype == "float32" else (self.dtype,)
        if self.storage is not None and self.storage not in stored:
            raise InvalidParameterError(
                f"Rows of {self.dtype} can be stored as one of {stored}; got {self.storage!r}."
            )
        scales = self.scales
        if scales.shape != (self.width,) or not (np.isfinite(scales) & (scales >= 0)).all():
            raise InvalidParameterError(
                "scale must be a finite number of at least 0, or a tuple of one for each of the "
                f"{self.width} columns; got {self.scale!r}."
            )
        if unknown := self.state_start.keys() - self.state_widths.keys():
            raise InvalidParameterError(
                f"state_start names {sorted(unknown)}, which are not in state_widths: name one of "
                f"{sorted(self.state_widths)}."
            )

    @property
    def scales(self) -> NDArray[np.float64]:
        """Return the standard deviation of each column's initial values."""
        if isinstance(self.scale, tuple):
            return np.array(self.scale, np.float64)
        return np.full(self.width, self.scale, np.float64)

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """Return the dtype of the array that holds rows; bfloat16 is held as its bits."""
        name = self.storage or self.dtype
        return np.dtype(np.uint16 if name == "bfloat16" else name)


def _check_int(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Check that a setting is a whole number within bounds."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        bound = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidParameterError(f"{name} must be a whole number {bound}; got {value!r}.")


@dataclass(frozen=True)
class RowChanges:
    """Changes of a store of rows after a step, or its whole content.

    Parameters
    ----------
    since : int
        Step after which it happened; -1: this is the whole content.
    step : int
        Last step of the store that it comes from.
    ids, touched : ndarray of int64 of shape (n,)
        Rows that were touched, in no order, and the step that touched each last.
    w : ndarray of shape (n, width)
        These rows as they are stored.
    state : dict of str to ndarray
    removed : ndarray of int64
        Ids whose rows are gone and that do not wait, some of them perhaps before.
    waiting_ids, waiting_sightings : ndarray of int64
        Ids that were seen and have no row; step of the last sighting and count, in one number.
    waiting_floor : int
        Ids that were seen before this step alone wait no longer.
    n_expired, n_evicted, n_refused : int
        Totals.
    """

    since: int
    step: int
    ids: Ids
    touched: Ids
    w: NDArray[Any]
    state: dict[str, NDArray[Any]]
    removed: Ids
    waiting_ids: Ids
    waiting_sightings: Ids
    waiting_floor: int
    n_expired: int
    n_evicted: int
    n_refused: int


@dataclass
class _Epoch:
    """Log of what was there before each change since a mark, in the order of the changes.

    Parameters
    ----------
    place : int
        Name of the mark.
    step : int
        Last step of an update before it.
    counts : tuple of int
        Floor of what waits, and totals of rows that have gone, at the mark.
    entries : list of tuple
        Kind, ids, and what there was before: of ``"rows"`` steps, rows and state; of ``"made"``
        nothing.
    sightings : list of tuple
        Of ids that wait.
    """

    place: int
    step: int
    counts: tuple[int, int, int, int]
    entries: list[tuple[str, Ids, Any]] = field(default_factory=list)
    sightings: SightingLog = field(default_factory=list)


class RowStore:
    """Rows of a growing table by id, with their optimizer state.

    Not thread-safe: the server that holds it guards it.

    Parameters
    ----------
    settings : RowStoreSettings

    Attributes
    ----------
    w : ndarray of shape (capacity, width)
        Rows by slot, as they are stored. This and the other arrays are replaced where the store
        grows.
    state : dict of str to ndarray of shape (capacity, state width)
    ids, touched : ndarray of int64 of shape (capacity,)
        Id of each slot, and the step that touched its row last; -1 where a slot is free.
    n_grown : int
        Times that the arrays were replaced.
    n_expired, n_evicted, n_refused : int
        Rows that have expired, and were evicted, so far; sightings that found no room for a row.
    """

    def __init__(self, settings: RowStoreSettings) -> None:
        self.settings = settings
        self.n_grown = 0
        self._seed = _hash_seed(settings.seed)
        self._clear()

    def _clear(self) -> None:
        """Make the store empty."""
        settings = self.settings
        self._arrays = {
            "w": GrowingArray(settings.width, settings.stored_dtype, True),
            "ids": GrowingArray(1, np.int64, False),
            "touched": GrowingArray(1, np.int64, False),
        }
        self._state_arrays = {
            name: GrowingArray(width, settings.dtype, True)
            for name, width in settings.state_widths.items()
        }
        most = None if settings.max_rows is None else _WAITING_PER_ROW * settings.max_rows
        self._index, self._waiting = IdIndex(), WaitingIds(settings.admit_after, most)
        #: Slots that were given back, the next one last; those from `_n_used` on were never used.
        self._free: Ids = np.empty(0, np.int64)
        self._n_used = 0
        #: Last step of an update; steps do not fall.
        self._step = -1
        #: Step and ids of removals, and the step since which all of them are logged.
        self._removals: deque[tuple[int, Ids]] = deque()
        self._n_logged, self._logged_since = 0, 0
        self.n_expired = self.n_evicted = self.n_refused = 0
        #: Bytes of mapped pages that may have come into memory since they were let go.
        self._page_bytes = 0
        #: Marks that the store can go back to, and what has changed since each.
        self._epochs: deque[_Epoch] = deque()
        self._take_views()

    def _take_views(self) -> None:
        """Take over arrays that have been replaced."""
        self.w = self._arrays["w"].values
        self.ids: Ids = self._arrays["ids"].values[:, 0]
        self.touched: Ids = self._arrays["touched"].values[:, 0]
        self.state = {name: array.values for name, array in self._state_arrays.items()}

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return self._index.n

    @property
    def capacity(self) -> int:
        """Return the number of slots."""
        return len(self.ids)

    @property
    def n_waiting(self) -> int:
        """Return the number of ids that were seen and have no row yet."""
        return self._waiting.n

    # -- reading ---------------------------------------------------------------------------------

    def find(self, ids: Ids) -> Ids:
        """Return the slot of each id; -1 where it has no row."""
        return self._index.find(as_plain_ids(ids), self.touched)[0]

    def read(self, ids: Ids, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the rows of sorted ids; one without a row has its initial values, and gets no row.

        Parameters
        ----------
        ids : ndarray of int64 of shape (n,)
        out : ndarray of shape (n, width), optional
            Where the rows are written.
        """
        ids = _check_ids(ids)
        self._bound_pages(len(ids))
        slots, n_missing = self._index.find(ids, self.touched)
        rows = self.gather(slots, out)
        if n_missing:
            missing = np.flatnonzero(slots < 0)
            if rows.dtype == self.w.dtype == np.float32:
                self._draw_into(ids, missing, rows)
            else:
                rows[missing] = self._draw(ids[missing])
        return rows

    def _bound_pages(self, n_rows: int) -> None:
        """Let go of mapped pages before those of some more rows could take too much memory.

        Pages of a mapped file that are in memory count as a process's own where its size is
        watched, as Dask's nannies do.
        """
        arrays = [*self._arrays.values(), *self._state_arrays.values()]
        mapped = [array for array in arrays if array.is_mapped]
        # At worst each row lies in a page of its own.
        self._page_bytes += n_rows * len(mapped) * mmap.PAGESIZE
        if self._page_bytes > max(self.settings.memory_bytes or 0, _LEAST_MAPPED_BYTES):
            self._page_bytes = 0
            for array in mapped:
                array.release_pages()

    def gather(self, slots: Ids, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the rows of slots in the dtype of the settings; zeros where a slot is negative."""
        if self.settings.stored_dtype == self.settings.dtype:
            return _gather(self.w, slots, out)
        rows = self._decode(_gather(self.w, slots))
        if out is None:
            return rows
        _check_rows(out, rows.shape, rows.dtype)
        out[...] = rows
        return out

    def scatter(self, slots: Ids, rows: NDArray[Any]) -> None:
        """Write rows into their slots, rounded to what they are stored as; none where negative."""
        _scatter(self.w, slots, self._encode(np.asarray(rows, self.settings.dtype)))

    def gather_state(self, slots: Ids) -> dict[str, NDArray[Any]]:
        """Return the optimizer state of the rows of slots; zeros where a slot is negative."""
        return {name: _gather(array, slots) for name, array in self.state.items()}

    def scatter_state(self, slots: Ids, state: Mapping[str, NDArray[Any]]) -> None:
        """Write the optimizer state of the rows of slots; none where a slot is negative."""
        for name, rows in state.items():
            _scatter(self.state[name], slots, np.asarray(rows, self.settings.dtype))

    def blocks(self, n: int) -> Iterator[tuple[Ids, NDArray[Any]]]:
        """Yield all ids, sorted, and their rows, `n` at a time."""
        slots = self.sorted_slots()
        for start in range(0, len(slots), n):
            part = slots[start : start + n]
            yield self.ids[part], self.gather(part)

    def sorted_slots(self) -> Ids:
        """Return the slots of all rows, in the order of their ids."""
        slots = self._live_slots()
        return slots[np.argsort(self.ids[slots])]

    def _live_slots(self) -> Ids:
        """Return the slots of all rows."""
        return self._find_touched(0, None)

    def _find_touched(self, least: int, bound: int | None) -> Ids:
        """Return the slots of rows that a step from `least` on, and below `bound`, touched last."""
        found = [np.empty(0, np.int64)]
        for start in range(0, self._n_used, _BLOCK_ENTRIES):
            touched = self.touched[start : min(start + _BLOCK_ENTRIES, self._n_used)]
            chosen = touched >= max(least, 0)  # free slots hold -1
            if bound is not None:
                chosen &= touched < bound
            found.append(start + np.flatnonzero(chosen))
        return np.concatenate(found)

    # -- initial values and storage --------------------------------------------------------------

    def _draw_into(self, ids: Ids, places: Ids, rows: NDArray[Any]) -> None:
        """Write the initial values of the ids at some places into the rows of these places."""
        load_kernels().draw_rows(ids, places, self._seed, self.settings.scales, rows)
        if self.settings.own_field is not None:
            rows[places[self._find_own(ids[places])]] = 0

    def _draw(self, ids: Ids) -> NDArray[Any]:
        """Return the initial values of ids, rounded to what rows are stored as."""
        rows = np.empty((len(ids), self.settings.width), np.float32)
        self._draw_into(ids, np.arange(len(ids)), rows)
        return self._decode(self._encode(rows.astype(self.settings.dtype, copy=False)))

    def _find_own(self, ids: Ids) -> NDArray[np.bool_]:
        """Return which ids belong to a model."""
        own_field = self.settings.own_field
        if own_field is None:
            return np.zeros(len(ids), np.bool_)
        found: NDArray[np.bool_] = find_fields(ids) == own_field
        return found

    def _encode(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return rows as they are stored."""
        if self.settings.storage == "bfloat16":
            return _round_to_bfloat16(rows)
        # Beyond float16's 65504 lies infinity.
        with np.errstate(over="ignore", invalid="ignore"):
            return rows.astype(self.settings.stored_dtype, copy=False)

    def _decode(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return stored rows in the dtype of the settings."""
        if self.settings.storage == "bfloat16":
            return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return stored.astype(self.settings.dtype, copy=False)

    # -- updates ---------------------------------------------------------------------------------

    def slots_for_update(self, ids: Ids, step: int) -> Ids:
        """Return the slot of each sorted id, whose row step number `step` is about to change.

        Ids without a row are counted as seen. One that was seen often enough gets a row with
        initial values and state, the lowest ids first where not all find room.

        Parameters
        ----------
        ids : ndarray of int64 of shape (n,)
        step : int
            No less than in the call before.

        Returns
        -------
        ndarray of int64 of shape (n,)
            -1 where an id has no row, yet or for lack of room.
        """
        ids = _check_ids(ids)
        if not max(self._step, 0) <= step <= MOST_STEPS:
            raise InvalidParameterError(
                f"The step of a row store cannot decrease: give {max(self._step, 0)} or more; "
                f"got {step}."
            )
        self._step = step = int(step)
        self._bound_pages(len(ids))
        if self._epochs:
            slots, n_missing = self._index.find(ids, self.touched)
            self._touch(slots[slots >= 0], step)
        else:
            slots, n_missing = self._index.find(ids, self.touched, step)
        if not n_missing:
            return slots
        places = np.flatnonzero(slots < 0)
        if self.settings.admit_after > 1:
            places = places[self._find_due(ids[places], step)]
            if not len(places):
                return slots
        n = self._make_room(len(places), step)
        self.n_refused += len(places) - n
        places = places[:n]
        slots[places] = self._make_rows(ids[places], step)
        return slots

    def _touch(self, slots: Ids, step: int) -> None:
        """Note the step that touches rows; those that none has since the last mark are logged."""
        first = slots[self.touched[slots] <= self._epochs[-1].step]
        self._log_rows(first)
        self.touched[slots] = step

    def _find_due(self, ids: Ids, step: int) -> NDArray[np.bool_]:
        """Return which ids without a row are due for one, at this sighting."""
        due = self._find_own(ids)
        due[~due] = self._waiting.count(ids[~due], step)
        return due

    def _make_rows(self, ids: Ids, step: int) -> Ids:
        """Make rows of ids that have none; return their slots."""
        slots = self._take_slots(len(ids))
        self._log_made(ids)
        self._index.insert(ids, slots)
        self.ids[slots] = ids
        self.touched[slots] = step
        for name, array in self.state.items():
            array[slots] = self.settings.state_start.get(name, 0.0)
        if self.w.dtype == np.float32:
            # Written where they stay.
            self._draw_into(self.ids, slots, self.w)
        else:
            self.scatter(slots, self._draw(ids))
        self._waiting.remove(ids)
        return slots

    def _take_slots(self, n: int) -> Ids:
        """Return free slots; the store grows where there are too few."""
        if self.n_rows + n > self.capacity:
            self._grow(self.n_rows + n)
        n_reused = min(n, len(self._free))
        kept = len(self._free) - n_reused
        reused, self._free = self._free[kept:], self._free[:kept]
        fresh = np.arange(self._n_used, self._n_used + n - n_reused)
        self._n_used += len(fresh)
        return np.concatenate([reused, fresh])

    def _grow(self, n_rows: int) -> None:
        """Make room for a number of rows, by doubling."""
        settings, before = self.settings, self.capacity
        capacity = max(before, _FIRST_CAPACITY)
        while capacity < n_rows:
            capacity *= 2
        if settings.max_rows is not None:
            capacity = max(min(capacity, settings.max_rows), n_rows)
        arrays = [*self._arrays.values(), *self._state_arrays.values()]
        reserved = min(settings.max_rows or math.inf, _RESERVED_GROWTH * capacity)
        # Narrow arrays stay in memory longest: they are written as often as wide ones, and in a
        # file each row that is written costs a page. What lies in a file stays there, since
        # capacities only grow.
        arrays.sort(key=lambda array: array.row_bytes)
        n_bytes = list(accumulate(capacity * array.row_bytes for array in arrays))
        most = math.inf if settings.memory_bytes is None else settings.memory_bytes
        try:
            rooms = [
                array.extend(capacity, int(reserved) if total <= most else 0, settings.folder)
                for array, total in zip(arrays, n_bytes, strict=True)
            ]
        except (OSError, MemoryError) as error:
            where = settings.folder or tempfile.gettempdir()
            where = "memory" if isinstance(error, MemoryError) else where
            raise TrainingError(
                f"A table of rows cannot grow from {before:,} to {capacity:,} rows "
                f"({n_bytes[-1]:,} bytes): {where} has no room ({error}). Set max_rows or "
                "expire_after, or name a folder on a larger disk and memory_bytes."
            ) from error
        # All or none: where one finds no room, the store goes on as it was.
        for array, room in zip(arrays, rooms, strict=True):
            array.take_over(room, capacity)
        self._take_views()
        self.ids[before:] = self.touched[before:] = -1
        self.n_grown += 1

    # -- removals --------------------------------------------------------------------------------

    def _make_room(self, n: int, step: int) -> int:
        """Return how many of `n` more rows have room; rows expire, then are evicted, for them."""
        most = self.settings.max_rows
        if most is None or self.n_rows + n <= most:
            return n
        self.expire(step)
        lacking = self.n_rows + n - most
        if lacking <= 0:
            return n
        if not self.settings.evict:
            raise TrainingError(
                f"{most:,} rows fit in this table (max_rows), and {lacking:,} more are wanted. "
                "Raise max_rows or admit_after, set a smaller expire_after, or set evict=True: "
                "the least recently touched rows are then removed."
            )
        self._evict(max(lacking, int(most * _EVICTED_SHARE)), step)
        return min(n, most - self.n_rows)

    def _evict(self, n: int, step: int) -> None:
        """Drop the `n` rows that were touched longest ago, lower ids first; none of this step."""
        slots = self._find_touched(0, step)
        if n < len(slots):
            touched = self.touched[slots]
            last = np.partition(touched, n - 1)[n - 1]
            older, tied = slots[touched < last], slots[touched == last]
            # By ids, since slots are not the same in a store that is kept equal by changes.
            n_tied = n - len(older)
            tied = tied[np.argpartition(self.ids[tied], n_tied - 1)[:n_tied]]
            slots = np.sort(np.concatenate([older, tied]))
        self._remove(slots, step)
        self.n_evicted += len(slots)

    def expire(self, step: int) -> int:
        """Drop rows, and ids that wait, not seen for `expire_after` steps; return how many rows."""
        if self.settings.expire_after is None:
            return 0
        bound = int(step) - self.settings.expire_after
        slots = self._find_touched(0, bound)
        self._remove(slots, max(int(step), self._step))
        self.n_expired += len(slots)
        self._waiting.expire(bound)
        return len(slots)

    def _remove(self, slots: Ids, step: int) -> None:
        """Drop the rows of slots, at a step."""
        if not len(slots):
            return
        self._log_rows(slots)
        ids = self.ids[slots]
        self._index.remove(ids)
        self.ids[slots] = self.touched[slots] = -1
        self._free = np.concatenate([self._free, slots])
        self._removals.append((step, ids))
        self._n_logged += len(ids)
        while self._n_logged > max(_MIN_LOGGED_IDS, self.capacity // 2):
            forgotten, ids = self._removals.popleft()
            self._n_logged -= len(ids)
            self._logged_since = forgotten + 1

    # -- changes ---------------------------------------------------------------------------------

    def changed_since(self, step: int) -> RowChanges:
        """Return what happened after a step: rows touched, ids removed, sightings counted.

        Rows of a step must be written before changes are taken in it. Where removals since the step
        are too many to be remembered, this is the whole content.
        """
        if step < self._logged_since:
            return self.copy_all()
        slots = self._find_touched(step + 1, None)
        # Those of the step itself may have come before or after changes were last taken; where a
        # store has done them already, it does nothing.
        logged = [ids for when, ids in self._removals if when >= step]
        removed = np.unique(np.concatenate(logged)) if logged else np.empty(0, np.int64)
        # Those that came again are told of as rows, or as waiting.
        back = (self.find(removed) >= 0) | self._waiting.contains(removed)
        removed = removed[~back]
        return self._make_changes(slots, removed, int(step))

    def copy_all(self) -> RowChanges:
        """Return the whole content."""
        return self._make_changes(self._live_slots(), np.empty(0, np.int64), -1)

    def _make_changes(self, slots: Ids, removed: Ids, since: int) -> RowChanges:
        """Return the content of slots, and ids that were seen after a step, as changes."""
        self._bound_pages(len(slots))
        waiting = self._waiting.since(since)
        return RowChanges(
            since, self._step, self.ids[slots], self.touched[slots], _gather(self.w, slots),
            self.gather_state(slots), removed, *waiting, self._waiting.floor,
            self.n_expired, self.n_evicted, self.n_refused,
        )  # fmt: skip

    def apply_changes(self, changes: RowChanges) -> None:
        """Take over the changes of another store, so that this one has its content to the bit."""
        if changes.since < 0:
            self.restore(changes)
            return
        self._check_changes(changes)
        if changes.since > self._step:
            raise MessageError(
                f"Changes since step {changes.since} do not fit a store of rows at step "
                f"{self._step}: what happened between is missing. Send copy_all()."
            )
        gone = self.find(np.concatenate([changes.removed, changes.waiting_ids]))
        self._remove(np.sort(gone[gone >= 0]), changes.step)
        # An id may have got its row, and lost it again, since this store saw it wait.
        for ids in map(as_plain_ids, (changes.removed, changes.ids, changes.waiting_ids)):
            self._waiting.remove(ids)
        self._take_over(changes)

    def restore(self, changes: RowChanges) -> None:
        """Replace the content by that of `copy_all`."""
        self._check_changes(changes)
        if changes.since >= 0:
            raise MessageError(
                f"These are the changes since step {changes.since}, not the whole content of a "
                "store of rows. Give what copy_all() returned."
            )
        self._clear()
        self.n_grown += 1
        self._take_over(changes)
        # Removals before are not known; those of this very step are done here and there.
        self._logged_since = max(changes.step, 0)

    def _take_over(self, changes: RowChanges) -> None:
        """Write changed rows and what waits."""
        ids = as_plain_ids(changes.ids)
        slots, n_missing = self._index.find(ids, self.touched)
        self._log_rows(slots[slots >= 0])
        if n_missing:
            missing = np.flatnonzero(slots < 0)
            self._log_made(ids[missing])
            most = self.settings.max_rows
            if most is not None and self.n_rows + n_missing > most:
                raise MessageError(
                    f"A store of at most {most:,} rows (max_rows) cannot take over "
                    f"{self.n_rows + n_missing:,}: give both the same settings."
                )
            slots[missing] = made = self._take_slots(n_missing)
            self._index.insert(ids[missing], made)
        self.ids[slots] = ids
        self.touched[slots] = changes.touched
        _scatter(self.w, slots, changes.w)
        self.scatter_state(slots, changes.state)
        self._waiting.take_over(
            changes.waiting_ids, changes.waiting_sightings, changes.waiting_floor
        )
        self._step = changes.step
        self.n_expired, self.n_evicted = changes.n_expired, changes.n_evicted
        self.n_refused = changes.n_refused

    # -- marks -----------------------------------------------------------------------------------

    def mark(self, place: int, most: int) -> None:
        """Remember the present content under a number, to go back to; of the last `most` such.

        What changes later is copied when it first does, so that a mark itself costs nothing. Steps
        after a mark have other numbers than those before it.
        """
        last = self._epochs[-1] if self._epochs else None
        if last is not None and (last.place, last.step) == (place, self._step):
            if not (last.entries or last.sightings):
                return
        counts = self._waiting.floor, self.n_expired, self.n_evicted, self.n_refused
        self._epochs.append(_Epoch(place, self._step, counts))
        while len(self._epochs) > most:
            self._epochs.popleft()
        self._log_to_last_mark()

    def _log_to_last_mark(self) -> None:
        """Have sightings that change noted in the log of the last mark."""
        last = self._epochs[-1]
        self._waiting.log_to(last.sightings, last.step)

    @property
    def marks(self) -> list[int]:
        """Return the numbers of the marks."""
        return [epoch.place for epoch in self._epochs]

    def go_back(self, place: int) -> None:
        """Take up the content that was marked last under a number; later marks are forgotten."""
        if place not in self.marks:
            raise MessageError(
                f"A store of rows cannot go back to {place}: its marks are {self.marks}."
            )
        epochs, self._epochs = self._epochs, deque()  # what goes back is not logged
        self._waiting.log_to(None, -1)
        while True:
            epoch = epochs.pop()
            for kind, ids, before in reversed(epoch.entries):
                self._undo(kind, ids, before, epoch.step)
            self._waiting.go_back(epoch.sightings, epoch.step, epoch.counts[0])
            if epoch.place == place:
                break
        self._step = epoch.step
        _, self.n_expired, self.n_evicted, self.n_refused = epoch.counts
        epoch.entries.clear()
        epoch.sightings.clear()
        self._epochs = deque([*epochs, epoch])
        self._log_to_last_mark()

    def content_at(self, place: int) -> RowChanges:
        """Return the whole content as it was when a number was marked."""
        other = RowStore(self.settings)
        other.restore(self.copy_all())
        # Entries are not changed by going back, but their lists are.
        other._epochs = deque(
            replace(e, entries=list(e.entries), sightings=list(e.sightings)) for e in self._epochs
        )
        other.go_back(place)
        return other.copy_all()

    def _undo(self, kind: str, ids: Ids, before: Any, step: int) -> None:
        """Undo one change."""
        if kind == "made":
            self._remove(self.find(ids), step)
        else:
            slots = self.find(ids)
            missing = np.flatnonzero(slots < 0)
            slots[missing] = made = self._take_slots(len(missing))
            self._index.insert(ids[missing], made)
            touched, w, state = before
            self.ids[slots], self.touched[slots] = ids, touched
            _scatter(self.w, slots, w)
            self.scatter_state(slots, state)

    def _log_rows(self, slots: Ids) -> None:
        """Copy rows that are about to change or go."""
        if self._epochs and len(slots):
            before = self.touched[slots], _gather(self.w, slots), self.gather_state(slots)
            self._epochs[-1].entries.append(("rows", self.ids[slots], before))

    def _log_made(self, ids: Ids) -> None:
        """Note ids that are about to get a row."""
        if self._epochs and len(ids):
            self._epochs[-1].entries.append(("made", ids, None))

    def _check_changes(self, changes: RowChanges) -> None:
        """Check that changes are those of a store of the same settings."""
        n, settings = len(changes.ids), self.settings
        given = {"w": changes.w, **changes.state}
        wanted = {"w": (n, settings.width)}
        wanted |= {name: (n, width) for name, width in settings.state_widths.items()}
        dtypes = {name: settings.dtype for name in wanted} | {"w": settings.stored_dtype}
        same = {name: array.shape for name, array in given.items()} == wanted
        same = same and all(given[name].dtype == dtype for name, dtype in dtypes.items())
        waiting = changes.waiting_ids.shape == changes.waiting_sightings.shape
        plain = changes.touched.shape == (n,) and (not n or changes.ids.min() >= 0)
        if not (same and waiting and plain):
            raise MessageError(
                "These changes are of a store of rows of other widths, state or dtypes: give both "
                "stores the same settings."
            )


def _hash_seed(seed: int) -> np.uint64:
    """Return a seed of any size as 64 mixed bits."""
    words = np.random.SeedSequence(abs(seed), spawn_key=(int(seed < 0),)).generate_state(2)
    return np.uint64(int(words[0]) | int(words[1]) << 32)


def _check_ids(ids: Ids) -> Ids:
    """Return ids as an array that the compiled loops take; they must be sorted and not negative."""
    ids = np.asarray(ids)
    if ids.ndim != 1 or ids.dtype != np.int64:
        raise InvalidDataError(
            f"ids must be a one-dimensional array of int64; got {ids.dtype} of shape {ids.shape}."
        )
    ids = as_plain_ids(ids)
    if len(ids) and (ids[0] < 0 or not (ids[1:] > ids[:-1]).all()):
        raise InvalidDataError(
            "ids must be sorted, unique and not negative: pass numpy.unique(ids)."
        )
    return ids


def _as_words(rows: NDArray[Any]) -> NDArray[Any]:
    """Return rows of any dtype as whole numbers of 32 bits (or 16): moves are compiled for them."""
    plain = np.require(rows, requirements=["C", "A", "W"])
    size = plain.shape[1] * plain.dtype.itemsize
    return plain.view(np.uint16 if size % 4 else np.uint32)


def _gather(rows: NDArray[Any], slots: Ids, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return a copy of rows; zeros where a slot is negative."""
    shape = (len(slots), rows.shape[1])
    if out is None:
        out = np.empty(shape, rows.dtype)
    elif not out.flags.writeable:
        raise InvalidDataError("out must be writeable: pass an array of your own.")
    _check_rows(out, shape, rows.dtype)
    _check_slots(slots, rows)
    load_kernels().gather_rows(_as_words(rows), as_plain_ids(slots), _as_words(out))
    return out


def _scatter(rows: NDArray[Any], slots: Ids, values: NDArray[Any]) -> None:
    """Write rows into their slots."""
    values = np.ascontiguousarray(values)
    _check_rows(values, (len(slots), rows.shape[1]), rows.dtype)
    _check_slots(slots, rows)
    load_kernels().scatter_rows(_as_words(rows), as_plain_ids(slots), _as_words(values))


# The compiled loops look at no bounds.
def _check_rows(values: NDArray[Any], shape: tuple[int, ...], dtype: Any) -> None:
    """Check the shape, dtype and layout of rows that are read from or written to."""
    if values.shape != shape or values.dtype != dtype or not values.flags.c_contiguous:
        raise InvalidDataError(
            f"Rows must be a C-contiguous array of {dtype} of shape {shape}; got {values.dtype} of "
            f"shape {values.shape}."
        )


def _check_slots(slots: Ids, rows: NDArray[Any]) -> None:
    """Check that slots lie within an array."""
    if len(slots) and slots.max() >= len(rows):
        raise InvalidDataError(
            f"Slot {slots.max()} lies beyond the {len(rows)} slots of the store: take slots from "
            "find or slots_for_update."
        )


def _round_to_bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Return the bits of float32 numbers rounded to bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    upper = bits >> np.uint32(16)
    # Half of the last place that stays, less one unless that place is odd, carries where needed.
    rounded = (bits + (upper & np.uint32(1)) + np.uint32(0x7FFF)) >> np.uint32(16)
    # A carry could make infinity of what is not a number.
    return np.where(np.isnan(values), upper | np.uint32(0x40), rounded).astype(np.uint16)
