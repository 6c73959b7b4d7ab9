"""Compiled normal equations of alternating least squares: a small system for each user or item.

Importing this module loads numba, so it is imported at first use. A rating `v` of an entity adds
``w y y'`` to its matrix and ``t y`` to its right side, `y` the factors of the other side: explicit
ratings have ``w = 1, t = v - offset``, implicit ones ``w = alpha v, t = 1 + w`` (0 where v is 0).
Four ratings at a time are added to the lower triangle, which stays in a core's cache.
"""

from __future__ import annotations

from typing import Any

import numba

__all__ = ["add_ratings", "conjugate_rows", "errors_of_rows", "solve_rows", "solve_system"]

_fast = numba.njit(
    nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"}
)


@_fast
def solve_rows(
    indptr: Any, indices: Any, values: Any, Y: Any, offsets: Any, implicit: bool, alpha: float,
    reg: float, gram: Any, least: float, A: Any, b: Any, out: Any, failed: Any, at: Any,
) -> int:  # fmt: skip
    """Solve the systems of the rows ``at[0]`` to ``at[1]``; how many were nearly singular.

    `A` and `b` are room for one system, and their dtype is that of its arithmetic. Rows of which a
    pivot is below `least` of its diagonal entry are named in `failed`.
    """
    n_failed = 0
    for row in range(at[0], at[1]):
        start, stop = indptr[row], indptr[row + 1]
        if start == stop:
            out[row, :] = 0
            continue
        A[:, :] = gram
        b[:] = 0
        add_ratings(indices, values, Y, offsets, implicit, alpha, A, b, start, stop)
        if solve_system(A, b, reg if implicit else reg * (stop - start), least):
            for j in range(len(b)):
                out[row, j] = b[j]
        else:
            failed[n_failed] = row
            n_failed += 1
    return n_failed


@_fast
def add_ratings(
    indices: Any, values: Any, Y: Any, offsets: Any, implicit: bool, alpha: float, A: Any, b: Any,
    start: int, stop: int,
) -> None:  # fmt: skip
    """Add some ratings to the lower triangle of a matrix and to its right side."""
    whole = stop - (stop - start) % 4
    for p in range(start, whole, 4):
        i0, i1, i2, i3 = indices[p], indices[p + 1], indices[p + 2], indices[p + 3]
        y0, y1, y2, y3 = Y[i0], Y[i1], Y[i2], Y[i3]
        w0, t0 = _terms(values[p], i0, offsets, implicit, alpha, b[0])
        w1, t1 = _terms(values[p + 1], i1, offsets, implicit, alpha, b[0])
        w2, t2 = _terms(values[p + 2], i2, offsets, implicit, alpha, b[0])
        w3, t3 = _terms(values[p + 3], i3, offsets, implicit, alpha, b[0])
        for j in range(len(b)):
            a0, a1, a2, a3 = w0 * y0[j], w1 * y1[j], w2 * y2[j], w3 * y3[j]
            b[j] += t0 * y0[j] + t1 * y1[j] + t2 * y2[j] + t3 * y3[j]
            for k in range(j + 1):
                A[j, k] += a0 * y0[k] + a1 * y1[k] + a2 * y2[k] + a3 * y3[k]
    for p in range(whole, stop):
        y = Y[indices[p]]
        w, t = _terms(values[p], indices[p], offsets, implicit, alpha, b[0])
        for j in range(len(b)):
            a = w * y[j]
            b[j] += t * y[j]
            for k in range(j + 1):
                A[j, k] += a * y[k]


@_fast
def _terms(value: Any, other: int, offsets: Any, implicit: bool, alpha: float, like: Any) -> Any:
    """Weight in the matrix and target in the right side of a rating, of the type of a number."""
    kind = type(like)
    one, v = kind(1), kind(value)
    if implicit:
        weight = kind(alpha) * v
        return weight, one + weight if v > 0 else kind(0)
    return one, v - kind(offsets[other]) if len(offsets) else v


@_fast
def _scale(
    value: Any, other: int, offsets: Any, implicit: bool, alpha: float, aimed: bool, product: Any
) -> Any:
    """Weight of a rating's factors in a product of its matrix, or in a residual."""
    w, t = _terms(value, other, offsets, implicit, alpha, product)
    return w * product + t if aimed else w * product


@_fast
def solve_system(A: Any, b: Any, shift: float, least: float) -> bool:
    """Solve ``(A + shift I) x = b`` by Cholesky, in place; False: a pivot is too small.

    The lower triangle of `A` is read and becomes the factor, and `b` the solution.
    """
    n = len(b)
    for j in range(n):
        A[j, j] += A.dtype.type(shift)
        pivot = A[j, j] - _dot(A[j], A[j], j)
        if not pivot > A.dtype.type(least) * A[j, j]:
            return False
        pivot = pivot**0.5
        A[j, j] = pivot
        for i in range(j + 1, n):
            A[i, j] = (A[i, j] - _dot(A[i], A[j], j)) / pivot
    for j in range(n):
        b[j] = (b[j] - _dot(A[j], b, j)) / A[j, j]
    for j in range(n - 1, -1, -1):
        b[j] /= A[j, j]
        for k in range(j):
            b[k] -= A[j, k] * b[j]
    return True


