"""Loops over rows that numba compiles with the functions of a loss and an optimizer."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numba

from daskml_dist.backends.entries import helpers

__all__ = ["compiled_with"]


@cache
def compiled_with(
    loop: Callable[..., Any],
    *,
    reassociates: bool = False,
    exact: bool = False,
    **parts: Callable[..., Any],
) -> Any:
    """A loop with other functions in the places of some that it calls.

    Parameters
    ----------
    loop : function
    reassociates : bool, default=False
        Whether sums may be taken in any order, so that vector instructions take them. Not where
        digits are won from the order of operations.
    exact : bool, default=False
        Whether each operation is rounded, as NumPy's are; otherwise a product and a sum may be one.
    **parts : function
        By the name by which the loop calls it; what this has returned already, or compiled here.

    Returns
    -------
    function
        Compiled at its first call, without Python's lock. numba keeps what it compiled on disk, by
        the name of the function and the date of its file; so the name tells of the code of the
        parts too.
    """
    code = zlib.crc32(b"".join(map(_code, parts.values())))
    name = f"{loop.__name__.strip('_')}_{code:08x}"
    own = {key: _inner(part) for key, part in parts.items()}
    function = FunctionType(loop.__code__, {**loop.__globals__, **own}, name)
    function.__qualname__ = name
    fastmath: Any = False if exact else {"contract"}
    if reassociates:
        fastmath = {"contract", "reassoc", "nsz"}
    return numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=fastmath)(function)


def _inner(part: Any) -> Any:
    """A part for other loops to call, compiled with the functions that it calls itself."""
    if hasattr(part, "py_func"):
        return part
    own = {name: _inner(helper) for name, helper in helpers(part).items()}
    code, defaults, closure = part.__code__, part.__defaults__, part.__closure__
    function = FunctionType(code, {**part.__globals__, **own}, part.__name__, defaults, closure)
    return numba.njit(inline="never", error_model="numpy")(function)


def _code(part: Any) -> bytes:
    """Key of a part, another for each."""
    function = getattr(part, "py_func", part)
    code = function.__code__
    names = function.__module__, function.__qualname__, code.co_names, code.co_consts
    called = b"" if function is not part else b"".join(map(_code, helpers(part).values()))
    return bytes(code.co_code) + repr(names).encode() + called
