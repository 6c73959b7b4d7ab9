"""Baskets, and their frequent itemsets found by enumerating all subsets of each basket."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np

Found = dict[tuple[Any, ...], int]


def drawn(n: int, shares: Any, seed: int = 0, few: Any = (0, 3, 6)) -> Any:
    """Return random bool rows: items with given probabilities, a `few` of them together."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, len(shares))) < np.asarray(shares)
    together = rng.random(n) < 0.1
    X[np.ix_(together, few)] |= rng.random((int(together.sum()), 1)) < 0.8
    return X


def brute(X: Any, count: int, most: int | None = None) -> Found:
    """Return the columns that are nonzero together in at least `count` rows, with their counts."""
    found: Counter[tuple[int, ...]] = Counter()
    for row in np.asarray(X):
        items = np.flatnonzero(row).tolist()
        for k in range(1, min(len(items), most or len(items)) + 1):
            found.update(combinations(items, k))
    return {items: n for items, n in found.items() if n >= count}


def counts(frame: Any) -> Found:
    """Return the counts of a frame of itemsets."""
    return dict(zip(frame["itemset"], frame["count"].tolist(), strict=True))
