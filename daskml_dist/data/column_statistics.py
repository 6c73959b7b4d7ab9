"""Statistics of columns, all mergeable: ranges, moments and distinct values, exact; quantiles by a
sketch (:class:`ColumnSketch`) that knows a bound of its error.

Rows in memory are read a tile at a time, a few values of a few columns that stay in the processor's
cache, whatever the order of the array. `WeightedMoments` of parts of the rows add up to those of
all rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy import sparse

from daskml_dist.backends.namespace import cast, is_host, namespace, total
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.data.conversion import copy_to_host, find_device, load_pandas
from daskml_dist.errors import InvalidDataError

#: Values that a sketch keeps of a column (128 KiB with their weights): ranks are then wrong by some
#: ten-thousandths of the rows at most.
SKETCH_SIZE = 8192
#: Parameters alpha and beta of the continuous quantiles of Hyndman and Fan (1996), which lie at
#: ``n * q + alpha + q * (1 - alpha - beta) - 1`` among n values, the first of which is at 0.
QUANTILE_METHODS = {
    "interpolated_inverted_cdf": (0.0, 1.0),
    "hazen": (0.5, 0.5),
    "weibull": (0.0, 0.0),
    "linear": (1.0, 1.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
}


@dataclass(frozen=True, eq=False)
class ColumnSketch:
    """Order statistics of a column.

    Parameters
    ----------
    values : ndarray of float64 of shape (n_kept,), sorted
    weights : ndarray of float64 of shape (n_kept,)
        Rows that each stands for.
    error : float
        Rows by which a rank may be wrong at most.

    Notes
    -----
    A column of n rows is cut into `SKETCH_SIZE` runs of equal numbers of sorted rows, of which the
    middle ones are kept, with the least and the greatest value: a rank is wrong by half a run at
    most. Merging adds the errors; where the merged sketch is too long it is cut again, which adds
    half a run of it. So the error of all is at most
    ``(levels + 1) * n / (2 * SKETCH_SIZE)`` rows, `levels` being how often sketches were merged
    (a mergeable summary as of Agarwal et al. 2012, with equal-depth cuts in place of random
    ones).
    """

    values: NDArray[np.float64]
    weights: NDArray[np.float64]
    error: float = 0.0

    @property
    def n_rows(self) -> float:
        """Return the rows of the column, missing ones left out."""
        return float(self.weights.sum())

    def quantile(self, q: ArrayLike, method: str = "linear") -> Any:
        """Return quantiles as `numpy.nanquantile` does; exact where nothing was left out."""
        position = _compute_positions(np.asarray(q, dtype=np.float64), self.n_rows, method)
        if not len(self.values):
            return np.full(position.shape, np.nan)[()]
        # The rows at both sides of each position, between which NumPy interpolates.
        position = np.clip(position, 0.0, max(self.n_rows - 1, 0.0))
        ends = np.cumsum(self.weights)
        low, high, last_index = np.floor(position), np.ceil(position), len(self.values) - 1
        indices = np.minimum(np.searchsorted(ends, np.stack([low, high]), side="right"), last_index)
        a, b = self.values[indices]
        share = position - low
        # As NumPy rounds it: a value that is also a row's stays that.
        return np.where(share < 0.5, a + (b - a) * share, b - (b - a) * (1 - share))[()]

    def weighted_quantile(self, q: NDArray[np.float64], average: bool) -> NDArray[np.float64]:
        """Return quantiles of weighted rows: values up to which a share `q` of the weight lies.

        Notes
        -----
        Definitions 1 and 2 of Hyndman and Fan (1996), "Sample Quantiles in Statistical Packages",
        with weights in the place of counts.
        """
        reached = np.cumsum(self.weights)  # of rows that have some weight
        last_index = len(self.values) - 1
        targets = 100 * q / 100 * reached[-1]  # with the digits of percentiles, as in scikit-learn
        indices = np.minimum(np.searchsorted(reached, targets), last_index)
        quantiles: NDArray[np.float64] = self.values[indices]
        if not average:
            return quantiles
        is_exact = reached[indices] - targets <= np.finfo(np.float64).eps
        return np.where(
            is_exact, (quantiles + self.values[np.minimum(indices + 1, last_index)]) / 2, quantiles
        )


def _compute_positions(q: NDArray[np.float64], n: float, method: str) -> NDArray[np.float64]:
    """Return positions of quantiles among n sorted rows, halves where two rows are averaged."""
    if method == "linear":  # without the rounding of the other methods
        return (n - 1) * q
    if method in QUANTILE_METHODS:
        alpha, beta = QUANTILE_METHODS[method]
        return n * q + (alpha + q * (1 - alpha - beta)) - 1
    position = n * q - 1
    if method == "closest_observation":
        position = position - 0.5
        floor = np.floor(position)
        return np.where((position == floor) & (floor % 2 == 1), floor, floor + 1)
    above = np.ceil(position)
    if method == "inverted_cdf":
        return above
    if method == "averaged_inverted_cdf":
        return np.where(above == position, position + 0.5, above)
    raise ValueError(f"no quantile is called {method!r}")


def compute_rank_error(sketches: list[ColumnSketch]) -> float:
    """Return the largest error of a rank in columns, as a share of their rows."""
    return max(sketch.error / max(sketch.n_rows, 1) for sketch in sketches)


def sketch_columns(
    rows: Any, weight: NDArray[Any] | None = None, *, stored: bool = False
) -> list[ColumnSketch]:
    """Sketch each column of some rows; NaN counts as missing."""
    if not sparse.issparse(rows):
        if is_host(rows):
            return [sketch_column(column, weight) for column in rows.T]
        return [_sketch_device_column(rows[:, j]) for j in range(rows.shape[1])]
    columns = rows.tocsc()
    sketches = []
    for start, end in zip(columns.indptr[:-1], columns.indptr[1:], strict=True):
        sketch, n_zeros = sketch_column(columns.data[start:end]), rows.shape[0] - (end - start)
        if n_zeros and not stored:
            # Zeros that are not stored are one value with their number as weight.
            zeros = ColumnSketch(np.zeros(1), np.array([float(n_zeros)]))
            sketch = merge_sketches([sketch, zeros])
        sketches.append(sketch)
    return sketches


def sketch_column(column: NDArray[Any], weight: NDArray[Any] | None = None) -> ColumnSketch:
    """Sketch a column; NaN counts as missing, and so does a row of weight 0."""
    if weight is None:
        values = np.sort(column)  # NaN comes last
        values = values[: np.searchsorted(values, np.nan)].astype(np.float64, copy=False)
        return _shorten_sketch(ColumnSketch(values, np.ones(len(values))))
    counts = (weight > 0) & ~np.isnan(column)
    column, weight = column[counts].astype(np.float64), weight[counts].astype(np.float64)
    order = np.argsort(column, kind="stable")
    return _shorten_sketch(ColumnSketch(column[order], weight[order]))


def merge_sketches(sketches: list[ColumnSketch]) -> ColumnSketch:
    """Merge sketches of one column."""
    values = np.concatenate([s.values for s in sketches])
    weights = np.concatenate([s.weights for s in sketches])
    order = np.argsort(values, kind="stable")
    error = sum(s.error for s in sketches)
    return _shorten_sketch(ColumnSketch(values[order], weights[order], error))


def merge_column_sketches(blocks: Iterable[Iterable[ColumnSketch]]) -> list[ColumnSketch]:
    """Merge the sketches of several blocks, column by column."""
    return [merge_sketches(list(column)) for column in zip(*blocks, strict=True)]


def _shorten_sketch(sketch: ColumnSketch) -> ColumnSketch:
    """Keep the middle row of each of `SKETCH_SIZE` runs of equal weight.

    Nothing is left out where no more values than that are distinct.
    """
    if not len(sketch.values):
        return sketch
    # Equal values become one with their summed weight, which loses nothing.
    first = np.flatnonzero(np.diff(sketch.values, prepend=np.nan) != 0)
    if len(first) <= SKETCH_SIZE:
        weights = np.add.reduceat(sketch.weights, first)
        return ColumnSketch(sketch.values[first], weights, sketch.error)
    # Two places are for the least and the greatest value.
    n_runs = SKETCH_SIZE - 2
    bounds = np.arange(n_runs + 1) * (sketch.n_rows / n_runs)
    if sketch.n_rows > SKETCH_SIZE and sketch.n_rows.is_integer():
        bounds = np.rint(bounds)  # rows stay whole
    # The value in the middle of each run stands for all of it.
    indices = np.searchsorted(np.cumsum(sketch.weights), (bounds[1:] + bounds[:-1]) / 2)
    indices = np.concatenate(
        [[0], np.minimum(indices, len(sketch.values) - 1), [len(sketch.values) - 1]]
    )
    # The ends of the range are kept as they are, and take their rows from the runs beside them.
    weights = np.concatenate([[0.0], np.diff(bounds), [0.0]])
    for end, neighbour in ((0, 1), (-1, -2)):
        weights[end] = min(sketch.weights[end], weights[neighbour])
        weights[neighbour] -= weights[end]
    error = sketch.error + sketch.n_rows / n_runs / 2 + 1
    return ColumnSketch(sketch.values[indices], weights, error)


Numbers = NDArray[np.float64]

#: Bounds of a tile that stays in the L2 cache: values of a column, bytes in all, and columns.
_TILE_VALUES, _TILE_BYTES, _TILE_COLUMNS = 8192, 2**19, 256


def compute_column_ranges(rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the least and the greatest value of each column; NaN counts as missing."""
    if not is_host(rows):
        return _compute_device_ranges(rows)
    # NaN to begin with: fmin and fmax ignore it as soon as there is a value.
    low, high = np.full((2, rows.shape[1]), np.nan, dtype=rows.dtype)
    for columns, tile in _iterate_tiles(rows, rows.dtype):
        np.fmin(low[columns], np.fmin.reduce(tile, axis=1), out=low[columns])
        np.fmax(high[columns], np.fmax.reduce(tile, axis=1), out=high[columns])
    check_no_infinity(low)
    check_no_infinity(high)
    return low, high


