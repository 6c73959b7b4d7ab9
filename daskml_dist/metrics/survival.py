"""The concordance index of predicted times, on Dask collections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.censored_times import find_bounds
from daskml_dist.data.collection import as_collection
from daskml_dist.data.conversion import convert_foreign, copy_to_host, describe_block
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.errors import InvalidDataError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.metrics._columns import (
    as_table_of_columns,
    check_weights_nonnegative,
    read_numbers,
    read_sample_weights,
)

Array = NDArray[Any]


@suggest_arguments
def concordance_index(y_true: Any, y_pred: Any, *, sample_weight: Any = None) -> float:
    """Return Harrell's C: the share of comparable pairs whose order is predicted correctly.

    Of all pairs of which one event is known to come before the other row's: those in the right
    order count 1, those of equal predictions a half. 0.5 is chance, 1 is best. All rows come
    together in one worker, 32 bytes each.

    Source: F. E. Harrell et al., "Evaluating the yield of medical tests", JAMA 247(18), 1982.

    Parameters
    ----------
    y_true : dask Array, DataFrame or Series, or array-like
        Signed times of shape (n_rows,), negative where no event was seen up to then; a structured
        array or a frame of (event, time); or bounds of shape (n_rows, 2).
    y_pred : dask Array or Series, or array-like, of shape (n_rows,)
        Larger for a longer time: a predicted time, or minus a hazard.
    sample_weight : like `y_pred`, or a float, or None
        A pair weighs the product of its rows' weights.

    Returns
    -------
    float

    Raises
    ------
    InvalidDataError
        No two rows can be compared, or the times are no times.

    Examples
    --------
    >>> from daskml_dist.metrics import concordance_index
    >>> concordance_index([1.0, -2.0, 3.0, 4.0], [10.0, 30.0, 20.0, 40.0])
    1.0
    """
    y_true, y_pred, sample_weight = convert_foreign(y_true, y_pred, sample_weight)
    collection = as_collection(
        as_table_of_columns(y_pred, "y_pred"), find_bounds(y_true), sample_weight,
        numeric=False, multi_output=True,
    )  # fmt: skip
    if collection.kind == "memory":
        rows = _read_rows(0, *collection.parts[0])
    else:
        rows = reduce_parts(collection, _read_rows, _TimedRows.join)
    if rows is None or not len(rows.predicted):
        raise InvalidDataError(
            "y_true and y_pred have no rows. Check the files or the filter that they come from."
        )
    return rows.score()


@dataclass(frozen=True, eq=False)
class _TimedRows:
    """Rows whose times have bounds.

    Parameters
    ----------
    low, high : ndarray of float64 of shape (n,)
        Bounds; equal ones are events.
    predicted, weight : ndarray of float64 of shape (n,)
    """

    low: Array
    high: Array
    predicted: Array
    weight: Array

    @classmethod
    def join(cls, row_blocks: list[_TimedRows]) -> _TimedRows:
        """Return the rows of all parts."""
        names = ("low", "high", "predicted", "weight")
        return cls(
            *(np.concatenate([getattr(part, name) for part in row_blocks]) for name in names)
        )

    def score(self) -> float:
        """Return the concordance index of the rows."""
        from daskml_dist.backends.concordance_kernels import count_concordant

        # An event at the time at which another row was last seen comes first; two events at one
        # time do not tell which does.
        is_event = self.low == self.high
        times = np.unique(np.concatenate([self.low, self.high]))
        begins = 2 * np.searchsorted(times, self.low) + ~is_event
        ends = 2 * np.searchsorted(times, self.high) + is_event
        # No row begins after the end of a time without end.
        ends[np.isinf(self.high)] = 2 * len(times) + 1
        # Only the order of predictions counts: their ranks are places of the tree.
        ranks, places = np.unique(self.predicted, return_inverse=True)
        concordant, tied, pairs = count_concordant(
            begins, ends, np.argsort(begins, kind="stable"), np.argsort(ends, kind="stable"),
            places + 1, self.weight, np.zeros(len(ranks) + 1),
        )  # fmt: skip
        if not pairs:
            raise InvalidDataError(
                "No two rows of y_true can be compared: no event is known to precede the time "
                "of another row. Score rows with events, and rows with later times."
            )
        return float((concordant + tied / 2) / pairs)


def _read_rows(index: int, y_pred: Any, y_true: Any, sample_weight: Any) -> _TimedRows:
    """Return the checked rows of a block."""
    bounds = np.asarray(y_true, np.float64)
    predicted = read_numbers(copy_to_host(y_pred), "y_pred", index).astype(np.float64)
    if len(predicted) != len(bounds):
        raise InvalidDataError(
            f"{describe_block(index)}y_true has {len(bounds)} rows and y_pred has "
            f"{len(predicted)}. Pass the same rows in each."
        )
    weight = read_sample_weights(copy_to_host(sample_weight), len(bounds), index)
    weight = np.ones(len(bounds)) if weight is None else weight.astype(np.float64)
    check_weights_nonnegative(weight)
    low, high = np.ascontiguousarray(bounds.T)
    return _TimedRows(low, high, predicted, weight)
