"""Rows of a cross-validation: aligned blocks, their codes, and the rows of one side of a split."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import dask.array as da
import numpy as np
from dask.base import persist
from dask.delayed import Delayed, delayed
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.data.block_errors import make_unread_error
from daskml_dist.data.blocks import check_length
from daskml_dist.data.collection import Collection, as_collection
from daskml_dist.data.conversion import take_rows
from daskml_dist.data.lazy import is_dask, is_dask_frame
from daskml_dist.data.reduce import PassGenerator, ReductionPass, reduce_parts
from daskml_dist.errors import InvalidDataError
from daskml_dist.model_selection._codes import Thinned
from daskml_dist.model_selection._roles import (
    TEST,
    TRAIN,
    FoldAssignment,
    FoldCodes,
    Ints,
    Order,
    ThinnedRoles,
)

__all__ = [
    "RowsOfSplits",
    "TrainedRows",
    "count_rows",
    "count_trained",
    "joined_rows",
    "label_counts",
    "n_rows_of",
    "thinned",
]


@dataclass(frozen=True, eq=False)
class RowsOfSplits:
    """Inputs of a Dask collection, with a code a row.

    Parameters
    ----------
    inputs : tuple
        Aligned inputs, as the user gave them; None where one is absent.
    columns : Collection
        X, and what codes are made of (labels, groups), if anything.
    codes : FoldCodes
    roles : FoldAssignment
    """

    inputs: tuple[Any, ...]
    columns: Collection
    codes: FoldCodes
    roles: FoldAssignment

    def of_rows(self, X: Any, roles: FoldAssignment) -> RowsOfSplits:
        """The same rows with other features, block by block, and other roles."""
        blocks = as_collection(X, numeric=False, any_shape=True).parts
        parts = [
            (block[0], *part[1:]) for block, part in zip(blocks, self.columns.parts, strict=True)
        ]
        columns = replace(self.columns, parts=parts)
        return replace(self, inputs=(X, *self.inputs[1:]), columns=columns, roles=roles)

    def persisted(self) -> RowsOfSplits:
        """Return the same rows, kept by the cluster for as long as the result lives."""
        blocks = [self._pieces(v) if is_dask(v) else [] for v in self.inputs]
        columns = [part[1] for part in self.columns.parts]
        # In one call, so that blocks of the same rows are made of one reading.
        kept = iter(persist(*(p for pieces in (*blocks, columns) for p in pieces)))
        found = [[next(kept) for _ in pieces] for pieces in (*blocks, columns)]
        sizes = None if self.columns.row_counts is None else count_rows(self.columns)
        inputs = tuple(
            _joined_lazily(value, pieces, sizes) if pieces else value
            for value, pieces in zip(self.inputs, found[:-1], strict=True)
        )
        parts = [
            (X, column, *part[2:])
            for X, column, part in zip(found[0], found[-1], self.columns.parts, strict=True)
        ]
        return replace(self, inputs=inputs, columns=replace(self.columns, parts=parts))

    @cached_property
    def code_parts(self) -> list[Delayed]:
        """Codes of each block, lazy; the same for all sides of all splits."""
        make = delayed(partial(_codes_of, self.codes), pure=False)
        return [make(i, X, column) for i, (X, column, _) in enumerate(self.columns.parts)]

    def coded(self, value: Any) -> list[tuple[Any, Any]]:
        """Return the blocks of an input, each with the codes of its rows."""
        return list(zip(self._pieces(value), self.code_parts, strict=True))

    def side(self, split: int, role: int) -> tuple[Any, ...]:
        """The rows that play a role in a split, of every input, lazy."""
        codes = self.code_parts
        sizes = self.codes.sizes(self.roles, split, role)
        return tuple(
            None
            if value is None
            else _taken(value, self._pieces(value), codes, self.roles, split, role, sizes)
            for value in self.inputs
        )

    def gathered(self, split: int) -> Delayed:
        """Both sides of a split as one task's result: ((X, y, ...), (X, y, ...)) in memory."""
        pieces = [None if value is None else self._pieces(value) for value in self.inputs]
        gather = delayed(partial(_gathered, self.roles, split), pure=False)
        both: Delayed = gather(pieces, self.code_parts)
        return both

    def unread(self, error: Exception) -> InvalidDataError:
        """Error of rows that could not be gathered: it names the block."""
        pieces = [self._pieces(value) for value in self.inputs if value is not None]
        return make_unread_error(zip(*pieces, strict=True), error)

    def mask(self, split: int, role: int) -> Any:
        """Rows that play a role in a split: lazy bool, chunked as X is.

        A series beside a frame of known divisions; where these are unknown Dask would match rows
        by a shuffle of the index.
        """
        frame = self.inputs[0]
        if is_dask_frame(frame) and frame.known_divisions:
            if frame.npartitions == len(self.columns.parts):
                return self._mask_of_frame(split, role)
        one = delayed(partial(_mask, self.roles, split, role), pure=False)
        counts: list[Any] = self.columns.row_counts or [np.nan] * len(self.columns.parts)
        parts = [
            da.from_delayed(one(codes), (n,), dtype=bool)
            for codes, n in zip(self.code_parts, counts, strict=True)
        ]
        return da.concatenate(parts)

    def _mask_of_frame(self, split: int, role: int) -> Any:
        import dask.dataframe as dd

        frame = self.inputs[0]
        one = delayed(partial(_indexed_mask, self.roles, split, role), pure=False)
        parts = [
            one(codes, part[0])
            for codes, part in zip(self.code_parts, self.columns.parts, strict=True)
        ]
        meta = _indexed(np.zeros(0, bool), frame._meta)
        return dd.from_delayed(parts, meta=meta, divisions=frame.divisions, verify_meta=False)

    def _pieces(self, value: Any) -> list[Any]:
        """Pieces of an input, cut as the codes are."""
        X = self.inputs[0]
        if value is X:
            return [part[0] for part in self.columns.parts]
        options = {"numeric": False, "multi_output": True, "any_shape": True}
        return [part[1] for part in as_collection(X, value, **options).parts]


