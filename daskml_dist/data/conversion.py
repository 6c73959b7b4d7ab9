"""Conversion of the user's data, whole or by the block, to plain arrays of real numbers.

`as_rows` makes a float array or CSR matrix of X, `as_column` an array of y or weights. What they
refuse is told with the remedy for its kind: words, dates, shapes, complex numbers, missing values.

Containers beyond NumPy, SciPy and pandas (xarray, pydata/sparse, lazy tables) are known by the
module of their type: none is a dependency, and nothing is imported that the user has not imported.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Number, Real
from typing import Any, TypeAlias

import dask.array as da
import numpy as np
from dask.base import compute
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from daskml_dist.backends.devices import gpu_problem
from daskml_dist.backends.namespace import cast
from daskml_dist.data.batch_files import spool_batches
from daskml_dist.data.eager_tables import convert_whole_table, find_package, unwrap_narwhals
from daskml_dist.data.eager_tables import load_pandas as load_pandas  # for many modules
from daskml_dist.data.gridded_data import flatten_dataset, stack_columns
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.paths import open_path
from daskml_dist.data.table_scans import convert_lazy_table
from daskml_dist.errors import DeviceUnavailableError, InvalidDataError, InvalidTypeError
from daskml_dist.errors.stack_level import user_stack_level

#: Shape of a row: ``(n_features,)``, or more dimensions of tensors; None where it is not known.
RowShape = tuple[int, ...] | None
#: How rows are made of an object that is not read itself, by its package and class.
_REMEDIES = {
    ("xarray", "DataTree"): "holds several datasets: pass one, tree['name'].to_dataset()",
    ("zarr", "Group"): "holds several arrays: pass one, group['name']",
    ("h5py", "File"): "holds several arrays: pass one, dask.array.from_array(file['name'])",
    ("h5py", "Group"): "holds several arrays: pass one, dask.array.from_array(group['name'])",
    ("netCDF4", "Dataset"): "is a file: pass xarray.open_dataset(path, chunks={})",
    ("anndata", "AnnData"): "holds several tables: pass adata.X, and adata.obs['label'] as y",
    ("datasets", "Dataset"): (
        "is a table in Arrow files: pass dataset.to_pandas(), or dataset.to_parquet(path) and "
        "then the path"
    ),
    ("pyspark", "DataFrame"): (
        "is held by Spark's workers: write it with frame.write.parquet(path) and pass the path"
    ),
    ("ibis", "Table"): "is a query that has not run yet: pass the result of its .to_pyarrow()",
    ("daft", "DataFrame"): "is a query that has not run yet: pass the result of its .to_arrow()",
    ("datafusion", "DataFrame"): (
        "is a query that has not run yet: pass the result of its .to_arrow_table()"
    ),
    ("duckdb", "DuckDBPyConnection"): (
        "is a connection: pass a relation of it, connection.table('name') or "
        "connection.sql('select ...')"
    ),
    ("torch", "DataLoader"): "yields batches: pass iter(loader), which is read once",
}


class _NamedColumns(da.Array):
    """A Dask Array whose columns have names: the data of an xarray.DataArray.

    What Dask makes of it is a plain Dask Array, so names are checked before rows go anywhere, and
    blocks have none. Steps that ask each block for names take :func:`convert_named_columns`.
    """

    column_names: NDArray[Any]
    #: Each column as it was before all became one dtype; None where all had that dtype.
    variables: dict[str, da.Array] | None = None


def convert_foreign(*values: Any) -> Any:
    """Convert containers of other libraries to those that the package reads.

    The first value is rows: of it a text is the path of files, and a generator gives batches, each
    of rows or a tuple of rows and targets, which then take the place of a second value of None.
    """
    X, *other_values = values
    if isinstance(X, str | os.PathLike):
        X = open_path(X)
    elif isinstance(X, Iterator):
        X, *other_values = convert_batches(X, *other_values)
    if other_values and _find_kind(X) == ("xarray", "Dataset"):
        X, *other_values = _join_to_grid(X, other_values)
    converted = tuple(map(_convert_container, (X, *other_values)))
    return converted[0] if len(converted) == 1 else converted


def convert_batches(X: Any, *other_values: Any) -> tuple[Any, ...]:
    """Return a generator of batches as Dask collections, and anything else as it is.

    `other_values` are y and sample_weight, as far as the caller takes them: what batches hold of
    them takes the place of None.
    """
    if not isinstance(X, Iterator):
        return (X, *other_values)
    X, *batch_values = spool_batches(X, _read_piece)
    converted = list(other_values)
    for position, (name, values) in enumerate(
        zip(("y", "sample_weight"), batch_values, strict=True)
    ):
        if values is None:
            continue
        if position >= len(converted) or converted[position] is not None:
            raise InvalidTypeError(
                f"The batches of X hold {name} themselves, which is "
                f"{'given, too' if position < len(converted) else 'not used here'}. Make each "
                f"batch only rows, or pass {name}=None."
            )
        converted[position] = values
    return (X, *converted)


def _find_kind(value: Any) -> tuple[str, str]:
    """Return the package and the class of an object."""
    return find_package(value), type(value).__name__


def _read_piece(values: Any) -> Any:
    """Return rows or targets of a batch in host memory, of any library that is read elsewhere."""
    if is_dask(values := _convert_container(values)):
        (values,) = compute(values)
    return copy_to_host(values)


def _convert_container(value: Any) -> Any:
    """Return one container as the package reads it; all else as it is."""
    # By far the most frequent kind, of which nothing has to be found out.
    if value is None:
        return value
    if type(value) is np.ndarray:
        # scikit-learn refuses NumPy's texts of any length. As in pandas, they become objects.
        return value.astype(object) if value.dtype.kind == "T" else value
    if isinstance(value, np.ma.MaskedArray):
        return _fill_masked(value)
    if isinstance(value, da.Array):
        if isinstance(value._meta, np.ma.MaskedArray):
            meta = np.asarray(value._meta)
            return da.map_blocks(_fill_masked, value, dtype=value.dtype, meta=meta)
        if not _is_pydata_sparse(value._meta):
            return value
        meta = _convert_pydata_sparse(value._meta)
        return da.map_blocks(_convert_pydata_sparse, value, dtype=value.dtype, meta=meta)
    value = unwrap_narwhals(value)
    package, kind = _find_kind(value)
    if package == "sparse":
        return _convert_pydata_sparse(value)
    if package == "xarray" and kind == "DataArray":
        return _extract_xarray_data(value)
    if package == "xarray" and kind == "Dataset":
        return _convert_dataset(value)
    if package == "zarr" and kind == "Array":
        return da.from_zarr(value)
    for convert in (convert_lazy_table, convert_whole_table):
        if (table := convert(value)) is not None:
            return table
    if remedy := _REMEDIES.get((package, kind)):
        raise InvalidTypeError(f"{package}.{kind} {remedy}.")
    return _copy_by_library(value)


#: What stands for a masked value, by the kind of an array's dtype; None for all others.
_MISSING = {"f": np.nan, "c": np.nan, "m": "NaT", "M": "NaT"}


def _fill_masked(values: Any) -> Any:
    """Return the values of a masked array, with missing ones in place of those that are masked.

    Whole numbers and bools, which have no missing value, become floats if any is masked.
    """
    if not np.ma.is_masked(values):
        return np.ma.getdata(values)
    if values.dtype.kind in "biu":
        values = values.astype(np.float64)
    elif values.dtype.kind not in _MISSING:
        values = values.astype(object)
    filled = np.ma.getdata(values).copy()
    filled[np.ma.getmaskarray(values)] = _MISSING.get(values.dtype.kind)
    return filled


def _find_copied_library(value: Any) -> str:
    """Return the library of an object that neither NumPy nor CuPy reads, or an empty text."""
    package = type(value).__module__.partition(".")[0]
    if package == "torch":
        where = getattr(getattr(value, "device", None), "type", "cpu")
        # Of tensors in host memory NumPy refuses those with gradients, and a dtype that it lacks.
        is_plain = where == "cpu" and not getattr(value, "requires_grad", False)
        return "" if is_plain and str(getattr(value, "dtype", "")) != _BFLOAT16 else package
    return package if package in _HOST_COPIES else ""


def _copy_by_library(value: Any) -> Any:
    """Copy a tensor of torch, a frame of cuDF, or an array of numba to NumPy or pandas."""
    package = _find_copied_library(value)
    return _HOST_COPIES[package](value) if package else value


#: A dtype of torch that NumPy has not.
_BFLOAT16 = "torch.bfloat16"


def _copy_tensor(tensor: Any) -> Any:
    """Return the values of a tensor of torch as an array of NumPy."""
    tensor = tensor.detach().cpu()
    is_short = str(getattr(tensor, "dtype", "")) == _BFLOAT16
    return (tensor.float() if is_short else tensor).numpy()


#: How rows are brought to host memory, by the package that they are of.
_HOST_COPIES: dict[str, Callable[[Any], Any]] = {
    "torch": _copy_tensor,
    "cudf": lambda frame: frame.to_pandas() if hasattr(frame, "to_pandas") else frame,
    "numba": lambda array: array.copy_to_host() if hasattr(array, "copy_to_host") else array,
}


def get_column_names(values: Any) -> NDArray[Any] | None:
    """Return the names of the columns of a :class:`_NamedColumns`; None for anything else."""
    return values.column_names if isinstance(values, _NamedColumns) else None


def find_columns(X: Any) -> list[Any] | None:
    """Return the names of the columns that can be taken out of rows by name; None of plain rows."""
    if is_dataframe_like(X):
        return list(X.columns)
    return list(X.column_names) if isinstance(X, _NamedColumns) else None


def take_columns(X: Any, names: Any) -> Any:
    """Return a column of rows by its name, or several by a list of names."""
    if not isinstance(X, _NamedColumns):
        return X[names]
    column_names = list(X.column_names)
    if not isinstance(names, list):
        # A variable's own dtype: labels stay whole numbers beside rows of floats.
        variable = None if X.variables is None else X.variables[names]
        return X[:, column_names.index(names)] if variable is None else variable
    if X.variables is not None:
        return _stack_variables({name: X.variables[name] for name in names})
    return _name_columns(X[:, [column_names.index(name) for name in names]], names)


def convert_named_columns(X: Any, *other_values: Any) -> Any:
    """Return a :class:`_NamedColumns` as a dask DataFrame, whose blocks have the names."""
    converted: tuple[Any, ...] = (X, *other_values)
    if (names := get_column_names(X)) is not None:
        import dask.dataframe as dd

        # A frame's partition holds whole rows.
        all_columns, rows = X.rechunk({1: -1}), {0: X.chunks[0]}
        converted = (
            dd.from_dask_array(
                _rebuild_array(all_columns, all_columns.chunks), columns=list(names)
            ),
            *(
                value.rechunk(rows) if isinstance(value, da.Array) else value
                for value in other_values
            ),
        )
    return converted if other_values else converted[0]


def restore_chunk_sizes(answers: Any, X: Any) -> Any:
    """Return answers to :func:`convert_named_columns` of X with the chunk sizes known of X."""
    if get_column_names(X) is None or not isinstance(answers, da.Array):
        return answers
    return _rebuild_array(answers, (X.chunks[0], *answers.chunks[1:]))


def _rebuild_array(array: da.Array, chunks: Any) -> da.Array:
    """Return a plain Dask Array of the same tasks, with these chunk sizes."""
    return da.Array(array.dask, array.name, chunks, meta=array._meta)


# --- xarray ----------------------------------------------------------------------------------


def _extract_xarray_data(array: Any) -> Any:
    """Return the data of an xarray.DataArray, which is read where it lies in a file."""
    data = _convert_container(array.data)
    names = array.indexes.get(array.dims[1]) if array.ndim == 2 else None
    if names is None or not all(isinstance(name, str) for name in names):
        return data
    # A Dask Array stays lazy, with the names as an attribute; dense rows in memory become a frame.
    if isinstance(data, da.Array):
        return _name_columns(data, names)
    if sparse.issparse(data):
        return data
    return load_pandas().DataFrame(np.asarray(data), columns=list(names))


def _name_columns(data: da.Array, names: Any) -> _NamedColumns:
    """Return a Dask Array with names of its columns."""
    make: Any = _NamedColumns  # Dask gives its arrays no types
    named: _NamedColumns = make(data.dask, data.name, data.chunks, meta=data._meta)
    named.column_names = np.asarray(names, dtype=object)
    return named


def _convert_dataset(dataset: Any) -> Any:
    """Return the variables of an xarray.Dataset as named columns, or as a frame in memory."""
    columns = flatten_dataset(dataset)
    first = next(iter(columns.values()))
    if not isinstance(first, da.Array):
        return load_pandas().DataFrame(columns)
    if all(column.dtype.kind in "biuf" for column in columns.values()):
        return _stack_variables(columns)
    import dask.dataframe as dd

    # Columns of one array have one dtype; words beside numbers need a frame.
    frames = [dd.from_dask_array(column, columns=name) for name, column in columns.items()]
    return dd.concat(frames, axis=1)


def _join_to_grid(dataset: Any, other_values: list[Any]) -> list[Any]:
    """Return the rows of an xarray.Dataset, and beside them what lies on its grid, row by row."""
    on_grid = {
        f"_beside_{i}": values
        for i, values in enumerate(other_values)
        if _find_kind(values) == ("xarray", "DataArray") and set(values.dims) <= set(dataset.dims)
    }
    if not on_grid:
        return [dataset, *other_values]
    joined = _convert_dataset(dataset.assign(on_grid))
    flat_beside = [
        take_columns(joined, name) if (name := f"_beside_{i}") in on_grid else values
        for i, values in enumerate(other_values)
    ]
    return [take_columns(joined, list(dataset.data_vars)), *flat_beside]


def _stack_variables(columns: dict[str, da.Array]) -> _NamedColumns:
    """Return variables as columns of one array of floats, as a frame of them would become."""
    dtypes = {choose_float_dtype(column.dtype) for column in columns.values()}
    named = _name_columns(stack_columns(columns, np.result_type(*dtypes)), list(columns))
    named.variables = columns
    return named


# --- pydata/sparse ---------------------------------------------------------------------------


def _is_pydata_sparse(value: Any) -> bool:
    """Return whether an array is of pydata/sparse, which need not be installed."""
    return type(value).__module__.startswith("sparse.")


def _convert_pydata_sparse(value: Any) -> Any:
    """Convert an array of pydata/sparse to a CSR array of SciPy; all else stays as it is.

    An array of another number of dimensions than two, or whose fill value is not zero, for which
    SciPy has no format, becomes dense.
    """
    if not _is_pydata_sparse(value):
        return value
    value = value.asformat("coo")
    # SciPy's formats leave out zeros alone, and have two dimensions.
    if value.ndim == 2 and value.fill_value == 0:
        return sparse.csr_array(value.to_scipy_sparse())
    return value.todense()


# --- sparse columns of pandas ----------------------------------------------------------------


def _convert_frame_to_csr(frame: Any) -> Any:
    """Return the CSR matrix of a frame all of whose columns are sparse with zeros left out."""
    return frame.sparse.to_coo().tocsr() if _is_sparse_frame(frame) else None


def _is_sparse_frame(frame: Any) -> bool:
    """Return whether all columns of a frame are sparse numbers whose zeros are left out."""
    # Frames of many columns have few dtypes.
    kinds = set(frame.dtypes)
    return bool(kinds) and all(map(_omits_zeros, kinds))


def _omits_zeros(dtype: Any) -> bool:
    """Return whether a dtype is of sparse numbers whose fill value is zero."""
    return hasattr(dtype, "fill_value") and dtype.kind in "biuf" and bool(dtype.fill_value == 0)


def densify_columns(frame: Any) -> Any:
    """Return a pandas frame or series with dense columns in place of sparse ones."""
    if not is_dataframe_like(frame):
        return frame.sparse.to_dense() if hasattr(frame.dtype, "fill_value") else frame
    dense_dtypes = {
        name: dtype.subtype
        for name, dtype in zip(frame.columns, frame.dtypes, strict=True)
        if hasattr(dtype, "fill_value")
    }
    return frame.astype(dense_dtypes) if dense_dtypes else frame


def convert_sparse_bools(frame: Any) -> Any:
    """Return a frame whose sparse columns of bool are float64, as arithmetic wants them."""
    if not hasattr(frame, "dtypes") or not is_dataframe_like(frame):
        return frame
    # The sum of two bools is a bool: two ones would add up to one.
    float_dtypes = {
        name: type(dtype)(np.float64, 0.0)
        for name, dtype in zip(frame.columns, frame.dtypes, strict=True)
        if hasattr(dtype, "fill_value") and dtype.kind == "b"
    }
    return frame.astype(float_dtypes) if float_dtypes else frame


def check_unique_names(X: Any) -> None:
    """Check that no two columns of a dataframe have one name: columns are found by it."""
    if not is_dataframe_like(X) or X.columns.is_unique:
        return
    duplicates = X.columns[X.columns.duplicated()].unique().tolist()
    raise InvalidDataError(
        f"Expected unique column names: several columns of the dataframe are named {duplicates}. "
        "Give each its own name (X.columns = [...]), or keep the first of each: X.loc[:, "
        "~X.columns.duplicated()]."
    )


# An ndarray, or a CSR matrix or array of SciPy, which has no types.
Rows: TypeAlias = Any

INT32_MAX = np.iinfo(np.int32).max


def as_rows(
    X: Any,
    *,
    dtype: str | None = None,
    index: int | None = None,
    on_device: bool = False,
    tensors: bool = False,
    any_order: bool = False,
) -> Rows:
    """Make X a float array or CSR matrix; no copy where it is one already."""
    # Rows that stay on the GPU are only checked, never converted: their bits are the user's.
    if on_device and find_device(X) == "gpu":
        return _check_device_rows(X, index, tensors)
    # From here on X is in host memory: CuPy's was copied, pydata/sparse is SciPy's now.
    X = copy_to_host(X)
    choose_dtype = choose_tensor_dtype if tensors else choose_float_dtype
    if is_dataframe_like(X):
        if (entries := _convert_frame_to_csr(X)) is None:
            return _convert_frame(X, dtype, index, choose_dtype, any_order)
        X = entries
    # Of the sparse formats only CSR can be cut by rows.
    if sparse.issparse(X):
        check_sparse_structure(X, index)
    rows = X.tocsr() if hasattr(X, "tocsr") else convert_to_array(X, "X", index)
    check_dimensions(rows, index, tensors=tensors, unconverted=X)
    target_dtype = dtype or choose_dtype(rows.dtype)
    if sparse.issparse(rows):
        return _canonicalize_csr(rows, target_dtype, index)
    return convert_to_numbers(rows, target_dtype, "X", index, any_order)


def are_device_labels(values: Any) -> bool:
    """Return whether labels are plain numbers on a GPU, which are counted and encoded there."""
    return are_device_numbers(values) and values.ndim == 1


def are_device_numbers(values: Any) -> bool:
    """Return whether values are a dense array of real numbers on a GPU."""
    is_dense_there = find_device(values) == "gpu" and not hasattr(values, "tocsr")
    return is_dense_there and values.dtype.kind in "biuf"


def as_column(
    values: Any,
    *,
    name: str,
    index: int | None = None,
    multi_output: bool = False,
    on_device: bool = False,
) -> NDArray[Any]:
    """Make y or sample_weight an array of one dimension, of the dtype it has.

    In host memory, unless they are numbers on a GPU and may stay there (`on_device`).
    """
    stays_on_device = on_device and are_device_numbers(values)
    values = values if stays_on_device else copy_to_host(values)
    # Several targets are a table of numbers, like X; a single target may also be labels, which are
    # kept as they are.
    if multi_output and is_dataframe_like(values):
        return _convert_frame(values, None, index, choose_float_dtype)
    if is_dataframe_like(values) and len(values.columns) == 1:
        values = values.iloc[:, 0]
    array: NDArray[Any]
    if stays_on_device:
        array = values
    elif is_series_like(values):
        array = _convert_series(values)
    else:
        array = convert_to_array(values, name, index)
    if multi_output and array.ndim == 2:
        return array
    if array.ndim == 2 and array.shape[1] == 1:
        array = array.reshape(-1)
    if array.ndim != 1:
        raise InvalidDataError(
            f"{describe_block(index)}{name} should be a 1d array, got an array of shape "
            f"{array.shape} instead. Pass one column, for example {name}[:, 0]."
        )
    return convert_object_values(array)


def find_device(values: Any) -> str:
    """Return where an array's memory is: "gpu" of arrays and matrices of CuPy, else "cpu"."""
    if _find_copied_library(values):
        return "cpu"  # such arrays have CuPy's interface, and none of its methods: they are copied
    # A sparse matrix of CuPy has no such interface itself, but its array of values has.
    data = getattr(values, "data", None) if hasattr(values, "tocsr") else values
    return "gpu" if hasattr(data, "__cuda_array_interface__") else "cpu"


