"""Apriori: frequent itemsets, found length by length.

Only an itemset all of whose subsets are frequent can be frequent. In each round the candidates of
a length (a *level*) are counted on all rows, and the frequent ones are joined to the candidates
of the next length. The counts are statistics on rows that are kept as bits, item by item.

References
----------
R. Agrawal and R. Srikant, "Fast algorithms for mining association rules", VLDB 1994. For counts
of several processes, which are added up: R. Agrawal and J. C. Shafer, "Parallel mining of
association rules", IEEE TKDE 8(6), 1996 (count distribution).
"""

from __future__ import annotations

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

#: Candidates that are counted in one pass, at most: 16 MiB of float64 counts a trainer.
_MAX_CANDIDATES_PER_PASS = 1 << 21
#: Items of a frequent itemset at most: an itemset of n has 2 ** n frequent subsets, so longer ones
#: are never reached.
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
    with_nulls : bool, default=False
        Whether the rows have two columns an item: first of all items whether a row has it, then of
        all items whether that is known. The support of an itemset is then its share of the rows
        in which all its items are known, and only an itemset all of whose parts are frequent is
        found (such supports do not fall with each further item by themselves).
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
        most = 1 + levels * (2 + 2 * self.max_candidates // _MAX_CANDIDATES_PER_PASS)
        return most if not self.with_nulls else most + levels * self.max_candidates

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Count level after level."""
        if sums.kept is not None:
            at = _AprioriProgress.of_state(sums.kept)
        else:
            at = _AprioriProgress()
            found = sums(ItemCounts())
            if self.with_nulls:
                found = found.reshape(2, -1).T
            items = self._find_frequent(found, sums.n_rows)
            at.items, at.counts = items, [found[items]]
            at.sets = [np.arange(len(items), dtype=np.int32)[:, None]]
        while self._has_next_level(at):
            if sums.should_stop:
                return at.make_solution(sums.n_rows, "the fit was stopped")
            level = self._make_candidates(at)
            while at.position < level.n:
                self._count_candidates(level, at, sums, model.n_items // 2)
                sums.keep(np.empty(0), at.state)
                if sums.should_stop and at.position < level.n:
                    return at.make_solution(sums.n_rows, "the fit was stopped")
            at.end_level()
        solution = at.make_solution(sums.n_rows, "")
        if self.with_nulls:
            items = at.items
            solution.extra["splits"] = [
                self._count_splits(items[sets], sums, model.n_items // 2)
                for sets in at.sets
                if len(sets)
            ]
        return solution

    def _find_frequent(self, counts: Array, n_rows: int) -> NDArray[np.intp]:
        """Return the places of counts that are enough."""
        if not self.with_nulls:
            return np.flatnonzero(counts >= _fewest_rows(self.min_support, n_rows))
        count, known = counts.T
        if isinstance(self.min_support, int):
            return np.flatnonzero(count >= self.min_support)
        return np.flatnonzero((count > 0) & (count / np.maximum(known, 1) >= self.min_support))

    def _has_next_level(self, at: _AprioriProgress) -> bool:
        """Return whether longer itemsets may exist: one of length k has k subsets of k - 1."""
        length = len(at.sets) + 1
        return len(at.sets[-1]) >= length and length <= (self.max_length or length)

    def _make_candidates(self, at: _AprioriProgress) -> _PairCandidates | _SetCandidates:
        """Return the candidates of the next level."""
        length = len(at.sets) + 1
        level: _PairCandidates | _SetCandidates
        level = (
            _PairCandidates(at.items) if length == 2 else _SetCandidates.of(at, self.max_candidates)
        )
        if level.n > self.max_candidates:
            raise InvalidParameterError(
                f"The {len(at.sets[-1]):,} frequent itemsets of length {length - 1} make more than "
                f"max_candidates={self.max_candidates:,} candidates of length {length}. So far "
                f"there are {at.describe_levels()}. Raise min_support (now {self.min_support:g}), "
                f"set max_length={length - 1}, or raise max_candidates where there is memory for "
                "them."
            )
        return level

    def _count_candidates(
        self,
        level: _PairCandidates | _SetCandidates,
        at: _AprioriProgress,
        sums: Sums,
        n_items: int,
    ) -> None:
        """Count some of a level's candidates."""
        statistic, sets, end = level.take_batch(at.position)
        if self.with_nulls:
            found = sums(_count_known_rows(statistic, n_items)).reshape(2, -1).T
        else:
            found = sums(statistic)
        kept = self._find_frequent(found, sums.n_rows)
        at.add(sets(kept), found[kept], end)

    @staticmethod
    def _count_splits(sets: NDArray[np.int64], sums: Sums, n_items: int) -> NDArray[np.int64]:
        """Return, for each cut of itemsets, the rows with the first part and the second known."""
        cuts = itemset_cuts(sets.shape[1])
        found = np.empty((len(sets), len(cuts)), np.int64)
        if not cuts:
            return found
        # Columns of each candidate: those of the first part as they are, the second's "known".
        is_known = np.ones((len(cuts), sets.shape[1]), np.int64)
        for row, cut in zip(is_known, cuts, strict=True):
            row[list(cut)] = 0
        # Candidates of a few itemsets at a time, so that a pass's counts stay small.
        step = max(1, _MAX_CANDIDATES_PER_PASS // len(cuts))
        for start in range(0, len(sets), step):
            columns = sets[start : start + step, None] + n_items * is_known
            items, numbers = np.unique(columns, return_inverse=True)
            numbers = numbers.reshape(-1, sets.shape[1]).astype(np.int32)
            bounds = np.arange(len(numbers) + 1)
            counts = sums(SetCounts(items, numbers[:, :-1], bounds, numbers[:, -1]))
            found[start : start + step] = counts.reshape(-1, len(cuts))
        return found


def itemset_cuts(length: int) -> list[tuple[int, ...]]:
    """Return the places of the first part in all cuts of an itemset in two, short parts first."""
    return [cut for size in range(1, length) for cut in combinations(range(length), size)]


def _count_known_rows(statistic: Any, n_items: int) -> SetCounts:
    """Return the counts of candidates, and of the rows in which all items of each are known."""
    own = statistic.as_sets() if isinstance(statistic, PairCounts) else statistic
    m = len(own.items)
    return SetCounts(
        np.concatenate([own.items, own.items + n_items]),
        np.concatenate([own.prefix, own.prefix + np.int32(m)]),
        np.concatenate([own.bounds, own.bounds[1:] + len(own.last)]),
        np.concatenate([own.last, own.last + np.int32(m)]),
    )


def _fewest_rows(min_support: float, n_rows: int) -> int:
    """Return the fewest rows whose share of `n_rows`, in floating point, reaches the support."""
    if isinstance(min_support, int):
        return min_support
    least = max(1, int(min_support * n_rows) - 1)
    # The same division as a comparison of supports would make.
    while least / n_rows < min_support:
        least += 1
    return least


@dataclass
class _AprioriProgress:
    """Frequent itemsets so far, as numbers of frequent items, level by level.

    Parameters
    ----------
    items : ndarray of int64
        Columns of the frequent items.
    sets, counts : list of ndarray
        Of each whole level.
    new_sets, new_counts : list of ndarray
        Of the open level.
    position : int
        Candidates of the open level that have been counted.
    """

    items: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    sets: list[NDArray[np.int32]] = field(default_factory=list)
    counts: list[Array] = field(default_factory=list)
    new_sets: list[NDArray[np.int32]] = field(default_factory=list)
    new_counts: list[Array] = field(default_factory=list)
    position: int = 0

    def add(self, sets: NDArray[np.int32], counts: Array, position: int) -> None:
        """Take some frequent ones of the open level."""
        self.new_sets.append(sets)
        self.new_counts.append(counts)
        self.position = position

    def end_level(self) -> None:
        """Close the open level."""
        none = np.empty((0, len(self.sets) + 1), np.int32), self.counts[0][:0]
        self.sets.append(np.concatenate([none[0], *self.new_sets]))
        self.counts.append(np.concatenate([none[1], *self.new_counts]))
        self.new_sets, self.new_counts, self.position = [], [], 0

    def describe_levels(self) -> str:
        """Return in words how many itemsets of each length are frequent."""
        each = (f"{len(sets):,} of length {k}" for k, sets in enumerate(self.sets, 1))
        return ", ".join(each)

    def make_solution(self, n_rows: int, problem: str) -> Solution:
        """Return the solution of all levels that were counted to the end."""
        levels = [
            (self.items[sets], counts.astype(np.int64))
            for sets, counts in zip(self.sets, self.counts, strict=True)
            if len(sets)
        ]
        extra = {"levels": levels, "n_rows": n_rows}
        return Solution(np.empty(0), len(self.sets), not problem, problem, extra)

    def state(self) -> dict[str, Array]:
        """Return the checkpoint of the search."""
        levels = [*zip(self.sets, self.counts, strict=True)]
        if self.position:
            levels.append((np.concatenate(self.new_sets), np.concatenate(self.new_counts)))
        arrays: dict[str, Any] = {"items": self.items, "position": np.array([self.position])}
        for k, (sets, counts) in enumerate(levels):
            arrays |= {f"sets{k}": sets, f"counts{k}": counts}
        return arrays

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> _AprioriProgress:
        """Return the progress that a checkpoint was made of."""
        n_levels = (len(state) - 2) // 2
        sets = [state[f"sets{k}"] for k in range(n_levels)]
        counts = [state[f"counts{k}"] for k in range(n_levels)]
        (position,) = state["position"].tolist()
        if not position:
            return cls(state["items"], sets, counts)
        return cls(state["items"], sets[:-1], counts[:-1], sets[-1:], counts[-1:], position)


@dataclass(frozen=True, eq=False)
class _PairCandidates:
    """All pairs of frequent items, as candidates of length 2.

    Parameters
    ----------
    items : ndarray of int64
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

    def take_batch(self, position: int) -> tuple[Statistic, Any, int]:
        """Return a batch's statistic, a function from numbers to itemsets, and its end position."""
        first = int(np.searchsorted(self._pair_ends, position, side="right"))
        end = int(
            np.searchsorted(self._pair_ends, position + _MAX_CANDIDATES_PER_PASS, side="right")
        )
        end = max(end, first + 1)

        def sets(numbers: NDArray[np.int64]) -> NDArray[np.int32]:
            # Row and column of a number in the upper triangle of all pairs.
            a = np.searchsorted(self._pair_ends, numbers + position, side="right")
            b = numbers + position - self._pair_ends[a] + len(self.items)
            return np.column_stack([a, b]).astype(np.int32)

        return PairCounts(self.items, first, end), sets, int(self._pair_ends[end - 1])


@dataclass(frozen=True, eq=False)
class _SetCandidates:
    """Candidates of three or more items: a prefix and a last item each.

    Parameters
    ----------
    items : ndarray of int64
        Columns that any of them has, sorted.
    prefix, bounds, last
        As of `SetCounts`, the items numbered among `items`.
    numbers : ndarray of int32
        Numbers of `items` among the frequent items.
    """

    items: NDArray[np.int64]
    prefix: NDArray[np.int32]
    bounds: NDArray[np.int64]
    last: NDArray[np.int32]
    numbers: NDArray[np.int32]

    @classmethod
    def of(cls, at: _AprioriProgress, most: int) -> _SetCandidates:
        """Join the itemsets of the last level to candidates of the next one."""
        from daskml_dist.backends.itemset_kernels import join_frequent_sets

        of, bounds, last = join_frequent_sets(at.sets[-1], most)
        prefix = at.sets[-1][of]
        # Only items that some candidate has are counted: bits of others are not needed.
        is_there = np.zeros(len(at.items), bool)
        is_there[prefix] = is_there[last] = True
        number = np.cumsum(is_there, dtype=np.int32) - 1
        (numbers,) = np.nonzero(is_there)
        return cls(at.items[numbers], number[prefix], bounds, number[last], numbers.astype("i4"))

    @property
    def n(self) -> int:
        """Return the number of candidates."""
        return len(self.last)

    def take_batch(self, position: int) -> tuple[Statistic, Any, int]:
        """Return a batch's statistic, a function from numbers to itemsets, and its end position."""
        end = min(position + _MAX_CANDIDATES_PER_PASS, self.n)
        first = int(np.searchsorted(self.bounds, position, side="right")) - 1
        stop = int(np.searchsorted(self.bounds, end))
        bounds = np.clip(self.bounds[first : stop + 1], position, end) - position
        prefix, last = self.prefix[first:stop], self.last[position:end]

        def sets(kept: NDArray[np.int64]) -> NDArray[np.int32]:
            of = np.searchsorted(bounds, kept, side="right") - 1
            found = np.column_stack([prefix[of], last[kept]])
            return self.numbers[found]

        return SetCounts(self.items, prefix, bounds, last), sets, end


class BasketBits(RowState):
    """Store of the rows as bits, item by item, which the first statistic fills."""

    name = "bits"

    def make(self, model: Any, rows: BatchRows, backend: Backend) -> Any:
        """Return an empty store; the first statistic fills it."""
        return ItemBits()


@dataclass(frozen=True, eq=False)
class ItemCounts(Statistic):
    """Number of rows that have each item."""

    in_parts: ClassVar[bool] = True

    def shape(self, model: Any) -> tuple[int, ...]:
        return (model.n_items,)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Any) -> Any:
        if (found := find_first_negative(rows.X, backend)) is not None:
            row, value = found
            raise InvalidDataError(
                f"Block {rows.block}: X holds {value:g} (row {rows.first + row} of the block). An "
                "entry tells whether, or how much of, an item is in a basket: make it zero or "
                "more, such as X > 0."
            )
        add_item_counts(rows.X, out, backend)
        return float("nan")


@dataclass(frozen=True, eq=False)
class SetCounts(Statistic):
    """Number of rows that have each candidate of two or more items.

    Parameters
    ----------
    items : ndarray of int64
        Columns that any candidate has, sorted.
    prefix : ndarray of int32 of shape (n_prefixes, k - 1)
        All but the last item of candidates, as numbers among `items`.
    bounds : ndarray of int64 of shape (n_prefixes + 1,)
        Where the candidates of each prefix begin.
    last : ndarray of int32 of shape (n,)
        Last item of each candidate.
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

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Any) -> Any:
        prefix, last = self.prefix, self.last
        for words, items in rows.state.tiles(rows.X, self.items, backend):
            if len(items) > len(self.items):  # those of a level before: all that are kept
                place = np.searchsorted(items, self.items).astype(np.int32)
                prefix, last = place[self.prefix], place[self.last]
            add_set_counts(words, prefix, self.bounds, last, out)
        return float("nan")


@dataclass(frozen=True, eq=False)
class PairCounts(Statistic):
    """Number of rows that have each pair of items.

    Parameters
    ----------
    items : ndarray of int64
        Columns, sorted.
    first, end : int
        First items of the pairs, as numbers among `items`; the second are all after these.
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

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Any) -> Any:
        if add_pair_counts(rows.X, self.items, self.first, self.end, out):
            return float("nan")
        return self.as_sets().add(model, rows, out, backend)

    def as_sets(self) -> SetCounts:
        """Return the same pairs as a list of candidate itemsets."""
        first, m = np.arange(self.first, self.end), len(self.items)
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(m - 1 - first)])
        last = np.concatenate([np.arange(j + 1, m, dtype=np.int32) for j in first.tolist()])
        return SetCounts(self.items, first[:, None].astype(np.int32), bounds, last)
