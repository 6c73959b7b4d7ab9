"""Marks of a row store: it returns to each mark bit for bit, whatever changed since."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daskml_dist.errors import MessageError
from daskml_dist.ps.row_store import RowChanges, RowStore, RowStoreSettings


def _store(**options: Any) -> RowStore:
    return RowStore(
        RowStoreSettings(3, {"sum": 3, "count": 1}, "float32", seed=1, scale=0.1, **options)
    )


def _update(store: RowStore, rng: np.random.Generator, step: int) -> None:
    """Make one step on random ids, as a shard does."""
    ids = np.unique(rng.zipf(1.3, 40) % 500)
    slots = store.slots_for_update(ids, step)
    slots = slots[slots >= 0]
    store.w[slots] += rng.normal(size=(len(slots), 3)).astype(np.float32)
    store.state["sum"][slots] += 1
    store.state["count"][slots] -= 1
    if step % 5 == 0:
        store.expire(step)


def _sorted_content(changes: RowChanges) -> list[Any]:
    order, waits = np.argsort(changes.ids), np.argsort(changes.waiting_ids)
    return [
        *(a[order] for a in (changes.ids, changes.touched, changes.w, *changes.state.values())),
        changes.waiting_ids[waits], changes.waiting_sightings[waits], changes.step,
        changes.waiting_floor, changes.n_expired, changes.n_evicted, changes.n_refused,
    ]  # fmt: skip


def _check_equal(one: RowChanges, other: RowChanges) -> None:
    for a, b in zip(_sorted_content(one), _sorted_content(other), strict=True):
        np.testing.assert_array_equal(a, b)


OPTIONS: list[dict[str, Any]] = [
    {}, {"admit_after": 2}, {"expire_after": 7}, {"admit_after": 3, "expire_after": 11},
    {"max_rows": 120, "admit_after": 2},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
def test_a_store_goes_back_to_its_marks(options: dict[str, Any]) -> None:
    """Afterwards its bits equal those of a store that never went further."""
    rng, store = np.random.default_rng(0), _store(**options)
    marked: dict[int, RowChanges] = {}
    for step in range(1, 61):
        _update(store, rng, step)
        if step % 10 == 0:
            store.mark(step, 3)
            marked[step] = store.copy_all()
    assert store.marks == [40, 50, 60]
    for place in (40, 50, 60):
        _check_equal(store.content_at(place), marked[place])
    for place in (50, 40):
        store.go_back(place)
        _check_equal(store.copy_all(), marked[place])
    other = _store(**options)
    other.restore(marked[40])
    for step in range(41, 55):
        for one in (store, other):
            _update(one, np.random.default_rng(step), step)
    _check_equal(store.copy_all(), other.copy_all())
    store.go_back(40)
    _check_equal(store.copy_all(), marked[40])
    with pytest.raises(MessageError, match="50"):
        store.go_back(50)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_follower_goes_back_as_well(options: dict[str, Any]) -> None:
    """It receives the changes between marks, as a standby does."""
    rng, store, follower = np.random.default_rng(0), _store(**options), _store(**options)
    marked: dict[int, RowChanges] = {}
    for step in range(61):
        if step:
            _update(store, rng, step)
        if step % 10 == 0:
            changes = store.changed_since(step - 10 if step > 10 else -1)
            follower.apply_changes(changes)
            _check_equal(follower.copy_all(), store.copy_all())
            store.mark(step, 3)
            follower.mark(step, 3)
            marked[step] = store.copy_all()
    for place in (60, 50, 40):
        follower.go_back(place)
        _check_equal(follower.copy_all(), marked[place])