def copy_to_host(values: Any) -> Any:
    """Copy rows on a GPU to the host, make an array of pydata/sparse SciPy's; keep all else."""
    if find_device(values) == "gpu":
        return values.get()
    return _convert_pydata_sparse(_copy_by_library(values))


def convert_to_host(*values: Any) -> Any:
    """Convert as :func:`convert_foreign` does, and copy arrays of CuPy in memory to NumPy.

    For what scikit-learn computes in memory, which takes none of CuPy. Dask collections stay as
    they are.
    """
    if len(values) == 1:
        return copy_to_host(convert_foreign(values[0]))
    return tuple(map(copy_to_host, convert_foreign(*values)))


def as_array_block(values: Any, name: str, index: int | None) -> Any:
    """Return a block of a Dask Array as an array where it is lists, which Dask lets through.

    Texts stay objects: NumPy would make texts of the numbers and gaps among them.
    """
    if not isinstance(values, list | tuple):
        return values
    # Dask lets blocks of an array be lists, for which it has no shape to check.
    array = convert_to_array(values, name, index)
    return np.asarray(values, dtype=object) if array.dtype.kind in "US" else array


def join_blocks(blocks: list[Any]) -> Any:
    """Return the rows of several blocks in one piece of their kind; frames keep their index.

    In host memory, to which blocks on a GPU are copied.
    """
    blocks = [copy_to_host(piece) for piece in blocks]
    if hasattr(blocks[0], "iloc"):
        return load_pandas().concat(blocks)
    if sparse.issparse(blocks[0]):
        return sparse.vstack(blocks, format="csr")
    return np.concatenate(blocks)


