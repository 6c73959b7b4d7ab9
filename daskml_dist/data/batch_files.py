"""Rows that can be read only once, written to files from which tasks read them again.

A generator of batches can be iterated only once, and running a query may cost more than all passes
over its result. Both are written to a folder once. The folder is deleted when no object refers to
it any more; the tasks of a collection hold a reference, so it stays as long as a fit or a lazy
prediction may read from it.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.delayed import delayed

from daskml_dist.data.eager_tables import load_pandas
from daskml_dist.data.table_frames import TableSource, make_frame
from daskml_dist.errors import InvalidDataError, InvalidTypeError

#: Names of the pieces of a batch, in order, for error messages.
_PIECE_NAMES = ("X", "y", "sample_weight")
#: Stands for the first item of an empty generator.
_NOTHING = object()


class RowsFolder:
    """Folder of files that is deleted when the process that made it holds no more references.

    Copies of it in other processes can read the files, but do not delete them.
    """

    def __init__(self) -> None:
        parent = dask.config.get("temporary-directory", None)
        if parent is not None:
            os.makedirs(parent, exist_ok=True)  # as Dask's workers do
        # Only the user may access the folder: files are unpickled, so nobody else may write to it.
        self.path = tempfile.mkdtemp(prefix="daskml_dist-rows-", dir=parent)
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen_folder, (self.path,)

    def __dask_tokenize__(self) -> str:
        return self.path

    def write(self, name: str, values: Any) -> None:
        """Write values to a file with a name."""
        try:
            with (Path(self.path) / name).open("wb") as file:
                pickle.dump(values, file, protocol=5)
        except OSError as error:
            raise InvalidDataError(
                f"Rows could not be written to {self.path}: {error}. Set Dask's "
                "temporary-directory to a folder with room for all rows, "
                "dask.config.set({'temporary-directory': path}), or learn them as a stream, "
                "which stores none."
            ) from error

    def read(self, name: str) -> Any:
        """Return the values in a file."""
        try:
            with (Path(self.path) / name).open("rb") as file:
                return pickle.load(file)
        except FileNotFoundError as error:
            raise self.make_missing_error() from error

    def make_missing_error(self) -> InvalidDataError:
        """Return the error for a process that cannot see the files."""
        return InvalidDataError(
            f"The rows lie in {self.path}, which this worker cannot see, since it is on another "
            "host's disk. Set Dask's temporary-directory to a folder that all hosts share "
            "before the fit, or write the rows to Parquet files there and pass their path."
        )


def _reopen_folder(path: str) -> RowsFolder:
    """Return a copy of a folder object that does not delete the folder."""
    folder = object.__new__(RowsFolder)
    folder.path = path
    return folder


class _FramesInFiles(TableSource):
    """Batches that are pandas frames, one per file.

    Parameters
    ----------
    folder : RowsFolder
    empties : list of DataFrame
        Each batch, with its rows removed.
    row_counts : list of int
    """

    def __init__(self, folder: RowsFolder, empties: list[Any], row_counts: list[int]) -> None:
        # Each batch may number its categories differently, or lack some of them.
        self.categories = _join_categories(empties)
        self.folder, self.empty = folder, empties[0].astype(self.categories)
        self.parts = list(range(len(row_counts)))
        self.row_counts = row_counts

    def read_empty(self) -> Any:
        """Return a frame without rows."""
        return self.empty

    def read_part(self, part: Any, columns: list[str]) -> Any:
        """Return columns of a batch."""
        frame = self.folder.read(f"X-{part}")[columns]
        dtypes = {name: self.categories[name] for name in columns if name in self.categories}
        return frame.astype(dtypes) if dtypes else frame


def _join_categories(empties: list[Any]) -> dict[Any, Any]:
    """Return the dtypes, with all categories, of columns whose categories differ by batch."""
    pandas, joined = load_pandas(), {}
    for i, name in enumerate(empties[0].columns):
        dtypes = [frame.dtypes.iloc[i] for frame in empties]
        if not all(isinstance(dtype, pandas.CategoricalDtype) for dtype in dtypes):
            continue
        categories = [tuple(dtype.categories) for dtype in dtypes]
        if len(set(categories)) > 1:
            joined[name] = pandas.CategoricalDtype(
                list(dict.fromkeys(chain.from_iterable(categories)))
            )
    return joined


def spool_batches(batches: Iterator[Any], read_piece: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    """Return all batches of a generator as Dask collections of X, y and weights.

    A batch is a table (`y` may then be the name of a column), an array or sparse matrix of rows, or
    a tuple of X, y and, optionally, weights. Each is written to a file when it arrives, so at most
    one is in memory at a time. If the first item is not a batch, all items are returned as X.

    Parameters
    ----------
    batches : iterator
    read_piece : callable
        Returns rows of any library as a frame, an array or a sparse matrix; any other value
        unchanged.

    Raises
    ------
    InvalidDataError, InvalidTypeError
        There are no batches, all are empty, or they differ in columns or types.
    """
    first = next(batches, _NOTHING)
    if first is _NOTHING:
        raise InvalidTypeError(
            f"X is a {type(batches).__name__}, which can be read only once, and it yields no "
            "batch: it is empty, or was already read by an earlier fit. Make a new one for each "
            "fit."
        )
    if _split_batch(first, read_piece) is None:
        return chain([first], batches), None, None
    folder = RowsFolder()
    # The first batch without its rows, and each stored batch without its rows.
    first_empties: list[Any] | None = None
    row_counts, empties = list[int](), list[list[Any]]()
    for number, batch in enumerate(chain([first], batches)):
        pieces = _split_batch(batch, read_piece)
        if pieces is None or (first_empties is not None and len(pieces) != len(first_empties)):
            raise InvalidTypeError(
                f"Batch {number} is a {type(batch).__name__}, but the first one was of another "
                "kind. Every batch must be a table, a two-dimensional array, or a tuple (X, y)."
            )
        lengths = {name: piece.shape[0] for name, piece in zip(_PIECE_NAMES, pieces, strict=False)}
        if len(set(lengths.values())) > 1:
            raise InvalidDataError(
                f"Batch {number} has parts of different lengths: {lengths}. Give one target "
                "per row."
            )
        if first_empties is None:
            first_empties = [piece[:0] for piece in pieces]
        else:
            _check_like_first(pieces, first_empties, number)
        # An empty batch, for example from a filter, may have any dtype: it is left out.
        if not lengths["X"]:
            continue
        for name, piece in zip(_PIECE_NAMES, pieces, strict=False):
            folder.write(f"{name}-{len(row_counts)}", piece)
        empties.append([piece[:0] for piece in pieces])
        row_counts.append(lengths["X"])
    if not row_counts:
        raise InvalidDataError(
            "The batches of X hold 0 sample(s), while a minimum of 1 is required. Check the "
            "filter that they come from."
        )
    collections = [
        _join_pieces(folder, name, [pieces[i] for pieces in empties], row_counts)
        for i, name in enumerate(_PIECE_NAMES[: len(empties[0])])
    ]
    X, y, sample_weight = [*collections, None, None][: len(_PIECE_NAMES)]
    return X, y, sample_weight


def _split_batch(batch: Any, read_piece: Callable[[Any], Any]) -> list[Any] | None:
    """Return the X of a batch, and its y and weights if any; None if it is not a batch."""
    # Loaders of torch yield lists instead of tuples.
    is_tuple = isinstance(batch, tuple) or (
        isinstance(batch, list) and all(getattr(value, "ndim", 0) for value in batch)
    )
    pieces = list(batch) if is_tuple else [batch]
    while pieces and pieces[-1] is None:  # (X, y, None): no weights
        pieces.pop()
    if not 1 <= len(pieces) <= len(_PIECE_NAMES):
        return None
    X, *y_and_weights = [_read_rows(piece, read_piece) for piece in pieces]
    # One-dimensional items are single rows or scalars, of which there may be millions.
    if getattr(X, "ndim", 0) < 2 or any(getattr(value, "ndim", 0) < 1 for value in y_and_weights):
        return None
    return [X, *(_read_column(value) for value in y_and_weights)]


def _read_rows(values: Any, read_piece: Callable[[Any], Any]) -> Any:
    """Return a piece of a batch as a frame, a CSR matrix or an array; any other value unchanged."""
    values = read_piece(values)
    if hasattr(values, "tocsr"):
        return values.tocsr()
    if hasattr(values, "iloc") or not (hasattr(values, "__array__") or isinstance(values, list)):
        return values
    try:
        return np.asarray(values)  # lists of rows, and tensors in host memory
    except ValueError:  # rows of different lengths
        return values


def _read_column(values: Any) -> Any:
    """Return targets or weights as an array; missing values of nullable numbers are NaN."""
    dtype = getattr(values, "dtype", None)
    if hasattr(values, "iloc") and getattr(dtype, "kind", "O") in "iuf" and values.hasnans:
        return values.to_numpy(dtype="float64", na_value=np.nan)
    return np.asarray(values)


def _check_like_first(pieces: list[Any], empties: list[Any], batch_number: int) -> None:
    """Check that a batch has the same columns as the first one."""
    for name, *compared in zip(_PIECE_NAMES, pieces, empties, strict=False):
        columns, first_columns = (
            list(getattr(piece, "columns", piece.shape[1:])) for piece in compared
        )
        if columns != first_columns:
            raise InvalidDataError(
                f"Batch {batch_number}: {name} has the columns {columns}, and that of the first "
                f"batch {first_columns}. Give every batch the same columns in the same order."
            )


def _join_pieces(folder: RowsFolder, name: str, empties: list[Any], row_counts: list[int]) -> Any:
    """Return the X, y or weights of all batches as one Dask collection, whose tasks read files."""
    if hasattr(empties[0], "columns"):
        return make_frame(_FramesInFiles(folder, empties, row_counts))
    dtype = _find_common_dtype([empty.dtype for empty in empties], name)
    # All batches are read with one dtype, whatever dtype each was written with.
    read_batch = delayed(_ArrayRead(folder, name, dtype), pure=False)
    meta = empties[0].astype(dtype)
    chunks = [
        da.from_delayed(read_batch(i), (n, *meta.shape[1:]), dtype=dtype, meta=meta)
        for i, n in enumerate(row_counts)
    ]
    return da.concatenate(chunks)


def _find_common_dtype(dtypes: list[Any], name: str) -> Any:
    """Return a dtype that all batches have or can be converted to."""
    kinds = {dtype.kind for dtype in dtypes}
    if kinds <= set("OU") and len(kinds) > 1:
        return np.dtype(object)  # all are texts
    # True and 1 may be two different labels, but are the same feature value or weight.
    if len(kinds) > 1 and not kinds <= set("iuf" if name == "y" else "biuf"):
        raise InvalidDataError(
            f"The batches of {name} have several dtypes: {sorted(set(map(str, dtypes)))}. Give "
            "every batch the same one."
        )
    return np.result_type(*dtypes)


class _ArrayRead:
    """Task that reads an array from the file of a batch."""

    def __init__(self, folder: RowsFolder, name: str, dtype: Any) -> None:
        self.folder, self.name, self.dtype = folder, name, dtype

    def __call__(self, batch_number: int) -> Any:
        values = self.folder.read(f"{self.name}-{batch_number}")
        return values if values.dtype == self.dtype else values.astype(self.dtype)
