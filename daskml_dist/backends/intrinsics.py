"""Intrinsics of compiled loops: addresses, vectors, copies, and flags in shared memory.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

from daskml_dist.backends.compiled import compiled_inside


def emitted(typing: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes an intrinsic from a function that emits LLVM code.

    `typing` returns numba's signature, given the types of the arguments.
    """

    def decorate(emit: Callable[..., Any]) -> Any:
        @wraps(emit)
        def define(context: Any, *kinds: Any) -> Any:
            return typing(*kinds), emit

        # numba matches arguments by the names of the parameters after the context.
        context_parameter = [Parameter("context", Parameter.POSITIONAL_OR_KEYWORD)]
        defined: Any = define
        defined.__signature__ = Signature(
            [*context_parameter, *signature(typing).parameters.values()]
        )
        return intrinsic(defined)

    return decorate


@emitted(lambda address: types.voidptr(types.int64))
def pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Convert an address to a pointer, for `array_at`."""
    return builder.inttoptr(arguments[0], cgutils.voidptr_t)


@emitted(lambda address: types.void(types.int64))
def prefetch(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Prefetch the cache line at an address, which need not be valid."""
    number = ir.IntType(32)
    pointer = builder.inttoptr(arguments[0], cgutils.voidptr_t)
    function_type = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
    fetch = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
    builder.call(fetch, [pointer, number(0), number(3), number(1)])
    return context.get_dummy_value()


