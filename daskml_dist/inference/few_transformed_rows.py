"""Scaling of a few plain rows by arithmetic alone, without the checks of ``transform``.

For a single row scikit-learn's checks take far longer than the arithmetic. So the arithmetic of
four scalers is written here as a sequence of ufuncs (`_STEPS`), with results bit-identical to
scikit-learn's: before a class is used for the first time, its results are compared with those of
the installed version (`_matches_sklearn`). For users' subclasses and for rows that are not plain
(NaN, other containers, names that differ) the functions return None, and the caller uses
``transform`` itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import preprocessing

from daskml_dist.backends.namespace import cast, namespace
from daskml_dist.data.plain_rows import (
    FLOAT_DTYPES,
    convert_few_rows,
    extract_frame_floats,
    extract_frame_words,
    is_small_frame,
)
from daskml_dist.data.row_checks import names_surely_match
from daskml_dist.sklearn_internals import get_output_config, set_output_module


def extract_few_rows(transformer: Any, X: Any, options: dict[str, Any]) -> NDArray[Any] | None:
    """Return the values of a small frame with the fit's names; None if only ``transform`` can.

    `options` are those of the ``transform`` call.
    """
    # Transformers that select columns by name need the frame; one that writes into its input
    # (copy=False) would change only a copy; and the requested output may be a frame.
    if (
        not is_small_frame(X)
        or not transformer._by_place
        or options.get("copy") is False
        or not getattr(transformer, "copy", True)
        or not names_surely_match(X, getattr(transformer, "feature_names_in_", None))
        or not returns_arrays(transformer)
    ):
        return None
    values = extract_frame_floats(X)
    return values if values is not None or transformer._numeric else extract_frame_words(X)


def returns_arrays(transformer: Any) -> bool:
    """Return whether transformed rows are arrays: ``set_output`` asks for no other container."""
    return bool(get_output_config("transform", transformer)["dense"] == "default")


@cache
def find_plain_transform(kind: Any, base: Any) -> Callable[..., Any]:
    """Return ``transform`` of the class after `base` in an MRO, without scikit-learn's wrapper."""
    method: Any = super(base, kind).transform
    transform: Callable[..., Any] = method.__wrapped__ if is_wrapped_for_output(method) else method
    return transform


def is_wrapped_for_output(method: Any) -> bool:
    """Return whether a method is wrapped by scikit-learn for the containers of ``set_output``."""
    # The wrapper has no attribute to know it by, but its globals are those of that module.
    return getattr(method, "__globals__", None) is vars(set_output_module)


#: Ufunc, and its second argument: an array of a value for each feature.
_Step = tuple[Any, NDArray[Any]]


def make_scaler_function(scaler: Any, dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], Any] | None:
    """Return a function that scales finite rows bit-identically to ``transform``; or None."""
    kind = _find_sklearn_class(scaler.__class__)
    return (
        None if kind is None or not _matches_sklearn(kind) else _make_function(kind, scaler, dtype)
    )


def scale_few_rows(scaler: Any, X: Any) -> NDArray[Any] | None:
    """Return a few plain rows scaled as by ``transform``; None if it must check them itself."""
    # The cheapest tests come first. A scaler with feature names must warn of arrays, which have
    # none: `transform` does.
    kind = _find_sklearn_class(scaler.__class__)
    if kind is None or type(X) is not np.ndarray or "feature_names_in_" in vars(scaler):
        return None
    rows = _convert_finite_rows(scaler, X)
    if rows is None or get_output_config("transform", scaler)["dense"] != "default":
        return None
    if not _matches_sklearn(kind):
        return None
    scaled: NDArray[Any] = _make_function(kind, scaler, rows.dtype)(rows)
    return scaled


def unscale_few_rows(scaler: Any, X: Any) -> NDArray[Any] | None:
    """Return a few plain rows as by ``inverse_transform``, which checks no names; else None."""
    kind = _find_sklearn_class(scaler.__class__)
    if kind is None or type(X) is not np.ndarray:
        return None
    rows = _convert_finite_rows(scaler, X)
    if rows is None or not _matches_sklearn(kind):
        return None
    return _undo_steps(kind, scaler, rows)


def scale_device_rows(scaler: Any, X: Any, is_inverse: bool = False) -> Any:
    """Return dense rows on a GPU, scaled on it; None if they must be scaled on the host.

    With `is_inverse` as by ``inverse_transform``. The host raises the errors of rows that cannot be
    scaled.
    """
    kind = _find_sklearn_class(scaler.__class__)
    if kind is None or not _matches_sklearn(kind) or (rows := take_device_rows(scaler, X)) is None:
        return None
    xp, steps = namespace(rows), _list_steps(kind, scaler, rows.dtype)
    for step, values in [(_INVERSES[s], v) for s, v in reversed(steps)] if is_inverse else steps:
        rows = cast(getattr(xp, step.__name__)(rows, xp.asarray(values)), rows.dtype)
    bounds = None if is_inverse else _clip_bounds(scaler, rows.dtype)
    return rows if bounds is None else xp.clip(rows, *map(float, bounds))


