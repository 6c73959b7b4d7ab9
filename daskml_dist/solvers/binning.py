"""Bins of features for trees, and the rows of a lane as bins, a byte for each entry.

:func:`find_bins` chooses the bins of all features from a sample of the rows that is the same on
any number of workers; :func:`bin_rows` then makes a :class:`BinnedRows` of each lane. Each
trainer finds the edges of a range of the features, for which the sampled columns are exchanged.

A :class:`HoldoutMask` says which rows are held out for validation, stratified by class. It follows
from the seed and a row's place among all rows of its class; places are known from the class counts
of each block, so no row is read to find them.

References
----------
G. Ke et al., "LightGBM: A highly efficient gradient boosting decision tree", NIPS 2017 (histograms
of binned features).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.binning import (
    fetch_rows,
    find_distinct_values,
    lie_on_device,
    open_device_bins,
    put_in_bins,
    take_rows,
)
from daskml_dist.backends.csr_rows import CSRRows
from daskml_dist.errors import InvalidDataError
from daskml_dist.models.base import BatchRows
from daskml_dist.models.bins import Bins, compute_bin_edges, draw_by_hash
from daskml_dist.models.query_codes import read_codes
from daskml_dist.solvers.own_rows import Array, OwnRows

#: Takes the number of the first of some adjacent rows, and their targets; returns whether each row
#: is held out.
_IsHeldOut = Callable[[int, NDArray[Any]], NDArray[np.bool_]]

#: Hashed with the seed, so that these draws are independent of other kinds of draws.
_HOLDOUT_DRAW = 2
#: Draws that are hashed at once: 8 MiB.
_DRAWS_AT_ONCE = 1 << 20
#: Half width of the window in which an order statistic is searched, in its standard deviations: it
#: lies outside with a probability below 1e-22.
_WINDOW_DEVIATIONS = 10.0


class HoldoutMask(Protocol):
    """Interface of the rules that say which rows are held out.

    Attributes
    ----------
    of_fit : bool
        Whether they are of the rows that the user gave for the fit: their categories then count.
    """

    of_fit: ClassVar[bool]

    def estimate_training_rows(self, n_rows: int) -> float:
        """Return about how many of `n_rows` rows are left to train on."""

    def make_reader(self) -> _IsHeldOut:
        """Return a function for one pass, which takes the rows of each block in their order."""

    def located(self, rows: OwnRows) -> HoldoutMask:
        """Return the same mask, by the counts of the parts that the trainers hold (collective)."""
        return self

    def restore_weight(self, y: NDArray[Any], weight: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the held-out rows' weights as the user gave them."""
        return weight


