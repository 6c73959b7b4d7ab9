"""Fields of a table: names and kinds of its columns, and its rows as entries of virtual columns.

Estimators and transformers that read columns of ids share it. `TableFields.find` inspects a table
in memory or of Dask; it reads values only if the types do not determine a column's kind.
`TableFields.hash_rows` hashes rows, lazily for Dask. The hashing of a block is in
`data/field_hashing.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any, Self

import dask.array as da
import numpy as np
from dask.utils import is_dataframe_like
from scipy import sparse

from daskml_dist.data.collection import as_collection
from daskml_dist.data.conversion import convert_named_columns, convert_to_host
from daskml_dist.data.field_hashing import (
    MAX_FIELDS,
    N_COLUMNS,
    BlockHasher,
    find_block_kinds,
    find_kinds,
    find_numeric,
    join_kinds,
    make_empty_rows,
)
from daskml_dist.data.lazy import is_dask, join_delayed
from daskml_dist.data.plain_rows import RowsPlaceholder
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.data.row_checks import check_holds_rows, check_rows, find_row_shape
from daskml_dist.diagnostics.operation_progress import report_reading
from daskml_dist.errors import InvalidDataError, InvalidTypeError
from daskml_dist.inference.block_mapping import map_blocks


@dataclass(frozen=True)
class TableFields:
    """Fields of a table: how its columns become entries of 2**62 virtual columns.

    Parameters
    ----------
    names : tuple of str or int
        Names of the columns; for an array their positions.
    kinds : tuple of str
        Kind of each: ``"numeric"``, or the type of its ids.
    bags : {"mean", "sum"}
    hashing : {"stable", "vowpal"}
    missing : {"error", "own"}
    dtype : str
        Dtype of the values.
    """

    names: tuple[Any, ...]
    kinds: tuple[str, ...]
    bags: str = "mean"
    hashing: str = "stable"
    missing: str = "error"
    dtype: str = "float32"

    @classmethod
    def find(
        cls, X: Any, numeric: Any = "auto", *, names: Sequence[Any] | None = None,
        reader: str = "FieldHasher", **options: Any,
    ) -> Self:  # fmt: skip
        """Return the fields of a table that :func:`as_table` has returned.

        Parameters
        ----------
        X : array, frame, or Dask collection
        numeric : "auto" or list
            Columns of numbers; the others hold ids.
        names : sequence, optional
            Names of the columns; None: its own.
        reader : str, default="FieldHasher"
            Name of the estimator that reads the table, shown with its progress.
        **options
            Further parameters of the class.

        Raises
        ------
        InvalidParameterError, InvalidDataError
            There are too many columns, or one is of no kind that can be ids or numbers.
        """
        shape = find_row_shape(X)
        if shape is None:
            raise InvalidDataError(
                "The number of columns is unknown until X is computed. Pass a Dask Array that "
                "knows it: dask.array.from_delayed(block, shape=(numpy.nan, n_columns), "
                "dtype=int)."
            )
        if shape[0] > MAX_FIELDS:
            raise InvalidDataError(
                f"X has {shape[0]} columns, but at most {MAX_FIELDS} fields are supported. Use "
                "fewer, or combine ids of the same meaning into one column of lists."
            )
        column_names = _list_names(X, names)
        column_kinds = (
            _find_lazy_kinds(X, column_names, reader) if is_dask(X) else find_kinds(X, column_names)
        )
        are_numeric = find_numeric(column_kinds, column_names, numeric)
        kinds = [
            "numeric" if numeric else kind
            for kind, numeric in zip(column_kinds, are_numeric, strict=True)
        ]
        return cls(tuple(column_names), tuple(kinds), **options)

    def hash_rows(self, X: Any) -> Any:
        """Return the entries of the rows of a table that :func:`as_table` has returned.

        Parameters
        ----------
        X : array, frame, or Dask collection
            With the columns of the fields, in their order.

        Returns
        -------
        csr_array, or dask Array of such chunks, of shape (n_rows, 2**62)
        """
        dtype = np.dtype(self.dtype)
        hash_block = BlockHasher(
            self.names, self.kinds, self.bags, self.hashing, self.missing, dtype,
            is_lazy=is_dask(X),
        )  # fmt: skip
        if not is_dask(X):
            return hash_block(X)
        return map_blocks(hash_block, X, meta=make_empty_rows(dtype))


def holds_floats_alone(X: Any) -> bool:
    """Return whether all columns of a frame are floats, so that no values need be read."""
    return is_dataframe_like(X) and all(
        isinstance(dtype, np.dtype) and dtype.kind == "f" for dtype in X.dtypes
    )


def is_hashed(X: Any) -> bool:
    """Return whether X is a sparse matrix over the virtual columns already."""
    return bool(getattr(X, "shape", ())[1:] == (N_COLUMNS,))


def hash_table(
    X: Any, fields: TableFields | None, select: Callable[[Any, TableFields], Any]
) -> Any:
    """Return the rows of a table as entries of its fields' ids; all other rows unchanged.

    Parameters
    ----------
    X : DataFrame or array-like
    fields : TableFields or None
        Fields of the fit; None if it was not to a table.
    select : callable
        Returns the columns of the fit of a table, or raises if it lacks some.
    """
    if fields is None or is_hashed(X):
        return X
    if isinstance(X, RowsPlaceholder):
        raise InvalidTypeError("Rows of ids have columns of different types: pass a dataframe.")
    return fields.hash_rows(select(X, fields))


def as_table(X: Any, n_columns: float = np.nan) -> Any:
    """Return X as an array or frame of two dimensions, of Dask if it is lazy."""
    X = join_delayed(convert_to_host(X), 2, n_columns)
    if isinstance(X, list | tuple):
        # Objects, column by column: NumPy would convert numbers to text if other columns hold
        # texts.
        check_holds_rows(X)
        X = np.asarray(X, dtype=object)
    X = check_rows(X, numeric=False)
    if sparse.issparse(X) or sparse.issparse(getattr(X, "_meta", None)):
        raise InvalidTypeError(
            "X is a sparse matrix, but fields are the columns of a table. Pass the original "
            "dataframe; a matrix that is already hashed or encoded needs no FieldHasher."
        )
    return convert_named_columns(X)


def _list_names(X: Any, columns: Sequence[Any] | None) -> list[Any]:
    """Return the names of the columns of selected rows; for arrays their positions."""
    if columns is not None:
        return [int(name) if isinstance(name, Integral) else name for name in columns]
    if is_dataframe_like(X):
        return list(X.columns)
    return list(range(int(X.shape[1])))


def _find_lazy_kinds(X: Any, names: Sequence[Any], reader: str) -> list[str]:
    """Return the kinds of the columns of a Dask collection, by its types or in one pass."""
    sample: Any = X._meta if is_dataframe_like(X) else np.empty((0, X.shape[1]), X.dtype)
    unknown_numbers = [j for j, name in enumerate(names) if _hides_kind(X, name)]
    known_numbers = [j for j in range(len(names)) if j not in unknown_numbers]
    column_kinds = ["missing"] * len(names)
    if known_numbers:
        known_columns = sample.iloc[:, known_numbers] if is_dataframe_like(X) else sample
        for j, kind in zip(
            known_numbers, find_kinds(known_columns, [names[j] for j in known_numbers]), strict=True
        ):
            column_kinds[j] = kind
    if unknown_numbers:
        labels = [names[j] for j in unknown_numbers]
        columns = X[labels] if is_dataframe_like(X) else X
        with report_reading(reader):
            kinds = reduce_parts(
                as_collection(columns, None, None, numeric=False),
                partial(find_block_kinds, labels),
                partial(join_kinds, labels),
            )
        # No block has rows: any kind is correct.
        for j, kind in zip(
            unknown_numbers, kinds or ["missing"] * len(unknown_numbers), strict=True
        ):
            column_kinds[j] = kind
    return column_kinds


def _hides_kind(X: Any, name: Any) -> bool:
    """Return whether the type of a Dask collection's column does not determine its kind."""
    if isinstance(X, da.Array):
        return X.dtype.kind not in "biufcmM"
    dtype = X._meta[name].dtype
    if hasattr(dtype, "categories"):
        return not X[name].cat.known
    return bool(dtype == np.dtype(object))
