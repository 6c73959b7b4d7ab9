"""The columns that a metric reads (targets, predictions, weights): checked, aligned and reduced.

A metric of a Dask collection is three functions: the summary of a block, the merging of summaries,
and the score of the merged one. `ScoredColumns` checks the blocks and runs these in one pass (a
tree reduction). Rows in memory are checked by the same readers and scored by scikit-learn.

Columns on a GPU are copied to the host, unless the summary is written in functions of the array API
standard and asked for with `on_device`: it is then made where the columns lie, and alone leaves it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from numbers import Real
from typing import Any, TypeVar

import dask.array as da
import numpy as np
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import NDArray

from daskml_dist.backends.namespace import cast, is_host, namespace, ones, total
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.data.blocks import find_first_nonfinite
from daskml_dist.data.collection import Collection, as_collection
from daskml_dist.data.column_statistics import count_whole_numbers
from daskml_dist.data.conversion import (
    are_device_numbers,
    as_column,
    as_rows,
    check_no_missing,
    check_not_complex,
    convert_foreign,
    convert_to_numbers,
    copy_to_host,
    describe_block,
)
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import add_arrays, reduce_lazily, reduce_parts
from daskml_dist.data.row_checks import check_weight_shape, holds_times
from daskml_dist.diagnostics.operation_progress import report_reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError, InvalidTypeError
from daskml_dist.errors.remedies import add_remedy

#: Summary of rows.
S = TypeVar("S")


#: Takes (values, name for errors, index of the block or None), and returns a checked array.
ColumnReader = Callable[[Any, str, int | None], NDArray[Any]]


#: Takes `y_true` and `y_pred` of some rows, and returns a number for each row (and target).
RowValues = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]


Sums = NDArray[np.float64]


#: Rows of a piece, for metrics that go through a block in pieces: 120 kB a column of float64, so
#: that temporary arrays stay in a core's cache. On a GPU: bytes of a piece, counted as float64.
_PIECE_ROWS, _DEVICE_PIECE_BYTES = 15_000, 2**28


class MissingValues(InvalidDataError):
    """Error for a column with NaN or infinity, for which no metric has a value.

    Parameters
    ----------
    message : str
    column : str, default=""
        Name of the column, such as "y_pred".
    """

    def __init__(self, message: str, column: str = "") -> None:
        super().__init__(message)
        self.column = column

    def __reduce__(self) -> tuple[Any, ...]:
        # Blocks are read in workers, and an exception is pickled with its `args` alone.
        return type(self), (*self.args, self.column)


# --- readers of a block's columns; numbers on a GPU stay there -------------------------------


def read_labels(values: Any, name: str, index: int | None) -> NDArray[Any]:
    """Return a column of labels (strings, booleans or whole numbers) of a block as an array."""
    labels = as_column(values, name=name, index=index, on_device=True)
    _check_none_missing(labels, name, index)
    if labels.dtype.kind == "O":  # Python strings, or a mix that finding labels will refuse
        return labels
    check_not_complex(labels.dtype, name, index)
    if labels.dtype.kind == "f":
        check_finite(labels, name, index)
        # Labels may be stored as floats, but a fraction is a probability or a regressor's answer.
        xp = namespace(labels)
        if xp.any(labels != xp.floor(labels)):
            raise InvalidDataError(
                f"{describe_block(index)}{name} holds continuous values, not labels. Pass labels, "
                "for example what predict() returns instead of predict_proba()."
            )
    return labels


def read_numbers(values: Any, name: str, index: int | None) -> NDArray[Any]:
    """Return a column of finite numbers of a block as float32 or float64."""
    column = as_column(values, name=name, index=index, on_device=True)
    _check_none_missing(column, name, index)
    return _convert_to_finite(column, name, index)


def read_targets(values: Any, name: str, index: int | None) -> NDArray[Any]:
    """Return one or more columns of finite numbers of a block as float32 or float64."""
    if _has_one_column(values):
        return read_numbers(values, name, index)
    columns = as_column(values, name=name, index=index, multi_output=True, on_device=True)
    return _convert_to_finite(columns, name, index)


def read_scores(values: Any, name: str, index: int | None) -> NDArray[Any]:
    """Return the scores or probabilities of a block, in one column or one column a class."""
    if _has_one_column(values) or are_device_numbers(values):
        return read_targets(values, name, index)
    scores: NDArray[Any] = as_rows(values, index=index)
    if not isinstance(scores, np.ndarray):
        raise InvalidDataError(
            f"{describe_block(index)}{name} is sparse. Pass {name}.toarray(), or of a Dask Array "
            f"{name}.map_blocks(lambda block: block.toarray())."
        )
    check_finite(scores, name, index)
    return scores


def _has_one_column(values: Any) -> bool:
    """Return whether values in memory are of shape (n,) or (n, 1)."""
    shape = np.shape(values)
    return len(shape) != 2 or shape[1] == 1


def hold_indicators(*columns: Any) -> bool:
    """Return whether all arguments have several columns: multilabel indicators, not labels."""
    return all(_count_known_columns(values) > 1 for values in columns)


def _count_known_columns(values: Any) -> float:
    # Of a Dask collection `shape` is known without work on the data.
    shape = getattr(values, "shape", None)
    shape = np.shape(values) if shape is None else shape
    # Where Dask does not know the width (NaN), one column is assumed; the blocks are checked.
    return float(shape[1]) if len(shape) == 2 and not math.isnan(float(shape[1])) else 1.0


def read_indicators(values: Any, name: str, index: int | None) -> NDArray[np.bool_]:
    """Return a table of 0 and 1, one column a label, as booleans; sparse ones are made dense."""
    if hasattr(values, "toarray"):
        values = values.toarray()
    table = convert_to_numbers(
        as_column(values, name=name, index=index, multi_output=True), "float64", name, index
    )
    check_finite(table, name, index)
    indicators: NDArray[np.bool_] = table != 0
    if table.ndim != 2 or (indicators != table).any():
        raise InvalidDataError(
            f"{describe_block(index)}{name} has several columns that are not label indicators (0 "
            "or 1). Pass one column of labels, or one of 0 and 1 for each label."
        )
    return indicators


def read_sample_weights(values: Any, n_rows: int, index: int | None) -> NDArray[Any] | None:
    """Return the weights of a block's rows as int64 or float64, or None where there are none."""
    if values is None:
        return None
    if isinstance(values, Real):  # one weight for all rows
        values = np.full(n_rows, values)
    check_weight_shape(values)
    weights = as_column(values, name="sample_weight", index=index, on_device=True)
    _check_none_missing(weights, "sample_weight", index)
    # Integers stay integers: a confusion matrix has the dtype of the weights.
    dtype = "int64" if weights.dtype.kind in "biu" else "float64"
    weights = convert_to_numbers(weights, dtype, "sample_weight", index)
    check_finite(weights, "sample_weight", index)
    return weights


