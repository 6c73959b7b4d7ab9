"""Loops over rows that numba compiles with the functions of a loss and an optimizer."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

import numba
from numba.extending import register_jitable

from daskml_dist.backends.entries import find_helpers
from daskml_dist.backends.file_locks import try_lock_file

_F = TypeVar("_F", bound=Callable[..., Any])
#: Options of the functions that `compiled_inside` has decorated: tests read all that is compiled.
INSIDE: dict[Callable[..., Any], dict[str, Any]] = {}
#: Seconds after which a process compiles though another one does: that one may have been stopped.
_MAX_LOCK_SECONDS = 30.0
_compile_lock = threading.Lock()


@cache
def compiled_with(
    loop: Callable[..., Any],
    *,
    reassociates: bool = False,
    exact: bool = False,
    **parts: Callable[..., Any],
) -> Any:
    """Compile a loop with given functions in the places of placeholders that it calls."""
    # A part that the loop never names would be left out, and the placeholder compiled in its place.
    if unused := parts.keys() - {*loop.__code__.co_names}:
        raise TypeError(f"{loop.__name__} calls no {', '.join(sorted(unused))}")
    # numba's cache on disk goes by the name of a function: loops with other parts need other names.
    code = zlib.crc32(b"".join(map(_identify_part, parts.values())))
    name = f"{loop.__name__.strip('_')}_{code:08x}"
    own = {key: _compile_part(part) for key, part in parts.items()}
    # The loop's code with other globals: placeholders become the given functions.
    function = FunctionType(loop.__code__, {**loop.__globals__, **own}, name)
    function.__qualname__ = name
    fastmath: Any = False if exact else {"contract"}
    if reassociates:
        fastmath = {"contract", "reassoc", "nsz"}
    return compiled_entry(fastmath=fastmath)(function)


def compiled_entry(**options: Any) -> Callable[[_F], _F]:
    """Return a decorator of functions that Python calls: without its lock, and kept on disk.

    numba makes no entry for C, which nothing calls and which takes a tenth of the time.
    """
    given: Any = {"nogil": True, "cache": True, "no_cfunc_wrapper": True, "error_model": "numpy"}
    return cast("Callable[[_F], _F]", numba.njit(**{**given, **options}))


def compiled_inside(**options: Any) -> Callable[[_F], _F]:
    """Return a decorator of functions that are called in compiled loops alone.

    numba compiles such a function with the loop that calls it. Of one by `numba.njit` it would also
    make two entries, for Python and for C, and keep it on disk, which takes about as long as the
    function itself. Called by Python it stays a function of Python.
    """

    def decorate(function: _F) -> _F:
        INSIDE[function] = options
        return register_jitable(no_cfunc_wrapper=True, **options)(function)

    return decorate


def compiled_in_turn(function: Callable[..., Any], signature: Any, **options: Any) -> Any:
    """Return a function compiled for a signature, now.

    Of the processes that need it at once, as the workers of a cluster do, one compiles it, and the
    others load what that one has left in numba's cache.
    """
    made: Any = compiled_entry(**options)(function)
    with _take_turn(made.stats.cache_path):
        compile_once(made, signature)
    return made


def compile_once(made: Any, signature: Any) -> None:
    """Compile a function for one signature, and for no other; threads may call this at once."""
    # The trainers of one process begin together, and so do a new one and one that is not yet gone.
    with _compile_lock:
        if not made.signatures:
            made.compile(signature)
            made.disable_compile()


@contextmanager
def _take_turn(folder: str | None) -> Iterator[None]:
    """Wait until no other process is in its turn in a folder, and let the others wait meanwhile."""
    try:
        if folder is None:
            raise FileNotFoundError
        Path(folder).mkdir(parents=True, exist_ok=True)
        # One lock file a cache folder; the lock is the file's, not the thread's.
        file = (Path(folder) / "compiling.lock").open("a")
    except OSError:  # Nothing can be shared in a folder that cannot be written to.
        yield
        return
    with file:  # The lock ends with the file, whatever ends the process.
        _lock_with_patience(file)
        yield


def _lock_with_patience(file: Any) -> None:
    """Lock a file, unless another process holds it for too long."""
    end = time.monotonic() + _MAX_LOCK_SECONDS
    while time.monotonic() < end:
        try:
            if try_lock_file(file):
                return
        except OSError:  # A file system without locks.
            return
        time.sleep(0.02)


def _compile_part(part: Any) -> Any:
    """Return a part compiled for other loops to call, with the helpers that it calls itself."""
    if hasattr(part, "py_func"):
        return part
    # Helpers are compiled the same way, or numba would take their Python versions.
    own = {name: _compile_part(helper) for name, helper in find_helpers(part).items()}
    code, defaults, closure = part.__code__, part.__defaults__, part.__closure__
    function = FunctionType(code, {**part.__globals__, **own}, part.__name__, defaults, closure)
    no_entries: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(inline="never", error_model="numpy", **no_entries)(function)


def _identify_part(part: Any) -> bytes:
    """Return bytes that differ between parts, for the name under which numba caches the loop."""
    function = getattr(part, "py_func", part)
    code = function.__code__
    names = function.__module__, function.__qualname__, code.co_names, code.co_consts
    # numba freezes numbers of the module and of enclosing functions into the code.
    frozen = [function.__globals__.get(name) for name in code.co_names]
    frozen += [cell.cell_contents for cell in function.__closure__ or ()]
    if numbers := [value for value in frozen if isinstance(value, int | float)]:
        names = *names, *numbers
    called = (
        b"" if function is not part else b"".join(map(_identify_part, find_helpers(part).values()))
    )
    return bytes(code.co_code) + repr(names).encode() + called
