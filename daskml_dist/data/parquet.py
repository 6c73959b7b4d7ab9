"""Columns of Parquet files and of other tables, read directly into row arrays.

Dask copies a file's bytes through Python, then Arrow's columns into a frame, and the frame into
rows. `read_columns` finds the reads in a graph that it fully understands (unfiltered plain numeric
columns of a local file, or of a `TableRead`), and decodes their columns directly into rows, some
thousand rows at a time, so that they stay in the cache. Everything else, even a single missing
integer, is read by Dask; so a block is the same either way.
"""

from __future__ import annotations

import operator
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from daskml_dist.dask_internals.parquet_reads import is_parquet_read, is_plain_read, parse_piece
from daskml_dist.dask_internals.task_graphs import Alias, Task, TaskRef
from daskml_dist.data.conversion import choose_float_dtype
from daskml_dist.data.eager_tables import (
    ARROW_DTYPES,
    convert_eager_table,
    extract_plain_columns,
)
from daskml_dist.data.table_frames import TableRead

#: Rows decoded together: a few megabytes of columns.
_ROWS_PER_BATCH = 1 << 16
#: Columns that form an array of rows, or a single column.
WantedColumns = tuple[str, ...] | str


@dataclass(frozen=True, eq=False)
class ColumnRead:
    """Read of one partition of a table, as arrays of rows and single columns.

    Parameters
    ----------
    read_partition : callable
        Dask's own function, which maps a partition's description to a frame, or a `TableRead`.
    column_groups : tuple of (tuple of str, or str)
        Columns that form arrays of rows, and single columns.
    """

    read_partition: Any
    column_groups: tuple[WantedColumns, ...]

    def __call__(self, part: Any) -> list[Any]:
        """Return an array for each wanted item, or parts of a frame if they are not numeric."""
        if isinstance(self.read_partition, TableRead):
            return self._read_table(part)
        if (
            is_plain_read(self.read_partition, self._names)
            and (arrays := self._read_arrays(part)) is not None
        ):
            return arrays
        frame = self.read_partition(part)
        return [
            frame[columns if isinstance(columns, str) else list(columns)]
            for columns in self.column_groups
        ]

    @property
    def _names(self) -> list[str]:
        """Return the names of all columns to read."""
        return [
            name
            for columns in self.column_groups
            for name in ([columns] if isinstance(columns, str) else columns)
        ]

    def _read_table(self, part: Any) -> list[Any]:
        """Return an array for each wanted item of a table, or part of a frame if not numeric."""
        table = self.read_partition.source.read_part(part, list(dict.fromkeys(self._names)))
        items: list[Any] = []
        for item in self.column_groups:
            names = [item] if isinstance(item, str) else list(item)
            # Labels beside numeric rows may be words; the rows then still need no frame.
            columns = None if hasattr(table, "iloc") else extract_plain_columns(table, names)
            if columns is not None:
                items.append(_fill_array(item, columns))
                continue
            frame = table if hasattr(table, "iloc") else convert_eager_table(table.select(names))
            items.append(frame[item if isinstance(item, str) else names])
        return items

    def _read_arrays(self, part: Any) -> list[NDArray[Any]] | None:
        """Return an array for each wanted item; None if Dask must read the partition."""
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile

        pieces = [parse_piece(piece) for piece in (part if isinstance(part, list) else [part])]
        try:
            files = [p and (ParquetFile(p[0], pre_buffer=False), p[1]) for p in pieces]
            return self._read_files(files)
        except (OSError, pa.ArrowException):
            return None  # Dask's reader reports the problem

    def _read_files(self, files: Sequence[Any]) -> list[NDArray[Any]] | None:
        """Return an array for each wanted item, filled by batches; None if Dask must read."""
        if None in files:
            return None
        names = list(dict.fromkeys(self._names))
        # All files of the partition must hold the same plain numbers; otherwise Dask reads it.
        dtypes, *other_dtypes = [_find_dtypes(file.schema_arrow, names) for file, _ in files]
        if dtypes is None or any(file_dtypes != dtypes for file_dtypes in other_dtypes):
            return None
        # A partition may be a subset of a file's row groups.
        files = [
            (f, range(f.num_row_groups) if row_groups is None else row_groups)
            for f, row_groups in files
        ]
        n_rows = sum(
            file.metadata.row_group(i).num_rows for file, row_groups in files for i in row_groups
        )
        filler = _ArrayFiller(self.column_groups, dtypes, n_rows)
        for file, row_groups in files:
            for batch in file.iter_batches(
                _ROWS_PER_BATCH, list(row_groups), names, use_threads=False
            ):
                # NumPy's integers cannot express a missing value: then Dask reads the whole
                # partition.
                if (columns := extract_plain_columns(batch, names)) is None:
                    return None
                if not filler.add(columns):
                    return None
        return filler.arrays if filler.n_rows == n_rows else None


