"""Containers of rows beyond NumPy, SciPy and dense pandas: xarray, pydata/sparse, lazy tables.

None of these libraries is a dependency: an object is known by the module of its type, so nothing is
imported that the user has not imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.errors import InvalidDataError, InvalidTypeError

__all__ = [
    "NamedColumns",
    "check_unique_names",
    "convert_foreign",
    "convert_frame_to_csr",
    "convert_named_columns",
    "convert_pydata_sparse",
    "convert_sparse_bools",
    "copy_other_gpu_to_host",
    "densify_columns",
    "get_column_names",
    "is_sparse_frame",
    "load_pandas",
    "other_gpu_library",
    "restore_chunk_sizes",
]

#: How rows are made of an object that has none itself, by its package and class.
_REMEDIES = {
    ("polars", "LazyFrame"): "is a query that is not run yet: pass the result of its .collect()",
    ("duckdb", "DuckDBPyRelation"): "is a query that is not run yet: pass the result of its .df()",
    ("xarray", "Dataset"): (
        "holds several variables: pass one array, such as dataset.to_array().T of variables of "
        "one dimension, or a frame, dataset.to_dask_dataframe() or dataset.to_dataframe()"
    ),
}


class NamedColumns(da.Array):
    """A Dask Array whose columns have names: the data of an xarray.DataArray.

    What Dask makes of it is a plain Dask Array, so names are checked before rows go anywhere, and
    blocks have none. Steps that ask each block for names take :func:`convert_named_columns`.
    """

    column_names: NDArray[Any]


def convert_foreign(*values: Any) -> Any:
    """Convert containers of other libraries to those that the package reads."""
    converted = tuple(map(_convert_container, values))
    return converted[0] if len(converted) == 1 else converted


def _convert_container(value: Any) -> Any:
    """Return one container as the package reads it; all else as it is."""
    if isinstance(value, da.Array):
        if not _is_pydata_sparse(value._meta):
            return value
        meta = convert_pydata_sparse(value._meta)
        return da.map_blocks(convert_pydata_sparse, value, dtype=value.dtype, meta=meta)
    # Compiled parts of a library live in modules such as `_duckdb`.
    package = type(value).__module__.partition(".")[0].lstrip("_")
    if package == "sparse":
        return convert_pydata_sparse(value)
    kind = type(value).__name__
    if package == "xarray" and kind == "DataArray":
        return _extract_xarray_data(value)
    if remedy := _REMEDIES.get((package, kind)):
        raise InvalidTypeError(f"{package}.{kind} {remedy}.")
    return copy_other_gpu_to_host(value)


def other_gpu_library(value: Any) -> str:
    """Return the library of an array or frame on a GPU that is not CuPy's; empty for all else."""
    package = type(value).__module__.partition(".")[0]
    if package == "torch":
        where = getattr(getattr(value, "device", None), "type", "cpu")
        return package if where != "cpu" else ""
    return package if package in _HOST_COPIES else ""


def copy_other_gpu_to_host(value: Any) -> Any:
    """Copy a tensor of torch, a frame or column of cuDF, or an array of numba from its GPU."""
    package = other_gpu_library(value)
    return _HOST_COPIES[package](value) if package else value


#: How rows on a GPU are brought to the host, by the package that they are of.
_HOST_COPIES: dict[str, Callable[[Any], Any]] = {
    "torch": lambda tensor: tensor.detach().cpu().numpy(),
    "cudf": lambda frame: frame.to_pandas() if hasattr(frame, "to_pandas") else frame,
    "numba": lambda array: array.copy_to_host() if hasattr(array, "copy_to_host") else array,
}


def get_column_names(values: Any) -> NDArray[Any] | None:
    """Return the names of the columns of a :class:`NamedColumns`; None for anything else."""
    return values.column_names if isinstance(values, NamedColumns) else None


def convert_named_columns(X: Any, *beside: Any) -> Any:
    """Return a :class:`NamedColumns` as a dask DataFrame, whose blocks have the names."""
    found: tuple[Any, ...] = (X, *beside)
    if (names := get_column_names(X)) is not None:
        import dask.dataframe as dd

        # A frame's partition holds whole rows.
        whole, rows = X.rechunk({1: -1}), {0: X.chunks[0]}
        found = (
            dd.from_dask_array(_rebuild_array(whole, whole.chunks), columns=list(names)),
            *(value.rechunk(rows) if isinstance(value, da.Array) else value for value in beside),
        )
    return found if beside else found[0]


