"""The store of a growing table's rows against dictionaries, its initial values against SciPy."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from daskml_dist.comm.packing import name_classes, pack_object, unpack_object
from daskml_dist.errors import (
    InvalidDataError,
    InvalidParameterError,
    MessageError,
    TrainingError,
)
from daskml_dist.ps import id_index, row_store
from daskml_dist.ps.row_store import RowChanges, RowStore, RowStoreSettings

SETTINGS = RowStoreSettings(
    width=3,
    state_widths={"sum": 3, "row": 1},
    dtype="float32",
    seed=7,
    scale=0.1,
    state_start={"row": 0.5},
)
#: Ids as callers make them: hashed high bits, a field's number in the lowest 8 bits.
IDS = np.sort(
    np.random.default_rng(0).choice(1 << 50, 400, replace=False) << 12 | np.arange(400) % 7
)


def _store(**options: Any) -> RowStore:
    return RowStore(replace(SETTINGS, **options))


def _content(store: RowStore) -> dict[str, Any]:
    """Return the content of a store, independent of its slots."""
    whole = store.copy_all()
    order, waiting = np.argsort(whole.ids), np.argsort(whole.waiting_ids)
    found = {
        "w": whole.w[order].tobytes(),
        "state": {name: array[order].tobytes() for name, array in whole.state.items()},
        "waiting_ids": whole.waiting_ids[waiting].tolist(),
        "waiting": whole.waiting_sightings[waiting].tolist(),
    }
    found |= {name: getattr(whole, name)[order].tolist() for name in ("ids", "touched")}
    plain = ("step", "waiting_floor", "n_expired", "n_evicted", "n_refused")
    return found | {name: getattr(whole, name) for name in plain}


def _travel(changes: RowChanges) -> RowChanges:
    """Return changes as another process receives them."""
    known = name_classes([RowChanges])
    found: RowChanges = unpack_object(pack_object(changes, known), known)
    return found


class _Table:
    """Reference store in plain Python: rows, states, steps and sightings by id."""

    def __init__(self, settings: RowStoreSettings, start: Callable[[int], Any]) -> None:
        self.settings, self.start = settings, start
        self.rows: dict[int, Any] = {}
        self.state: dict[int, Any] = {}
        self.touched: dict[int, int] = {}
        self.waiting: dict[int, tuple[int, int]] = {}
        self.n_expired = self.n_evicted = self.n_refused = 0

    def update(self, ids: list[int], step: int) -> list[bool]:
        """Touch rows; return which ids have one."""
        due = []
        for i in ids:
            if i in self.rows:
                self.touched[i] = step
                continue
            count = min(self.waiting.get(i, (0, 0))[0] + 1, self.settings.admit_after)
            if count == self.settings.admit_after:
                due.append(i)
            if self.settings.admit_after > 1:
                self.waiting[i] = min(count, self.settings.admit_after - 1), step
        if self.settings.max_rows is not None and len(self.waiting) > 4 * self.settings.max_rows:
            last_steps = sorted(t for _, t in self.waiting.values())
            bound = last_steps[-max(2 * self.settings.max_rows, 1)]
            self.waiting = {i: (n, t) for i, (n, t) in self.waiting.items() if t >= bound}
        most = self.settings.max_rows or len(self.rows) + len(due)
        if len(self.rows) + len(due) > most:
            self.expire(step)
        lacking = len(self.rows) + len(due) - most
        if lacking > 0:
            old = sorted((t, i) for i, t in self.touched.items() if t < step)
            for _, i in old[: max(lacking, most // 16)]:
                self.drop(i)
                self.n_evicted += 1
        n_free = min(len(due), most - len(self.rows))
        self.n_refused += len(due) - n_free
        for i in due[:n_free]:
            self.rows[i], self.touched[i] = self.start(i), step
            self.state[i] = {"sum": np.zeros(3, np.float32), "row": np.full(1, 0.5, np.float32)}
            self.waiting.pop(i, None)
        return [i in self.rows for i in ids]

    def drop(self, i: int) -> None:
        del self.rows[i], self.state[i], self.touched[i]

    def expire(self, step: int) -> int:
        if self.settings.expire_after is None:
            return 0
        bound = step - self.settings.expire_after
        old = [i for i, t in self.touched.items() if t < bound]
        for i in old:
            self.drop(i)
        self.n_expired += len(old)
        self.waiting = {i: (n, t) for i, (n, t) in self.waiting.items() if t >= bound}
        return len(old)


def _assert_equal(store: RowStore, table: _Table) -> None:
    """Compare the content of a store with the plain table."""
    slots = np.flatnonzero(store.ids >= 0)
    assert store.n_rows == len(table.rows) == len(slots)
    assert dict(zip(store.ids[slots].tolist(), store.touched[slots].tolist(), strict=True)) == (
        table.touched
    )
    ids = np.array(sorted(table.rows), np.int64)
    if len(ids):
        np.testing.assert_array_equal(store.read(ids), [table.rows[i] for i in ids.tolist()])
        found = store.gather_state(store.find(ids))
        for name, values in found.items():
            np.testing.assert_array_equal(values, [table.state[i][name] for i in ids.tolist()])
    whole = store.copy_all()
    counted = [(v & 0xFFFF, v >> 16) for v in whole.waiting_sightings.tolist()]
    assert dict(zip(whole.waiting_ids.tolist(), counted, strict=True)) == table.waiting
    assert store.n_waiting == len(table.waiting)
    totals = store.n_expired, store.n_evicted, store.n_refused
    assert totals == (table.n_expired, table.n_evicted, table.n_refused)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"expire_after": 6},
        {"admit_after": 3, "expire_after": 9},
        {"max_rows": 40},
        {"max_rows": 25, "expire_after": 4, "admit_after": 2},
        {"max_rows": 5},
        {"max_rows": 5, "admit_after": 2},
    ],
)
def test_a_store_equals_a_dictionary_of_rows(
    settings: dict[str, Any], mapped: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A second store that receives its changes from time to time is a bitwise copy."""
    monkeypatch.setattr(row_store, "_FIRST_CAPACITY", 4)
    monkeypatch.setattr(id_index, "_FIRST_PLACES", 4)
    if mapped:
        settings = {**settings, "memory_bytes": 0, "folder": str(tmp_path)}
    store, twin, standby = _store(**settings), _store(**settings), _store(**settings)
    begin = dict(zip(IDS.tolist(), _store().read(IDS), strict=True))
    table = _Table(store.settings, begin.__getitem__)
    rng, last_copied = np.random.default_rng(1), -1
    for step in range(120):
        # The range of ids moves: old ones disappear, and some return.
        drawn = np.unique((rng.geometric(0.05, rng.integers(0, 30)) + step) % len(IDS))
        ids = IDS[drawn]
        added = rng.normal(size=(len(ids), 3)).astype(np.float32)
        has_row = table.update(ids.tolist(), step)
        for each in (store, twin):
            slots = each.slots_for_update(ids, step)
            np.testing.assert_array_equal(slots >= 0, has_row)
            np.testing.assert_array_equal(each.find(ids), slots)
            np.testing.assert_array_equal(each.ids[slots[has_row]], ids[has_row])
            each.scatter(slots, each.gather(slots) + added)
            state = each.gather_state(slots)
            state["sum"] += added * added
            each.scatter_state(slots, state)
        for i, values in zip(ids.tolist(), added, strict=True):
            if i in table.rows:
                table.rows[i] = table.rows[i] + values
                table.state[i]["sum"] = table.state[i]["sum"] + values * values
        events = rng.random(3)
        if events[0] < 0.2:  # before or after rows expire in the same step
            standby.apply_changes(_travel(store.changed_since(last_copied)))
            last_copied = step
        if events[1] < 0.2:
            assert store.expire(step) == twin.expire(step) == table.expire(step)
        _assert_equal(store, table)
        if events[2] < 0.2:
            standby.apply_changes(_travel(store.changed_since(last_copied)))
            assert _content(standby) == _content(store)
            last_copied = step
    assert _content(twin) == _content(store)
    np.testing.assert_array_equal(twin.ids, store.ids)
    assert store.n_grown > 0
    if "expire_after" in settings:
        assert store.n_expired > 0
    if "max_rows" in settings:
        assert store.n_evicted > 0
        assert store.capacity <= settings["max_rows"]
        # The standby continues exactly as the store would: eviction does not depend on slots.
        standby.apply_changes(store.changed_since(last_copied))
        for each in (store, standby):
            each.slots_for_update(IDS[::30], 200)
        assert _content(standby) == _content(store)
    assert not list(tmp_path.iterdir())


