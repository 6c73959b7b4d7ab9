"""Folds of rows: a code a row, its meaning in each split, and the rows of one side of a split.

No row is copied to cut it. A splitter's plan is a maker of codes (`FoldCodes`, from the place, the
label or the group of a row) and a table of roles (`FoldAssignment`: trained on, tested, neither).
`RowsOfSplits` makes the codes block by block, and takes the rows of a side lazily.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, ClassVar, Literal

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
from daskml_dist.data.reduce import PassGenerator, ReductionPass, concatenate_lists, reduce_parts
from daskml_dist.errors import InvalidDataError
from daskml_dist.models.batched import NEITHER, TEST, TRAIN, FoldAssignment

__all__ = [
    "NEITHER",
    "TEST",
    "TRAIN",
    "DigitRoles",
    "FoldAssignment",
    "FoldCodes",
    "FoldsByGroup",
    "FoldsByPlace",
    "FoldsByRange",
    "GivenCodes",
    "Ints",
    "RowOrder",
    "RowsOfSplits",
    "SpreadSplits",
    "TableRoles",
    "ThinnedCodes",
    "TrainedRows",
    "count_labels",
    "count_rows",
    "count_rows_of_block",
    "count_training_rows",
    "join_blocks",
    "thin_rows",
]


Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TableRoles(FoldAssignment):
    """Roles by a table.

    Parameters
    ----------
    table : ndarray of int8 of shape (n_codes, n_splits)
    """

    table: NDArray[np.int8]

    @property
    def n_splits(self) -> int:  # type: ignore[override]
        """Return the number of splits."""
        return int(self.table.shape[1])

    @classmethod
    def from_folds(cls, n_splits: int) -> TableRoles:
        """Return the roles of folds, each of which is held out once and else trained on."""
        table = np.full((n_splits, n_splits), TRAIN, np.int8)
        np.fill_diagonal(table, TEST)
        return cls(table)

    def played(self, codes: Ints, split: int) -> NDArray[np.int8]:
        """Return the role of each code in a split."""
        played: NDArray[np.int8] = self.table[codes, split]
        return played


@dataclass(frozen=True, eq=False)
class DigitRoles(FoldAssignment):
    """Roles as the digits of a code to the base of three, for splits independent of each other.

    Parameters
    ----------
    n_splits : int
        At most :attr:`most`.
    """

    n_splits: int
    #: Splits whose roles a float64 holds: 3**33 < 2**53.
    most: ClassVar[int] = 33

    def played(self, codes: Ints, split: int) -> NDArray[np.int8]:
        """Return the role of each code in a split."""
        played: NDArray[np.int8] = (codes // 3**split % 3).astype(np.int8)
        return played

    def encode(self, roles: list[NDArray[np.int8]]) -> Ints:
        """Return the codes of rows that play these roles in the splits."""
        total = np.zeros(len(roles[0]), np.int64)
        for split, played in enumerate(roles):
            total += played.astype(np.int64) * 3**split
        return total


@dataclass(frozen=True, eq=False)
class _ThinnedRoles(FoldAssignment):
    """Roles of codes that are counted from 1; the code 0 has no role in any split.

    Parameters
    ----------
    each : FoldAssignment
    """

    each: FoldAssignment

    @property
    def n_splits(self) -> int:  # type: ignore[override]
        """Return the number of splits."""
        return self.each.n_splits

    def played(self, codes: Ints, split: int) -> NDArray[np.int8]:
        """Return the role of each code in a split."""
        played = self.each.played(np.maximum(codes - 1, 0), split)
        return np.where(codes > 0, played, np.int8(NEITHER))


@dataclass(frozen=True, eq=False)
class RowOrder:
    """Places of the rows of a block among all rows: each of 0 to n - 1 is that of one row.

    Parameters
    ----------
    first : ndarray of int64 of shape (n_blocks,)
        Place of the first row of each block.
    seed : int or None
        Shuffles the rows of each block; None: rows keep their order.
    labels : ndarray or None
        Orders rows by their labels first, in this order of them; None: labels do not matter.
    first_of : ndarray of int64 of shape (n_blocks, n_labels), or None
        Place of each block's first row of each label.
    """

    first: Ints
    seed: int | None = None
    labels: NDArray[Any] | None = None
    first_of: Ints | None = None

    def find_places(self, index: int, column: Any, n_rows: int, more: int = 0) -> Ints:
        """Return the places of a block's rows; `more` names another shuffle of the same seed."""
        at = np.arange(n_rows)
        if self.seed is not None:
            at = np.random.default_rng((self.seed, more, index)).permutation(n_rows)
        if self.labels is None or self.first_of is None:
            return np.asarray(self.first[index] + at, np.int64)
        # Rows of a label follow each other: the place is that of the block's first row of this
        # label, plus the row's rank among the block's rows of it.
        code = _encode_labels(self.labels, column)
        found = np.empty(n_rows, np.int64)
        by_label = np.lexsort((at, code))
        counts = np.bincount(code, minlength=len(self.labels))
        rank = np.arange(n_rows) - np.repeat(counts.cumsum() - counts, counts)
        found[by_label] = self.first_of[index][code[by_label]] + rank
        return found

    def find_block_ranges(self, n_rows: int) -> tuple[Ints, Ints]:
        """Return the ranges of places that each block's rows have, of `n_rows` in all.

        Starts and stops of shape (n_blocks, n_labels); without labels of shape (n_blocks, 1).
        """
        starts = self.first[:, np.newaxis] if self.first_of is None else self.first_of
        # Label after label, and in each of them block after block, the ranges follow each other.
        stops = np.append(starts.T.ravel()[1:], n_rows).reshape(starts.T.shape).T
        return starts, stops


