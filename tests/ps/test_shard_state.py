"""Start states of which few rows differ from the others: they are sent as these few rows."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from daskml_dist.ps.shard_state import MostlyEqualRows, ShardState, pack_rows

NUMBERS = np.array([0, 7, 8, 41, 99])


def _matrix(other: float) -> np.ndarray:
    array = np.full((100, 3), other, np.float32)
    array[NUMBERS] = np.random.default_rng(0).normal(size=(len(NUMBERS), 3))
    return array


@pytest.mark.parametrize("other", [0.0, 0.1])
def test_slices_of_packed_rows_equal_those_of_the_array(other: float) -> None:
    array = _matrix(other)
    packed = pickle.loads(pickle.dumps(pack_rows(array, NUMBERS)))
    assert isinstance(packed, MostlyEqualRows)
    assert packed.nbytes < array.nbytes / 5
    for rows in (slice(None), slice(0, 1), slice(7, 42), slice(50, 90), slice(99, None)):
        np.testing.assert_array_equal(packed[rows], array[rows])
        assert packed[rows].dtype == array.dtype
    state = ShardState(packed, {"accumulator": pack_rows(array + 1, NUMBERS)})
    part = state.slice_rows(slice(5, 60))
    np.testing.assert_array_equal(part.w, array[5:60])
    np.testing.assert_array_equal(part.opt_state["accumulator"], array[5:60] + 1)
    view = state.view(slice(5, 60))
    assert isinstance(view.w, MostlyEqualRows)
    np.testing.assert_array_equal(view.slice_rows(slice(2, 40)).w, array[7:45])


def test_arrays_are_packed_only_if_most_rows_are_equal() -> None:
    array = _matrix(0.0)
    array[50, 1] = 3.0
    assert pack_rows(array, NUMBERS) is array
    assert pack_rows(array, np.arange(60)) is array
    array[50] = np.nan
    assert pack_rows(array, NUMBERS) is array