def test_slots_are_reused() -> None:
    store = _store(expire_after=1)
    for step in range(300):
        store.slots_for_update(IDS[step : step + 50], step)
        store.expire(step)
    assert store.n_grown == 1
    assert np.flatnonzero(store.ids >= 0).max() < 60


def test_many_rows_are_added_and_evicted() -> None:
    """Two hundred thousand rows with colliding places in the index."""
    rng = np.random.default_rng(0)
    ids = np.unique(rng.integers(0, 1 << 62, 200_000))
    store = _store(expire_after=1)
    store.slots_for_update(ids, 0)
    store.slots_for_update(ids[::3], 5)
    assert store.expire(5) == len(ids) - len(ids[::3])
    found = store.find(ids)
    assert (found[::3] >= 0).all()
    assert (np.delete(found, np.s_[::3]) == -1).all()
    np.testing.assert_array_equal(store.ids[found[::3]], ids[::3])
    assert len(np.unique(store.slots_for_update(ids, 6))) == len(ids)
    np.testing.assert_array_equal(store.read(ids), _store().read(ids))


# -- initial values --------------------------------------------------------------------------------


def _mix(number: int) -> int:
    number = number * 0x9E3779B97F4A7C15 % 2**64
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    number = (number ^ number >> 27) * 0x94D049BB133111EB % 2**64
    return number ^ number >> 31