@dataclass(frozen=True, eq=False)
class TrailingRows(HoldoutMask):
    """Mask of rows after those of the fit, which the user gave for validation.

    Parameters
    ----------
    first : int
        Number of the first of them.
    class_weight : ndarray of float64 of shape (n_classes,) or None
        Weights of the classes in the fit, by which these rows' weights were multiplied too.
    """

    first: int
    class_weight: NDArray[np.float64] | None = None
    of_fit: ClassVar[bool] = False

    def estimate_training_rows(self, n_rows: int) -> float:
        return float(self.first)

    def restore_weight(self, y: NDArray[Any], weight: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.class_weight is None:
            return weight
        # A weight that was multiplied by 0 cannot be restored.
        factors = np.where(self.class_weight > 0, self.class_weight, 1.0)
        return np.asarray(weight / factors[y.astype(np.intp)])

    def make_reader(self) -> _IsHeldOut:
        return lambda first, y: np.arange(first, first + len(y)) >= self.first


@dataclass(frozen=True, eq=False)
class StratifiedHoldout(HoldoutMask):
    """Mask of random rows of each class, in proportion to its share of all rows.

    Each row draws a hashed number, and exactly as many rows of a class as are due have draws below
    its bound.

    Parameters
    ----------
    first : ndarray of int64 of shape (n_parts,)
        Number of the first row of each part of the rows, in their order.
    counts : ndarray of int64 of shape (n_parts, n_classes)
        Rows of each class in each part; in regression all rows are of one class.
    n : int
        Rows to hold out.
    seed : int
    """

    first: NDArray[np.int64]
    counts: NDArray[np.int64]
    n: int
    seed: int
    of_fit: ClassVar[bool] = True

    def located(self, rows: OwnRows) -> StratifiedHoldout:
        # With one class, the place of a row is its number.
        if self.counts.shape[1] == 1:
            return self
        firsts = np.concatenate([np.empty(0, np.int64), *map(rows.first_row_numbers, rows.lanes)])
        is_cut = not np.isin(firsts, self.first).all()
        if not rows.max_trainers(np.array([float(is_cut)]))[0]:
            return self
        # If lanes have parts of blocks, the class counts of these have to be read from the rows.
        lane_counts = rows.map_lanes(lambda lane: self._count_classes(rows, lane), rows.lanes)
        gathered = rows.gather_arrays([firsts, np.concatenate(lane_counts)])
        first, counts = (np.concatenate(parts) for parts in zip(*gathered, strict=True))
        order = np.argsort(first, kind="stable")
        return replace(self, first=first[order], counts=counts[order])

    def estimate_training_rows(self, n_rows: int) -> float:
        return float(n_rows - self.n)

    def make_reader(self) -> _IsHeldOut:
        return _HoldoutReader(self)

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Return the place of each part's first row of each class, with rows sorted by class."""
        class_counts = self.counts.sum(axis=0)
        counts_before = self.counts.cumsum(axis=0) - self.counts
        return np.asarray(counts_before + (class_counts.cumsum() - class_counts))

    @cached_property
    def bounds(self) -> NDArray[np.uint64]:
        """Return the draw below which the rows of each class are held out."""
        counts = self.counts.sum(axis=0)
        firsts = (counts.cumsum() - counts).tolist()
        n_held = allot_by_share(counts, self.n)
        classes = zip(firsts, counts.tolist(), n_held.tolist(), strict=True)
        return np.array([self._find_threshold(first, n, k) for first, n, k in classes], np.uint64)

    def draw_hashes(self, places: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the hashed draws of some places."""
        return draw_by_hash(places, self.seed, _HOLDOUT_DRAW)

    def _count_classes(self, rows: OwnRows, lane: int) -> NDArray[np.int64]:
        """Return the number of rows of each class in the parts of a lane."""
        firsts, k = rows.first_row_numbers(lane), self.counts.shape[1]
        order = np.argsort(firsts, kind="stable")
        counts = np.zeros((len(firsts), k), np.int64)
        for first, block in rows.iterate_blocks(lane):
            part = order[np.searchsorted(firsts[order], first, side="right") - 1]
            counts[part] += np.bincount(block.y.astype(np.intp), minlength=k)
        return counts

    def _find_threshold(self, first: int, n: int, k: int) -> int:
        """Return a bound below which exactly `k` of the draws of `n` places are."""
        if k == 0:
            return 0
        # The k-th smallest of n uniform draws lies near k / n, with a standard deviation of
        # sqrt(k (1 - k / n)) / n. Only the draws in a window there are kept and sorted, instead of
        # those of all rows.
        share = k / n
        half_width = _WINDOW_DEVIATIONS * ((k * (1 - share)) ** 0.5 + 1) / n
        low, high = (
            np.uint64(int(min(max(quantile, 0.0), 1.0) * (2**64 - 2**12)))
            for quantile in (share - half_width, share + half_width)
        )
        n_below, in_window = 0, []
        for start in range(first, first + n, _DRAWS_AT_ONCE):
            draws = self.draw_hashes(np.arange(start, min(start + _DRAWS_AT_ONCE, first + n)))
            n_below += int((draws < low).sum())
            in_window.append(draws[(draws >= low) & (draws <= high)])
        window = np.sort(np.concatenate(in_window))
        # The draw after the k-th smallest.
        position = min(max(k - n_below, 0), len(window))
        return int(window[position]) if position < len(window) else int(high) + 1


class _HoldoutReader:
    """Function that says which rows of a pass are held out."""

    def __init__(self, holdout: StratifiedHoldout) -> None:
        self._holdout, self._n_classes = holdout, holdout.counts.shape[1]
        #: For each part begun: number of its next row, and places of its next rows of each class.
        self._reached: dict[int, tuple[int, NDArray[np.int64]]] = {}

    def __call__(self, first: int, y: NDArray[Any]) -> NDArray[np.bool_]:
        holdout = self._holdout
        if self._n_classes == 1:
            places = np.arange(first, first + len(y))
            return np.asarray(holdout.draw_hashes(places) < holdout.bounds[0])
        classes = y.astype(np.intp)
        places = self._class_places(first, classes)
        return np.asarray(holdout.draw_hashes(places) < holdout.bounds[classes])

    def _class_places(self, first: int, of_class: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the places of adjacent rows among those of their classes."""
        holdout = self._holdout
        part = int(np.searchsorted(holdout.first, first, side="right")) - 1
        if first == holdout.first[part]:
            first_places = holdout.places[part]
        else:
            number, first_places = self._reached[part]
            assert number == first, "rows of a part come in their order"
        counts = np.bincount(of_class, minlength=self._n_classes)
        self._reached[part] = first + len(of_class), first_places + counts
        # Sorted by class, the rows of a class have consecutive places.
        row_places = np.empty(len(of_class), np.int64)
        row_places[np.argsort(of_class, kind="stable")] = np.arange(len(of_class)) + np.repeat(
            first_places - (counts.cumsum() - counts), counts
        )
        return row_places


def allot_by_share(counts: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Allot `n` rows to classes in proportion to their sizes, leaving one row of each class."""
    limits = np.maximum(counts - 1, 0)
    n = min(n, int(limits.sum()))
    share = n * counts / max(int(counts.sum()), 1)
    allotted: NDArray[np.int64] = np.minimum(np.floor(share).astype(np.int64), limits)
    # The largest remainder method; of equal remainders the first class gets one more row.
    while (n_left := n - int(allotted.sum())) > 0:
        lacks = np.where(allotted < limits, share - allotted, -np.inf)
        allotted[
            np.argsort(-lacks, kind="stable")[: min(n_left, int((allotted < limits).sum()))]
        ] += 1
    return allotted


#: Returns the edges of at most the given number of bins, for values and their weights.
_EdgeFinder = Callable[[Array, Array | None, int], Array]
#: Rows of the sample that bins are chosen from (fewer rows are all taken), as in scikit-learn.
SAMPLE_ROWS = 200_000
#: Factor on the expected size of the sample, so that enough rows are drawn (by 13 standard
#: deviations).
_OVERDRAW = 1.03
#: Hashed with the seed, so that these draws are independent of other kinds of draws.
_SAMPLE_DRAW = 1
#: A row's bins are padded to a multiple of this many bytes, so that few rows straddle cache lines.
_WORD_BYTES = 8
#: Rows of a tile, to keep temporary arrays small: 512 KiB of float64.
_TILE_ROWS = 2**16


def find_bins(
    rows: OwnRows,
    max_bins: int,
    categories: Sequence[NDArray[np.float64] | None],
    seed: int,
    holdout: HoldoutMask | None,
    n_used: float,
    edges_by: _EdgeFinder = compute_bin_edges,
) -> Bins:
    """Return the bins of all features, from a sample of the `n_used` rows that are not held out.

    `categories` are None for a numeric feature, and empty for a categorical one whose categories
    are to be found in the rows.
    """
    categories = _find_categories(rows, max_bins, categories, holdout)
    sampled, weight, numbers = _sample_rows(rows, seed, holdout, n_used)
    # An all-to-all: each trainer gets the sampled columns whose edges it finds.
    ranges = rows.split_ranges(len(categories))
    column = _deal_columns(rows, sampled, ranges)
    weight, numbers = (
        np.concatenate(parts) for parts in zip(*rows.gather_arrays([weight, numbers]), strict=True)
    )
    if (weight == 1).all():
        weight = weight[:0]
    # Exactly SAMPLE_ROWS of them, those with the smallest draws (different numbers have different
    # hashes); in the order of their numbers, whichever trainers hold them.
    if len(numbers) > SAMPLE_ROWS:
        drawn = draw_by_hash(numbers, seed, _SAMPLE_DRAW)
        chosen = np.flatnonzero(drawn <= np.partition(drawn, SAMPLE_ROWS - 1)[SAMPLE_ROWS - 1])
        chosen = chosen[np.argsort(numbers[chosen], kind="stable")]
    else:
        chosen = np.argsort(numbers, kind="stable")
    own_categories = categories[ranges[rows.rank]]
    weight = weight[chosen] if len(weight) else None
    edges = [
        edges_by(column(j, chosen), weight, max_bins) if c is None else c
        for j, c in enumerate(own_categories)
    ]
    return Bins(_gather_edges(rows, edges), max_bins, np.array([c is not None for c in categories]))


def _sample_rows(
    rows: OwnRows, seed: int, holdout: HoldoutMask | None, n_used: float
) -> tuple[list[Any], Any, Array]:
    """Return a sample of the own lanes' rows, with a few to spare, their weights and numbers."""
    share = 1.0 if n_used <= SAMPLE_ROWS else min(1.0, _OVERDRAW * SAMPLE_ROWS / n_used)
    # Rows draw 64 bits; those up to `last` are in the sample.
    last = np.uint64(min(int(share * 2.0**64), 2**64 - 1))
    lane_parts = rows.map_lanes(
        lambda lane: _sample_lane(rows, lane, seed, last, holdout), rows.lanes
    )
    blocks = [part for parts in lane_parts for part in parts]
    weight = np.concatenate([np.empty(0), *(block_weight for _, block_weight, _ in blocks)])
    numbers = np.concatenate(
        [np.empty(0, np.int64), *(block_numbers for _, _, block_numbers in blocks)]
    )
    return [X for X, _, _ in blocks], weight, numbers


def _find_categories(
    rows: OwnRows,
    max_bins: int,
    given_categories: Sequence[NDArray[np.float64] | None],
    holdout: HoldoutMask | None,
) -> list[NDArray[np.float64] | None]:
    """Return the categories of all features, reading the rows for those that are not known."""
    categories = list(given_categories)
    unknown = [
        j for j, values in enumerate(given_categories) if values is not None and not len(values)
    ]
    if not unknown:
        return categories
    # Categories that only given validation rows have are unknown to the fit.
    excluded = None if holdout is None or holdout.of_fit else holdout
    lane_values = rows.map_lanes(
        lambda lane: _distinct_values(rows, lane, unknown, max_bins, excluded), rows.lanes
    )
    for number, j in enumerate(unknown):
        parts = rows.gather_arrays([_union_sorted([values[number] for values in lane_values])])
        distinct = _union_sorted([part for (part,) in parts])
        if len(distinct) > max_bins:
            raise InvalidDataError(
                f"Categorical feature at index {j} is expected to have a cardinality <= "
                f"{max_bins} but actually has a cardinality of {len(distinct)} or more. Raise "
                "max_bins (255 at most), join rare categories, or encode it as numbers "
                "(TargetEncoder)."
            )
        categories[j] = distinct
    return categories


def _distinct_values(
    rows: OwnRows, lane: int, features: list[int], max_bins: int, excluded: HoldoutMask | None
) -> list[Array]:
    """Return the distinct values of a lane's features; of too many, one more than are allowed."""
    distinct = [np.empty(0) for _ in features]
    is_excluded = None if excluded is None else excluded.make_reader()
    for first, block in rows.iterate_blocks(lane):
        X = block.X
        if is_excluded is not None:
            X = take_rows(X, ~is_excluded(first, block.y))
        for number, j in enumerate(features):
            values = find_distinct_values(X[:, j]).astype(np.float64)
            union = _union_sorted([distinct[number], values[~np.isnan(values)]])
            # One value more than the limit shows that there are too many.
            distinct[number] = union[: max_bins + 1]
    return distinct


def _union_sorted(arrays: list[Array]) -> Array:
    """Return the distinct values of several arrays, sorted."""
    return np.unique(np.concatenate([np.empty(0), *arrays]))


def _gather_edges(
    rows: OwnRows, own_edges: list[NDArray[np.float64]]
) -> tuple[NDArray[np.float64], ...]:
    """Return the edges of all features, gathered from the trainers that found them."""
    own_arrays = [
        np.array([len(e) for e in own_edges], np.int64),
        np.concatenate([np.empty(0), *own_edges]),
    ]
    all_edges: list[NDArray[np.float64]] = []
    for lengths, values in rows.gather_arrays(own_arrays):
        all_edges += np.split(values, lengths.cumsum()[:-1]) if len(lengths) else []
    return tuple(all_edges)


def _sample_lane(
    rows: OwnRows, lane: int, seed: int, last: np.uint64, holdout: HoldoutMask | None
) -> list[tuple[Array, Array, Array]]:
    """Return a lane's sampled rows by block, their weights (empty if none) and numbers."""
    blocks, is_aside = [], None if holdout is None else holdout.make_reader()
    for first, block in rows.iterate_blocks(lane):
        numbers = np.arange(first, first + block.X.shape[0])
        is_sampled = np.ones(len(numbers), bool)
        if last < np.uint64(2**64 - 1):
            is_sampled = draw_by_hash(numbers, seed, _SAMPLE_DRAW) <= last
        if is_aside is not None:
            is_sampled &= ~is_aside(first, block.y)
        X, _, weight = _select_rows(block, is_sampled)
        weight = np.empty(0) if weight is None else weight.astype(np.float64)
        # For rows on a GPU, only the sample is copied to the host.
        blocks.append((fetch_rows(X), weight, numbers[is_sampled]))
    return blocks


class BinnedRows:
    """Binned rows with their targets and weights, in arrays allocated for `max_rows` rows.

    Rows on a GPU are binned there, and their bins stay there; they are copied to the host when
    :attr:`rows` or :attr:`columns` are first read.

    Parameters
    ----------
    max_rows : int
        Most rows.
    bins : Bins
    allocate_zeros : callable
        As `OwnRows.allocate_zeros`.
    numbered : bool, default=False
        Whether the numbers of the rows are kept.
    n_targets : int, default=1
        Columns of the targets, if there are several.

    Attributes
    ----------
    n : int
        Rows.
    device_bins : DeviceBins or None
        Bins that were made on a GPU.
    y : ndarray of float64 of shape (n,), or (n, n_targets) of several
        complex128 if targets are bounds of times (`losses.AFT`).
    weight : ndarray of float64 of shape (n,) or None
    salt : ndarray of uint32 of shape (n,)
        Hash of each row's number among all rows.
    row_numbers : ndarray of int64 of shape (n,) or None
        These numbers, if they are kept.
    queries : ndarray of int64 of shape (n,)
        Codes of the rows' queries; empty if targets have none.
    extra : dict
        Further arrays of the solver.
    """

    def __init__(
        self, max_rows: int, bins: Bins,
        allocate_zeros: Callable[[tuple[int, ...], Any], NDArray[Any]], numbered: bool = False,
        n_targets: int = 1,
    ) -> None:  # fmt: skip
        self.n = 0
        self.bins = bins
        self.allocate_zeros = allocate_zeros
        self.device_bins: Any = None
        self._missing = np.zeros(bins.n_features, np.uint8)
        self._max_rows = max_rows
        # Allocated with the first rows, after their bins: arrays allocated first stay in memory.
        self._y = np.empty((0,) if n_targets == 1 else (0, n_targets))
        self._weight: NDArray[Any] | None = None
        self._salt = np.empty(0, np.uint32)
        self._row_numbers = np.empty(0, np.int64) if numbered else None
        self._queries: NDArray[Any] | None = None
        self.extra: dict[str, Any] = {}

    def add(
        self, X: Any, y: NDArray[Any], weight: NDArray[Any] | None, row_numbers: NDArray[np.int64]
    ) -> None:
        """Append rows and their numbers among all rows; all calls have weights, or none has."""
        if not len(X):
            return
        bins, positions = self.bins, slice(self.n, self.n + len(X))
        if not self.n and lie_on_device(X):
            self.device_bins = open_device_bins(bins)
        # The bins of all blocks are made on the device of the first rows.
        if self.device_bins is not None:
            self.device_bins.add(X)
        else:
            put_in_bins(
                np.ascontiguousarray(fetch_rows(X)), bins.table, bins.n_edges, bins.categorical,
                bins.max_bins, self._host_rows[positions], self.columns[:, positions],
                self._missing,
            )  # fmt: skip
        if y.ndim > self._y.ndim:  # targets come with query codes
            if self._queries is None:
                self._queries = self.allocate_zeros((self._max_rows,), np.int64)
            self._queries[positions] = read_codes(y)
            y = y[:, 0]
        if not self.n:
            dtype = np.complex128 if y.dtype.kind == "c" else np.float64
            self._y = self.allocate_zeros((self._max_rows, *self._y.shape[1:]), dtype)
            self._salt = self.allocate_zeros((self._max_rows,), np.uint32)
            if self._row_numbers is not None:
                self._row_numbers = self.allocate_zeros((self._max_rows,), np.int64)
        self._y[positions] = y
        self._salt[positions] = (draw_by_hash(row_numbers) >> np.uint64(32)).astype(np.uint32)
        if self._row_numbers is not None:
            self._row_numbers[positions] = row_numbers
        if weight is not None:
            if self._weight is None:
                self._weight = self.allocate_zeros((self._max_rows,), np.float64)
            self._weight[positions] = weight
        self.n = positions.stop

    @property
    def missing(self) -> NDArray[np.uint8]:
        """Return whether each feature has missing values."""
        return self._missing if self.device_bins is None else self.device_bins.fetch_missing()

    @property
    def rows(self) -> NDArray[np.uint8]:
        """Return the bins of each row, (n, width), padded with zeros, for loops over rows."""
        return self._host_rows[: self.n]

    @cached_property
    def _host_rows(self) -> NDArray[np.uint8]:
        width = -(-self.bins.n_features // _WORD_BYTES) * _WORD_BYTES
        rows = self.allocate_zeros((self._max_rows, width), np.uint8)
        if self.device_bins is not None:
            self.device_bins.copy_rows(rows)
        return rows

    @cached_property
    def columns(self) -> NDArray[np.uint8]:
        """Return the bins of each feature, (n_features, most), for loops over all rows.

        Positions after the last row are unused. They are not cut off: the array would not be
        contiguous, and loops would be compiled for both layouts.
        """
        columns = self.allocate_zeros((self.bins.n_features, self._max_rows), np.uint8)
        if self.device_bins is not None:
            self.device_bins.copy_columns(columns)
        return columns

    @property
    def y(self) -> NDArray[np.float64]:
        return self._y[: self.n]

    @property
    def salt(self) -> NDArray[np.uint32]:
        return self._salt[: self.n]

    @property
    def row_numbers(self) -> NDArray[np.int64] | None:
        return None if self._row_numbers is None else self._row_numbers[: self.n]

    @property
    def queries(self) -> NDArray[np.int64]:
        return np.empty(0, np.int64) if self._queries is None else self._queries[: self.n]

    @property
    def weight(self) -> NDArray[np.float64] | None:
        return None if self._weight is None else self._weight[: self.n]


def bin_rows(
    rows: OwnRows, lane: int, bins: Bins, holdout: HoldoutMask | None, numbered: bool = False,
    n_targets: int = 1,
) -> tuple[BinnedRows, BinnedRows | None]:  # fmt: skip
    """Return the binned rows of a lane, and those that are held out for validation."""
    n_rows = rows.count_rows(lane)
    training = BinnedRows(n_rows, bins, rows.allocate_zeros, numbered, n_targets)
    if holdout is None:
        for first, block in rows.iterate_blocks(lane):
            numbers = np.arange(first, first + len(block.X))
            training.add(block.X, block.y, block.weight, numbers)
        return training, None
    held_out = BinnedRows(n_rows, bins, rows.allocate_zeros, numbered, n_targets)
    is_aside = holdout.make_reader()
    for first, block in rows.iterate_blocks(lane):
        numbers = np.arange(first, first + len(block.X))
        is_held = is_aside(first, block.y)
        training.add(*_select_rows(block, ~is_held), numbers[~is_held])
        X, y, weight = _select_rows(block, is_held)
        weight = None if weight is None else holdout.restore_weight(y, weight)
        held_out.add(X, y, weight, numbers[is_held])
    return training, held_out


def _select_rows(
    block: BatchRows, row_mask: NDArray[np.bool_]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Return chosen rows of a block, their targets and weights."""
    # Views instead of copies.
    if row_mask.all():
        return block.X, block.y, block.weight
    weight = None if block.weight is None else block.weight[row_mask]
    return take_rows(block.X, row_mask), block.y[row_mask], weight


def iterate_tiles(n: int) -> Iterator[slice]:
    """Yield slices of tiles that cover `n` rows."""
    for start in range(0, n, _TILE_ROWS):
        yield slice(start, min(n, start + _TILE_ROWS))


def _deal_columns(
    rows: OwnRows, row_blocks: Sequence[Any], ranges: Sequence[slice]
) -> Callable[[int, Array], Array]:
    """Exchange all trainers' rows for the own range of their columns.

    Return a function that returns some rows of the j-th own column.
    """
    if rows.max_trainers(np.array([float(any(isinstance(X, CSRRows) for X in row_blocks))]))[0]:
        return _deal_sparse_columns(rows, row_blocks, ranges)
    X = np.concatenate(row_blocks or [np.empty((0, ranges[-1].stop), np.float32)])
    own_columns = np.concatenate(
        rows.exchange_arrays([np.ascontiguousarray(X[:, columns]) for columns in ranges])
    )
    return lambda j, columns: own_columns[columns, j]


def _deal_sparse_columns(
    rows: OwnRows, row_blocks: Sequence[Any], ranges: Sequence[slice]
) -> Callable[[int, Array], Array]:
    """Return the result of `_deal_columns`, exchanging CSC matrices."""
    n_features = ranges[-1].stop
    blocks = [sparse.csr_array((0, n_features)), *map(_as_csr_matrix, row_blocks)]
    X = sparse.csc_array(sparse.vstack(blocks))
    range_parts = [X[:, columns] for columns in ranges]
    ends = rows.exchange_arrays([part.indptr.astype(np.int64) for part in range_parts])
    indices = rows.exchange_arrays([part.indices.astype(np.int64) for part in range_parts])
    values = rows.exchange_arrays([part.data for part in range_parts])
    counts = [int(n) for (n,) in rows.exchange_arrays([np.array([X.shape[0]])] * len(ranges))]
    starts = np.append(0, np.cumsum(counts))

    def column(j: int, row_indices: Array) -> Array:
        dense = np.zeros(starts[-1], np.result_type(*values))
        for (first, _), end, index, value in zip(
            pairwise(starts), ends, indices, values, strict=True
        ):
            stored = slice(end[j], end[j + 1])
            # One column is made dense at a time; row numbers count from each trainer's first.
            dense[first + index[stored]] = value[stored]
        return np.asarray(dense[row_indices])

    return column


def _as_csr_matrix(X: Any) -> Any:
    return sparse.csr_array(X.X[X.rows] if isinstance(X, CSRRows) else X)