def _encode_labels(labels: NDArray[Any], column: Any) -> Ints:
    """Return the position of each row's label among `labels`, which need not be sorted."""
    order = np.argsort(labels)
    codes: Ints = order[np.searchsorted(labels, np.asarray(column), sorter=order)]
    return codes


class FoldCodes(ABC):
    """Maker of the codes of a block's rows. Picklable."""

    @abstractmethod
    def make(self, index: int, column: Any, n_rows: int) -> Ints:
        """Return the codes; `column` holds the labels or groups of the rows, if there are any."""

    def count_roles(self, roles: FoldAssignment, split: int, role: int) -> Ints | None:
        """Return how many rows of each block play a role; None where only the rows tell."""
        return None


def _spread_roles(places: Ints, n: int, n_test: int, n_train: int) -> NDArray[np.int8]:
    """Return the roles of places, `n_test` held out and `n_train` trained on, evenly spread."""
    # As Bresenham's line: a place is held out where the running quotient takes a step.
    before = places * n_test // n
    held = (places + 1) * n_test // n > before
    left, rest = places - before, n - n_test
    # (left + 1) * n_train may be of the next row where this one is held out; it is not asked.
    taken = (left + 1) * n_train // max(rest, 1) > left * n_train // max(rest, 1)
    roles = np.where(taken, TRAIN, NEITHER)
    return np.where(held, TEST, roles).astype(np.int8)


@dataclass(frozen=True, eq=False)
class FoldsByPlace(FoldCodes):
    """Folds dealt out by the places of rows.

    Parameters
    ----------
    order : RowOrder
    n_folds : int
    """

    order: RowOrder
    n_folds: int

    def make(self, index: int, column: Any, n_rows: int) -> Ints:
        """Return the codes of a block's rows."""
        return self.order.find_places(index, column, n_rows) % self.n_folds


