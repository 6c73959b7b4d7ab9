"""Checks of rows by their metadata, and errors about single values or columns.

`check_rows` checks the kind, dtype and shape of X. `check_holds_rows` refuses objects that are
often passed as rows by mistake. Errors about a value include the name of its column, if any. A fit
remembers the names and dtypes of its columns (`check_feature_names`, `remember_dtypes`), and later
rows must have the same names. No check here reads the rows of a Dask collection: values are checked
block by block, on the workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from numbers import Number
from types import ModuleType
from typing import Any

import dask.array as da
import numpy as np
from dask.base import is_dask_collection
from dask.delayed import Delayed
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.dask_internals.task_graphs import is_future
from daskml_dist.data.conversion import (
    RowShape,
    check_dimensions,
    check_numeric_columns,
    check_numeric_dtype,
    check_sparse_structure,
    check_unique_names,
    convert_foreign,
    convert_object_columns,
    convert_to_array,
    describe_block,
    find_device,
    get_column_names,
    load_pandas,
)
from daskml_dist.data.lazy import is_dask, is_dask_frame, join_delayed
from daskml_dist.data.paths import make_unread_error, open_listed_paths
from daskml_dist.data.plain_rows import RowsPlaceholder, is_small_frame
from daskml_dist.data.table_scans import find_lazy_names
from daskml_dist.errors import DaskMLDistError, InvalidDataError, InvalidTypeError

#: Types of rows without column names.
_NAMELESS_TYPES = (np.ndarray, list)


def check_rows(
    X: Any, *, numeric: bool = True, tensors: bool = False, any_shape: bool = False
) -> Any:
    """Check the metadata of X."""
    # Convert containers of other libraries first: the code below supports only NumPy, SciPy, pandas
    # and Dask.
    X = convert_foreign(open_listed_paths(X))
    check_holds_rows(X)
    X = join_delayed(X, 2)
    if is_dask(X) and not isinstance(X, da.Array) and not is_dask_frame(X):
        raise make_unsupported_error(X, "X")
    if is_dataframe_like(X):
        if numeric:
            # Object columns that hold only numbers are converted; for Dask, block by block.
            X = X if is_dask(X) else convert_object_columns(X)
            check_numeric_columns(zip(X.columns, X.dtypes, strict=True))
        return X
    if any_shape and is_series_like(X):
        return X
    # The remedy in an error depends on the object that the user passed, not on the converted array.
    unconverted = X
    if hasattr(X, "tocsr"):
        # Entries of CSR are checked block by block, when the blocks are read.
        if sparse.issparse(X):
            check_sparse_structure(X, entries=X.format != "csr")
        X = X.tocsr()  # the sparse format that can be sliced by rows
    elif not is_dask(X) and find_device(X) == "cpu":
        X = convert_to_array(X, "X", None)
    if not (any_shape and X.ndim):
        check_dimensions(X, tensors=tensors, unconverted=unconverted)
    if numeric:
        check_numeric_dtype(X.dtype, "X")
    return X


def find_row_shape(X: Any) -> RowShape:
    """Return the shape of a row of the result of `check_rows`; None if Dask does not know it."""
    # The shape of a frame is unknown to Dask without counting its rows.
    shape = (len(X.columns),) if is_dataframe_like(X) else X.shape[1:]
    return None if np.isnan(shape).any() else tuple(map(int, shape))


def check_row_shape(
    row_shape: RowShape, expected: RowShape, name: str = "estimator", index: int | None = None
) -> None:
    """Check that rows have the same shape as in the fit, if both are known."""
    if row_shape is None or expected is None or row_shape == expected:
        return
    # scikit-learn's message, which its estimator tests look for.
    if len(row_shape) == len(expected) == 1:
        raise InvalidDataError(
            f"{describe_block(index)}X has {row_shape[0]} features, but {name} is expecting "
            f"{expected[0]} features as input. Select the columns that it was fitted on."
        )
    raise InvalidDataError(
        f"{describe_block(index)}X has rows of shape {row_shape}, but {name} is expecting rows of "
        f"shape {expected}. Reshape them as in the fit: X.reshape(-1, "
        f"{', '.join(map(str, expected))}), if only the shape has changed."
    )


def check_declared_shape(
    row_shape: tuple[int, ...], declared: RowShape, index: int | None = None
) -> None:
    """Check that a block has the columns that its collection declares."""
    if declared is not None and row_shape != declared:
        raise InvalidDataError(
            f"{describe_block(index)}X has rows of shape {row_shape}, but its collection declares "
            f"{declared}. Tell Dask what a function returns for a block, such as X.map_blocks(f, "
            f"chunks=(X.chunks[0], {row_shape})), or make the function keep the columns."
        )


def make_no_rows_error(because: str = ", while a minimum of 1 is required") -> InvalidDataError:
    """Return the error for a collection whose blocks are all empty."""
    return InvalidDataError(
        f"X holds 0 sample(s) in all its blocks{because}. Check the filter or the path of the "
        "collection."
    )


def make_unsupported_error(value: Any, name: str) -> InvalidDataError:
    """Return the error for an input of which Dask does not know the rows."""
    return InvalidDataError(
        f"{name} is a {type(value).__module__}.{type(value).__name__}, and Dask does not know "
        "its rows. Pass a Dask Array or DataFrame, for example dask.array.from_delayed(...), or "
        "bag.to_dataframe()."
    )


def check_weight_shape(weights: Any) -> None:
    """Check that sample weights are one-dimensional, or a single number."""
    ndim = getattr(weights, "ndim", None)
    if ndim is None:
        with suppress(ValueError):  # rows of unequal length, which are refused when they are read
            ndim = np.asarray(weights).ndim
    # A zero-dimensional array; a plain number was already accepted as the weight of all rows.
    if ndim == 0:
        shown_weights = weights.astype(np.float64) if weights.dtype.kind in "biuf" else weights
        raise InvalidTypeError(
            "Input should have at least 1 dimension i.e. satisfy `len(x.shape) > 0`, got scalar "
            f"`{shown_weights!r}` instead. Pass sample_weight as a number, or one for each row."
        )
    if ndim not in (None, 1):
        raise InvalidDataError(
            f"Sample weights must be 1D array or scalar, got {ndim}D array. Expected either a "
            "scalar value or a 1D array of length n_rows: pass a number, or one column such as "
            "sample_weight[:, 0]."
        )


def check_holds_rows(X: Any, name: str = "X") -> None:
    """Check that an object is not one that is often passed as rows by mistake."""
    if X is None:
        raise InvalidTypeError(
            f"{name} is None. Pass rows: an array, a dataframe, a sparse matrix, or a Dask "
            "collection of them; did the function that made it forget to return something?"
        )
    if isinstance(X, str | os.PathLike):
        raise make_unread_error(X, name)
    check_holds_values(X, name, single=True)  # `check_dimensions` refuses a single number
    if isinstance(X, tuple | list) and X and _holds_collections(X):
        raise InvalidTypeError(
            f"{name} is a {type(X).__name__} of {len(X)} collections. If they are X and y, pass "
            "them separately, fit(X, y); if all are rows, join them: "
            "dask.array.concatenate(...) or dask.dataframe.concat(...)."
        )


def check_holds_values(values: Any, name: str, *, single: bool = False) -> None:
    """Check that an object has a value for each row, and can be read more than once."""
    if type(values) is np.ndarray:
        return
    kind = type(values).__name__
    # A generator can be iterated only once, but a fit needs several passes.
    if isinstance(values, Iterator):
        batches = "Only fit accepts batches of rows, or tuples (X, y). " if name == "X" else ""
        raise InvalidTypeError(
            f"{name} is a {kind}, which can be read only once, but a fit reads its rows several "
            f"times. {batches}Convert it to an array, {name} = numpy.array(list({name})), or a "
            "Dask collection whose blocks are read by tasks (dask.delayed, "
            "dask.dataframe.from_map)."
        )
    if is_future(values) or _are_futures(values):
        future_name = "the future" if is_future(values) else "a future"
        raise InvalidTypeError(
            f"{name} holds futures, whose values are on the workers. Make a collection of them: "
            f"dask.delayed({future_name}) is a block of rows, a list of such is {name}, and so is "
            "dask.dataframe.from_delayed(...)."
        )
    # xarray's arrays look like mappings too, but have a dtype.
    if isinstance(values, Mapping) and not hasattr(values, "dtype"):
        is_row = all(isinstance(value, Number | str) for value in values.values())
        argument = f"[{name}]" if is_row and values else name  # several columns, or one row
        raise InvalidTypeError(
            f"{name} is a {kind}. Convert it to a dataframe: {name} = pandas.DataFrame({argument})."
        )
    if isinstance(values, Set):
        raise InvalidTypeError(
            f"{name} is a {kind}, which has no order. Pass a list or an array instead."
        )
    if not single and isinstance(values, Number):
        raise InvalidTypeError(
            f"{name} should be a 1d array, got an array of shape () instead: {name}={values!r} "
            "is a single number. Pass one value per row: an array, or a Dask collection."
        )
    # A frequent mistake: `fit(load_data, y)` for `fit(load_data(), y)`.
    if isinstance(values, type | ModuleType) or _is_function(values):
        object_name = getattr(values, "__name__", kind)
        raise InvalidTypeError(
            f"{name} is {object_name}, a {kind}, which has no rows. Pass the array, dataframe or "
            "Dask collection that it returns or holds."
        )


def _holds_collections(X: tuple[Any, ...] | list[Any]) -> bool:
    """Return whether each item is a collection or table, rather than a row or a block."""
    return all(
        not isinstance(item, Delayed)
        and (is_dask_collection(item) or getattr(item, "ndim", 0) == 2)
        for item in X
    )


def _are_futures(values: Any) -> bool:
    """Return whether an object is a list or tuple of futures."""
    return isinstance(values, tuple | list) and bool(values) and all(map(is_future, values))


def _is_function(values: Any) -> bool:
    """Return whether an object is callable and holds no rows."""
    return callable(values) and not hasattr(values, "shape") and not is_dask_collection(values)


def make_bad_value_error(message: str, column: int) -> InvalidDataError:
    """Return the error for a bad value in an array column, whose name is not yet known."""
    error = InvalidDataError(message.format(column=f"column {column}"))
    error.column = column  # type: ignore[attr-defined]
    return error


def name_column_in_error(
    error: BaseException | None, names: Sequence[Any] | NDArray[Any] | None
) -> None:
    """Insert a column's name into the message of an error about one of its values."""
    # Only errors of `make_bad_value_error` have a column number.
    column = getattr(error, "column", None)
    if not isinstance(error, InvalidDataError) or column is None or names is None:
        return
    # Inserted once: the error passes through several of these functions on its way to the user.
    del error.column  # type: ignore[attr-defined]
    if column < len(names):
        number, named = f"column {column}", f"column {names[column]!r}"
        error.args = (str(error).replace(number, f"{named}, number {column}", 1),)