def test_initial_values_are_quantiles_of_a_counted_stream() -> None:
    """They depend on seed, id and column only, not on width, order or other rows."""
    wide = _store(width=9, state_widths={}, state_start={}, scale=1.0)
    words = np.random.SeedSequence(7, spawn_key=(0,)).generate_state(2).tolist()
    seed, expected = words[0] | words[1] << 32, []
    for i in IDS.tolist():
        begin = _mix((seed + i) % 2**64)
        bits = [_mix((begin + 1 + k) % 2**64) for k in range(5)]
        expected.append([half for word in bits for half in (word >> 32, word & 0xFFFFFFFF)][:9])
    quantiles = special.ndtri((np.array(expected) + 0.5) / 2**32)
    np.testing.assert_allclose(wide.read(IDS), quantiles, rtol=1e-6, atol=1e-7)
    for width in (1, 4):
        narrow = _store(width=width, state_widths={}, state_start={}, scale=1.0)
        np.testing.assert_array_equal(narrow.read(IDS[5:]), wide.read(IDS)[5:, :width])
    float64 = _store(width=9, state_widths={}, state_start={}, scale=1.0, dtype="float64")
    float64.slots_for_update(IDS, 0)
    np.testing.assert_array_equal(float64.read(IDS), wide.read(IDS).astype(np.float64))
    assert not (
        _store(seed=8, width=9, state_widths={}, state_start={}, scale=1.0).read(IDS)
        == wide.read(IDS)
    ).any()


def test_initial_values_are_normal_and_independent() -> None:
    """Also for neighbouring ids, seeds and columns."""
    ids = np.arange(20_000, dtype=np.int64)
    first, other = (
        _store(width=8, state_widths={}, state_start={}, scale=1.0, seed=seed).read(ids)
        for seed in (0, 1)
    )
    assert stats.kstest(first.ravel(), "norm").pvalue > 0.01
    for column in first.T:
        assert stats.kstest(column, "norm").pvalue > 1e-3
    assert np.abs(first).max() < 6.4
    # Correlations of 20,000 pairs have a standard deviation of 0.007.
    for one, two in ((first[1:], first[:-1]), (first[:, 1:], first[:, :-1]), (first, other)):
        for power in (1, 2):
            found = [
                np.corrcoef(a**power, b**power)[0, 1] for a, b in zip(one.T, two.T, strict=True)
            ]
            assert np.abs(found).max() < 0.035


def test_columns_have_separate_scales() -> None:
    store = _store(scale=(0.0, 1.0, 2.0))
    values = store.read(IDS)
    assert not np.signbit(values[:, 0]).any()
    assert not values[:, 0].any()
    np.testing.assert_array_equal(values[:, 1], _store(scale=1.0).read(IDS)[:, 1])
    np.testing.assert_array_equal(values[:, 2], 2 * _store(scale=1.0).read(IDS)[:, 2])


