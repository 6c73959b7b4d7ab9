"""Exact order statistics of distributed columns: values of given ranks, by passes over the rows.

A sketch of a column (:class:`~daskml_dist.data.column_statistics.ColumnSketch`) bounds the value of
a rank. If the sketch is not exact, a pass counts the values below these bounds and collects the
values inside, about as many as the sketch's maximum error; nothing else is gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.collection import Collection
from daskml_dist.data.column_statistics import ColumnSketch
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.errors import InvalidDataError

Array = NDArray[Any]
#: Factor of a sketch's error at which a search stops: the range then holds all values.
_MAX_SLACK = 8.0**6
#: Maps the arguments of a block's summary (its number, X, y and weight) to the block's values of
#: each column, by the column's key.
ColumnReader = Callable[..., Mapping[Any, Array]]


class _Search(NamedTuple):
    """Rank that a sketch does not determine exactly, and the range of values to count for it."""

    key: Hashable
    rank: int
    low: float
    high: float


def select_ranks(
    collection: Collection,
    read_columns: ColumnReader,
    sketches: Mapping[Any, ColumnSketch],
    ranks: Mapping[Any, Sequence[int]],
) -> dict[Any, dict[int, float]]:
    """Return the exact values of ranks in columns; the smallest value has rank 1.

    Parameters
    ----------
    collection : Collection
    read_columns : callable
        ``read_columns(number, X, y, weight)`` returns the values of each column in a block, by its
        key. A block may lack columns; NaN values have no rank.
    sketches : mapping
        Sketch of each column, for unweighted rows.
    ranks : mapping
        Requested ranks of each column; ranks beyond the ends are clipped.

    Returns
    -------
    dict of dict
        For each column, the value of each requested rank.
    """
    values_by_rank: dict[Any, dict[int, float]] = {key: {} for key in ranks}
    # Factor of a sketch's error by which the counted ranges are widened.
    slack = 1.0
    while True:
        searches: list[_Search] = []
        for key, column_ranks in ranks.items():
            sketch = sketches[key]
            for asked_rank in column_ranks:
                if asked_rank in values_by_rank[key]:
                    continue
                rank = int(np.clip(asked_rank, 1, max(sketch.n_rows, 1)))
                if sketch.error == 0:
                    values_by_rank[key][asked_rank] = find_rank(sketch.values, sketch.weights, rank)
                else:
                    margin = slack * (2 * sketch.error + 2)
                    searches.append(_Search(key, asked_rank, *_bound_rank(sketch, rank, margin)))
        if not searches:
            return values_by_rank
        range_counts = reduce_parts(
            collection, partial(_count_in_ranges, read_columns, searches), _merge_counts
        )
        for search, (below, values, counts) in zip(searches, range_counts, strict=True):
            rank = int(np.clip(search.rank, 1, sketches[search.key].n_rows))
            if below < rank <= below + counts.sum():
                values_by_rank[search.key][search.rank] = find_rank(values, counts, rank - below)
        # A range that missed the rank is widened. The error of a sketch is bounded, so this ends
        # after a few passes, unless the rows change between passes.
        if slack > _MAX_SLACK:
            raise InvalidDataError(
                "The rows change from one pass to the next, so the ranks of their values cannot "
                "be computed. Persist them: X = X.persist()."
            )
        slack *= 8


def find_rank(values: Array, counts: Array, rank: int) -> float:
    """Return the value of a rank among sorted values with multiplicities."""
    # The first value whose cumulative count reaches the rank.
    index = int(np.searchsorted(np.cumsum(counts), rank, side="left"))
    return float(values[min(index, len(values) - 1)])


def _bound_rank(sketch: ColumnSketch, rank: int, margin: float) -> tuple[float, float]:
    """Return the sketch's values `margin` ranks below and above a rank."""
    ends, last_index = np.cumsum(sketch.weights), len(sketch.values) - 1
    indices = np.searchsorted(ends, [rank - 1 - margin, rank + margin], side="right")
    low, high = sketch.values[np.clip(indices, 0, last_index)]
    return float(low), float(high)


def _count_in_ranges(
    read_columns: ColumnReader, searches: list[_Search], *part: Any
) -> list[tuple[int, Array, Array]]:
    """Return, for each range, the count of smaller values of a block, and the values inside."""
    columns, range_counts = read_columns(*part), []
    for search in searches:
        values = columns.get(search.key, np.empty(0))
        # NaN is neither below nor inside.
        inside = values[(values >= search.low) & (values <= search.high)]
        range_counts.append(
            (int((values < search.low).sum()), *np.unique(inside, return_counts=True))
        )
    return range_counts


def _merge_counts(block_counts: list[list[Any]]) -> list[Any]:
    """Merge the counts of all blocks for each range."""
    merged = []
    for range_counts in zip(*block_counts, strict=True):
        values, inverse = np.unique(
            np.concatenate([v for _, v, _ in range_counts]), return_inverse=True
        )
        counts = np.concatenate([c for _, _, c in range_counts])
        total = np.bincount(inverse, counts, len(values)).astype(np.int64)
        merged.append((sum(below for below, _, _ in range_counts), values, total))
    return merged
