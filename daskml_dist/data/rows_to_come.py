"""Rows to come: a stand-in for them, to ask an estimator how it would answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["RowsToCome"]


@dataclass(frozen=True)
class RowsToCome:
    """Rows in memory of a dtype that nobody has yet, without names.

    A method of rows that maps a function over them returns this function instead of answers (see
    ``map_rows``).
    """

    dtype: np.dtype[Any]
