"""Hits among recommended items, and the ranking metrics computed from them.

A hit is a recommended item that the user's held-out items contain. Precision at k is the share of
hits among k; the normalized discounted cumulative gain (Jarvelin and Kekalainen, 2002) weighs the
hit at place i by 1 / log2(i + 1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.conversion import load_pandas
from daskml_dist.errors import InvalidDataError


def find_hits(
    held_out: Any, recommended: Any, k: int, names: tuple[Any, Any, Any]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which of each user's first `k` recommended items are held out, and how many are.

    Both arrays have the users of `held_out`, sorted: shapes (n_users, k) and (n_users,). `names`
    are the columns of users, items and scores; the largest scores rank first.
    """
    user_col, item_col, score_col = names
    scores = recommended[score_col].to_numpy(np.float64, na_value=np.nan)
    if (missing := np.isnan(scores)).any():
        raise InvalidDataError(
            f"Column {score_col!r} of the recommended items has {missing.sum()} missing scores, so "
            f"these items have no rank. Drop them: recommended.dropna(subset=[{score_col!r}])."
        )
    # A pair that is held out twice counts as one item.
    held_out_pairs = held_out[[user_col, item_col]].drop_duplicates()
    sizes = held_out_pairs.groupby(user_col, sort=True).size()
    order = np.argsort(-scores, kind="stable")
    ranked = recommended[[user_col, item_col]].iloc[order]
    # Rank of each recommendation among its user's, from 0.
    rank = ranked.groupby(user_col, sort=False).cumcount().to_numpy()
    best, rank = ranked[rank < k], rank[rank < k]
    rows = sizes.index.get_indexer(best[user_col])
    pandas = load_pandas()
    pairs = pandas.MultiIndex.from_frame(held_out_pairs)
    is_right = pairs.get_indexer(pandas.MultiIndex.from_frame(best)) >= 0
    table = np.zeros((len(sizes), k), np.bool_)
    table[rows[is_right], rank[is_right]] = True
    return table, sizes.to_numpy()


def compute_precisions(hits: NDArray[np.bool_], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the precision at k of each user: the share of hits among the k places of a ranking."""
    return np.asarray(hits.mean(axis=1))


def compute_gains(hits: NDArray[np.bool_], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the discounted cumulative gain of each user, divided by the best possible one."""
    gain = 1 / np.log2(np.arange(hits.shape[1]) + 2)
    # The best possible ranking has all held-out items at the first places.
    best = np.cumsum(gain)[np.minimum(sizes, hits.shape[1]) - 1]
    return np.asarray(hits @ gain / best)
