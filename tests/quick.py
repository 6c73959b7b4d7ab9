"""Parameter tables of which the default test run uses a few rows, and the slow run all."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["in_turn", "quick"]


def quick(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """Return values to parametrize a test with; all but the chosen ones are marked slow."""
    every = list(values)
    assert set(chosen) <= set(every), f"{set(chosen).difference(every)} is not in the table"
    return [v if v in chosen else pytest.param(v, marks=pytest.mark.slow) for v in every]


def in_turn(*tables: Iterable[Any]) -> list[Any]:
    """Return all combinations of the tables' values to parametrize a test with.

    The first values of all tables form a usual combination, then the second values, and so on; a
    table that is exhausted starts again. So the default run uses each value at least once; all
    other combinations are slow.
    """
    every = [list(table) for table in tables]
    turns = range(max(len(table) for table in every))
    usual = {tuple(turn % len(table) for table in every) for turn in turns}
    return [
        pytest.param(
            *(table[place] for table, place in zip(every, places, strict=True)),
            marks=() if places in usual else pytest.mark.slow,
        )
        for places in itertools.product(*(range(len(table)) for table in every))
    ]
