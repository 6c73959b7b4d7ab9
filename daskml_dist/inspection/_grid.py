"""Grids of some features of a collection: their values, or points between two percentiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray

from daskml_dist.data.collection import Collection
from daskml_dist.data.column_statistics import ColumnSketch, merge_sketches, sketch_column
from daskml_dist.data.conversion import describe_block
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.inspection._blocks import read_rows
from daskml_dist.parameters.checks import check_count

__all__ = ["Grid", "axes_of"]

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Grid:
    """Points of each feature, the features' columns, and a row of the collection."""

    axes: list[Array]
    columns: list[int]
    row: Any


@dataclass(frozen=True, eq=False)
class _Seen:
    """Summary of a column: its values, None where they are many, and order statistics."""

    values: Array | None
    sketch: ColumnSketch | None


def axes_of(
    collection: Collection, features: Sequence[Any], custom: Mapping[Any, Any], categorical: Any,
    names: Any, percentiles: tuple[float, float], resolution: int,
) -> Grid:  # fmt: skip
    """The grid that scikit-learn makes of all rows, but that missing values have no percentiles."""
    check_count("grid_resolution", resolution)
    if np.shape(percentiles) != (2,):
        raise InvalidParameterError(f"percentiles={percentiles!r}: use two numbers of [0, 1].")
    columns = [_column(collection, feature) for feature in features]
    all_values = _categorical(collection, categorical, names)
    asked = {
        j: np.inf if j in all_values else resolution - 1
        for j, feature in zip(columns, features, strict=True)
        if feature not in custom
    }
    row, seen = reduce_parts(collection, partial(_look, asked), partial(_joined, asked))
    if row is None:
        raise InvalidDataError(
            "X holds 0 sample(s) in all its blocks: there is nothing to average. Check the filter "
            "or the path that made the collection."
        )
    many = {j: one.sketch for j, one in seen.items() if one.values is None}
    ends = _percentiles(collection, many, np.asarray(percentiles, np.float64))
    axes: list[Array] = []
    for feature, j in zip(features, columns, strict=True):
        if feature in custom:
            axes.append(_as_points(custom[feature]))
        elif j not in many:
            axes.append(seen[j].values)
        elif np.allclose(ends[j][0], ends[j][1]):
            raise InvalidParameterError(
                "percentiles are too close to each other, unable to build the grid. Please choose "
                f"percentiles that are further apart; of feature {feature!r} both are {ends[j][0]}."
            )
        else:
            axes.append(np.linspace(ends[j][0], ends[j][1], num=resolution))
    return Grid(axes, columns, row)


def _as_points(values: Any) -> Array:
    return np.asarray(values, object if any(isinstance(v, str) for v in values) else None)


def _names(collection: Collection) -> list[Any]:
    return [] if collection.feature_names is None else list(collection.feature_names)


def _column(collection: Collection, feature: Any) -> int:
    if isinstance(feature, str):
        if feature in _names(collection):
            return _names(collection).index(feature)
        raise InvalidParameterError(
            f"{feature!r} is no column of X, which has {_names(collection) or 'no names'}. Use one "
            "of these, or a number."
        )
    n = collection.row_shape[0] if collection.row_shape else np.inf
    if isinstance(feature, bool | np.bool_) or not 0 <= feature < n:
        raise InvalidParameterError(
            f"all features must be in [0, {n - 1}], and one is {feature!r}. Use numbers or names."
        )
    return int(feature)


def _categorical(collection: Collection, given: Any, names: Any) -> set[int]:
    """Categorical columns; what is wrong with them scikit-learn tells."""
    found = np.asarray([] if given is None else given)
    if found.dtype.kind == "b":
        return set(np.flatnonzero(found).tolist())
    known = list(names) if names is not None else _names(collection)
    if not known and collection.row_shape:
        known = [f"x{j}" for j in range(collection.row_shape[0])]
    return {
        known.index(one) if isinstance(one, str) else int(one)
        for one in found.tolist()
        if not isinstance(one, str) or one in known
    }


# --- a first look ----------------------------------------------------------------------------


def _look(asked: dict[int, float], index: int, X: Any, y: Any, w: Any) -> Any:
    rows = read_rows(X, index)
    if not len(rows):
        return None, {}
    found = {}
    for j, most in asked.items():
        values = _values(rows, j)
        try:
            own = np.unique(values)
        except TypeError as error:
            raise InvalidDataError(
                f"{describe_block(index)}Column #{j} contains mixed data types ({error}), so its "
                "categories cannot be sorted. Fill missing ones with a category of their own."
            ) from error
        is_number = values.dtype.kind in "biuf"
        found[j] = _few(_Seen(own, sketch_column(values) if is_number else None), j, most)
    return (rows.iloc[:1] if is_dataframe_like(rows) else rows[:1].copy()), found


