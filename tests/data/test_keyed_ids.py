"""Ids of any type, and those that are refused."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pandas as pd
import pytest

from daskml_dist.data.keyed.collection import convert_values
from daskml_dist.data.keyed.ids import (
    IdLookup,
    check_one_kind,
    convert_ids,
    factorize_columns,
    find_positions,
    merge_ids,
)
from daskml_dist.errors import InvalidDataError

NOON = pd.Timestamp("2020-06-01 12:00")
GOOD = {
    "of a zone": (pd.Series([NOON, NOON]).dt.tz_localize("Europe/Berlin"), "M"),
    "timestamps": ([NOON, NOON], "M"),
    "dates": ([NOON.date()], "M"),
    "categories": (pd.Categorical(["b", "a"]), "O"),
    "booleans": (np.array([True, False], object), "u"),
    "above 2**63": (np.array([2**63 + 1, 2**63 + 5], np.uint64), "u"),
    "objects above 2**63": (np.array([2**63 + 1, 7], object), "u"),
    "nullable": (pd.array([3, 1], "Int64"), "i"),
    # Their distances exceed the dtype.
    "of one byte": (np.array([-100, 100, 50], np.int8), "i"),
}
BAD = {
    "of 128 bits": (np.array([2**70], object), "more than 64 bits"),
    "UUIDs": ([uuid.UUID(int=1)], r"astype\(str\)"),
    "missing": (["a", None], "dropna"),
    "numbers and texts": (np.array([1, "a"], object), r"astype\(str\)"),
}


@pytest.mark.parametrize("name", GOOD)
def test_ids_are_numbered_in_order(name: str) -> None:
    raw_ids, kind = GOOD[name]
    ids = convert_ids(raw_ids, "user")
    assert ids.dtype.kind == kind
    distinct, (codes,) = factorize_columns([ids])
    assert (distinct[codes] == ids).all()
    assert distinct.tolist() == sorted(set(ids.tolist()))
    np.testing.assert_array_equal(merge_ids([distinct, distinct]), distinct)
    for find in (IdLookup(distinct), lambda ids: find_positions(distinct, ids)):
        np.testing.assert_array_equal(find(ids), codes)


def test_bytes_with_and_without_sign_are_numbered_together() -> None:
    columns = np.array([200, 3], np.uint8), np.array([-5, 3], np.int8)
    distinct, codes = factorize_columns(columns)
    assert distinct.tolist() == [-5, 3, 200]
    assert [code.tolist() for code in codes] == [[2, 1], [0, 1]]


@pytest.mark.parametrize("step", [1, 10**9], ids=["narrow", "wide"])
def test_integers_of_both_kinds_stay_integers(step: int) -> None:
    columns = np.array([-1, 3]) * step, np.array([3, 7], np.uint64) * np.uint64(step)
    distinct, (first, second) = factorize_columns(columns)
    for ids in (distinct, merge_ids(columns)):
        assert ids.dtype == np.int64
        assert ids.tolist() == [-step, 3 * step, 7 * step]
    assert first.tolist() == [0, 1]
    assert second.tolist() == [1, 2]


def test_large_ids_with_and_without_sign_are_found() -> None:
    ids = 2**60 + np.arange(3)
    for table, wanted in ((ids, ids.astype(np.uint64)), (ids.astype(np.uint64), ids)):
        assert find_positions(table, wanted[::-1]).tolist() == [2, 1, 0]
    # -1 and 2**64 - 1 have the same bits.
    most, ends = np.array([0, 2**64 - 1], np.uint64), np.array([-1, 0])
    assert find_positions(ends, most).tolist() == [1, -1]
    assert find_positions(most, ends).tolist() == [-1, 0]


@pytest.mark.parametrize("name", BAD)
def test_ids_without_order_are_refused(name: str) -> None:
    raw_ids, match = BAD[name]
    with pytest.raises(InvalidDataError, match=match):
        convert_ids(raw_ids, "user")


@pytest.mark.parametrize("others", [np.array([0.5]), np.array([2**63 + 1], np.uint64)], ids=repr)
def test_integers_without_a_common_type_are_refused(others: Any) -> None:
    with pytest.raises(InvalidDataError, match="could become equal"):
        check_one_kind([np.array([2**53 + 1]), others])
    check_one_kind([np.array([2**53]), others.astype(float)])


@pytest.mark.parametrize("values", [np.ones(2) * 1j, np.array(["2020"], "M8[D]")], ids=repr)
def test_non_real_values_are_refused(values: Any) -> None:
    with pytest.raises(InvalidDataError, match="values that are not numbers"):
        convert_values(values, "rating", None)
