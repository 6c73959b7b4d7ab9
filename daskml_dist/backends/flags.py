"""Flags in memory that several processes see, for loops that numba compiles.

A compiler may keep in a register what a loop reads again and again, and a processor may let others
see two writes in the other order. Loads and stores of flags are therefore atomic ones: who sees a
flag raised sees all that was written before it.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["look", "nanoseconds", "pause", "raise_flag", "ring", "yield_processor"]

_WORD = ir.IntType(64)
_MONOTONIC = 1
#: What a processor calls the instruction of one that waits, and its arguments.
_HINTS: dict[str, tuple[str, list[int]]] = {
    "x86_64": ("llvm.x86.sse2.pause", []),
    "aarch64": ("llvm.aarch64.hint", [1]),
}


@intrinsic
def _look(context: Any, address: Any) -> Any:
    """The number at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        flag = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.load_atomic(flag, "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def _raise_flag(context: Any, address: Any, value: Any) -> Any:
    """Write a number, after all that was written before and before all that is read after."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        flag = builder.inttoptr(arguments[0], _WORD.as_pointer())
        builder.store_atomic(arguments[1], flag, "release", 8)
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _pause(context: Any) -> Any:
    """Tell the processor that this loop only waits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        name, given = _HINTS.get(platform.machine(), (None, []))
        if name is not None:
            number = ir.IntType(32)
            of = ir.FunctionType(ir.VoidType(), [number for _ in given])
            hint = cgutils.get_or_insert_function(builder.module, of, name)
            builder.call(hint, [number(value) for value in given])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _yield_processor(context: Any) -> Any:
    """Let another thread run that waits for this one's core."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        of = ir.FunctionType(ir.IntType(32), [])
        call = cgutils.get_or_insert_function(builder.module, of, "sched_yield")
        builder.call(call, [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _nanoseconds(context: Any) -> Any:
    """Nanoseconds of a clock that only goes on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        moment = cgutils.alloca_once(builder, ir.ArrayType(_WORD, 2))
        number = ir.IntType(32)
        of = ir.FunctionType(number, [number, moment.type])
        call = cgutils.get_or_insert_function(builder.module, of, "clock_gettime")
        builder.call(call, [number(_MONOTONIC), moment])
        seconds, rest = (builder.extract_value(builder.load(moment), i) for i in (0, 1))
        return builder.add(builder.mul(seconds, _WORD(10**9)), rest)

    return types.int64(), generate


@intrinsic
def _ring(context: Any, descriptor: Any) -> Any:
    """Write a byte to a pipe; one that is full rings already."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = cgutils.alloca_once_value(builder, ir.IntType(8)(33))
        of = ir.FunctionType(_WORD, [ir.IntType(32), byte.type, _WORD])
        call = cgutils.get_or_insert_function(builder.module, of, "write")
        where = builder.trunc(arguments[0], ir.IntType(32))
        builder.call(call, [where, byte, _WORD(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


#: ``look(address)``
look: Any = _look
#: ``raise_flag(address, value)``
raise_flag: Any = _raise_flag
pause: Any = _pause
yield_processor: Any = _yield_processor
nanoseconds: Any = _nanoseconds
#: ``ring(descriptor)``
ring: Any = _ring
