"""Tables in memory of other libraries, as pandas frames or as columns of plain numbers.

Supports Polars, Arrow, and any table that narwhals reads or that exports Arrow's stream of batches.
None of these libraries is a dependency: a table is recognised by the module of its type, and its
library is already imported, since the user made the table with it. Numeric columns keep their dtype
and bits. Decimals become float64, and so do integers with missing values, unless they are too large
for it. Texts become plain Python strings, also from dictionaries or categories.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidDataError

#: Largest integer up to which float64 is exact.
_MAX_EXACT = 2**53
#: Plain numeric types, by Arrow's name and NumPy's.
ARROW_DTYPES = {"float": "f4", "double": "f8", "bool": "?"} | {
    name: name
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}
#: Packages whose objects are read elsewhere, although some of them export Arrow's stream too.
_READ_ELSEWHERE = frozenset({"numpy", "pandas", "scipy", "dask", "xarray", "cupy", "cudf", "torch"})


def find_package(value: Any) -> str:
    """Return the top package of an object's type, without the underscore of a compiled part."""
    return type(value).__module__.partition(".")[0].lstrip("_")


def load_pandas() -> Any:
    """Return pandas, imported only if needed."""
    try:
        import pandas
    except ImportError as error:
        raise InvalidDataError(
            'This needs pandas: pip install "daskml-dist[dataframe]".'
        ) from error
    return pandas


def unwrap_narwhals(value: Any) -> Any:
    """Return the table or column that narwhals wraps; any other value unchanged."""
    while find_package(value) == "narwhals" and hasattr(value, "to_native"):
        value = value.to_native()
    return value


def convert_eager_table(value: Any) -> Any:
    """Return another library's table as a pandas frame, its column as an array, else None."""
    package, kind = find_package(value), type(value).__name__
    if package == "polars":
        if kind == "DataFrame":
            return _convert_polars_frame(value)
        return _extract_polars_column(value) if kind == "Series" else None
    if package == "pyarrow":
        return _convert_arrow(value, kind)
    if package in _READ_ELSEWHERE:
        return None
    if hasattr(value, "__narwhals_dataframe__") or hasattr(value, "__narwhals_series__"):
        return _convert_by_narwhals(value)
    if hasattr(value, "__arrow_c_stream__") and not hasattr(value, "__array__"):
        import pyarrow

        return convert_arrow_table(pyarrow.table(value))
    return None


def convert_whole_table(value: Any) -> Any:
    """Return a table as `convert_eager_table` does, with columns of categories as pandas' own.

    Not for parts of a table: Polars and Arrow number the categories of each part anew.
    """
    frame = convert_eager_table(value)
    if hasattr(frame, "iloc"):
        infer_kind = load_pandas().api.types.infer_dtype
        for name in _find_categorical_columns(value):
            # Texts alone: categories of numbers are read as the numbers.
            if infer_kind(frame[name], skipna=True) == "string":
                frame[name] = frame[name].astype("category")
    return frame


def _find_categorical_columns(table: Any) -> list[Any]:
    """Return the names of the columns of categories: Polars' two kinds, Arrow's dictionaries."""
    if find_package(table) == "polars":
        kinds = ("Categorical", "Enum")
        return [
            name
            for name, dtype in zip(table.columns, table.dtypes, strict=True)
            if type(dtype).__name__ in kinds or str(dtype).startswith(kinds)
        ]
    schema = getattr(table, "schema", None)
    if find_package(table) != "pyarrow" or schema is None:
        return []
    import pyarrow

    return [field.name for field in schema if pyarrow.types.is_dictionary(field.type)]


def extract_plain_columns(table: Any, names: Sequence[str]) -> dict[str, NDArray[Any]] | None:
    """Return columns of a Polars frame or an Arrow table as arrays, without a frame in between.

    None if a column is not plain numbers, or if a value is missing, which NumPy's integers cannot
    express.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name in names:
        if find_package(table) == "polars":
            column = table.get_column(name)
            is_number = column.dtype.is_numeric() or str(column.dtype) == "Boolean"
            if column.null_count() or not is_number:
                return None
            array = column.to_numpy()
        else:
            column = table.column(name)
            if column.null_count or str(column.type) not in ARROW_DTYPES:
                return None
            array = column.to_numpy(zero_copy_only=False)
        # 128-bit integers and half floats are left to pandas' conversion.
        if array.dtype.kind not in "biuf" or array.dtype.itemsize not in (1, 2, 4, 8):
            return None
        if array.dtype.kind == "f" and array.dtype.itemsize < 4:
            return None
        arrays[name] = array
    return arrays


# --- Polars ----------------------------------------------------------------------------------


def _convert_polars_frame(frame: Any) -> Any:
    """Return a Polars frame as a pandas frame; Polars' own conversion needs pyarrow."""
    pandas = load_pandas()
    columns = {
        name: _extract_polars_column(frame.get_column(name), keeps_integers=True)
        for name in frame.columns
    }
    return pandas.DataFrame(columns, index=pandas.RangeIndex(frame.height))


