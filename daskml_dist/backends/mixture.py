"""Log-densities of rows under normal distributions, and the moments of each component's rows.

An E-step of expectation maximisation (Dempster, Laird and Rubin 1977) in one pass: responsibilities
of a slice of rows are computed, used for the moments, and dropped. A shift near their mean is
subtracted from rows, so that squares of large coordinates lose no digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from daskml_dist.backends.namespace import cast, namespace, scalar, total
from daskml_dist.backends.row_slices import row_slices

#: Numbers of a tile that fit in a core's cache (512 KiB of float64); minimum and maximum rows of a
#: tile.
_ENTRIES_AT_ONCE, _MIN_ROWS_AT_ONCE, _MAX_ROWS_AT_ONCE = 1 << 16, 64, 1024
#: Number of products of rows and components from which compiled loops are worth loading numba.
_MIN_COMPILED_PRODUCTS = 1 << 20


def iterate_shifted_rows(
    backend: Any, X: Any, shift: Any, weight: Any | None, width: int
) -> Iterator[tuple[slice, Any, Any | None]]:
    """Yield slices of dense rows minus the shift, with memory left for `width` numbers per row."""
    step = (backend.entries_at_once or _ENTRIES_AT_ONCE) // max(width, 1)
    step = max(step, _MIN_ROWS_AT_ONCE)
    for row_slice in row_slices(
        X.shape[0], step if backend.entries_at_once else min(step, _MAX_ROWS_AT_ONCE)
    ):
        rows = backend.borrow_rows(X, row_slice)
        rows = rows.toarray() if hasattr(rows, "toarray") else rows
        yield (
            row_slice,
            cast(rows, shift.dtype) - shift,
            None if weight is None else weight[row_slice],
        )


def log_densities(shifted_rows: Any, constants: Any, means: Any, factors: Any) -> Any:
    """Return the logarithm of each component's density times its weight, at each row.

    Parameters
    ----------
    shifted_rows : array of shape (n, d)
    constants : array of shape (k,)
        Logarithms of the components' weights and determinants.
    means : array of shape (k, d)
    factors : array of shape (k, d, d), or (k, d) of diagonals
        Factors of the precisions.
    """
    columns = []
    for c in range(means.shape[0]):
        # With the factor F of the precision F F', |(x - mean) F|**2 is the squared Mahalanobis
        # distance.
        deviations = shifted_rows - means[c, ...]
        deviations = (
            deviations * factors[c, ...] if factors.ndim == 2 else deviations @ factors[c, ...]
        )
        columns.append(constants[c] - total(deviations * deviations, axis=1) / 2)
    return namespace(shifted_rows).stack(columns, axis=1)


def add_moments(shifted_rows: Any, shares: Any, means: Any, out: Any) -> None:
    """Add each component's share of some rows to `out`, as moments about its mean.

    Parameters
    ----------
    shifted_rows : array of shape (n, d)
    shares : array of shape (n, k)
    means : array of shape (k, d)
    out : float64 array of shape (k, 1 + d + d * d), or (k, 1 + 2 * d)
        Weight, sum, and products or squares.
    """
    xp, d = namespace(shifted_rows), shifted_rows.shape[1]
    is_full = out.shape[1] != 1 + 2 * d
    for c in range(means.shape[0]):
        deviations, share = shifted_rows - means[c, ...], shares[:, c]
        scaled = deviations * share[:, None]
        seconds = deviations.T @ scaled if is_full else total(deviations * scaled, axis=0)
        moments = [
            xp.reshape(total(share), (1,)),
            total(scaled, axis=0),
            xp.reshape(seconds, (-1,)),
        ]
        out[c, ...] += cast(xp.concat(moments), out.dtype)


def add_expected(
    backend: Any,
    X: Any,
    shift: Any,
    constants: Any,
    means: Any,
    factors: Any,
    weight: Any | None,
    out: Any,
) -> Any:
    """Add the moments of each component's expected share of the rows (an E-step).

    Parameters
    ----------
    backend : Backend
    X : rows of shape (n, d)
    shift : array of shape (d,)
        Subtracted from each row; already subtracted from the means.
    constants, means, factors
        As of :func:`log_densities`.
    weight : array of shape (n,) or None
    out : as of :func:`add_moments`
    """
    if isinstance(X, np.ndarray) and X.size * len(means) >= _MIN_COMPILED_PRODUCTS:
        from daskml_dist.backends import mixture_kernels

        none = np.empty(0, means.dtype)
        host_weight = none if weight is None else weight
        return mixture_kernels.add_expected(X, shift, constants, means, factors, host_weight, out)
    log_likelihood = 0.0
    for _, near, slice_weight in iterate_shifted_rows(
        backend, X, shift, weight, 2 * means.shape[0] * X.shape[1]
    ):
        xp = namespace(near)
        shares = log_densities(near, constants, means, factors)
        # log-sum-exp over components, relative to the largest.
        top = xp.max(shares, axis=1)
        shares = xp.exp(shares - top[:, None])
        size = total(shares, axis=1)
        likelihoods = cast(top + xp.log(size), out.dtype)
        scale = 1 / size if slice_weight is None else slice_weight / size
        add_moments(near, shares * scale[:, None], means, out)
        log_likelihood = log_likelihood + total(
            likelihoods if slice_weight is None else likelihoods * slice_weight
        )
    return scalar(log_likelihood)
