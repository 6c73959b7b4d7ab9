"""The concordance index: pairs counted one by one, on Dask, and errors that help."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import dask.array as da
import numpy as np
import pytest

from daskml_dist.errors import InvalidDataError
from daskml_dist.metrics import concordance_index

rng = np.random.default_rng(0)
N = 80
TIME = rng.integers(1, 15, N).astype(float)
Y = TIME * rng.choice([-1.0, 1.0], N)
PREDICTED = np.round(TIME + 4 * rng.normal(size=N))
WEIGHT = rng.integers(0, 4, N).astype(float)


def one_by_one(low: Any, high: Any, predicted: Any, weight: Any) -> float:
    """Return the index by definition, over pairs with a known order of events."""
    right = pairs = 0.0
    for i, j in permutations(range(len(low)), 2):
        both_events = low[i] == high[i] and low[j] == high[j]
        if high[i] < low[j] or (high[i] == low[j] and not both_events):
            w = weight[i] * weight[j]
            pairs += w
            right += w * (0.5 * (predicted[i] == predicted[j]) + (predicted[i] < predicted[j]))
    return float(right / pairs)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_pairs_are_counted(weight: Any) -> None:
    of_row = np.ones(N) if weight is None else weight
    high = np.where(Y > 0, TIME, np.inf)
    expected = one_by_one(TIME, high, PREDICTED, of_row)
    assert concordance_index(Y, PREDICTED, sample_weight=weight) == pytest.approx(expected)
    bounds = np.column_stack([TIME, TIME + rng.integers(0, 4, N)])
    bounds[::5, 1] = np.inf
    at = np.arange(N)
    bounds[(at % 7 == 0) & (at % 5 != 0), 0] = 0
    found = concordance_index(bounds, PREDICTED, sample_weight=weight)
    assert found == pytest.approx(one_by_one(*bounds.T, PREDICTED, of_row))


def test_on_dask_it_is_the_same() -> None:
    lazy = [da.from_array(a, chunks=30) for a in (Y, PREDICTED, WEIGHT)]
    expected = concordance_index(Y, PREDICTED, sample_weight=WEIGHT)
    assert concordance_index(*lazy[:2], sample_weight=lazy[2]) == expected
    assert concordance_index(lazy[0], lazy[1]) == concordance_index(Y, PREDICTED)


def test_best_worst_and_chance() -> None:
    assert concordance_index(Y, TIME + 0.1 * (Y < 0)) == 1
    assert concordance_index(Y, -TIME - 0.1 * (Y < 0)) == 0
    assert concordance_index(Y, np.zeros(N)) == 0.5


@pytest.mark.parametrize(
    ("y", "predicted", "match"),
    [
        (-TIME, PREDICTED, "No two rows"),
        (np.full(N, 2.0), PREDICTED, "No two rows"),
        (np.zeros(N), PREDICTED, "neither positive"),
        (Y, np.full(N, np.nan), "NaN"),
        (Y[:-1], PREDICTED, "rows|samples"),
    ],
)
def test_bad_rows_are_named(y: Any, predicted: Any, match: str) -> None:
    with pytest.raises(InvalidDataError, match=match):
        concordance_index(y, predicted)
