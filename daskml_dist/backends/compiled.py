"""Loops over rows that numba compiles with the functions of a loss and an optimizer."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numba

__all__ = ["compiled_with"]


@cache
def compiled_with(
    loop: Callable[..., Any], *, reassociates: bool = False, **parts: Callable[..., Any]
) -> Any:
    """A loop with other functions in the places of some that it calls.

    Parameters
    ----------
    loop : function
    reassociates : bool, default=False
        Whether sums may be taken in any order, so that vector instructions take them. Not where
        digits are won from the order of operations.
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
    inner = numba.njit(inline="never", error_model="numpy")
    own = {key: part if hasattr(part, "py_func") else inner(part) for key, part in parts.items()}
    function = FunctionType(loop.__code__, {**loop.__globals__, **own}, name)
    function.__qualname__ = name
    fastmath = {"contract", "reassoc", "nsz"} if reassociates else {"contract"}
    return numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=fastmath)(function)


def _code(part: Any) -> bytes:
    """What tells a part from others."""
    function = getattr(part, "py_func", part)
    code = function.__code__
    names = function.__module__, function.__qualname__, code.co_names, code.co_consts
    return bytes(code.co_code) + repr(names).encode()
