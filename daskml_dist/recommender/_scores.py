"""Fitted factors: scores of pairs, the best items of users, and conversion to other ids.

Finding the best items of a user needs the scores of all items: a matrix product for a block of
users, whose scores stay in the cache, and a partial sort. Both are exact; no index of nearest
neighbours is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.row_slices import row_slices
from daskml_dist.data.keyed.ids import convert_ids, find_positions
from daskml_dist.errors import InvalidDataError
from daskml_dist.ps.shard_state import ShardState

Positions = NDArray[np.int64]

#: Bytes of factors or scores that are computed together: 4 MiB stay in the L2 or L3 cache.
_CACHED_BYTES = 1 << 22


def find_id_positions(table: NDArray[Any], ids: Any, name: str) -> Positions:
    """Return the positions of ids among those of the fit; -1 for an id not seen in it."""
    converted = convert_ids(ids, name)
    if len(converted) and (kind := _name_kind(converted)) != (fitted_kind := _name_kind(table)):
        remedy = f"frame[{name!r}].astype({table.dtype.name!r})"
        if fitted_kind == "str":
            call = "str.decode('utf-8')" if kind == "bytes" else "astype(str)"
            remedy = f"frame[{name!r}].{call}"
        elif fitted_kind == "bytes":
            remedy = f"frame[{name!r}].astype(str).str.encode('utf-8')"
        raise InvalidDataError(
            f"Column {name!r} holds ids of type {kind}, but those of the fit are of type "
            f"{fitted_kind}. Convert them: {remedy}."
        )
    return find_positions(table, converted)


def _name_kind(ids: NDArray[Any]) -> str:
    """Return the kind of ids in words; only ids of one kind can be compared."""
    if ids.dtype.kind in "biuf":
        return "number"
    if ids.dtype.kind in "mM":
        return "datetime" if ids.dtype.kind == "M" else "timedelta"
    if ids.dtype.kind == "S" or (ids.dtype.kind == "O" and isinstance(ids[0], bytes)):
        return "bytes"
    return "str" if ids.dtype.kind in "OUT" else ids.dtype.name


@dataclass(frozen=True, eq=False)
class FittedFactors:
    """Factors, biases and ids of a fit.

    Parameters
    ----------
    user_ids, item_ids : ndarray of shape (n_users,), (n_items,)
        Sorted.
    user_factors, item_factors : ndarray of shape (n_users, rank), (n_items, rank)
    user_biases, item_biases : ndarray of shape (n_users,), (n_items,), or None
        None: no biases.
    default : float
        Score of a pair of unseen ids, to which biases are added.
    link : callable or None
        Increasing function from scores to predictions; None: the identity.
    """

    user_ids: NDArray[Any]
    item_ids: NDArray[Any]
    user_factors: NDArray[Any]
    item_factors: NDArray[Any]
    user_biases: NDArray[Any] | None
    item_biases: NDArray[Any] | None
    default: float
    link: Callable[[NDArray[Any]], NDArray[Any]] | None = None

    def apply_link(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Return the predictions of some scores."""
        return scores if self.link is None else self.link(scores)

    def score_pairs(self, users: Positions, items: Positions) -> NDArray[np.float64]:
        """Return the score of each pair of positions; -1 is an unseen id.

        A pair of known ids has the product of their factors, plus biases if there are any; a pair
        with an unseen id has the default, plus the bias of the other id.
        """
        out = np.empty(len(users))
        step = max(1, _CACHED_BYTES // (8 * max(self.user_factors.shape[1], 1)))
        for block in row_slices(len(users), step):
            u, i = users[block], items[block]
            # An unseen id at -1 selects the last factors; `np.where` discards its product below.
            product = np.einsum(
                "ij,ij->i", self.user_factors[u], self.item_factors[i], dtype=np.float64
            )
            both_known = (u >= 0) & (i >= 0)
            if self.user_biases is None or self.item_biases is None:
                out[block] = np.where(both_known, product, self.default)
                continue
            out[block] = self.default + np.where(both_known, product, 0.0)
            out[block] += np.where(u >= 0, self.user_biases[u], 0.0)
            out[block] += np.where(i >= 0, self.item_biases[i], 0.0)
        return out

    def score_all_items(self, users: Positions) -> NDArray[Any]:
        """Return each item's score for some users; an unseen user has the mean of all factors."""
        factors = np.where(
            (users >= 0)[:, None], self.user_factors[users], self.user_factors.mean(axis=0)
        )
        # In the dtype of the factors: float32 halves the time of the product.
        scores: NDArray[Any] = factors.astype(self.user_factors.dtype) @ self.item_factors.T
        if self.user_biases is not None and self.item_biases is not None:
            # The user's bias and the mean do not change the order of items, but are part of the
            # returned scores.
            scores += self.item_biases
            user_biases = np.where(users >= 0, self.user_biases[users], 0.0)
            scores += (user_biases + self.default).astype(scores.dtype)[:, None]
        return scores

    def similar_items(self, item: int) -> NDArray[Any]:
        """Return the cosines of an item's factors and all items'; -inf if a length is zero."""
        return _compute_cosines(self.item_factors, item)

    def similar_users(self, user: int) -> NDArray[Any]:
        """Return the cosines of a user's factors and all users'; -inf if a length is zero."""
        return _compute_cosines(self.user_factors, user)


def _compute_cosines(factors: NDArray[Any], row_index: int) -> NDArray[Any]:
    """Return the cosines of row `row_index` to all rows; -inf for a row of zeros."""
    norms = np.linalg.norm(factors, axis=1)
    products = factors @ factors[row_index]
    # If row `row_index` itself is zero, so are its products: 0 / 1e-300 is 0, and no warning.
    denominators = np.where(norms > 0, norms, 1) * max(norms[row_index], 1e-300)
    return np.where(norms > 0, products / denominators, -np.inf)


@dataclass(frozen=True, eq=False)
class SeenItems:
    """Items that users have rated, in the layout of a CSR matrix.

    Parameters
    ----------
    indptr : ndarray of int64 of shape (n_users + 1,)
        The items of user u are at ``indptr[u]`` to ``indptr[u + 1]``.
    items : ndarray of int32
        Positions of items, user by user.
    """

    indptr: NDArray[np.int64]
    items: NDArray[np.int32]

    @classmethod
    def from_pairs(cls, users: NDArray[Any], items: NDArray[Any], n_users: int) -> SeenItems:
        """Return the items of each user, from positions of pairs; pairs with a -1 are left out."""
        is_known = (users >= 0) & (items >= 0)
        users, items = users[is_known], items[is_known]
        # A counting sort by user, in the layout of CSR.
        order = np.argsort(users, kind="stable")
        counts = np.bincount(users, minlength=n_users)
        return cls(np.concatenate([[0], np.cumsum(counts)]), items[order].astype(np.int32))

    def hide_scores(self, users: Positions, scores: NDArray[Any]) -> None:
        """Set the scores of items that the users have rated to minus infinity."""
        for row, user in zip(scores, users.tolist(), strict=True):
            if user >= 0:
                row[self.items[self.indptr[user] : self.indptr[user + 1]]] = -np.inf


def find_best_items(
    fitted: FittedFactors,
    users: Positions,
    n: int,
    seen_items: SeenItems | None,
    hidden: Positions | None = None,
) -> tuple[Positions, Positions, NDArray[Any]]:
    """Return users' rows, items and predictions of the `n` best items, without `hidden` items."""
    step = max(1, _CACHED_BYTES // (4 * max(len(fitted.item_ids), 1)))
    best_of_blocks = []
    # Without users too: their empty results have the dtypes of others.
    for block in list(row_slices(len(users), step)) or [slice(0, 0)]:
        scores = fitted.score_all_items(users[block])
        if seen_items is not None:
            seen_items.hide_scores(users[block], scores)
        if hidden is not None:
            scores[:, hidden] = -np.inf
        # Hidden items score minus infinity, and only finite scores are returned.
        rows, items, best = find_highest_scores(scores, n)
        best_of_blocks.append((rows + block.start, items, best))
    rows, items, best = (np.concatenate(parts) for parts in zip(*best_of_blocks, strict=True))
    # The link is increasing, so it is applied only to the best scores.
    return rows, items, fitted.apply_link(best)


def find_highest_scores(scores: NDArray[Any], n: int) -> tuple[Positions, Positions, NDArray[Any]]:
    """Return rows, columns and values of the n highest finite scores of each row, descending."""
    n = min(n, scores.shape[1])
    # Select the n highest in linear time, and sort only these.
    if n < scores.shape[1]:
        selected = np.argpartition(-scores, n - 1, axis=1)[:, :n]
    else:
        selected = np.broadcast_to(np.arange(n), (len(scores), n))
    # Sorted by column first: with a stable sort by score, ties are in the order of the items,
    # whatever the order of the selection.
    selected = np.sort(selected, axis=1)
    values = np.take_along_axis(scores, selected, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    items, best = (np.take_along_axis(a, order, axis=1) for a in (selected, values))
    rows, columns = np.nonzero(np.isfinite(best))
    return rows, items[rows, columns], best[rows, columns]


def move_state_to_ids(
    state: ShardState, fresh: ShardState, ids_before: Sequence[NDArray[Any]],
    ids_after: Sequence[NDArray[Any]],
) -> ShardState:  # fmt: skip
    """Return a state for the ids `ids_after`: known ids keep their rows, others are fresh.

    Rows of items follow the rows of users. `fresh`, the initial state for all new ids, is changed.
    """
    # First rows of users, and then of items, in the new and in the old state.
    new_start, old_start = 0, 0
    for old_ids, new_ids in zip(ids_before, ids_after, strict=True):
        positions = find_positions(old_ids, new_ids)
        known_rows = np.flatnonzero(positions >= 0)
        fresh.w[new_start + known_rows] = state.w[old_start + positions[known_rows]]
        for name, array in fresh.opt_state.items():
            array[new_start + known_rows] = state.opt_state[name][old_start + positions[known_rows]]
        new_start, old_start = new_start + len(new_ids), old_start + len(old_ids)
    return replace(state, w=fresh.w, opt_state=fresh.opt_state)
