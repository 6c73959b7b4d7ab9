"""Lazy tables outside of Dask: Polars' queries, DuckDB's relations, datasets of pyarrow.

Two kinds of tables are read part by part: row groups of a dataset's files, and row ranges of a
Polars query that pushes ranges down into its scan. Each worker then opens the files itself. Any
other query (a filter, a join, a sum by groups) is run once by its own library, with its
optimisations, into a Parquet file of this process (:mod:`daskml_dist.data.batch_files`): computing
a part of its result would mean running it from the start, and two runs may order rows differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from daskml_dist.data.batch_files import RowsFolder
from daskml_dist.data.eager_tables import convert_eager_table, find_package, load_pandas
from daskml_dist.data.table_frames import (
    PART_BYTES,
    TableSource,
    count_part_rows,
    make_frame,
    split_rows,
)
from daskml_dist.errors import DaskMLDistError, InvalidDataError

#: Name of the file with a query's result.
_RESULT_NAME = "rows.parquet"


def convert_lazy_table(value: Any) -> Any:
    """Return a lazy table of another library as a Dask dataframe; None if it is no such table."""
    open_ = _OPENERS.get((find_package(value), type(value).__name__))
    if open_ is None:
        return None
    with _explain_errors(value):
        return open_(value)


def find_lazy_names(value: Any) -> list[str] | None:
    """Return the column names of a lazy table, without reading rows; None for anything else."""
    names = _NAMES.get((find_package(value), type(value).__name__))
    if names is None:
        return None
    with _explain_errors(value):
        return list(names(value))


@contextmanager
def _explain_errors(table: Any) -> Iterator[None]:
    """Raise errors of a lazy table's library as errors of the package."""
    try:
        yield
    except DaskMLDistError:
        raise
    except Exception as error:  # of any of these libraries
        package = find_package(table)
        raise InvalidDataError(
            f"The {package}.{type(table).__name__} could not be read: {error!r}. {_TRIALS[package]}"
        ) from error


# --- Polars ----------------------------------------------------------------------------------


class _PolarsScan(TableSource):
    """Row ranges of a query that scans files."""

    def __init__(self, query: Any, n_rows: int) -> None:
        self.query = query
        self.parts = split_rows(n_rows, len(query.collect_schema()))
        self.row_counts = [n for _, n in self.parts]

    def read_empty(self) -> Any:
        """Return a Polars frame without rows."""
        return self.query.collect_schema().to_frame()

    def read_part(self, part: Any, columns: list[str]) -> Any:
        """Return columns of a range of rows; Polars reads no other rows."""
        import polars

        first, n_rows = part
        try:
            rows = self.query.slice(first, n_rows).select(columns).collect()
        except (polars.exceptions.PolarsError, OSError) as error:
            reason: Any = error
        else:
            if rows.height == n_rows:
                return rows
            reason = f"there are {rows.height}"
        raise InvalidDataError(
            f"Rows {first} to {first + n_rows} of the Polars scan could not be read: {reason}. If "
            "its files have changed since it was opened, call scan_parquet(...) again, and pass "
            "the result."
        )


def _open_polars(query: Any) -> Any:
    """Return a Polars query as a Dask dataframe."""
    import polars

    if _reads_ranges(query):
        n_rows = query.select(polars.len()).collect().item()
        return make_frame(_PolarsScan(query, n_rows))
    rows = count_part_rows(len(query.collect_schema()))
    return _open_result(lambda path: query.sink_parquet(path, row_group_size=rows))


def _reads_ranges(query: Any) -> bool:
    """Return whether Polars pushes a row range into the only file scan of a query.

    Then each range can be read independently, and always has the same rows: the query only selects
    columns and applies row-wise functions; it does not filter, join, sort or sample.
    """
    # The plan as text is the only form that Polars documents. Any unknown line means that the query
    # must be run as a whole: that is slower, but never wrong.
    lines = [line.strip() for line in query.slice(1, 1).explain().splitlines()]
    scans = [line for line in lines if line.startswith(_RANGED_SCANS)]
    other_lines = [
        line for line in lines if not line.startswith((*_RANGED_SCANS, *_ROW_WISE_LINES))
    ]
    is_pushed = any(line.startswith("SLICE: ") for line in lines)
    return len(scans) == 1 and is_pushed and not other_lines


#: Scans that find a range of rows without reading all rows before it, as text files require.
_RANGED_SCANS = ("Parquet SCAN [", "Ipc SCAN [")
#: Beginnings of plan lines that belong to a scan, or to row-wise functions.
_ROW_WISE_LINES = (
    "ESTIMATED ROWS", "PROJECT", "ROW_INDEX", "SELECT [", "SLICE: ", "WITH_COLUMNS:", "[",
    "simple",
)  # fmt: skip


# --- DuckDB ----------------------------------------------------------------------------------


def _open_duckdb(relation: Any) -> Any:
    """Return a DuckDB relation as a Dask dataframe of its result.

    The connection of a relation belongs to this process, so workers cannot run it.
    """
    rows = count_part_rows(len(relation.columns))
    return _open_result(lambda path: relation.write_parquet(path, row_group_size=rows))


# --- Arrow -----------------------------------------------------------------------------------