def expand_weights(weight: Any, n_rows: int) -> Any:
    """Return a weight for each row of a block: 1 without any, a single number repeated."""
    if weight is None or np.ndim(weight) == 0:
        return np.full(n_rows, 1.0 if weight is None else weight)
    return weight


def take_rows(rows: Any, row_positions: Any) -> Any:
    """Return rows of a block by their positions, of a frame, array, sparse matrix or lists."""
    rows = as_array_block(rows, "X", None)
    return rows.iloc[row_positions] if hasattr(rows, "iloc") else rows[row_positions]


def choose_float_dtype(dtype: Any) -> str:
    """Return the dtype to compute in for rows of a dtype: float32 stays, others become float64."""
    return "float32" if dtype == np.float32 else "float64"


def choose_tensor_dtype(dtype: Any) -> str:
    """Return the dtype that tensors of a dtype keep: their own, which for objects is float64."""
    dtype = np.dtype(dtype)
    return dtype.name if dtype.kind in "biuf" and dtype.itemsize <= 8 else "float64"


def check_numeric_columns(dtypes: Iterable[tuple[Any, Any]]) -> None:
    """Check that the columns of a dataframe are real numbers."""
    # Kinds of NumPy: b(ool), i(nt), u(nsigned), f(loat); pandas' own dtypes have them, too.
    non_numeric = {name: dtype for name, dtype in dtypes if dtype.kind not in "biuf"}
    for dtype in non_numeric.values():
        check_not_complex(dtype, "X")
    if not non_numeric:
        return
    raise InvalidDataError(
        f"Columns {list(non_numeric)} of X are not numeric "
        f"({', '.join(map(str, non_numeric.values()))}). "
        f"{describe_columns_remedy(non_numeric)}"
    )


