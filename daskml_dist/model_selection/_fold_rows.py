"""Codes of rows, which encode the side of each row in each split of a cross-validation.

A splitter of Dask collections plans two things. `FoldCodes` make an integer code for each row of a
block, from the row's place among all rows, its label or its group, so that tasks make the codes of
their own blocks, without a table of all rows. A `FoldAssignment` maps each code to a role in each
split: trained on, tested, or neither. For k folds there are k codes: the number of the fold.

*Places* number all rows from 0 to n - 1. Without a shuffle they follow the order of the collection.
A shuffle permutes rows within their blocks only; since each block's rows are assigned to the folds
in turn, every fold still gets its share of every block. For stratified folds places are ordered by
label first, so that the rows of a label have consecutive places, and assigning them in turn is
stratified.

`RowsOfSplits` holds the inputs with their codes, and selects the rows of a side lazily.
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

from daskml_dist.data.block_errors import make_unread_error
from daskml_dist.data.blocks import check_length
from daskml_dist.data.collection import (
    Collection,
    as_collection,
    count_rows_of_block,
    join_lazy_blocks,
)
from daskml_dist.data.conversion import check_no_missing, join_blocks, take_rows
from daskml_dist.data.lazy import is_dask, is_dask_frame, is_from_delayed, join_delayed
from daskml_dist.data.reduce import (
    PassGenerator,
    ReductionPass,
    concatenate_lists,
    count_rows,
    reduce_parts,
)
from daskml_dist.data.row_checks import explain_unsortable_labels
from daskml_dist.errors import InvalidDataError
from daskml_dist.models.batched import NEITHER, TEST, TRAIN, FoldAssignment

#: Codes, places and counts of rows.
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TableRoles(FoldAssignment):
    """Assignment by a table of the role of each code in each split.

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
        """Return the assignment of k-fold cross-validation, in which a code is a fold's number."""
        table = np.full((n_splits, n_splits), TRAIN, np.int8)
        np.fill_diagonal(table, TEST)
        return cls(table)

    def assign_roles(self, codes: Ints, split: int) -> NDArray[np.int8]:
        """Return the role of each code in a split."""
        roles: NDArray[np.int8] = self.table[codes, split]
        return roles


