"""Rows that are held out for validation, stratified by class.

Which rows they are follows from the seed and the row's place among all rows of its class. Places
are known from the class counts of each block, so no row is read to find them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.hashed import draw_by_hash
from daskml_dist.solvers.own_rows import OwnRows

__all__ = ["HoldoutMask", "StratifiedHoldout", "TrailingRows", "allot_by_share"]

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