def check_dimensions(
    X: Any, index: int | None = None, *, tensors: bool = False, unconverted: Any = None
) -> None:
    """Check that X, which has `ndim` and `shape`, has two dimensions; of tensors, at least two.

    `unconverted` is X as the user passed it, by which the remedy goes.
    """
    if X.ndim < 2 or (X.ndim > 2 and not tensors):
        # The length of a Dask Series is a task.
        shape = tuple(n if isinstance(n, Real) else "n_rows" for n in X.shape)
        raise InvalidDataError(
            f"{describe_block(index)}Expected 2D array, got {X.ndim}D array instead: shape "
            f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)}). "
            f"{describe_shape_remedy(X if unconverted is None else unconverted)}"
        )


def check_numeric_dtype(dtype: Any, name: str, index: int | None = None) -> None:
    """Check that a dtype holds real numbers, or objects that may turn out to be."""
    check_not_complex(dtype, name, index)
    if dtype.kind not in "biufO":
        raise InvalidDataError(_describe_not_numeric(dtype, name, index))


def check_not_complex(dtype: Any, name: str, index: int | None = None) -> None:
    """Check that a dtype is not complex."""
    if dtype.kind == "c":
        raise InvalidDataError(
            f"{describe_block(index)}Complex data not supported: {name} is complex. Pass "
            f"{name}.real and {name}.imag instead."
        )


