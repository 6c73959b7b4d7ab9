"""Non-negative least squares for many right-hand sides with one Gram matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.namespace import cast, is_host, namespace, total, zeros

#: Number of products of coefficients from which compiled loops are worth loading numba.
_MIN_COMPILED_PRODUCTS = 1 << 16
#: Ridge for the initial coefficients, as a share of the trace of the Gram matrix.
_START_RIDGE = 1e-6


def solve_nonnegative(gram: Any, products: Any, max_sweeps: int, tol: float) -> Any:
    """Return, for each row b, the w >= 0 that minimises ``w @ gram @ w / 2 - b @ w``.

    Parameters
    ----------
    gram : array of shape (k, k)
        Symmetric.
    products : array of shape (n, k), of the same dtype
    max_sweeps, tol
        As in :func:`descend_coordinates`.
    """
    # Start from the unconstrained solution, clipped at 0: it is near if few coefficients are
    # negative.
    xp, k = namespace(products), gram.shape[0]
    # A small ridge, so that a singular Gram matrix has an inverse.
    ridge = zeros((k, k), gram.dtype, like=gram)
    for t in range(k):
        ridge[t, t] += 1
    ridge *= _START_RIDGE * (float(total(gram * ridge)) or 1.0)
    W = products @ xp.linalg.inv(gram + ridge)
    # Clipped at 0, the start of the coordinate descent.
    W = xp.where(W > 0, W, 0 * W)
    descend_coordinates(gram, W @ gram - products, W, max_sweeps, tol)
    return W


def descend_coordinates(gram: Any, slope: Any, W: Any, max_sweeps: int, tol: float) -> None:
    """Decrease ``w @ gram @ w / 2 - b @ w``, w >= 0, for each row w of W, in place.

    Parameters
    ----------
    gram : array of shape (k, k)
    slope : array of shape (n, k)
        ``W @ gram - b``; kept up to date.
    W : array of shape (n, k)
    max_sweeps : int
        Maximum sweeps over the coefficients.
    tol : float
        A row ends after a sweep that changes no coefficient by more than this share of the largest.
    """
    if is_host(W) and W.size * len(gram) >= _MIN_COMPILED_PRODUCTS:
        from daskml_dist.backends import nonnegative_kernels

        nonnegative_kernels.descend_rows(np.ascontiguousarray(gram), slope, W, max_sweeps, tol)
        return
    xp = namespace(W)
    # All rows are swept together; steps of converged rows are multiplied by 0.
    going = zeros((W.shape[0],), W.dtype, like=W) + 1
    # Cyclic coordinate descent (Hsieh and Dhillon 2011): the minimum along coefficient t is at
    # w_t - slope_t / gram_tt, clipped at 0.
    for _ in range(max_sweeps):
        change, largest = going * 0, going * 0
        for t in range(gram.shape[0]):
            if not float(gram[t, t]) > 0:
                continue
            updated = W[:, t] - slope[:, t] / gram[t, t]
            updated = xp.where(updated > 0, updated, 0 * updated)
            step = (updated - W[:, t]) * going
            W[:, t] += step
            slope += step[:, None] * gram[t, ...][None, :]
            change, largest = xp.maximum(change, xp.abs(step)), xp.maximum(largest, updated)
        going *= cast(change > tol * largest, going.dtype)
        if not float(xp.max(going)):
            break


def divide_by_product(X: Any, product: Any, least: float) -> Any:
    """Return ``X / max(product, least)``; on the host, in the memory of `product`."""
    if is_host(product):
        np.maximum(product, least, out=product)
        return np.divide(X, product, out=product)
    xp = namespace(product)
    return X / xp.where(product < least, least + 0 * product, product)


def residual_squares(X: Any, W: Any, across: Any, backend: Any) -> Any:
    """Return the squared distance of each dense row to ``W @ across.T``, in float64."""
    product = backend.matmul(W, across.T, "found")
    xp = namespace(product)
    if is_host(product):
        np.subtract(X, product, out=product)
        return np.einsum("ij,ij->i", product, product).astype(np.float64)
    residuals = X - product
    return total(residuals * residuals, axis=1, dtype=xp.float64)