def take_device_rows(transformer: Any, X: Any, missing: bool = True) -> Any:
    """Return dense rows on a GPU in the dtype of the results; None if the host must take them.

    The host raises the errors for infinity, and for NaN unless `missing` values are accepted.
    """
    attributes = vars(transformer)
    if hasattr(X, "tocsr") or X.ndim != 2 or "feature_names_in_" in attributes:
        return None
    if attributes.get("n_features_in_") != X.shape[1] or not returns_arrays(transformer):
        return None
    # scikit-learn does not convert rows of half precision, so the host takes these.
    if X.dtype.kind not in "fiub" or (X.dtype.kind == "f" and X.dtype not in FLOAT_DTYPES):
        return None
    xp, rows = namespace(X), cast(X, X.dtype if X.dtype.kind == "f" else np.dtype(np.float64))
    return None if xp.any(xp.isinf(rows) if missing else ~xp.isfinite(rows)) else rows


def _convert_finite_rows(scaler: Any, X: NDArray[Any]) -> NDArray[Any] | None:
    """Return a few finite rows if the scaler does not change its input; None for all others."""
    attributes = vars(scaler)
    if "n_features_in_" not in attributes or not attributes["copy"]:
        return None
    rows = convert_few_rows(X, (attributes["n_features_in_"],))
    return rows if rows is not None and np.isfinite(rows).all() else None


def _undo_steps(kind: type, scaler: Any, X: NDArray[Any]) -> NDArray[Any]:
    """Return rows as before scaling, by inverse steps in reverse order; clipped values remain."""
    X = X.copy()
    for step, values in reversed(_list_steps(kind, scaler, X.dtype)):
        _INVERSES[step](X, values, out=X, casting="same_kind")
    return X


def _make_function(kind: type, scaler: Any, dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], Any]:
    """Return a function that scales rows of one dtype into a copy."""
    steps = _list_steps(kind, scaler, dtype)
    bounds = _clip_bounds(scaler, dtype)

    def scaled(X: NDArray[Any]) -> NDArray[Any]:
        X = X.copy()
        for step, values in steps:
            step(X, values, out=X, casting="same_kind")
        if bounds is not None:
            np.clip(X, *bounds, out=X)
        return X

    return scaled


@cache
def _matches_sklearn(kind: Any) -> bool:
    """Return whether the installed scikit-learn computes bit-identical results."""
    # The first row is not in the fit, so its values may be out of range, and be clipped.
    rows = np.random.default_rng(0).normal(size=(9, 3))
    scaler = kind().fit(rows[1:])
    if hasattr(scaler, "clip"):
        scaler.clip = True
    return all(
        np.array_equal(_make_function(kind, scaler, dtype)(X), scaler.transform(X))
        and np.array_equal(_undo_steps(kind, scaler, X), scaler.inverse_transform(X))
        for dtype in FLOAT_DTYPES
        for X in [rows.astype(dtype)]
    )


@cache
def _find_sklearn_class(kind: Any) -> Any:
    """Return scikit-learn's class of a scaler whose arithmetic is written here, or None."""
    # A user's subclass may compute anything; this package's classes compute the same.
    is_ours = kind.__module__.startswith("daskml_dist.preprocessing.")
    return next(
        (base for base in _STEPS if kind is base or (is_ours and issubclass(kind, base))), None
    )


#: Arithmetic of each scaler's ``transform``, in scikit-learn's order: ufuncs, the attributes that
#: are their second arguments, and the parameters that switch them off.
_STEPS: dict[type, tuple[tuple[Any, str, str], ...]] = {
    preprocessing.StandardScaler: (
        (np.subtract, "mean_", "with_mean"),
        (np.divide, "scale_", "with_std"),
    ),
    preprocessing.MinMaxScaler: ((np.multiply, "scale_", ""), (np.add, "min_", "")),
    preprocessing.MaxAbsScaler: ((np.divide, "scale_", ""),),
    preprocessing.RobustScaler: (
        (np.subtract, "center_", "with_centering"),
        (np.divide, "scale_", "with_scaling"),
    ),
}
#: Inverse of each ufunc in its first argument.
_INVERSES = {
    np.add: np.subtract,
    np.subtract: np.add,
    np.multiply: np.divide,
    np.divide: np.multiply,
}


def _list_steps(kind: type, scaler: Any, dtype: np.dtype[Any]) -> list[_Step]:
    """Return the steps of a scaler, in scikit-learn's dtypes."""
    steps = _STEPS[kind]
    used_steps = [
        (step, getattr(scaler, name))
        for step, name, option in steps
        if not option or vars(scaler)[option]
    ]
    if kind is preprocessing.StandardScaler:  # which converts its statistics to the rows' dtype
        return [(step, values.astype(dtype)) for step, values in used_steps]
    return used_steps


def _clip_bounds(scaler: Any, dtype: np.dtype[Any]) -> tuple[Any, Any] | None:
    """Return the range that a scaler clips its results to; None if it does not clip."""
    # MaxAbsScaler has no `feature_range`: it scales to [-1, 1].
    if not getattr(scaler, "clip", False):
        return None
    low, high = getattr(scaler, "feature_range", (-1.0, 1.0))
    return dtype.type(low), dtype.type(high)
