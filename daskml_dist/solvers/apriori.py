"""Frequent itemsets, level by level: Apriori.

Only an itemset all of whose subsets are frequent can be so. In every round the candidates of a
level are counted on all rows, and those that are frequent make the next level's.

References
----------
R. Agrawal and R. Srikant, "Fast algorithms for mining association rules", VLDB 1994. For the counts
of several processes, which are added up: R. Agrawal and J. C. Shafer, "Parallel mining of
association rules", IEEE TKDE 8(6), 1996 (count distribution).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError
from daskml_dist.solvers.base import Array, Solution, Solver, Statistic, Sums
from daskml_dist.solvers.item_counts import ItemCounts, PairCounts, SetCounts

__all__ = ["Apriori", "cuts_of"]

#: Candidates that are counted in one round.
_AT_ONCE = 1 << 21
#: Items of a frequent itemset at most: one of n has 2 ** n frequent subsets.
_LONGEST = 64


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
        """As many as candidates may take."""
        levels = min(self.max_length or _LONGEST, _LONGEST)
        most = 1 + levels * (2 + 2 * self.max_candidates // _AT_ONCE)
        return most if not self.with_nulls else most + levels * self.max_candidates

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Count level after level.

        Returns
        -------
        Solution
            With the ``"levels"``: for each length the itemsets, an int64 array of columns of shape
            (n, length), in their order, and their counts. With nulls the counts have a second
            column, of the rows in which all items are known; and ``"splits"`` has for each length
            an array of the rows of each cut of an itemset in two (`cuts_of`): those that have all
            items of the first part, and in which all items of the second are known.
        """
        if sums.kept is not None:
            at = _Progress.of_state(sums.kept)
        else:
            at = _Progress()
            found = sums(ItemCounts())
            if self.with_nulls:
                found = found.reshape(2, -1).T
            items = self._frequent(found, sums.n_rows)
            at.items, at.counts = items, [found[items]]
            at.sets = [np.arange(len(items), dtype=np.int32)[:, None]]
        while self._goes_on(at):
            if sums.should_stop:
                return at.solution(sums.n_rows, "the fit was stopped")
            level = self._next(at)
            while at.position < level.n:
                self._count(level, at, sums, model.n_items // 2)
                sums.keep(np.empty(0), at.state)
                if sums.should_stop and at.position < level.n:
                    return at.solution(sums.n_rows, "the fit was stopped")
            at.end_level()
        solution = at.solution(sums.n_rows, "")
        if self.with_nulls:
            items = at.items
            solution.extra["splits"] = [
                self._splits(items[sets], sums, model.n_items // 2) for sets in at.sets if len(sets)
            ]
        return solution

    def _frequent(self, counts: Array, n_rows: int) -> NDArray[np.intp]:
        """Return the places of counts that are enough."""
        if not self.with_nulls:
            return np.flatnonzero(counts >= _least(self.min_support, n_rows))
        count, known = counts.T
        if isinstance(self.min_support, int):
            return np.flatnonzero(count >= self.min_support)
        return np.flatnonzero((count > 0) & (count / np.maximum(known, 1) >= self.min_support))

    def _goes_on(self, at: _Progress) -> bool:
        """Whether there may be longer itemsets: one of length k has k subsets of length k - 1."""
        length = len(at.sets) + 1
        return len(at.sets[-1]) >= length and length <= (self.max_length or length)

    def _next(self, at: _Progress) -> _Pairs | _Sets:
        """Candidates of the next level."""
        length = len(at.sets) + 1
        level: _Pairs | _Sets
        level = _Pairs(at.items) if length == 2 else _Sets.of(at, self.max_candidates)
        if level.n > self.max_candidates:
            raise InvalidParameterError(
                f"The {len(at.sets[-1]):,} frequent itemsets of length {length - 1} make more than "
                f"max_candidates={self.max_candidates:,} candidates of length {length}. So far "
                f"there are {at.found()}. Raise min_support (now {self.min_support:g}), set "
                f"max_length={length - 1}, or raise max_candidates where there is memory for them."
            )
        return level

    def _count(self, level: _Pairs | _Sets, at: _Progress, sums: Sums, n_items: int) -> None:
        """Count some of a level's candidates."""
        statistic, sets, end = level.some(at.position)
        if self.with_nulls:
            found = sums(_also_known(statistic, n_items)).reshape(2, -1).T
        else:
            found = sums(statistic)
        kept = self._frequent(found, sums.n_rows)
        at.add(sets(kept), found[kept], end)

    @staticmethod
    def _splits(sets: NDArray[np.int64], sums: Sums, n_items: int) -> NDArray[np.int64]:
        """Return, for each cut of itemsets, the rows with the first part and the second known."""
        cuts = cuts_of(sets.shape[1])
        found = np.empty((len(sets), len(cuts)), np.int64)
        if not cuts:
            return found
        # Columns of each candidate: those of the first part as they are, the second's "known".
        is_known = np.ones((len(cuts), sets.shape[1]), np.int64)
        for row, cut in zip(is_known, cuts, strict=True):
            row[list(cut)] = 0
        step = max(1, _AT_ONCE // len(cuts))
        for start in range(0, len(sets), step):
            columns = sets[start : start + step, None] + n_items * is_known
            items, numbers = np.unique(columns, return_inverse=True)
            numbers = numbers.reshape(-1, sets.shape[1]).astype(np.int32)
            bounds = np.arange(len(numbers) + 1)
            counts = sums(SetCounts(items, numbers[:, :-1], bounds, numbers[:, -1]))
            found[start : start + step] = counts.reshape(-1, len(cuts))
        return found


def cuts_of(length: int) -> list[tuple[int, ...]]:
    """Return the places of the first part in all cuts of an itemset in two, short parts first."""
    return [cut for size in range(1, length) for cut in combinations(range(length), size)]


def _also_known(statistic: Any, n_items: int) -> SetCounts:
    """Return the counts of candidates, and of the rows in which all items of each are known."""
    own = statistic.as_sets() if isinstance(statistic, PairCounts) else statistic
    m = len(own.items)
    return SetCounts(
        np.concatenate([own.items, own.items + n_items]),
        np.concatenate([own.prefix, own.prefix + np.int32(m)]),
        np.concatenate([own.bounds, own.bounds[1:] + len(own.last)]),
        np.concatenate([own.last, own.last + np.int32(m)]),
    )


def _least(min_support: float, n_rows: int) -> int:
    """Fewest rows whose share is enough, as the quotient of both tells."""
    if isinstance(min_support, int):
        return min_support
    least = max(1, int(min_support * n_rows) - 1)
    while least / n_rows < min_support:
        least += 1
    return least


@dataclass
class _Progress:
    """Frequent itemsets so far, of numbers of the frequent items.

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

    def found(self) -> str:
        """Numbers of each length, in words."""
        each = (f"{len(sets):,} of length {k}" for k, sets in enumerate(self.sets, 1))
        return ", ".join(each)

    def solution(self, n_rows: int, problem: str) -> Solution:
        """The whole levels."""
        levels = [
            (self.items[sets], counts.astype(np.int64))
            for sets, counts in zip(self.sets, self.counts, strict=True)
            if len(sets)
        ]
        extra = {"levels": levels, "n_rows": n_rows}
        return Solution(np.empty(0), len(self.sets), not problem, problem, extra)

    def state(self) -> dict[str, Array]:
        """All that is needed to go on."""
        levels = [*zip(self.sets, self.counts, strict=True)]
        if self.position:
            levels.append((np.concatenate(self.new_sets), np.concatenate(self.new_counts)))
        arrays: dict[str, Any] = {"items": self.items, "position": np.array([self.position])}
        for k, (sets, counts) in enumerate(levels):
            arrays |= {f"sets{k}": sets, f"counts{k}": counts}
        return arrays

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> _Progress:
        """Progress at which a state was made."""
        n_levels = (len(state) - 2) // 2
        sets = [state[f"sets{k}"] for k in range(n_levels)]
        counts = [state[f"counts{k}"] for k in range(n_levels)]
        (position,) = state["position"].tolist()
        if not position:
            return cls(state["items"], sets, counts)
        return cls(state["items"], sets[:-1], counts[:-1], sets[-1:], counts[-1:], position)


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Candidates of two items: all pairs.

    Parameters
    ----------
    items : ndarray of int64
    """

    items: NDArray[np.int64]

    @property
    def n(self) -> int:
        """Number of them."""
        return len(self.items) * (len(self.items) - 1) // 2

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Pairs up to each first item's last."""
        return np.cumsum(np.arange(len(self.items) - 1, 0, -1))

    def some(self, position: int) -> tuple[Statistic, Any, int]:
        """Statistic of some from a position on, what makes itemsets of their numbers, their end."""
        first = int(np.searchsorted(self._ends, position, side="right"))
        end = int(np.searchsorted(self._ends, position + _AT_ONCE, side="right"))
        end = max(end, first + 1)

        def sets(numbers: NDArray[np.int64]) -> NDArray[np.int32]:
            a = np.searchsorted(self._ends, numbers + position, side="right")
            b = numbers + position - self._ends[a] + len(self.items)
            return np.column_stack([a, b]).astype(np.int32)

        return PairCounts(self.items, first, end), sets, int(self._ends[end - 1])


@dataclass(frozen=True, eq=False)
class _Sets:
    """Candidates of more items.

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
    def of(cls, at: _Progress, most: int) -> _Sets:
        """Candidates of the level after the last."""
        from daskml_dist.backends.itemset_kernels import join

        of, bounds, last = join(at.sets[-1], most)
        prefix = at.sets[-1][of]
        is_there = np.zeros(len(at.items), bool)
        is_there[prefix] = is_there[last] = True
        number = np.cumsum(is_there, dtype=np.int32) - 1
        (numbers,) = np.nonzero(is_there)
        return cls(at.items[numbers], number[prefix], bounds, number[last], numbers.astype("i4"))

    @property
    def n(self) -> int:
        """Number of them."""
        return len(self.last)

    def some(self, position: int) -> tuple[Statistic, Any, int]:
        """Statistic of some from a position on, what makes itemsets of their numbers, their end."""
        end = min(position + _AT_ONCE, self.n)
        first = int(np.searchsorted(self.bounds, position, side="right")) - 1
        stop = int(np.searchsorted(self.bounds, end))
        bounds = np.clip(self.bounds[first : stop + 1], position, end) - position
        prefix, last = self.prefix[first:stop], self.last[position:end]

        def sets(kept: NDArray[np.int64]) -> NDArray[np.int32]:
            of = np.searchsorted(bounds, kept, side="right") - 1
            found = np.column_stack([prefix[of], last[kept]])
            return self.numbers[found]

        return SetCounts(self.items, prefix, bounds, last), sets, end
