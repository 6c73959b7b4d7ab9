"""Storage of a growing embedding table within a shard: rows by 64-bit ids, created and removed.

A row occupies a slot of arrays that double when they are full; a hash index maps its id to the
slot. An id gets a row at its n-th sighting. A row that no step has touched for long is removed, and
so are the oldest rows if space runs out. Initial values depend only on seed, id and column: they
are the same in every shard, on every machine and in any order of arrival, and an id without a row
can be read. Equal calls give bit-identical results.

Importing this module does not load numba; creating the first store does.
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

#: Dtypes in which rows are computed, and smaller ones in which they may be stored.
_DTYPES, _HALF_DTYPES = ("float32", "float64"), ("float16", "bfloat16")
#: Initial number of rows for which a store has room; it doubles from there.
_FIRST_CAPACITY = 1 << 10
#: Memory is reserved for this multiple of the rows of a growing array, so that it is copied only at
#: every third doubling. Copies would otherwise take most of the time of creating rows.
_RESERVED_GROWTH = 8
#: Entries that array operations without a compiled loop process at a time, so that their temporary
#: arrays stay small compared to a large table.
_BLOCK_ENTRIES = 1 << 20
#: Share of all rows that are evicted together: finding the oldest rows scans every row, so the cost
#: is spread over many new rows.
_EVICTED_SHARE = 1 / 16
#: Fewest removed ids that are logged, to report changes since a step; more if the table is larger.
_MIN_LOGGED_IDS = 1 << 16
#: Bytes of mapped files that may always be in memory, whatever the bound: releasing pages more
#: often would take longer than the steps.
_LEAST_MAPPED_BYTES = 1 << 28
#: Ids that may wait, per row of a table whose size is bounded.
_WAITING_PER_ROW = 4


@dataclass(frozen=True)
class RowStoreSettings:
    """Settings of a row store.

    Parameters
    ----------
    width : int
        Entries of a row.
    state_widths : dict of str to int
        Arrays of the optimizer's state by name, with the entries per row (`width`, or 1 for a state
        of whole rows).
    dtype : {"float32", "float64"}
        Dtype of the rows that are returned, and of the state.
    seed : int
    scale : float or tuple of float of length `width`
        Standard deviation of the normal initial values; a tuple gives one for each column. A column
        of 0 begins at 0.
    state_start : dict of str to float
        Initial value of each array of the state; 0 if it is not named.
    admit_after : int
        Sighting at which an id gets its row.
    expire_after : int, optional
        Steps without a sighting after which a row is removed; None: never.
    max_rows : int, optional
        Most rows; at most four times as many ids may wait for a row.
    memory_bytes : int, optional
        Most bytes of the arrays in memory; beyond it they are in mapped files, the widest arrays
        first. Of these files, up to the same number of bytes are in memory, or 256 MiB if that is
        more. (The index of the ids, 21 to 43 bytes per row, and waiting ids always stay in memory.)
    folder : str, optional
        Folder of the mapped files; None: the system's temporary folder. The files have no names, so
        nothing is left of them however the process ends.
    evict : bool
        Whether the rows that were touched longest ago are removed if there is no room; otherwise a
        row without room is an error.
    own_field : int, optional
        Field of ids that belong to the model and not to the data: their rows begin at 0, and exist
        from the first sighting on.
    storage : {"float32", "float64", "float16", "bfloat16"}, optional
        Format in which rows are stored; None: `dtype`. Half precision (for a float32 `dtype`) is
        rounded to nearest even whenever a row is written; the state is not rounded.
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
        """Return the dtype of the array that stores rows; bfloat16 is stored as its bits."""
        name = self.storage or self.dtype
        return np.dtype(np.uint16 if name == "bfloat16" else name)


def _check_int(name: str, value: Any, min_value: int, max_value: int | None = None) -> None:
    """Check that a setting is an integer within bounds."""
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or value < min_value or (max_value is not None and value > max_value):
        bound = (
            f"of at least {min_value}" if max_value is None else f"from {min_value} to {max_value}"
        )
        raise InvalidParameterError(f"{name} must be a whole number {bound}; got {value!r}.")


