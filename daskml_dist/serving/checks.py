"""Checks of a request's tensors against the model that they are for, and rows made of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import RequestError
from daskml_dist.inference.joined_rows import Rows, told_dtype
from daskml_dist.serving.protocol.messages import datatype_of

__all__ = ["rows_of"]

_MOST_NAMED = 5


def rows_of(tensors: Sequence[tuple[str, NDArray[Any]]], predictor: Any) -> Rows:
    """Rows for a predictor, of one matrix or of a tensor a feature."""
    if len(tensors) == 1 and not _is_feature(*tensors[0], predictor):
        return _matrix(*tensors[0], predictor)
    return _columns(tensors, predictor)


def _is_feature(name: str, values: NDArray[Any], predictor: Any) -> bool:
    """Return whether a single tensor is one column of the rows."""
    names = predictor.names
    single = values.ndim > 0 and values.size == len(values)
    return names is not None and name in names and single


def _matrix(name: str, values: NDArray[Any], predictor: Any) -> NDArray[Any]:
    width = predictor.n_features
    if values.ndim != 2 and width is not None:
        raise _refused(
            f"Input {name[:100]!r} has shape {list(values.shape)}: send [rows, {width}]."
        )
    if width is not None and values.shape[1] != width:
        raise _refused(
            f"Input {name[:100]!r} has {values.shape[1]} features and the model {width}: send "
            f"shape [rows, {width}]."
        )
    if values.ndim == 0 or values.shape[0] == 0:
        raise _refused("There are no rows: send one at least.")
    if values.dtype.kind == "O":
        for at in range(width or 0):
            _check_dtype(f"{name}[:, {at}]", values[:, at], at, predictor)
    return values


def _columns(
    tensors: Sequence[tuple[str, NDArray[Any]]], predictor: Any
) -> dict[str, NDArray[Any]]:
    names = predictor.names
    if names is None:
        raise _refused(
            f"There are {len(tensors)} inputs, and the model knows no names of features: send "
            f"one of shape [rows, {predictor.n_features}]."
        )
    given = dict(tensors)
    if len(given) < len(tensors):
        raise _refused("Two inputs have one name: send each feature once.")
    _check_names(given, names, predictor.needed)
    columns = {name: _column(name, given[name]) for name in names if name in given}
    sizes = {len(values) for values in columns.values()}
    if len(sizes) != 1 or 0 in sizes:
        raise _refused(
            f"The inputs have {', '.join(map(str, sorted(sizes)))} rows: send as many of each, one "
            "at least."
        )
    # Requests that are answered together have the same columns: dropped ones go no further.
    columns = {name: columns[name] for name in predictor.needed}
    for name, values in columns.items():
        _check_dtype(name, values, names.index(name), predictor)
    return columns


def _check_names(given: Collection[str], names: Sequence[str], needed: Sequence[str]) -> None:
    """Refuse requests that lack a feature that the model reads, or hold one unknown to it."""
    missing = [name for name in needed if name not in given]
    unknown = [name for name in given if name not in set(names)]
    if missing or unknown:
        said = [f"{_some(missing)} missing"] if missing else []
        said += [f"{_some(unknown)} unknown to the model"] if unknown else []
        raise _refused(
            f"Of the features, {' and '.join(said)}: send one input for each, of {_some(needed)}."
        )


def _column(name: str, values: NDArray[Any]) -> NDArray[Any]:
    if values.ndim == 2 and values.shape[1] == 1:
        return values[:, 0]
    if values.ndim != 1:
        raise _refused(
            f"Input {name[:100]!r} has shape {list(values.shape)}: send a feature as [rows] or "
            "[rows, 1]."
        )
    return values


def _check_dtype(name: str, values: NDArray[Any], at: int, predictor: Any) -> None:
    """Refuse strings where the fit had numbers."""
    dtype = told_dtype(predictor, at)
    if values.dtype.kind != "O" or dtype is None or not _is_number(dtype):
        return
    if all(isinstance(value, (int, float)) for value in values):
        return
    raise _refused(
        f"Input {name[:100]!r} holds strings, and the model was fitted to {dtype}: send "
        f"{datatype_of(dtype)}."
    )


def _is_number(dtype: str) -> bool:
    try:
        return np.dtype(dtype).kind in "biuf"
    except TypeError:  # pandas' own: category, string, Int64
        return False


def _some(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    shown = ", ".join(repr(str(name)[:100]) for name in names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _refused(message: str) -> RequestError:
    return RequestError(message, 422)
