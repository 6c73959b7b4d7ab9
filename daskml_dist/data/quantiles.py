"""A mergeable sketch of the quantiles of columns, with a bound of its error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["SKETCH_SIZE", "ColumnSketch", "merge_sketches", "sketch_column"]

#: Values that a sketch keeps of a column.
SKETCH_SIZE = 8192


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
        """Rows of the column, missing ones left out."""
        return float(self.weights.sum())

    def quantile(self, q: float) -> float:
        """Quantile as `numpy.nanquantile` interpolates it; exact where nothing was left out.

        NaN for a column without values.
        """
        if not len(self.values):
            return float("nan")
        # The row at each position, between which NumPy interpolates.
        position = q * (self.n_rows - 1)
        ends = np.cumsum(self.weights)
        low, high = np.floor(position), np.ceil(position)
        at = np.searchsorted(ends, [low, high], side="right")
        a, b = self.values[np.minimum(at, len(self.values) - 1)]
        return float(a + (b - a) * (position - low))


def sketch_column(column: NDArray[np.float64]) -> ColumnSketch:
    """Sketch a column; NaN counts as missing."""
    values = np.sort(column)  # NaN comes last
    values = values[: np.searchsorted(values, np.nan)].astype(np.float64, copy=False)
    return _shorten(ColumnSketch(values, np.ones(len(values))))


def merge_sketches(sketches: list[ColumnSketch]) -> ColumnSketch:
    """Merge sketches of one column."""
    values = np.concatenate([s.values for s in sketches])
    weights = np.concatenate([s.weights for s in sketches])
    order = np.argsort(values, kind="stable")
    error = sum(s.error for s in sketches)
    return _shorten(ColumnSketch(values[order], weights[order], error))


def _shorten(sketch: ColumnSketch) -> ColumnSketch:
    """Keep the middle row of each of `SKETCH_SIZE` runs of equal weight."""
    if len(sketch.values) <= SKETCH_SIZE:
        return sketch
    run = sketch.n_rows / SKETCH_SIZE
    ends = np.cumsum(sketch.weights)
    middles = (np.arange(SKETCH_SIZE) + 0.5) * run
    values = sketch.values[np.minimum(np.searchsorted(ends, middles), len(ends) - 1)]
    # The ends of the range are kept as they are.
    values[0], values[-1] = sketch.values[0], sketch.values[-1]
    # A kept row may itself stand for many, of which any may be the middle.
    error = sketch.error + run / 2 + 1
    return ColumnSketch(values, np.full(SKETCH_SIZE, run), error)