def convert_missing_to_nan(X: Any, *, numbers: bool = True) -> Any:
    """Return rows whose missing values are NaN, as scikit-learn wants them.

    Dask makes Arrow-backed columns of strings, whose missing values are pandas.NA, also in the
    arrays of objects that are made of them. Without `numbers`, a frame's nullable and Arrow columns
    of numbers stay as they are: scikit-learn reads them itself.
    """
    if isinstance(X, np.ndarray) and X.dtype.kind == "O":
        if not any(kind.__name__ == "NAType" for kind in set(map(type, X.ravel().tolist()))):
            return X
        # `pandas.NA` compares with nothing, so its type is looked at; NaN can stay.
        is_na = np.fromiter((_is_pandas_na(value) for value in X.flat), bool, X.size).reshape(
            X.shape
        )
        return np.where(is_na, np.nan, X)
    if not hasattr(X, "dtypes") or not is_dataframe_like(X):
        return X
    check_unique_names(X)
    # scikit-learn reads a frame of sparse columns as a sparse matrix, any other as a dense one.
    X = X if _is_sparse_frame(X) else densify_columns(X)
    changed = {}
    for name, dtype in zip(X.columns, X.dtypes, strict=True):
        # Only nullable and Arrow dtypes hold pandas.NA; NumPy's have NaN already.
        if isinstance(dtype, np.dtype) or not _is_pandas_na(getattr(dtype, "na_value", None)):
            continue
        if dtype.kind in "biuf" and not numbers:
            continue
        column = X[name]
        # Without missing values whole numbers can stay whole; with them only float64 has a NaN.
        if dtype.kind in "biuf" and not column.isna().any():
            changed[name] = column.to_numpy(dtype=dtype.numpy_dtype)
        elif dtype.kind in "biuf":
            changed[name] = column.to_numpy(dtype="float64", na_value=np.nan)
        else:
            changed[name] = column.astype(object).where(column.notna(), np.nan)
    if changed:
        # A shallow copy: columns are replaced in it, and the user's frame keeps its own.
        X = X.copy(deep=False)
        for name, column in changed.items():  # which need be no string, as `assign` wants it
            X[name] = column
    return X


def convert_object_columns(frame: Any) -> Any:
    """Return a dataframe whose columns of objects that are all numbers have a dtype of numbers."""
    objects = [name for name, dtype in frame.dtypes.items() if dtype == np.dtype(object)]
    converted = {name: _convert_object_column(frame[name]) for name in objects}
    changed = {name: column for name, column in converted.items() if column is not None}
    if changed:
        frame = frame.copy(deep=False)
        for name, column in changed.items():
            frame[name] = column
    return frame


def _convert_object_column(column: Any) -> Any:
    """Return a column of objects as one of numbers; None where it holds anything else."""
    # Missing values say nothing of the type.
    present = column.dropna()
    # The types of the values decide, not what they might be parsed to: "1" stays a word.
    types = set(map(type, present))
    if not types or not all(issubclass(value_type, Number | np.bool_) for value_type in types):
        return None
    if any(issubclass(value_type, complex | np.complexfloating) for value_type in types):
        return None
    # Plain inference keeps whole numbers and bools; mixtures and decimals become floats.
    plain = column.infer_objects()
    if isinstance(plain.dtype, np.dtype) and plain.dtype.kind in "biuf":
        return plain
    return column.where(column.notna(), np.nan).astype("float64")


