"""Memory by its address, for loops that numba compiles."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["array_at", "number_at", "pointer", "prefetch", "put_number"]


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


@intrinsic
def _number_at(context: Any, address: Any, place: Any, dtype: Any) -> Any:
    """Read a number of a dtype, so many places behind an address, which may be any byte."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        first = builder.inttoptr(arguments[0], kind.as_pointer())
        return builder.load(builder.gep(first, [arguments[1]]), align=1)

    return dtype.dtype(types.int64, types.int64, dtype), generate


@intrinsic
def _put_number(context: Any, address: Any, place: Any, number: Any) -> Any:
    """Write a number so many places behind an address, which may be any byte."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first = builder.inttoptr(arguments[0], arguments[2].type.as_pointer())
        builder.store(arguments[2], builder.gep(first, [arguments[1]]), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, number), generate


#: ``array_at(pointer(address), shape, dtype)``
array_at: Any = numba.carray  # type: ignore[attr-defined]
pointer: Any = _to_pointer
prefetch: Any = _fetch
#: ``number_at(address, place, dtype)``: as an entry of `array_at`, which takes ten times as long to
#: compile.
number_at: Any = _number_at
#: ``put_number(address, place, number)``
put_number: Any = _put_number
