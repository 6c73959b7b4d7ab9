"""Columns other than those of the fit are refused."""

from __future__ import annotations

import pytest

from tests.contracts.columns import CHANGES, FRAMES, Other, check, subjects
from tests.quick import in_turn


@pytest.mark.parametrize(("change", "frame"), in_turn(CHANGES, FRAMES))
def test_columns_other_than_those_of_the_fit_are_refused(change: str, frame: str) -> None:
    problems = {name: check(Other(name, change, frame)) for name in subjects()}
    assert {name: lines for name, lines in problems.items() if lines} == {}
