"""Memory by its address, for loops that numba compiles."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["array_at", "pointer", "prefetch"]


@intrinsic
def _to_pointer(context: Any, address: Any) -> Any:
    """An address as a pointer, for `array_at`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def _fetch(context: Any, address: Any) -> Any:
    """Fetch the cache line of an address, which need not be valid."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.IntType(32)
        pointer = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        of = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        fetch = cgutils.get_or_insert_function(builder.module, of, "llvm.prefetch.p0")
        builder.call(fetch, [pointer, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


#: ``array_at(pointer(address), shape, dtype)``
array_at: Any = numba.carray  # type: ignore[attr-defined]
pointer: Any = _to_pointer
prefetch: Any = _fetch