@dataclass(frozen=True, eq=False)
class DigitRoles(FoldAssignment):
    """Assignment by the digits of a code in base 3, one for each split: the splits' roles.

    For splits independent of each other, for which a table would have up to 3**n_splits rows.

    Parameters
    ----------
    n_splits : int
        At most :attr:`max_splits`.
    """

    n_splits: int
    #: Most splits: batched fits hold codes as float64, exact up to 2**53, and 3**33 is below that.
    max_splits: ClassVar[int] = 33

    def assign_roles(self, codes: Ints, split: int) -> NDArray[np.int8]:
        """Return the role of each code in a split."""
        roles: NDArray[np.int8] = (codes // 3**split % 3).astype(np.int8)
        return roles

    def encode(self, roles: list[NDArray[np.int8]]) -> Ints:
        """Return the codes of rows, given their roles in each split."""
        codes = np.zeros(len(roles[0]), np.int64)
        for split, roles_in_split in enumerate(roles):
            codes += roles_in_split.astype(np.int64) * 3**split
        return codes


@dataclass(frozen=True, eq=False)
class _ThinnedRoles(FoldAssignment):
    """Assignment of the codes of `ThinnedCodes`: 0 (no role), or a `base_assignment` code plus 1.

    Parameters
    ----------
    base_assignment : FoldAssignment
        Assignment of all rows.
    """

    base_assignment: FoldAssignment

    @property
    def n_splits(self) -> int:  # type: ignore[override]
        """Return the number of splits."""
        return self.base_assignment.n_splits

    def assign_roles(self, codes: Ints, split: int) -> NDArray[np.int8]:
        """Return the role of each code in a split."""
        # Rows that are left out are looked up like all others, and overwritten.
        roles = self.base_assignment.assign_roles(np.maximum(codes - 1, 0), split)
        return np.where(codes > 0, roles, np.int8(NEITHER))


@dataclass(frozen=True, eq=False)
class RowOrder:
    """Order of all rows, which gives each one a place from 0 to n - 1.

    Parameters
    ----------
    first : ndarray of int64 of shape (n_blocks,)
        Number of rows before each block.
    seed : int or None
        Seed that shuffles the rows of each block; None: rows keep their order.
    labels : ndarray or None
        Labels by which rows are placed first, in this order; None: labels do not matter.
    first_of : ndarray of int64 of shape (n_blocks, n_labels), or None
        With `labels`: least place of each block's rows of each label.
    """

    first: Ints
    seed: int | None = None
    labels: NDArray[Any] | None = None
    first_of: Ints | None = None

    def find_places(self, index: int, column: Any, n_rows: int, shuffle_index: int = 0) -> Ints:
        """Return the places of a block's rows; each `shuffle_index` gives another shuffle."""
        block_order = np.arange(n_rows)
        if self.seed is not None:
            # Seeded by the block's number: tasks draw the same numbers in any order, and when run
            # again.
            block_order = np.random.default_rng((self.seed, shuffle_index, index)).permutation(
                n_rows
            )
        if self.labels is None or self.first_of is None:
            return np.asarray(self.first[index] + block_order, np.int64)
        # The place is the smallest place of the block's rows of this label, plus the row's rank
        # among them: sort by label and position, then number the rows of each label from 0.
        code = _encode_labels(self.labels, column)
        places = np.empty(n_rows, np.int64)
        by_label = np.lexsort((block_order, code))
        counts = np.bincount(code, minlength=len(self.labels))
        rank = np.arange(n_rows) - np.repeat(counts.cumsum() - counts, counts)
        places[by_label] = self.first_of[index][code[by_label]] + rank
        return places

    def find_block_ranges(self, n_rows: int) -> tuple[Ints, Ints]:
        """Return the ranges of places that each block's rows have, of `n_rows` in all.

        Starts and stops of shape (n_blocks, n_labels); without labels of shape (n_blocks, 1).
        """
        starts = self.first[:, np.newaxis] if self.first_of is None else self.first_of
        # The ranges are ordered by label and, within a label, by block: each stops where the next
        # one starts.
        stops = np.append(starts.T.ravel()[1:], n_rows).reshape(starts.T.shape).T
        return starts, stops


def _encode_labels(labels: NDArray[Any], column: Any) -> Ints:
    """Return the position of each row's label among `labels`, which need not be sorted."""
    # Every label is among `labels`, which were counted in the same rows.
    order = np.argsort(labels)
    codes: Ints = order[np.searchsorted(labels, np.asarray(column), sorter=order)]
    return codes


class FoldCodes(ABC):
    """Base class of makers of the codes of a block's rows. Picklable."""

    @abstractmethod
    def make_codes(self, index: int, column: Any, n_rows: int) -> Ints:
        """Return the codes; `column` holds the labels or groups of the rows, if there are any."""

    def count_roles(self, roles: FoldAssignment, split: int, role: int) -> Ints | None:
        """Return how many rows of each block have a role; None if it depends on the rows."""
        return None


def _spread_roles(places: Ints, n: int, n_test: int, n_train: int) -> NDArray[np.int8]:
    """Return the roles of places, `n_test` tested and `n_train` trained on, evenly spread."""
    # Places are spread as in Bresenham's line algorithm: place p is tested if the number of tested
    # places before it, p * n_test // n, grows from p to p + 1. So the role of a place follows from
    # its number alone, exactly `n_test` are tested, and every range of places has its share, to
    # within 1. Products fit int64 up to 3 billion rows.
    n_tested_before = places * n_test // n
    is_tested = (places + 1) * n_test // n > n_tested_before
    # The same for the places that are left. At a tested place the result is that of the next one
    # left, and is overwritten below.
    places_left, n_left = places - n_tested_before, max(n - n_test, 1)
    is_trained = (places_left + 1) * n_train // n_left > places_left * n_train // n_left
    roles = np.where(is_trained, TRAIN, NEITHER)
    return np.where(is_tested, TEST, roles).astype(np.int8)


@dataclass(frozen=True, eq=False)
class FoldsByPlace(FoldCodes):
    """Folds assigned in turn: the code is the row's place modulo the number of folds.

    Parameters
    ----------
    order : RowOrder
    n_folds : int
    """

    order: RowOrder
    n_folds: int

    def make_codes(self, index: int, column: Any, n_rows: int) -> Ints:
        """Return the codes of a block's rows."""
        return self.order.find_places(index, column, n_rows) % self.n_folds


@dataclass(frozen=True, eq=False)
class FoldsByRange(FoldCodes):
    """Folds of consecutive places: the code is the number of the row's range, modulo `n_codes`.

    Parameters
    ----------
    order : RowOrder
    stops : ndarray of int64 of shape (n_ranges - 1,)
        End of each range but the last, which extends to the last row.
    n_codes : int
        For stratified folds the ranges of each label begin again with the code 0.
    n_rows : int, optional
        Number of all rows, if rows of roles are to be counted.
    """

    order: RowOrder
    stops: Ints
    n_codes: int
    n_rows: int | None = None

    def make_codes(self, index: int, column: Any, n_rows: int) -> Ints:
        """Return the codes of a block's rows."""
        places = self.order.find_places(index, column, n_rows)
        ranges = np.asarray(np.searchsorted(self.stops, places, side="right"), np.int64)
        return ranges % self.n_codes

    def count_roles(self, roles: FoldAssignment, split: int, role: int) -> Ints | None:
        """Return how many rows of each block have a role: the overlaps of ranges and blocks."""
        if self.n_rows is None:
            return None
        starts, stops = self.order.find_block_ranges(self.n_rows)
        counts = np.zeros(len(starts), np.int64)
        bounds = np.concatenate([[0], self.stops, [self.n_rows]])
        for number, (first, last) in enumerate(pairwise(bounds)):
            code = np.array([number % self.n_codes])
            if roles.assign_roles(code, split)[0] == role:
                overlaps = np.minimum(stops, last) - np.maximum(starts, first)
                counts += overlaps.clip(min=0).sum(axis=1)
        return counts


@dataclass(frozen=True, eq=False)
class FoldsByGroup(FoldCodes):
    """Folds of whole groups: the code is the fold of the row's group.

    Parameters
    ----------
    groups : ndarray of shape (n_groups,)
    folds : ndarray of int64 of shape (n_groups,)
        Fold of each group.
    """

    groups: NDArray[Any]
    folds: Ints

    def make_codes(self, index: int, column: Any, n_rows: int) -> Ints:
        """Return the codes of a block's rows."""
        return self.folds[_encode_labels(self.groups, column)]


@dataclass(frozen=True, eq=False)
class SpreadSplits(FoldCodes):
    """Splits that each draw `n_test` and `n_train` rows independently, evenly from all blocks.

    Each split shuffles the rows within their blocks, and selects the same places of the new order
    (`_spread_roles`). The code holds a row's roles in all splits.

    Parameters
    ----------
    order : RowOrder
        Order with a seed.
    roles : DigitRoles
    n_rows, n_test, n_train : int
        Numbers of all rows, and of test and training rows of a split.
    """

    order: RowOrder
    roles: DigitRoles
    n_rows: int
    n_test: int
    n_train: int

    def make_codes(self, index: int, column: Any, n_rows: int) -> Ints:
        """Return the codes of a block's rows."""
        by_split = []
        for split in range(self.roles.n_splits):
            places = self.order.find_places(index, column, n_rows, split)
            by_split.append(_spread_roles(places, self.n_rows, self.n_test, self.n_train))
        return self.roles.encode(by_split)

    def count_roles(self, roles: FoldAssignment, split: int, role: int) -> Ints | None:
        """Return how many rows of each block have a role: `_spread_roles` over its places."""

        # Number of rows with the role among the first `places`; `_spread_roles` covers single
        # places only.
        def count_tested(places: Ints) -> Ints:
            return places * self.n_test // self.n_rows

        def count_trained(places: Ints) -> Ints:
            n_left = max(self.n_rows - self.n_test, 1)
            return (places - count_tested(places)) * self.n_train // n_left

        count = {TEST: count_tested, TRAIN: count_trained}.get(role)
        if count is None:
            return None
        # A block's rows fill the same ranges of places in any shuffle, since it is within the
        # block.
        starts, stops = self.order.find_block_ranges(self.n_rows)
        sizes: Ints = (count(stops) - count(starts)).sum(axis=1)
        return sizes


@dataclass(frozen=True, eq=False)
class GivenCodes(FoldCodes):
    """Codes that are already known, for splits of another package's splitter.

    Parameters
    ----------
    blocks : tuple of ndarray of int64
        Codes of the rows of each block.
    """

    blocks: tuple[Ints, ...]

    def make_codes(self, index: int, column: Any, n_rows: int) -> Ints:
        """Return the codes of a block's rows."""
        return self.blocks[index]


@dataclass(frozen=True, eq=False)
class ThinnedCodes(FoldCodes):
    """Codes of a share of the rows plus 1; rows that are left out have the code 0.

    Parameters
    ----------
    codes : FoldCodes
        Codes of all rows.
    order : RowOrder
        Order with a seed: the first rows of each block in this order are taken.
    fraction : float
        Share of rows that is taken.
    """

    codes: FoldCodes
    order: RowOrder
    fraction: float

    def make_codes(self, index: int, column: Any, n_rows: int) -> Ints:
        """Return the codes of a block's rows."""
        first = int(self.order.first[index])
        rank = self.order.find_places(index, None, n_rows) - first
        # Differences of rounded running totals, which add up to the share of all rows.
        n_taken = int((first + n_rows) * self.fraction) - int(first * self.fraction)
        return np.where(rank < n_taken, self.codes.make_codes(index, column, n_rows) + 1, 0)


@dataclass(frozen=True, eq=False)
class RowsOfSplits:
    """Rows of a Dask collection with the codes of some splits.

    Parameters
    ----------
    inputs : tuple
        X, y and other inputs with the same number of rows, in the user's containers; None if one is
        absent.
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
        """Return the same rows, kept in the cluster's memory as long as the result exists."""
        inputs_pieces = [self._cut(value) if is_dask(value) else [] for value in self.inputs]
        columns = [part[1] for part in self.columns.parts]
        # In one call, so that blocks of X, y and others that one task reads are read once.
        persisted = iter(
            persist(*(piece for pieces in (*inputs_pieces, columns) for piece in pieces))
        )
        *kept_inputs, kept_columns = (
            [next(persisted) for _ in pieces] for pieces in (*inputs_pieces, columns)
        )
        sizes = None if self.columns.row_counts is None else count_rows(self.columns)
        inputs = tuple(
            _join_lazily(value, pieces, sizes) if pieces else value
            for value, pieces in zip(self.inputs, kept_inputs, strict=True)
        )
        parts = [
            (X, column, *part[2:])
            for X, column, part in zip(
                kept_inputs[0], kept_columns, self.columns.parts, strict=True
            )
        ]
        return replace(self, inputs=inputs, columns=replace(self.columns, parts=parts))

    @cached_property
    def code_parts(self) -> list[Delayed]:
        """Return the codes of each block, lazy: one task for each block, for all splits."""
        # Cached: another call would add tasks that make the same codes again.
        make = delayed(partial(_make_codes, self.codes), pure=False)
        return [make(i, X, column) for i, (X, column, _) in enumerate(self.columns.parts)]

    def pair_with_codes(self, value: Any) -> list[tuple[Any, Any]]:
        """Return pairs of a block of an input and the codes of its rows, lazy."""
        return list(zip(self._cut(value), self.code_parts, strict=True))

    def take_side(self, split: int, role: int) -> tuple[Any, ...]:
        """Return the rows of every input that have a role in a split, lazy and of its kind."""
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
        sides: Delayed = gather(pieces, self.code_parts)
        return sides

    def gather_rows(self) -> Delayed:
        """Return all rows of every input as one task's result: (X, y, ...)."""
        pieces = [None if value is None else self._cut(value) for value in self.inputs]
        rows: Delayed = delayed(_join_inputs, pure=False)(pieces)
        return rows

    def make_unread_error(self, error: Exception) -> InvalidDataError:
        """Return the error that names the block of rows that could not be read."""
        pieces = [self._cut(value) for value in self.inputs if value is not None]
        return make_unread_error(zip(*pieces, strict=True), error)

    def make_mask(self, split: int, role: int) -> Any:
        """Return a lazy mask of the rows that have a role in a split, chunked as X is."""
        frame = self.inputs[0]
        # A Series, because Dask indexes a DataFrame with it partition by partition if it knows the
        # divisions. If it does not, it would match the index by a shuffle: then an Array.
        if is_dask_frame(frame) and frame.known_divisions:
            if frame.npartitions == len(self.columns.parts):
                return self._make_frame_mask(split, role)
        make_block = delayed(partial(_make_mask, self.roles, split, role), pure=False)
        masks = [make_block(codes) for codes in self.code_parts]
        return join_lazy_blocks(masks, self.columns, np.empty(0, bool))

    def _make_frame_mask(self, split: int, role: int) -> Any:
        import dask.dataframe as dd

        frame = self.inputs[0]
        make_block = delayed(partial(_make_indexed_mask, self.roles, split, role), pure=False)
        parts = [
            make_block(codes, part[0])
            for codes, part in zip(self.code_parts, self.columns.parts, strict=True)
        ]
        meta = _add_index(np.zeros(0, bool), frame._meta)
        return dd.from_delayed(parts, meta=meta, divisions=frame.divisions, verify_meta=False)

    def _cut(self, value: Any) -> list[Any]:
        """Return the blocks of an input, with the same rows as the blocks of codes."""
        X = self.inputs[0]
        if value is X:
            return [part[0] for part in self.columns.parts]
        # Together with X, so that its blocks are aligned to those of X.
        options = {"numeric": False, "multi_output": True, "any_shape": True}
        return [part[1] for part in as_collection(X, value, **options).parts]


def _join_lazily(value: Any, lazy_blocks: list[Any], sizes: Ints | None) -> Any:
    """Return a collection of delayed blocks, of the kind of `value`; `sizes` may be unknown."""
    if is_dask_frame(value) or is_dataframe_like(value) or is_series_like(value):
        import dask.dataframe as dd

        meta = value._meta if is_dask_frame(value) else value.iloc[:0]
        return dd.from_delayed(lazy_blocks, meta=meta, verify_meta=False)
    if is_dask(value) and not isinstance(value, da.Array):
        return lazy_blocks  # a list of delayed blocks stays one: its shape is unknown
    array = value if hasattr(value, "shape") else np.asarray(value)
    if isinstance(array, da.Array) and is_from_delayed(array):
        joined = join_delayed(lazy_blocks, array.ndim)  # of unknown dtype and width, too
    else:
        meta = array._meta if isinstance(array, da.Array) else array[:0]
        shape = (np.nan, *array.shape[1:])
        joined = da.concatenate(
            [da.from_delayed(part, shape, dtype=array.dtype, meta=meta) for part in lazy_blocks]
        )
    if sizes is not None:
        # Set in the way of `compute_chunk_sizes`: `concatenate` drops blocks that it knows to be
        # empty, and the blocks of X and y would no longer be aligned.
        joined._chunks = (tuple(sizes.tolist()), *joined.chunks[1:])
    return joined


def _make_codes(codes: FoldCodes, index: int, X: Any, column: Any) -> Ints:
    """Return the codes of a block's rows, after a check that it has as many labels or groups."""
    if column is not None:
        check_length(count_rows_of_block(X), column, "y", index)
    return codes.make_codes(index, column, count_rows_of_block(X))


def _make_mask(roles: FoldAssignment, split: int, role: int, codes: Ints) -> NDArray[np.bool_]:
    return np.asarray(roles.assign_roles(codes, split) == role)


def _make_indexed_mask(roles: FoldAssignment, split: int, role: int, codes: Ints, rows: Any) -> Any:
    return _add_index(_make_mask(roles, split, role, codes), rows)


def _add_index(mask: NDArray[np.bool_], rows: Any) -> Any:
    import pandas

    return pandas.Series(mask, index=rows.index)


def _take_role(roles: FoldAssignment, split: int, role: int, rows: Any, codes: Ints) -> Any:
    """Return the rows of a block that have a role in a split."""
    row_numbers = np.flatnonzero(roles.assign_roles(codes, split) == role)
    return take_rows(rows, row_numbers)


def _gather_sides(
    roles: FoldAssignment, split: int, inputs: list[Any], codes: list[Ints]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the training side and the test side of a split, joined from all blocks."""

    def gather(blocks: list[Any], role: int) -> Any:
        # Rows of the other role are dropped block by block, before blocks are joined.
        pairs = zip(blocks, codes, strict=True)
        return join_blocks([_take_role(roles, split, role, *pair) for pair in pairs])

    train, test = (
        tuple(None if pieces is None else gather(pieces, role) for pieces in inputs)
        for role in (TRAIN, TEST)
    )
    return train, test


def _join_inputs(inputs: list[Any]) -> tuple[Any, ...]:
    """Return the rows of each input, joined from all blocks."""
    return tuple(None if pieces is None else join_blocks(pieces) for pieces in inputs)


def count_labels_by_block(
    columns: Collection, first_seen: bool, name: str = "y"
) -> tuple[NDArray[Any], Ints]:
    """Return the labels, and the number of rows of each label in each block, in one pass.

    Labels, of shape (n_labels,), are sorted, or in the order in which rows show them first; counts
    are of shape (n_blocks, n_labels). `name` is that of the column, for errors.
    """
    blocks = reduce_parts(columns, partial(_count_block_labels, name), concatenate_lists)
    seen = list(dict.fromkeys(label for counts in blocks for label in counts))
    # NumPy would turn numbers beside texts of another block into texts, which no row has.
    with explain_unsortable_labels(name):
        in_order = sorted(seen)
    labels = np.array(seen if first_seen else in_order)
    block_counts = [[counts.get(label, 0) for label in _as_keys(labels)] for counts in blocks]
    return labels, np.array(block_counts).astype(np.int64)


@dataclass(frozen=True, eq=False)
class TrainedRows:
    """Numbers of training rows of each split.

    Parameters
    ----------
    labels : ndarray of shape (n_labels,), or None
        Sorted; None if targets are numbers.
    weights : ndarray of float64 of shape (n_splits, n_labels) or (n_splits, 1)
        Number of training rows of each label.
    """

    labels: NDArray[Any] | None
    weights: NDArray[np.float64]


def count_training_rows(
    kind: Literal["memory", "dask"],
    target_code_pairs: list[tuple[Any, Any]],
    roles: FoldAssignment,
    classification: bool,
) -> PassGenerator[TrainedRows]:
    """Count the training rows of each split in one pass over blocks of targets and codes."""
    blocks = Collection(kind, [(*part, None) for part in target_code_pairs], None, None, None)
    count = partial(_count_block_training_rows, roles, classification)
    (counts,) = yield [ReductionPass(blocks, count, _add_counts_by_label)]
    labels = np.unique(list(counts)) if classification else None
    keys = [None] if labels is None else _as_keys(labels)
    # NaN, a missing label, equals no key. It counts as 0 here, and the following fit refuses it.
    no_rows = np.zeros(roles.n_splits)
    return TrainedRows(labels, np.stack([counts.get(key, no_rows) for key in keys], axis=1))


def _count_block_training_rows(
    roles: FoldAssignment, classification: bool, index: int, y: Any, codes: Ints, weight: None
) -> dict[Any, NDArray[np.float64]]:
    """Return by label how many rows of a block each split trains on; by None for regression."""
    trained = np.asarray(roles.count_draws(roles.tabulate_roles(codes), TRAIN), np.float64)
    if not classification:
        return {None: trained.sum(axis=0)}
    labels, encoded = np.unique(np.asarray(y), return_inverse=True)
    counts = [np.bincount(encoded.ravel(), of_split, len(labels)) for of_split in trained.T]
    return dict(zip(_as_keys(labels), np.stack(counts, axis=1), strict=True))


def _as_keys(labels: NDArray[Any]) -> list[Any]:
    """Return labels as keys of a dict."""
    # Python's dates have no unit: those of NumPy would come back as other labels, or as integers.
    return list(labels) if labels.dtype.kind in "mM" else labels.tolist()


def _add_counts_by_label(
    block_counts: list[dict[Any, NDArray[np.float64]]],
) -> dict[Any, NDArray[np.float64]]:
    total: dict[Any, NDArray[np.float64]] = {}
    for counts in block_counts:
        for label, n_rows in counts.items():
            total[label] = total.get(label, 0) + n_rows
    return total


def _count_block_labels(
    name: str, index: int, X: Any, column: Any, weight: Any
) -> list[dict[Any, int]]:
    """Return the number of rows by label, in the order of the labels' first rows in the block."""
    column = np.asarray(column)
    # NaN equals no label; among numbers it is found where they are objects.
    has_nan = column.dtype.kind == "f" and np.isnan(column).any()
    check_no_missing(column.astype(object) if has_nan else column, name, index)
    with explain_unsortable_labels(name, index):
        values, first, counts = np.unique(column, return_index=True, return_counts=True)
    order = np.argsort(first)
    return [dict(zip(_as_keys(values[order]), counts[order].tolist(), strict=True))]


def thin_rows(rows: RowsOfSplits, fraction: float, seed: int) -> RowsOfSplits:
    """Return splits of a random share of the rows, the same share of each block."""
    counts = count_rows(rows.columns)
    first = counts.cumsum() - counts
    codes = ThinnedCodes(rows.codes, RowOrder(first, seed), fraction)
    return replace(rows, codes=codes, roles=_ThinnedRoles(rows.roles))
