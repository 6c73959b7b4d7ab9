"""Loops over rows that numba compiles with the functions of a loss and an optimizer."""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

import numba
from numba.extending import register_jitable

from daskml_dist.backends.entries import find_helpers
from daskml_dist.backends.file_locks import try_lock_file

_F = TypeVar("_F", bound=Callable[..., Any])
#: Options of the functions decorated by `compiled_inside`: tests read all compiled functions.
INSIDE: dict[Callable[..., Any], dict[str, Any]] = {}
#: Seconds after which a process compiles although another one holds the lock: that one may have
#: been stopped.
_MAX_LOCK_SECONDS = 30.0
_compile_lock = threading.Lock()

logger = logging.getLogger("daskml_dist")


@cache
def compiled_with(
    loop: Callable[..., Any],
    *,
    reassociates: bool = False,
    exact: bool = False,
    **replacements: Callable[..., Any],
) -> Any:
    """Compile a loop with given functions in place of the placeholders that it calls."""
    # A part whose name the loop does not use would be ignored, and the placeholder compiled
    # instead.
    if unused := replacements.keys() - {*loop.__code__.co_names}:
        raise TypeError(f"{loop.__name__} calls no {', '.join(sorted(unused))}")
    # numba's cache on disk is keyed by function name: loops with other parts need other names.
    code = zlib.crc32(b"".join(map(_identify_part, replacements.values())))
    name = f"{loop.__name__.strip('_')}_{code:08x}"
    compiled_parts = {key: _compile_part(part) for key, part in replacements.items()}
    # The loop's code with other globals: placeholders become the given functions.
    function = FunctionType(loop.__code__, {**loop.__globals__, **compiled_parts}, name)
    function.__qualname__ = name
    fastmath: Any = False if exact else {"contract"}
    if reassociates:
        fastmath = {"contract", "reassoc", "nsz"}
    return compiled_entry(fastmath=fastmath)(function)


def compiled_entry(**options: Any) -> Callable[[_F], _F]:
    """Return a decorator for functions called from Python: without the GIL, and cached on disk.

    numba then makes no C entry point, which nothing calls and which takes a tenth of the time.
    """
    defaults: Any = {"nogil": True, "no_cfunc_wrapper": True, "error_model": "numpy"}
    return compiled_and_kept(**{**defaults, **options})


def compiled_and_kept(**options: Any) -> Callable[[_F], _F]:
    """Return numba's decorator, with a cache on disk unless no folder can hold it.

    numba itself refuses to decorate a function without a writable folder, as in containers, and
    ends the call that compiles it if the disk is full.
    """

    def decorate(function: _F) -> _F:
        try:
            compiled: Any = numba.njit(cache=True, **options)(function)
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            _warn_of_no_cache("no folder for it is writable")
            return cast(_F, numba.njit(**options)(function))
        if (cache := getattr(compiled, "_cache", None)) is not None:  # numba may be switched off
            cache.save_overload = partial(_save_if_possible, cache.save_overload)
        return cast(_F, compiled)

    return decorate


def _save_if_possible(save: Callable[..., None], *compiled: Any) -> None:
    """Save compiled code to the cache; warn if the disk is full."""
    try:
        save(*compiled)
    except OSError as error:
        _warn_of_no_cache(error.strerror or str(error))


@cache
def _warn_of_no_cache(reason: str) -> None:
    """Warn once that compiled code is not kept."""
    logger.warning(
        "Compiled code is not kept on disk (%s), so each process compiles it again. Set the "
        "environment variable NUMBA_CACHE_DIR to a writable folder with space.",
        reason,
    )


def compiled_inside(**options: Any) -> Callable[[_F], _F]:
    """Return a decorator for functions that are called only in compiled loops.

    numba compiles such a function with the loop that calls it. With `numba.njit` it would also make
    two entry points, for Python and for C, and cache the function on disk, which takes about as
    long as compiling it. Called from Python, it stays a Python function.
    """

    def decorate(function: _F) -> _F:
        INSIDE[function] = options
        return register_jitable(no_cfunc_wrapper=True, **options)(function)

    return decorate


def compiled_in_turn(function: Callable[..., Any], signature: Any, **options: Any) -> Any:
    """Return a function compiled for a signature, now.

    If several processes need it at the same time, such as the workers of a cluster, one compiles it
    and the others load it from numba's cache.
    """
    compiled: Any = compiled_entry(**options)(function)
    with _take_turn(compiled.stats.cache_path):
        compile_once(compiled, signature)
    return compiled


def compile_once(dispatcher: Any, signature: Any) -> None:
    """Compile a function for one signature, and for no other; thread-safe."""
    # Trainers in one process start together, and a new trainer may start before an old one has
    # ended.
    with _compile_lock:
        if not dispatcher.signatures:
            dispatcher.compile(signature)
            dispatcher.disable_compile()


@contextmanager
def _take_turn(folder: str | None) -> Iterator[None]:
    """Hold the compile lock of a cache folder, waiting for other processes."""
    try:
        if folder is None:
            raise FileNotFoundError
        Path(folder).mkdir(parents=True, exist_ok=True)
        # One lock file per cache folder; the lock belongs to the open file, not to the thread.
        file = (Path(folder) / "compiling.lock").open("a")
    except OSError:  # A read-only folder cannot be shared.
        yield
        return
    with file:  # The lock ends with the open file, however the process ends.
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


def _compile_part(replacement: Any) -> Any:
    """Return a part compiled for other loops to call, with the helpers that it calls."""
    if hasattr(replacement, "py_func"):
        return replacement
    # Helpers are compiled in the same way; otherwise numba would use their Python versions.
    helpers = {name: _compile_part(helper) for name, helper in find_helpers(replacement).items()}
    code, defaults, closure = (
        replacement.__code__,
        replacement.__defaults__,
        replacement.__closure__,
    )
    function = FunctionType(
        code, {**replacement.__globals__, **helpers}, replacement.__name__, defaults, closure
    )
    no_entries: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(inline="never", error_model="numpy", **no_entries)(function)


def _identify_part(replacement: Any) -> bytes:
    """Return bytes that identify a part, for the name under which numba caches the loop."""
    function = getattr(replacement, "py_func", replacement)
    code = function.__code__
    names = function.__module__, function.__qualname__, code.co_names, code.co_consts
    # numba compiles numbers of the module and of enclosing functions into the code as constants.
    constants = [function.__globals__.get(name) for name in code.co_names]
    constants += [cell.cell_contents for cell in function.__closure__ or ()]
    if numbers := [value for value in constants if isinstance(value, int | float)]:
        names = *names, *numbers
    helper_codes = (
        b""
        if function is not replacement
        else b"".join(map(_identify_part, find_helpers(replacement).values()))
    )
    return bytes(code.co_code) + repr(names).encode() + helper_codes