def _extract_polars_column(series: Any, keeps_integers: bool = False) -> Any:
    """Return the values of a Polars column; integers with missing values become float64 and NaN.

    With `keeps_integers`, integers too large for float64 become nullable pandas integers.
    """
    # Decimals would become objects, whose sums are no floats; NumPy has no 128-bit numbers.
    if series.dtype.is_decimal() or str(series.dtype) in ("Int128", "UInt128"):
        import polars

        series = series.cast(polars.Float64)
    if keeps_integers and series.dtype.is_integer() and series.null_count():
        filled = series.fill_null(0).to_numpy()
        if _are_beyond_floats(filled.min(), filled.max()):
            return load_pandas().arrays.IntegerArray(filled.copy(), series.is_null().to_numpy())
    values: NDArray[Any] = series.to_numpy()
    if values.ndim == 1 and values.dtype.names is None:
        return values
    # Fixed-length arrays, and structs: each cell is one object, as for lists.
    cells = np.empty(len(values), dtype=object)
    for row, cell in enumerate(series.to_list()):
        cells[row] = cell
    return cells


def _are_beyond_floats(minimum: Any, maximum: Any) -> bool:
    """Return whether integers in a range are too large for float64."""
    return int(minimum) < -_MAX_EXACT or int(maximum) > _MAX_EXACT


# --- Arrow -----------------------------------------------------------------------------------


def _convert_arrow(value: Any, kind: str) -> Any:
    """Return an Arrow table or batch as a frame, an Arrow column as an array, else None."""
    if kind in ("Table", "RecordBatch"):
        return convert_arrow_table(value)
    if hasattr(value, "null_count") and hasattr(value, "to_numpy"):
        import pyarrow

        return convert_arrow_table(pyarrow.table({"values": value}))["values"].to_numpy()
    return None


def convert_arrow_table(table: Any) -> Any:
    """Return an Arrow table or batch as a pandas frame; restore an index stored by pandas."""
    load_pandas()
    import pyarrow

    table = pyarrow.table(table) if hasattr(table, "__arrow_c_stream__") else table
    fields = [field.with_type(_find_plain_type(field.type)) for field in table.schema]
    plain = pyarrow.schema(fields, metadata=table.schema.metadata)
    table = table if plain.equals(table.schema) else table.cast(plain)
    frame = table.to_pandas()
    for name, column in _find_large_columns(table):
        if name in frame.columns:
            frame[name] = column
    return frame


def _find_large_columns(table: Any) -> list[tuple[str, Any]]:
    """Return, as nullable, integer columns with missing values that float64 cannot hold."""
    import pyarrow
    import pyarrow.compute as pc

    large_columns = []
    for field, column in zip(table.schema, table.columns, strict=True):
        n_present = len(column) - column.null_count
        if not (pyarrow.types.is_integer(field.type) and column.null_count and n_present):
            continue
        ends = pc.min_max(column).as_py()
        if _are_beyond_floats(ends["min"], ends["max"]):
            filled = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).copy()
            mask = pc.is_null(column).to_numpy(zero_copy_only=False).copy()
            large_columns.append((field.name, load_pandas().arrays.IntegerArray(filled, mask)))
    return large_columns


def _find_plain_type(type_: Any) -> Any:
    """Return the type that columns of a type are read as: floats for decimals, plain values."""
    import pyarrow

    if pyarrow.types.is_decimal(type_):
        return pyarrow.float64()
    # Each batch may have a different dictionary, so codes of two batches cannot be compared.
    return _find_plain_type(type_.value_type) if pyarrow.types.is_dictionary(type_) else type_


# --- narwhals --------------------------------------------------------------------------------


def _convert_by_narwhals(value: Any) -> Any:
    """Return a table or column of a library that only narwhals reads, as a pandas one."""
    try:
        import narwhals
    except ImportError as error:
        raise InvalidDataError(
            f"A {type(value).__module__}.{type(value).__name__} needs narwhals to be read: pip "
            "install narwhals, or pass a pandas frame."
        ) from error
    table = narwhals.from_native(value, eager_only=True, allow_series=True)
    # A numeric column keeps its dtype in NumPy; any table is converted through Arrow.
    is_column = isinstance(table, narwhals.Series)
    return np.asarray(table.to_numpy()) if is_column else convert_arrow_table(table.to_arrow())
