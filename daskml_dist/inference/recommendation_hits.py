"""Recommended items beside those that are held out: which are hits, and how much they gain."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.conversion import load_pandas


def find_hits(
    held_out: Any, recommended: Any, k: int, names: tuple[Any, Any, Any]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return whether each of a user's first `k` items is held out, and how many are."""
    user, item, score = names
    right = held_out[[user, item]].drop_duplicates()
    sizes = right.groupby(user, sort=True).size()
    order = np.argsort(-recommended[score].to_numpy(np.float64), kind="stable")
    ranked = recommended[[user, item]].iloc[order]
    place = ranked.groupby(user, sort=False).cumcount().to_numpy()
    best, place = ranked[place < k], place[place < k]
    rows = sizes.index.get_indexer(best[user])
    pandas = load_pandas()
    pairs = pandas.MultiIndex.from_frame(right)
    is_right = pairs.get_indexer(pandas.MultiIndex.from_frame(best)) >= 0
    table = np.zeros((len(sizes), k), np.bool_)
    table[rows[is_right], place[is_right]] = True
    return table, sizes.to_numpy()


def compute_precisions(hits: NDArray[np.bool_], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Share of hits of each user."""
    return np.asarray(hits.mean(axis=1))


def compute_gains(hits: NDArray[np.bool_], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the discounted cumulative gain of each user, divided by the best possible one."""
    gain = 1 / np.log2(np.arange(hits.shape[1]) + 2)
    best = np.cumsum(gain)[np.minimum(sizes, hits.shape[1]) - 1]
    return np.asarray(hits @ gain / best)
