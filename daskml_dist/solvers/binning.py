"""Bins of features for trees, and the rows of a lane as bins, a byte for each entry.

:func:`find_bins` chooses the bins of all features from a sample of the rows that is the same on
any number of workers; :func:`bin_rows` then makes a :class:`BinnedRows` of each lane. Each
trainer finds the edges of a range of the features, for which the sampled columns are exchanged.

A :class:`HoldoutMask` says which rows are held out for validation, stratified by class. It follows
from the seed and a row's place among all rows of its class; places are known from the class counts
of each block, so no row is read to find them.
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

from daskml_dist.backends.binning import put_in_bins
from daskml_dist.backends.csr_rows import CSRRows
from daskml_dist.errors import InvalidDataError
from daskml_dist.models.base import BatchRows
from daskml_dist.models.bins import Bins, compute_bin_edges, draw_by_hash
from daskml_dist.solvers.own_rows import Array, OwnRows

#: Number of the first of some neighbours, and their targets: says of each whether it is kept aside.
IsAside = Callable[[int, NDArray[Any]], NDArray[np.bool_]]

#: Key of this use of the seed, so that draws do not repeat another use's.
_HOLDOUT_DRAW = 2
#: Draws that are hashed at once: 8 MiB.
_DRAWS_AT_ONCE = 1 << 20
#: Half width, in standard deviations of an order statistic, of the window in which it is searched:
#: it lies outside with a probability below 1e-22.
_WINDOW_DEVIATIONS = 10.0


class HoldoutMask(Protocol):
    """Interface of the rules that say which rows are held out.

    Attributes
    ----------
    of_fit : bool
        Whether the user gave them for the fit, so that their categories are known.
    """

    of_fit: ClassVar[bool]

    def n_left(self, n_rows: int) -> float:
        """Return about how many of `n_rows` rows are left to train on."""

    def reader(self) -> IsAside:
        """Return a function for one pass, which takes the rows of each block in their order."""

    def located(self, rows: OwnRows) -> HoldoutMask:
        """Return the same mask with the counts of the parts that these trainers hold.

        All trainers call it.
        """
        return self

    def own_weight(self, y: NDArray[Any], weight: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the held-out rows' weights as the user gave them."""
        return weight


