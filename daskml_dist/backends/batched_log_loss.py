"""numba kernels for many linear models on the same rows.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry, compiled_inside
from daskml_dist.backends.elementary_functions import CONTRACTED, log_loss

_compiled = compiled_entry(**CONTRACTED)
_inside = compiled_inside(**CONTRACTED)
#: Raw predictions of a tile of rows that fit in a processor's cache; minimum and maximum rows of a
#: tile: with more, sums in the rows' dtype would lose digits that line searches need.
_TILE_ENTRIES, _MIN_TILE_ROWS, _MAX_TILE_ROWS = 1 << 16, 64, 512
#: Rows whose losses are added up in their own dtype.
_MAX_ROWS_PER_SUM = 32
#: Columns, from consecutive rows laid side by side, that fill whole vectors.
_VECTOR_COLUMNS = 1024


@_compiled
def add_log_gradients(
    X: Any, signs: Any, mask: Any, stops: Any, w: Any, bias: Any, losses: Any, gradient: Any
) -> None:
    """Add up the log losses of all models (columns), and their gradients.

    Parameters
    ----------
    X : C-ordered ndarray of shape (n, n_features)
    signs : ndarray of shape (n,), -1 or +1
    mask : ndarray of shape (n, n_splits)
        Weight of each row in each split; 0 if the row is not in it.
    stops : ndarray of int64 of shape (n_splits,)
        End of each split's columns: the columns of a split are adjacent.
    w : C-ordered ndarray of shape (n_features, n_columns)
    bias : ndarray of shape (n_columns,)
    losses : ndarray of float64 of shape (n_columns,)
        Sums; added to.
    gradient : ndarray of float64 of shape (n_features + 1, n_columns)
        The intercepts' gradient is the last row; added to.
    """
    (n, d), k = X.shape, w.shape[1]
    at_once = min(max(_MIN_TILE_ROWS, _TILE_ENTRIES // max(k, 1)), _MAX_TILE_ROWS)
    wide = min(max(1, _VECTOR_COLUMNS // max(k, 1)), at_once)
    raw = np.empty((min(at_once, n), k), X.dtype)
    product = np.empty((d, k), X.dtype)
    biases = _repeat_values(bias, wide)
    weight, sign = np.zeros(wide * k, X.dtype), np.zeros(wide * k, X.dtype)
    part, slopes = np.zeros(wide * k, X.dtype), np.zeros(wide * k, X.dtype)
    for start in range(0, n, at_once):
        tile = X[start : start + at_once]
        tile_values = raw[: len(tile)]
        # BLAS computes the products of a tile with all models.
        np.dot(tile, w, tile_values)
        flat = tile_values.reshape(-1)
        for first in range(0, len(tile), wide * _MAX_ROWS_PER_SUM):
            # Losses and slopes of `_MAX_ROWS_PER_SUM` rows are summed in the rows' dtype, then in
            # float64.
            part[:] = 0
            slopes[:] = 0
            for i in range(first, min(first + wide * _MAX_ROWS_PER_SUM, len(tile)), wide):
                last = min(i + wide, len(tile))
                _spread_weights(mask, stops, start + i, start + last, k, weight)
                _spread_signs(signs, start + i, start + last, k, sign)
                _differentiate_rows(flat[i * k : last * k], biases, sign, weight, part, slopes)
            for i in range(wide):
                _add_to_total(gradient[d], slopes[i * k : (i + 1) * k])
                _add_to_total(losses, part[i * k : (i + 1) * k])
        # `tile_values` now holds derivatives: their product with the rows is the gradient.
        np.dot(tile.T, tile_values, product)
        for j in range(d):
            _add_to_total(gradient[j], product[j])


@_compiled
def add_log_scores(
    X: Any, signs: Any, mask: Any, stops: Any, w: Any, bias: Any, max_loss: float, sums: Any
) -> None:
    """Add up weights, correct signs and log losses (at most `max_loss`) of rows of both signs."""
    n, k = len(X), w.shape[1]
    at_once = min(max(_MIN_TILE_ROWS, _TILE_ENTRIES // max(k, 1)), _MAX_TILE_ROWS)
    raw = np.empty((min(at_once, n), k), X.dtype)
    for start in range(0, n, at_once):
        tile = X[start : start + at_once]
        tile_values = raw[: len(tile)]
        np.dot(tile, w, tile_values)
        for i in range(len(tile)):
            sign, first = signs[start + i], 0
            # sums: losses, then weights of the negative and positive rows, then those of correct
            # predictions.
            sign_row = 2 if sign > 0 else 1
            for split in range(len(stops)):
                weight, last = mask[start + i, split], stops[split]
                if weight != 0 and first < last:
                    _score_row(
                        tile_values[i, first:last], bias[first:last], sign, weight, max_loss,
                        sums[0, first:last], sums[sign_row, first:last],
                        sums[sign_row + 2, first:last],
                    )  # fmt: skip
                first = last


@_inside
def _add_to_total(total: Any, partial_sums: Any) -> None:
    """Add the sums of some rows to the totals, which have higher precision."""
    for j in range(len(total)):
        total[j] += partial_sums[j]


@_inside
def _repeat_values(values: Any, times: int) -> Any:
    """Return values repeated, one copy after the other."""
    k = len(values)
    repeated = np.empty(times * k, values.dtype)
    for i in range(times):
        for j in range(k):
            repeated[i * k + j] = values[j]
    return repeated


@_inside
def _spread_weights(mask: Any, stops: Any, start: int, stop: int, k: int, weight: Any) -> None:
    """Write each row's weight to each column: that of the column's split."""
    for i in range(start, stop):
        first = (i - start) * k
        end = first
        for split in range(len(stops)):
            last = (i - start) * k + stops[split]
            row_weights, value = weight[end:last], mask[i, split]
            for j in range(len(row_weights)):
                row_weights[j] = value
            end = last


@_inside
def _spread_signs(signs: Any, start: int, stop: int, k: int, sign: Any) -> None:
    """Write the sign of each row once for each of its k columns."""
    for i in range(start, stop):
        row_signs, value = sign[(i - start) * k : (i - start + 1) * k], signs[i]
        for j in range(k):
            row_signs[j] = value


@_inside
def _differentiate_rows(
    raw: Any, bias: Any, sign: Any, weight: Any, losses: Any, slopes: Any
) -> None:
    """Replace raw predictions of some rows by gradients, in loops long enough for full vectors."""
    for j in range(len(raw)):
        # Loss and derivative of y * raw for each model and row; the derivative replaces the
        # prediction.
        value, slope = log_loss(sign[j] * (raw[j] + bias[j]))
        pull = weight[j] * sign[j] * slope
        raw[j] = pull
        slopes[j] += pull
        losses[j] += weight[j] * value


@_inside
def _score_row(
    raw: Any,
    bias: Any,
    sign: Any,
    weight: Any,
    max_loss: Any,
    losses: Any,
    weights: Any,
    right: Any,
) -> None:
    """Add a row's clipped loss, weight and correct predictions to those of each column."""
    for j in range(len(raw)):
        margin = raw[j] + bias[j]
        value, _ = log_loss(sign * margin)
        losses[j] += weight * (value if value < max_loss else max_loss)
        weights[j] += weight
        right[j] += weight if (margin > 0) == (sign > 0) else 0.0