@dataclass(frozen=True, eq=False)
class FoldsByRange(FoldCodes):
    """Ranges of places, numbered again and again.

    Parameters
    ----------
    order : RowOrder
    stops : ndarray of int64 of shape (n_ranges,)
        Where each range ends.
    n_codes : int
        Ranges further on have the codes of the first ones.
    n_rows : int, optional
        All rows, the last ones of which are a range too.
    """

    order: RowOrder
    stops: Ints
    n_codes: int
    n_rows: int | None = None

    def make(self, index: int, column: Any, n_rows: int) -> Ints:
        """Return the codes of a block's rows."""
        places = self.order.find_places(index, column, n_rows)
        ranges = np.asarray(np.searchsorted(self.stops, places, side="right"), np.int64)
        return ranges % self.n_codes

    def count_roles(self, roles: FoldAssignment, split: int, role: int) -> Ints | None:
        """Return how many rows of each block play a role: the overlaps of ranges and blocks."""
        if self.n_rows is None:
            return None
        starts, stops = self.order.find_block_ranges(self.n_rows)
        found = np.zeros(len(starts), np.int64)
        bounds = np.concatenate([[0], self.stops, [self.n_rows]])
        for number, (first, last) in enumerate(pairwise(bounds)):
            code = np.array([number % self.n_codes])
            if roles.played(code, split)[0] == role:
                overlaps = np.minimum(stops, last) - np.maximum(starts, first)
                found += overlaps.clip(min=0).sum(axis=1)
        return found


@dataclass(frozen=True, eq=False)
class FoldsByGroup(FoldCodes):
    """Folds of groups.

    Parameters
    ----------
    groups : ndarray of shape (n_groups,)
    folds : ndarray of int64 of shape (n_groups,)
    """

    groups: NDArray[Any]
    folds: Ints

    def make(self, index: int, column: Any, n_rows: int) -> Ints:
        """Return the codes of a block's rows."""
        return self.folds[_encode_labels(self.groups, column)]


@dataclass(frozen=True, eq=False)
class SpreadSplits(FoldCodes):
    """Rows drawn anew by each split, exactly `n_test` and `n_train` of them.

    Parameters
    ----------
    order : RowOrder
        Shuffled.
    roles : DigitRoles
    n_rows, n_test, n_train : int
        Of all rows.
    """

    order: RowOrder
    roles: DigitRoles
    n_rows: int
    n_test: int
    n_train: int

    def make(self, index: int, column: Any, n_rows: int) -> Ints:
        """Return the codes of a block's rows."""
        found = []
        for split in range(self.roles.n_splits):
            places = self.order.find_places(index, column, n_rows, split)
            found.append(_spread_roles(places, self.n_rows, self.n_test, self.n_train))
        return self.roles.encode(found)

    def count_roles(self, roles: FoldAssignment, split: int, role: int) -> Ints | None:
        """Return how many rows of each block play a role: `_spread_roles`, counted by ranges."""
        rest = max(self.n_rows - self.n_test, 1)

        def count_held(places: Ints) -> Ints:
            return places * self.n_test // self.n_rows

        def count_taken(places: Ints) -> Ints:
            return (places - count_held(places)) * self.n_train // rest

        count = {TEST: count_held, TRAIN: count_taken}.get(role)
        if count is None:
            return None
        starts, stops = self.order.find_block_ranges(self.n_rows)
        sizes: Ints = (count(stops) - count(starts)).sum(axis=1)
        return sizes


@dataclass(frozen=True, eq=False)
class GivenCodes(FoldCodes):
    """Codes of all rows that are there already, in memory.

    Parameters
    ----------
    blocks : tuple of ndarray of int64
    """

    blocks: tuple[Ints, ...]

    def make(self, index: int, column: Any, n_rows: int) -> Ints:
        """Return the codes of a block's rows."""
        return self.blocks[index]


@dataclass(frozen=True, eq=False)
class ThinnedCodes(FoldCodes):
    """Codes of a share of the rows, counted from 1; the code 0 has no role in any split.

    Parameters
    ----------
    codes : FoldCodes
        Of all rows.
    order : RowOrder
        Shuffled within blocks.
    fraction : float
    """

    codes: FoldCodes
    order: RowOrder
    fraction: float

    def make(self, index: int, column: Any, n_rows: int) -> Ints:
        """Return the codes of a block's rows."""
        first = int(self.order.first[index])
        place = self.order.find_places(index, None, n_rows) - first
        # The shares of all blocks add up to that of all rows.
        share = int((first + n_rows) * self.fraction) - int(first * self.fraction)
        return np.where(place < share, self.codes.make(index, column, n_rows) + 1, 0)


