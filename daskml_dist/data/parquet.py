"""Columns of Parquet files and of other tables, read straight into rows.

Dask's own way copies a file's bytes through Python, then Arrow's columns into a frame, and the
frame into rows. `read_columns` finds reads in a graph that are understood whole (columns of plain
numbers, of a local file, none of them filtered, or of a `TableRead`), and has the columns written
into rows as they are decoded, a few thousand rows at a time, while a cache holds them. Everything
else, down to a single missing integer, is read as Dask does it; so a block is the same either way.
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
#: Columns to be made rows of, or a single one.
WantedColumns = tuple[str, ...] | str


@dataclass(frozen=True, eq=False)
class ColumnRead:
    """Read of one partition of a table, as rows and columns of numbers.

    Parameters
    ----------
    read : callable
        Dask's own, which takes a partition's description and returns a frame, or a `TableRead`.
    wanted : tuple of (tuple of str, or str)
        Columns to be made rows of, and single columns.
    """

    read: Any
    wanted: tuple[WantedColumns, ...]

    def __call__(self, part: Any) -> list[Any]:
        """Return an array for each wanted item, or parts of a frame if not numbers."""
        if isinstance(self.read, TableRead):
            return self._read_table(part)
        if is_plain_read(self.read, self._names) and (found := self._arrays(part)) is not None:
            return found
        frame = self.read(part)
        return [frame[one if isinstance(one, str) else list(one)] for one in self.wanted]

    @property
    def _names(self) -> list[str]:
        """Return the names of all columns to read."""
        return [name for one in self.wanted for name in ([one] if isinstance(one, str) else one)]

    def _read_table(self, part: Any) -> list[Any]:
        """Return an array for each wanted item of a table, or a part of a frame if not numbers."""
        table = self.read.source.read_part(part, list(dict.fromkeys(self._names)))
        made: list[Any] = []
        for one in self.wanted:
            names = [one] if isinstance(one, str) else list(one)
            # Labels may be words beside rows of numbers, which then need no frame.
            columns = None if hasattr(table, "iloc") else extract_plain_columns(table, names)
            if columns is not None:
                made.append(_fill_array(one, columns))
                continue
            frame = table if hasattr(table, "iloc") else convert_eager_table(table.select(names))
            made.append(frame[one if isinstance(one, str) else names])
        return made

    def _arrays(self, part: Any) -> list[NDArray[Any]] | None:
        """Return an array for each wanted item; None where Dask must read the partition."""
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile

        pieces = [parse_piece(one) for one in (part if isinstance(part, list) else [part])]
        try:
            files = [p and (ParquetFile(p[0], pre_buffer=False), p[1]) for p in pieces]
            return self._read(files)
        except (OSError, pa.ArrowException):
            return None  # Dask's own way names the trouble

    def _read(self, files: Sequence[Any]) -> list[NDArray[Any]] | None:
        """Return an array for each wanted item, filled by batches; None where Dask must read."""
        if None in files:
            return None
        names = list(dict.fromkeys(self._names))
        # All files of the partition must hold the same plain numbers, or Dask reads it.
        dtypes, *others = [_find_dtypes(file.schema_arrow, names) for file, _ in files]
        if dtypes is None or any(one != dtypes for one in others):
            return None
        # A partition may be some of a file's row groups.
        files = [(f, range(f.num_row_groups) if of is None else of) for f, of in files]
        n_rows = sum(file.metadata.row_group(i).num_rows for file, of in files for i in of)
        filled = _ArrayFiller(self.wanted, dtypes, n_rows)
        for file, of in files:
            for batch in file.iter_batches(_ROWS_PER_BATCH, list(of), names, use_threads=False):
                # A missing integer has no number in NumPy: Dask reads the whole partition then.
                if (columns := extract_plain_columns(batch, names)) is None:
                    return None
                if not filled.add(columns):
                    return None
        return filled.arrays if filled.n_rows == n_rows else None


def _fill_array(wanted: WantedColumns, columns: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return whole columns as one array of rows, or a single one as it is."""
    if isinstance(wanted, str):
        return columns[wanted]
    n_rows = len(columns[wanted[0]])
    filled = _ArrayFiller((wanted,), {name: one.dtype for name, one in columns.items()}, n_rows)
    # A few rows at a time, so that a column is in the cache when it is written across.
    for first in range(0, n_rows, _ROWS_PER_BATCH):
        rows = slice(first, first + _ROWS_PER_BATCH)
        filled.add({name: column[rows] for name, column in columns.items()})
    return filled.arrays[0]


class _ArrayFiller:
    """Arrays that batches of columns fill, one after the other."""

    def __init__(
        self, wanted: tuple[WantedColumns, ...], dtypes: Mapping[str, Any], n_rows: int
    ) -> None:
        self._wanted = wanted
        self.n_rows = 0
        self.arrays: list[NDArray[Any]] = []
        for one in wanted:
            if isinstance(one, str):
                self.arrays.append(np.empty(n_rows, dtypes[one]))
            else:
                dtype = np.result_type(*{choose_float_dtype(dtypes[name]) for name in one})
                self.arrays.append(np.empty((n_rows, len(one)), dtype))

    def add(self, columns: Mapping[str, NDArray[Any]]) -> bool:
        """Fill the next rows; False where there are too many."""
        n_rows = len(next(iter(columns.values())))
        first, stop = self.n_rows, self.n_rows + n_rows
        if any(stop > len(array) for array in self.arrays):
            return False
        for one, array in zip(self._wanted, self.arrays, strict=True):
            if isinstance(one, str):
                array[first:stop] = columns[one]
            else:
                # A copy in order, then one across: several times faster than one of each column.
                beside = np.empty((len(one), n_rows), array.dtype)
                for row, name in zip(beside, one, strict=True):
                    row[:] = columns[name]
                array[first:stop] = beside.T
        self.n_rows = stop
        return True