@dataclass(frozen=True, eq=False)
class TrailingRows(HoldoutMask):
    """Rows that stand behind those of the fit: the user gave them for validation.

    Parameters
    ----------
    first : int
        Number of the first of them.
    class_weight : ndarray of float64 of shape (n_classes,) or None
        Weights of the classes in the fit, which are none of these rows'.
    """

    first: int
    class_weight: NDArray[np.float64] | None = None
    of_fit: ClassVar[bool] = False

    def n_left(self, n_rows: int) -> float:
        return float(self.first)

    def own_weight(self, y: NDArray[Any], weight: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.class_weight is None:
            return weight
        # Of a class of factor 0 nothing is known any more.
        factors = np.where(self.class_weight > 0, self.class_weight, 1.0)
        return np.asarray(weight / factors[y.astype(np.intp)])

    def reader(self) -> IsAside:
        return lambda first, y: np.arange(first, first + len(y)) >= self.first


@dataclass(frozen=True, eq=False)
class StratifiedHoldout(HoldoutMask):
    """Random rows of each class, as many as its share of all rows.

    Parameters
    ----------
    first : ndarray of int64 of shape (n_parts,)
        Number of the first row of each part of the rows, in their order.
    counts : ndarray of int64 of shape (n_parts, n_classes)
        Rows of each class in each part; of one class where there are none.
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
        if self.counts.shape[1] == 1:
            return self  # the place of a row is its number
        firsts = np.concatenate([np.empty(0, np.int64), *map(rows.first_row_numbers, rows.lanes)])
        cut = not np.isin(firsts, self.first).all()
        if not rows.max_trainers(np.array([float(cut)]))[0]:
            return self
        # Lanes have parts of blocks: how many of each class, only their rows tell.
        found = rows.map_lanes(lambda lane: self._count_classes(rows, lane), rows.lanes)
        given = rows.gather_arrays([firsts, np.concatenate(found)])
        first, counts = (np.concatenate(parts) for parts in zip(*given, strict=True))
        order = np.argsort(first, kind="stable")
        return replace(self, first=first[order], counts=counts[order])

    def n_left(self, n_rows: int) -> float:
        return float(n_rows - self.n)

    def reader(self) -> IsAside:
        return _HoldoutReader(self)

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Return the place of each part's first row of each class, all rows sorted by class."""
        of_class = self.counts.sum(axis=0)
        before = self.counts.cumsum(axis=0) - self.counts
        return np.asarray(before + (of_class.cumsum() - of_class))

    @cached_property
    def bounds(self) -> NDArray[np.uint64]:
        """Return the draw below which the rows of each class are held out."""
        counts = self.counts.sum(axis=0)
        firsts = (counts.cumsum() - counts).tolist()
        held = allot_by_share(counts, self.n)
        given = zip(firsts, counts.tolist(), held.tolist(), strict=True)
        return np.array([self._find_threshold(first, n, k) for first, n, k in given], np.uint64)

    def drawn(self, places: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the hashed draws of some places."""
        return draw_by_hash(places, self.seed, _HOLDOUT_DRAW)

    def _count_classes(self, rows: OwnRows, lane: int) -> NDArray[np.int64]:
        """Return the rows of each class in the parts of a lane."""
        firsts, k = rows.first_row_numbers(lane), self.counts.shape[1]
        order = np.argsort(firsts, kind="stable")
        found = np.zeros((len(firsts), k), np.int64)
        for first, block in rows.iterate_blocks(lane):
            part = order[np.searchsorted(firsts[order], first, side="right") - 1]
            found[part] += np.bincount(block.y.astype(np.intp), minlength=k)
        return found

    def _find_threshold(self, first: int, n: int, k: int) -> int:
        """Return the draw below which exactly `k` of `n` places draw."""
        if k == 0:
            return 0
        # It is looked for where it must be, so that few draws are kept.
        share = k / n
        # The k-th smallest of n uniform draws lies near k / n; search only this window.
        spread = _WINDOW_DEVIATIONS * ((k * (1 - share)) ** 0.5 + 1) / n
        low, high = (
            np.uint64(int(min(max(at, 0.0), 1.0) * (2**64 - 2**12)))
            for at in (share - spread, share + spread)
        )
        below, kept = 0, []
        for start in range(first, first + n, _DRAWS_AT_ONCE):
            found = self.drawn(np.arange(start, min(start + _DRAWS_AT_ONCE, first + n)))
            below += int((found < low).sum())
            kept.append(found[(found >= low) & (found <= high)])
        window = np.sort(np.concatenate(kept))
        at = min(max(k - below, 0), len(window))
        return int(window[at]) if at < len(window) else int(high) + 1


class _HoldoutReader:
    """Function that says which rows of a pass are held out."""

    def __init__(self, held: StratifiedHoldout) -> None:
        self._held, self._n_classes = held, held.counts.shape[1]
        #: Of parts begun: number of the next row, places of the next of each class.
        self._reached: dict[int, tuple[int, NDArray[np.int64]]] = {}

    def __call__(self, first: int, y: NDArray[Any]) -> NDArray[np.bool_]:
        held = self._held
        if self._n_classes == 1:
            places = np.arange(first, first + len(y))
            return np.asarray(held.drawn(places) < held.bounds[0])
        of_class = y.astype(np.intp)
        places = self._class_places(first, of_class)
        return np.asarray(held.drawn(places) < held.bounds[of_class])

    def _class_places(self, first: int, of_class: NDArray[np.intp]) -> NDArray[np.int64]:
        held = self._held
        part = int(np.searchsorted(held.first, first, side="right")) - 1
        if first == held.first[part]:
            places = held.places[part]
        else:
            number, places = self._reached[part]
            assert number == first, "rows of a part come in their order"
        counts = np.bincount(of_class, minlength=self._n_classes)
        self._reached[part] = first + len(of_class), places + counts
        found = np.empty(len(of_class), np.int64)
        found[np.argsort(of_class, kind="stable")] = np.arange(len(of_class)) + np.repeat(
            places - (counts.cumsum() - counts), counts
        )
        return found


def allot_by_share(counts: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Allot `n` rows to classes by their shares, so that one row of each class stays at least.

    The largest remainders get one more, of equal ones the first.
    """
    most = np.maximum(counts - 1, 0)
    n = min(n, int(most.sum()))
    share = n * counts / max(int(counts.sum()), 1)
    found: NDArray[np.int64] = np.minimum(np.floor(share).astype(np.int64), most)
    while (rest := n - int(found.sum())) > 0:
        # The largest remainder method.
        lacks = np.where(found < most, share - found, -np.inf)
        found[np.argsort(-lacks, kind="stable")[: min(rest, int((found < most).sum()))]] += 1
    return found


#: Edges of some values and their weights, for so many bins.
EdgeFinder = Callable[[Array, Array | None, int], Array]
#: Rows of the sample that bins are chosen from; of fewer rows, all. As in scikit-learn.
SAMPLE_ROWS = 200_000
#: Factor on the expected sample, so that enough rows are drawn surely (13 standard deviations).
_OVERDRAW = 1.03
#: Key of this use of the seed, so that draws do not repeat another use's.
_SAMPLE_DRAW = 1
#: Bytes that a row's bins are padded to a multiple of, so that few rows straddle cache lines.
_WORD_BYTES = 8
#: Rows that temporary arrays are made of at once: 512 KiB of float64.
TILE_ROWS = 2**16


def find_bins(
    rows: OwnRows,
    max_bins: int,
    categories: Sequence[NDArray[np.float64] | None],
    seed: int,
    aside: HoldoutMask | None,
    n_used: float,
    edges_by: EdgeFinder = compute_bin_edges,
) -> Bins:
    """Return the bins of all features."""
    categories = _find_categories(rows, max_bins, categories, aside)
    sampled, weight, numbers = _sample_rows(rows, seed, aside, n_used)
    # Each trainer gets the columns that it finds edges of.
    ranges = rows.split_ranges(len(categories))
    column = deal_columns(rows, sampled, ranges)
    weight, numbers = (
        np.concatenate(parts) for parts in zip(*rows.gather_arrays([weight, numbers]), strict=True)
    )
    if (weight == 1).all():
        weight = weight[:0]
    if len(numbers) > SAMPLE_ROWS:
        # Numbers differ, and so do what they are hashed to.
        drawn = draw_by_hash(numbers, seed, _SAMPLE_DRAW)
        at = np.flatnonzero(drawn <= np.partition(drawn, SAMPLE_ROWS - 1)[SAMPLE_ROWS - 1])
        at = at[np.argsort(numbers[at], kind="stable")]
    else:
        at = np.argsort(numbers, kind="stable")
    own = categories[ranges[rows.rank]]
    weight = weight[at] if len(weight) else None
    edges = [
        edges_by(column(j, at), weight, max_bins) if c is None else c for j, c in enumerate(own)
    ]
    return Bins(_gather_edges(rows, edges), max_bins, np.array([c is not None for c in categories]))


def _sample_rows(
    rows: OwnRows, seed: int, aside: HoldoutMask | None, n_used: float
) -> tuple[list[Any], Any, Array]:
    """Return a sample of the own lanes' rows, with a few to spare, their weights and numbers."""
    share = 1.0 if n_used <= SAMPLE_ROWS else min(1.0, _OVERDRAW * SAMPLE_ROWS / n_used)
    # Rows draw 64 bits; those below `last` are in the sample.
    last = np.uint64(min(int(share * 2.0**64), 2**64 - 1))
    each = rows.map_lanes(lambda lane: _sample_lane(rows, lane, seed, last, aside), rows.lanes)
    found = [part for parts in each for part in parts]
    weight = np.concatenate([np.empty(0), *(of for _, of, _ in found)])
    numbers = np.concatenate([np.empty(0, np.int64), *(of for _, _, of in found)])
    return [X for X, _, _ in found], weight, numbers


def _find_categories(
    rows: OwnRows,
    max_bins: int,
    given: Sequence[NDArray[np.float64] | None],
    aside: HoldoutMask | None,
) -> list[NDArray[np.float64] | None]:
    """Return the categories of all features, looking in the rows for those that are not known."""
    found = list(given)
    asked = [j for j, known in enumerate(given) if known is not None and not len(known)]
    if not asked:
        return found
    strange = None if aside is None or aside.of_fit else aside
    each = rows.map_lanes(
        lambda lane: _distinct_values(rows, lane, asked, max_bins, strange), rows.lanes
    )
    for number, j in enumerate(asked):
        parts = rows.gather_arrays([_union_sorted([of_lane[number] for of_lane in each])])
        every = _union_sorted([part for (part,) in parts])
        if len(every) > max_bins:
            raise InvalidDataError(
                f"Categorical feature at index {j} is expected to have a cardinality <= "
                f"{max_bins} but actually has a cardinality of {len(every)} or more. Raise "
                "max_bins (255 at most), join rare categories, or encode it as numbers "
                "(TargetEncoder)."
            )
        found[j] = every
    return found


def _distinct_values(
    rows: OwnRows, lane: int, asked: list[int], max_bins: int, strange: HoldoutMask | None
) -> list[Array]:
    """Return distinct values of a lane's features; of too many, one more than are allowed."""
    found, is_strange = [np.empty(0) for _ in asked], None if strange is None else strange.reader()
    for first, block in rows.iterate_blocks(lane):
        X = block.X if is_strange is None else block.X[~is_strange(first, block.y)]
        for number, j in enumerate(asked):
            values = np.unique(X[:, j]).astype(np.float64)
            union = _union_sorted([found[number], values[~np.isnan(values)]])
            found[number] = union[: max_bins + 1]
    return found


def _union_sorted(parts: list[Array]) -> Array:
    return np.unique(np.concatenate([np.empty(0), *parts]))


def _gather_edges(rows: OwnRows, own: list[NDArray[np.float64]]) -> tuple[NDArray[np.float64], ...]:
    """Return the edges of all features, gathered from the trainers that found them."""
    given = [np.array([len(e) for e in own], np.int64), np.concatenate([np.empty(0), *own])]
    every: list[NDArray[np.float64]] = []
    for lengths, values in rows.gather_arrays(given):
        every += np.split(values, lengths.cumsum()[:-1]) if len(lengths) else []
    return tuple(every)


def _sample_lane(
    rows: OwnRows, lane: int, seed: int, last: np.uint64, aside: HoldoutMask | None
) -> list[tuple[Array, Array, Array]]:
    """Return a lane's sampled rows by block, their weights (empty if none) and numbers."""
    found, is_aside = [], None if aside is None else aside.reader()
    for first, block in rows.iterate_blocks(lane):
        numbers = np.arange(first, first + block.X.shape[0])
        which = np.ones(len(numbers), bool)
        if last < np.uint64(2**64 - 1):
            which = draw_by_hash(numbers, seed, _SAMPLE_DRAW) <= last
        if is_aside is not None:
            which &= ~is_aside(first, block.y)
        X, _, weight = select_rows(block, which)
        weight = np.empty(0) if weight is None else weight.astype(np.float64)
        found.append((X, weight, numbers[which]))
    return found


class BinnedRows:
    """Binned rows with their targets and weights, in arrays allocated for `most` rows.

    Parameters
    ----------
    most : int
        Rows at most.
    bins : Bins
    room : callable
        As `OwnRows.allocate_zeros`.
    numbered : bool, default=False
        Whether the numbers of the rows are kept.

    Attributes
    ----------
    n : int
        Rows.
    missing : ndarray of uint8 of shape (n_features,)
        Whether a feature has missing values.
    rows : ndarray of uint8 of shape (n, width)
        The bins of each row, and zeros up to whole words.
    columns : ndarray of uint8 of shape (n_features, n)
        The same by feature.
    y : ndarray of float64 of shape (n,)
    weight : ndarray of float64 of shape (n,) or None
    salt : ndarray of uint32 of shape (n,)
        A hash of each row's number among all.
    numbers : ndarray of int64 of shape (n,) or None
        These, where they are kept.
    extra : dict
        What a solver keeps of them beside.
    """

    def __init__(
        self, most: int, bins: Bins, room: Callable[[tuple[int, ...], Any], NDArray[Any]],
        numbered: bool = False,
    ) -> None:  # fmt: skip
        d = bins.n_features
        self.n = 0
        self.missing = np.zeros(d, np.uint8)
        self.bins = bins
        self.room = room
        self._rows = room((most, -(-d // _WORD_BYTES) * _WORD_BYTES), np.uint8)
        self._columns = room((d, most), np.uint8)
        self._y = room((most,), np.float64)
        self._weight: NDArray[Any] | None = None
        self._salt = room((most,), np.uint32)
        self._numbers = room((most,), np.int64) if numbered else None
        self.extra: dict[str, Any] = {}

    def add(
        self, X: NDArray[Any], y: NDArray[Any], weight: NDArray[Any] | None,
        numbers: NDArray[np.int64],
    ) -> None:  # fmt: skip
        """Add some rows and their numbers among all; weights come with all of them, or none."""
        if not len(X):
            return
        bins, at = self.bins, slice(self.n, self.n + len(X))
        put_in_bins(
            np.ascontiguousarray(X), bins.table, bins.n_edges, bins.categorical, bins.max_bins,
            self._rows[at], self._columns[:, at], self.missing,
        )  # fmt: skip
        self._y[at] = y
        self._salt[at] = (draw_by_hash(numbers) >> np.uint64(32)).astype(np.uint32)
        if self._numbers is not None:
            self._numbers[at] = numbers
        if weight is not None:
            if self._weight is None:
                self._weight = self.room((len(self._y),), np.float64)
            self._weight[at] = weight
        self.n = at.stop

    @property
    def rows(self) -> NDArray[np.uint8]:
        return self._rows[: self.n]

    @property
    def columns(self) -> NDArray[np.uint8]:
        return self._columns[:, : self.n]

    @property
    def y(self) -> NDArray[np.float64]:
        return self._y[: self.n]

    @property
    def salt(self) -> NDArray[np.uint32]:
        return self._salt[: self.n]

    @property
    def numbers(self) -> NDArray[np.int64] | None:
        return None if self._numbers is None else self._numbers[: self.n]

    @property
    def weight(self) -> NDArray[np.float64] | None:
        return None if self._weight is None else self._weight[: self.n]


def bin_rows(
    rows: OwnRows, lane: int, bins: Bins, aside: HoldoutMask | None, numbered: bool = False
) -> tuple[BinnedRows, BinnedRows | None]:
    """Return the binned rows of a lane, and those that are held out for validation."""
    most = rows.count_rows(lane)
    own = BinnedRows(most, bins, rows.allocate_zeros, numbered)
    if aside is None:
        for first, block in rows.iterate_blocks(lane):
            numbers = np.arange(first, first + len(block.X))
            own.add(block.X, block.y, block.weight, numbers)
        return own, None
    held = BinnedRows(most, bins, rows.allocate_zeros, numbered)
    is_aside = aside.reader()
    for first, block in rows.iterate_blocks(lane):
        numbers = np.arange(first, first + len(block.X))
        is_held = is_aside(first, block.y)
        own.add(*select_rows(block, ~is_held), numbers[~is_held])
        X, y, weight = select_rows(block, is_held)
        weight = None if weight is None else aside.own_weight(y, weight)
        held.add(X, y, weight, numbers[is_held])
    return own, held


def select_rows(
    block: BatchRows, which: NDArray[np.bool_]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Return chosen rows of a block, their targets and weights."""
    if which.all():
        return block.X, block.y, block.weight
    return block.X[which], block.y[which], None if block.weight is None else block.weight[which]


def iterate_tiles(n: int) -> Iterator[slice]:
    """Yield slices that cover `n` rows, so that temporary arrays stay small."""
    for start in range(0, n, TILE_ROWS):
        yield slice(start, min(n, start + TILE_ROWS))


def deal_columns(
    rows: OwnRows, parts: Sequence[Any], ranges: Sequence[slice]
) -> Callable[[int, Array], Array]:
    """Give each trainer its range of the columns of all trainers' sampled rows."""
    if rows.max_trainers(np.array([float(any(isinstance(X, CSRRows) for X in parts))]))[0]:
        return _deal_sparse_columns(rows, parts, ranges)
    X = np.concatenate(parts or [np.empty((0, ranges[-1].stop), np.float32)])
    # All-to-all: every trainer gets its columns of all trainers' rows.
    own = np.concatenate(rows.exchange_arrays([np.ascontiguousarray(X[:, at]) for at in ranges]))
    return lambda j, at: own[at, j]


def _deal_sparse_columns(
    rows: OwnRows, parts: Sequence[Any], ranges: Sequence[slice]
) -> Callable[[int, Array], Array]:
    n_features = ranges[-1].stop
    blocks = [sparse.csr_array((0, n_features)), *map(_as_csr_matrix, parts)]
    X = sparse.csc_array(sparse.vstack(blocks))
    given = [X[:, at] for at in ranges]
    ends = rows.exchange_arrays([part.indptr.astype(np.int64) for part in given])
    indices = rows.exchange_arrays([part.indices.astype(np.int64) for part in given])
    values = rows.exchange_arrays([part.data for part in given])
    counts = [int(n) for (n,) in rows.exchange_arrays([np.array([X.shape[0]])] * len(ranges))]
    starts = np.append(0, np.cumsum(counts))

    def column(j: int, at: Array) -> Array:
        found = np.zeros(starts[-1], np.result_type(*values))
        for (first, _), end, index, value in zip(
            pairwise(starts), ends, indices, values, strict=True
        ):
            stored = slice(end[j], end[j + 1])
            # One column is made dense at a time.
            found[first + index[stored]] = value[stored]
        return np.asarray(found[at])

    return column


def _as_csr_matrix(X: Any) -> Any:
    return sparse.csr_array(X.X[X.rows] if isinstance(X, CSRRows) else X)