@contextmanager
def name_columns_in_errors(X: Any) -> Iterator[None]:
    """Name the column in errors about a value of a dataframe."""
    try:
        yield
    except InvalidDataError as error:
        columns = getattr(X, "columns", None)
        name_column_in_error(error, None if columns is None else list(columns))
        raise


@contextmanager
def explain_row_errors(X: Any, numeric: bool = True, rows: bool = True) -> Iterator[None]:
    """Raise an error that explains why a scikit-learn transformer refused rows."""
    check_unique_names(X)
    if numeric:
        check_no_times(X)
    try:
        yield
    except (ValueError, TypeError) as error:
        # The package's checks run only after a failure, so that valid rows need not pay for them.
        # An error of the package is already clear; one with a cause was translated from
        # scikit-learn's, by a method that scikit-learn called.
        if rows and not (isinstance(error, DaskMLDistError) and error.__cause__ is None):
            raise_row_error(X, numeric)
        raise


def check_no_times(X: Any) -> None:
    """Check that rows in memory hold no dates or time spans.

    scikit-learn converts some of them to numbers, in whatever unit they are stored.
    """
    if is_dataframe_like(X):
        if holds_times(X):
            check_numeric_columns(zip(X.columns, X.dtypes, strict=True))
    elif holds_times(X):
        check_numeric_dtype(X.dtype, "X")