def _taken(
    value: Any,
    pieces: list[Any],
    codes: list[Delayed],
    roles: FoldAssignment,
    split: int,
    role: int,
    sizes: Ints | None,
) -> Any:
    """Rows of an input that play a role, of its kind."""
    take = delayed(partial(_take, roles, split, role), pure=False)
    taken = [take(piece, code) for piece, code in zip(pieces, codes, strict=True)]
    return _joined_lazily(value, taken, sizes)


def _joined_lazily(value: Any, taken: list[Any], sizes: Ints | None) -> Any:
    """Return a collection of the kind of `value`, of delayed blocks of known or unknown sizes."""
    if is_dask_frame(value):
        import dask.dataframe as dd

        return dd.from_delayed(taken, meta=value._meta, verify_meta=False)
    if is_dataframe_like(value) or is_series_like(value):
        import dask.dataframe as dd

        return dd.from_delayed(taken, meta=value.iloc[:0], verify_meta=False)
    if is_dask(value) and not isinstance(value, da.Array):
        return taken  # of a list of delayed blocks, whose shape nobody knows
    array = value if hasattr(value, "shape") else np.asarray(value)
    meta = array._meta if isinstance(array, da.Array) else array[:0]
    shape = (np.nan, *array.shape[1:])
    joined = da.concatenate(
        [da.from_delayed(part, shape, dtype=array.dtype, meta=meta) for part in taken]
    )
    if sizes is not None:
        # As compute_chunk_sizes does; concatenate would drop blocks that it knows to be empty.
        joined._chunks = (tuple(sizes.tolist()), *joined.chunks[1:])
    return joined


def n_rows_of(part: Any) -> int:
    """Rows of a block."""
    return int(part.shape[0]) if hasattr(part, "shape") else len(part)


def _codes_of(codes: FoldCodes, index: int, X: Any, column: Any) -> Ints:
    if column is not None:
        check_length(n_rows_of(X), column, "y", index)
    return codes.of(index, column, n_rows_of(X))


def _mask(roles: FoldAssignment, split: int, role: int, codes: Ints) -> NDArray[np.bool_]:
    return np.asarray(roles.played(codes, split) == role)


def _indexed_mask(roles: FoldAssignment, split: int, role: int, codes: Ints, rows: Any) -> Any:
    return _indexed(_mask(roles, split, role, codes), rows)


def _indexed(mask: NDArray[np.bool_], rows: Any) -> Any:
    import pandas

    return pandas.Series(mask, index=rows.index)


def _take(roles: FoldAssignment, split: int, role: int, rows: Any, codes: Ints) -> Any:
    at = np.flatnonzero(roles.played(codes, split) == role)
    return take_rows(rows, at)


