"""Numbers too small to be normal, which a thread may count as 0.

A processor takes a hundred times as long for a product with one of them, and networks make many:
the moments of a unit that is never active shrink at each step until they are such, and stay so.
Whether they count as 0 is a mode of each thread; a new thread has that of the one that starts it.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

#: By the kind of processor, the 32-bit word of C's ``fenv_t`` that holds the mode, and its bits
#: (x86-64: FTZ and DAZ of MXCSR, for results and operands; 64-bit ARM: FZ of FPCR, for both).
_MODE_WORDS = {"x86_64": (7, 0x8040), "aarch64": (0, 1 << 24)}

#: C's ``fenv_t``, with more room (256 bytes) than any system's has.
_Environment = ctypes.c_uint32 * 64


def arithmetic(flushes: bool) -> AbstractContextManager[None]:
    """Return the context in which the calling thread, and those that it starts, compute."""
    return _flush_in_thread() if flushes else nullcontext()


@contextmanager
def _flush_in_thread() -> Iterator[None]:
    """Let this thread flush denormal numbers to zero meanwhile, where its processor can."""
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


@functools.cache
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
