"""Scalers before a model: what their ``transform`` computes of few plain rows, and no more."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import preprocessing

from daskml_dist.data.plain_rows import FLOAT_DTYPES, convert_few_rows
from daskml_dist.sklearn_internals import get_output_config

__all__ = ["bare_scaler", "restored_few", "scaled_few"]

_Step = tuple[Any, NDArray[Any]]


def bare_scaler(scaler: Any, dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], Any] | None:
    """A function from finite rows to the scaled ones, to the bit those of ``transform``."""
    kind = _kind(scaler.__class__)
    return None if kind is None or not _as_installed(kind) else _bare(kind, scaler, dtype)


def scaled_few(scaler: Any, X: Any) -> NDArray[Any] | None:
    """Few plain rows scaled, as ``transform`` returns them; None where it should look itself."""
    kind = _kind(scaler.__class__)
    if kind is None or type(X) is not np.ndarray or "feature_names_in_" in vars(scaler):
        return None
    rows = _finite(scaler, X)
    if rows is None or get_output_config("transform", scaler)["dense"] != "default":
        return None
    if not _as_installed(kind):
        return None
    scaled: NDArray[Any] = _bare(kind, scaler, rows.dtype)(rows)
    return scaled


def restored_few(scaler: Any, X: Any) -> NDArray[Any] | None:
    """As :func:`scaled_few`, of ``inverse_transform``, which asks for no names."""
    kind = _kind(scaler.__class__)
    if kind is None or type(X) is not np.ndarray:
        return None
    rows = _finite(scaler, X)
    if rows is None or not _as_installed(kind):
        return None
    return _restored(kind, scaler, rows)


def _finite(scaler: Any, X: NDArray[Any]) -> NDArray[Any] | None:
    """Few rows of a fitted scaler that may not write into them; None for any other."""
    known = vars(scaler)
    if "n_features_in_" not in known or not known["copy"]:
        return None
    rows = convert_few_rows(X, (known["n_features_in_"],))
    return rows if rows is not None and np.isfinite(rows).all() else None


def _restored(kind: type, scaler: Any, X: NDArray[Any]) -> NDArray[Any]:
    """Rows as they were before scaling; clipped values stay so."""
    X = X.copy()
    for step, values in reversed(_STEPS[kind](scaler, X.dtype)):
        _UNDONE[step](X, values, out=X, casting="same_kind")
    return X


def _bare(kind: type, scaler: Any, dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], Any]:
    steps = _STEPS[kind](scaler, dtype)
    clip = _clipped(scaler, dtype)

    def scaled(X: NDArray[Any]) -> NDArray[Any]:
        X = X.copy()
        for step, values in steps:
            step(X, values, out=X, casting="same_kind")
        if clip is not None:
            np.clip(X, *clip, out=X)
        return X

    return scaled


@cache
def _as_installed(kind: Any) -> bool:
    """Return whether the installed scikit-learn computes what is written here."""
    rows = np.random.default_rng(0).normal(size=(9, 3))
    scaler = kind().fit(rows[1:])
    if hasattr(scaler, "clip"):
        scaler.clip = True
    return all(
        np.array_equal(_bare(kind, scaler, dtype)(X), scaler.transform(X))
        and np.array_equal(_restored(kind, scaler, X), scaler.inverse_transform(X))
        for dtype in FLOAT_DTYPES
        for X in [rows.astype(dtype)]
    )


@cache
def _kind(kind: Any) -> Any:
    """scikit-learn's class of a scaler that is known here."""
    return next((base for base in _STEPS if _is_plain(kind, base)), None)


def _is_plain(kind: type, base: type) -> bool:
    """Return whether a class is scikit-learn's, or this package's of it; others may do anything."""
    ours = kind.__module__.startswith("daskml_dist.preprocessing.") and issubclass(kind, base)
    return kind is base or ours


def _standard(scaler: Any, dtype: np.dtype[Any]) -> list[_Step]:
    steps: list[_Step] = []
    if scaler.with_mean:
        steps.append((np.subtract, scaler.mean_.astype(dtype)))
    if scaler.with_std:
        steps.append((np.divide, scaler.scale_.astype(dtype)))
    return steps


def _min_max(scaler: Any, dtype: np.dtype[Any]) -> list[_Step]:
    return [(np.multiply, scaler.scale_), (np.add, scaler.min_)]


def _max_abs(scaler: Any, dtype: np.dtype[Any]) -> list[_Step]:
    return [(np.divide, scaler.scale_)]


def _robust(scaler: Any, dtype: np.dtype[Any]) -> list[_Step]:
    steps: list[_Step] = []
    if scaler.with_centering:
        steps.append((np.subtract, scaler.center_))
    if scaler.with_scaling:
        steps.append((np.divide, scaler.scale_))
    return steps


def _clipped(scaler: Any, dtype: np.dtype[Any]) -> tuple[Any, Any] | None:
    if not getattr(scaler, "clip", False):
        return None
    low, high = getattr(scaler, "feature_range", (-1.0, 1.0))
    return dtype.type(low), dtype.type(high)


_STEPS: dict[type, Callable[[Any, np.dtype[Any]], list[_Step]]] = {
    preprocessing.StandardScaler: _standard,
    preprocessing.MinMaxScaler: _min_max,
    preprocessing.MaxAbsScaler: _max_abs,
    preprocessing.RobustScaler: _robust,
}
#: What undoes a step.
_UNDONE = {
    np.add: np.subtract,
    np.subtract: np.add,
    np.multiply: np.divide,
    np.divide: np.multiply,
}
