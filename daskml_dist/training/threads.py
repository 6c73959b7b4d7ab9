"""Limits on the threads of the process's BLAS libraries."""

from __future__ import annotations

from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["OneThread", "find_blas_controller"]


@cache
def find_blas_controller() -> ThreadpoolController:
    """Return the controller of the process's BLAS libraries; it takes milliseconds to find them."""
    return ThreadpoolController()


@cache
def _find_blas_libraries() -> list[Any]:
    """Return the loaded BLAS libraries."""
    return list(find_blas_controller().select(user_api="blas").lib_controllers)


class OneThread:
    """Context in which the BLAS libraries use one thread, as `threadpoolctl`'s own limit.

    It takes a few microseconds rather than twenty, and streams enter it at each call.
    """

    def __init__(self) -> None:
        self._before: list[tuple[Any, int]] = []

    def __enter__(self) -> None:
        # Lanes are the parallelism: more threads would wait for each other, and sum in other
        # orders.
        for library in _find_blas_libraries():
            if (n := library.get_num_threads()) is not None and n != 1:
                self._before.append((library, n))
                library.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        while self._before:
            library, n = self._before.pop()
            library.set_num_threads(n)
