"""Intrinsics of compiled loops: addresses, vectors, copies, and flags in shared memory.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

import platform
from typing import Any

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

from daskml_dist.backends.compiled import compiled_inside


@intrinsic
def _to_pointer(context: Any, address: Any) -> Any:
    """Return an address as a pointer, for `array_at`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def _prefetch_line(context: Any, address: Any) -> Any:
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
prefetch: Any = _prefetch_line
#: ``number_at(address, place, dtype)``: as an entry of `array_at`, which takes ten times as long to
#: compile.
number_at: Any = _number_at
#: ``put_number(address, place, number)``
put_number: Any = _put_number


#: Bytes of a vector: a cache line, and a register of AVX-512; LLVM splits it where registers are
#: shorter.
VECTOR_BYTES = 64
_INT32 = ir.IntType(32)


class _Vector(types.Type):
    """Type of as many floats as are `VECTOR_BYTES` bytes."""

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
    """Emit a vector of lanes of two vectors, by their places in both."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INT32, len(places)), places))


@intrinsic
def _load_vector(context: Any, address: Any, dtype: Any) -> Any:
    """Return the vector of floats of a dtype at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _pointer_to(builder, arguments[0], _vector_type(signature.return_type.dtype))
        return builder.load(place, align=1)

    return _Vector(dtype.dtype)(types.int64, dtype), generate


@intrinsic
def _store_vector(context: Any, address: Any, vector: Any) -> Any:
    """Write a vector from an address on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], _pointer_to(builder, arguments[0], arguments[1].type), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, vector), generate


@intrinsic
def _zero_vector(context: Any, dtype: Any) -> Any:
    """Return a vector of zeros of a dtype."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = _vector_type(signature.return_type.dtype)
        return ir.Constant(kind, [0.0] * kind.count)

    return _Vector(dtype.dtype)(dtype), generate


@intrinsic
def _broadcast_number(context: Any, number: Any) -> Any:
    """Return a vector with one number in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = _vector_type(signature.return_type.dtype)
        empty = ir.Constant(kind, ir.Undefined)
        one = builder.insert_element(empty, arguments[0], _INT32(0))
        return _shuffle_lanes(builder, one, empty, [0] * kind.count)

    return _Vector(number)(number), generate


@intrinsic
def _multiply_add(context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c``, rounded once where the processor has fused multiply-adds."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = arguments[0].type
        name = f"llvm.fmuladd.v{kind.count}f{signature.return_type.dtype.bitwidth}"
        of = ir.FunctionType(kind, [kind] * 3)
        return builder.call(cgutils.get_or_insert_function(builder.module, of, name), arguments)

    return a(a, b, c), generate


@intrinsic
def _add_vectors(context: Any, a: Any, b: Any) -> Any:
    """Return ``a + b``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fadd(*arguments)

    return a(a, b), generate


@intrinsic
def _store_four_sums(context: Any, address: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Write the sums of four vectors' numbers behind each other."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, *vectors = arguments
        # A tree of pairwise additions: two rounds interleave four vectors' halves, the rest halve
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

    return types.void(types.int64, a, b, c, d), generate


def _add_halves(builder: Any, a: Any, b: Any, n: int) -> Any:
    """Return one vector of two, in which neighbouring halves of each of `n` parts are added."""
    count = a.type.count
    places = [number * count + i for number in (0, 1) for i in range(count)]
    size = count // n
    parts = [places[i : i + size] for i in range(0, len(places), size)]
    low = [i for part in parts for i in part[: size // 2]]
    high = [i for part in parts for i in part[size // 2 :]]
    return builder.fadd(_shuffle_lanes(builder, a, b, low), _shuffle_lanes(builder, a, b, high))


#: ``load(address, dtype)``
load_vector: Any = _load_vector
#: ``store(address, vector)``
store_vector: Any = _store_vector
#: ``zeros(dtype)``
zero_vector: Any = _zero_vector
#: ``spread(number)``
broadcast_number: Any = _broadcast_number
#: ``multiply_add(a, b, c)``
multiply_add: Any = _multiply_add
#: ``plus(a, b)``
add_vectors: Any = _add_vectors
#: ``store_sums(address, a, b, c, d)``
store_four_sums: Any = _store_four_sums


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
#: Number of the clock CLOCK_MONOTONIC in Linux's ``clock_gettime``.
_CLOCK_MONOTONIC = 1
#: LLVM's name of the instruction by which a spinning thread leaves its core to others, and its
#: arguments, by processor.
_WAITING_HINTS: dict[str, tuple[str, list[int]]] = {
    "x86_64": ("llvm.x86.sse2.pause", []),
    "aarch64": ("llvm.aarch64.hint", [1]),
}


@intrinsic
def _read_flag(context: Any, address: Any) -> Any:
    """Return the number at an address, read with acquire order."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        flag = builder.inttoptr(arguments[0], _INT64.as_pointer())
        return builder.load_atomic(flag, "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def _raise_flag(context: Any, address: Any, value: Any) -> Any:
    """Write a number, after all that was written before and before all that is read after."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        flag = builder.inttoptr(arguments[0], _INT64.as_pointer())
        builder.store_atomic(arguments[1], flag, "release", 8)
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _hint_waiting(context: Any) -> Any:
    """Tell the processor that this loop only waits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        name, given = _WAITING_HINTS.get(platform.machine(), (None, []))
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
def _monotonic_nanoseconds(context: Any) -> Any:
    """Return the nanoseconds of the monotonic clock."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        moment = cgutils.alloca_once(builder, ir.ArrayType(_INT64, 2))
        number = ir.IntType(32)
        of = ir.FunctionType(number, [number, moment.type])
        call = cgutils.get_or_insert_function(builder.module, of, "clock_gettime")
        builder.call(call, [number(_CLOCK_MONOTONIC), moment])
        seconds, rest = (builder.extract_value(builder.load(moment), i) for i in (0, 1))
        return builder.add(builder.mul(seconds, _INT64(10**9)), rest)

    return types.int64(), generate


@intrinsic
def _ring_bell(context: Any, descriptor: Any) -> Any:
    """Write a byte to a pipe; a pipe that is full already wakes its reader."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = cgutils.alloca_once_value(builder, ir.IntType(8)(33))
        of = ir.FunctionType(_INT64, [ir.IntType(32), byte.type, _INT64])
        call = cgutils.get_or_insert_function(builder.module, of, "write")
        where = builder.trunc(arguments[0], ir.IntType(32))
        builder.call(call, [where, byte, _INT64(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


#: ``look(address)``
read_flag: Any = _read_flag
#: ``raise_flag(address, value)``
raise_flag: Any = _raise_flag
hint_waiting: Any = _hint_waiting
yield_processor: Any = _yield_processor
monotonic_nanoseconds: Any = _monotonic_nanoseconds
#: ``ring(descriptor)``
ring_bell: Any = _ring_bell
