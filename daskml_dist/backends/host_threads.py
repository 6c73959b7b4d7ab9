"""Threads of the host: their number, BLAS's threads, and numbers too small to be normal.

`BlasThreads` limits the threads of BLAS libraries, and `flush_denormals` lets a thread count
denormal numbers (too small to be normal) as 0. A processor takes a hundred times as long for a
product with one of these, and networks make many: the moments of a unit that is never active shrink
at each step until they are such, and stay so. Whether they count as 0 is a mode of each thread; a
new thread has that of the one that starts it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

#: By the kind of processor, the 32-bit word of C's ``fenv_t`` that holds the mode, and its bits
#: (x86-64: FTZ and DAZ of MXCSR, for results and operands; 64-bit ARM: FZ of FPCR, for both).
_MODE_WORDS = {"x86_64": (7, 0x8040), "aarch64": (0, 1 << 24)}

#: C's ``fenv_t``, with more room (256 bytes) than any system's has.
_Environment = ctypes.c_uint32 * 64


@contextmanager
def flush_denormals(flushes: bool = True) -> Iterator[None]:
    """Count denormal numbers as 0 in this thread, and in those that it starts, where it can."""
    if not flushes:
        yield
        return
    calls = _find_mode_functions()
    if calls is None:
        yield
        return
    (get, put), (word, bits) = calls, _MODE_WORDS[platform.machine()]
    environment = _Environment()
    get(environment)
    before = environment[word] & bits
    environment[word] |= bits
    put(environment)
    try:
        yield
    finally:
        # Other modes may have been changed meanwhile; only this one is put back.
        get(environment)
        environment[word] = environment[word] & ~bits | before
        put(environment)


@cache
def _find_mode_functions() -> tuple[Callable[..., int], Callable[..., int]] | None:
    """Return C's functions that read and write a thread's floating-point mode, or None
    if unknown.
    """
    if sys.platform != "linux" or platform.machine() not in _MODE_WORDS:
        return None
    for name in ("libm.so.6", None):
        try:
            library = ctypes.CDLL(name)
            return library.fegetenv, library.fesetenv
        except (OSError, AttributeError):
            continue
    return None


def count_cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


@cache
def find_blas_controller() -> ThreadpoolController:
    """Return the controller of the process's BLAS libraries; it takes milliseconds to find them."""
    return ThreadpoolController()


@cache
def _find_blas_libraries() -> list[Any]:
    """Return the loaded BLAS libraries."""
    return list(find_blas_controller().select(user_api="blas").lib_controllers)


class BlasThreads:
    """Context in which the BLAS libraries use at most some threads, as `threadpoolctl`'s own limit.

    It takes a few microseconds rather than twenty, and streams enter it at each call.

    Parameters
    ----------
    most : int, default=1
    """

    def __init__(self, most: int = 1) -> None:
        self._most = most
        self._before: list[tuple[Any, int]] = []

    def __enter__(self) -> None:
        # Lanes are the parallelism: more threads would wait for each other, and sum in other
        # orders.
        for library in _find_blas_libraries():
            if (n := library.get_num_threads()) is not None and n > self._most:
                self._before.append((library, n))
                library.set_num_threads(self._most)

    def __exit__(self, *error: object) -> None:
        while self._before:
            library, n = self._before.pop()
            library.set_num_threads(n)
