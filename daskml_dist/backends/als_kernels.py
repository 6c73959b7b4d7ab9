"""Compiled normal equations of alternating least squares: a small system for each user or item.

Importing this module loads numba, so it is imported at first use. A rating `v` of an entity adds
``w y y'`` to its matrix and ``t y`` to its right side, where `y` are the factors of the other side:
explicit ratings have ``w = 1, t = v - offset``, implicit ones ``w = alpha v, t = 1 + w`` (0 where v
is 0). Factors are padded with zeros to whole vectors. Only the upper triangle of the matrix is
computed, in tiles of 8 rows by a vector, which stay in registers during a loop over ratings. The
factorisation uses the same sums, with rows of the matrix in place of ratings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

from daskml_dist.backends.compiled import compiled_entry, compiled_inside
from daskml_dist.backends.intrinsics import copy_rows, emitted

#: float32 entries of a 64-byte vector; rows are padded to a multiple of it.
FLOATS_PER_VECTOR = 16
#: LLVM's fast-math flags for sums: fused multiply-adds, any order of a sum, either sign of zero.
_FAST_FLAGS = ("contract", "reassoc", "nsz")
_INT64 = ir.IntType(64)


class _Row:
    """Rows of a matrix, or a vector, in generated code."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        array = context.make_array(kind)(context, builder, value)
        self._builder, self._data = builder, array.data
        self.element_type = context.get_value_type(kind.dtype)
        size = context.get_constant(types.intp, kind.dtype.bitwidth // 8)
        #: Number of entries from one row to the next.
        self.step = builder.sdiv(cgutils.unpack_tuple(builder, array.strides)[0], size)
        is_float = isinstance(self.element_type, ir.FloatType)
        self.vector_type = ir.VectorType(
            self.element_type, FLOATS_PER_VECTOR if is_float else FLOATS_PER_VECTOR // 2
        )

    def load_entry(self, index: Any) -> Any:
        """Emit a load of the entry at a position."""
        return self._builder.load(self._builder.gep(self._data, [index]))

    def store_entry(self, index: Any, entry: Any) -> None:
        """Emit a store of an entry at a position."""
        self._builder.store(entry, self._builder.gep(self._data, [index]))

    def emit_index(self, row: Any, column: Any) -> Any:
        """Emit the position of an entry of a row, counted in entries from the first."""
        return self._builder.add(self._builder.mul(row, self.step), column)

    def emit_address(self, position: Any) -> Any:
        """Emit the address of the vector that begins at a position."""
        pointer = self._builder.gep(self._data, [position])
        return self._builder.bitcast(pointer, ir.PointerType(self.vector_type))

    def load_vector(self, address: Any) -> Any:
        """Emit a load of the vector at an address."""
        return self._builder.load(address, align=4)


def _emit_broadcast(builder: Any, scalar: Any, vector: Any) -> Any:
    """Emit a vector with one number in all its lanes."""
    none = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(none, scalar, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, none, zeros)


def _emit_multiply_add(builder: Any, a: Any, b: Any, total: Any) -> Any:
    """Emit ``a * b + total``, which LLVM contracts to one instruction if the processor has it."""
    return builder.fadd(builder.fmul(a, b, flags=_FAST_FLAGS), total, flags=_FAST_FLAGS)


def _emit_lane_sum(builder: Any, partial_sums: Any) -> Any:
    """Emit the sum of the lanes of a vector, by adding halves until one lane is left."""
    index, half = ir.IntType(32), partial_sums.type.count
    while half > 1:
        half //= 2
        kind = ir.VectorType(index, half)
        low, high = (
            builder.shuffle_vector(
                partial_sums,
                partial_sums,
                ir.Constant(kind, [*range(first_lane, first_lane + half)]),
            )
            for first_lane in (0, half)
        )
        partial_sums = builder.fadd(low, high, flags=_FAST_FLAGS)
    return builder.extract_element(partial_sums, ir.Constant(index, 0))


def _emit_loop(
    builder: Any, bounds: Sequence[Any], totals: Sequence[Any], emit_body: Callable[[Any, Any], Any]
) -> list[Any]:
    """Emit a loop between two bounds whose totals stay in registers; return the totals."""
    # A loop in SSA form: each total is a phi node of its value before the loop and after an
    # iteration, so that LLVM keeps it in a register. The condition is tested at the end of the
    # loop, and once before it.
    before = builder.block
    body, after = (builder.append_basic_block(name) for name in ("rows", "rows.end"))
    start, stop = bounds
    builder.cbranch(builder.icmp_signed("<", start, stop), body, after)
    builder.position_at_end(body)
    position = builder.phi(_INT64)
    position.add_incoming(start, before)
    phis = []
    for total in totals:
        phis.append(builder.phi(total.type))
        phis[-1].add_incoming(total, before)
    updated = emit_body(position, phis)
    last, following = builder.block, builder.add(position, ir.Constant(_INT64, 1))
    position.add_incoming(following, last)
    builder.cbranch(builder.icmp_signed("<", following, stop), body, after)
    builder.position_at_end(after)
    results = []
    for total, phi, value in zip(totals, phis, updated, strict=True):
        phi.add_incoming(value, last)
        results.append(builder.phi(total.type))
        results[-1].add_incoming(total, before)
        results[-1].add_incoming(value, last)
    return results


def _make_add_outer(height: int) -> Any:
    """Return the intrinsic `add_outer_rows` that updates `height` rows of the matrix together."""

    @emitted(
        lambda A, j, k, Y, rows, weights, start, stop: types.void(
            A, j, k, Y, rows, weights, start, stop
        )
    )
    def add(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Add ``weights[i] y[j : j + height] y[k : k + vector]'`` of the rows y of some i to A."""
        A, Y, rows, weights = (
            _Row(context, builder, signature.args[i], arguments[i]) for i in (0, 3, 4, 5)
        )
        j, k = arguments[1], arguments[2]
        steps = [ir.Constant(_INT64, r) for r in range(height)]
        places = [A.emit_address(A.emit_index(builder.add(j, r), k)) for r in steps]

        # A tile of `height` rows by a vector stays in registers during the loop over ratings, like
        # a register tile of a matrix product: each rating costs a vector load and `height` scalar
        # loads.
        def more(i: Any, totals: Any) -> Any:
            row = builder.sext(rows.load_entry(i), _INT64)
            weight = _emit_broadcast(builder, weights.load_entry(i), Y.vector_type)
            right = Y.load_vector(Y.emit_address(Y.emit_index(row, k)))
            right = builder.fmul(right, weight, flags=_FAST_FLAGS)
            left_index = Y.emit_index(row, j)
            lefts = [Y.load_entry(builder.add(left_index, r)) for r in steps]
            return [
                _emit_multiply_add(
                    builder, _emit_broadcast(builder, left_entry, Y.vector_type), right, total
                )
                for left_entry, total in zip(lefts, totals, strict=True)
            ]

        totals = _emit_loop(
            builder, arguments[6:], [A.load_vector(place) for place in places], more
        )
        for total, place in zip(totals, places, strict=True):
            builder.store(total, place, align=4)
        return context.get_dummy_value()

    return add


def _make_add_rows(width: int) -> Any:
    """Return the intrinsic `add_vector_rows` that updates `width` vectors together."""

    @emitted(
        lambda out, k, Y, rows, scales, start, stop: types.void(
            out, k, Y, rows, scales, start, stop
        )
    )
    def add(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Add ``scales[i] y[k : k + width * vector]`` of the rows y of some i to the same of out.

        `out` is a matrix of one row.
        """
        out, Y, rows, scales = (
            _Row(context, builder, signature.args[i], arguments[i]) for i in (0, 2, 3, 4)
        )
        steps = [ir.Constant(_INT64, v * Y.vector_type.count) for v in range(width)]
        columns = [builder.add(arguments[1], step) for step in steps]
        places = [out.emit_address(column) for column in columns]

        def more(i: Any, totals: Any) -> Any:
            row = builder.sext(rows.load_entry(i), _INT64)
            scale = _emit_broadcast(builder, scales.load_entry(i), Y.vector_type)
            return [
                _emit_multiply_add(
                    builder, scale, Y.load_vector(Y.emit_address(Y.emit_index(row, column))), total
                )
                for column, total in zip(columns, totals, strict=True)
            ]

        totals = _emit_loop(
            builder, arguments[5:], [out.load_vector(place) for place in places], more
        )
        for total, place in zip(totals, places, strict=True):
            builder.store(total, place, align=4)
        return context.get_dummy_value()

    return add


@emitted(lambda out, i, X, j, scale, start, stop: types.void(out, i, X, j, X.dtype, start, stop))
def add_scaled_row(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Add ``scale X[j, start:stop]`` to ``out[i, start:stop]``; whole vectors."""
    out, X = (_Row(context, builder, signature.args[i], arguments[i]) for i in (0, 2))
    scale = _emit_broadcast(builder, arguments[4], X.vector_type)
    step = ir.Constant(_INT64, X.vector_type.count)
    with cgutils.for_range_slice(builder, arguments[5], arguments[6], step) as (k, _):
        place = out.emit_address(out.emit_index(arguments[1], k))
        row = X.load_vector(X.emit_address(X.emit_index(arguments[3], k)))
        builder.store(
            _emit_multiply_add(builder, scale, row, out.load_vector(place)), place, align=4
        )
    return context.get_dummy_value()


@emitted(lambda X, i, Y, j, start, stop: X.dtype(X, i, Y, j, start, stop))
def dot_vectors(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Return the product of ``X[i, start:stop]`` and ``Y[j, start:stop]``; whole vectors."""
    X, Y = (_Row(context, builder, signature.args[i], arguments[i]) for i in (0, 2))
    count = ir.Constant(_INT64, X.vector_type.count)
    bounds = [builder.sdiv(bound, count) for bound in arguments[4:]]

    def more(vector_index: Any, totals: Any) -> Any:
        k = builder.mul(vector_index, count)
        left_part, right_part = (
            rows.load_vector(rows.emit_address(rows.emit_index(row, k)))
            for rows, row in ((X, arguments[1]), (Y, arguments[3]))
        )
        return [_emit_multiply_add(builder, left_part, right_part, totals[0])]

    (parts,) = _emit_loop(builder, bounds, [ir.Constant(X.vector_type, None)], more)
    return _emit_lane_sum(builder, parts)


@emitted(lambda x, Y, rows, out, stop, width: types.void(x, Y, rows, out, stop, width))
def dot_four_rows(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Write products of ``x[0, :width]`` and the rows y of the i below `stop` to ``out[i]``.

    Whole vectors, and four rows at a time: `stop` is a multiple of 4. Results have the same bits as
    `dot_vectors`.
    """
    x, Y, rows, out = (_Row(context, builder, signature.args[i], arguments[i]) for i in range(4))
    count, none = ir.Constant(_INT64, x.vector_type.count), ir.Constant(_INT64, 0)
    steps = [ir.Constant(_INT64, r) for r in range(4)]
    n_vectors = builder.sdiv(arguments[5], count)
    with cgutils.for_range_slice(builder, none, arguments[4], ir.Constant(_INT64, 4)) as (i, _):
        row_indices = [builder.add(i, step) for step in steps]
        starts = [
            Y.emit_index(builder.sext(rows.load_entry(row), _INT64), none) for row in row_indices
        ]

        def more(v: Any, totals: Any) -> Any:
            k = builder.mul(v, count)
            x_part = x.load_vector(x.emit_address(k))
            return [
                _emit_multiply_add(
                    builder, x_part, Y.load_vector(Y.emit_address(builder.add(start, k))), total
                )
                for start, total in zip(starts, totals, strict=True)
            ]

        zeros = [ir.Constant(x.vector_type, None)] * 4
        for row, parts in zip(
            row_indices, _emit_loop(builder, (none, n_vectors), zeros, more), strict=True
        ):
            out.store_entry(row, _emit_lane_sum(builder, parts))
    return context.get_dummy_value()


# Compiled functions, under the names by which the loops below call them.
#: ``add_outer(A, j, k, Y, rows, weights, start, stop)`` of 8 rows of A, and of 4.
add_outer_rows: Any = _make_add_outer(8)
add_outer_four_rows: Any = _make_add_outer(4)
#: ``add_rows(out, k, Y, rows, scales, start, stop)`` of one vector, and of 4.
add_vector_rows: Any = _make_add_rows(1)
add_vector_rows_wide: Any = _make_add_rows(4)


#: Ratings of a chunk: their factors stay in a core's cache while all tiles of the matrix are
#: updated.
RATINGS_PER_CHUNK = 128
#: Up to this many padded factors, conjugate gradients form a row's matrix; with more, each step
#: multiplies by the ratings' factors instead, which is less work for few steps.
_MAX_DENSE_WIDTH = 2 * FLOATS_PER_VECTOR
#: If all pivots exceed this part of their diagonal entries, the inverse need not be estimated: its
#: scaled entries were then 450 at most (ranks 4 to 32, as many ratings or fewer, also positive
#: factors).
_SAFE_PIVOT = 0.05

_fast = compiled_entry(fastmath={"contract", "reassoc", "nsz"})
_inside = compiled_inside(error_model="numpy", fastmath={"contract", "reassoc", "nsz"})


@_fast
def solve_rows(
    indptr: Any, indices: Any, values: Any, Y: Any, offsets: Any, implicit: bool, alpha: float,
    reg: float, gram: Any, min_pivot: float, max_inverse: float, A: Any, b: Any, scratch: Any,
    order: Any, out: Any, failed: Any, row_range: Any,
) -> int:  # fmt: skip
    """Solve the systems of the rows in `row_range`; return how many were nearly singular.

    `A` and `b` (one row) are scratch for one system, and their dtype is that of the arithmetic; `Y`
    and `gram` have the same dtype. `scratch` has four rows, each of at least `RATINGS_PER_CHUNK`
    entries and of a padded vector of factors; `order` counts from 0. Rows that `solve_system`
    rejects, by `min_pivot` and `max_inverse`, are written to `failed`.
    """
    n_failed, n = 0, out.shape[1]
    for row in range(row_range[0], row_range[1]):
        start, stop = indptr[row], indptr[row + 1]
        if start == stop:
            out[row, :] = 0
            continue
        # Implicit ratings start from the Gram matrix of all others' factors; explicit ones from
        # zeros.
        copy_rows(A, gram)
        b[:, :] = 0
        add_ratings(
            indices, values, Y, offsets, implicit, alpha, A, b, scratch, n, start, stop
        )  # fmt: skip
        # ALS-WR (Zhou et al. 2008): explicit penalties are weighted by the number of ratings.
        shift = reg if implicit else reg * (stop - start)
        if solve_system(A, b, shift, min_pivot, max_inverse, scratch, order, n):
            for j in range(n):
                out[row, j] = b[0, j]
        else:
            failed[n_failed] = row
            n_failed += 1
    return n_failed


@_fast
def add_ratings(
    indices: Any, values: Any, Y: Any, offsets: Any, implicit: bool, alpha: float, A: Any, b: Any,
    scratch: Any, n: int, start: int, stop: int,
) -> None:  # fmt: skip
    """Add some ratings to the upper triangle of a matrix and to its right side."""
    weights, targets = scratch[0], scratch[1]
    # A chunk of ratings at a time: their factors are read twice, and cached the second time.
    for first in range(start, stop, RATINGS_PER_CHUNK):
        m = min(RATINGS_PER_CHUNK, stop - first)
        rows = indices[first : first + m]
        for i in range(m):
            weights[i], targets[i] = _rating_terms(
                values[first + i], rows[i], offsets, implicit, alpha, b[0, 0]
            )
        _add_outer_products(A, Y, rows, weights, 0, n, m)
        _add_scaled_rows(b, Y, rows, targets, m)


@_inside
def _vector_entries(matrix: Any) -> int:
    """Return the number of entries of a matrix's dtype in a vector of 64 bytes."""
    return FLOATS_PER_VECTOR if matrix.itemsize == 4 else FLOATS_PER_VECTOR // 2


@_inside
def _add_outer_products(
    A: Any, Y: Any, rows: Any, weights: Any, top: int, bottom: int, m: int
) -> None:
    """Add ``weights[i] y y'`` for m rows y to rows `top` to `bottom` of A's upper triangle."""
    lanes = _vector_entries(A)
    # Blocks of 8 rows by a vector, only in the upper triangle; the last block may have 4 rows.
    for j in range(top, bottom - 4, 8):
        for k in range(j - j % lanes, A.shape[1], lanes):
            add_outer_rows(A, j, k, Y, rows, weights, 0, m)
    if (bottom - top - 1) % 8 < 4:
        j = bottom - 1 - (bottom - top - 1) % 8
        for k in range(j - j % lanes, A.shape[1], lanes):
            add_outer_four_rows(A, j, k, Y, rows, weights, 0, m)


@_inside
def _add_scaled_rows(out: Any, Y: Any, rows: Any, scales: Any, m: int) -> None:
    """Add ``scales[i] y`` for m rows y."""
    lanes, k = _vector_entries(out), 0
    while k + 4 * lanes <= out.shape[1]:
        add_vector_rows_wide(out, k, Y, rows, scales, 0, m)
        k += 4 * lanes
    while k < out.shape[1]:
        add_vector_rows(out, k, Y, rows, scales, 0, m)
        k += lanes


@_inside
def _rating_terms(
    value: Any, column: int, offsets: Any, implicit: bool, alpha: float, like: Any
) -> Any:
    """Return a rating's weight in the matrix and its target, in the dtype of `like`."""
    kind = type(like)
    unit, v = kind(1), kind(value)
    if implicit:
        weight = kind(alpha) * v
        return weight, unit + weight if v > 0 else kind(0)
    return unit, v - kind(offsets[column]) if len(offsets) else v


@_fast
def solve_system(
    A: Any, b: Any, shift: float, min_pivot: float, max_inverse: float, scratch: Any, order: Any,
    n: int
) -> bool:  # fmt: skip
    """Solve ``(A + shift I) x = b`` by ``U' D U``, in place; return False if too inaccurate.

    The upper triangle of `A` is read and becomes ``D U``, and `b` the solution. `scratch` and
    `order` are as in `solve_rows`. A system is rejected if a pivot is below `min_pivot` of its
    diagonal entry, or if the inverse, scaled to a unit diagonal of `A`, has entries above
    `max_inverse`. The inverse is estimated only if a pivot is below `_SAFE_PIVOT` of its diagonal
    entry and `max_inverse` is finite.
    """
    width, number = A.shape[1], A.dtype.type
    # Row updates start at the vector with the diagonal entry: products are summed in whole vectors
    # from there, and skipped before it.
    lanes = _vector_entries(A)
    # Negative inverse pivots, and the diagonal.
    inverse, diagonal = scratch[0], scratch[2]
    smallest = number(1)
    for j in range(n):
        # The penalty.
        A[j, j] += number(shift)
        diagonal[j] = A[j, j]
    for top in range(0, n, FLOATS_PER_VECTOR):
        bottom = min(top + FLOATS_PER_VECTOR, n)
        # Left-looking blocked factorisation: first subtract the products of all rows above a block.
        _add_outer_products(A, A, order, inverse, top, bottom, top)
        for j in range(top, bottom):
            # A pivot this small has lost its digits; the caller solves the row in float64.
            if not A[j, j] > number(min_pivot) * diagonal[j]:
                return False
            smallest = min(smallest, A[j, j] / diagonal[j])
            inverse[j] = number(-1) / A[j, j]
            for i in range(j + 1, bottom):
                add_scaled_row(A, i, A, j, A[j, i] * inverse[j], i - i % lanes, width)
    if (
        smallest < _SAFE_PIVOT
        and max_inverse < np.inf
        and _estimate_inverse_size(A, scratch, n) > max_inverse
    ):
        return False
    right = scratch[1]
    for j in range(n):
        # Forward substitution with U', then back substitution with D U.
        right[j] = b[0, j]
        add_scaled_row(b, 0, A, j, right[j] * inverse[j], j - j % lanes, width)
    _substitute_back(A, inverse, right, b, n)
    return True


@_inside
def _substitute_back(A: Any, inverse: Any, right: Any, out: Any, n: int) -> None:
    """Solve ``D U x = right`` for a factored matrix: `out` (one row) becomes x."""
    for j in range(n - 1, -1, -1):
        total = right[j]
        for k in range(j + 1, n):
            total -= A[j, k] * out[0, k]
        out[0, j] = -total * inverse[j]


@_inside
def _estimate_inverse_size(A: Any, scratch: Any, n: int) -> float:
    """Estimate the largest entry of a factored matrix's inverse, scaled to a unit diagonal.

    LINPACK's estimate (Cline, Moler, Stewart and Wilkinson, 1979): the right side has entries of 1
    whose signs make the solution grow. Pivots alone are not sufficient: with none below a hundredth
    of its diagonal entry, a solution in float32 had a relative error of 1 in 200.
    """
    width, lanes = A.shape[1], _vector_entries(A)
    inverse, right, diagonal, x = scratch[0], scratch[1], scratch[2], scratch[3:4]
    x[0, :width] = 0
    for j in range(n):
        right[j] = x[0, j] + math.copysign(math.sqrt(diagonal[j]), x[0, j])
        add_scaled_row(x, 0, A, j, right[j] * inverse[j], j - j % lanes, width)
    _substitute_back(A, inverse, right, x, n)
    largest = 0.0
    for j in range(n):
        largest = max(largest, abs(x[0, j]) * math.sqrt(diagonal[j]))
    return largest


@_fast
def conjugate_gradient_rows(
    indptr: Any, indices: Any, values: Any, Y: Any, offsets: Any, implicit: bool, alpha: float,
    reg: float, gram: Any, steps: int, enough: float, A: Any, vectors: Any, scratch: Any,
    order: Any, out: Any,
) -> None:  # fmt: skip
    """Take some steps of conjugate gradients for each row, in place.

    They start from `out`, and end early once the squared residual is `enough` times the first one.
    `vectors` has four matrices of one row of padded factors, whose dtype is that of the arithmetic.
    If there are few unknowns, the matrix `A` of a row with more ratings than unknowns is formed:
    that takes less time than a loop over its ratings in each step.
    """
    x, r, p, q = vectors[0], vectors[1], vectors[2], vectors[3]
    width, n, none = x.shape[1], out.shape[1], np.int64(0)
    for row in range(len(indptr) - 1):
        start, stop = indptr[row], indptr[row + 1]
        if start == stop:
            out[row, :] = 0
            continue
        shift = reg if implicit else reg * (stop - start)
        x[:, :] = 0
        for j in range(n):
            x[0, j] = out[row, j]
        shared, has_matrix, last = gram, implicit, stop
        # Forming the matrix costs ratings * width; a product with it, width squared.
        if width <= _MAX_DENSE_WIDTH and stop - start > n:
            copy_rows(A, gram)
            r[:, :] = 0
            add_ratings(
                indices, values, Y, offsets, implicit, alpha, A, r, scratch, n, start, stop
            )  # fmt: skip
            _mirror_triangle(A, n)
            shared, has_matrix, last = A, True, start
        else:
            r[:, :] = 0
        _add_shared_product(shared, has_matrix, shift, -1.0, x, r, scratch, order)
        _add_rating_products(
            indices, values, Y, offsets, implicit, alpha, True, -1.0, x, r, scratch, start, last
        )  # fmt: skip
        copy_rows(p, r)
        # Squared norm of the residual b - A x.
        square = dot_vectors(r, none, r, none, none, width)
        end = square * scratch.dtype.type(enough)
        for _ in range(steps):
            if not square > end:
                break
            q[:, :] = 0
            _add_shared_product(shared, has_matrix, shift, 1.0, p, q, scratch, order)
            _add_rating_products(
                indices, values, Y, offsets, implicit, alpha, False, 1.0, p, q, scratch, start, last
            )  # fmt: skip
            curve, before = dot_vectors(p, none, q, none, none, width), square
            if not curve > 0:
                break
            # Hestenes and Stiefel (1952): step along p, then make the next direction conjugate to
            # it.
            step = square / curve
            add_scaled_row(x, none, p, none, step, none, width)
            add_scaled_row(r, none, q, none, -step, none, width)
            square = dot_vectors(r, none, r, none, none, width)
            for j in range(width):
                p[0, j] = r[0, j] + square / before * p[0, j]
        for j in range(n):
            out[row, j] = x[0, j]


@_inside
def _mirror_triangle(A: Any, n: int) -> None:
    """Copy the upper triangle of a matrix to the lower one."""
    for j in range(1, n):
        for k in range(j):
            A[j, k] = A[k, j]


@_inside
def _add_shared_product(
    gram: Any, has_gram: bool, shift: float, sign: float, x: Any, out: Any, scratch: Any, order: Any
) -> None:
    """Add ``sign * (gram + shift I) x`` to `out`; only the shift's part if not `has_gram`."""
    width, signed, scales = x.shape[1], x.dtype.type(sign), scratch[0]
    scale = signed * x.dtype.type(shift)
    for j in range(width):
        out[0, j] += scale * x[0, j]
        scales[j] = signed * x[0, j]
    if has_gram:
        # A symmetric matrix: the product is a sum of its rows, which stays in registers.
        _add_scaled_rows(out, gram, order, scales, width)


@_inside
def _add_rating_products(
    indices: Any, values: Any, Y: Any, offsets: Any, implicit: bool, alpha: float, aimed: bool,
    sign: float, x: Any, out: Any, scratch: Any, start: int, stop: int,
) -> None:  # fmt: skip
    """Add ``sign w (y x) y`` for some ratings, and ``t y`` if `aimed`."""
    width, signed, scales = x.shape[1], x.dtype.type(sign), scratch[0]
    for first in range(start, stop, RATINGS_PER_CHUNK):
        m = min(RATINGS_PER_CHUNK, stop - first)
        rows = indices[first : first + m]
        fours = m - m % 4
        # Four products at once; the remaining rows one by one, with the same bits.
        dot_four_rows(x, Y, rows, scales, fours, width)
        for i in range(fours, m):
            scales[i] = dot_vectors(x, 0, Y, np.int64(rows[i]), 0, width)
        for i in range(m):
            w, t = _rating_terms(values[first + i], rows[i], offsets, implicit, alpha, signed)
            scales[i] = w * (signed * scales[i]) + t if aimed else w * (signed * scales[i])
        _add_scaled_rows(out, Y, rows, scales, m)


@_fast
def add_row_errors(
    indptr: Any, indices: Any, values: Any, Y: Any, offsets: Any, implicit: bool, alpha: float,
    x: Any, X: Any, out: Any,
) -> None:  # fmt: skip
    """Add the loss of each row's ratings to `out`.

    `x` is scratch for a row of padded factors. Explicit ratings: squared errors. Implicit ones: ``c
    (p - s)**2 - s**2`` with the score s, since a pair without a rating has the loss ``s**2``.
    """
    for row in range(len(indptr) - 1):
        total = float(out[row])
        for j in range(X.shape[1]):
            x[0, j] = X[row, j]
        for i in range(indptr[row], indptr[row + 1]):
            score = float(dot_vectors(x, 0, Y, np.int64(indices[i]), 0, x.shape[1]))
            value = float(values[i])
            if implicit:
                # c (p - s)**2 - s**2 with the confidence c = 1 + alpha r.
                error = (1.0 if value > 0 else 0.0) - score
                total += (1.0 + alpha * value) * error * error - score * score
            else:
                error = value - score
                if len(offsets):
                    error -= offsets[indices[i]]
                total += error * error
        out[row] = total