def compute_column_moments(rows: NDArray[Any]) -> tuple[Numbers, Numbers, Numbers]:
    """Return each column's number of values, mean and variance; NaN counts as missing.

    Those of a few values at a time, in two steps (their mean, then the deviations from it), are
    merged as in Chan, Golub and LeVeque (1983), so that no digits are lost to a large mean.
    """
    count, mean, squares = np.zeros((3, rows.shape[1]))
    for columns, tile in (
        _iterate_tiles(rows, np.float64) if is_host(rows) else _iterate_device_pieces(rows)
    ):
        n, m, s = _compute_moments(tile) if is_host(tile) else _compute_device_moments(tile)
        # Chan, Golub and LeVeque's update of count, mean and squared deviations by one tile.
        new_count = count[columns] + n
        share = n / np.maximum(new_count, 1)
        mean_difference = m - mean[columns]
        # Not the square first: it may overflow, and no rows times infinity are NaN.
        squares[columns] += s + mean_difference * (mean_difference * (count[columns] * share))
        mean[columns] += mean_difference * share
        count[columns] = new_count
    nonzero_count = np.where(count > 0, count, np.nan)
    return count, np.where(count > 0, mean, np.nan), squares / nonzero_count


def merge_column_moments(block_moments: Sequence[tuple[Any, Any, Any]]) -> tuple[Any, Any, Any]:
    """Merge means, variances and counts of columns; None for means or variances not needed.

    Counts are one number, or one for each column; the mean of a column without values is NaN.
    """
    mean, var, n = block_moments[0]
    for mean_b, var_b, n_b in block_moments[1:]:
        # Pairwise update of mean and variance (Chan, Golub and LeVeque 1983).
        total = n + n_b
        if mean is not None:
            # With s the second part's share of the rows and d = b - a the difference of the
            # means: mean = a + s d, and var = (1 - s) va + s vb + s (1 - s) d^2.
            share = np.divide(n_b, total, out=np.zeros(np.shape(total)), where=total > 0)
            a, b = (np.where(count > 0, m, 0.0) for m, count in ((mean, n), (mean_b, n_b)))
            if var is not None:
                va = np.where(n > 0, var, 0.0)
                vb = np.where(n_b > 0, var_b, 0.0)
                # Not the square first: it may overflow, and a share of 0 times infinity is NaN.
                var = va + share * (vb - va) + (b - a) * (share * (1 - share) * (b - a))
                var = np.where(total > 0, var, np.nan)
            mean = np.where(total > 0, a + share * (b - a), np.nan)
        n = total
    return mean, var, n


