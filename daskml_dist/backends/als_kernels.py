"""Compiled normal equations of alternating least squares: a small system for each user or item.

Importing this module loads numba, so it is imported at first use. A rating `v` of an entity adds
``w y y'`` to its matrix and ``t y`` to its right side, `y` the factors of the other side: explicit
ratings have ``w = 1, t = v - offset``, implicit ones ``w = alpha v, t = 1 + w`` (0 where v is 0).
Factors are padded with zeros to whole vectors (`vector_rows`). Of the matrix the upper triangle is
made, 8 rows by a vector at a time, which stay in registers while some ratings go by; it is
factored by the same sums, with rows of itself in place of ratings.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from daskml_dist.backends.array_copies import copy_rows
from daskml_dist.backends.compiled import compiled_entry, compiled_inside
from daskml_dist.backends.vector_rows import (
    LANES,
    add_outer,
    add_outer_few,
    add_row,
    add_rows,
    add_rows_wide,
    dot,
    dot_fours,
)

__all__ = ["CHUNK", "add_ratings", "conjugate_rows", "errors_of_rows", "solve_rows", "solve_system"]

#: Ratings that go by together, and whose factors stay in a core's cache.
CHUNK = 128
#: Padded factors up to which conjugate gradients make a row's matrix.
_FEW = 2 * LANES
#: Part of its diagonal entry above which no pivot asks for an estimate of the inverse: its scaled
#: entries were then 450 at most (ranks 4 to 32, as many ratings or fewer, also positive factors).
_SAFE_PIVOT = 0.05

_fast = compiled_entry(fastmath={"contract", "reassoc", "nsz"})
_inside = compiled_inside(error_model="numpy", fastmath={"contract", "reassoc", "nsz"})


@_fast
def solve_rows(
    indptr: Any, indices: Any, values: Any, Y: Any, offsets: Any, implicit: bool, alpha: float,
    reg: float, gram: Any, least: float, most: float, A: Any, b: Any, room: Any, order: Any,
    out: Any, failed: Any, at: Any,
) -> int:  # fmt: skip
    """Solve the systems of the rows ``at[0]`` to ``at[1]``; how many were nearly singular.

    `A` and `b` (of one row) are room for one system, and their dtype is that of its arithmetic;
    `Y` and `gram` are of the same. `room` has four rows of `CHUNK` entries and those of a vector
    of factors at least; `order` counts from 0. Rows whose systems `solve_system` leaves, by
    `least` and `most`, are named in `failed`.
    """
    n_failed, n = 0, out.shape[1]
    for row in range(at[0], at[1]):
        start, stop = indptr[row], indptr[row + 1]
        if start == stop:
            out[row, :] = 0
            continue
        copy_rows(A, gram)
        b[:, :] = 0
        add_ratings(
            indices, values, Y, offsets, implicit, alpha, A, b, room, n, start, stop
        )  # fmt: skip
        shift = reg if implicit else reg * (stop - start)
        if solve_system(A, b, shift, least, most, room, order, n):
            for j in range(n):
                out[row, j] = b[0, j]
        else:
            failed[n_failed] = row
            n_failed += 1
    return n_failed


@_fast
def add_ratings(
    indices: Any, values: Any, Y: Any, offsets: Any, implicit: bool, alpha: float, A: Any, b: Any,
    room: Any, n: int, start: int, stop: int,
) -> None:  # fmt: skip
    """Add some ratings to the upper triangle of a matrix and to its right side."""
    weights, targets = room[0], room[1]
    for first in range(start, stop, CHUNK):
        m = min(CHUNK, stop - first)
        rows = indices[first : first + m]
        for i in range(m):
            weights[i], targets[i] = _terms(
                values[first + i], rows[i], offsets, implicit, alpha, b[0, 0]
            )
        _add_outer(A, Y, rows, weights, 0, n, m)
        _add_rows(b, Y, rows, targets, m)


@_inside
def _vector_entries(matrix: Any) -> int:
    """Return how many entries of a matrix's dtype fill a vector of 64 bytes."""
    return LANES if matrix.itemsize == 4 else LANES // 2


@_inside
def _add_outer(A: Any, Y: Any, rows: Any, weights: Any, top: int, bottom: int, m: int) -> None:
    """Add ``weights[i] y y'`` of m rows y to the rows `top` to `bottom` of A, from the diagonal."""
    lanes = _vector_entries(A)
    for j in range(top, bottom - 4, 8):
        for k in range(j - j % lanes, A.shape[1], lanes):
            add_outer(A, j, k, Y, rows, weights, 0, m)
    if (bottom - top - 1) % 8 < 4:
        j = bottom - 1 - (bottom - top - 1) % 8
        for k in range(j - j % lanes, A.shape[1], lanes):
            add_outer_few(A, j, k, Y, rows, weights, 0, m)


