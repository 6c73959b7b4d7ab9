"""The two columns of a metric and their weights, aligned, and reduced in one pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from typing import Any, TypeVar, overload

import dask.array as da
import numpy as np
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import NDArray

from daskml_dist.data.collection import Collection, as_collection
from daskml_dist.data.containers import convert_foreign
from daskml_dist.data.conversion import as_column, copy_to_host, describe_block
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import reduce_lazily, reduce_parts
from daskml_dist.data.row_checks import holds_times
from daskml_dist.diagnostics.works import reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError, InvalidTypeError
from daskml_dist.errors.remedies import with_remedy
from daskml_dist.metrics._readers import (
    MissingValues,
    join_labels,
    read_labels,
    read_weights,
    unique_labels,
)

__all__ = [
    "Columns",
    "ScoredRows",
    "all_labels",
    "called",
    "check_computed",
    "check_total",
    "is_lazy",
]

S = TypeVar("S")

#: Rows that are summarised at once, where that is done in pieces.
_PIECE = 15_000

ColumnReader = Callable[[Any, str, int | None], NDArray[Any]]


def _itself(summary: S) -> S:
    return summary


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Aligned rows of one block, of which there is at least one.

    Parameters
    ----------
    y_true : ndarray of shape (n,), or (n, n_targets)
    y_pred : ndarray of shape (n,) or (n, n_columns)
    weight : ndarray of int64 or float64 of shape (n,), or None
    """

    y_true: NDArray[Any]
    y_pred: NDArray[Any]
    weight: NDArray[Any] | None

    def part(self, at: slice) -> ScoredRows:
        """Some of the rows."""
        weight = None if self.weight is None else self.weight[at]
        return ScoredRows(self.y_true[at], self.y_pred[at], weight)

    @property
    def weights(self) -> NDArray[np.float64]:
        """Weights; one for every row where there are none."""
        return np.asarray(np.ones(len(self.y_true)) if self.weight is None else self.weight, float)


@dataclass(frozen=True)
class Columns:
    """Readers of a metric's columns. Picklable.

    Parameters
    ----------
    read_true, read_pred : callable
        Take (values, name, index of the block or None) and return a checked array.
    pred_name : str
        Name of the second argument.
    several : bool, default=False
        Whether `y_true` may have several columns.
    """

    read_true: ColumnReader
    read_pred: ColumnReader
    pred_name: str = "y_pred"
    several: bool = False

    def in_memory(
        self, metric: Callable[..., S], y_true: Any, y_pred: Any, sample_weight: Any, **options: Any
    ) -> S:
        """Call scikit-learn's metric on arrays."""
        given = convert_foreign(y_true, y_pred, sample_weight)
        y_true, y_pred, weight = map(copy_to_host, given)
        try:
            rows = self.read(None, y_pred, y_true, weight)
        except InvalidDataError as own:
            if _are_times(y_true) or _are_times(y_pred):
                raise  # scikit-learn takes some for numbers, in whatever unit they are stored
            weight = _each_row(weight, y_true)
            return _as_they_are(own, metric, y_true, y_pred, weight, **options)
        if rows.weight is not None and not rows.weight.any():
            raise _no_weight()
        return called(metric, rows.y_true, rows.y_pred, **_weights(rows.weight), **options)

    @overload
    def reduce(
        self,
        summarise: Callable[[ScoredRows], S],
        merge: Callable[[list[S]], S],
        collection: Collection,
        *,
        in_pieces: bool = ...,
    ) -> S: ...

    @overload
    def reduce(
        self,
        summarise: Callable[[ScoredRows], S],
        merge: Callable[[list[S]], S],
        collection: Collection,
        *,
        in_pieces: bool = ...,
        finish: Callable[[S], Any],
        compute: bool = ...,
    ) -> Any: ...

    def reduce(
        self,
        summarise: Callable[[ScoredRows], S],
        merge: Callable[[list[S]], S],
        collection: Collection,
        *,
        in_pieces: bool = False,
        finish: Callable[[S], Any] = _itself,
        compute: bool = True,
    ) -> Any:
        """Summarise every block that has rows and merge the summaries, in one pass."""
        if in_pieces:
            summarise = partial(_by_pieces, summarise, merge)
        own, join = partial(_summarise, self, summarise), partial(_merge, merge)
        end = partial(_finished, finish, self.pred_name)
        if not compute:
            return reduce_lazily(collection, own, join, end)
        with reading("scoring"):
            summary: S | None = reduce_parts(collection, own, join)
        return end(summary)

    def align(self, y_true: Any, y_pred: Any, sample_weight: Any) -> Collection:
        """Align the columns, with no work on the data."""
        try:
            X = _as_table(y_pred, self.pred_name)
            rows = as_collection(X, y_true, sample_weight, numeric=False, multi_output=self.several)
        except InvalidDataError as error:
            told = "" if self.several else " One column is scored at a time."
            said = str(error).replace("X has", f"{self.pred_name} has")
            said = said.replace("y has", "y_true has").replace("y should", "y_true should")
            raise InvalidDataError(f"{said}{told}") from error
        return replace(rows, names=(self.pred_name, "y_true", "sample_weight"))

    def read(self, index: int | None, y_pred: Any, y_true: Any, sample_weight: Any) -> ScoredRows:
        """Read the rows of a block."""
        truth = self.read_true(y_true, "y_true", index)
        prediction = self.read_pred(y_pred, self.pred_name, index)
        weight = read_weights(sample_weight, len(truth), index)
        lengths = {"y_true": len(truth), self.pred_name: len(prediction)}
        if weight is not None:
            lengths["sample_weight"] = len(weight)
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{name} has {n} rows" for name, n in lengths.items())
            raise InvalidDataError(
                f"{describe_block(index)}Found input variables with inconsistent numbers of "
                "samples: "
                f"{found}. Pass the same rows in each; where chunk sizes are unknown, call "
                ".compute_chunk_sizes() on each, and the chunks are matched."
            )
        widths = [1 if a.ndim == 1 else a.shape[1] for a in (truth, prediction)]
        if self.several and widths[0] != widths[1]:
            raise InvalidDataError(
                f"{describe_block(index)}y_true and y_pred have different number of output "
                f"({widths[0]}!={widths[1]}). Pass one column of each for every target."
            )
        return ScoredRows(truth, prediction, weight)


