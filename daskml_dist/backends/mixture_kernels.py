"""Compiled E-steps: loops over cached tiles between the products of BLAS.

Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.compiled import compiled_entry, compiled_inside
from daskml_dist.backends.row_slices import row_slices

#: Bytes of the arrays computed for a tile's rows, and rows of a tile: fewer make products slow,
#: more exceed the cache.
_CACHED_BYTES, _MIN_TILE_ROWS, _MAX_TILE_ROWS = 3 << 18, 128, 1024

_fast = compiled_entry(fastmath={"contract", "reassoc", "nsz"})
_inside = compiled_inside(error_model="numpy", fastmath={"contract", "reassoc", "nsz"})


def add_expected(
    X: NDArray[Any],
    shift: NDArray[Any],
    constants: NDArray[Any],
    means: NDArray[Any],
    factors: NDArray[Any],
    weight: NDArray[Any],
    out: NDArray[np.float64],
) -> float:
    """Add the moments of an E-step; see `mixture.add_expected`. An empty `weight` is all ones."""
    if factors.ndim == 2:
        return _add_diagonal(X, shift, constants, means, factors, weight, out)
    (k, d), log_likelihood = means.shape, 0.0
    # As many rows as keep both (k, rows, d) arrays in the cache.
    most = min(
        max(_CACHED_BYTES // (2 * X.itemsize * k * d), _MIN_TILE_ROWS), _MAX_TILE_ROWS, len(X)
    )
    numbers, shares = np.empty((2, k * most * d), X.dtype), np.empty(k * most, X.dtype)
    gathered, product = np.empty((most, d), X.dtype), np.empty((k, d, d), X.dtype)
    for row_slice in row_slices(len(X), most):
        n = row_slice.stop - row_slice.start
        # Arrays received over a network may be unaligned.
        gathered[:n] = X[row_slice]
        near, scaled = (buffer[: k * n * d].reshape(k, n, d) for buffer in numbers)
        of_row = shares[: k * n].reshape(k, n)
        _shift_to_means(gathered[:n], shift, means, near)
        # Rows times the Cholesky factor of each precision matrix: squared norms are Mahalanobis
        # distances.
        np.matmul(near, factors, out=scaled)
        log_likelihood += _compute_shares(
            scaled, constants, weight[row_slice] if len(weight) else weight, of_row
        )
        _scale_and_sum(near, of_row, scaled, out)
        # Weighted outer products, by BLAS for all components.
        np.matmul(near.transpose(0, 2, 1), scaled, out=product)
        out[:, 1 + d :] += product.reshape(k, d * d)
    return log_likelihood


@_fast
def _shift_to_means(rows: Any, shift: Any, means: Any, deviations: Any) -> None:
    """Write rows minus the shift and the mean of each component."""
    k, d = means.shape
    for c in range(k):
        for i in range(rows.shape[0]):
            for j in range(d):
                deviations[c, i, j] = (rows[i, j] - shift[j]) - means[c, j]


@_fast
def _compute_shares(scaled: Any, constants: Any, weight: Any, shares: Any) -> float:
    """Write the responsibility of each component for each row; return the log likelihood."""
    k, n, d = scaled.shape
    for c in range(k):
        for i in range(n):
            square = scaled.dtype.type(0)
            for j in range(d):
                square += scaled[c, i, j] * scaled[c, i, j]
            shares[c, i] = constants[c] - square / 2
    return _normalise_shares(shares, weight)


@_inside
def _normalise_shares(shares: Any, weight: Any) -> float:
    """Turn logarithms into shares that sum to the row's weight; return the log likelihood."""
    k, n = shares.shape
    log_likelihood = 0.0
    for i in range(n):
        # log-sum-exp over components, relative to the largest.
        top = shares[0, i]
        for c in range(1, k):
            top = max(top, shares[c, i])
        size = shares.dtype.type(0)
        for c in range(k):
            shares[c, i] = np.exp(shares[c, i] - top)
            size += shares[c, i]
        # Responsibilities times the row's weight; log likelihoods are summed in float64.
        of_row = weight[i] if len(weight) else shares.dtype.type(1)
        log_likelihood += of_row * (np.float64(top) + np.log(np.float64(size)))
        for c in range(k):
            shares[c, i] *= of_row / size
    return log_likelihood


@_fast
def _scale_and_sum(deviations: Any, shares: Any, scaled: Any, out: Any) -> None:
    """Scale rows by their shares in each component, and add the shares and the scaled rows."""
    k, n, d = deviations.shape
    for c in range(k):
        for i in range(n):
            share = shares[c, i]
            out[c, 0] += share
            for j in range(d):
                part = share * deviations[c, i, j]
                scaled[c, i, j] = part
                out[c, 1 + j] += part


@_fast
def _add_diagonal(
    X: Any, shift: Any, constants: Any, means: Any, factors: Any, weight: Any, out: Any
) -> float:
    """Add the moments of rows under diagonal covariances; return the log likelihood."""
    k, d = means.shape
    log_likelihood, tile = 0.0, 128
    shares, shifted = np.empty((k, tile), X.dtype), np.empty((tile, d), X.dtype)
    # A tile of rows stays in the cache, from its densities to its moments.
    for start in range(0, X.shape[0], tile):
        n = min(tile, X.shape[0] - start)
        for i in range(n):
            for j in range(d):
                shifted[i, j] = X[start + i, j] - shift[j]
        # Log densities of the rows in each component.
        for c in range(k):
            for i in range(n):
                square = shifted.dtype.type(0)
                for j in range(d):
                    deviation = (shifted[i, j] - means[c, j]) * factors[c, j]
                    square += deviation * deviation
                shares[c, i] = constants[c] - square / 2
        log_likelihood += _normalise_shares(
            shares[:, :n], weight[start : start + n] if len(weight) else weight
        )
        # Moments about the component's mean, which keep more digits than those about zero.
        for c in range(k):
            for i in range(n):
                share = shares[c, i]
                out[c, 0] += share
                for j in range(d):
                    deviation = shifted[i, j] - means[c, j]
                    out[c, 1 + j] += share * deviation
                    out[c, 1 + d + j] += share * deviation * deviation
    return log_likelihood