@_inside
def _add_rows(out: Any, Y: Any, rows: Any, scales: Any, m: int) -> None:
    """Add ``scales[i] y`` of m rows y."""
    lanes, k = _vector_entries(out), 0
    while k + 4 * lanes <= out.shape[1]:
        add_rows_wide(out, k, Y, rows, scales, 0, m)
        k += 4 * lanes
    while k < out.shape[1]:
        add_rows(out, k, Y, rows, scales, 0, m)
        k += lanes


@_inside
def _terms(value: Any, other: int, offsets: Any, implicit: bool, alpha: float, like: Any) -> Any:
    """Weight in the matrix and target in the right side of a rating, of the type of a number."""
    kind = type(like)
    one, v = kind(1), kind(value)
    if implicit:
        weight = kind(alpha) * v
        return weight, one + weight if v > 0 else kind(0)
    return one, v - kind(offsets[other]) if len(offsets) else v


@_fast
def solve_system(
    A: Any, b: Any, shift: float, least: float, most: float, room: Any, order: Any, n: int
) -> bool:  # fmt: skip
    """Solve ``(A + shift I) x = b`` by ``U' D U``, in place; False: too few digits would be right.

    The upper triangle of `A` is read and becomes ``D U``, and `b` the solution. `room` and `order`
    as of `solve_rows`. A system is left where a pivot is below `least` of its diagonal entry, or
    where the inverse, scaled to a unit diagonal of `A`, has entries above `most`. The inverse is
    estimated only where a pivot is below `_SAFE_PIVOT` of its diagonal entry, and `most` is finite.
    """
    width, number = A.shape[1], A.dtype.type
    # Rows are updated from the vector that holds their diagonal entry: the sums of products fill
    # whole vectors from there on, and nothing in front of them.
    lanes = _vector_entries(A)
    # Minus the inverse pivots, and the diagonal.
    inverse, diagonal = room[0], room[2]
    smallest = number(1)
    for j in range(n):
        A[j, j] += number(shift)
        diagonal[j] = A[j, j]
    for top in range(0, n, LANES):
        bottom = min(top + LANES, n)
        _add_outer(A, A, order, inverse, top, bottom, top)
        for j in range(top, bottom):
            if not A[j, j] > number(least) * diagonal[j]:
                return False
            smallest = min(smallest, A[j, j] / diagonal[j])
            inverse[j] = number(-1) / A[j, j]
            for i in range(j + 1, bottom):
                add_row(A, i, A, j, A[j, i] * inverse[j], i - i % lanes, width)
    if smallest < _SAFE_PIVOT and most < np.inf and _inverse_size(A, room, n) > most:
        return False
    right = room[1]
    for j in range(n):
        right[j] = b[0, j]
        add_row(b, 0, A, j, right[j] * inverse[j], j - j % lanes, width)
    _substitute(A, inverse, right, b, n)
    return True


@_inside
def _substitute(A: Any, inverse: Any, right: Any, out: Any, n: int) -> None:
    """Solve ``D U x = right`` of a factored matrix: `out`, of one row, becomes x."""
    for j in range(n - 1, -1, -1):
        total = right[j]
        for k in range(j + 1, n):
            total -= A[j, k] * out[0, k]
        out[0, j] = -total * inverse[j]


@_inside
def _inverse_size(A: Any, room: Any, n: int) -> float:
    """Estimate the largest entry of the inverse of a factored matrix, scaled to a unit diagonal.

    LINPACK's estimate (Cline, Moler, Stewart and Wilkinson, 1979): the right side has entries of 1
    whose signs make the solution grow. Pivots alone tell too little: with none below a hundredth of
    its diagonal entry a part in 200 of a solution's size was wrong in float32.
    """
    width, lanes = A.shape[1], _vector_entries(A)
    inverse, right, diagonal, x = room[0], room[1], room[2], room[3:4]
    x[0, :width] = 0
    for j in range(n):
        right[j] = x[0, j] + math.copysign(math.sqrt(diagonal[j]), x[0, j])
        add_row(x, 0, A, j, right[j] * inverse[j], j - j % lanes, width)
    _substitute(A, inverse, right, x, n)
    largest = 0.0
    for j in range(n):
        largest = max(largest, abs(x[0, j]) * math.sqrt(diagonal[j]))
    return largest


