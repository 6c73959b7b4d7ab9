"""Entries split by ranges of keys give the same blocks whatever the tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from dask.delayed import Delayed, delayed

from daskml_dist.comm.packing import pack_ids, unpack_ids
from daskml_dist.data.keyed import KeyedBlock, KeyedCollection
from daskml_dist.data.keyed.collection import EntryColumns
from daskml_dist.solvers.als import SIDES
from tests.quick import quick

RANDOM = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "user": [f"u{number:03}" for number in RANDOM.zipf(1.5, 600) % 90],
        "item": RANDOM.integers(0, 70, 600),
        "rating": RANDOM.normal(size=600),
    }
)
PARTS = [FRAME[at : at + 30] for at in range(0, 600, 30)]


class Here:
    """Stand-in for one worker per part, all in this process."""

    def __init__(self, lazy: list[Delayed]) -> None:
        self.parts: list[Delayed] = [delayed(one) for one in dask.compute(*lazy, scheduler="sync")]

    def ask(self, function: Callable[[Any], Any]) -> list[Any]:
        return [function(part.compute(scheduler="sync")) for part in self.parts]

    def together(self) -> list[list[int]]:
        return [[at] for at in reversed(range(len(self.parts)))]


def blocks_of(collection: KeyedCollection) -> list[KeyedBlock]:
    lazy = collection.delayed_blocks()
    return list(dask.compute(*lazy, scheduler="sync"))


@pytest.mark.parametrize("n_groups", quick([1, 3, 19], 3), ids="{} groups".format)
def test_blocks_do_not_depend_on_how_parcels_are_sent(n_groups: int) -> None:
    columns = EntryColumns("user", "item", "rating")
    in_process = KeyedCollection.from_sources("memory", PARTS, columns, SIDES).cut(19)
    lazy = KeyedCollection.from_sources("dask", [delayed(part) for part in PARTS], columns, SIDES)
    cut = lazy.cut(19, n_groups, Here)
    assert len(cut.bundles) == n_groups * len(SIDES)
    assert sorted(sum(cut.bundles, ())) == list(range(38))
    for one, other in zip(blocks_of(cut), (X for X, _, _ in in_process.parts), strict=True):
        assert (one.index, one.lane, one.side) == (other.index, other.lane, other.side)
        for name in ("ids", "strengths", "indptr", "indices", "touched", "place", "values"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_blocks_hold_all_entries_of_their_keys() -> None:
    columns = EntryColumns("user", "item", "rating")
    cut = KeyedCollection.from_sources("memory", PARTS, columns, SIDES).cut(4)
    for at, (side, other) in enumerate((("user", "item"), ("item", "user"))):
        found = []
        for block in blocks_of(cut)[at::2]:
            ids = np.empty(len(block.touched), object)
            ids[block.place] = block.touched
            rows = np.repeat(block.ids, np.diff(block.indptr))
            found.append(pd.DataFrame({side: rows, other: ids[block.indices]}))
            found[-1]["rating"] = block.values
        whole = pd.concat(found)[["user", "item", "rating"]]
        expected = FRAME.sort_values(["user", "item", "rating"], ignore_index=True)
        whole = whole.sort_values(["user", "item", "rating"], ignore_index=True)
        pd.testing.assert_frame_equal(whole, expected, check_dtype=False)


@pytest.mark.parametrize(
    "ids",
    [
        np.array([-3, 0, 2**40]),
        np.array([0.5, 2.0], np.float32),
        np.array(["2020-01-01", "2021-02-03"], "M8[ns]"),
        np.array(["a", "zürich", "", "\ud800", "a\0"], object),
        np.array([b"a", b"\0\xff"], object),
        np.array(["abc", "d"]),
        np.array([b"abc", b"d"]),
        np.array([], object),
        np.array([], np.int32),
    ],
    ids=repr,
)
def test_ids_are_sent_unchanged(ids: Any) -> None:
    others = np.array([7, 9])
    found, same = unpack_ids(pack_ids([ids, others]))
    assert found.tolist() == ids.tolist()
    np.testing.assert_array_equal(same, others)
