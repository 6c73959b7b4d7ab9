"""Reads of Parquet files, as represented in the tasks of Dask dataframes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: Options of Dask's reader that do not change any number.
_HARMLESS_OPTIONS = {"schema", "convert_string", "dtype_backend"}


def is_parquet_read(function: Any) -> bool:
    """Return whether a task's function reads Parquet, without importing dask.dataframe."""
    return type(function).__name__ == "ParquetFunctionWrapper"


def is_plain_read(read_function: Any, names: Sequence[str]) -> bool:
    """Return whether Dask's reader reads columns of local files without filters or changes."""
    from dask.dataframe.io.parquet.arrow import ArrowDatasetEngine
    from dask.dataframe.io.parquet.core import ParquetFunctionWrapper

    if (
        type(read_function) is not ParquetFunctionWrapper
        or read_function.engine is not ArrowDatasetEngine
    ):
        return False
    options = {
        k: v for k, v in read_function.common_kwargs.items() if v and k not in _HARMLESS_OPTIONS
    }
    if set(options.pop("categories", ())) & set(names):
        return False
    # Options for datasets and files that Dask itself sets: they do not change the content of a
    # file.
    dataset = dict(options.pop("dataset", {}))
    dataset.pop("format", None)
    files = {k: v for k, v in options.pop("read", {}).items() if v}
    usual = dataset in ({}, {"partitioning": "hive"})
    return (
        usual and not files and not options and type(read_function.fs).__name__ == "LocalFileSystem"
    )


def parse_piece(description: Any) -> tuple[str, Sequence[int] | None] | None:
    """Return path and row groups (None: all) of a partition's description; None if unclear."""
    if (
        not isinstance(description, dict)
        or set(description) - {"piece", "kwargs"}
        or description.get("kwargs")
    ):
        return None
    path, groups, keys = (
        description["piece"] if isinstance(description["piece"], tuple) else (None, None, None)
    )
    if not isinstance(path, str) or keys:
        return None
    if groups is None or (isinstance(groups, list | tuple) and all(type(i) is int for i in groups)):
        return path, groups
    return None
