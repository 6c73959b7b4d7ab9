"""A mergeable sketch of the quantiles of columns, with a bound of its error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

__all__ = [
    "QUANTILE_METHODS",
    "SKETCH_SIZE",
    "ColumnSketch",
    "compute_rank_error",
    "merge_column_sketches",
    "merge_sketches",
    "sketch_column",
    "sketch_columns",
]

#: Values that a sketch keeps of a column.
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
        low, high, last = np.floor(position), np.ceil(position), len(self.values) - 1
        at = np.minimum(np.searchsorted(ends, np.stack([low, high]), side="right"), last)
        a, b = self.values[at]
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
        last = len(self.values) - 1
        asked = 100 * q / 100 * reached[-1]  # with the digits of percentiles, as in scikit-learn
        at = np.minimum(np.searchsorted(reached, asked), last)
        found: NDArray[np.float64] = self.values[at]
        if not average:
            return found
        exact = reached[at] - asked <= np.finfo(np.float64).eps
        return np.where(exact, (found + self.values[np.minimum(at + 1, last)]) / 2, found)


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
        whole = np.floor(position)
        return np.where((position == whole) & (whole % 2 == 1), whole, whole + 1)
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
        return [sketch_column(column, weight) for column in rows.T]
    columns = rows.tocsc()
    found = []
    for start, end in zip(columns.indptr[:-1], columns.indptr[1:], strict=True):
        own, n_zeros = sketch_column(columns.data[start:end]), rows.shape[0] - (end - start)
        if n_zeros and not stored:
            # Zeros that are not stored are one value with their number as weight.
            zeros = ColumnSketch(np.zeros(1), np.array([float(n_zeros)]))
            own = merge_sketches([own, zeros])
        found.append(own)
    return found


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
    at = np.searchsorted(np.cumsum(sketch.weights), (bounds[1:] + bounds[:-1]) / 2)
    at = np.concatenate([[0], np.minimum(at, len(sketch.values) - 1), [len(sketch.values) - 1]])
    # The ends of the range are kept as they are, and take their rows from the runs beside them.
    weights = np.concatenate([[0.0], np.diff(bounds), [0.0]])
    for end, beside in ((0, 1), (-1, -2)):
        weights[end] = min(sketch.weights[end], weights[beside])
        weights[beside] -= weights[end]
    error = sketch.error + sketch.n_rows / n_runs / 2 + 1
    return ColumnSketch(sketch.values[at], weights, error)