def test_reading_adds_no_rows() -> None:
    store, out = _store(), np.empty((len(IDS), 3), np.float32)
    store.slots_for_update(IDS[::2], 0)
    before = _content(store)
    assert store.read(IDS, out) is out
    np.testing.assert_array_equal(out, store.read(IDS))
    assert _content(store) == before
    store.slots_for_update(IDS, 1)
    np.testing.assert_array_equal(store.read(IDS), out)
    np.testing.assert_array_equal(store.state["row"][store.find(IDS)], 0.5)


@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
def test_rows_are_stored_in_two_bytes(storage: str) -> None:
    import ml_dtypes

    dtype: Any = np.float16 if storage == "float16" else ml_dtypes.bfloat16
    store = _store(storage=storage, scale=1.0)
    begin = _store(scale=1.0).read(IDS).astype(dtype)
    np.testing.assert_array_equal(store.read(IDS), begin.astype(np.float32))
    slots = store.slots_for_update(IDS, 0)
    assert store.w.itemsize == 2
    np.testing.assert_array_equal(store.read(IDS), begin.astype(np.float32))
    # Ties, subnormal numbers, zeros, infinity, and NaN.
    special_bits = np.array(
        [0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800001, 0xFFFFFFFF, 1], "uint32"
    )
    bits = np.random.default_rng(0).integers(0, 1 << 32, 3 * len(IDS), np.uint32)
    bits[: len(special_bits)] = special_bits
    rows = bits.view(np.float32).reshape(-1, 3)
    store.scatter(slots, rows)
    with np.errstate(all="ignore"):
        expected = rows.astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(store.gather(slots), expected)
    standby = _store(storage=storage, scale=1.0)
    standby.apply_changes(_travel(store.copy_all()))
    assert _content(standby) == _content(store)


# -- changes ---------------------------------------------------------------------------------------


def test_changes_contain_only_touched_rows() -> None:
    store = _store()
    store.slots_for_update(IDS, 0)
    store.slots_for_update(IDS[10:13], 4)
    changes = store.changed_since(3)
    assert sorted(changes.ids) == IDS[10:13].tolist()
    assert len(changes.removed) == 0
    assert len(store.changed_since(4).ids) == 0


def test_changes_contain_all_rows_once_removals_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_store, "_MIN_LOGGED_IDS", 2)
    monkeypatch.setattr(row_store, "_FIRST_CAPACITY", 4)
    store, standby = _store(expire_after=1), _store(expire_after=1)
    store.slots_for_update(IDS, 0)
    standby.apply_changes(store.changed_since(-1))
    store.slots_for_update(IDS[:5], 3)
    store.expire(3)
    changes = store.changed_since(0)
    assert changes.since == -1
    standby.apply_changes(changes)
    assert _content(standby) == _content(store)
    assert store.changed_since(4).since == 4


def test_an_id_admitted_and_evicted_is_no_longer_pending_in_the_copy() -> None:
    store, standby = (_store(admit_after=2, max_rows=1) for _ in range(2))
    store.slots_for_update(IDS[:1], 0)
    standby.apply_changes(store.changed_since(-1))
    assert standby.n_waiting == 1
    store.slots_for_update(IDS[:1], 1)
    store.slots_for_update(IDS[1:2], 2)
    store.slots_for_update(IDS[1:2], 3)
    assert store.find(IDS[:1]) == -1
    standby.apply_changes(store.changed_since(0))
    assert _content(standby) == _content(store)


def test_an_id_evicted_and_pending_again_is_pending_in_the_copy() -> None:
    store, standby = (_store(admit_after=2, max_rows=1) for _ in range(2))
    for step in (0, 1):
        store.slots_for_update(IDS[:1], step)
    store.slots_for_update(IDS[1:2], 2)
    standby.apply_changes(store.changed_since(-1))
    store.slots_for_update(IDS[1:2], 3)
    store.slots_for_update(IDS[:1], 3)
    assert store.n_evicted == store.n_waiting == 1
    for since in (2, 3, 3):
        standby.apply_changes(store.changed_since(since))
        assert _content(standby) == _content(store)


