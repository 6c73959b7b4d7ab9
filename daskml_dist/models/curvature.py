"""Gradient and Hessian of a linear model, in one look at the rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import (
    cast,
    is_host,
    item_bytes,
    namespace,
    scalar,
    total,
    zeros,
)
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import LinearModel

__all__ = ["add_curvature", "curvature_tiles"]

#: Bytes of rows that are worked on together: they and their scaled copy stay in a core's cache.
_BLOCK_BYTES = 2**20


def add_curvature(
    model: LinearModel,
    w: Any,
    rows: BatchRows,
    gradient: Any,
    hessian: Any,
    backend: Backend,
) -> tuple[Any, Any]:
    """Add gradient and Hessian of the summed loss of some rows.

    Products run in the dtype of the rows, block by block; sums of blocks in float64. Rows whose
    loss is not convex count with the absolute value of their curvature, as in scikit-learn.

    Parameters
    ----------
    model : LinearModel
    w : array of shape ``model.shape``
    rows : BatchRows
        Their targets encoded, of shape (n,).
    gradient : float64 array of shape ``model.shape``
    hessian : float64 array of shape ``model.shape * 2``
    backend : Backend

    Returns
    -------
    loss : float, or array of no dimension where the rows lie
        Sum of the weighted losses.
    flat : float, or array of no dimension where the rows lie
        Weight of the rows whose curvature is not positive.
    """
    if model.width == 1:
        of_pairs = hessian[:, 0, :, 0]
        X, y, weight = rows.X, rows.y, rows.weight
        kernel = model.linear.dense_kernel if is_host(X) else model.loss.kernel
        curved = backend.add_curved(kernel, w, X, y, weight, gradient, of_pairs)
        if curved is not None:
            return curved
    xp = namespace(w)
    loss = flat = 0.0
    for at in curvature_tiles(rows.X, backend):
        part = rows.part(at, backend)
        X, weight = part.X, part.weight
        raw = model.raw_prediction(w, X, backend)
        losses, g, h = model.loss.value_gradient_hessian(part.y, raw)
        if weight is not None:
            losses = losses * weight
            g *= weight if g.ndim == 1 else weight[:, None]
            h *= weight if h.ndim == 1 else weight[:, None, None]
        if model.fit_intercept:
            backend.add_tdot(X, g, gradient[:-1, :])
            gradient[-1, :] += total(g, axis=0)
        else:
            backend.add_tdot(X, g, gradient)
        if h.ndim == 1:
            bad = cast(h <= 0, xp.float64)
            flat += scalar(total(bad if weight is None else bad * weight))
            _add_gram(X, xp.abs(h), hessian[:, 0, :, 0], backend)
        else:
            _add_pairs(X, h, hessian, backend)
        loss += scalar(total(losses, dtype=xp.float64))
    return loss, flat


def curvature_tiles(X: Any, backend: Backend) -> Iterator[slice]:
    """Slices of rows of `X` that are worked on one after the other."""
    n_rows, n_features = X.shape
    # With many features the sum of a block costs as much as a few rows for each of them.
    entries = backend.entries_at_once or _BLOCK_BYTES // item_bytes(X)
    step = max(64, entries // n_features, min(4 * n_features, 2**14))
    return row_slices(n_rows, step)


def _add_pairs(X: Any, h: Any, out: Any, backend: Backend) -> None:
    """Add the blocks of all pairs of classes; off the diagonal `h` is negative."""
    width = h.shape[1]
    for k in range(width):
        _add_gram(X, h[:, k, k], out[:, k, :, k], backend)
        for other in range(k):
            part = zeros(out.shape[::2], np.float64, out)
            _add_gram(X, -h[:, k, other], part, backend)
            out[:, k, :, other] -= part
            out[:, other, :, k] -= part


def _add_gram(X: Any, h: Any, out: Any, backend: Backend) -> None:
    """Add ``Z.T @ diag(h) @ Z``, where Z is `X` and, with an intercept, a column of ones."""
    xp, n_features = namespace(h), X.shape[1]
    backend.add_gram(X, h, out[:n_features, :n_features])
    if out.shape[0] > n_features:
        border = zeros((n_features, 1), np.float64, out)
        backend.add_tdot(X, h, border)
        out[:n_features, n_features] += border[:, 0]
        out[n_features, :n_features] += border[:, 0]
        out[n_features, n_features] += total(h, dtype=xp.float64)