def check_weights_nonnegative(weights: NDArray[Any]) -> None:
    """Raise `InvalidDataError` for a negative weight."""
    if namespace(weights).any(weights < 0):
        raise InvalidDataError(
            "Negative values in sample_weight, which this metric does not support for Dask "
            "collections. Make them zero or more."
        )


def _convert_to_finite(values: NDArray[Any], name: str, index: int | None) -> NDArray[Any]:
    # float32 is kept: the clipping of log loss depends on it.
    dtype = "float32" if values.dtype == np.float32 else "float64"
    numbers = convert_to_numbers(values, dtype, name, index)
    check_finite(numbers, name, index)
    return numbers


def _check_none_missing(values: Any, name: str, index: int | None) -> None:
    try:
        check_no_missing(values, name, index)
    except InvalidDataError as error:
        raise MissingValues(str(error), name) from error


def check_finite(values: NDArray[Any], name: str, index: int | None) -> None:
    """Raise an `InvalidDataError` for NaN or infinity that names the row."""
    position = find_first_nonfinite(values)
    if position is not None:
        # A position in the flat array: the row, after the other dimensions.
        row = position // math.prod(values.shape[1:])
        raise MissingValues(
            f"{describe_block(index)}Input {name} contains NaN or infinity (row {row} of the "
            "block). Drop such rows from y_true, the predictions and sample_weight.",
            name,
        )


# --- labels ----------------------------------------------------------------------------------