def test_restored_content_replaces_the_present_one(tmp_path: Path) -> None:
    store = _store(admit_after=2)
    for step in range(3):
        store.slots_for_update(IDS[step * 50 : 200], step)
    other = _store(admit_after=2, memory_bytes=0, folder=str(tmp_path))
    for step in range(2):
        other.slots_for_update(IDS, step)
    grown = other.n_grown
    other.restore(_travel(store.copy_all()))
    assert _content(other) == _content(store)
    assert other.n_grown > grown
    other.slots_for_update(IDS[:3], 7)
    store.slots_for_update(IDS[:3], 7)
    store.apply_changes(other.changed_since(2))
    assert _content(other) == _content(store)


def test_blocks_are_sorted_by_id() -> None:
    store = _store()
    store.slots_for_update(IDS[200:], 0)
    store.slots_for_update(IDS, 1)
    blocks = list(store.blocks(64))
    np.testing.assert_array_equal(np.concatenate([ids for ids, _ in blocks]), IDS)
    np.testing.assert_array_equal(np.concatenate([w for _, w in blocks]), store.read(IDS))
    assert max(len(ids) for ids, _ in blocks) == 64
    assert list(_store().blocks(3)) == []


# -- mapped files ----------------------------------------------------------------------------------


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@LINUX
def test_mapped_files_have_no_names_and_grow_without_a_copy(tmp_path: Path) -> None:
    store = _store(memory_bytes=0, folder=str(tmp_path))
    store.slots_for_update(IDS[:10], 0)
    before, capacity = store.w, store.capacity
    open_files = len(os.listdir("/proc/self/fd"))
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    many = np.arange(3000, dtype=np.int64)
    store.slots_for_update(many, 1)
    assert store.capacity >= 4 * capacity
    slot = int(store.find(IDS[:1])[0])
    store.w[slot] = 5
    assert (before[slot] == 5).all()
    np.testing.assert_array_equal(store.read(many), _store().read(many))
    assert not list(tmp_path.iterdir())
    del before, store
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert len(os.listdir("/proc/self/fd")) < open_files


@LINUX
def test_arrays_beyond_the_memory_limit_move_to_files(tmp_path: Path) -> None:
    bytes_of_1024_rows = 1024 * (8 + 8 + 12 + 12 + 4)
    store, other = _store(memory_bytes=bytes_of_1024_rows, folder=str(tmp_path)), _store()
    many = np.arange(5000, dtype=np.int64)
    for each in (store, other):
        each.slots_for_update(many[:1000], 0)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    for each in (store, other):
        each.slots_for_update(many, 1)
    # All but the narrowest array, the state of one number a row.
    assert Path("/proc/self/maps").read_text().count(str(tmp_path)) == 4
    assert _content(store) == _content(other)


