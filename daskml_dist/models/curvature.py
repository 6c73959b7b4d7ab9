"""Gradient and Hessian of a linear model, in one look at the rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.models.linear import LinearModel

__all__ = ["add_curvature", "row_blocks"]

#: Bytes of rows that are worked on together: they and their scaled copy stay in a core's cache.
_BLOCK_BYTES = 2**20


def add_curvature(
    model: LinearModel,
    w: Any,
    X: Any,
    y: Any,
    weight: Any | None,
    gradient: NDArray[np.float64],
    hessian: NDArray[np.float64],
    backend: Backend,
) -> tuple[float, float]:
    """Add gradient and Hessian of the summed loss of some rows.

    Products run in the dtype of the rows, block by block; sums of blocks in float64. Rows whose
    loss is not convex count with the absolute value of their curvature, as in scikit-learn.

    Parameters
    ----------
    model : LinearModel
    w, gradient : arrays of shape ``model.shape``
    X : rows of shape (n, n_features)
    y : encoded targets of shape (n,)
    weight : array of shape (n,) or None
    hessian : ndarray of shape ``model.shape * 2``
    backend : Backend

    Returns
    -------
    loss : float
        Sum of the weighted losses.
    flat : float
        Weight of the rows whose curvature is not positive.
    """
    loss = flat = 0.0
    for at in row_blocks(X):
        rows = X[at]
        raw = model.raw_prediction(w, rows, backend)
        losses, g, h = model.loss.value_gradient_hessian(y[at], raw)
        if weight is not None:
            losses = losses * weight[at]
            g *= weight[at] if g.ndim == 1 else weight[at][:, None]
            h *= weight[at] if h.ndim == 1 else weight[at][:, None, None]
        if model.fit_intercept:
            backend.add_tdot(rows, g, gradient[:-1])
            gradient[-1] += g.sum(axis=0)
        else:
            backend.add_tdot(rows, g, gradient)
        if h.ndim == 1:
            bad = h <= 0
            flat += float(np.count_nonzero(bad) if weight is None else weight[at][bad].sum())
            _add_gram(rows, np.abs(h), hessian[:, 0, :, 0], backend)
        else:
            _add_pairs(rows, h, hessian, backend)
        loss += float(losses.sum(dtype=np.float64))
    return loss, flat


def row_blocks(X: Any) -> Iterator[slice]:
    """Slices of rows of `X` that are worked on one after the other."""
    n_rows, n_features = X.shape
    # With many features the sum of a block costs as much as a few rows for each of them.
    step = max(64, _BLOCK_BYTES // (n_features * X.dtype.itemsize), min(4 * n_features, 2**14))
    return row_slices(n_rows, step)


def _add_pairs(X: Any, h: Any, out: NDArray[np.float64], backend: Backend) -> None:
    """Add the blocks of all pairs of classes; off the diagonal `h` is negative."""
    width = h.shape[1]
    for k in range(width):
        _add_gram(X, h[:, k, k], out[:, k, :, k], backend)
        for other in range(k):
            part = np.zeros((len(out), len(out)))
            _add_gram(X, -h[:, k, other], part, backend)
            out[:, k, :, other] -= part
            out[:, other, :, k] -= part


def _add_gram(X: Any, h: Any, out: NDArray[np.float64], backend: Backend) -> None:
    """Add ``Z.T @ diag(h) @ Z``, where Z is `X` and, with an intercept, a column of ones."""
    n_features = X.shape[1]
    backend.add_gram(X, h, out[:n_features, :n_features])
    if len(out) > n_features:
        border = np.zeros((n_features, 1))
        backend.add_tdot(X, h, border)
        out[:n_features, n_features] += border[:, 0]
        out[n_features, :n_features] += border[:, 0]
        out[n_features, n_features] += h.sum(dtype=np.float64)