@dataclass(frozen=True)
class RowChanges:
    """Changes of a row store after a step, or its whole content.

    Parameters
    ----------
    since : int
        Step after which the changes happened; -1: this is the whole content.
    step : int
        Last step of the store that the changes come from.
    ids, touched : ndarray of int64 of shape (n,)
        Rows that were touched, in any order, and the last step that touched each.
    w : ndarray of shape (n, width)
        These rows in stored form.
    state : dict of str to ndarray
    removed : ndarray of int64
        Ids that have no row any more and do not wait; some may be gone longer.
    waiting_ids, waiting_sightings : ndarray of int64
        Ids that were seen and have no row; last step and count of sightings, in one number.
    waiting_floor : int
        Ids whose last sighting is before this step do not wait any more.
    n_expired, n_evicted, n_refused : int
        Total counts.
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
    """Undo log since a mark: the content before each change, in the order of the changes.

    Parameters
    ----------
    position : int
        Number of the mark.
    step : int
        Last step of an update before the mark.
    counts : tuple of int
        The waiting ids' floor, and the counts of removed and refused rows, at the mark.
    entries : list of tuple
        Kind, ids, and previous content: for ``"rows"`` steps, rows and state; for ``"made"`` None.
    sightings : list of tuple
        Previous sightings of waiting ids.
    """

    position: int
    step: int
    counts: tuple[int, int, int, int]
    entries: list[tuple[str, Ids, Any]] = field(default_factory=list)
    sightings: SightingLog = field(default_factory=list)


class RowStore:
    """Rows of a growing table by id, with their optimizer state.

    Not thread-safe: the server that owns it holds a lock.

    Parameters
    ----------
    settings : RowStoreSettings

    Attributes
    ----------
    w : ndarray of shape (capacity, width)
        Stored rows by slot. This and the other arrays are replaced when the store grows.
    state : dict of str to ndarray of shape (capacity, state width)
    ids, touched : ndarray of int64 of shape (capacity,)
        Id of each slot, and the last step that touched its row; -1 for a free slot.
    n_grown : int
        Number of times that the arrays were replaced.
    n_expired, n_evicted, n_refused : int
        Rows that have expired or were evicted so far; sightings for which no row had room.
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
        max_waiting = None if settings.max_rows is None else _WAITING_PER_ROW * settings.max_rows
        self._index, self._waiting = IdIndex(), WaitingIds(settings.admit_after, max_waiting)
        #: Slots that were freed, the next to reuse last; slots from `_n_used` on were never used.
        self._free: Ids = np.empty(0, np.int64)
        self._n_used = 0
        #: Last step of an update; steps never decrease.
        self._step = -1
        #: Step and ids of removals, and the step since which all removals are logged.
        self._removals: deque[tuple[int, Ids]] = deque()
        self._n_logged, self._logged_since = 0, 0
        self.n_expired = self.n_evicted = self.n_refused = 0
        #: Upper bound of the bytes of mapped pages in memory since they were last released.
        self._page_bytes = 0
        #: Marks to which the store can go back, and the changes since each.
        self._epochs: deque[_Epoch] = deque()
        self._take_views()

    def _take_views(self) -> None:
        """Refresh the views after arrays have been replaced."""
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
        """Return the slot of each id; -1 if it has no row."""
        return self._index.find(as_plain_ids(ids), self.touched)[0]

    def read(self, ids: Ids, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the rows of sorted ids; for an id without a row its initial values, creating none.

        Parameters
        ----------
        ids : ndarray of int64 of shape (n,)
        out : ndarray of shape (n, width), optional
            Array into which the rows are written.
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
        """Release mapped pages before those of `n_rows` more rows could take too much memory.

        Pages of a mapped file that are in memory count as memory of the process, for example for
        Dask's nannies, which watch its size.
        """
        arrays = [*self._arrays.values(), *self._state_arrays.values()]
        mapped = [array for array in arrays if array.is_mapped]
        # In the worst case each row lies in its own page.
        self._page_bytes += n_rows * len(mapped) * mmap.PAGESIZE
        if self._page_bytes > max(self.settings.memory_bytes or 0, _LEAST_MAPPED_BYTES):
            self._page_bytes = 0
            for array in mapped:
                array.release_pages()

    def gather(self, slots: Ids, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the rows of slots in the dtype of the settings; zeros for negative slots."""
        if self.settings.stored_dtype == self.settings.dtype:
            return _gather(self.w, slots, out)
        rows = self._decode(_gather(self.w, slots))
        if out is None:
            return rows
        _check_rows(out, rows.shape, rows.dtype)
        out[...] = rows
        return out

    def scatter(self, slots: Ids, rows: NDArray[Any]) -> None:
        """Write rows into their slots, rounded to the stored form; negative slots are skipped."""
        _scatter(self.w, slots, self._encode(np.asarray(rows, self.settings.dtype)))

    def gather_state(self, slots: Ids) -> dict[str, NDArray[Any]]:
        """Return the optimizer state of the rows of slots; zeros for negative slots."""
        return {name: _gather(array, slots) for name, array in self.state.items()}

    def scatter_state(self, slots: Ids, state: Mapping[str, NDArray[Any]]) -> None:
        """Write the optimizer state of the rows of slots; negative slots are skipped."""
        for name, rows in state.items():
            _scatter(self.state[name], slots, np.asarray(rows, self.settings.dtype))

    def blocks(self, n: int) -> Iterator[tuple[Ids, NDArray[Any]]]:
        """Yield all ids, sorted, and their rows, `n` at a time."""
        slots = self.sorted_slots()
        for start in range(0, len(slots), n):
            part = slots[start : start + n]
            yield self.ids[part], self.gather(part)

    def sorted_slots(self) -> Ids:
        """Return the slots of all rows, sorted by id."""
        slots = self._live_slots()
        return slots[np.argsort(self.ids[slots])]

    def _live_slots(self) -> Ids:
        """Return the slots of all rows."""
        return self._find_touched(0, None)

    def _find_touched(self, least: int, bound: int | None) -> Ids:
        """Return the slots of rows last touched by a step from `least` on and below `bound`."""
        slots = [np.empty(0, np.int64)]
        for start in range(0, self._n_used, _BLOCK_ENTRIES):
            touched = self.touched[start : min(start + _BLOCK_ENTRIES, self._n_used)]
            chosen = touched >= max(least, 0)  # free slots hold -1
            if bound is not None:
                chosen &= touched < bound
            slots.append(start + np.flatnonzero(chosen))
        return np.concatenate(slots)

    # -- initial values and storage --------------------------------------------------------------

    def _draw_into(self, ids: Ids, places: Ids, rows: NDArray[Any]) -> None:
        """Write the initial values of the ids at `places` into the rows at these places."""
        load_kernels().draw_rows(ids, places, self._seed, self.settings.scales, rows)
        if self.settings.own_field is not None:
            rows[places[self._find_own(ids[places])]] = 0

    def _draw(self, ids: Ids) -> NDArray[Any]:
        """Return the initial values of ids, rounded to the stored form."""
        rows = np.empty((len(ids), self.settings.width), np.float32)
        self._draw_into(ids, np.arange(len(ids)), rows)
        return self._decode(self._encode(rows.astype(self.settings.dtype, copy=False)))

    def _find_own(self, ids: Ids) -> NDArray[np.bool_]:
        """Return which ids belong to the model."""
        own_field = self.settings.own_field
        if own_field is None:
            return np.zeros(len(ids), np.bool_)
        is_own: NDArray[np.bool_] = find_fields(ids) == own_field
        return is_own

    def _encode(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return rows in stored form."""
        if self.settings.storage == "bfloat16":
            return _round_to_bfloat16(rows)
        # Values beyond float16's 65504 become infinite.
        with np.errstate(over="ignore", invalid="ignore"):
            return rows.astype(self.settings.stored_dtype, copy=False)

    def _decode(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return stored rows in the dtype of the settings."""
        if self.settings.storage == "bfloat16":
            return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return stored.astype(self.settings.dtype, copy=False)

    # -- updates ---------------------------------------------------------------------------------

    def slots_for_update(self, ids: Ids, step: int) -> Ids:
        """Return the slot of each sorted id, for an update of its row by step number `step`.

        Ids without a row are counted as seen. An id that was seen often enough gets a row with
        initial values and state; if not all find room, the lowest ids do.

        Parameters
        ----------
        ids : ndarray of int64 of shape (n,)
        step : int
            At least the step of the previous call.

        Returns
        -------
        ndarray of int64 of shape (n,)
            -1 if an id has no row, yet or for lack of room.
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
        n = self._reserve_rows(len(places), step)
        self.n_refused += len(places) - n
        places = places[:n]
        slots[places] = self._make_rows(ids[places], step)
        return slots

    def _touch(self, slots: Ids, step: int) -> None:
        """Record the step that touches rows; first log rows untouched since the last mark."""
        first = slots[self.touched[slots] <= self._epochs[-1].step]
        self._log_rows(first)
        self.touched[slots] = step

    def _find_due(self, ids: Ids, step: int) -> NDArray[np.bool_]:
        """Return which ids without a row get one at this sighting."""
        is_due = self._find_own(ids)
        is_due[~is_due] = self._waiting.count(ids[~is_due], step)
        return is_due

    def _make_rows(self, ids: Ids, step: int) -> Ids:
        """Create rows for ids that have none; return their slots."""
        slots = self._take_slots(len(ids))
        self._log_made(ids)
        self._index.insert(ids, slots)
        self.ids[slots] = ids
        self.touched[slots] = step
        for name, array in self.state.items():
            array[slots] = self.settings.state_start.get(name, 0.0)
        if self.w.dtype == np.float32:
            # Written directly to their place in the store.
            self._draw_into(self.ids, slots, self.w)
        else:
            self.scatter(slots, self._draw(ids))
        self._waiting.remove(ids)
        return slots

    def _take_slots(self, n: int) -> Ids:
        """Return free slots; the store grows if there are too few."""
        if self.n_rows + n > self.capacity:
            self._grow(self.n_rows + n)
        n_reused = min(n, len(self._free))
        n_kept = len(self._free) - n_reused
        reused, self._free = self._free[n_kept:], self._free[:n_kept]
        new_slots = np.arange(self._n_used, self._n_used + n - n_reused)
        self._n_used += len(new_slots)
        return np.concatenate([reused, new_slots])

    def _grow(self, n_rows: int) -> None:
        """Make room for `n_rows` rows, by doubling the capacity."""
        settings, old_capacity = self.settings, self.capacity
        capacity = max(old_capacity, _FIRST_CAPACITY)
        while capacity < n_rows:
            capacity *= 2
        if settings.max_rows is not None:
            capacity = max(min(capacity, settings.max_rows), n_rows)
        arrays = [*self._arrays.values(), *self._state_arrays.values()]
        reserved = min(settings.max_rows or math.inf, _RESERVED_GROWTH * capacity)
        # Narrow arrays stay in memory longest: they are written as often as wide ones, and each row
        # written to a file costs a page. An array in a file stays there, since capacities only
        # grow.
        arrays.sort(key=lambda array: array.row_bytes)
        n_bytes = list(accumulate(capacity * array.row_bytes for array in arrays))
        max_bytes = math.inf if settings.memory_bytes is None else settings.memory_bytes
        try:
            extended_arrays = [
                array.extend(capacity, int(reserved) if total <= max_bytes else 0, settings.folder)
                for array, total in zip(arrays, n_bytes, strict=True)
            ]
        except (OSError, MemoryError) as error:
            place = settings.folder or tempfile.gettempdir()
            place = "memory" if isinstance(error, MemoryError) else place
            raise TrainingError(
                f"A table of rows cannot grow from {old_capacity:,} to {capacity:,} rows "
                f"({n_bytes[-1]:,} bytes): {place} has no room ({error}). Set max_rows or "
                "expire_after, or name a folder on a larger disk and memory_bytes."
            ) from error
        # All arrays grow or none: if one finds no room, the store continues unchanged.
        for array, extended in zip(arrays, extended_arrays, strict=True):
            array.take_over(extended, capacity)
        self._take_views()
        self.ids[old_capacity:] = self.touched[old_capacity:] = -1
        self.n_grown += 1

    # -- removals --------------------------------------------------------------------------------

    def _reserve_rows(self, n: int, step: int) -> int:
        """Return how many of `n` more rows have room; expires, then evicts rows for them."""
        max_rows = self.settings.max_rows
        if max_rows is None or self.n_rows + n <= max_rows:
            return n
        self.expire(step)
        n_lacking = self.n_rows + n - max_rows
        if n_lacking <= 0:
            return n
        if not self.settings.evict:
            raise TrainingError(
                f"{max_rows:,} rows fit in this table (max_rows), and {n_lacking:,} more are "
                "wanted. Raise max_rows or admit_after, set a smaller expire_after, or set "
                "evict=True: the least recently touched rows are then removed."
            )
        self._evict(max(n_lacking, int(max_rows * _EVICTED_SHARE)), step)
        return min(n, max_rows - self.n_rows)

    def _evict(self, n: int, step: int) -> None:
        """Remove the `n` rows touched longest ago, lower ids first; none touched in this step."""
        slots = self._find_touched(0, step)
        if n < len(slots):
            touched = self.touched[slots]
            last = np.partition(touched, n - 1)[n - 1]
            older_slots, tied_slots = slots[touched < last], slots[touched == last]
            # Ordered by id, since replicas of a store have equal ids but different slots.
            n_tied = n - len(older_slots)
            tied_slots = tied_slots[np.argpartition(self.ids[tied_slots], n_tied - 1)[:n_tied]]
            slots = np.sort(np.concatenate([older_slots, tied_slots]))
        self._remove(slots, step)
        self.n_evicted += len(slots)

    def expire(self, step: int) -> int:
        """Remove rows and waiting ids unseen for `expire_after` steps; return how many rows."""
        if self.settings.expire_after is None:
            return 0
        bound = int(step) - self.settings.expire_after
        slots = self._find_touched(0, bound)
        self._remove(slots, max(int(step), self._step))
        self.n_expired += len(slots)
        self._waiting.expire(bound)
        return len(slots)

    def _remove(self, slots: Ids, step: int) -> None:
        """Remove the rows of slots, at a step."""
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
            forgotten_step, ids = self._removals.popleft()
            self._n_logged -= len(ids)
            self._logged_since = forgotten_step + 1

    # -- changes ---------------------------------------------------------------------------------

    def changed_since(self, step: int) -> RowChanges:
        """Return the changes after a step: rows touched, ids removed, sightings counted.

        Rows of a step must be written before its changes are taken. If too many removals since the
        step were logged to remember all, the whole content is returned.
        """
        if step < self._logged_since:
            return self.copy_all()
        slots = self._find_touched(step + 1, None)
        # Removals of the step itself may have come before or after changes were last taken; for a
        # store that has already applied them, they have no effect.
        logged = [ids for removal_step, ids in self._removals if removal_step >= step]
        removed = np.unique(np.concatenate(logged)) if logged else np.empty(0, np.int64)
        # Ids that returned are reported as rows, or as waiting.
        is_back = (self.find(removed) >= 0) | self._waiting.contains(removed)
        removed = removed[~is_back]
        return self._make_changes(slots, removed, int(step))

    def copy_all(self) -> RowChanges:
        """Return the whole content."""
        return self._make_changes(self._live_slots(), np.empty(0, np.int64), -1)

    def _make_changes(self, slots: Ids, removed: Ids, since: int) -> RowChanges:
        """Return the content of slots, and the ids that were seen after a step, as changes."""
        self._bound_pages(len(slots))
        waiting = self._waiting.since(since)
        return RowChanges(
            since, self._step, self.ids[slots], self.touched[slots], _gather(self.w, slots),
            self.gather_state(slots), removed, *waiting, self._waiting.floor,
            self.n_expired, self.n_evicted, self.n_refused,
        )  # fmt: skip

    def apply_changes(self, changes: RowChanges) -> None:
        """Apply the changes of another store, so that this one has bit-identical content."""
        if changes.since < 0:
            self.restore(changes)
            return
        self._check_changes(changes)
        if changes.since > self._step:
            raise MessageError(
                f"Changes since step {changes.since} do not fit a store of rows at step "
                f"{self._step}: what happened between is missing. Send copy_all()."
            )
        removed_slots = self.find(np.concatenate([changes.removed, changes.waiting_ids]))
        self._remove(np.sort(removed_slots[removed_slots >= 0]), changes.step)
        # An id may have got its row and lost it again since this store saw it waiting.
        for ids in map(as_plain_ids, (changes.removed, changes.ids, changes.waiting_ids)):
            self._waiting.remove(ids)
        self._take_over(changes)

    def restore(self, changes: RowChanges) -> None:
        """Replace the content by the result of `copy_all`."""
        self._check_changes(changes)
        if changes.since >= 0:
            raise MessageError(
                f"These are the changes since step {changes.since}, not the whole content of a "
                "store of rows. Give what copy_all() returned."
            )
        self._clear()
        self.n_grown += 1
        self._take_over(changes)
        # Earlier removals are unknown; removals of this very step are already applied.
        self._logged_since = max(changes.step, 0)

    def _take_over(self, changes: RowChanges) -> None:
        """Write changed rows and waiting ids."""
        ids = as_plain_ids(changes.ids)
        slots, n_missing = self._index.find(ids, self.touched)
        self._log_rows(slots[slots >= 0])
        if n_missing:
            missing = np.flatnonzero(slots < 0)
            self._log_made(ids[missing])
            max_rows = self.settings.max_rows
            if max_rows is not None and self.n_rows + n_missing > max_rows:
                raise MessageError(
                    f"A store of at most {max_rows:,} rows (max_rows) cannot take over "
                    f"{self.n_rows + n_missing:,}: give both the same settings."
                )
            slots[missing] = new_slots = self._take_slots(n_missing)
            self._index.insert(ids[missing], new_slots)
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

    def mark(self, position: int, max_marks: int) -> None:
        """Mark the present content with a number, to go back to; keep the last `max_marks` marks.

        Content is copied when it first changes after a mark, so that a mark itself costs nothing.
        Steps after a mark must have other numbers than those before it.
        """
        last = self._epochs[-1] if self._epochs else None
        if last is not None and (last.position, last.step) == (position, self._step):
            if not (last.entries or last.sightings):
                return
        counts = self._waiting.floor, self.n_expired, self.n_evicted, self.n_refused
        self._epochs.append(_Epoch(position, self._step, counts))
        while len(self._epochs) > max_marks:
            self._epochs.popleft()
        self._log_to_last_mark()

    def _log_to_last_mark(self) -> None:
        """Make changes of sightings go to the log of the last mark."""
        last = self._epochs[-1]
        self._waiting.log_to(last.sightings, last.step)

    @property
    def marks(self) -> list[int]:
        """Return the numbers of the marks."""
        return [epoch.position for epoch in self._epochs]

    def go_back(self, position: int) -> None:
        """Restore the content at the last mark of a number; later marks are dropped."""
        if position not in self.marks:
            raise MessageError(
                f"A store of rows cannot go back to {position}: its marks are {self.marks}."
            )
        epochs, self._epochs = self._epochs, deque()  # the restoring itself is not logged
        self._waiting.log_to(None, -1)
        while True:
            epoch = epochs.pop()
            for kind, ids, old_content in reversed(epoch.entries):
                self._undo_change(kind, ids, old_content, epoch.step)
            self._waiting.go_back(epoch.sightings, epoch.step, epoch.counts[0])
            if epoch.position == position:
                break
        self._step = epoch.step
        _, self.n_expired, self.n_evicted, self.n_refused = epoch.counts
        epoch.entries.clear()
        epoch.sightings.clear()
        self._epochs = deque([*epochs, epoch])
        self._log_to_last_mark()

    def content_at(self, position: int) -> RowChanges:
        """Return the whole content as it was at the mark of a number."""
        other = RowStore(self.settings)
        other.restore(self.copy_all())
        # Going back does not change the entries, but empties their lists.
        other._epochs = deque(
            replace(e, entries=list(e.entries), sightings=list(e.sightings)) for e in self._epochs
        )
        other.go_back(position)
        return other.copy_all()

    def _undo_change(self, kind: str, ids: Ids, old_content: Any, step: int) -> None:
        """Undo one change."""
        if kind == "made":
            self._remove(self.find(ids), step)
        else:
            slots = self.find(ids)
            missing = np.flatnonzero(slots < 0)
            slots[missing] = new_slots = self._take_slots(len(missing))
            self._index.insert(ids[missing], new_slots)
            touched, w, state = old_content
            self.ids[slots], self.touched[slots] = ids, touched
            _scatter(self.w, slots, w)
            self.scatter_state(slots, state)

    def _log_rows(self, slots: Ids) -> None:
        """Log rows that are about to change or to be removed."""
        if self._epochs and len(slots):
            old_content = self.touched[slots], _gather(self.w, slots), self.gather_state(slots)
            self._epochs[-1].entries.append(("rows", self.ids[slots], old_content))

    def _log_made(self, ids: Ids) -> None:
        """Log ids that are about to get a row."""
        if self._epochs and len(ids):
            self._epochs[-1].entries.append(("made", ids, None))

    def _check_changes(self, changes: RowChanges) -> None:
        """Check that changes come from a store with the same settings."""
        n, settings = len(changes.ids), self.settings
        arrays = {"w": changes.w, **changes.state}
        shapes = {"w": (n, settings.width)}
        shapes |= {name: (n, width) for name, width in settings.state_widths.items()}
        dtypes = {name: settings.dtype for name in shapes} | {"w": settings.stored_dtype}
        has_same_shapes = {name: array.shape for name, array in arrays.items()} == shapes
        has_same_shapes = has_same_shapes and all(
            arrays[name].dtype == dtype for name, dtype in dtypes.items()
        )
        has_valid_waiting = changes.waiting_ids.shape == changes.waiting_sightings.shape
        has_valid_ids = changes.touched.shape == (n,) and (not n or changes.ids.min() >= 0)
        if not (has_same_shapes and has_valid_waiting and has_valid_ids):
            raise MessageError(
                "These changes are of a store of rows of other widths, state or dtypes: give both "
                "stores the same settings."
            )


def _hash_seed(seed: int) -> np.uint64:
    """Return a seed of any size as 64 mixed bits."""
    seed_words = np.random.SeedSequence(abs(seed), spawn_key=(int(seed < 0),)).generate_state(2)
    return np.uint64(int(seed_words[0]) | int(seed_words[1]) << 32)


def _check_ids(ids: Ids) -> Ids:
    """Return ids in the form that the compiled loops need; raise if unsorted or negative."""
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
    """Return rows of any dtype as integers of 32 (or 16) bits, for which moves are compiled."""
    contiguous = np.require(rows, requirements=["C", "A", "W"])
    size = contiguous.shape[1] * contiguous.dtype.itemsize
    return contiguous.view(np.uint16 if size % 4 else np.uint32)


def _gather(rows: NDArray[Any], slots: Ids, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return a copy of the rows of slots; zeros for negative slots."""
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


# The compiled loops do not check bounds, so the callers do.
def _check_rows(values: NDArray[Any], shape: tuple[int, ...], dtype: Any) -> None:
    """Check the shape, dtype and layout of rows that are read from or written to."""
    if values.shape != shape or values.dtype != dtype or not values.flags.c_contiguous:
        raise InvalidDataError(
            f"Rows must be a C-contiguous array of {dtype} of shape {shape}; got {values.dtype} of "
            f"shape {values.shape}."
        )


def _check_slots(slots: Ids, rows: NDArray[Any]) -> None:
    """Check that slots are within the array."""
    if len(slots) and slots.max() >= len(rows):
        raise InvalidDataError(
            f"Slot {slots.max()} lies beyond the {len(rows)} slots of the store: take slots from "
            "find or slots_for_update."
        )


def _round_to_bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Return the bits of float32 numbers rounded to bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    upper = bits >> np.uint32(16)
    # Round half to even: add half of the last kept digit, or one less if that digit is even; the
    # carry rounds up.
    rounded = (bits + (upper & np.uint32(1)) + np.uint32(0x7FFF)) >> np.uint32(16)
    # The carry could turn NaN into infinity, so NaN is handled separately.
    return np.where(np.isnan(values), upper | np.uint32(0x40), rounded).astype(np.uint16)