@pytest.mark.parametrize("memory_bytes", [0, 50_000])
def test_a_full_disk_raises_and_changes_nothing(
    memory_bytes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also if there was space for some arrays only."""
    store = _store(memory_bytes=memory_bytes, folder=str(tmp_path))
    store.slots_for_update(IDS, 0)
    before, many, n_calls = _content(store), np.arange(1000, dtype=np.int64), 0

    def refuse(*_: Any) -> None:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        wanted = rf"{tmp_path} has no room .*No space left on device.*Set max_rows"
        with pytest.raises(TrainingError, match=wanted):
            store.slots_for_update(many, 0)
    assert _content(store) == before
    store.w[:] = 3
    store.slots_for_update(many, 0)
    assert (store.read(IDS) == 3).all()
    np.testing.assert_array_equal(store.read(many), _store().read(many))


# -- wrong input -----------------------------------------------------------------------------------


def test_settings_survive_pickling() -> None:
    assert pickle.loads(pickle.dumps(SETTINGS)) == SETTINGS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width must be a whole number of at least 1; got 0"),
        ({"state_widths": {"sum": 0.5}, "state_start": {}}, "sum must be a whole number"),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"storage": "int8"}, "can be stored as one of .*bfloat16"),
        ({"dtype": "float64", "storage": "float16"}, "Rows of float64 can be stored as one of"),
        ({"scale": -1.0}, "scale must be a finite number of at least 0"),
        ({"scale": (1.0, 2.0)}, "one for each of the 3 columns"),
        ({"state_start": {"sums": 1.0}}, r"\['sums'\], which are not in state_widths"),
        ({"admit_after": 0}, "admit_after must be a whole number from 1 to 65535"),
        ({"expire_after": 0}, "expire_after must be"),
        ({"max_rows": True}, "max_rows must be"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        replace(SETTINGS, **options)


@pytest.mark.parametrize(
    "ids", [IDS[:3][::-1], IDS[[0, 0]], IDS[:3] - (1 << 62), IDS[:3].astype(np.int32), IDS[None]]
)
def test_wrong_ids_are_refused(ids: NDArray[Any]) -> None:
    store = _store()
    for call in (store.read, lambda ids: store.slots_for_update(ids, 0)):
        with pytest.raises(InvalidDataError, match="ids must be"):
            call(ids)
    assert store.n_rows == 0


def test_wrong_arrays_and_steps_are_refused() -> None:
    store = _store()
    slots = store.slots_for_update(IDS[:4], 3)
    with pytest.raises(InvalidParameterError, match="cannot decrease: give 3 or more; got 2"):
        store.slots_for_update(IDS[:4], 2)
    with pytest.raises(InvalidDataError, match="Rows must be a C-contiguous array of float32"):
        store.scatter(slots, np.zeros((4, 2)))
    with pytest.raises(InvalidDataError, match="Rows must be a C-contiguous array"):
        store.read(IDS[:4], np.empty((3, 4), np.float32).T)
    with pytest.raises(InvalidDataError, match="out must be writeable"):
        store.read(IDS[:4], np.broadcast_to(np.float32(0), (4, 3)))
    with pytest.raises(InvalidDataError, match="lies beyond the 1024 slots"):
        store.gather(np.array([1024]))
    assert not store.gather(np.array([-1])).any()
    assert (store.find(np.array([-1, -5, 3])) == -1).all()


def test_a_full_table_without_eviction_is_an_error() -> None:
    store = _store(max_rows=10, evict=False, expire_after=5)
    store.slots_for_update(IDS[:10], 0)
    with pytest.raises(TrainingError, match=r"10 rows fit in this table .* and 1 more are wanted"):
        store.slots_for_update(IDS[:11], 0)
    # The rows expire first.
    assert (store.slots_for_update(IDS[10:20], 6) >= 0).all()
    assert store.n_expired == 10


def test_changes_of_another_store_are_refused() -> None:
    store = _store()
    store.slots_for_update(IDS, 5)
    with pytest.raises(MessageError, match="give both stores the same settings"):
        _store(width=2).apply_changes(store.changed_since(0))
    with pytest.raises(MessageError, match=r"Changes since step 0 do not fit .* at step -1"):
        _store().apply_changes(store.changed_since(0))
    with pytest.raises(MessageError, match="not the whole content"):
        _store().restore(store.changed_since(0))
    with pytest.raises(MessageError, match="at most 3 rows"):
        _store(max_rows=3).restore(store.copy_all())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batch_sizes_around_the_prefetch_distance(dtype: str) -> None:
    """Ids are found, counted, added and removed, and rows moved, at all batch sizes and widths."""
    sizes = (1, 7, 8, 9, 15, 16, 17, 31, 33)
    for n, width in itertools.product(sizes, (1, 2, 7, 16, 33, 160)):
        store = RowStore(RowStoreSettings(width, {}, dtype, 0, 0.1, admit_after=2, expire_after=1))
        ids = np.arange(n) * 7 + 3
        assert (store.slots_for_update(ids, 1) == -1).all()
        begun = store.read(ids)
        slots = store.slots_for_update(ids, 2)
        np.testing.assert_array_equal(store.gather(slots), begun)
        rows = np.arange(n * width).reshape(n, width).astype(dtype)
        store.scatter(slots, rows)
        np.testing.assert_array_equal(store.read(ids), rows)
        np.testing.assert_array_equal(store.find(ids + 1), np.full(n, -1))
        store.slots_for_update(ids[::2], 4)
        assert store.expire(5) == n // 2
        np.testing.assert_array_equal(store.find(ids[::2]), slots[::2])
        assert (store.find(ids[1::2]) == -1).all()