def find_unique_labels(labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Return the sorted distinct labels, and the position of each row's label among them.

    The labels are in host memory, the positions where the rows lie.
    """
    if not is_host(labels):
        values, inverse = namespace(labels).unique_inverse(labels)
        return copy_to_host(values), inverse
    # Integers of a small range are counted in linear time, several times faster than a sort.
    if (counted := count_whole_numbers(labels)) is not None:
        return counted
    try:
        distinct, codes = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise InvalidDataError(
            f"The labels are of different types ({error}). Make them one type, for example "
            "y_true.astype(str)."
        ) from error
    return distinct, codes


def merge_labels(block_labels: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the sorted union of the labels of blocks."""
    block_labels = [part for part in block_labels if len(part)]
    check_label_kinds(*block_labels)
    return find_unique_labels(np.concatenate(block_labels))[0]


def check_label_kinds(*label_arrays: NDArray[Any]) -> None:
    """Raise `InvalidDataError` where some labels are strings and others are not."""
    # NumPy would turn numbers next to strings into strings, which then match by chance.
    if len({_hold_strings(part) for part in label_arrays}) > 1:
        raise InvalidDataError(
            "Mix of label input types (string and number). Make y_true and the predictions one "
            "type, for example with .astype(str)."
        )


def _hold_strings(labels: NDArray[Any]) -> bool:
    return labels.dtype.kind in "UT" or (labels.dtype.kind == "O" and isinstance(labels[0], str))


def find_all_labels(y: Any) -> NDArray[Any]:
    """Return the sorted labels of a column, in memory or lazy, in one pass over it."""
    column = ScoredColumns(read_labels, read_labels)
    return column.reduce(_find_block_labels, merge_labels, column.align(y, y, None))


def _find_block_labels(rows: ScoredRows) -> NDArray[Any]:
    return find_unique_labels(rows.y_true)[0]


# --- the pass over all blocks ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Checked rows of one block, at least one.

    Parameters
    ----------
    y_true : ndarray of shape (n,), or (n, n_targets)
    y_pred : ndarray of shape (n,) or (n, n_columns)
    weight : ndarray of int64 or float64 of shape (n,), or None

    Notes
    -----
    All are arrays of NumPy, or all of CuPy.
    """

    y_true: NDArray[Any]
    y_pred: NDArray[Any]
    weight: NDArray[Any] | None

    def select(self, row_slice: slice) -> ScoredRows:
        """Return a slice of the rows."""
        weight = None if self.weight is None else self.weight[row_slice]
        return ScoredRows(self.y_true[row_slice], self.y_pred[row_slice], weight)

    @property
    def weights(self) -> NDArray[np.float64]:
        """Return the weight of each row as a float; 1 for every row where none are given."""
        weight = self.weight
        weights: NDArray[np.float64] = (
            ones((len(self.y_true),), np.float64, like=self.y_true)
            if weight is None
            else cast(weight, np.dtype(np.float64))
        )
        return weights


@dataclass(frozen=True)
class ScoredColumns:
    """The two columns that a metric reads, and the passes over them. Picklable.

    Parameters
    ----------
    read_true, read_pred : ColumnReader
    pred_name : str
        Name of the second argument, for errors.
    multi_output : bool, default=False
        Whether `y_true` may have several columns; `y_pred` then has as many.
    """

    read_true: ColumnReader
    read_pred: ColumnReader
    pred_name: str = "y_pred"
    multi_output: bool = False

    def score_in_memory(
        self, metric: Callable[..., S], y_true: Any, y_pred: Any, sample_weight: Any, **options: Any
    ) -> S:
        """Return scikit-learn's metric of arrays in memory, which are checked first."""
        # scikit-learn computes on the host: arrays on a GPU are copied.
        columns = convert_foreign(y_true, y_pred, sample_weight)
        y_true, y_pred, weight = map(copy_to_host, columns)
        try:
            rows = self.read_block(None, y_pred, y_true, weight)
        except InvalidDataError as refusal:
            if _hold_times(y_true) or _hold_times(y_pred):
                raise  # scikit-learn takes some for numbers, in whatever unit they are stored
            columns = _read_beside_labels(y_true, y_pred, weight)
            return _score_as_given(refusal, metric, *columns, **options)
        # Checked here, since not every function of scikit-learn does.
        if rows.weight is not None and not rows.weight.any():
            raise _make_zero_weight_error()
        weights = _make_weight_argument(rows.weight)
        return call_sklearn_metric(metric, rows.y_true, rows.y_pred, **weights, **options)

    def reduce(
        self,
        summarise: Callable[[ScoredRows], S],
        merge: Callable[[list[S]], S],
        collection: Collection,
        **options: Any,
    ) -> S:
        """Return the merged summary of all rows, by one tree reduction.

        The options are those of :meth:`reduce_to_score`.
        """
        summary: S = self.reduce_to_score(
            summarise, merge, collection, lambda merged: merged, **options
        )
        return summary

    def reduce_to_score(
        self,
        summarise: Callable[[ScoredRows], S],
        merge: Callable[[list[S]], S],
        collection: Collection,
        finish: Callable[[S], Any],
        *,
        in_pieces: bool = False,
        compute: bool = True,
        on_device: bool = False,
    ) -> Any:
        """Return `finish` of the merged summary of all rows, in one pass.

        Without `compute` it is a `dask.delayed.Delayed`. `in_pieces` summarises and merges within
        each block first, some rows at a time. `on_device`: `summarise` takes arrays of CuPy, too,
        and returns what is in host memory.
        """
        if in_pieces:
            summarise = partial(_summarise_in_pieces, summarise, merge)
        summarise_block = partial(_summarise_block, self, summarise, on_device)
        end = partial(_finish_summary, finish, self.pred_name)
        if not compute:
            return reduce_lazily(collection, summarise_block, merge, end)
        with report_reading("scoring"):
            summary: S | None = reduce_parts(collection, summarise_block, merge)
        return end(summary)

    def align(self, y_true: Any, y_pred: Any, sample_weight: Any) -> Collection:
        """Return the columns as one collection of aligned blocks, with no work on the data."""
        try:
            X = as_table_of_columns(y_pred, self.pred_name)
            # Not `numeric`: labels may be strings. The readers check each block.
            rows = as_collection(
                X, y_true, sample_weight, numeric=False, multi_output=self.multi_output
            )
        except InvalidDataError as error:
            # Errors of `as_collection` name X and y, which here are y_pred and y_true.
            hint = "" if self.multi_output else " Score one column at a time."
            message = str(error).replace("X has", f"{self.pred_name} has")
            message = message.replace("y has", "y_true has").replace("y should", "y_true should")
            raise InvalidDataError(f"{message}{hint}") from error
        return replace(rows, names=(self.pred_name, "y_true", "sample_weight"))

    def read_block(
        self,
        index: int | None,
        y_pred: Any,
        y_true: Any,
        sample_weight: Any,
        on_device: bool = False,
    ) -> ScoredRows:
        """Return the checked rows of a block (`index` None: of rows in memory).

        In host memory, unless targets and predictions lie on a GPU and may stay there.
        """
        if not (on_device and are_device_numbers(y_true) and are_device_numbers(y_pred)):
            y_pred, y_true, sample_weight = map(copy_to_host, (y_pred, y_true, sample_weight))
        true_column = self.read_true(y_true, "y_true", index)
        predicted_column = self.read_pred(y_pred, self.pred_name, index)
        weight = read_sample_weights(sample_weight, len(true_column), index)
        # Dask may not know the sizes of chunks: the lengths of blocks are compared only here.
        lengths = {"y_true": len(true_column), self.pred_name: len(predicted_column)}
        if weight is not None:
            lengths["sample_weight"] = len(weight)
        if len(set(lengths.values())) > 1:
            row_counts = ", ".join(f"{name} has {n} rows" for name, n in lengths.items())
            raise InvalidDataError(
                f"{describe_block(index)}Found input variables with inconsistent numbers of "
                "samples: "
                f"{row_counts}. Pass the same rows in each; where chunk sizes are unknown, call "
                ".compute_chunk_sizes() on each, and the chunks are matched."
            )
        widths = [1 if a.ndim == 1 else a.shape[1] for a in (true_column, predicted_column)]
        if self.multi_output and widths[0] != widths[1]:
            raise InvalidDataError(
                f"{describe_block(index)}y_true and y_pred have different number of output "
                f"({widths[0]}!={widths[1]}). Pass one column of each for every target."
            )
        if weight is not None and is_host(weight):
            weight = namespace(true_column).asarray(weight)  # to the GPU, if the rest lies there
        return ScoredRows(true_column, predicted_column, weight)


def _summarise_block(
    columns: ScoredColumns,
    summarise: Callable[[ScoredRows], S],
    on_device: bool,
    index: int,
    y_pred: Any,
    y_true: Any,
    sample_weight: Any,
) -> S | None:
    """Return the summary of a block; None for one without rows, as a filter may leave it."""
    rows = columns.read_block(index, y_pred, y_true, sample_weight, on_device)
    # The dtype of an empty block means nothing, and summaries may need a row.
    return summarise(rows) if len(rows.y_true) else None


def _finish_summary(finish: Callable[[S], Any], pred_name: str, summary: S | None) -> Any:
    if summary is None:
        raise InvalidDataError(
            f"y_true and {pred_name} have no rows. Check the files or the filter that they come "
            "from."
        )
    return finish(summary)


def _summarise_in_pieces(
    summarise: Callable[[ScoredRows], S], merge: Callable[[list[S]], S], rows: ScoredRows
) -> S:
    """Return the merged summary of a block's pieces, whose temporary arrays are small."""
    n_rows, size = len(rows.y_true), _PIECE_ROWS
    if not is_host(rows.y_true):
        size = _DEVICE_PIECE_BYTES // (8 * max(math.prod(rows.y_pred.shape[1:]), 1))
    if n_rows <= size:
        return summarise(rows)
    return merge([summarise(rows.select(piece)) for piece in row_slices(n_rows, size)])


def as_table_of_columns(values: Any, name: str) -> Any:
    """Return one or more columns as a two-dimensional table, as `as_collection` takes X."""
    values = convert_foreign(values)
    if isinstance(values, da.Array):
        return values[:, np.newaxis] if values.ndim == 1 else values
    if is_dask(values):
        return values.to_frame(name) if is_series_like(values) else values
    if is_dataframe_like(values) or np.ndim(values) == 2:
        return values
    return as_column(values, name=name)[:, np.newaxis]


def has_lazy_input(*values: Any) -> bool:
    """Return whether any value is a Dask collection."""
    return any(map(is_dask, values))


# --- scikit-learn's metrics of rows in memory ------------------------------------------------


def call_sklearn_metric(metric: Callable[..., S], *args: Any, **options: Any) -> S:
    """Return the result of a function of scikit-learn, with its errors as the package's own."""
    args = tuple(map(convert_foreign, args))
    try:
        return metric(*args, **options)
    except ZeroDivisionError as error:  # of np.average, for weights that sum to 0
        raise _make_zero_weight_error() from error
    except ValueError as error:
        # scikit-learn's InvalidParameterError is both a ValueError and a TypeError.
        is_parameter = isinstance(error, TypeError)
        kind = InvalidParameterError if is_parameter else InvalidDataError
        raise kind(add_remedy(str(error))) from error
    except TypeError as error:
        raise InvalidTypeError(add_remedy(str(error))) from error
    except NotImplementedError as error:  # of options that have no meaning together
        raise InvalidParameterError(add_remedy(str(error))) from error


def _score_as_given(
    refusal: InvalidDataError, metric: Callable[..., S], y_true: Any, y_pred: Any, weight: Any,
    **options: Any,
) -> S:  # fmt: skip
    """Return scikit-learn's score of inputs that the readers refused, such as label indicators.

    If it raises too, the error has both texts: that of `refusal` names the remedy.
    """
    try:
        with np.errstate(invalid="ignore"), warnings.catch_warnings():
            if isinstance(refusal, MissingValues):  # the error is raised in any case
                warnings.simplefilter("ignore")
            weights = _make_weight_argument(weight)
            score = call_sklearn_metric(metric, y_true, y_pred, **weights, **options)
    except InvalidParameterError:
        raise
    except InvalidDataError as error:
        message = (
            str(refusal)
            if str(error.__cause__) in str(refusal)
            else f"{refusal} ({error.__cause__})"
        )
        raise type(error)(message) from refusal
    # Where scikit-learn lets NaN pass, there is no score all the same.
    if isinstance(refusal, MissingValues):
        raise refusal
    return score


def _read_beside_labels(y_true: Any, y_pred: Any, weight: Any) -> tuple[Any, Any, Any]:
    """Return dense indicators and weights as plain arrays; what is no indicators stays as it is.

    scikit-learn refuses indicators of Arrow columns, objects or foreign byte order, and not each of
    its functions checks weights.
    """
    columns = []
    for values in (y_true, y_pred):
        with suppress(ValueError):  # no indicators, or rows of several lengths
            if hold_indicators(values) and not hasattr(values, "toarray"):
                values = read_indicators(values, "indicators", None).astype(np.int64)
        columns.append(values)
    if not isinstance(weight, Real):
        return columns[0], columns[1], read_sample_weights(weight, 0, None)
    with suppress(ValueError):  # as above
        weight = np.full(np.shape(y_true)[:1], weight)  # one weight for all rows
    return columns[0], columns[1], weight


def _hold_times(values: Any) -> bool:
    """Return whether a column in memory holds dates, periods or spans of time."""
    if holds_times(values):
        return True
    first_value = next(iter(np.asarray(values, dtype=object).flat), None)
    return isinstance(first_value, date | timedelta) or type(first_value).__name__ == "Period"


def _make_weight_argument(weight: Any) -> dict[str, Any]:
    """Return weights as a keyword argument, empty for None: not every metric takes it."""
    return {} if weight is None else {"sample_weight": weight}


def check_computed_at_once(compute: bool) -> None:
    """Raise `InvalidParameterError` for ``compute=False`` of a score that is never lazy."""
    if not compute:
        raise InvalidParameterError(
            "compute=False is not supported for several labels per row. Leave it out."
        )


def check_weight_total(weight: float) -> None:
    """Raise `InvalidDataError` if the weights of all rows sum to zero."""
    if weight == 0:
        raise _make_zero_weight_error()


def _make_zero_weight_error() -> InvalidDataError:
    return InvalidDataError(
        "The sample weights sum to zero, so there is no mean. Give some rows a positive weight."
    )


# --- weighted sums and means -----------------------------------------------------------------


def reduce_weighted_sums(
    columns: ScoredColumns,
    values: RowValues,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    finish: Callable[[float, Sums], Any],
    compute: bool = True,
) -> Any:
    """Return ``finish(weight, sums)`` of all rows' weight and weighted values, in one pass."""
    return columns.reduce_to_score(
        partial(sum_weighted_values, values),
        add_arrays,
        columns.align(y_true, y_pred, sample_weight),
        partial(_finish_weighted_sums, finish),
        in_pieces=True,
        compute=compute,
        on_device=True,
    )


def _finish_weighted_sums(finish: Callable[[float, Sums], Any], weighted_sums: Sums) -> Any:
    return finish(float(weighted_sums[0]), weighted_sums[1:])


def sum_weighted_values(values: RowValues, rows: ScoredRows) -> Sums:
    """Return the weight of rows, followed by the weighted sum of their values by target."""
    row_values = values(rows.y_true, rows.y_pred)
    # One array, so that `add_arrays` merges the weight and the sums together.
    if rows.weight is None:
        return np.append(len(row_values), copy_to_host(total(row_values, axis=0, dtype=np.float64)))
    weights = rows.weights
    sums = weights @ cast(row_values, weights.dtype)
    return np.append(copy_to_host(total(weights)), copy_to_host(sums))


def average_block_means(
    metric: Callable[..., Any], columns: ScoredColumns, y_true: Any, y_pred: Any, sample_weight: Any
) -> Sums:
    """Return the mean over all rows, by target, of a metric that is a weighted mean of rows."""
    # The mean of the blocks' means, by their weights, is that of all rows.
    collection = columns.align(y_true, y_pred, sample_weight)
    sums = columns.reduce(partial(sum_block_metric, metric), add_arrays, collection)
    check_weight_total(sums[0])
    return np.asarray(sums[1:] / sums[0])


def sum_block_metric(metric: Callable[..., Any], rows: ScoredRows) -> Sums:
    """Return the weight of a block, followed by scikit-learn's metric of it times this weight."""
    true_values, predicted_values = (
        a.astype("float64", copy=False) for a in (rows.y_true, rows.y_pred)
    )
    if rows.weight is None:
        mean = np.atleast_1d(call_sklearn_metric(metric, true_values, predicted_values))
        return np.concatenate([[len(true_values)], len(true_values) * mean])
    # Rows of positive and of negative weight are scored apart: in a block whose weights cancel out
    # the mean is undefined, while the sums over all blocks are not.
    sums = []
    for sign, has_sign in ((1.0, rows.weight >= 0), (-1.0, rows.weight < 0)):
        weight = np.abs(rows.weights[has_sign])
        total = float(weight.sum())
        if len(weight):
            # Rows that all have weight 0 get no weights, only to find the number of targets: their
            # mean may be NaN, which would still be NaN times 0.
            options = {"sample_weight": weight} if total else {}
            columns = true_values[has_sign], predicted_values[has_sign]
            mean = np.atleast_1d(call_sklearn_metric(metric, *columns, **options))
            weighted = total * mean if total else np.zeros(len(mean))
            sums.append(sign * np.concatenate([[total], weighted]))
    return add_arrays(sums)
