"""Order statistics equal those of the sorted columns, although a sketch is used."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest

from daskml_dist.data import column_statistics
from daskml_dist.data.collection import as_collection
from daskml_dist.data.column_statistics import merge_column_sketches, sketch_columns
from daskml_dist.data.order_statistics import select_ranks
from daskml_dist.errors import InvalidDataError


def _read(index: int, X: Any, y: Any, w: Any) -> dict[int, Any]:
    return {j: X[:, j] for j in range(3)}


def test_rows_that_differ_from_pass_to_pass_end_the_search(monkeypatch: Any) -> None:
    monkeypatch.setattr(column_statistics, "SKETCH_SIZE", 10)
    rows = np.random.default_rng(1).normal(size=(500, 3))
    sketches = dict(enumerate(merge_column_sketches([sketch_columns(rows)])))
    with pytest.raises(InvalidDataError, match="change from one pass"):
        select_ranks(as_collection(rows[:100]), _read, sketches, {0: [450]})


@pytest.mark.parametrize("size", [10, 40, 10_000])
def test_order_statistics_equal_those_of_sorted_columns(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """For continuous values, ties, and a column with missing values, in uneven blocks."""
    monkeypatch.setattr(column_statistics, "SKETCH_SIZE", size)
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=500), rng.integers(0, 7, 500), rng.normal(size=500)])
    rows[::3, 2] = np.nan
    lazy = da.from_array(rows, chunks=((1, 300, 0, 199), 3))
    blocks = [rows[:1], rows[1:301], rows[301:]]
    sketches = merge_column_sketches([sketch_columns(block) for block in blocks])
    assert (sketches[0].error > 0) == (size < 500)
    ranks = {0: [1, 2, 250, 499, 500], 1: [1, 100, 499], 2: [0, 10, 333, 900]}
    for X in (lazy, rows):
        found = select_ranks(as_collection(X), _read, dict(enumerate(sketches)), ranks)
        for j, ranks_of_column in ranks.items():
            ordered = np.sort(rows[:, j][~np.isnan(rows[:, j])])
            for rank in ranks_of_column:
                assert found[j][rank] == ordered[min(max(rank, 1), len(ordered)) - 1], (j, rank)