def restore_chunk_sizes(answers: Any, X: Any) -> Any:
    """Return answers to :func:`convert_named_columns` of X with the chunk sizes known of X."""
    if get_column_names(X) is None or not isinstance(answers, da.Array):
        return answers
    return _rebuild_array(answers, (X.chunks[0], *answers.chunks[1:]))


def _rebuild_array(array: da.Array, chunks: Any) -> da.Array:
    return da.Array(array.dask, array.name, chunks, meta=array._meta)


# --- xarray ----------------------------------------------------------------------------------


def _extract_xarray_data(array: Any) -> Any:
    """Return the data of an xarray.DataArray, which is read where it lies in a file."""
    data = _convert_container(array.data)
    names = array.indexes.get(array.dims[1]) if array.ndim == 2 else None
    if names is None or not all(isinstance(name, str) for name in names):
        return data
    if isinstance(data, da.Array):
        make: Any = NamedColumns  # Dask gives its arrays no types
        named = make(data.dask, data.name, data.chunks, meta=data._meta)
        named.column_names = np.asarray(names, dtype=object)
        return named
    if sparse.issparse(data):
        return data
    return load_pandas().DataFrame(np.asarray(data), columns=list(names))


# --- pydata/sparse ---------------------------------------------------------------------------


def _is_pydata_sparse(value: Any) -> bool:
    return type(value).__module__.startswith("sparse.")


def convert_pydata_sparse(value: Any) -> Any:
    """Convert an array of pydata/sparse to a CSR array of SciPy; all else stays as it is.

    An array of another number of dimensions than two, or whose fill value is not zero, for which
    SciPy has no format, becomes dense.
    """
    if not _is_pydata_sparse(value):
        return value
    value = value.tocoo() if hasattr(value, "tocoo") else value
    # SciPy's formats leave out zeros alone, and have two dimensions.
    if value.ndim == 2 and value.fill_value == 0:
        return sparse.csr_array(value.to_scipy_sparse())
    return value.todense()


# --- sparse columns of pandas ----------------------------------------------------------------


def convert_frame_to_csr(frame: Any) -> Any:
    """Return the CSR matrix of a frame all of whose columns are sparse with zeros left out."""
    return frame.sparse.to_coo().tocsr() if is_sparse_frame(frame) else None


def is_sparse_frame(frame: Any) -> bool:
    """Return whether all columns of a frame are sparse numbers whose zeros are left out."""
    # Frames of many columns have few dtypes.
    kinds = set(frame.dtypes)
    return bool(kinds) and all(map(_omits_zeros, kinds))


def _omits_zeros(dtype: Any) -> bool:
    return hasattr(dtype, "fill_value") and dtype.kind in "biuf" and bool(dtype.fill_value == 0)


def densify_columns(frame: Any) -> Any:
    """Return a pandas frame or series with dense columns in place of sparse ones."""
    if not is_dataframe_like(frame):
        return frame.sparse.to_dense() if hasattr(frame.dtype, "fill_value") else frame
    wide = {
        at: dtype.subtype
        for at, dtype in zip(frame.columns, frame.dtypes, strict=True)
        if hasattr(dtype, "fill_value")
    }
    return frame.astype(wide) if wide else frame


def convert_sparse_bools(frame: Any) -> Any:
    """Return a frame whose sparse columns of bool are float64, as arithmetic wants them."""
    if not hasattr(frame, "dtypes") or not is_dataframe_like(frame):
        return frame
    wide = {
        at: type(dtype)(np.float64, 0.0)
        for at, dtype in zip(frame.columns, frame.dtypes, strict=True)
        if hasattr(dtype, "fill_value") and dtype.kind == "b"
    }
    return frame.astype(wide) if wide else frame


def load_pandas() -> Any:
    """Return pandas, which rows in NumPy's arrays do without."""
    try:
        import pandas
    except ImportError as error:
        raise InvalidDataError(
            'This needs pandas: pip install "daskml-dist[dataframe]".'
        ) from error
    return pandas


def check_unique_names(X: Any) -> None:
    """Check that no two columns of a dataframe have one name: columns are found by it."""
    if not is_dataframe_like(X) or X.columns.is_unique:
        return
    alike = X.columns[X.columns.duplicated()].unique().tolist()
    raise InvalidDataError(
        f"Expected unique column names: several columns of the dataframe are called {alike}. Give "
        "each a name of its own (X.columns = [...]), or keep the first of each: "
        "X.loc[:, ~X.columns.duplicated()]."
    )
