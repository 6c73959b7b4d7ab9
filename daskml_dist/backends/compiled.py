"""Step loops that numba compiles for one loss and one optimizer."""

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
    loop: Callable[..., Any], loss: Any, optimizer: Any, *, vectors: bool = False
) -> Any:
    """A loop that calls `_loss` and `_move`, with those of a loss and an optimizer.

    Parameters
    ----------
    loop : function
        Of a module with functions of these two names, for which `at_row` and `at_entry` stand in.
    loss, optimizer : type
        With an `at_row`; with an `at_entry`.
    vectors : bool, default=False
        Whether sums may be taken in any order, so that vector instructions take them.

    Returns
    -------
    function
        Compiled at its first call, without Python's lock. numba keeps what it compiled on disk, by
        the name of the function and the date of its file; so the name tells of the code of the two
        functions too.
    """
    parts = loss.at_row, optimizer.at_entry
    code = b"".join(p.__code__.co_code + repr(p.__code__.co_consts).encode() for p in parts)
    name = f"steps_{loss.__name__}_{optimizer.__name__}_{zlib.crc32(code):08x}"
    inner = numba.njit(inline="never", error_model="numpy")
    scope = {**loop.__globals__, "_loss": inner(parts[0]), "_move": inner(parts[1])}
    function = FunctionType(loop.__code__, scope, name)
    function.__qualname__ = name
    fastmath: Any = {"reassoc", "contract", "nsz"} if vectors else False
    return numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=fastmath)(function)
