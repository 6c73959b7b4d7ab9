"""Threads of the host: their number, BLAS's threads, and denormal numbers.

`BlasThreads` limits the threads of BLAS libraries, and `flush_denormals` makes a thread treat
denormal numbers (tiny ones) as 0. A product with one of them takes a processor a hundred times as
long, and networks produce many: the moments of a unit that is never active shrink in each step
until they are denormal, and stay so. Flushing is a mode of each thread; a new thread inherits the
mode of the thread that starts it.
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

#: By processor, the 32-bit word of C's ``fenv_t`` that holds the mode, and the mode's bits (x86-64:
#: FTZ and DAZ of MXCSR, for results and operands; 64-bit ARM: FZ of FPCR, for both).
_MODE_WORDS = {"x86_64": (7, 0x8040), "aarch64": (0, 1 << 24)}

#: C's ``fenv_t``, with more space (256 bytes) than on any system.
_Environment = ctypes.c_uint32 * 64


@contextmanager
def flush_denormals(flushes: bool = True) -> Iterator[None]:
    """Treat denormal numbers as 0 in this thread, and in threads that it starts, if supported."""
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
        # Other modes may have changed in between; only this one is restored.
        get(environment)
        environment[word] = environment[word] & ~bits | before
        put(environment)


@cache
def _find_mode_functions() -> tuple[Callable[..., int], Callable[..., int]] | None:
    """Return C's functions that read and set a thread's floating-point mode, or None if unknown."""
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
    """Return the controller of the process's BLAS libraries; finding them takes milliseconds."""
    return ThreadpoolController()


@cache
def _find_blas_libraries() -> list[Any]:
    """Return the loaded BLAS libraries."""
    return list(find_blas_controller().select(user_api="blas").lib_controllers)


class BlasThreads:
    """Context that limits the threads of BLAS libraries, like `threadpoolctl`'s own.

    It takes a few microseconds instead of twenty, and streams enter it at each call.

    Parameters
    ----------
    max_threads : int, default=1
    """

    def __init__(self, max_threads: int = 1) -> None:
        self._max_threads = max_threads
        self._previous_limits: list[tuple[Any, int]] = []

    def __enter__(self) -> None:
        # Lanes run in parallel already: more threads would wait for each other, and sum in other
        # orders.
        for library in _find_blas_libraries():
            if (n := library.get_num_threads()) is not None and n > self._max_threads:
                self._previous_limits.append((library, n))
                library.set_num_threads(self._max_threads)

    def __exit__(self, *error: object) -> None:
        while self._previous_limits:
            library, n = self._previous_limits.pop()
            library.set_num_threads(n)
