"""Nearest centres of rows, and the sums of each centre's rows, on any array library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from daskml_dist.backends.namespace import arithmetic_dtype, cast, namespace, ones, scalar, total
from daskml_dist.backends.row_slices import row_slices

__all__ = ["assign", "nearest_of_all"]

#: Products of rows and centres that are made at once.
_PRODUCTS = 1 << 20
#: Rows that are taken at once at least.
_FEWEST = 256


def assign(
    backend: Any, X: Any, shift: Any | None, centres: Any, weight: Any | None, out: Any
) -> Any:
    """As :meth:`Backend.assign`, in the functions of the array API standard."""
    inertia = 0.0
    for at, rows in _near_rows(backend, X, shift, centres.shape[0]):
        labels, apart = _nearest(backend, rows, centres)
        some = None if weight is None else weight[at]
        each = ones((apart.shape[0], 1), apart.dtype, like=apart)
        backend.add_rows(each, labels, some, out[:, :1])
        backend.add_rows(rows, labels, some, out[:, 1:])
        apart = cast(apart, out.dtype)
        inertia = inertia + total(apart if some is None else apart * some)
    return scalar(inertia)


def nearest_of_all(backend: Any, X: Any, shift: Any | None, centres: Any) -> tuple[Any, Any]:
    """As :meth:`Backend.nearest`, likewise."""
    found = [
        _nearest(backend, rows, centres)
        for _, rows in _near_rows(backend, X, shift, centres.shape[0])
    ]
    labels, apart = zip(*found, strict=True)
    xp = namespace(centres)
    return xp.concat(labels), xp.concat(apart)


def _near_rows(backend: Any, X: Any, shift: Any | None, width: int) -> Iterator[tuple[slice, Any]]:
    """Some rows at a time, near the origin; `width` numbers will be made of each."""
    step = (backend.entries_at_once or _PRODUCTS) // max(width, 1)
    for at in row_slices(X.shape[0], max(step, _FEWEST)):
        rows = X[at] if _is_sparse(X) else backend.rows(X, at)
        if shift is not None:
            whole = rows.toarray() if _is_sparse(X) else rows
            rows = cast(whole, arithmetic_dtype(whole)) - shift
        yield at, rows


def _nearest(backend: Any, X: Any, centres: Any) -> tuple[Any, Any]:
    xp, k = namespace(centres), centres.shape[0]
    half = total(centres * centres, axis=1) / 2
    apart = half - xp.reshape(backend.dot(X, centres.T), (-1, k))
    squared = _squares(backend, X) + 2 * xp.min(apart, axis=1)
    return xp.argmin(apart, axis=1), xp.where(squared > 0, squared, 0 * squared)


def _squares(backend: Any, X: Any) -> Any:
    """The squared norm of each row, dense or sparse."""
    if not _is_sparse(X):
        return total(X * X, axis=1)
    values = X.values
    each = ones((X.shape[1], 1), X.dtype, like=values)
    return namespace(values).reshape(backend.dot(X.with_values(values * values), each), (-1,))


def _is_sparse(X: Any) -> bool:
    return hasattr(X, "with_values")
