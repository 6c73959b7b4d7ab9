"""Tables of other libraries as Dask dataframes, each of whose tasks reads a part independently.

A :class:`TableSource` lists the parts of a table, and reads columns of a part. The frame that
:func:`make_frame` makes of it is an ordinary one: Dask pushes the needed columns into the reads,
blocks can be streamed, and a lost block is read again. If all columns are plain numbers, blocks are
filled from the table's own memory, without a pandas frame in between (`data/parquet.py`).
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any

import dask

from daskml_dist.dask_internals.expressions import find_read_function
from daskml_dist.data.eager_tables import convert_eager_table, load_pandas

#: Bytes of a part, at 8 per value: large enough that reads are few, small enough that several fit
#: in the memory of a laptop.
PART_BYTES = 1 << 25
#: Minimum rows of a part, so that very wide tables are not read row by row.
_MIN_PART_ROWS = 1 << 10


class TableSource(ABC):
    """Table that is read part by part; picklable, since tasks contain it.

    Attributes
    ----------
    parts : list
        Arguments of :meth:`read_part`; each small.
    row_counts : list of int, or None
        Rows of each part; None if they are unknown before reading.
    """

    parts: list[Any]
    row_counts: list[int] | None

    @abstractmethod
    def read_empty(self) -> Any:
        """Return a table in memory with all columns and no rows."""

    @abstractmethod
    def read_part(self, part: Any, columns: list[str]) -> Any:
        """Return columns of a part, as a table in memory of any library."""


class TableRead:
    """Callable, used in tasks, that reads a part.

    Parameters
    ----------
    source : TableSource
    """

    def __init__(self, source: TableSource) -> None:
        self.source = source
        self._token = uuid.uuid4().hex

    def __dask_tokenize__(self) -> str:
        # A table may have changed when it is read again, so no two reads get the same token.
        return self._token

    def __call__(self, part: Any, columns: list[str]) -> Any:
        """Return columns of a part as a pandas frame."""
        table = self.source.read_part(part, list(columns))
        frame = convert_eager_table(table)
        return table if frame is None else frame


def make_frame(source: TableSource) -> Any:
    """Return a Dask dataframe with a partition for each part of a table."""
    load_pandas()
    import dask.dataframe as dd

    empty = source.read_empty()
    meta = convert_eager_table(empty)
    # Texts keep the type that the table's library gives them: Dask would convert each part again.
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_map(
            TableRead(source), source.parts, meta=empty if meta is None else meta, label="table"
        )


def find_row_counts(frame: Any) -> list[int] | None:
    """Return the rows of each partition of a Dask dataframe of whole parts, if known.

    Also for columns selected from such a frame; None for anything else.
    """
    read = find_read_function(frame)
    return list(read.source.row_counts) if _knows_rows(read) else None


def _knows_rows(reader: Any) -> bool:
    """Return whether a function reads parts whose row counts are known."""
    return isinstance(reader, TableRead) and reader.source.row_counts is not None


def count_part_rows(n_columns: int) -> int:
    """Return the target number of rows of a part of a table."""
    return max(_MIN_PART_ROWS, PART_BYTES // (8 * max(n_columns, 1)))


def split_rows(n_rows: int, n_columns: int) -> list[tuple[int, int]]:
    """Return the first row and the number of rows of each part of a table, split evenly."""
    n_parts = max(1, -(-n_rows // count_part_rows(n_columns)))
    bounds = [n_rows * part // n_parts for part in range(n_parts + 1)]
    return [(a, b - a) for a, b in pairwise(bounds)]
