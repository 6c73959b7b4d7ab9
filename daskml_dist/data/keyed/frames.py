"""From a frame, or a sparse matrix, to a `KeyedCollection`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed
from dask.utils import is_dataframe_like
from numpy.typing import NDArray

from daskml_dist.data.keyed.collection import KeyedCollection
from daskml_dist.data.keyed.cut import Numbered, number_part
from daskml_dist.data.keyed.ids import as_ids
from daskml_dist.data.lazy import is_dask_frame
from daskml_dist.data.lowering import frame_pieces
from daskml_dist.errors import InvalidDataError
from daskml_dist.solvers.keyed import Side

__all__ = ["Alone", "Columns", "checked_values", "entries_of_frame", "entries_of_matrix"]


@dataclass(frozen=True, eq=False)
class Alone:
    """Keys that there are, whether they have entries or not."""

    ids: NDArray[Any]

    def __len__(self) -> int:
        return 0


@dataclass(frozen=True)
class Columns:
    """Columns of a frame of entries.

    Parameters
    ----------
    first, second : str
        Of the keys.
    value : str or None
        None: all values are 1.
    least : float or None
        Of the values; None: any finite number.
    shared : bool
        Whether both keys are of one space.
    """

    first: Any
    second: Any
    value: Any = None
    least: float | None = None
    shared: bool = False

    def __call__(self, part: Any) -> Numbered:
        """Number a part of the frame, or keys without entries."""
        if isinstance(part, Alone):
            numbered = number_part(part.ids, part.ids[:0], None, shared=True)
            empty = np.empty(0, np.int32)
            none = None if self.value is None else np.empty(0, np.float32)
            return Numbered(numbered.ids, (empty, empty), none)
        first, second = (as_ids(part[name], str(name)) for name in (self.first, self.second))
        values = None
        if self.value is not None:
            values = checked_values(part[self.value], str(self.value), self.least)
        return number_part(first, second, values, self.shared)


def checked_values(values: Any, name: str, least: float | None) -> NDArray[np.float64]:
    """Values of entries as numbers.

    Raises
    ------
    InvalidDataError
        One is no finite number, or is less than allowed.
    """
    try:
        given = np.asarray(values)
        if given.dtype.kind in "cmM":
            raise TypeError(f"they are of the type {given.dtype}")
        found = given.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidDataError(
            f"Column {name!r} holds what is no number ({error}). Give numbers: "
            f"frame[{name!r}].astype(float); drop rows with missing values."
        ) from error
    if not np.isfinite(found).all():
        wrong = int((~np.isfinite(found)).sum())
        raise InvalidDataError(
            f"Column {name!r} holds NaN or infinity ({wrong} of {len(found)} rows). Drop such "
            f"rows: frame.dropna(subset=[{name!r}])."
        )
    if least is not None and len(found) and found.min() < least:
        raise InvalidDataError(
            f"Column {name!r} holds {found.min():g}, and must be at least {least:g}. Drop such "
            "rows, or shift or clip them."
        )
    return found


def entries_of_frame(
    frame: Any, columns: Columns, sides: Sequence[Side], more: NDArray[Any] | None = None
) -> KeyedCollection:
    """Entries of a pandas or Dask dataframe.

    Parameters
    ----------
    frame : pandas.DataFrame or dask DataFrame
    columns : Columns
    sides : sequence of Side
    more : ndarray, optional
        Keys, of both columns' one space, that there are besides.

    Raises
    ------
    InvalidDataError
        It is no frame, lacks a column or has no rows.
    """
    if not is_dataframe_like(frame):
        raise InvalidDataError(
            f"{type(frame).__name__} is no frame. Give a pandas or Dask dataframe with a row "
            f"for each entry: columns {columns.first!r} and {columns.second!r}."
        )
    names = [name for name in (columns.first, columns.second, columns.value) if name is not None]
    if missing := [name for name in names if name not in frame.columns]:
        raise InvalidDataError(
            f"The frame has no column {' and '.join(map(repr, missing))}; it has "
            f"{list(frame.columns)}. Name the columns that hold the keys and the value."
        )
    alone = [] if more is None else [Alone(more)]
    if is_dask_frame(frame):
        sources = [*frame_pieces(frame[names]), *(delayed(part, pure=False) for part in alone)]
        return KeyedCollection.of("dask", sources, columns, sides)
    if not len(frame) and not alone:
        raise InvalidDataError("The frame has no rows. Look at the file or the filter it is from.")
    return KeyedCollection.of("memory", [frame[names], *alone], columns, sides)


@dataclass(frozen=True)
class _Cells:
    """Stored cells of some rows of a sparse matrix: keys are positions."""

    shape: tuple[int, int]
    least: float | None

    def __call__(self, part: tuple[int, Any]) -> Numbered:
        start, matrix = part
        _check_sparse(matrix)
        cells = matrix.tocoo()
        values = checked_values(cells.data, "value", self.least)
        rows, columns = (cells.row + start).astype(np.int64), cells.col.astype(np.int64)
        return number_part(rows, columns, values, shared=False)


def entries_of_matrix(
    matrix: Any, sides: Sequence[Side], least: float | None = None
) -> KeyedCollection:
    """Stored cells of a scipy.sparse matrix, or of a dask Array with such chunks.

    Keys are positions of rows and columns, of those that have a cell.

    Raises
    ------
    InvalidDataError
        It is neither; or Dask does not know its chunks.
    """
    if isinstance(matrix, da.Array):
        if matrix.ndim != 2 or np.isnan(matrix.chunks[0]).any():
            raise InvalidDataError(
                "The rows of a dask Array of unknown chunk sizes have no numbers. Call "
                "compute_chunk_sizes() first."
            )
        whole = matrix.rechunk({1: -1}) if matrix.numblocks[1] > 1 else matrix
        starts = np.cumsum([0, *whole.chunks[0][:-1]]).tolist()
        pair = delayed(_pair, pure=False)
        chunks = whole.to_delayed().ravel().tolist()
        sources = [pair(start, chunk) for start, chunk in zip(starts, chunks, strict=True)]
        return KeyedCollection.of("dask", sources, _Cells(matrix.shape, least), sides)
    _check_sparse(matrix)
    return KeyedCollection.of("memory", [(0, matrix)], _Cells(matrix.shape, least), sides)


def _check_sparse(matrix: Any) -> None:
    if not hasattr(matrix, "tocoo"):
        raise InvalidDataError(
            f"{type(matrix).__name__} is neither a frame nor a sparse matrix. Give a pandas or "
            "Dask dataframe, scipy.sparse, or a dask Array with chunks of scipy.sparse, such as "
            "X.map_blocks(scipy.sparse.csr_matrix)."
        )


def _pair(start: int, chunk: Any) -> tuple[int, Any]:
    return start, chunk
