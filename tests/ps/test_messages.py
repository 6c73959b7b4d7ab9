"""Messages: gradients are added in the order of their lanes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from daskml_dist.ps.messages import sum_in_lane_order


@pytest.mark.parametrize("sparse", [False, True])
def test_sum_does_not_depend_on_the_order_of_arrival(sparse: bool) -> None:
    """Floating-point sums do, so the parts are added in the order of their lanes."""
    rng = np.random.default_rng(0)
    parts = []
    for lane in range(6):
        index = np.sort(rng.choice(9, 5, replace=False)) if sparse else None
        parts.append((lane, index, rng.normal(size=(5, 2)) * 10.0**lane))
    values_before = [values.copy() for _, _, values in parts]
    index, total = sum_in_lane_order(parts)
    dense = np.zeros((9, 2))
    for _, at, values in parts:
        dense[slice(5) if at is None else at] += values
    np.testing.assert_array_equal(total, dense[slice(5) if index is None else index])
    for seed in range(10):
        _, total_of_other_order = sum_in_lane_order(random.Random(seed).sample(parts, 6))
        np.testing.assert_array_equal(total_of_other_order, total)
    for (_, _, values), before in zip(parts, values_before, strict=True):
        np.testing.assert_array_equal(values, before)
        assert not np.shares_memory(values, total)
