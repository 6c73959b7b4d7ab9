"""The table of lanes' gradients equals a plain implementation of the paper's algorithm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daskml_dist.ps.gradient_table import GradientTable, TableEntry

N_ROWS = 7


def _ringleader(pushes: list[tuple[int, float, Any]], lanes: set[int]) -> list[Any]:
    """Return the step of each push: mean rows and the sum of the lanes' mean gradients, or None."""
    steps: list[Any] = []
    table: dict[int, list[tuple[float, Any]]] = {}
    later: dict[int, list[tuple[float, Any]]] = {}
    served: set[int] = set()
    for lane, rows, gradient in pushes:
        (later if lane in served else table).setdefault(lane, []).append((rows, gradient))
        if lane in served or set(table) != lanes:
            steps.append(None)
            continue
        means = [
            tuple(sum(part) / len(entry) for part in zip(*entry, strict=True))
            for entry in table.values()
        ]
        steps.append((sum(rows for rows, _ in means), sum(gradient for _, gradient in means)))
        served.add(lane)
        if served == lanes:
            table, later, served = later, {}, set()
    return steps


@pytest.mark.parametrize("few_rows", [False, True])
def test_steps_equal_the_papers_algorithm(few_rows: bool) -> None:
    """A fast lane pushes ten times as often as a slow one."""
    rng = np.random.default_rng(0)
    order = rng.choice(4, size=400, p=[0.5, 0.3, 0.15, 0.05]).tolist()
    dense, pushes, lanes = [], [], set(range(4))
    for lane in order:
        index = np.sort(rng.choice(N_ROWS, 3, replace=False)) if few_rows else np.arange(N_ROWS)
        values = rng.normal(size=(len(index), 2))
        whole = np.zeros((N_ROWS, 2))
        whole[index] = values
        rows = float(rng.integers(1, 9))
        dense.append((lane, rows, whole))
        pushes.append(TableEntry(index if few_rows else None, values, rows))
    table, n_steps = GradientTable(), 0
    for lane, push, expected in zip(order, pushes, _ringleader(dense, lanes), strict=True):
        before = push.values.copy()
        step = table.add(lane, push, lanes)
        np.testing.assert_array_equal(push.values, before)  # the caller's array must not change
        assert (step is None) == (expected is None)
        if step is None:
            continue
        n_steps += 1
        found = np.zeros((N_ROWS, 2))
        found[slice(None) if step.index is None else step.index] = step.values
        np.testing.assert_allclose(found, expected[1], atol=1e-12)
        assert step.rows == pytest.approx(expected[0])
        step.values *= 0  # a step may clip its gradient in place
    assert n_steps > 50


def test_a_lane_that_has_left_is_not_waited_for() -> None:
    table = GradientTable()
    push = TableEntry(None, np.ones((2, 1)), 3.0)
    assert table.add(0, push, {0, 1}) is None
    step = table.add(0, push, {0})
    assert step is not None
    assert (step.rows, step.values.tolist()) == (3.0, [[1.0], [1.0]])