@dataclass(frozen=True, eq=False)
class RowsOfSplits:
    """Inputs of a Dask collection, with a code a row.

    Parameters
    ----------
    inputs : tuple
        Aligned inputs, as the user gave them; None where one is absent.
    columns : Collection
        X, and the column that codes are made of (labels, groups), if any.
    codes : FoldCodes
    roles : FoldAssignment
    """

    inputs: tuple[Any, ...]
    columns: Collection
    codes: FoldCodes
    roles: FoldAssignment

    def with_features(self, X: Any, roles: FoldAssignment) -> RowsOfSplits:
        """Return the same rows with other features, block by block, and other roles."""
        blocks = as_collection(X, numeric=False, any_shape=True).parts
        parts = [
            (block[0], *part[1:]) for block, part in zip(blocks, self.columns.parts, strict=True)
        ]
        columns = replace(self.columns, parts=parts)
        return replace(self, inputs=(X, *self.inputs[1:]), columns=columns, roles=roles)

    def persist_rows(self) -> RowsOfSplits:
        """Return the same rows, kept by the cluster for as long as the result lives."""
        blocks = [self._cut(v) if is_dask(v) else [] for v in self.inputs]
        columns = [part[1] for part in self.columns.parts]
        # In one call, so that blocks of the same rows are made of one reading.
        kept = iter(persist(*(p for pieces in (*blocks, columns) for p in pieces)))
        found = [[next(kept) for _ in pieces] for pieces in (*blocks, columns)]
        sizes = None if self.columns.row_counts is None else count_rows(self.columns)
        inputs = tuple(
            _join_lazily(value, pieces, sizes) if pieces else value
            for value, pieces in zip(self.inputs, found[:-1], strict=True)
        )
        parts = [
            (X, column, *part[2:])
            for X, column, part in zip(found[0], found[-1], self.columns.parts, strict=True)
        ]
        return replace(self, inputs=inputs, columns=replace(self.columns, parts=parts))

    @cached_property
    def code_parts(self) -> list[Delayed]:
        """Return the codes of each block, lazy; the same for all sides of all splits."""
        make = delayed(partial(_make_codes, self.codes), pure=False)
        return [make(i, X, column) for i, (X, column, _) in enumerate(self.columns.parts)]

    def pair_with_codes(self, value: Any) -> list[tuple[Any, Any]]:
        """Return the blocks of an input, each with the codes of its rows."""
        return list(zip(self._cut(value), self.code_parts, strict=True))

    def take_side(self, split: int, role: int) -> tuple[Any, ...]:
        """Return the rows that play a role in a split, of every input, lazy and of its kind."""
        sizes = self.codes.count_roles(self.roles, split, role)
        take = delayed(partial(_take_role, self.roles, split, role), pure=False)
        return tuple(
            None
            if value is None
            else _join_lazily(value, [take(*pair) for pair in self.pair_with_codes(value)], sizes)
            for value in self.inputs
        )

    def gather_split(self, split: int) -> Delayed:
        """Return both sides of a split as one task's result: ((X, y, ...), (X, y, ...))."""
        pieces = [None if value is None else self._cut(value) for value in self.inputs]
        gather = delayed(partial(_gather_sides, self.roles, split), pure=False)
        both: Delayed = gather(pieces, self.code_parts)
        return both

    def make_unread_error(self, error: Exception) -> InvalidDataError:
        """Return the error of rows that could not be gathered, which names the block."""
        pieces = [self._cut(value) for value in self.inputs if value is not None]
        return make_unread_error(zip(*pieces, strict=True), error)

    def make_mask(self, split: int, role: int) -> Any:
        """Return the rows that play a role in a split: lazy bool, chunked as X is.

        A series beside a frame of known divisions; where these are unknown Dask would match rows
        by a shuffle of the index.
        """
        frame = self.inputs[0]
        if is_dask_frame(frame) and frame.known_divisions:
            if frame.npartitions == len(self.columns.parts):
                return self._make_frame_mask(split, role)
        one = delayed(partial(_make_mask, self.roles, split, role), pure=False)
        counts: list[Any] = self.columns.row_counts or [np.nan] * len(self.columns.parts)
        parts = [
            da.from_delayed(one(codes), (n,), dtype=bool)
            for codes, n in zip(self.code_parts, counts, strict=True)
        ]
        return da.concatenate(parts)

    def _make_frame_mask(self, split: int, role: int) -> Any:
        import dask.dataframe as dd

        frame = self.inputs[0]
        one = delayed(partial(_make_indexed_mask, self.roles, split, role), pure=False)
        parts = [
            one(codes, part[0])
            for codes, part in zip(self.code_parts, self.columns.parts, strict=True)
        ]
        meta = _add_index(np.zeros(0, bool), frame._meta)
        return dd.from_delayed(parts, meta=meta, divisions=frame.divisions, verify_meta=False)

    def _cut(self, value: Any) -> list[Any]:
        """Return the pieces of an input, cut as the codes are."""
        X = self.inputs[0]
        if value is X:
            return [part[0] for part in self.columns.parts]
        options = {"numeric": False, "multi_output": True, "any_shape": True}
        return [part[1] for part in as_collection(X, value, **options).parts]


