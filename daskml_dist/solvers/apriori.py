"""Apriori: frequent itemsets, found length by length.

Only an itemset all of whose subsets are frequent can be frequent. So the candidates of one length
(a *level*) are counted on all rows, and pairs of frequent ones that differ only in their last item
are joined to the candidates of the next length. Counts are statistics over rows that are packed
into bits by item (`ItemBits`), so that the support of an itemset is a popcount of an AND.

With missing values an item has two columns, "has it" and "known". The support of an itemset is then
a ratio of two counts: of the rows that have its items, and of the rows in which these are known.

References
----------
R. Agrawal and R. Srikant, "Fast algorithms for mining association rules", VLDB 1994. For counts
of several processes, which are added up: R. Agrawal and J. C. Shafer, "Parallel mining of
association rules", IEEE TKDE 8(6), 1996 (count distribution).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend
from daskml_dist.backends.item_bits import (
    ItemBits,
    add_item_counts,
    add_pair_counts,
    add_set_counts,
    find_first_negative,
)
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers.base import Array, RowState, Solution, Solver, Statistic, Sums

#: Returns the itemsets of some candidates of a batch, of shape (n, k), as indices of the frequent
#: items.
_ItemsetsAt = Callable[[NDArray[np.intp]], NDArray[np.int32]]

#: Most candidates counted in one pass: 16 MiB of float64 counts a trainer.
_MAX_CANDIDATES_PER_PASS = 1 << 21
#: Most items of a frequent itemset, to bound the passes: an itemset of n items has 2 ** n frequent
#: subsets, more than can be counted.
_MAX_ITEMSET_LENGTH = 64


@dataclass(frozen=True)
class Apriori(Solver):
    """Search for the itemsets that are in enough rows.

    Parameters
    ----------
    min_support : float or int
        Share of the rows, of (0, 1], or, an int, their number.
    max_length : int or None
        Items of an itemset at most.
    max_candidates : int
        Candidates of a level at most.
    with_nulls : bool
        Whether the rows have two columns per item: first, for all items, whether a row has it;
        then, for all items, whether that is known. The support of an itemset is then its share of
        the rows in which all its items are known. Such supports may rise when an item is added; an
        itemset is found only if all its subsets are frequent.
    """

    name = "apriori"
    min_support: float
    max_length: int | None
    max_candidates: int
    with_nulls: bool = False

    @property
    def max_passes(self) -> int:
        """Return the most passes that `max_candidates` allows."""
        levels = min(self.max_length or _MAX_ITEMSET_LENGTH, _MAX_ITEMSET_LENGTH)
        # Twice the full passes: a batch of pairs ends where those of a first item do, so batches
        # may be half full on average.
        n_passes = 1 + levels * (2 + 2 * self.max_candidates // _MAX_CANDIDATES_PER_PASS)
        # An itemset may have so many cuts that `_count_splits` takes a pass for each.
        return n_passes if not self.with_nulls else n_passes + levels * self.max_candidates

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Count level after level; return the frequent itemsets as ``extra["levels"]``."""
        if sums.kept is not None:
            progress = _AprioriProgress.of_state(sums.kept)
        else:
            progress = _AprioriProgress()
            # Level 1: every item is a candidate.
            counts = sums(ItemCounts())
            if self.with_nulls:
                # Of each item: rows that have it, rows that know it.
                counts = counts.reshape(2, -1).T
            items = self._find_frequent(counts, sums.n_rows)
            progress.items, progress.counts = items, [counts[items]]
            progress.sets = [np.arange(len(items), dtype=np.int32)[:, None]]
        while self._has_next_level(progress):
            if sums.should_stop:
                return progress.make_solution(sums.n_rows, "the fit was stopped")
            level = self._make_candidates(progress)
            while progress.position < level.n:
                self._count_candidates(level, progress, sums, model.n_items // 2)
                sums.keep(np.empty(0), progress.state)
                # A level that was not counted to its end is dropped.
                if sums.should_stop and progress.position < level.n:
                    return progress.make_solution(sums.n_rows, "the fit was stopped")
            progress.end_level()
        solution = progress.make_solution(sums.n_rows, "")
        if self.with_nulls:
            # Association rules divide by the rows with the antecedent in which the consequent is
            # known: one more count for each cut of an itemset.
            solution.extra["splits"] = [
                self._count_splits(progress.items[sets], sums, model.n_items // 2)
                for sets in progress.sets
                if len(sets)
            ]
        return solution

    def _find_frequent(self, counts: Array, n_rows: int) -> NDArray[np.intp]:
        """Return the indices of the frequent candidates among the counts of some."""
        count, n_known = counts.T if self.with_nulls else (counts, n_rows)
        if isinstance(self.min_support, int):
            return np.flatnonzero(count >= self.min_support)
        # The division that a user's comparison of supports makes, rather than a product with its
        # own rounding: 7 rows of 100 have a support of 0.07, though 0.07 * 100 > 7.
        return np.flatnonzero((count > 0) & (count / np.maximum(n_known, 1) >= self.min_support))

    def _has_next_level(self, progress: _AprioriProgress) -> bool:
        """Return whether longer itemsets may exist: one of length k has k subsets of k - 1."""
        length = len(progress.sets) + 1
        return len(progress.sets[-1]) >= length and length <= (self.max_length or length)

    def _make_candidates(self, progress: _AprioriProgress) -> _PairCandidates | _SetCandidates:
        """Return the candidates of the next level; raise if there are too many."""
        length = len(progress.sets) + 1
        # All pairs of frequent items are candidates, and need no list.
        level: _PairCandidates | _SetCandidates = (
            _PairCandidates(progress.items)
            if length == 2
            else _SetCandidates.from_progress(progress, self.max_candidates)
        )
        if level.n > self.max_candidates:
            raise InvalidParameterError(
                f"The {len(progress.sets[-1]):,} frequent itemsets of length {length - 1} make "
                f"more than max_candidates={self.max_candidates:,} candidates of length {length}. "
                f"So far there are {progress.describe_levels()}. Raise min_support (now "
                f"{self.min_support:g}), set max_length={length - 1}, or raise max_candidates if "
                "there is enough memory."
            )
        return level

    def _count_candidates(
        self,
        level: _PairCandidates | _SetCandidates,
        progress: _AprioriProgress,
        sums: Sums,
        n_items: int,
    ) -> None:
        """Count the next batch of a level's candidates in one pass, and keep the frequent ones."""
        statistic, itemsets_at, end = level.take_batch(progress.position)
        if self.with_nulls:
            counts = sums(_with_known_rows(statistic, n_items)).reshape(2, -1).T
        else:
            counts = sums(statistic)
        frequent = self._find_frequent(counts, sums.n_rows)
        progress.new_sets.append(itemsets_at(frequent))
        progress.new_counts.append(counts[frequent])
        progress.position = end

    @staticmethod
    def _count_splits(sets: NDArray[np.int64], sums: Sums, n_items: int) -> NDArray[np.int64]:
        """Return, for each cut of itemsets, the rows with the first part and the second known.

        Columns of `sets` are below `n_items`; the result has shape (n_sets, n_cuts).
        """
        cuts = itemset_cuts(sets.shape[1])
        cut_counts = np.empty((len(sets), len(cuts)), np.int64)
        if not cuts:
            return cut_counts
        # A cut of an itemset is counted as a separate candidate, of the "has" columns of the
        # first part's items and the "known" columns (`n_items` further on) of the second's.
        is_known = np.ones((len(cuts), sets.shape[1]), np.int64)
        for row, cut in zip(is_known, cuts, strict=True):
            row[list(cut)] = 0
        step = max(1, _MAX_CANDIDATES_PER_PASS // len(cuts))
        for start in range(0, len(sets), step):
            columns = sets[start : start + step, None] + n_items * is_known
            items, numbers = np.unique(columns, return_inverse=True)
            numbers = numbers.reshape(-1, sets.shape[1]).astype(np.int32)
            # These candidates share no prefixes: each is a prefix with one last item.
            bounds = np.arange(len(numbers) + 1)
            counts = sums(SetCounts(items, numbers[:, :-1], bounds, numbers[:, -1]))
            cut_counts[start : start + step] = counts.reshape(-1, len(cuts))
        return cut_counts


def itemset_cuts(length: int) -> list[tuple[int, ...]]:
    """Return the positions of the first part in every cut of an itemset in two, shortest first."""
    return [cut for size in range(1, length) for cut in combinations(range(length), size)]


def _with_known_rows(statistic: PairCounts | SetCounts, n_items: int) -> SetCounts:
    """Return a statistic's candidates, followed by the same ones of the items' "known" columns."""
    candidates = statistic.as_sets() if isinstance(statistic, PairCounts) else statistic
    m = len(candidates.items)
    return SetCounts(
        np.concatenate([candidates.items, candidates.items + n_items]),
        np.concatenate([candidates.prefix, candidates.prefix + np.int32(m)]),
        np.concatenate([candidates.bounds, candidates.bounds[1:] + len(candidates.last)]),
        np.concatenate([candidates.last, candidates.last + np.int32(m)]),
    )


@dataclass
class _AprioriProgress:
    """Frequent itemsets so far, level by level.

    Parameters
    ----------
    items : ndarray of int64
        Columns of the frequent items.
    sets, counts : list of ndarray
        For each level counted to its end: itemsets of shape (n, k), as indices of `items`, and
        their counts.
    new_sets, new_counts : list of ndarray
        The same for each batch of the level that is being counted.
    position : int
        Candidates of this level that have been counted.
    """

    items: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    sets: list[NDArray[np.int32]] = field(default_factory=list)
    counts: list[Array] = field(default_factory=list)
    new_sets: list[NDArray[np.int32]] = field(default_factory=list)
    new_counts: list[Array] = field(default_factory=list)
    position: int = 0

    def end_level(self) -> None:
        """Append the level that was counted to its end, and start the next one."""
        # Empty arrays first, of the right shapes: a level may have no candidates.
        empty = np.empty((0, len(self.sets) + 1), np.int32), self.counts[0][:0]
        self.sets.append(np.concatenate([empty[0], *self.new_sets]))
        self.counts.append(np.concatenate([empty[1], *self.new_counts]))
        self.new_sets, self.new_counts, self.position = [], [], 0

    def describe_levels(self) -> str:
        """Return the number of frequent itemsets of each length, in words."""
        level_texts = (f"{len(sets):,} of length {k}" for k, sets in enumerate(self.sets, 1))
        return ", ".join(level_texts)

    def make_solution(self, n_rows: int, problem: str) -> Solution:
        """Return the solution of the levels counted to their end; `problem` is why no more were."""
        levels = [
            (self.items[sets], counts.astype(np.int64))
            for sets, counts in zip(self.sets, self.counts, strict=True)
            if len(sets)
        ]
        extra = {"levels": levels, "n_rows": n_rows}
        return Solution(np.empty(0), len(self.sets), not problem, problem, extra)

    def state(self) -> dict[str, Array]:
        """Return the search as arrays by name, from which `of_state` restores it."""
        levels = [*zip(self.sets, self.counts, strict=True)]
        # A position above 0 tells that the last level stored is still being counted.
        if self.position:
            levels.append((np.concatenate(self.new_sets), np.concatenate(self.new_counts)))
        arrays: dict[str, Any] = {"items": self.items, "position": np.array([self.position])}
        for k, (sets, counts) in enumerate(levels):
            arrays |= {f"sets{k}": sets, f"counts{k}": counts}
        return arrays

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> _AprioriProgress:
        """Return the search that was stored as a state."""
        n_levels = (len(state) - 2) // 2  # two arrays a level, beside the items and the position
        sets = [state[f"sets{k}"] for k in range(n_levels)]
        counts = [state[f"counts{k}"] for k in range(n_levels)]
        (position,) = state["position"].tolist()
        if not position:
            return cls(state["items"], sets, counts)
        return cls(state["items"], sets[:-1], counts[:-1], sets[-1:], counts[-1:], position)


@dataclass(frozen=True, eq=False)
class _PairCandidates:
    """All pairs of frequent items as candidates, in the order of an upper triangle's rows.

    Parameters
    ----------
    items : ndarray of int64
        Columns of the frequent items.
    """

    items: NDArray[np.int64]

    @property
    def n(self) -> int:
        """Return the number of candidates."""
        return len(self.items) * (len(self.items) - 1) // 2

    @cached_property
    def _pair_ends(self) -> NDArray[np.int64]:
        """Return, for each first item, the number of pairs up to its last one."""
        return np.cumsum(np.arange(len(self.items) - 1, 0, -1))

    def take_batch(self, position: int) -> tuple[PairCounts, _ItemsetsAt, int]:
        """Return the statistic of a batch, its itemsets by their indices, and its end position."""
        # A batch holds all pairs of some first items: as many as fit, and one at least.
        batch = [position, position + _MAX_CANDIDATES_PER_PASS]
        first, end = np.searchsorted(self._pair_ends, batch, side="right").tolist()
        end = max(end, first + 1)

        def itemsets_at(indices: NDArray[np.intp]) -> NDArray[np.int32]:
            # Row and column of an entry of the upper triangle; each row ends in the last column.
            row = np.searchsorted(self._pair_ends, indices + position, side="right")
            column = indices + position - self._pair_ends[row] + len(self.items)
            return np.column_stack([row, column]).astype(np.int32)

        return PairCounts(self.items, first, end), itemsets_at, int(self._pair_ends[end - 1])


@dataclass(frozen=True, eq=False)
class _SetCandidates:
    """Candidates of three or more items, grouped by their prefix: all items but the last.

    Parameters
    ----------
    items, prefix, bounds, last
        As of `SetCounts`.
    item_indices : ndarray of int32
        Indices of `items` among the frequent items.
    """

    items: NDArray[np.int64]
    prefix: NDArray[np.int32]
    bounds: NDArray[np.int64]
    last: NDArray[np.int32]
    item_indices: NDArray[np.int32]

    @classmethod
    def from_progress(cls, progress: _AprioriProgress, max_candidates: int) -> _SetCandidates:
        """Join the last level's itemsets to candidates, at most one more than `max_candidates`."""
        from daskml_dist.backends.itemset_kernels import join_frequent_sets

        # apriori-gen (Agrawal and Srikant, section 2.1.1): its join and its prune in one loop.
        set_index, bounds, last = join_frequent_sets(progress.sets[-1], max_candidates)
        prefix = progress.sets[-1][set_index]
        # Bits of items that no candidate has are not packed: renumber the others.
        is_used = np.zeros(len(progress.items), bool)
        is_used[prefix] = is_used[last] = True
        number = np.cumsum(is_used, dtype=np.int32) - 1
        (numbers,) = np.nonzero(is_used)
        return cls(
            progress.items[numbers], number[prefix], bounds, number[last], numbers.astype("i4")
        )

    @property
    def n(self) -> int:
        """Return the number of candidates."""
        return len(self.last)

    def take_batch(self, position: int) -> tuple[SetCounts, _ItemsetsAt, int]:
        """Return the statistic of a batch, its itemsets by their indices, and its end position."""
        end = min(position + _MAX_CANDIDATES_PER_PASS, self.n)
        # The prefixes of the batch; the first and the last one may be in other batches too.
        first = int(np.searchsorted(self.bounds, position, side="right")) - 1
        stop = int(np.searchsorted(self.bounds, end))
        bounds = np.clip(self.bounds[first : stop + 1], position, end) - position
        prefix, last = self.prefix[first:stop], self.last[position:end]

        def itemsets_at(indices: NDArray[np.intp]) -> NDArray[np.int32]:
            set_index = np.searchsorted(bounds, indices, side="right") - 1
            return self.item_indices[np.column_stack([prefix[set_index], last[indices]])]

        return SetCounts(self.items, prefix, bounds, last), itemsets_at, end


class BasketBits(RowState):
    """Rows packed into bits by item, once for all levels."""

    name = "bits"

    def make(self, model: Any, rows: BatchRows, backend: Backend) -> Any:
        """Return an empty store; the first statistic fills it."""
        return ItemBits()


@dataclass(frozen=True, eq=False)
class ItemCounts(Statistic):
    """Number of rows that have each item, which also checks that no entry is negative."""

    in_parts: ClassVar[bool] = True

    def shape(self, model: Any) -> tuple[int, ...]:
        return (model.n_items,)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Any) -> None:
        if (negative := find_first_negative(rows.X, backend)) is not None:
            row, value = negative
            raise InvalidDataError(
                f"Block {rows.block}: X holds {value:g} (row {rows.first + row} of the block). "
                "An entry tells whether, or how much of, an item is in a basket: make it zero "
                "or more, such as X > 0."
            )
        add_item_counts(rows.X, out, backend)


@dataclass(frozen=True, eq=False)
class SetCounts(Statistic):
    """Number of rows that have each candidate of two or more items.

    Parameters
    ----------
    items : ndarray of int64
        Columns that any candidate has, sorted.
    prefix : ndarray of int32 of shape (n_prefixes, k - 1)
        All items but the last of candidates, as indices of `items`.
    bounds : ndarray of int64 of shape (n_prefixes + 1,)
        Index of the first candidate of each prefix.
    last : ndarray of int32 of shape (n,)
        Last item of each candidate, as an index of `items`.
    """

    items: NDArray[np.int64]
    prefix: NDArray[np.int32]
    bounds: NDArray[np.int64]
    last: NDArray[np.int32]
    in_parts: ClassVar[bool] = True

    @property
    def state(self) -> BasketBits:
        """Return the store of the baskets' bits by item."""
        return BasketBits()

    def shape(self, model: Any) -> tuple[int, ...]:
        return (len(self.last),)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Any) -> None:
        prefix, last = self.prefix, self.last
        for words, items in rows.state.tiles(rows.X, self.items, backend):
            # Words packed for an earlier level have more items: map the candidates to theirs.
            if len(items) > len(self.items):
                position = np.searchsorted(items, self.items).astype(np.int32)
                prefix, last = position[self.prefix], position[self.last]
            add_set_counts(words, prefix, self.bounds, last, out)


@dataclass(frozen=True, eq=False)
class PairCounts(Statistic):
    """Number of rows that have each pair of items.

    Parameters
    ----------
    items : ndarray of int64
        Columns, sorted.
    first, end : int
        Range of the pairs' first items, as indices of `items`; each is paired with all after it.
    """

    items: NDArray[np.int64]
    first: int
    end: int
    in_parts: ClassVar[bool] = True

    @property
    def state(self) -> BasketBits:
        """Return the store of the baskets' bits by item."""
        return BasketBits()

    def shape(self, model: Any) -> tuple[int, ...]:
        first = np.arange(self.first, self.end)
        return (int((len(self.items) - 1 - first).sum()),)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Any) -> None:
        # Sparse rows with few items: counting the pairs in each row is cheaper than packing bits.
        if not add_pair_counts(rows.X, self.items, self.first, self.end, out):
            self.as_sets().add(model, rows, out, backend)

    def as_sets(self) -> SetCounts:
        """Return the same pairs as a list of candidate itemsets."""
        first, m = np.arange(self.first, self.end), len(self.items)
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(m - 1 - first)])
        last = np.concatenate([np.arange(j + 1, m, dtype=np.int32) for j in first.tolist()])
        return SetCounts(self.items, first[:, None].astype(np.int32), bounds, last)