def is_lazy(*values: Any) -> bool:
    """Return whether any value is a Dask collection."""
    return any(map(is_dask, values))


def called(metric: Callable[..., S], *args: Any, **options: Any) -> S:
    """Value that a function of scikit-learn returns."""
    args = tuple(map(convert_foreign, args))
    try:
        return metric(*args, **options)
    except ZeroDivisionError as error:
        raise _no_weight() from error
    except ValueError as error:
        # scikit-learn's error about a parameter is a TypeError too.
        is_parameter = isinstance(error, TypeError)
        kind = InvalidParameterError if is_parameter else InvalidDataError
        raise kind(with_remedy(str(error))) from error
    except TypeError as error:
        raise InvalidTypeError(with_remedy(str(error))) from error


def check_computed(compute: bool) -> None:
    """Check that a score may be computed at once, where it has no lazy way."""
    if not compute:
        raise InvalidParameterError(
            "compute=False: the score of several labels a row is computed at once. Leave it out."
        )


def check_total(weight: float) -> None:
    """Check that there is weight to divide by."""
    if weight == 0:
        raise _no_weight()


def _no_weight() -> InvalidDataError:
    return InvalidDataError(
        "The sample weights sum to zero, so there is no mean. Give some rows a positive weight."
    )


def _as_they_are(
    own: InvalidDataError, metric: Callable[..., S], y_true: Any, y_pred: Any, weight: Any,
    **options: Any,
) -> S:  # fmt: skip
    """Value of what is no plain columns, such as indicators of labels, where scikit-learn has one.

    Where it has none, both errors are told: ours has the remedy.
    """
    try:
        with np.errstate(invalid="ignore"), warnings.catch_warnings():
            if isinstance(own, MissingValues):  # an error tells of it
                warnings.simplefilter("ignore")
            found = called(metric, y_true, y_pred, **_weights(weight), **options)
    except InvalidParameterError:
        raise
    except InvalidDataError as error:
        told = str(own) if str(error.__cause__) in str(own) else f"{own} ({error.__cause__})"
        raise type(error)(told) from own
    if isinstance(own, MissingValues):
        raise own
    return found


def _are_times(values: Any) -> bool:
    """Return whether a column in memory holds dates, periods or spans of time."""
    if holds_times(values):
        return True
    first = next(iter(np.asarray(values, dtype=object).flat), None)
    return isinstance(first, date | timedelta) or type(first).__name__ == "Period"


def _weights(weight: Any) -> dict[str, Any]:
    """Argument of a metric; not every one takes weights."""
    return {} if weight is None else {"sample_weight": weight}


def _each_row(weight: Any, y_true: Any) -> Any:
    """Weights of rows; one number is that of each."""
    one = weight is not None and np.ndim(weight) == 0
    return np.full(np.shape(y_true)[0], weight) if one else weight


def _as_table(values: Any, name: str) -> Any:
    """Rows of one or more columns, which `as_collection` takes as X."""
    values = convert_foreign(values)
    if isinstance(values, da.Array):
        return values[:, np.newaxis] if values.ndim == 1 else values
    if is_dask(values):
        return values.to_frame(name) if is_series_like(values) else values
    if is_dataframe_like(values) or np.ndim(values) == 2:
        return values
    return as_column(values, name=name)[:, np.newaxis]


def _summarise(
    columns: Columns,
    summarise: Callable[[ScoredRows], S],
    index: int,
    y_pred: Any,
    y_true: Any,
    sample_weight: Any,
) -> S | None:
    rows = columns.read(index, y_pred, y_true, sample_weight)
    # An empty block may have the dtype of nothing in particular.
    return summarise(rows) if len(rows.y_true) else None


def _finished(finish: Callable[[S], Any], pred_name: str, summary: S | None) -> Any:
    """Return the result of the summary of all rows, of which there must be one."""
    if summary is None:
        raise InvalidDataError(
            f"y_true and {pred_name} have no rows. Look at the files or the filter that they come "
            "from."
        )
    return finish(summary)


def _by_pieces(
    summarise: Callable[[ScoredRows], S], merge: Callable[[list[S]], S], rows: ScoredRows
) -> S:
    starts = range(0, len(rows.y_true), _PIECE)
    if len(starts) == 1:
        return summarise(rows)
    return merge([summarise(rows.part(slice(a, a + _PIECE))) for a in starts])


def _merge(merge: Callable[[list[S]], S], summaries: list[S | None]) -> S | None:
    found = [summary for summary in summaries if summary is not None]
    return merge(found) if found else None


def all_labels(y: Any) -> NDArray[Any]:
    """Return the sorted labels of a column, in memory or lazy, in one pass over it."""
    column = Columns(read_labels, read_labels)
    return column.reduce(_block_labels, join_labels, column.align(y, y, None))


def _block_labels(rows: ScoredRows) -> NDArray[Any]:
    return unique_labels(rows.y_true)[0]