def _gathered(
    roles: FoldAssignment, split: int, inputs: list[Any], codes: list[Ints]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    train, test = (
        tuple(
            None if pieces is None else joined_rows(
                [_take(roles, split, role, rows, code)
                 for rows, code in zip(pieces, codes, strict=True)]
            )
            for pieces in inputs
        )
        for role in (TRAIN, TEST)
    )  # fmt: skip
    return train, test


def joined_rows(pieces: list[Any]) -> Any:
    """Rows of several blocks, in one piece of their kind."""
    if hasattr(pieces[0], "iloc"):
        import pandas

        return pandas.concat(pieces)
    if sparse.issparse(pieces[0]):
        return sparse.vstack(pieces, format="csr")
    return np.concatenate(pieces)


# --- what splitters must know of all rows -----------------------------------------------------


def count_rows(columns: Collection) -> Ints:
    """Rows of each block; one pass where Dask does not know."""
    if columns.row_counts is not None:
        return np.array(columns.row_counts, np.int64)
    found: list[int] = reduce_parts(columns, _count, _joined)
    return np.array(found, np.int64)


def label_counts(columns: Collection, first_seen: bool) -> tuple[NDArray[Any], Ints]:
    """Labels, and how many rows of each block have each; one pass.

    Labels come in the order in which rows show them, or sorted; of shape (n_labels,) and
    (n_blocks, n_labels).
    """
    found = reduce_parts(columns, _count_labels, _joined)
    if first_seen:
        order = dict.fromkeys(value for block in found for value in block)
        labels = np.array(list(order))
    else:
        labels = np.unique([value for block in found for value in block])
    counts = np.array([[block.get(value, 0) for value in labels.tolist()] for block in found])
    return labels, counts.astype(np.int64)


@dataclass(frozen=True, eq=False)
class TrainedRows:
    """Training rows of each split.

    Parameters
    ----------
    labels : ndarray of shape (n_labels,), or None
        Sorted; None where targets are numbers.
    weights : ndarray of float64 of shape (n_splits, n_labels) or (n_splits, 1)
        How many of them have each label.
    """

    labels: NDArray[Any] | None
    weights: NDArray[np.float64]


def count_trained(
    kind: Literal["memory", "dask"],
    parts: list[tuple[Any, Any]],
    roles: FoldAssignment,
    classification: bool,
) -> PassGenerator[TrainedRows]:
    """Count the training rows of each split in one pass over blocks of targets and codes."""
    blocks = Collection(kind, [(*part, None) for part in parts], None, None, None)
    count = partial(_count_trained, roles, classification)
    (found,) = yield [ReductionPass(blocks, count, _add_by_label)]
    labels = np.unique(list(found)) if classification else None
    names = [None] if labels is None else labels.tolist()
    # A missing label is equal to none, and refused where blocks are made.
    none = np.zeros(roles.n_splits)
    return TrainedRows(labels, np.stack([found.get(name, none) for name in names], axis=1))


def _count_trained(
    roles: FoldAssignment, classification: bool, index: int, y: Any, codes: Ints, weight: None
) -> dict[Any, NDArray[np.float64]]:
    """Return by label how many rows each split trains on."""
    trained = np.asarray(roles.times(roles.every(codes), TRAIN), np.float64)
    if not classification:
        return {None: trained.sum(axis=0)}
    labels, places = np.unique(np.asarray(y), return_inverse=True)
    counts = [np.bincount(places.ravel(), of_split, len(labels)) for of_split in trained.T]
    return dict(zip(labels.tolist(), np.stack(counts, axis=1), strict=True))


def _add_by_label(
    found: list[dict[Any, NDArray[np.float64]]],
) -> dict[Any, NDArray[np.float64]]:
    total: dict[Any, NDArray[np.float64]] = {}
    for counts in found:
        for label, n_rows in counts.items():
            total[label] = total.get(label, 0) + n_rows
    return total


def _count(index: int, X: Any, column: Any, weight: Any) -> list[int]:
    return [n_rows_of(X)]


def _count_labels(index: int, X: Any, column: Any, weight: Any) -> list[dict[Any, int]]:
    values, first, counts = np.unique(np.asarray(column), return_index=True, return_counts=True)
    return [
        {
            values[i].item() if hasattr(values[i], "item") else values[i]: int(counts[i])
            for i in np.argsort(first)
        }
    ]


def _joined(parts: list[list[Any]]) -> list[Any]:
    return [value for part in parts for value in part]


def thinned(rows: RowsOfSplits, fraction: float, seed: int) -> RowsOfSplits:
    """The same splits of a share of the rows, drawn in each block."""
    counts = count_rows(rows.columns)
    first = counts.cumsum() - counts
    codes = Thinned(rows.codes, Order(first, seed), fraction)
    return replace(rows, codes=codes, roles=ThinnedRoles(rows.roles))
