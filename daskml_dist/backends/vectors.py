"""Vectors of a processor, for loops that numba compiles.

LLVM makes vectors of a loop over a row's features only where these are many, and only from
addresses that are multiples of a number's size. These load from any address. A vector has the
bytes of a cache line; a processor whose own are smaller takes several for it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

__all__ = ["LINE", "load", "multiply_add", "plus", "spread", "store", "store_sums", "zeros"]

#: Bytes of a vector.
LINE = 64
_I4 = ir.IntType(32)


class _Vector(types.Type):
    """Type of as many floats as are `LINE` bytes."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Vector({dtype})")


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _vector(kind.dtype))  # type: ignore[no-untyped-call]


def _vector(dtype: Any) -> Any:
    number = {32: ir.FloatType(), 64: ir.DoubleType()}[dtype.bitwidth]
    return ir.VectorType(number, 8 * LINE // dtype.bitwidth)


def _at(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _shuffled(builder: Any, a: Any, b: Any, places: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I4, len(places)), places))


@intrinsic
def _load(context: Any, address: Any, dtype: Any) -> Any:
    """Floats of a dtype from an address on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _at(builder, arguments[0], _vector(signature.return_type.dtype))
        return builder.load(place, align=1)

    return _Vector(dtype.dtype)(types.int64, dtype), generate


@intrinsic
def _store(context: Any, address: Any, vector: Any) -> Any:
    """Write a vector from an address on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], _at(builder, arguments[0], arguments[1].type), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, vector), generate


@intrinsic
def _zeros(context: Any, dtype: Any) -> Any:
    """Zeros of a dtype."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = _vector(signature.return_type.dtype)
        return ir.Constant(kind, [0.0] * kind.count)

    return _Vector(dtype.dtype)(dtype), generate


@intrinsic
def _spread(context: Any, number: Any) -> Any:
    """A number, in all places."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = _vector(signature.return_type.dtype)
        empty = ir.Constant(kind, ir.Undefined)
        one = builder.insert_element(empty, arguments[0], _I4(0))
        return _shuffled(builder, one, empty, [0] * kind.count)

    return _Vector(number)(number), generate


@intrinsic
def _multiply_add(context: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``, rounded once where the processor can."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = arguments[0].type
        name = f"llvm.fmuladd.v{kind.count}f{signature.return_type.dtype.bitwidth}"
        of = ir.FunctionType(kind, [kind] * 3)
        return builder.call(cgutils.get_or_insert_function(builder.module, of, name), arguments)

    return a(a, b, c), generate


@intrinsic
def _plus(context: Any, a: Any, b: Any) -> Any:
    """``a + b``"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fadd(*arguments)

    return a(a, b), generate


@intrinsic
def _store_sums(context: Any, address: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Write the sums of four vectors' numbers behind each other."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, *vectors = arguments
        while len(vectors) > 1:
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [_joined(builder, *pair, 4 // len(vectors)) for pair in pairs]
        (sums,) = vectors
        while sums.type.count > 4:
            places = range(sums.type.count)
            halves = [_shuffled(builder, sums, sums, list(places[i::2])) for i in (0, 1)]
            sums = builder.fadd(*halves)
        builder.store(sums, _at(builder, address, sums.type), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, a, b, c, d), generate


def _joined(builder: Any, a: Any, b: Any, n: int) -> Any:
    """Two vectors as one, of which each `n` parts, one after the other, are halved by a sum."""
    count = a.type.count
    places = [number * count + i for number in (0, 1) for i in range(count)]
    size = count // n
    parts = [places[i : i + size] for i in range(0, len(places), size)]
    low = [i for part in parts for i in part[: size // 2]]
    high = [i for part in parts for i in part[size // 2 :]]
    return builder.fadd(_shuffled(builder, a, b, low), _shuffled(builder, a, b, high))


#: ``load(address, dtype)``
load: Any = _load
#: ``store(address, vector)``
store: Any = _store
#: ``zeros(dtype)``
zeros: Any = _zeros
#: ``spread(number)``
spread: Any = _spread
#: ``multiply_add(a, b, c)``
multiply_add: Any = _multiply_add
#: ``plus(a, b)``
plus: Any = _plus
#: ``store_sums(address, a, b, c, d)``
store_sums: Any = _store_sums
