"""Comparison of the named results of two computations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from daskml_dist.errors import DaskMLDistError

__all__ = ["Refusal", "attempt", "differences", "plain"]

#: Share of labels that may cross a boundary by rounding.
SLIPS = 0.01
#: Results that may be near zero compared with others, and are only as accurate as these.
_BESIDE = {"intercept_": "coef_", "intercepts_": "coefs_"}


@dataclass(frozen=True)
class Refusal:
    """Error instead of results."""

    error: Exception

    @property
    def is_ours(self) -> bool:
        """Return whether the error is one of the package's classes."""
        return isinstance(self.error, DaskMLDistError)

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {' '.join(str(self.error).split())[:240]}"


def attempt(function: Callable[..., Any], *args: Any) -> Any:
    """Return the results, or the refusal."""
    try:
        return function(*args)
    except Exception as error:
        # Tracebacks keep their frames' objects alive, and so data on a cluster.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return Refusal(error)


def plain(values: Any) -> Any:
    """Return arrays of NumPy's dtypes in a form for scikit-learn: missing values are NaN."""
    if isinstance(values, pd.DataFrame):
        return pd.DataFrame({name: _plain_series(values[name]) for name in values})
    if isinstance(values, pd.Series):
        return _plain_series(values)
    return values


def _plain_series(series: pd.Series) -> Any:
    dtype = series.dtype
    if isinstance(dtype, np.dtype):
        found = series.to_numpy()
    elif dtype.kind in "biuf" and not isinstance(dtype, pd.CategoricalDtype):
        kind = getattr(dtype, "numpy_dtype", "float64")
        found = (
            series.to_numpy("float64", na_value=np.nan) if series.hasnans else series.to_numpy(kind)
        )
    else:
        found = series.astype(object).where(series.notna(), np.nan).to_numpy()
    return found


def differences(
    found: dict[str, Any], expected: dict[str, Any], rtol: float, *, whole: bool
) -> list[str]:
    """Return the differences between found and expected results, one line each.

    Parameters
    ----------
    found, expected : dict
        Results by name: numbers, arrays, strings or lists of them.
    rtol : float
        Tolerance relative to the largest absolute value of each result.
    whole : bool
        Whether both must have the same results, and methods must return the same dtypes; otherwise
        only common results are compared, by value.
    """
    lines = []
    if whole and found.keys() != expected.keys():
        lines.append(f"results: {sorted(found.keys() ^ expected.keys())} on one side alone")
    for name in found.keys() & expected.keys():
        beside = _largest(expected.get(_BESIDE.get(name, "")))
        if name == "score()":
            beside = max(beside, 1.0)  # R2 is 1 minus a ratio, so its rounding is relative to 1
        strict = whole and name.endswith(")")
        if line := _difference(found[name], expected[name], rtol, strict, beside):
            lines.append(f"{name}: {line}")
    return sorted(lines)


def _largest(value: Any) -> float:
    if isinstance(value, list | tuple):
        return max(map(_largest, value), default=0.0)
    return 0.0 if value is None else float(np.abs(value).max(initial=0.0))


def _difference(found: Any, expected: Any, rtol: float, whole: bool, beside: float) -> str:
    found, expected = (list(v) if _holds_arrays(v) else v for v in (found, expected))
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        return _of_lists(list(found), list(expected), rtol, whole, beside)
    a, b = _as_array(found), _as_array(expected)
    if a.shape != b.shape:
        return f"shape {a.shape}, expected {b.shape}"
    if whole and a.dtype != b.dtype and {a.dtype.kind, b.dtype.kind} != {"U"}:
        return f"dtype {a.dtype}, expected {b.dtype}"
    if a.dtype.kind in "biufc" and b.dtype.kind in "biufc":
        return _of_numbers(a.astype(float), b.astype(float), rtol, beside)
    pairs = zip(a.ravel(), b.ravel(), strict=True)
    return _of_labels(np.array([not _is_same(x, y) for x, y in pairs]), a, b)


def _holds_arrays(value: Any) -> bool:
    """Return whether a value is an array of arrays with different lengths."""
    is_objects = isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 1
    return is_objects and any(isinstance(item, np.ndarray) for item in value)


def _is_same(x: Any, y: Any) -> bool:
    """Return whether objects are equal, with NaN equal to NaN, an integer to a whole float.

    Labels may be of any string type.
    """
    both_numbers = isinstance(x, int | float | np.number) and isinstance(y, int | float | np.number)
    return str(x) == str(y) or (both_numbers and bool(x == y))


def _of_lists(
    found: list[Any], expected: list[Any], rtol: float, whole: bool, beside: float
) -> str:
    if len(found) != len(expected):
        return f"{len(found)} items, expected {len(expected)}"
    pairs = zip(found, expected, strict=True)
    lines = [_difference(a, b, rtol, whole, beside) for a, b in pairs]
    return "; ".join(f"item {i} {line}" for i, line in enumerate(lines) if line)


def _of_numbers(a: Any, b: Any, rtol: float, beside: float) -> str:
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite) or not np.array_equal(
        a[~finite], b[~finite], equal_nan=True
    ):
        return f"not finite in other places: {_few(a)}, expected {_few(b)}"
    scale = np.abs(b[finite]).max(initial=beside)
    error = np.abs(a[finite] - b[finite]).max(initial=0.0)
    if error <= rtol * scale + 1e-12:
        return ""
    return f"off by {error:.3g} of {scale:.3g}: {_few(a)}, expected {_few(b)}"


def _of_labels(unlike: Any, a: Any, b: Any) -> str:
    if not unlike.any():
        return ""
    return f"{unlike.sum()} of {unlike.size} differ: {_few(a)}, expected {_few(b)}"


def _as_array(values: Any) -> Any:
    values = values.toarray() if sparse.issparse(values) else values
    return np.asarray(values)


def _few(values: Any) -> str:
    return np.array2string(np.ravel(values)[:6], precision=6, separator=", ")
