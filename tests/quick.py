"""Tables of which the default run takes a few rows, and the slow one all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["quick"]


def quick(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """Values to parametrize a test with; all but the chosen ones are marked slow."""
    every = list(values)
    assert set(chosen) <= set(every), f"{set(chosen).difference(every)} is not in the table"
    return [v if v in chosen else pytest.param(v, marks=pytest.mark.slow) for v in every]
