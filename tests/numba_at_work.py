"""An import of this module makes numba ready to load and compile functions, which takes a while."""

from __future__ import annotations

import numba


@numba.njit
def _same(x: float) -> float:
    return x


_same(0.0)