class _ArrowFragments(TableSource):
    """Files of a dataset, or row groups of them.

    Parameters
    ----------
    dataset : pyarrow.dataset.Dataset
    folder : RowsFolder or None
        Keeps temporary files of this process from being deleted.
    """

    def __init__(self, dataset: Any, folder: RowsFolder | None = None) -> None:
        self.schema, self.folder = dataset.schema, folder
        self.columns = _find_columns(dataset.schema)
        counted_parts = [
            part for fragment in dataset.get_fragments() for part in _split_fragment(fragment)
        ]
        self.parts: list[Any] = [part for part, _ in counted_parts]
        counts = [n for _, n in counted_parts if n is not None]
        self.row_counts = counts if len(counts) == len(counted_parts) else None

    def read_empty(self) -> Any:
        """Return an Arrow table without rows."""
        return self.schema.empty_table().select(self.columns).replace_schema_metadata(None)

    def read_part(self, part: Any, columns: list[str]) -> Any:
        """Return columns of a file or of some row groups."""
        fragment, groups = part
        try:
            # The subset is made here because a pickled subset orders its row groups by a hash
            # table.
            rows = fragment if groups is None else fragment.subset(row_group_ids=list(groups))
            # Dask has a thread for each part being read: Arrow's own threads would be too many.
            table = rows.to_table(schema=self.schema, columns=columns, use_threads=False)
        except FileNotFoundError as error:
            if self.folder is None:
                raise
            raise self.folder.make_missing_error() from error
        return table.replace_schema_metadata(None)


def _find_columns(schema: Any) -> list[str]:
    """Return the columns of a schema, except an index stored by pandas."""
    index = (schema.pandas_metadata or {}).get("index_columns", ())
    # A RangeIndex is described by a dict, and is not a column.
    dropped = {name for name in index if isinstance(name, str)}
    return [name for name in schema.names if name not in dropped]


def _split_fragment(fragment: Any) -> list[tuple[tuple[Any, tuple[int, ...] | None], int | None]]:
    """Return parts of a file small enough to be read at once, with row counts if known.

    A part is the file and some of its row groups; None means the whole file, if it has no row
    groups.
    """
    if not hasattr(fragment, "row_groups"):
        return [((fragment, None), None)]
    parts: list[tuple[tuple[Any, tuple[int, ...] | None], int | None]] = []
    open_: list[Any] = []

    def close() -> None:
        """Turn the collected row groups into a part."""
        ids = tuple(group.id for group in open_)
        parts.append(((fragment, ids), sum(group.num_rows for group in open_)))

    for group in fragment.row_groups:
        if open_ and sum(row_group.total_byte_size for row_group in [*open_, group]) > PART_BYTES:
            close()
            open_ = []
        open_.append(group)
    if open_:
        close()
    return parts


def _open_arrow(dataset: Any) -> Any:
    """Return a pyarrow dataset as a Dask dataframe; one in memory as a pandas frame."""
    if type(dataset).__name__ == "InMemoryDataset":
        return convert_eager_table(dataset.to_table())
    try:
        source = _ArrowFragments(dataset)
    except ValueError:
        # pyarrow does not list the files of a filtered dataset.
        return _open_batches(dataset.schema, dataset.to_batches)
    if not source.parts:
        raise InvalidDataError(
            "The pyarrow dataset holds 0 sample(s): no file has rows. Check its path."
        )
    return make_frame(source)


def _open_scanner(scanner: Any) -> Any:
    """Return the rows of a pyarrow scanner, which can be read only once, as a Dask dataframe."""
    return _open_batches(scanner.projected_schema, scanner.to_batches)


def _open_batches(schema: Any, read_batches: Callable[[], Iterable[Any]]) -> Any:
    """Return Arrow batches as a Dask dataframe of their rows."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    part_rows = count_part_rows(len(schema.names))

    def write(path: str) -> None:
        with ParquetWriter(path, schema, compression="lz4") as writer:
            waiting: list[Any] = []
            n_rows = 0
            for batch in read_batches():
                waiting.append(batch)
                n_rows += batch.num_rows
                # Small batches, for example after a filter, share a row group.
                if n_rows >= part_rows:
                    writer.write_table(pyarrow.Table.from_batches(waiting, schema), part_rows)
                    waiting, n_rows = [], 0
            if n_rows:
                writer.write_table(pyarrow.Table.from_batches(waiting, schema), part_rows)

    return _open_result(write)


def _open_result(run: Callable[[str], Any]) -> Any:
    """Return a query's result, which `run` writes to a Parquet file, as a Dask dataframe."""
    load_pandas()
    from pyarrow.dataset import dataset

    folder = RowsFolder()
    path = str(Path(folder.path) / _RESULT_NAME)
    run(path)
    source = _ArrowFragments(dataset(path, format="parquet"), folder)
    if not source.parts:
        raise InvalidDataError(
            "The query gives 0 sample(s), while a minimum of 1 is required. Check its filter."
        )
    return make_frame(source)


#: Cheap operation that checks whether a lazy table can be read, by package.
_TRIALS = {
    "polars": "Check that query.head().collect() returns rows.",
    "duckdb": "Check that relation.limit(1).fetchall() returns rows, and that its connection is "
    "open.",
    "pyarrow": "Check that dataset.head(1) returns rows.",
}
#: Functions that open lazy tables, by package and class.
_OPENERS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("polars", "LazyFrame"): _open_polars,
    ("duckdb", "DuckDBPyRelation"): _open_duckdb,
    ("pyarrow", "FileSystemDataset"): _open_arrow,
    ("pyarrow", "UnionDataset"): _open_arrow,
    ("pyarrow", "InMemoryDataset"): _open_arrow,
    ("pyarrow", "Scanner"): _open_scanner,
}
_NAMES: dict[tuple[str, str], Callable[[Any], Iterable[str]]] = {
    ("polars", "LazyFrame"): lambda query: query.collect_schema().names(),
    ("duckdb", "DuckDBPyRelation"): lambda relation: relation.columns,
    **{
        ("pyarrow", kind): lambda dataset: _find_columns(dataset.schema)
        for kind in ("FileSystemDataset", "UnionDataset", "InMemoryDataset")
    },
    ("pyarrow", "Scanner"): lambda scanner: _find_columns(scanner.projected_schema),
}
