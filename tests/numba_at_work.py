"""An import of this module makes numba ready to load and compile functions, which takes a while.

Processes that import it compile the functions of one file in turns: of several workers, or sessions
side by side, that need the same one, the first compiles it, and the others load what it has left on
disk.
"""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba
from numba.core.dispatcher import Dispatcher

#: Seconds after which a turn is taken anyhow: who has it may have been stopped.
_PATIENCE = 30.0

_here = threading.local()
_compile = Dispatcher.compile


@contextmanager
def _turn(path: str) -> Iterator[None]:
    _here.busy, end = True, time.monotonic() + _PATIENCE
    try:
        with open(path) as file:  # which gives the turn back when it is closed
            while time.monotonic() < end:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.02)
            yield
    finally:
        _here.busy = False


def _in_turns(self: Any, sig: Any) -> Any:
    """Functions that others call are compiled within their caller's turn."""
    if getattr(_here, "busy", False) or self._cache.cache_path is None:
        return _compile(self, sig)
    with _turn(self.py_func.__code__.co_filename):
        return _compile(self, sig)


Dispatcher.compile = _in_turns


@numba.njit(cache=True)
def _same(x: float) -> float:
    return x


_same(0.0)