def holds_times(values: Any) -> bool:
    """Return whether values in memory, or a column of a frame, have a date or time-span dtype."""
    # Kinds m and M: time spans and dates, in NumPy and pandas.
    dtypes = values.dtypes if is_dataframe_like(values) else [getattr(values, "dtype", None)]
    return any(getattr(dtype, "kind", "") in ("m", "M") for dtype in dtypes)


def raise_row_error(X: Any, numeric: bool) -> None:
    """Raise the package's own error for refused rows in memory, if it has one."""
    check_holds_rows(X)
    if is_dataframe_like(X):
        if numeric:
            X = convert_object_columns(X)
            check_numeric_columns(zip(X.columns, X.dtypes, strict=True))
    elif not hasattr(X, "tocsr"):
        try:
            rows = X if hasattr(X, "ndim") else np.asarray(X)
        except ValueError:  # unequal lengths, which scikit-learn reports
            return
        check_dimensions(rows, unconverted=X)


def check_feature_names(estimator: Any, X: Any, *, reset: bool) -> None:
    """Check the column names of X as scikit-learn does, without computing a Dask frame."""
    if reset:
        remember_dtypes(estimator, X)
    # The usual cases; scikit-learn's own check would test for several kinds of dataframes.
    if names_surely_match(X, getattr(estimator, "feature_names_in_", None)):
        return
    if isinstance(X, RowsPlaceholder):
        return
    if (lazy_names := find_lazy_names(X)) is not None:
        X = load_pandas().DataFrame(columns=lazy_names)  # a query need not run to get its names
    # Batches have no names before they are read, and can be read only once.
    if isinstance(X, Iterator):
        check_holds_values(X, "X")
    # Imported here because workers import this module, and need not load scikit-learn.
    from daskml_dist.sklearn_internals import compare_feature_names

    X = convert_foreign(open_listed_paths(X))
    check_unique_names(X)
    if (names := get_column_names(X)) is not None:
        named_frame = load_pandas().DataFrame(columns=names)
    else:
        named_frame = X._meta if is_dask_frame(X) else X
    try:
        compare_feature_names(estimator, named_frame, reset=reset)
    except ValueError as error:
        raise InvalidDataError(
            f"{str(error).rstrip()}\nPass the columns of the fit, in their order: "
            "X[list(estimator.feature_names_in_)]."
        ) from error