@_fast
def conjugate_rows(
    indptr: Any, indices: Any, values: Any, Y: Any, offsets: Any, implicit: bool, alpha: float,
    reg: float, gram: Any, steps: int, enough: float, A: Any, vectors: Any, room: Any, order: Any,
    out: Any,
) -> None:  # fmt: skip
    """Make some steps of conjugate gradients for each row, in place.

    They begin with what `out` holds and end early at `enough` of the first residual's square.
    `vectors` has four matrices of one row of padded factors, whose dtype is that of the arithmetic.
    The matrix `A` of a row that has more ratings than unknowns is made, where these are few: that
    takes less time than going over its ratings in each step.
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
        shared, made, last = gram, implicit, stop
        if width <= _FEW and stop - start > n:
            copy_rows(A, gram)
            r[:, :] = 0
            add_ratings(
                indices, values, Y, offsets, implicit, alpha, A, r, room, n, start, stop
            )  # fmt: skip
            _mirror(A, n)
            shared, made, last = A, True, start
        else:
            r[:, :] = 0
        _add_shared(shared, made, shift, -1.0, x, r, room, order)
        _add_products(
            indices, values, Y, offsets, implicit, alpha, True, -1.0, x, r, room, start, last
        )  # fmt: skip
        copy_rows(p, r)
        square = dot(r, none, r, none, none, width)
        end = square * room.dtype.type(enough)
        for _ in range(steps):
            if not square > end:
                break
            q[:, :] = 0
            _add_shared(shared, made, shift, 1.0, p, q, room, order)
            _add_products(
                indices, values, Y, offsets, implicit, alpha, False, 1.0, p, q, room, start, last
            )  # fmt: skip
            curve, before = dot(p, none, q, none, none, width), square
            if not curve > 0:
                break
            step = square / curve
            add_row(x, none, p, none, step, none, width)
            add_row(r, none, q, none, -step, none, width)
            square = dot(r, none, r, none, none, width)
            for j in range(width):
                p[0, j] = r[0, j] + square / before * p[0, j]
        for j in range(n):
            out[row, j] = x[0, j]


@_inside
def _mirror(A: Any, n: int) -> None:
    """Fill in the lower triangle."""
    for j in range(1, n):
        for k in range(j):
            A[j, k] = A[k, j]


@_inside
def _add_shared(
    gram: Any, made: bool, shift: float, sign: float, x: Any, out: Any, room: Any, order: Any
) -> None:
    """Add the product of a vector and the part of a matrix that is there, times a sign."""
    width, signed, scales = x.shape[1], x.dtype.type(sign), room[0]
    scale = signed * x.dtype.type(shift)
    for j in range(width):
        out[0, j] += scale * x[0, j]
        scales[j] = signed * x[0, j]
    if made:
        # A symmetric matrix: the sum of its rows, which stays in registers.
        _add_rows(out, gram, order, scales, width)


@_inside
def _add_products(
    indices: Any, values: Any, Y: Any, offsets: Any, implicit: bool, alpha: float, aimed: bool,
    sign: float, x: Any, out: Any, room: Any, start: int, stop: int,
) -> None:  # fmt: skip
    """Add ``sign w (y x) y`` of some ratings, and ``t y`` where they are `aimed` at."""
    width, signed, scales = x.shape[1], x.dtype.type(sign), room[0]
    for first in range(start, stop, CHUNK):
        m = min(CHUNK, stop - first)
        rows = indices[first : first + m]
        fours = m - m % 4
        dot_fours(x, Y, rows, scales, fours, width)
        for i in range(fours, m):
            scales[i] = dot(x, 0, Y, np.int64(rows[i]), 0, width)
        for i in range(m):
            w, t = _terms(values[first + i], rows[i], offsets, implicit, alpha, signed)
            scales[i] = w * (signed * scales[i]) + t if aimed else w * (signed * scales[i])
        _add_rows(out, Y, rows, scales, m)


@_fast
def errors_of_rows(
    indptr: Any, indices: Any, values: Any, Y: Any, offsets: Any, implicit: bool, alpha: float,
    x: Any, X: Any, out: Any,
) -> None:  # fmt: skip
    """Add to `out` what the ratings of each row add to the loss.

    `x` is room for a row of padded factors. Explicit ratings: squared errors. Implicit ones:
    ``c (p - s)**2 - s**2`` of a score s, since a pair that is not there has ``s**2``.
    """
    for row in range(len(indptr) - 1):
        total = float(out[row])
        for j in range(X.shape[1]):
            x[0, j] = X[row, j]
        for i in range(indptr[row], indptr[row + 1]):
            score = float(dot(x, 0, Y, np.int64(indices[i]), 0, x.shape[1]))
            value = float(values[i])
            if implicit:
                error = (1.0 if value > 0 else 0.0) - score
                total += (1.0 + alpha * value) * error * error - score * score
            else:
                error = value - score
                if len(offsets):
                    error -= offsets[indices[i]]
                total += error * error
        out[row] = total
