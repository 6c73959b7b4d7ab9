"""Bins of all features, of a sample of all rows that is the same wherever these are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidDataError
from daskml_dist.models.bins import Bins, edges_of
from daskml_dist.models.hashed import draws
from daskml_dist.solvers.binned_rows import chosen
from daskml_dist.solvers.hold_out import HoldoutMask
from daskml_dist.solvers.own_rows import OwnRows
from daskml_dist.solvers.sampled_columns import dealt_columns

__all__ = ["SAMPLE", "EdgesBy", "find_bins"]

Array = NDArray[Any]
#: Edges of some values and their weights, for so many bins.
EdgesBy = Callable[[Array, Array | None, int], Array]

#: Rows of the sample; of fewer, all are looked at.
SAMPLE = 200_000
#: Share that is drawn beyond it, so that enough come for sure; the rest is cut off.
_MORE = 1.03
#: Names this use of a seed.
_DRAW = 1


def find_bins(
    rows: OwnRows,
    max_bins: int,
    categories: Sequence[NDArray[np.float64] | None],
    seed: int,
    aside: HoldoutMask | None,
    n_used: float,
    edges_by: EdgesBy = edges_of,
) -> Bins:
    """Bins of all features.

    Parameters
    ----------
    rows : OwnRows
    max_bins : int
    categories : sequence of ndarray of float64, or None
        Of each feature, sorted; empty where they are to be looked for. None: it is a number.
    seed : int
    aside : HoldoutMask or None
        Rows that are not to be looked at.
    n_used : float
        How many the others are, roughly.
    edges_by : callable
        Makes the edges of a feature, of its values, weights (or None) and `max_bins`.
    """
    categories = _categories(rows, max_bins, categories, aside)
    sampled, weight, numbers = _sampled(rows, seed, aside, n_used)
    # Each trainer gets the columns that it finds edges of.
    ranges = rows.ranges(len(categories))
    column = dealt_columns(rows, sampled, ranges)
    weight, numbers = (
        np.concatenate(parts) for parts in zip(*rows.gather([weight, numbers]), strict=True)
    )
    if (weight == 1).all():
        weight = weight[:0]
    if len(numbers) > SAMPLE:
        # Numbers differ, and so do what they are hashed to.
        drawn = draws(numbers, seed, _DRAW)
        at = np.flatnonzero(drawn <= np.partition(drawn, SAMPLE - 1)[SAMPLE - 1])
        at = at[np.argsort(numbers[at], kind="stable")]
    else:
        at = np.argsort(numbers, kind="stable")
    own = categories[ranges[rows.rank]]
    weight = weight[at] if len(weight) else None
    edges = [
        edges_by(column(j, at), weight, max_bins) if c is None else c for j, c in enumerate(own)
    ]
    return Bins(_joined(rows, edges), max_bins, np.array([c is not None for c in categories]))


def _sampled(
    rows: OwnRows, seed: int, aside: HoldoutMask | None, n_used: float
) -> tuple[list[Any], Any, Array]:
    """Rows of the own lanes, somewhat more than are needed; their weights and numbers."""
    share = 1.0 if n_used <= SAMPLE else min(1.0, _MORE * SAMPLE / n_used)
    last = np.uint64(min(int(share * 2.0**64), 2**64 - 1))
    each = rows.map(lambda lane: _of_lane(rows, lane, seed, last, aside), rows.lanes)
    found = [part for parts in each for part in parts]
    weight = np.concatenate([np.empty(0), *(of for _, of, _ in found)])
    numbers = np.concatenate([np.empty(0, np.int64), *(of for _, _, of in found)])
    return [X for X, _, _ in found], weight, numbers


def _categories(
    rows: OwnRows,
    max_bins: int,
    given: Sequence[NDArray[np.float64] | None],
    aside: HoldoutMask | None,
) -> list[NDArray[np.float64] | None]:
    """Categories of all rows that the user gave for the fit, where they are not known."""
    found = list(given)
    asked = [j for j, known in enumerate(given) if known is not None and not len(known)]
    if not asked:
        return found
    strange = None if aside is None or aside.of_fit else aside
    each = rows.map(lambda lane: _distinct(rows, lane, asked, max_bins, strange), rows.lanes)
    for number, j in enumerate(asked):
        parts = rows.gather([_union([of_lane[number] for of_lane in each])])
        every = _union([part for (part,) in parts])
        if len(every) > max_bins:
            raise InvalidDataError(
                f"Categorical feature at index {j} is expected to have a cardinality <= "
                f"{max_bins} but actually has a cardinality of {len(every)} or more. Raise "
                "max_bins (255 at most), join rare categories, or encode it as numbers "
                "(TargetEncoder)."
            )
        found[j] = every
    return found


def _distinct(
    rows: OwnRows, lane: int, asked: list[int], max_bins: int, strange: HoldoutMask | None
) -> list[Array]:
    """Distinct values of some features of a lane, as many as tell that they are too many."""
    found, is_strange = [np.empty(0) for _ in asked], None if strange is None else strange.reader()
    for first, block in rows.blocks(lane):
        X = block.X if is_strange is None else block.X[~is_strange(first, block.y)]
        for number, j in enumerate(asked):
            values = np.unique(X[:, j]).astype(np.float64)
            union = _union([found[number], values[~np.isnan(values)]])
            found[number] = union[: max_bins + 1]
    return found


def _union(parts: list[Array]) -> Array:
    return np.unique(np.concatenate([np.empty(0), *parts]))


def _joined(rows: OwnRows, own: list[NDArray[np.float64]]) -> tuple[NDArray[np.float64], ...]:
    """The edges of all features, of all trainers' own."""
    given = [np.array([len(e) for e in own], np.int64), np.concatenate([np.empty(0), *own])]
    every: list[NDArray[np.float64]] = []
    for lengths, values in rows.gather(given):
        every += np.split(values, lengths.cumsum()[:-1]) if len(lengths) else []
    return tuple(every)


def _of_lane(
    rows: OwnRows, lane: int, seed: int, last: np.uint64, aside: HoldoutMask | None
) -> list[tuple[Array, Array, Array]]:
    """Rows of a lane, block by block, their weights (empty where there are none) and numbers."""
    found, is_aside = [], None if aside is None else aside.reader()
    for first, block in rows.blocks(lane):
        numbers = np.arange(first, first + block.X.shape[0])
        which = np.ones(len(numbers), bool)
        if last < np.uint64(2**64 - 1):
            which = draws(numbers, seed, _DRAW) <= last
        if is_aside is not None:
            which &= ~is_aside(first, block.y)
        X, _, weight = chosen(block, which)
        weight = np.empty(0) if weight is None else weight.astype(np.float64)
        found.append((X, weight, numbers[which]))
    return found
