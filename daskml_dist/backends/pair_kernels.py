"""Compiled loops over pairs of parameter rows: the rows that a batch uses, and gradients.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.compiled import compiled_with
from daskml_dist.backends.elementary_functions import ROW_LOSSES

#: Bits of a position in a batch (16 million entries); position and number must fit together into
#: the 63 bits of a non-negative key.
_PLACE_BITS = 24


# `_evaluate_row` is a placeholder for the function of a loss.
def _evaluate_row(y: Any, raw: Any, parameters: Any) -> Any: ...


def _multiply_factors(w: Any, a: Any, b: Any, rank: Any) -> Any:
    """Return the product of the factors of two rows."""
    product = w.dtype.type(0)
    for j in range(rank):
        product += w[a, j] * w[b, j]
    return product


def _number_distinct(keys: Any, positions: Any, index: Any) -> Any:
    """Write sorted distinct numbers, and each entry's position among them; return how many."""
    n, last = -1, np.int64(-1)
    for key in keys:
        number = key >> _PLACE_BITS
        if number != last:
            n += 1
            index[n] = last = number
        positions[key & ((1 << _PLACE_BITS) - 1)] = n
    return n + 1


def find_distinct(
    id_arrays: Sequence[NDArray[Any]],
) -> tuple[NDArray[np.int64], list[NDArray[Any]]]:
    """Return the sorted distinct numbers of some arrays, and each entry's position among them."""
    joined = np.concatenate([part.reshape(-1) for part in id_arrays]).astype(np.int64)
    n = len(joined)
    if n >> _PLACE_BITS or (n and int(joined.max()) >> (63 - _PLACE_BITS)):
        index, place = np.unique(joined, return_inverse=True)
    else:
        # Number in the high bits, position in the low bits of one key: sorting the keys sorts both.
        joined <<= _PLACE_BITS
        joined |= np.arange(n)
        joined.sort()  # several times faster than an argument sort
        index, place = np.empty(n, np.int64), np.empty(n, np.int32)
        index = index[: compiled_with(_number_distinct, exact=True)(joined, place, index)]
    ends = np.cumsum([part.size for part in id_arrays])[:-1]
    pairs = zip(np.split(place, ends), id_arrays, strict=True)
    return index, [part.reshape(array.shape) for part, array in pairs]


def _add_pair_gradients(
    w: Any, pair_rows: Any, y: Any, weight: Any, rank: Any, reg: Any, offset: Any, unit: Any,
    out: Any, parameters: Any,
) -> Any:  # fmt: skip
    """Add the gradient of pairs to `out`; return the sum of their losses without the penalty.

    Parameters
    ----------
    w, out : (n_rows, rank) or (n_rows, rank + 1) floats
        Factors and, if there is one more column, biases.
    pair_rows : (n, 2) integers
        Rows of the users and items.
    y, weight : (n,) floats
        Empty: all weights are 1.
    rank : int
    reg, offset, unit : floats
    parameters : floats
        Parameters of the loss.
    """
    number, total_loss = w.dtype.type, 0.0
    biased = w.shape[1] > rank
    for t in range(len(pair_rows)):
        a, b = np.uint64(pair_rows[t, 0]), np.uint64(pair_rows[t, 1])
        # Prediction of a pair: (u . v + biases) * unit + offset.
        raw, penalty = _multiply_factors(w, a, b, rank), reg
        if biased:
            raw += w[a, rank]
            raw += w[b, rank]
        raw = raw * unit + offset
        value, slope = _evaluate_row(y[t], raw, parameters)
        if len(weight):
            value, slope, penalty = value * weight[t], slope * weight[t], reg * weight[t]
        total_loss += value
        g, shrink = number(slope / unit), number(penalty / unit)
        for j in range(rank):
            # Both are read first: a row may be paired with itself.
            of_a, of_b = w[a, j], w[b, j]
            out[a, j] += g * of_b + shrink * of_a
            out[b, j] += g * of_a + shrink * of_b
        if biased:
            out[a, rank] += g + penalty * w[a, rank]
            out[b, rank] += g + penalty * w[b, rank]
    return total_loss


def add_pair_gradients(
    loss: Any, w: NDArray[Any], pair_rows: NDArray[Any], y: NDArray[Any],
    weight: NDArray[Any] | None, rank: int, reg: float, offset: float, unit: float,
    out: NDArray[Any],
) -> float | None:  # fmt: skip
    """Add the gradient of a loss of products of rows to `out`, reading each pair once.

    Parameters
    ----------
    loss : Loss
    w, out : ndarray of shape (n_rows, rank) or (n_rows, rank + 1)
    pair_rows : ndarray of int of shape (n, 2)
    y : ndarray of shape (n,)
    weight : ndarray of shape (n,), or None
    rank : int
    reg : float
        Half the penalty on the squares of both rows of each pair.
    offset, unit : float
        A pair is predicted by `unit` times the product of its rows, added to `offset`; gradients
        are divided by the square of `unit`.
    """
    evaluate_row = ROW_LOSSES.get(loss.kernel, type(loss).evaluate_row)
    if evaluate_row is None:
        return None
    product = compiled_with(_multiply_factors, reassociates=True)
    run = compiled_with(_add_pair_gradients, _evaluate_row=evaluate_row, _multiply_factors=product)
    weight = np.empty(0, w.dtype) if weight is None else weight
    number = w.dtype.type
    settings = rank, number(reg), number(offset), number(unit), out, loss.parameters
    return float(run(w, pair_rows, y, weight, *settings))