@_fast
def conjugate_rows(
    indptr: Any, indices: Any, values: Any, Y: Any, offsets: Any, implicit: bool, alpha: float,
    reg: float, gram: Any, steps: int, enough: float, room: Any, out: Any,
) -> None:  # fmt: skip
    """Make some steps of conjugate gradients for each row, in place.

    They begin with what `out` holds and end early at `enough` of the first residual's square.
    `room` has four vectors of the factors' length, and its dtype is that of the arithmetic.
    """
    x, r, p, q = room[0], room[1], room[2], room[3]
    n = len(x)
    for row in range(len(indptr) - 1):
        start, stop = indptr[row], indptr[row + 1]
        if start == stop:
            out[row, :] = 0
            continue
        shift = reg if implicit else reg * (stop - start)
        x[:] = out[row]
        _multiply_shared(gram, implicit, shift, -1.0, x, r)
        _add_products(
            indices, values, Y, offsets, implicit, alpha, True, -1.0, x, r, start, stop
        )  # fmt: skip
        p[:] = r
        square = _dot(r, r, n)
        end = square * room.dtype.type(enough)
        for _ in range(steps):
            if not square > end:
                break
            _multiply_shared(gram, implicit, shift, 1.0, p, q)
            _add_products(
                indices, values, Y, offsets, implicit, alpha, False, 1.0, p, q, start, stop
            )  # fmt: skip
            curve, before = _dot(p, q, n), square
            if not curve > 0:
                break
            step = square / curve
            for j in range(n):
                x[j] += step * p[j]
                r[j] -= step * q[j]
            square = _dot(r, r, n)
            for j in range(n):
                p[j] = r[j] + square / before * p[j]
        for j in range(n):
            out[row, j] = x[j]


@_fast
def _multiply_shared(
    gram: Any, implicit: bool, shift: float, sign: float, x: Any, out: Any
) -> None:
    """Product of a vector and the part of a matrix that is no rating's, times a sign."""
    n, signed = len(x), x.dtype.type(sign)
    scale = signed * x.dtype.type(shift)
    for j in range(n):
        out[j] = scale * x[j]
    if implicit:
        for k in range(n):
            scaled = signed * x[k]
            for j in range(n):
                out[j] += scaled * gram[k, j]


@_fast
def _add_products(
    indices: Any, values: Any, Y: Any, offsets: Any, implicit: bool, alpha: float, aimed: bool,
    sign: float, x: Any, out: Any, start: int, stop: int,
) -> None:  # fmt: skip
    """Add ``sign w (y x) y`` of some ratings, and ``t y`` where they are `aimed` at."""
    n, sign = len(x), x.dtype.type(sign)
    whole = stop - (stop - start) % 4
    for p in range(start, whole, 4):
        i0, i1, i2, i3 = indices[p], indices[p + 1], indices[p + 2], indices[p + 3]
        y0, y1, y2, y3 = Y[i0], Y[i1], Y[i2], Y[i3]
        s0 = s1 = s2 = s3 = x.dtype.type(0)
        for j in range(n):
            s0 += y0[j] * x[j]
            s1 += y1[j] * x[j]
            s2 += y2[j] * x[j]
            s3 += y3[j] * x[j]
        a0 = _scale(values[p], i0, offsets, implicit, alpha, aimed, sign * s0)
        a1 = _scale(values[p + 1], i1, offsets, implicit, alpha, aimed, sign * s1)
        a2 = _scale(values[p + 2], i2, offsets, implicit, alpha, aimed, sign * s2)
        a3 = _scale(values[p + 3], i3, offsets, implicit, alpha, aimed, sign * s3)
        for j in range(n):
            out[j] += a0 * y0[j] + a1 * y1[j] + a2 * y2[j] + a3 * y3[j]
    for p in range(whole, stop):
        y = Y[indices[p]]
        s = sign * _dot(y, x, n)
        a = _scale(values[p], indices[p], offsets, implicit, alpha, aimed, s)
        for j in range(n):
            out[j] += a * y[j]


@_fast
def errors_of_rows(
    indptr: Any, indices: Any, values: Any, Y: Any, offsets: Any, implicit: bool, alpha: float,
    X: Any,
) -> float:  # fmt: skip
    """Sum over the ratings of what they add to the loss.

    Explicit ratings: squared errors. Implicit ones: ``c (p - s)**2 - s**2`` of a score s, since a
    pair that is not there has ``s**2``.
    """
    total = 0.0
    for row in range(len(indptr) - 1):
        for i in range(indptr[row], indptr[row + 1]):
            score, value = float(_dot(X[row], Y[indices[i]], X.shape[1])), float(values[i])
            if implicit:
                error = (1.0 if value > 0 else 0.0) - score
                total += (1.0 + alpha * value) * error * error - score * score
            else:
                error = value - score
                if len(offsets):
                    error -= offsets[indices[i]]
                total += error * error
    return total


@_fast
def _dot(a: Any, b: Any, n: int) -> Any:
    """Dot product of the first entries of two vectors."""
    total = a[0] * b[0] if n else a.dtype.type(0)
    for j in range(1, n):
        total += a[j] * b[j]
    return total
