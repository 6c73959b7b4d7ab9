"""Whole vectors of a processor in loops that numba compiles: sums of rows and of their products.

What numba makes of loops over short rows of several arrays tests at each row whether these overlap.
Here the loads, products and sums are written down as vectors of 64 bytes (two or four of a smaller
processor's), which stay in registers while rows go by. Rows are padded with zeros to whole vectors
of float32 (`LANES`), and only upper triangles are meant, whole vectors of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "LANES",
    "add_outer",
    "add_outer_few",
    "add_row",
    "add_rows",
    "add_rows_wide",
    "dot",
    "dot_fours",
]

#: Entries to whole numbers of which rows are padded.
LANES = 16
_FLAGS = ("contract", "reassoc", "nsz")
_INT = ir.IntType(64)


class _Row:
    """Rows of a matrix, or a vector, in the code that is being made."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        array = context.make_array(kind)(context, builder, value)
        self._builder, self._data = builder, array.data
        self.number = context.get_value_type(kind.dtype)
        size = context.get_constant(types.intp, kind.dtype.bitwidth // 8)
        #: Entries from one row to the next.
        self.step = builder.sdiv(cgutils.unpack_tuple(builder, array.strides)[0], size)
        is_float = isinstance(self.number, ir.FloatType)
        self.vector = ir.VectorType(self.number, LANES if is_float else LANES // 2)

    def entry(self, at: Any) -> Any:
        """The entry at a position."""
        return self._builder.load(self._builder.gep(self._data, [at]))

    def put(self, at: Any, entry: Any) -> None:
        """Write an entry at a position."""
        self._builder.store(entry, self._builder.gep(self._data, [at]))

    def at(self, row: Any, column: Any) -> Any:
        """Position of an entry of a row."""
        return self._builder.add(self._builder.mul(row, self.step), column)

    def place(self, position: Any) -> Any:
        """Address at which a vector begins."""
        pointer = self._builder.gep(self._data, [position])
        return self._builder.bitcast(pointer, ir.PointerType(self.vector))

    def load(self, place: Any) -> Any:
        """The vector at a place."""
        return self._builder.load(place, align=4)


def _whole(builder: Any, number: Any, vector: Any) -> Any:
    """A vector of one number."""
    none = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(none, number, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, none, zeros)


def _sum(builder: Any, a: Any, b: Any, total: Any) -> Any:
    """``a b + total``, in one instruction where the processor has it."""
    return builder.fadd(builder.fmul(a, b, flags=_FLAGS), total, flags=_FLAGS)


def _folded(builder: Any, parts: Any) -> Any:
    """Sum of the entries of a vector: that of its halves, and so on."""
    index, half = ir.IntType(32), parts.type.count
    while half > 1:
        half //= 2
        kind = ir.VectorType(index, half)
        low, high = (
            builder.shuffle_vector(parts, parts, ir.Constant(kind, [*range(at, at + half)]))
            for at in (0, half)
        )
        parts = builder.fadd(low, high, flags=_FLAGS)
    return builder.extract_element(parts, ir.Constant(index, 0))


def _over(
    builder: Any, bounds: Sequence[Any], totals: Sequence[Any], more: Callable[[Any, Any], Any]
) -> list[Any]:
    """Totals after a loop from one number to another, which stay in registers."""
    before = builder.block
    body, after = (builder.append_basic_block(name) for name in ("rows", "rows.end"))
    start, stop = bounds
    builder.cbranch(builder.icmp_signed("<", start, stop), body, after)
    builder.position_at_end(body)
    at = builder.phi(_INT)
    at.add_incoming(start, before)
    held = []
    for total in totals:
        held.append(builder.phi(total.type))
        held[-1].add_incoming(total, before)
    found = more(at, held)
    last, following = builder.block, builder.add(at, ir.Constant(_INT, 1))
    at.add_incoming(following, last)
    builder.cbranch(builder.icmp_signed("<", following, stop), body, after)
    builder.position_at_end(after)
    results = []
    for total, one, new in zip(totals, held, found, strict=True):
        one.add_incoming(new, last)
        results.append(builder.phi(total.type))
        results[-1].add_incoming(total, before)
        results[-1].add_incoming(new, last)
    return results


def _outer(height: int) -> Any:
    """Makes `add_outer` of so many rows of the matrix at once."""

    def add(
        context: Any, A: Any, j: Any, k: Any, Y: Any, rows: Any, weights: Any, start: Any, stop: Any
    ) -> Any:
        """Add ``weights[i] y[j : j + height] y[k : k + vector]'`` of the rows y of some i to A."""

        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            A, Y, rows, weights = (
                _Row(context, builder, signature.args[i], given[i]) for i in (0, 3, 4, 5)
            )
            j, k = given[1], given[2]
            steps = [ir.Constant(_INT, r) for r in range(height)]
            places = [A.place(A.at(builder.add(j, r), k)) for r in steps]

            def more(i: Any, totals: Any) -> Any:
                row = builder.sext(rows.entry(i), _INT)
                weight = _whole(builder, weights.entry(i), Y.vector)
                right = Y.load(Y.place(Y.at(row, k)))
                right = builder.fmul(right, weight, flags=_FLAGS)
                left = Y.at(row, j)
                lefts = [Y.entry(builder.add(left, r)) for r in steps]
                return [
                    _sum(builder, _whole(builder, one, Y.vector), right, total)
                    for one, total in zip(lefts, totals, strict=True)
                ]

            totals = _over(builder, given[6:], [A.load(place) for place in places], more)
            for total, place in zip(totals, places, strict=True):
                builder.store(total, place, align=4)
            return context.get_dummy_value()

        return types.void(A, j, k, Y, rows, weights, start, stop), generate

    return intrinsic(add)


def _rows(width: int) -> Any:
    """Makes `add_rows` of so many vectors at once."""

    def add(
        context: Any, out: Any, k: Any, Y: Any, rows: Any, scales: Any, start: Any, stop: Any
    ) -> Any:
        """Add ``scales[i] y[k : k + width * vector]`` of the rows y of some i to the same of out.

        `out` is a matrix of one row.
        """

        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            out, Y, rows, scales = (
                _Row(context, builder, signature.args[i], given[i]) for i in (0, 2, 3, 4)
            )
            steps = [ir.Constant(_INT, v * Y.vector.count) for v in range(width)]
            columns = [builder.add(given[1], step) for step in steps]
            places = [out.place(column) for column in columns]

            def more(i: Any, totals: Any) -> Any:
                row = builder.sext(rows.entry(i), _INT)
                scale = _whole(builder, scales.entry(i), Y.vector)
                return [
                    _sum(builder, scale, Y.load(Y.place(Y.at(row, column))), total)
                    for column, total in zip(columns, totals, strict=True)
                ]

            totals = _over(builder, given[5:], [out.load(place) for place in places], more)
            for total, place in zip(totals, places, strict=True):
                builder.store(total, place, align=4)
            return context.get_dummy_value()

        return types.void(out, k, Y, rows, scales, start, stop), generate

    return intrinsic(add)


@intrinsic
def _add_row(
    context: Any, out: Any, i: Any, X: Any, j: Any, scale: Any, start: Any, stop: Any
) -> Any:
    """Add ``scale X[j, start:stop]`` to the same of ``out[i]``; whole vectors."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        out, X = (_Row(context, builder, signature.args[i], given[i]) for i in (0, 2))
        scale = _whole(builder, given[4], X.vector)
        step = ir.Constant(_INT, X.vector.count)
        with cgutils.for_range_slice(builder, given[5], given[6], step) as (k, _):
            place = out.place(out.at(given[1], k))
            row = X.load(X.place(X.at(given[3], k)))
            builder.store(_sum(builder, scale, row, out.load(place)), place, align=4)
        return context.get_dummy_value()

    return types.void(out, i, X, j, X.dtype, start, stop), generate


@intrinsic
def _dot(context: Any, X: Any, i: Any, Y: Any, j: Any, start: Any, stop: Any) -> Any:
    """Product of ``X[i, start:stop]`` and ``Y[j, start:stop]``; whole vectors."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        X, Y = (_Row(context, builder, signature.args[i], given[i]) for i in (0, 2))
        count = ir.Constant(_INT, X.vector.count)
        bounds = [builder.sdiv(one, count) for one in given[4:]]

        def more(at: Any, totals: Any) -> Any:
            k = builder.mul(at, count)
            left, right = (
                rows.load(rows.place(rows.at(row, k)))
                for rows, row in ((X, given[1]), (Y, given[3]))
            )
            return [_sum(builder, left, right, totals[0])]

        (parts,) = _over(builder, bounds, [ir.Constant(X.vector, None)], more)
        return _folded(builder, parts)

    return X.dtype(X, i, Y, j, start, stop), generate


@intrinsic
def _dot_fours(context: Any, x: Any, Y: Any, rows: Any, out: Any, stop: Any, width: Any) -> Any:
    """Write products of ``x[0, :width]`` and the rows y of the i below `stop` to ``out[i]``.

    Whole vectors, and four rows at a time: `stop` is a multiple of 4. The bits are those of `dot`.
    """

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        x, Y, rows, out = (_Row(context, builder, signature.args[i], given[i]) for i in range(4))
        count, none = ir.Constant(_INT, x.vector.count), ir.Constant(_INT, 0)
        steps = [ir.Constant(_INT, r) for r in range(4)]
        whole = builder.sdiv(given[5], count)
        with cgutils.for_range_slice(builder, none, given[4], ir.Constant(_INT, 4)) as (i, _):
            at = [builder.add(i, step) for step in steps]
            starts = [Y.at(builder.sext(rows.entry(one), _INT), none) for one in at]

            def more(v: Any, totals: Any) -> Any:
                k = builder.mul(v, count)
                left = x.load(x.place(k))
                return [
                    _sum(builder, left, Y.load(Y.place(builder.add(start, k))), total)
                    for start, total in zip(starts, totals, strict=True)
                ]

            zeros = [ir.Constant(x.vector, None)] * 4
            for one, parts in zip(at, _over(builder, (none, whole), zeros, more), strict=True):
                out.put(one, _folded(builder, parts))
        return context.get_dummy_value()

    return types.void(x, Y, rows, out, stop, width), generate


#: ``add_outer(A, j, k, Y, rows, weights, start, stop)`` of 8 rows of A, and of 4.
add_outer: Any = _outer(8)
add_outer_few: Any = _outer(4)
#: ``add_rows(out, k, Y, rows, scales, start, stop)`` of one vector, and of 4.
add_rows: Any = _rows(1)
add_rows_wide: Any = _rows(4)
add_row: Any = _add_row
dot: Any = _dot
dot_fours: Any = _dot_fours
