"""Compiled loops over sparse rows of ids: weights, products of pairs, vectors of fields.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

from daskml_dist.backends.compiled import compiled_entry

#: Sums over an id's vector may be reordered, which vector instructions need.
_compiled = compiled_entry(fastmath={"contract", "reassoc", "nsz"})


@_compiled
def predict_rows(
    indptr: Any, indices: Any, data: Any, w: Any, pairs: Any, raw: Any, sums: Any
) -> None:
    """Write each row's raw prediction, and the sums of its vectors (Rendle 2010, equation 5).

    Parameters
    ----------
    indptr, indices, data
        CSR rows, whose columns are rows of `w`.
    w : (n_touched, 1 + rank) floats
        Weight and vector of each id; the intercept is the weight of the last.
    pairs : bool
        Whether products of pairs of vectors are added.
    raw : (n,) floats
    sums : (n, rank) floats
        Zeros; with `pairs`, gets the sum of ``x * v`` over each row's ids.
    """
    number, rank, last = w.dtype.type, w.shape[1] - 1, len(w) - 1
    for i in range(len(raw)):
        total, squares, vector_sums = w[last, 0], number(0), sums[i]
        for k in range(indptr[i], indptr[i + 1]):
            x, row = data[k], w[indices[k]]
            total += row[0] * x
            if pairs:
                for f in range(rank):
                    part = row[1 + f] * x
                    vector_sums[f] += part
                    squares += part * part
        # Pairs in linear time: half of (the square of the sum - the sum of squares).
        of_sum = number(0)
        for f in range(rank):
            of_sum += vector_sums[f] * vector_sums[f]
        raw[i] = total + number(0.5) * (of_sum - squares)


@_compiled
def add_row_gradients(
    indptr: Any, indices: Any, data: Any, w: Any, pairs: Any, sums: Any, slope: Any, weight: Any,
    alpha: Any, vector_alpha: Any, out: Any,
) -> None:  # fmt: skip
    """Add the gradient of the rows' losses, and of the penalty of parameters that each row uses.

    Parameters
    ----------
    indptr, indices, data, w, pairs, sums
        As in `predict_rows`, which has written `sums`.
    slope : (n,) floats
        Derivative of each row's weighted loss by its raw prediction.
    weight : (n,) floats
        Weights of the rows, for the penalty; empty: all are 1.
    alpha, vector_alpha : float
        Each row adds ``alpha / 2`` times the squares of the weights that it uses, except the
        intercept, and ``vector_alpha / 2`` times those of the vectors.
    out : array like `w`
    """
    number, rank, last = w.dtype.type, w.shape[1] - 1, len(w) - 1
    intercept = 0.0
    for i in range(len(slope)):
        row_sums, g, shrink, shrink_vector = sums[i], slope[i], number(alpha), number(vector_alpha)
        if len(weight):
            shrink *= weight[i]
            shrink_vector *= weight[i]
        intercept += g
        for k in range(indptr[i], indptr[i + 1]):
            position, x = indices[k], data[k]
            row, out_row = w[position], out[position]
            gx = g * x
            out_row[0] += gx + shrink * row[0]
            if pairs:
                # The derivative of all pairs by the vector of one id is x * (sum - x * v).
                for f in range(rank):
                    v = row[1 + f]
                    out_row[1 + f] += gx * (row_sums[f] - v * x) + shrink_vector * v
            else:
                for f in range(rank):
                    out_row[1 + f] += shrink_vector * row[1 + f]
    out[last, 0] += number(intercept)


@_compiled
def pool_fields(indptr: Any, indices: Any, field: Any, data: Any, w: Any, pooled: Any) -> None:
    """Add ``x * v`` of each id to its field's part of `pooled`, of shape (n, n_fields, rank)."""
    rank = w.shape[1] - 1
    for i in range(len(pooled)):
        for k in range(indptr[i], indptr[i + 1]):
            x, row, field_sum = data[k], w[indices[k]], pooled[i, field[k]]
            for f in range(rank):
                field_sum[f] += row[1 + f] * x


@_compiled
def add_pooled_gradients(
    indptr: Any, indices: Any, field: Any, data: Any, slope: Any, out: Any
) -> None:
    """Add the gradient of the vectors that `pool_fields` pooled, given that of `pooled`."""
    rank = out.shape[1] - 1
    for i in range(len(slope)):
        for k in range(indptr[i], indptr[i + 1]):
            x, pooled_slope, out_row = data[k], slope[i, field[k]], out[indices[k]]
            for f in range(rank):
                out_row[1 + f] += pooled_slope[f] * x


@_compiled
def predict_field_pairs(
    indptr: Any, indices: Any, field: Any, data: Any, w: Any, rank: Any, raw: Any
) -> None:
    """Write the raw prediction of each row by the vectors that its ids have for fields.

    Parameters
    ----------
    indptr, indices, data
        CSR rows, whose columns are rows of `w`.
    field : (n_entries,) uint8
    w : (n_touched, 1 + n_fields * rank) floats
        Weight of each id, and its vectors for the fields; the intercept is the weight of the last.
    rank : int
    raw : (n,) floats
    """
    number, last = w.dtype.type, len(w) - 1
    for i in range(len(raw)):
        total = w[last, 0]
        for k in range(indptr[i], indptr[i + 1]):
            x, row = data[k], w[indices[k]]
            total += row[0] * x
            field_start = 1 + rank * field[k]
            for m in range(indptr[i], k):
                # The vector of each id for the other's field (Juan et al. 2016, equation 4).
                other, other_field_start = w[indices[m]], 1 + rank * field[m]
                product = number(0)
                for f in range(rank):
                    product += row[other_field_start + f] * other[field_start + f]
                total += product * x * data[m]
        raw[i] = total


@_compiled
def add_field_pair_gradients(
    indptr: Any, indices: Any, field: Any, data: Any, w: Any, rank: Any, slope: Any, weight: Any,
    alpha: Any, out: Any,
) -> None:  # fmt: skip
    """Add the gradient of the rows' losses, and of the penalty of the ids that each row uses.

    Parameters
    ----------
    indptr, indices, field, data, w, rank
        As in `predict_field_pairs`.
    slope : (n,) floats
        Derivative of each row's weighted loss by its raw prediction.
    weight : (n,) floats
        Weights of the rows, for the penalty; empty: all are 1.
    alpha : float
        Each row adds ``alpha / 2`` times the squares of the weights and of all vectors of its ids.
    out : array like `w`
    """
    number, last = w.dtype.type, len(w) - 1
    intercept = 0.0
    for i in range(len(slope)):
        g, shrink = slope[i], number(alpha)
        if len(weight):
            shrink *= weight[i]
        intercept += g
        for k in range(indptr[i], indptr[i + 1]):
            x, row, out_row = data[k], w[indices[k]], out[indices[k]]
            out_row[0] += g * x
            for f in range(w.shape[1]):
                out_row[f] += shrink * row[f]
            field_start = 1 + rank * field[k]
            for m in range(indptr[i], k):
                other, other_field_start = w[indices[m]], 1 + rank * field[m]
                other_out_row, gxx = out[indices[m]], g * x * data[m]
                for f in range(rank):
                    out_row[other_field_start + f] += gxx * other[field_start + f]
                    other_out_row[field_start + f] += gxx * row[other_field_start + f]
    out[last, 0] += number(intercept)