def check_no_infinity(values: NDArray[Any]) -> None:
    """Raise `InvalidDataError` where values, or sums that would show it, hold infinity."""
    xp = namespace(values)
    if xp.any(xp.isinf(values)):
        raise InvalidDataError(
            "Input X contains infinity. Replace it, for example X.replace([inf, -inf], nan)."
        )


def _iterate_tiles(rows: NDArray[Any], dtype: DTypeLike) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield columns and some values of each, of shape (n_columns, n_values); read-only."""
    n_rows, n_columns = rows.shape
    itemsize = np.dtype(dtype).itemsize
    # Columns that lie so already are read in their place.
    is_in_place = rows.dtype == dtype and rows.flags.f_contiguous and rows.flags.aligned
    for column_slice in row_slices(n_columns, _TILE_COLUMNS):
        columns = rows[:, column_slice].T
        size = min(_TILE_VALUES, _TILE_BYTES // (itemsize * len(columns)), n_rows)
        # One buffer for all tiles: rows in C order, or of another dtype, are copied into it.
        buffer = None if is_in_place else np.empty((len(columns), size), dtype)
        for row_slice in row_slices(n_rows, size):
            tile = columns[:, row_slice]
            if buffer is not None:
                tile_copy = buffer[:, : tile.shape[1]]
                tile_copy[...] = tile
                tile = tile_copy
            yield column_slice, tile


def _compute_moments(tile: Numbers) -> tuple[Any, Numbers, Numbers]:
    """Return each column's number of values, mean, and sum of squared deviations from it."""
    n: Any = tile.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):
        total = tile.sum(axis=1)
    missing = None
    # Only then is each value looked at: most columns miss nothing.
    if np.isnan(total).any() or np.isinf(total).any():
        check_no_infinity(tile)
        missing = np.isnan(tile)
        tile = np.where(missing, 0.0, tile)
        n, total = n - missing.sum(axis=1), tile.sum(axis=1)
    mean = total / np.maximum(n, 1)
    # The second step of the two-step variance: deviations from the tile's own mean.
    deviations = tile - mean[:, None]
    if missing is not None:
        np.copyto(deviations, 0.0, where=missing)
    return n, mean, np.einsum("ij,ij->i", deviations, deviations)