def convert_object_values(values: NDArray[Any]) -> NDArray[Any]:
    """Return objects that are all bools, or all numbers, as such; anything else as it is."""
    if values.dtype.kind != "O" or not len(values):
        return values
    types = set(map(type, values))
    if not all(issubclass(t, (bool, np.bool_, int, float, np.number)) for t in types):
        return values
    # NumPy finds the common dtype of plain Python values.
    plain = np.array(values.tolist())
    # A mixture of bools and numbers stays objects: True and 1 may be two labels.
    are_bools = {issubclass(t, (bool, np.bool_)) for t in types}
    return values if len(are_bools) > 1 or plain.dtype.kind not in "biuf" else plain


def _is_pandas_na(value: Any) -> bool:
    """Return whether a value is pandas.NA, known by its type's name: pandas may not be loaded."""
    return type(value).__name__ == "NAType"


# --- conversions -----------------------------------------------------------------------------


def describe_block(index: int | None) -> str:
    """Return the beginning of an error's message: the block, where its number is known."""
    return "" if index is None else f"Block {index}: "


def _describe_not_numeric(dtype: Any, name: str, index: int | None) -> str:
    """Return the message about a dtype that is no number, with the remedy."""
    remedy = describe_values_remedy(dtype, name)
    return f"{describe_block(index)}{name} is not numeric (dtype {dtype}). {remedy}"


def _check_device_rows(X: Any, index: int | None, tensors: bool) -> Rows:
    """Return rows of CuPy where they lie; raise where this process can use no GPU."""
    if problem := gpu_problem():
        raise DeviceUnavailableError(
            f"{describe_block(index)}X holds CuPy arrays, but no GPU can be used here: {problem} "
            "Give every worker a GPU, or read the rows as NumPy arrays."
        )
    check_dimensions(X, index, tensors=tensors)
    check_numeric_dtype(X.dtype, "X", index)
    if not hasattr(X, "tocsr"):
        return X
    rows = X.tocsr()
    # CuPy's products add up duplicates in place; the user's matrix is left alone.
    return rows if rows.has_canonical_format else rows.copy()


def convert_to_array(values: Any, name: str, index: int | None) -> NDArray[Any]:
    """Return values as an array; raise for rows of several lengths."""
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InvalidDataError(
            f"{describe_block(index)}{name} is not an array: {error}. Pass rows of equal length."
        ) from error


def convert_to_numbers(
    values: NDArray[Any], dtype: DTypeLike, name: str, index: int | None, any_order: bool = False
) -> NDArray[Any]:
    """Make an array real numbers of a dtype; no copy where they are so already.

    C-contiguous, unless `any_order` is asked for. Those on a GPU stay there, in their order.
    """
    check_numeric_dtype(values.dtype, name, index)
    if find_device(values) == "gpu":
        device_values: NDArray[Any] = cast(values, np.dtype(dtype))
        return device_values
    try:
        # What is too large for the dtype becomes infinite, which the finite checks find.
        with np.errstate(over="ignore"):
            make = np.asarray if any_order else np.ascontiguousarray
            return make(convert_missing_to_nan(values), dtype=dtype)
    except ValueError as error:
        raise InvalidDataError(_describe_not_numeric(values.dtype, name, index)) from error
    except TypeError as error:
        raise InvalidTypeError(
            f"{describe_block(index)}{name} holds objects that are not numbers: {error}. Convert "
            "each to a number first."
        ) from error


def check_sparse_structure(X: Any, index: int | None = None, *, entries: bool = True) -> None:
    """Check that a CSR or CSC matrix stores its entries within its shape.

    SciPy leaves this unchecked when a matrix is made, and compiled code reads and writes wherever
    the indices point to. Without `entries` only the bounds of rows (of CSC, of columns) are
    checked, by which matrices are cut.
    """
    if X.format not in ("csr", "csc"):
        return  # SciPy checks the coordinates of the other formats, or converts them safely
    is_csr = X.format == "csr"
    n_lines, length = X.shape if is_csr else X.shape[::-1]
    line, across = ("row", "column") if is_csr else ("column", "row")
    indptr, indices = X.indptr, X.indices
    n_stored = min(len(indices), len(X.data))
    defect = ""
    if len(indptr) != n_lines + 1:
        defect = f"its indptr has {len(indptr)} entries instead of {n_lines + 1}"
    elif indptr[0] != 0 or indptr[-1] > n_stored:
        defect = (
            f"its indptr goes from {indptr[0]} to {indptr[-1]}, but {n_stored} entries are stored"
        )
    elif (indptr[1:] < indptr[:-1]).any():
        position = int(np.argmax(indptr[1:] < indptr[:-1]))
        defect = f"its indptr decreases after {line} {position}"
    elif entries and indptr[-1]:
        # Without a sign, a negative index is larger than any shape: one pass finds both.
        unsigned = indices[: indptr[-1]].view(f"u{indices.dtype.itemsize}")
        if unsigned.max() >= length:
            position = int(np.argmax(unsigned >= length))
            line_number = int(np.searchsorted(indptr, position, side="right")) - 1
            defect = (
                f"{line} {line_number} has an entry in {across} {indices[position]}, "
                f"of {length} {across}s"
            )
    if defect:
        raise InvalidDataError(
            f"{describe_block(index)}X is no valid {X.format.upper()} matrix: {defect}. Pass SciPy "
            "the shape that its entries need, shape=(n_rows, n_features), and call its "
            "check_format() after changing indices or indptr."
        )


