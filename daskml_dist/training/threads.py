"""The threads of the process's BLAS libraries."""

from __future__ import annotations

from functools import cache

from threadpoolctl import ThreadpoolController

__all__ = ["blas"]


@cache
def blas() -> ThreadpoolController:
    """The process's BLAS libraries; looking for them takes milliseconds."""
    return ThreadpoolController()