# Rows on a GPU, in array API functions; what leaves it has the size of a row.

#: Bytes of a piece of rows, counted as float64, of which a few copies are made.
_DEVICE_PIECE_BYTES = 2**28


def _iterate_device_pieces(rows: Any) -> Iterator[tuple[slice, Any]]:
    """Yield a slice of all columns and some rows in float64, of shape (n, n_columns)."""
    n_rows, n_columns = rows.shape
    for row_slice in row_slices(n_rows, max(_DEVICE_PIECE_BYTES // (8 * max(n_columns, 1)), 1)):
        yield slice(0, n_columns), cast(rows[row_slice], np.dtype(np.float64))


def _compute_device_moments(tile: Any) -> tuple[Any, Numbers, Numbers]:
    """Return :func:`_compute_moments` of the columns of rows on a device."""
    xp = namespace(tile)
    missing = xp.isnan(tile)
    n = cast(total(cast(~missing, np.dtype(np.int64)), axis=0), tile.dtype)
    sums = total(xp.where(missing, 0.0, tile), axis=0)
    if not xp.isfinite(total(sums)) and xp.any(xp.isinf(tile)):
        check_no_infinity(np.array(np.inf))
    mean = sums / xp.maximum(n, xp.ones(n.shape, dtype=n.dtype))
    deviations = xp.where(missing, 0.0, tile - mean)
    moments = xp.stack([n, mean, total(deviations * deviations, axis=0)])
    count, means, squares = copy_to_host(moments)
    return count, means, squares


def _compute_device_ranges(rows: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the least and the greatest value of each column of rows on a device."""
    xp = namespace(rows)
    missing = xp.isnan(rows)
    low = copy_to_host(xp.min(xp.where(missing, np.inf, rows), axis=0)).astype(rows.dtype)
    high = copy_to_host(xp.max(xp.where(missing, -np.inf, rows), axis=0)).astype(rows.dtype)
    # A column without a value has the ends of the range the wrong way round.
    has_no_value = low > high
    low[has_no_value] = high[has_no_value] = np.nan
    check_no_infinity(low)
    check_no_infinity(high)
    return low, high


def _sketch_device_column(column: Any) -> ColumnSketch:
    """Return :func:`sketch_column` of a column on a device, where it is sorted; the same bits."""
    xp = namespace(column)
    values = xp.sort(column)  # NaN comes last
    values = values[: column.shape[0] - int(xp.count_nonzero(xp.isnan(column)))]
    if not (n := values.shape[0]):
        return ColumnSketch(np.empty(0), np.empty(0))
    firsts = xp.nonzero(values[1:] != values[:-1])[0] + 1
    if firsts.shape[0] < SKETCH_SIZE:
        indices = np.concatenate([[0], copy_to_host(firsts)])
        sketch_values = xp.take(values, xp.asarray(indices), axis=0)
        return ColumnSketch(
            copy_to_host(sketch_values).astype(np.float64), np.diff(indices, append=n) * 1.0
        )
    # Rows of weight 1: the row in the middle of each run follows from their number alone.
    indices, weights = _choose_runs(n)
    sketch_values = copy_to_host(xp.take(values, xp.asarray(indices), axis=0)).astype(np.float64)
    return ColumnSketch(sketch_values, weights, n / (SKETCH_SIZE - 2) / 2 + 1)


def _choose_runs(n: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return which of n sorted rows :func:`_shorten_sketch` keeps, and what each stands for."""
    n_runs = SKETCH_SIZE - 2
    bounds = np.rint(np.arange(n_runs + 1) * (n / n_runs))
    middle = np.ceil((bounds[1:] + bounds[:-1]) / 2).astype(np.int64) - 1
    indices = np.concatenate([[0], np.clip(middle, 0, n - 1), [n - 1]])
    weights = np.concatenate([[0.0], np.diff(bounds), [0.0]])
    for end, neighbour in ((0, 1), (-1, -2)):
        weights[end] = min(1.0, weights[neighbour])
        weights[neighbour] -= weights[end]
    return indices, weights


@dataclass(frozen=True, eq=False)
class WeightedMoments:
    """Weight, mean and spread of numbers, of one column or several; parts are added.

    Parameters
    ----------
    weight : float
        Sum of the weights.
    origin : ndarray of float64 of shape (n_columns,)
        Some value near all others, so that the mean keeps its digits.
    offset : ndarray of float64 of shape (n_columns,)
        Weighted mean, from `origin` on.
    squares : ndarray of float64 of shape (n_columns,)
        Weighted sum of squared distances from the mean; not finite where they overflow.
    """

    weight: float
    origin: Numbers
    offset: Numbers
    squares: Numbers

    @classmethod
    def from_values(cls, values: NDArray[Any], weights: NDArray[Any] | None = None) -> Self:
        """Return the moments of some numbers, which may lie on a GPU, with weights beside them."""
        columns = cast(values if values.ndim == 2 else values[:, None], np.dtype(np.float64))
        n_rows, width = columns.shape
        float_weights = None if weights is None else cast(weights, np.dtype(np.float64))
        weight = float(n_rows if float_weights is None else total(float_weights))
        if not weight > 0:
            return cls(weight, np.zeros(width), np.zeros(width), np.zeros(width))
        # A row without weight may hold anything.
        origin = columns[
            0 if float_weights is None else int(namespace(float_weights).argmax(float_weights))
        ]
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow shows in the moments
            distances = columns - origin
            offset = _sum_weighted(distances, float_weights) / weight
            distances -= offset
            distances *= distances
            squares = _sum_weighted(distances, float_weights)
        # Of the host's rows a copy, since a view would keep them all in memory.
        return cls(weight, *(copy_to_host(moment).copy() for moment in (origin, offset, squares)))

    def __add__(self, other: WeightedMoments) -> WeightedMoments:
        if not self.weight > 0 or not other.weight > 0:
            return other if other.weight > 0 else self
        weight = self.weight + other.weight
        distance = (other.origin - self.origin) + (other.offset - self.offset)
        share = other.weight / weight
        # The pairwise update of Chan, Golub and LeVeque, with weights in the place of counts.
        squares = self.squares + other.squares + self.weight * share * distance**2
        return WeightedMoments(weight, self.origin, self.offset + share * distance, squares)

    def of_column(self, column: int) -> WeightedMoments:
        """Return the moments of one column alone."""
        columns = slice(column, column + 1)
        return WeightedMoments(
            self.weight, self.origin[columns], self.offset[columns], self.squares[columns]
        )

    @property
    def mean(self) -> Numbers:
        """Return the weighted mean; zero where all weights are."""
        return self.origin + self.offset

    @property
    def deviation(self) -> Numbers:
        """Return the standard deviation; zero where all numbers are equal."""
        return np.sqrt(self.squares / (self.weight or 1.0))


def _sum_weighted(values: Any, weights: Any) -> Any:
    """Return the weighted sum of each column."""
    return total(values, axis=0) if weights is None else weights @ values


Places: TypeAlias = NDArray[np.integer[Any]]

#: Whole numbers no further apart than this, or than there are rows, are counted, not sorted.
_MAX_COUNTED_RANGE = 1024


def find_distinct_rows(X: Any) -> tuple[Any, list[Places]]:
    """Return few rows with every value of each column, and where each row's values are there.

    What a column's dtype knows of its values is used: codes of categories, a dictionary of Arrow's
    strings; no object is made for a row.
    """
    if is_dataframe_like(X):
        columns = [_find_distinct_in_series(X.iloc[:, j]) for j in range(X.shape[1])]
        longest = max(len(values) for values, _ in columns)
        distinct_rows = load_pandas().DataFrame(
            {
                j: values.take(np.resize(np.arange(len(values)), longest)).reset_index(drop=True)
                for j, (values, _) in enumerate(columns)
            }
        )
        distinct_rows.columns = X.columns
    elif isinstance(X, np.ndarray):
        columns = [_find_distinct_in_array(X[:, j]) for j in range(X.shape[1])]
        longest = max(len(values) for values, _ in columns)
        distinct_rows = np.stack([np.resize(values, longest) for values, _ in columns], axis=1)
    else:
        return X, [np.arange(X.shape[0])] * X.shape[1]
    return distinct_rows, [places for _, places in columns]


def count_distinct_rows(X: Any) -> tuple[Any, list[NDArray[np.int64]]]:
    """Return few rows with every value of each column, and the rows of X that each stands for.

    X may lie on a GPU, which only the distinct values leave.
    """
    if find_device(X) == "cpu":
        distinct, places = find_distinct_rows(X)
        n_distinct = distinct.shape[0]
        return distinct, [
            np.bincount(column_places, minlength=n_distinct) for column_places in places
        ]
    xp = namespace(X)
    columns = [tuple(map(copy_to_host, xp.unique_counts(X[:, j]))) for j in range(X.shape[1])]
    longest = max(len(values) for values, _ in columns)
    distinct_rows = np.stack([np.resize(values, longest) for values, _ in columns], axis=1)
    # A value that is there again stands for no rows.
    return distinct_rows, [np.pad(counts, (0, longest - len(counts))) for _, counts in columns]


def _find_distinct_in_series(column: Any) -> tuple[Any, Places]:
    """Return a column's distinct values, in its dtype, and the place of each row's value."""
    pandas, dtype = load_pandas(), column.dtype
    if isinstance(dtype, pandas.CategoricalDtype):
        codes, places = _find_present_codes(column.cat.codes.to_numpy(), len(dtype.categories))
        return pandas.Series(pandas.Categorical.from_codes(codes, dtype=dtype)), places
    if not isinstance(dtype, np.dtype):
        places, values = column.array.factorize()
        values = pandas.Series(values, dtype=dtype)
        # factorize() gives missing values the code -1 and leaves them out: one is put first.
        if len(places) and places.min() < 0:
            missing = column.iloc[[int(places.argmin())]]
            values, places = pandas.concat([missing, values]), places + 1
        return values, places
    values, places = _find_distinct_in_array(column.to_numpy())
    return pandas.Series(values, dtype=dtype), places


def _find_distinct_in_array(values: NDArray[Any]) -> tuple[NDArray[Any], Places]:
    """Return the sorted distinct values of an array, and the place of each entry among them."""
    if values.dtype.kind == "O":
        return _find_distinct_objects(values)
    if (distinct_and_places := _count_whole_floats(values)) is not None:
        return distinct_and_places
    distinct, places = np.unique(values, return_inverse=True)
    return distinct, places


def _find_distinct_objects(values: NDArray[Any]) -> tuple[NDArray[Any], Places]:
    """Return distinct objects in the order in which they come, and the place of each row's."""
    rows = values.tolist()
    try:
        place = {value: i for i, value in enumerate(dict.fromkeys(rows))}
    except TypeError:  # what has no hash is for scikit-learn to refuse
        return values, np.arange(len(values))
    # Assigned as a whole: np.array() would take lists of equal length apart.
    distinct = np.empty(len(place), dtype=object)
    distinct[:] = list(place)
    return distinct, np.fromiter(map(place.__getitem__, rows), np.intp, len(rows))


def _count_whole_floats(values: NDArray[Any]) -> tuple[NDArray[Any], Places] | None:
    """Return what `count_whole_numbers` does, of floats that are whole numbers too."""
    if values.dtype.kind != "f":
        return count_whole_numbers(values)
    with np.errstate(invalid="ignore"):
        whole_numbers = values.astype(np.int64)
    distinct_and_places = (
        count_whole_numbers(whole_numbers) if (whole_numbers == values).all() else None
    )
    return (
        None
        if distinct_and_places is None
        else (distinct_and_places[0].astype(values.dtype), distinct_and_places[1])
    )


def _find_present_codes(codes: NDArray[Any], n: int) -> tuple[NDArray[np.intp], Places]:
    """Return the codes that occur, -1 (missing) among them, and the place of each row's code."""
    if len(codes) and codes.min() >= 0:
        is_present = np.bincount(codes, minlength=n) > 0
        if is_present.all():
            return np.arange(n), codes
        return np.flatnonzero(is_present), (np.cumsum(is_present) - 1)[codes]
    shifted_codes = np.add(codes, 1, dtype=np.intp)
    is_present = np.bincount(shifted_codes, minlength=n + 1) > 0
    return np.flatnonzero(is_present) - 1, (np.cumsum(is_present) - 1)[shifted_codes]


def count_whole_numbers(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]] | None:
    """Return sorted distinct integers and the place of each row's, found by counting.

    None where `values` are no integers that lie together.
    """
    if values.dtype.kind not in "iu" or not len(values):
        return None
    low, high = int(values.min()), int(values.max())
    if high - low > max(_MAX_COUNTED_RANGE, len(values)) or high > np.iinfo(np.intp).max:
        return None
    # Counting sort: presence of each number of the range, then ranks by a running sum.
    ranks = values.astype(np.intp)
    ranks -= low
    if high - low <= 1:
        return np.array([low, high][: high - low + 1], dtype=values.dtype), ranks
    is_present = np.bincount(ranks) > 0
    if not is_present.all():
        ranks = (np.cumsum(is_present) - 1)[ranks]
    return (np.flatnonzero(is_present) + low).astype(values.dtype), ranks