def canonicalize_sparse(X: Any, index: int | None = None) -> Any:
    """Return a sparse matrix with one entry for each value, for compiled code that relies on it.

    Anything but a CSR or CSC matrix stays as it is; one with unsorted or repeated entries is
    copied.
    """
    if not sparse.issparse(X) or X.format not in ("csr", "csc"):
        return X
    check_sparse_structure(X, index)
    return _add_up_repeated(X)


def _add_up_repeated(X: Any) -> Any:
    """Return a CSR or CSC matrix with sorted entries, each once; itself if it is one.

    SciPy keeps its own answer when indices are changed (``X.indices = order[X.indices]``), so
    the entries are looked at by a matrix that has none.
    """
    n_stored = int(X.indptr[-1])
    summed = type(X)((X.data[:n_stored], X.indices[:n_stored], X.indptr), shape=X.shape)
    if summed.has_canonical_format:
        return X
    summed = summed.copy()  # the user's matrix is left alone
    summed.sum_duplicates()
    return summed


def _canonicalize_csr(rows: Any, dtype: str, index: int | None) -> Any:
    """Return a CSR matrix without duplicates, with sorted indices of int32 where they fit."""
    check_numeric_dtype(rows.dtype, "X", index)
    rows = _add_up_repeated(rows)
    with np.errstate(over="ignore"):
        rows = rows.astype(dtype, copy=False)
    # Indices of 32 bits halve the memory that a pass over sparse rows reads.
    if rows.indices.dtype != np.int32 and max(rows.nnz, *rows.shape) <= INT32_MAX:
        indices, indptr = rows.indices.astype(np.int32), rows.indptr.astype(np.int32)
        rows = type(rows)((rows.data, indices, indptr), shape=rows.shape)
        rows.has_canonical_format = True
    return rows


def _get_numpy_dtype(dtype: Any) -> Any:
    """Return the NumPy dtype behind a nullable or Arrow dtype of pandas."""
    return getattr(dtype, "numpy_dtype", dtype)


def _convert_frame(
    frame: Any,
    dtype: str | None,
    index: int | None,
    choose_dtype: Callable[[Any], str],
    any_order: bool = False,
) -> NDArray[Any]:
    """Return a pandas frame of numbers as an array; raise for columns that are none."""
    frame = densify_columns(frame)
    frame = convert_object_columns(
        convert_missing_to_nan(frame) if choose_dtype is choose_tensor_dtype else frame
    )
    dtypes = list(frame.dtypes)
    check_numeric_columns(zip(frame.columns, dtypes, strict=True))
    if dtype is None:
        # One dtype for all columns: float32 only where every column is float32.
        column_dtypes = {choose_dtype(_get_numpy_dtype(d)) for d in dtypes} or {"float64"}
        dtype = str(np.result_type(*column_dtypes))
    # pandas joins columns of NumPy dtypes block by block, without a conversion of each; nullable
    # and Arrow columns need the dtype, and a NaN for pandas.NA.
    if all(isinstance(d, np.dtype) for d in dtypes):
        values = frame.to_numpy()
    else:
        values = frame.to_numpy(dtype=dtype, na_value=np.nan)
    return convert_to_numbers(values, dtype, "X", index, any_order)


def _convert_series(series: Any) -> NDArray[Any]:
    """Return a pandas series as an array; missing values of nullable numbers are NaN."""
    series = densify_columns(series)
    dtype = series.dtype
    if isinstance(dtype, np.dtype) or dtype.kind not in "biuf":
        return np.asarray(series)
    if series.hasnans:
        return np.asarray(series.to_numpy(dtype="float64", na_value=np.nan))
    return np.asarray(series.to_numpy(dtype=_get_numpy_dtype(dtype)))


def convert_extension_column(values: Any) -> Any:
    """Return a series of a nullable, Arrow or categorical dtype, or objects that are all numbers.

    As an array of NumPy; all else is unchanged. scikit-learn reads nullable integers as float64,
    where those above 2**53 may become equal, and refuses objects that are numbers.
    """
    if is_series_like(values) and not is_dask(values):
        # A series whose dtype is NumPy's keeps its index, unless its objects are numbers.
        column = convert_object_values(_convert_series(values))
        return values if column.dtype == values.dtype else column
    is_column = isinstance(values, np.ndarray) and values.ndim == 1
    return convert_object_values(values) if is_column else values


def describe_columns_remedy(non_numeric: Mapping[Any, Any]) -> str:
    """Return what to do about columns of a dataframe that are not numeric."""
    names_by_kind: dict[str, list[Any]] = {}
    for name, dtype in non_numeric.items():
        names_by_kind.setdefault(_classify_dtype(dtype), []).append(name)
    return "\n".join(
        _COLUMN_REMEDIES[kind].format(names=names) for kind, names in names_by_kind.items()
    )


def describe_values_remedy(dtype: Any, name: str) -> str:
    """Return what to do about an array, a target or weights that are not numeric."""
    # The remedy goes by the kind of values, then by the argument's role.
    kind = _classify_dtype(dtype)
    if kind == "dates":
        return (
            f"Pass numbers instead of dates, such as the seconds since 1970, {name} = "
            f"{name}.astype('datetime64[s]').astype('int64')."
        )
    if kind == "spans of time":
        return (
            f"Pass numbers instead of time spans, such as seconds: {name}.dt.total_seconds() of "
            f"a Series, {name} / numpy.timedelta64(1, 's') of an array."
        )
    if name == "X":
        first = (
            "Encode it first, for example with daskml_dist.preprocessing.OrdinalEncoder or "
            "OneHotEncoder"
        )
    elif name == "sample_weight":
        first = "Pass one number per row"
    elif name == "y":
        first = "A regressor needs numeric targets: use a classifier for labels"
    else:
        first = "Use a score for labels, such as accuracy_score"
    return f"{first}; if it holds numbers, {name} = {name}.astype('float64')."