def _values(rows: Any, j: int) -> Array:
    return np.asarray(rows.iloc[:, j] if is_dataframe_like(rows) else rows[:, j])


def _few(seen: _Seen, j: int, most: float) -> _Seen:
    if seen.values is None or len(seen.values) <= most:
        return seen
    if seen.sketch is None:
        raise InvalidDataError(
            f"Column #{j} holds no numbers, and more values than grid_resolution. Name it in "
            "categorical_features, or give its points as custom_values."
        )
    return _Seen(None, seen.sketch)


def _joined(asked: dict[int, float], parts: list[Any]) -> Any:
    filled = [part for part in parts if part[0] is not None]
    if not filled:
        return None, {}
    found = {}
    for j, most in asked.items():
        each = [seen[j] for _, seen in filled]
        values: Any = None
        if all(one.values is not None for one in each):
            values = np.unique(np.concatenate([one.values for one in each]))
        sketches = [one.sketch for one in each if one.sketch is not None]
        found[j] = _few(_Seen(values, merge_sketches(sketches) if sketches else None), j, most)
    return filled[0][0], found


# --- percentiles -----------------------------------------------------------------------------


def _percentiles(
    collection: Collection, sketches: dict[int, Any], shares: NDArray[np.float64]
) -> dict[int, list[float]]:
    """Quantiles of columns, exact, as `scipy.stats.mstats.mquantiles` has them.

    Where a sketch has left values out, a second look counts those that may be meant.
    """
    found: dict[int, dict[int, float]] = {j: {} for j in sketches}
    slack = 1.0
    while True:
        asked = []
        for j, sketch in sketches.items():
            for at, share in enumerate(shares):
                if at in found[j]:
                    continue
                place = sketch.n_rows * share + (0.4 + share * (1 - 0.4 - 0.4))
                rank = int(np.clip(place, 1, sketch.n_rows - 1))
                gamma = float(np.clip(place - rank, 0, 1))
                if sketch.error == 0:
                    found[j][at] = _between(sketch.values, sketch.weights, rank, gamma)
                else:
                    away = slack * (2 * sketch.error + 2)
                    asked.append((j, at, rank, gamma, *_around(sketch, rank, away)))
        if not asked:
            return {j: [of[at] for at in range(len(shares))] for j, of in found.items()}
        counted = reduce_parts(collection, partial(_count, asked), _counted)
        for (j, at, rank, gamma, *_), (below, values, counts) in zip(asked, counted, strict=True):
            if below < rank and rank < below + counts.sum():
                found[j][at] = _between(values, counts, rank - below, gamma)
        slack *= 8


def _between(values: Array, counts: Array, rank: int, gamma: float) -> float:
    """The value of a rank (the least has 1) and the next, mixed."""
    ends = np.cumsum(counts)
    low, high = values[np.searchsorted(ends, [rank - 1, rank], side="right")].astype(np.float64)
    return float((1 - gamma) * low + gamma * high)


def _around(sketch: ColumnSketch, rank: int, away: float) -> tuple[float, float]:
    ends, last = np.cumsum(sketch.weights), len(sketch.values) - 1
    at = np.searchsorted(ends, [rank - 1 - away, rank + away], side="right")
    low, high = sketch.values[np.clip(at, 0, last)]
    return low, high


def _count(asked: list[Any], index: int, X: Any, y: Any, w: Any) -> list[Any]:
    """Values of a block that lie in each range, how often, and how many lie below."""
    rows, found = read_rows(X, index), []
    for j, _, _, _, low, high in asked:
        values = _values(rows, j)
        inside = values[(values >= low) & (values <= high)]
        found.append((int((values < low).sum()), *np.unique(inside, return_counts=True)))
    return found


def _counted(parts: list[list[Any]]) -> list[Any]:
    found = []
    for each in zip(*parts, strict=True):
        values, inverse = np.unique(np.concatenate([v for _, v, _ in each]), return_inverse=True)
        counts = np.concatenate([c for _, _, c in each])
        total = np.bincount(inverse, counts, len(values)).astype(np.int64)
        found.append((sum(below for below, _, _ in each), values, total))
    return found