@emitted(lambda address, place, dtype: dtype.dtype(types.int64, types.int64, dtype))
def number_at(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Read a number of a dtype at an offset in items from an address, which may be unaligned."""
    # Like an entry of `array_at`, which takes ten times as long to compile.
    kind = context.get_value_type(signature.return_type)
    first = builder.inttoptr(arguments[0], kind.as_pointer())
    return builder.load(builder.gep(first, [arguments[1]]), align=1)


@emitted(lambda address, place, number: types.void(types.int64, types.int64, number))
def put_number(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Write a number at an offset in items from an address, which may be unaligned."""
    first = builder.inttoptr(arguments[0], arguments[2].type.as_pointer())
    builder.store(arguments[2], builder.gep(first, [arguments[1]]), align=1)
    return context.get_dummy_value()


#: ``array_at(pointer(address), shape, dtype)``
array_at: Any = numba.carray  # type: ignore[attr-defined]


#: Bytes of a vector: a cache line, and a register of AVX-512; LLVM splits it for shorter registers.
VECTOR_BYTES = 64
_INT32 = ir.IntType(32)


class _Vector(types.Type):
    """Type of a vector of floats with `VECTOR_BYTES` bytes."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Vector({dtype})")


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _vector_type(kind.dtype))  # type: ignore[no-untyped-call]


def _vector_type(dtype: Any) -> Any:
    """Return LLVM's type of a vector of float32 or float64."""
    number = {32: ir.FloatType(), 64: ir.DoubleType()}[dtype.bitwidth]
    return ir.VectorType(number, 8 * VECTOR_BYTES // dtype.bitwidth)


def _pointer_to(builder: Any, address: Any, kind: Any) -> Any:
    """Emit the pointer of a type at an address."""
    return builder.inttoptr(address, kind.as_pointer())


def _shuffle_lanes(builder: Any, a: Any, b: Any, places: list[int]) -> Any:
    """Emit a vector of lanes selected from two vectors, by position."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INT32, len(places)), places))


@emitted(lambda address, dtype: _Vector(dtype.dtype)(types.int64, dtype))
def load_vector(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Return the vector of floats of a dtype at an address."""
    place = _pointer_to(builder, arguments[0], _vector_type(signature.return_type.dtype))
    return builder.load(place, align=1)


@emitted(lambda address, vector: types.void(types.int64, vector))
def store_vector(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Write a vector at an address."""
    builder.store(arguments[1], _pointer_to(builder, arguments[0], arguments[1].type), align=1)
    return context.get_dummy_value()


@emitted(lambda dtype: _Vector(dtype.dtype)(dtype))
def zero_vector(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Return a vector of zeros of a dtype."""
    kind = _vector_type(signature.return_type.dtype)
    return ir.Constant(kind, [0.0] * kind.count)


@emitted(lambda number: _Vector(number)(number))
def broadcast_number(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Return a vector with one number in all lanes."""
    kind = _vector_type(signature.return_type.dtype)
    empty = ir.Constant(kind, ir.Undefined)
    first_lane = builder.insert_element(empty, arguments[0], _INT32(0))
    return _shuffle_lanes(builder, first_lane, empty, [0] * kind.count)


@emitted(lambda a, b, c: a(a, b, c))
def multiply_add(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Return ``a * b + c``, rounded once if the processor has fused multiply-adds."""
    kind = arguments[0].type
    name = f"llvm.fmuladd.v{kind.count}f{signature.return_type.dtype.bitwidth}"
    function_type = ir.FunctionType(kind, [kind] * 3)
    return builder.call(
        cgutils.get_or_insert_function(builder.module, function_type, name), arguments
    )


@emitted(lambda a, b: a(a, b))
def add_vectors(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Return ``a + b``."""
    return builder.fadd(*arguments)


@emitted(lambda address, a, b, c, d: types.void(types.int64, a, b, c, d))
def store_four_sums(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Write the sums of four vectors' numbers to consecutive addresses."""
    address, *vectors = arguments
    # A tree of pairwise additions: two rounds interleave halves of four vectors, the others halve
    # one vector, so that four horizontal sums cost about as much as one.
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [_add_halves(builder, *pair, 4 // len(vectors)) for pair in pairs]
    (sums,) = vectors
    while sums.type.count > 4:
        places = range(sums.type.count)
        halves = [_shuffle_lanes(builder, sums, sums, list(places[i::2])) for i in (0, 1)]
        sums = builder.fadd(*halves)
    builder.store(sums, _pointer_to(builder, address, sums.type), align=1)
    return context.get_dummy_value()


def _add_halves(builder: Any, a: Any, b: Any, n: int) -> Any:
    """Combine two vectors: add neighbouring halves of each of `n` parts."""
    count = a.type.count
    places = [number * count + i for number in (0, 1) for i in range(count)]
    size = count // n
    parts = [places[i : i + size] for i in range(0, len(places), size)]
    low = [i for part in parts for i in part[: size // 2]]
    high = [i for part in parts for i in part[size // 2 :]]
    return builder.fadd(_shuffle_lanes(builder, a, b, low), _shuffle_lanes(builder, a, b, high))


_inside = compiled_inside(error_model="numpy")


@_inside
def copy_values(out: Any, values: Any) -> None:
    """Copy a vector of the same length."""
    for i in range(len(out)):
        out[i] = values[i]


@_inside
def copy_rows(out: Any, rows: Any) -> None:
    """Copy a matrix of the same shape."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = rows[i, j]


_INT64 = ir.IntType(64)
#: Number of CLOCK_MONOTONIC for ``clock_gettime``; it differs between macOS and Linux.
_CLOCK_MONOTONIC = getattr(time, "CLOCK_MONOTONIC", 1)
#: LLVM's name of the spin-wait instruction, which frees core resources for others, and its
#: arguments, by processor.
_WAITING_HINTS: dict[str, tuple[str, list[int]]] = {
    "x86_64": ("llvm.x86.sse2.pause", []),
    "aarch64": ("llvm.aarch64.hint", [1]),
}


@emitted(lambda address: types.int64(types.int64))
def read_flag(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Return the number at an address, read with acquire order."""
    flag = builder.inttoptr(arguments[0], _INT64.as_pointer())
    return builder.load_atomic(flag, "acquire", 8)


@emitted(lambda address, value: types.void(types.int64, types.int64))
def raise_flag(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Write a number after all earlier writes, and before all later reads."""
    flag = builder.inttoptr(arguments[0], _INT64.as_pointer())
    builder.store_atomic(arguments[1], flag, "release", 8)
    builder.fence("seq_cst")
    return context.get_dummy_value()


@emitted(lambda: types.void())
def hint_waiting(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Hint to the processor that this loop only waits."""
    name, hint_arguments = _WAITING_HINTS.get(platform.machine(), (None, []))
    if name is not None:
        number = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [number for _ in hint_arguments])
        hint = cgutils.get_or_insert_function(builder.module, function_type, name)
        builder.call(hint, [number(value) for value in hint_arguments])
    return context.get_dummy_value()


@emitted(lambda: types.void())
def yield_processor(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Yield the core to another thread."""
    function_type = ir.FunctionType(ir.IntType(32), [])
    call = cgutils.get_or_insert_function(builder.module, function_type, "sched_yield")
    builder.call(call, [])
    return context.get_dummy_value()


@emitted(lambda: types.int64())
def monotonic_nanoseconds(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Return the nanoseconds of the monotonic clock."""
    moment = cgutils.alloca_once(builder, ir.ArrayType(_INT64, 2))
    number = ir.IntType(32)
    function_type = ir.FunctionType(number, [number, moment.type])
    call = cgutils.get_or_insert_function(builder.module, function_type, "clock_gettime")
    builder.call(call, [number(_CLOCK_MONOTONIC), moment])
    seconds, nanoseconds = (builder.extract_value(builder.load(moment), i) for i in (0, 1))
    return builder.add(builder.mul(seconds, _INT64(10**9)), nanoseconds)


@emitted(lambda descriptor: types.void(types.int64))
def ring_bell(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Write a byte to a pipe; if the pipe is full, its reader is already woken."""
    byte = cgutils.alloca_once_value(builder, ir.IntType(8)(33))
    function_type = ir.FunctionType(_INT64, [ir.IntType(32), byte.type, _INT64])
    call = cgutils.get_or_insert_function(builder.module, function_type, "write")
    where = builder.trunc(arguments[0], ir.IntType(32))
    builder.call(call, [where, byte, _INT64(1)])
    return context.get_dummy_value()