def describe_shape_remedy(X: Any) -> str:
    """Return what to do about rows that have not two dimensions."""
    if is_series_like(X):
        column = "X.to_frame()" if X.name is None else f"df[[{X.name!r}]], or X.to_frame()"
        remedy = f"A Series is one column: pass a frame, {column}; for a single row df.iloc[[0]]."
    else:
        remedy = ""
    if _holds_texts(X):
        return (
            f"{remedy} Convert texts to numbers with a vectorizer of "
            "daskml_dist.feature_extraction: make_pipeline(HashingVectorizer(), model). If they "
            "are the labels, pass them after the rows: fit(X, y)."
        ).lstrip()
    if isinstance(X, list | tuple) and X and isinstance(X[0], Mapping):
        return "Make a frame of the dicts: X = pandas.DataFrame(X)."
    if remedy:
        return remedy
    if getattr(X, "ndim", 1) > 2:
        return (
            "Reshape your data: X.reshape(len(X), -1) makes one row of each entry. PyTorch "
            "networks (TorchClassifier) accept such arrays unchanged."
        )
    return (
        "Reshape your data either using array.reshape(-1, 1) if it has a single feature or "
        "array.reshape(1, -1) if it contains a single sample."
    )


def describe_target_column(X: Any, y: Any) -> str:
    """Return what to do where a Series that is the target bears the name of a column of X."""
    name = getattr(y, "name", None)
    if not is_series_like(y) or name is None or name not in getattr(X, "columns", ()):
        return ""
    return (
        f" If column {name!r} is the target, leave it out of X: X.drop(columns={name!r}), or "
        f"fit(X, y={name!r})."
    )


def warn_of_target_column(X: Any, y: Any) -> None:
    """Warn where the target is a column of X, from which a model would read it.

    Of Dask collections by what they are made of: nothing is computed.
    """
    remedy = describe_target_column(X, y)
    if not remedy or is_dask(X) != is_dask(y):
        return
    column = X[y.name]
    if (column._name == y._name) if is_dask(X) else column.equals(y):
        warnings.warn(
            f"Column {y.name!r} of X is the target itself, so the model would just copy "
            f"it.{remedy}",
            UserWarning,
            stacklevel=user_stack_level(),
        )


def _classify_dtype(dtype: Any) -> str:
    """Return which kind of remedy a dtype that is no number has."""
    if str(dtype).startswith("period"):
        return "periods"
    return {"M": "dates", "m": "spans of time"}.get(getattr(dtype, "kind", "O"), "words")


#: What to do about columns of each kind.
_COLUMN_REMEDIES = {
    "dates": (
        "Extract numbers from the dates {names}, such as X[name].dt.hour, .dt.dayofweek or "
        ".dt.dayofyear, or the seconds since one, (X[name] - start).dt.total_seconds(), and "
        "drop the dates."
    ),
    "periods": (
        "Extract numbers from the periods {names}, such as X[name].dt.year or .dt.month, and "
        "drop them."
    ),
    "spans of time": "Convert the time spans {names}: X[name].dt.total_seconds().",
    "words": (
        "Encode or drop them first, for example:\n    from daskml_dist.preprocessing import "
        "OneHotEncoder\n    encode = make_column_transformer((OneHotEncoder(), {names}), "
        "remainder='passthrough')  # of daskml_dist.compose\n    model = make_pipeline(encode, "
        "model).fit(X, y)  # of sklearn.pipeline\nIf they hold numbers, X = X.astype('float64')."
    ),
}


def _holds_texts(X: Any) -> bool:
    """Return whether rows of one dimension are texts, by their dtype or the first of them."""
    if getattr(X, "ndim", 1) != 1:
        return False
    dtype = getattr(X, "dtype", None)
    if dtype is not None and not (isinstance(dtype, np.dtype) and dtype.kind == "O"):
        is_text = str(dtype).startswith(("str", "<U", "|S", "large_string"))
        # Of another library's object, `dtype` may be anything.
        return is_text or getattr(dtype, "kind", None) in ("U", "T")
    first = None
    if isinstance(X, list | tuple | np.ndarray) and len(X):
        first = X[0]
    elif hasattr(X, "iloc") and isinstance(getattr(X, "size", None), int) and X.size:
        first = X.iloc[0]
    return isinstance(first, str | bytes)


def check_class_labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Return distinct labels unchanged; raise if one is missing or continuous."""
    if labels.dtype.kind == "f":
        if not np.isfinite(labels).all():
            raise InvalidDataError("Input y contains NaN or infinity. Drop these rows.")
        if (labels % 1).any():
            raise InvalidDataError(
                "Unknown label type: continuous. Use a regressor for a continuous target."
            )
    return labels


def check_no_missing(values: NDArray[Any], name: str, index: int | None = None) -> None:
    """Check that objects or dates hold no None, NaN, NaT or pandas.NA; numbers are let through."""
    if values.dtype.kind in "mM":
        missing = np.isnat(values)
    elif values.dtype.kind == "O":
        flat = values.ravel()
        missing = np.fromiter(map(_is_missing, flat), dtype=bool, count=len(flat))
        missing = missing.reshape(values.shape)
    else:
        return
    if missing.any():
        row = int(np.argwhere(missing)[0, 0])
        of_block = "" if index is None else " of the block"
        raise InvalidDataError(
            f"{describe_block(index)}Input {name} contains NaN, a missing value (row "
            f"{row}{of_block}). Drop "
            f"such rows first: keep = ~{name}.isna() of a Series, and take [keep] of all inputs."
        )


def _is_missing(value: Any) -> bool:
    """Return whether an object is None, NaN, NaT or pandas.NA."""
    try:
        # NaN and NaT are the values that do not equal themselves.
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA has no truth value
        return True
    except ValueError:  # an array among the values
        return False