def _fill_array(column_group: WantedColumns, columns: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return whole columns as one array of rows, or a single column unchanged."""
    if isinstance(column_group, str):
        return columns[column_group]
    n_rows = len(columns[column_group[0]])
    filler = _ArrayFiller(
        (column_group,),
        {name: column_array.dtype for name, column_array in columns.items()},
        n_rows,
    )
    # A few rows at a time, so that a column is still in the cache when it is transposed.
    for first in range(0, n_rows, _ROWS_PER_BATCH):
        rows = slice(first, first + _ROWS_PER_BATCH)
        filler.add({name: column[rows] for name, column in columns.items()})
    return filler.arrays[0]


class _ArrayFiller:
    """Arrays that are filled batch by batch."""

    def __init__(
        self, column_groups: tuple[WantedColumns, ...], dtypes: Mapping[str, Any], n_rows: int
    ) -> None:
        self._column_groups = column_groups
        self.n_rows = 0
        self.arrays: list[NDArray[Any]] = []
        for item in column_groups:
            if isinstance(item, str):
                self.arrays.append(np.empty(n_rows, dtypes[item]))
            else:
                dtype = np.result_type(*{choose_float_dtype(dtypes[name]) for name in item})
                self.arrays.append(np.empty((n_rows, len(item)), dtype))

    def add(self, columns: Mapping[str, NDArray[Any]]) -> bool:
        """Fill the next rows; return False if there are too many."""
        n_rows = len(next(iter(columns.values())))
        first, stop = self.n_rows, self.n_rows + n_rows
        if any(stop > len(array) for array in self.arrays):
            return False
        for item, array in zip(self._column_groups, self.arrays, strict=True):
            if isinstance(item, str):
                array[first:stop] = columns[item]
            else:
                # A contiguous copy, then one transposition: several times faster than copying each
                # column.
                transposed = np.empty((len(item), n_rows), array.dtype)
                for row, name in zip(transposed, item, strict=True):
                    row[:] = columns[name]
                array[first:stop] = transposed.T
        self.n_rows = stop
        return True


def _find_dtypes(schema: Any, names: Sequence[str]) -> dict[str, Any] | None:
    """Return the dtype of each column; None unless each occurs once and holds plain numbers."""
    dtypes = {}
    for name in names:
        if len(schema.get_all_field_indices(name)) != 1:
            return None
        dtype = ARROW_DTYPES.get(str(schema.field(name).type))
        if dtype is None:
            return None
        dtypes[name] = np.dtype(dtype)
    return dtypes


#: Maximum number of references followed from task to task, so that a cycle ends.
_MAX_ALIASES = 8
_TableParts = list[tuple[Any, Any, Any]]


def read_columns(parts: _TableParts) -> _TableParts:
    """Replace reads of plain Parquet columns by direct ones, without a frame in between.

    The new tasks get new keys, since their results differ from Dask's.
    """
    name = f"columns-{uuid.uuid4().hex}"
    reads_by_part = [
        [_find_column_read(piece, place) for place, piece in enumerate(part)] for part in parts
    ]
    graph: dict[Any, Any] = {}
    for i, reads in enumerate(reads_by_part):
        graph.update(_build_read_tasks(name, i, reads))
    if not graph:
        return parts
    layers = HighLevelGraph.from_collections(name, graph, dependencies=())
    new_parts: Any = [
        tuple(
            piece if read is None else Delayed((name, i, place), layers, layer=name)
            for place, (piece, read) in enumerate(zip(part, reads, strict=True))
        )
        for i, (part, reads) in enumerate(zip(parts, reads_by_part, strict=True))
    ]
    return cast(_TableParts, new_parts)


def _build_read_tasks(
    name: str, block: int, reads: Sequence[tuple[Task, WantedColumns] | None]
) -> dict[Any, Any]:
    """Return tasks that make the pieces of a block; shared columns are read once."""
    shared: dict[Any, list[int]] = {}
    # Pieces read by one task (X, y and weights of one file) share a read of all their columns.
    for place, read in enumerate(reads):
        if read is not None:
            shared.setdefault(read[0].key, []).append(place)
    tasks: dict[Any, Any] = {}
    for number, places in enumerate(shared.values()):
        shared_reads = [read for place in places if (read := reads[place]) is not None]
        key, task = (name, block, "read", number), shared_reads[0][0]
        read_all = ColumnRead(task.func, tuple(columns for _, columns in shared_reads))
        tasks[key] = Task(key, read_all, *task.args)
        for i, place in enumerate(places):
            piece_key = (name, block, place)
            tasks[piece_key] = Task(piece_key, operator.getitem, TaskRef(key), i)
    return tasks


def _find_column_read(lazy_value: Any, position: int) -> tuple[Task, WantedColumns] | None:
    """Return the task that reads a piece from a table, and its columns; None if unknown."""
    if not isinstance(lazy_value, Delayed) or len(lazy_value.dask.layers) != 1:
        return None
    layer: Any = next(iter(lazy_value.dask.layers.values()))
    task, selections = _resolve_reference(layer, layer.get(lazy_value.key)), []
    # A piece is the read itself, or selections of columns (df[names], df[name]) on top of it.
    while isinstance(task, Task) and task.func is operator.getitem and len(task.args) == 2:
        selections.append(task.args[1])
        # A read of one column as a series contains the task of its frame, not a reference to it.
        inner = task.args[0]
        task = inner if isinstance(inner, Task) else _resolve_reference(layer, inner)
    if not isinstance(task, Task) or len(task.args) != 1:
        return None
    read: Any = task.func
    if isinstance(read, TableRead):
        # Dask has pushed the needed columns into the call.
        columns = task.kwargs.get("columns")
    elif is_parquet_read(read) and not task.kwargs:
        columns = read.columns
    else:
        return None
    # Selections were collected from the last to the first.
    wanted_columns = _find_wanted_columns(columns, selections[::-1])
    # X of one column is a frame, and stays two-dimensional; a target or weight is a series.
    return (
        None
        if wanted_columns is None or isinstance(wanted_columns, str) == (position == 0)
        else (task, wanted_columns)
    )


def _resolve_reference(layer: dict[Any, Any], task: Any) -> Any:
    """Return the task behind references; None if they end nowhere, or in a cycle."""
    for _ in range(_MAX_ALIASES):
        if not isinstance(task, TaskRef | Alias):
            return task
        task = layer.get(task.key if isinstance(task, TaskRef) else _get_key(task.target))
    return None


def _get_key(target: Any) -> Any:
    """Return the key that a reference points to."""
    return target.key if isinstance(target, TaskRef) else target


def _find_wanted_columns(columns: Any, selections: list[Any]) -> WantedColumns | None:
    """Return the columns left after repeated selections; None if unclear."""
    remaining: Any = columns
    for names in [columns, *selections]:
        if isinstance(remaining, str):
            return None
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            remaining = tuple(names)
        elif isinstance(names, str):
            remaining = names
        else:
            return None
    is_frame = not isinstance(remaining, str)
    # Columns that are selected twice are left to pandas.
    return None if is_frame and len(set(remaining)) < len(remaining) else remaining
