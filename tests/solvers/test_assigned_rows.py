"""Rows assigned to trainers: consecutive rows are slices."""

from __future__ import annotations

import numpy as np
import pytest

from daskml_dist.solvers.dealt_rows import RowSelection

RANDOM = np.random.default_rng(0)
SELECTIONS = {
    "all": np.arange(1_000),
    "one run": np.arange(100, 400),
    "runs": np.concatenate([np.arange(500, 900), np.arange(200), np.arange(900, 1_000)]),
    "short runs": np.concatenate([np.arange(at, at + 3) for at in range(0, 900, 10)]),
    "backwards": np.arange(1_000)[::-1],
    "scattered": RANDOM.permutation(1_000),
    "one row": np.array([7]),
    "none": np.empty(0, np.intp),
}


@pytest.mark.parametrize("at", SELECTIONS.values(), ids=SELECTIONS)
def test_gathered_values_are_scattered_back_to_their_positions(at: np.ndarray) -> None:
    values, selection = RANDOM.normal(size=1_000), RowSelection(at)
    taken = selection.take(values)
    np.testing.assert_array_equal(taken, values[at])
    assert len(selection) == len(at)
    found = np.zeros(1_000)
    selection.put(taken, found)
    expected = np.zeros(1_000)
    expected[at] = values[at]
    np.testing.assert_array_equal(found, expected)
