"""Raw predictions of several columns: losses summed over them, second derivatives by pairs."""

from __future__ import annotations

from daskml_dist.backends.namespace import namespace, total, zeros
from daskml_dist.losses.base import Array

__all__ = ["diagonal", "per_row"]


def per_row(values: Array) -> Array:
    """Losses of shape (n,) from losses of shape (n,) or (n, K)."""
    return values if values.ndim == 1 else total(values, axis=1)


def diagonal(hessian: Array) -> Array:
    """Diagonal matrices of shape (n, K, K) from second derivatives of shape (n, K)."""
    n, width = hessian.shape
    pairs = zeros((n, width**2), hessian.dtype, hessian)
    pairs[:, :: width + 1] = hessian
    return namespace(hessian).reshape(pairs, (n, width, width))
