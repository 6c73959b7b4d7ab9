"""Nearest centres of rows, and the sums of each centre's rows, on any array library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from daskml_dist.backends.namespace import cast, namespace, scalar, total, zeros
from daskml_dist.backends.row_slices import row_slices

__all__ = ["assign", "near_rows", "nearest", "squares"]

#: Products of rows and centres that are made at once.
_PRODUCTS = 1 << 20


def nearest(backend: Any, X: Any, centres: Any) -> tuple[Any, Any]:
    """The nearest centre of each row, and the squared distance to it.

    Parameters
    ----------
    backend : Backend
    X : rows of shape (n, n_features), dense or sparse
        Near the origin: distances are made of squares, and their digits cancel far from it.
    centres : array of shape (k, n_features), of the dtype of X

    Returns
    -------
    labels : array of int of shape (n,)
        The first of several.
    apart : array of shape (n,)
    """
    xp, k = namespace(centres), centres.shape[0]
    half = total(centres * centres, axis=1) / 2
    apart = half - xp.reshape(backend.dot(X, centres.T), (-1, k))
    squared = squares(backend, X) + 2 * xp.min(apart, axis=1)
    return xp.argmin(apart, axis=1), xp.where(squared > 0, squared, 0 * squared)


def squares(backend: Any, X: Any) -> Any:
    """The squared norm of each row, dense or sparse."""
    if not hasattr(X, "with_values"):
        return total(X * X, axis=1)
    values = X.values
    each = zeros((X.shape[1], 1), X.dtype, like=values) + 1
    return namespace(values).reshape(backend.dot(X.with_values(values * values), each), (-1,))


def near_rows(backend: Any, X: Any, shift: Any | None, width: int) -> Iterator[tuple[slice, Any]]:
    """Some rows at a time, brought near the origin.

    Parameters
    ----------
    backend : Backend
    X : rows of shape (n, n_features)
    shift : array of shape (n_features,), of the dtype of X, or None
        What is taken from each row; None for sparse rows.
    width : int
        Numbers that will be made of each row.
    """
    step = (backend.entries_at_once or _PRODUCTS) // max(width, 1)
    for at in row_slices(X.shape[0], max(step, 256)):
        rows = X[at] if hasattr(X, "with_values") else backend.rows(X, at)
        yield at, rows if shift is None else rows - shift


def assign(
    backend: Any, X: Any, shift: Any | None, centres: Any, weight: Any | None, out: Any
) -> Any:
    """As :meth:`Backend.assign`, in the functions of the array API standard."""
    inertia = 0.0
    each = None
    for at, rows in near_rows(backend, X, shift, centres.shape[0]):
        labels, apart = nearest(backend, rows, centres)
        some = None if weight is None else weight[at]
        each = zeros((apart.shape[0], 1), apart.dtype, like=apart) + 1
        backend.add_rows(each, labels, some, out[:, :1])
        backend.add_rows(rows, labels, some, out[:, 1:])
        inertia = inertia + total(cast(apart if some is None else apart * some, out.dtype))
    return scalar(inertia)