def names_surely_match(X: Any, names: NDArray[Any] | None) -> bool:
    """Return whether columns certainly have the names of the fit, or no names like the fit."""
    # Exact types: a subclass may have names.
    if type(X) in _NAMELESS_TYPES:
        return names is None
    if not is_small_frame(X):
        return False
    columns = X.columns
    if names is None:
        return type(columns).__name__ == "RangeIndex"
    return len(columns) == len(names) and bool(columns.tolist() == names.tolist())


def drop_feature_names(estimator: Any) -> Any:
    """Return the estimator without feature names, for rows whose names were already checked."""
    if "feature_names_in_" not in vars(estimator):
        return estimator
    # A view, made without calling the constructor: it shares every fitted array.
    view = object.__new__(type(estimator))
    vars(view).update(vars(estimator))
    del vars(view)["feature_names_in_"]
    return view


def remember_dtypes(estimator: Any, X: Any) -> None:
    """Store the dtypes of a fit's rows on the estimator, for services and model files."""
    # Frames have a dtype per column, arrays one for all, lists none.
    dtypes = getattr(X, "dtypes", None)
    if dtypes is not None and hasattr(dtypes, "__iter__"):
        estimator._feature_dtypes = [str(dtype) for dtype in dtypes]
    else:
        dtype = getattr(X, "dtype", None)
        estimator._feature_dtypes = None if dtype is None else [str(dtype)]


@contextmanager
def explain_unsortable_labels(name: str, index: int | None = None) -> Iterator[None]:
    """Raise an `InvalidDataError` where labels that cannot be compared are sorted."""
    try:
        yield
    except TypeError as error:
        raise InvalidDataError(
            f"{describe_block(index)}{name} has labels of several types, or missing ones. "
            "Convert all to strings, or all to numbers."
        ) from error


def merge_block_labels(
    block_labels: Sequence[NDArray[Any]], name: str
) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Return the sorted labels of several blocks, and the position of each given label among them.

    Raise if they cannot be compared.
    """
    # Leave out empty blocks, whose dtype may differ: it could for example turn labels into texts.
    filled = [labels for labels in block_labels if len(labels)] or block_labels[:1]
    with explain_unsortable_labels(name):
        # NumPy would turn numbers beside texts of another block into texts, which no row has.
        if len({labels.dtype.kind in "UT" for labels in filled if labels.dtype.kind != "O"}) > 1:
            raise TypeError("texts and numbers")
        return np.unique(np.concatenate(filled), return_inverse=True)


def check_group_labels(labels: NDArray[Any], name: str, index: int | None = None) -> NDArray[Any]:
    """Return group labels of rows; raise if some are missing or cannot be compared."""
    with explain_unsortable_labels(name, index):
        distinct_labels = np.unique(labels)
    # NaN and NaT sort last and differ from themselves: they cannot be a group.
    if len(distinct_labels) and distinct_labels[-1] != distinct_labels[-1]:
        raise InvalidDataError(
            f"{describe_block(index)}{name} has missing labels. Fill them with a separate label, "
            "or drop the rows."
        )
    return labels