def _join_lazily(value: Any, taken: list[Any], sizes: Ints | None) -> Any:
    """Return a collection of the kind of `value`, of delayed blocks of known or unknown sizes."""
    if is_dask_frame(value) or is_dataframe_like(value) or is_series_like(value):
        import dask.dataframe as dd

        meta = value._meta if is_dask_frame(value) else value.iloc[:0]
        return dd.from_delayed(taken, meta=meta, verify_meta=False)
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


def count_rows_of_block(part: Any) -> int:
    """Return the number of rows of a block."""
    return int(part.shape[0]) if hasattr(part, "shape") else len(part)


def _make_codes(codes: FoldCodes, index: int, X: Any, column: Any) -> Ints:
    if column is not None:
        check_length(count_rows_of_block(X), column, "y", index)
    return codes.make(index, column, count_rows_of_block(X))


def _make_mask(roles: FoldAssignment, split: int, role: int, codes: Ints) -> NDArray[np.bool_]:
    return np.asarray(roles.played(codes, split) == role)


def _make_indexed_mask(roles: FoldAssignment, split: int, role: int, codes: Ints, rows: Any) -> Any:
    return _add_index(_make_mask(roles, split, role, codes), rows)


def _add_index(mask: NDArray[np.bool_], rows: Any) -> Any:
    import pandas

    return pandas.Series(mask, index=rows.index)


def _take_role(roles: FoldAssignment, split: int, role: int, rows: Any, codes: Ints) -> Any:
    at = np.flatnonzero(roles.played(codes, split) == role)
    return take_rows(rows, at)