def _find_dtypes(schema: Any, names: Sequence[str]) -> dict[str, Any] | None:
    """Return the dtype of each column; None unless each is there once and holds plain numbers."""
    found = {}
    for name in names:
        if len(schema.get_all_field_indices(name)) != 1:
            return None
        dtype = ARROW_DTYPES.get(str(schema.field(name).type))
        if dtype is None:
            return None
        found[name] = np.dtype(dtype)
    return found


#: References from one task to the next that are followed at most, so that a circle ends.
_MAX_ALIASES = 8
_Parts = list[tuple[Any, Any, Any]]


def read_columns(parts: _Parts) -> _Parts:
    """Read what is columns of Parquet, and no more, without a frame between file and rows.

    The tasks have keys of their own, since their results are not what Dask would make.
    """
    name = f"columns-{uuid.uuid4().hex}"
    found = [
        [_find_column_read(piece, place) for place, piece in enumerate(part)] for part in parts
    ]
    graph: dict[Any, Any] = {}
    for i, reads in enumerate(found):
        graph.update(_build_read_tasks(name, i, reads))
    if not graph:
        return parts
    layers = HighLevelGraph.from_collections(name, graph, dependencies=())
    made: Any = [
        tuple(
            piece if read is None else Delayed((name, i, place), layers, layer=name)
            for place, (piece, read) in enumerate(zip(part, reads, strict=True))
        )
        for i, (part, reads) in enumerate(zip(parts, found, strict=True))
    ]
    return cast(_Parts, made)


def _build_read_tasks(
    name: str, block: int, reads: Sequence[tuple[Task, WantedColumns] | None]
) -> dict[Any, Any]:
    """Return tasks that make the pieces of a block; columns that they share are read once."""
    shared: dict[Any, list[int]] = {}
    # Pieces of one task (X, y and weights of one file) share a read of all their columns.
    for place, read in enumerate(reads):
        if read is not None:
            shared.setdefault(read[0].key, []).append(place)
    tasks: dict[Any, Any] = {}
    for at, places in enumerate(shared.values()):
        some = [read for place in places if (read := reads[place]) is not None]
        key, task = (name, block, "read", at), some[0][0]
        read_all = ColumnRead(task.func, tuple(wanted for _, wanted in some))
        tasks[key] = Task(key, read_all, *task.args)
        for i, place in enumerate(places):
            own = (name, block, place)
            tasks[own] = Task(own, operator.getitem, TaskRef(key), i)
    return tasks


def _find_column_read(piece: Any, place: int) -> tuple[Task, WantedColumns] | None:
    """Return the task that reads a piece from a table, and its columns; None for others."""
    if not isinstance(piece, Delayed) or len(piece.dask.layers) != 1:
        return None
    layer: Any = next(iter(piece.dask.layers.values()))
    task, taken = _resolve_reference(layer, layer.get(piece.key)), []
    # A piece is the read itself, or selections of columns (df[names], df[name]) on top of it.
    while isinstance(task, Task) and task.func is operator.getitem and len(task.args) == 2:
        taken.append(task.args[1])
        # A read of one column as a series holds the task of its frame, and no reference to it.
        inner = task.args[0]
        task = inner if isinstance(inner, Task) else _resolve_reference(layer, inner)
    if not isinstance(task, Task) or len(task.args) != 1:
        return None
    read: Any = task.func
    if isinstance(read, TableRead):
        # Dask has pushed the columns that are needed into the call.
        columns = task.kwargs.get("columns")
    elif is_parquet_read(read) and not task.kwargs:
        columns = read.columns
    else:
        return None
    # Selections were found from the last to the first.
    wanted = _find_wanted_columns(columns, taken[::-1])
    # Rows of one column are a frame's; a target or a weight that is one keeps its dtype.
    return None if wanted is None or isinstance(wanted, str) == (place == 0) else (task, wanted)


def _resolve_reference(layer: dict[Any, Any], task: Any) -> Any:
    """Return the task behind references; None where they lead nowhere, or in a circle."""
    for _ in range(_MAX_ALIASES):
        if not isinstance(task, TaskRef | Alias):
            return task
        task = layer.get(task.key if isinstance(task, TaskRef) else _get_key(task.target))
    return None


def _get_key(target: Any) -> Any:
    """Return the key that a task refers to."""
    return target.key if isinstance(target, TaskRef) else target


def _find_wanted_columns(columns: Any, taken: list[Any]) -> WantedColumns | None:
    """Return the columns that are left after repeated selections; None where it is not clear."""
    left: Any = columns
    for names in [columns, *taken]:
        if isinstance(left, str):
            return None
        if isinstance(names, list) and all(isinstance(one, str) for one in names):
            left = tuple(names)
        elif isinstance(names, str):
            left = names
        else:
            return None
    several = not isinstance(left, str)
    # Columns that are selected twice are left to pandas.
    return None if several and len(set(left)) < len(left) else left
