"""Changes of the rows with a known effect have this effect."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="Hypothesis is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.relations import RELATIONS, check, related
from tests.contracts.report import drawn, fail_simplest


@pytest.mark.parametrize("relation", RELATIONS)
@settings(drawn, max_examples=2)
@given(data=st.data())
def test_relation_holds(relation: str, data: Any) -> None:
    case = data.draw(related(relation))
    if check(case):
        fail_simplest(case, check, "tests.contracts.relations")
