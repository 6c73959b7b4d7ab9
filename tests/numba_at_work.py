"""Importing this module prepares numba to load and compile functions, which takes a while.

Processes that import it compile a function one after the other: if several workers, or concurrent
sessions, need the same function, the first compiles it, and the others load its result from disk.
Garbage collection is off during a compilation: it creates millions of objects, most of which live
until its end, so collections took a tenth of its time and freed little.
"""

from __future__ import annotations

import fcntl
import gc
import os
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba
from numba.core.dispatcher import Dispatcher

#: Seconds to wait for a lock; after that its holder may have been stopped, and is ignored.
_PATIENCE = 30.0

_here = threading.local()
_compile = Dispatcher.compile


@contextmanager
def _turn(path: str) -> Iterator[None]:
    _here.busy, end = True, time.monotonic() + _PATIENCE
    collects = gc.isenabled()
    try:
        with open(path, "a") as file:  # closing it releases the lock
            while time.monotonic() < end:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.02)
            gc.disable()
            yield
    finally:
        _here.busy = False
        if collects:
            gc.enable()


def _lock_path(function: Any) -> str:
    """Return the lock file of a function, in the folder that the sessions share."""
    code = function.__code__
    whole = f"{code.co_filename}:{code.co_firstlineno}:{function.__qualname__}"
    folder = os.environ.get("DASKML_DIST_TESTS_SHARED", "")
    if not os.path.isdir(folder):  # the run has ended, and a worker may outlive it
        folder = tempfile.gettempdir()
    return os.path.join(folder, f"compiling-{zlib.crc32(whole.encode()):08x}.lock")


def _in_turns(self: Any, sig: Any) -> Any:
    """Compile one function at a time; functions called by it are compiled under the same lock."""
    if getattr(_here, "busy", False) or self._cache.cache_path is None:
        return _compile(self, sig)
    with _turn(_lock_path(self.py_func)):
        return _compile(self, sig)


Dispatcher.compile = _in_turns


@numba.njit(cache=True)
def _same(x: float) -> float:
    return x


_same(0.0)