def _gather_sides(
    roles: FoldAssignment, split: int, inputs: list[Any], codes: list[Ints]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    def gather(pieces: list[Any], role: int) -> Any:
        pairs = zip(pieces, codes, strict=True)
        return join_blocks([_take_role(roles, split, role, *pair) for pair in pairs])

    train, test = (
        tuple(None if pieces is None else gather(pieces, role) for pieces in inputs)
        for role in (TRAIN, TEST)
    )
    return train, test


def join_blocks(pieces: list[Any]) -> Any:
    """Return the rows of several blocks in one piece of their kind."""
    if hasattr(pieces[0], "iloc"):
        import pandas

        return pandas.concat(pieces)
    if sparse.issparse(pieces[0]):
        return sparse.vstack(pieces, format="csr")
    return np.concatenate(pieces)


def count_rows(columns: Collection) -> Ints:
    """Return the number of rows of each block, in one pass where Dask does not know."""
    if columns.row_counts is not None:
        return np.array(columns.row_counts, np.int64)
    found: list[int] = reduce_parts(columns, _count_block_rows, concatenate_lists)
    return np.array(found, np.int64)


def count_labels(columns: Collection, first_seen: bool) -> tuple[NDArray[Any], Ints]:
    """Return the labels, and how many rows of each block have each; one pass.

    Labels are in the order in which rows show them, or sorted; of shape (n_labels,) and
    (n_blocks, n_labels).
    """
    found = reduce_parts(columns, _count_block_labels, concatenate_lists)
    if first_seen:
        order = dict.fromkeys(value for block in found for value in block)
        labels = np.array(list(order))
    else:
        labels = np.unique([value for block in found for value in block])
    counts = np.array([[block.get(value, 0) for value in labels.tolist()] for block in found])
    return labels, counts.astype(np.int64)


@dataclass(frozen=True, eq=False)
class TrainedRows:
    """Numbers of training rows of each split.

    Parameters
    ----------
    labels : ndarray of shape (n_labels,), or None
        Sorted; None where targets are numbers.
    weights : ndarray of float64 of shape (n_splits, n_labels) or (n_splits, 1)
        Number of training rows of each label.
    """

    labels: NDArray[Any] | None
    weights: NDArray[np.float64]


def count_training_rows(
    kind: Literal["memory", "dask"],
    parts: list[tuple[Any, Any]],
    roles: FoldAssignment,
    classification: bool,
) -> PassGenerator[TrainedRows]:
    """Count the training rows of each split in one pass over blocks of targets and codes."""
    blocks = Collection(kind, [(*part, None) for part in parts], None, None, None)
    count = partial(_count_block_training_rows, roles, classification)
    (found,) = yield [ReductionPass(blocks, count, _add_counts_by_label)]
    labels = np.unique(list(found)) if classification else None
    names = [None] if labels is None else labels.tolist()
    # A missing label is equal to none, and refused where blocks are made.
    none = np.zeros(roles.n_splits)
    return TrainedRows(labels, np.stack([found.get(name, none) for name in names], axis=1))


def _count_block_training_rows(
    roles: FoldAssignment, classification: bool, index: int, y: Any, codes: Ints, weight: None
) -> dict[Any, NDArray[np.float64]]:
    """Return by label how many rows each split trains on."""
    trained = np.asarray(roles.times(roles.every(codes), TRAIN), np.float64)
    if not classification:
        return {None: trained.sum(axis=0)}
    labels, places = np.unique(np.asarray(y), return_inverse=True)
    counts = [np.bincount(places.ravel(), of_split, len(labels)) for of_split in trained.T]
    return dict(zip(labels.tolist(), np.stack(counts, axis=1), strict=True))


def _add_counts_by_label(
    found: list[dict[Any, NDArray[np.float64]]],
) -> dict[Any, NDArray[np.float64]]:
    total: dict[Any, NDArray[np.float64]] = {}
    for counts in found:
        for label, n_rows in counts.items():
            total[label] = total.get(label, 0) + n_rows
    return total


def _count_block_rows(index: int, X: Any, column: Any, weight: Any) -> list[int]:
    return [count_rows_of_block(X)]


def _count_block_labels(index: int, X: Any, column: Any, weight: Any) -> list[dict[Any, int]]:
    values, first, counts = np.unique(np.asarray(column), return_index=True, return_counts=True)
    return [
        {
            values[i].item() if hasattr(values[i], "item") else values[i]: int(counts[i])
            for i in np.argsort(first)
        }
    ]


def thin_rows(rows: RowsOfSplits, fraction: float, seed: int) -> RowsOfSplits:
    """Return the same splits of a share of the rows, drawn in each block."""
    counts = count_rows(rows.columns)
    first = counts.cumsum() - counts
    codes = ThinnedCodes(rows.codes, RowOrder(first, seed), fraction)
    return replace(rows, codes=codes, roles=_ThinnedRoles(rows.roles))
