"""Scores of pairs, and the items with the highest ones: functions of fitted factors, picklable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.row_slices import row_slices
from daskml_dist.data.keyed.ids import convert_ids, find_positions
from daskml_dist.errors import InvalidDataError

__all__ = ["FittedFactors", "Seen", "find_ids", "first_items", "highest"]

Positions = NDArray[np.int64]

#: Bytes of the factors of pairs, and of scores, that are made at once.
_BYTES = 1 << 22


def find_ids(table: NDArray[Any], ids: Any, name: str) -> Positions:
    """Positions of ids among those of the fit; -1 for one that it has not seen."""
    given = convert_ids(ids, name)
    if len(given) and _kind(given) != _kind(table):
        raise InvalidDataError(
            f"Column {name!r} holds ids of type {_kind(given)}, and those of the fit are of type "
            f"{_kind(table)}. Convert them: frame[{name!r}].astype({table.dtype.name!r})."
        )
    return find_positions(table, given)


def _kind(ids: NDArray[Any]) -> str:
    if ids.dtype.kind in "biuf":
        return "number"
    if ids.dtype.kind in "mM":
        return "datetime" if ids.dtype.kind == "M" else "timedelta"
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
        None: there are none.
    default : float
        Score of a pair of which nothing is known, and to which biases are added.
    link : callable or None
        What makes predictions of scores, without changing their order; None: they are.
    """

    user_ids: NDArray[Any]
    item_ids: NDArray[Any]
    user_factors: NDArray[Any]
    item_factors: NDArray[Any]
    user_biases: NDArray[Any] | None
    item_biases: NDArray[Any] | None
    default: float
    link: Callable[[NDArray[Any]], NDArray[Any]] | None = None

    def predicted(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Predictions of some scores."""
        return scores if self.link is None else self.link(scores)

    def of_pairs(self, users: Positions, items: Positions) -> NDArray[np.float64]:
        """Score of each pair of positions; -1: unseen.

        A pair of known ids has the product of their factors, and biases where there are some; one
        with an id that the fit has not seen has the default, and the bias of the other id.
        """
        out = np.empty(len(users))
        step = max(1, _BYTES // (8 * max(self.user_factors.shape[1], 1)))
        for at in row_slices(len(users), step):
            u, i = users[at], items[at]
            product = np.einsum(
                "ij,ij->i", self.user_factors[u], self.item_factors[i], dtype=np.float64
            )
            known = (u >= 0) & (i >= 0)
            if self.user_biases is None or self.item_biases is None:
                out[at] = np.where(known, product, self.default)
                continue
            out[at] = self.default + np.where(known, product, 0.0)
            out[at] += np.where(u >= 0, self.user_biases[u], 0.0)
            out[at] += np.where(i >= 0, self.item_biases[i], 0.0)
        return out

    def of_users(self, users: Positions) -> NDArray[Any]:
        """Score of each item for some users; one that the fit has not seen is like their mean."""
        factors = np.where(
            (users >= 0)[:, None], self.user_factors[users], self.user_factors.mean(axis=0)
        )
        scores: NDArray[Any] = factors.astype(self.user_factors.dtype) @ self.item_factors.T
        if self.user_biases is not None and self.item_biases is not None:
            scores += self.item_biases
            own = np.where(users >= 0, self.user_biases[users], 0.0)
            scores += (own + self.default).astype(scores.dtype)[:, None]
        return scores

    def similar_items(self, item: int) -> NDArray[Any]:
        """Cosine of the factors of an item and of all; minus infinity for those of no length."""
        return _cosines(self.item_factors, item)

    def similar_users(self, user: int) -> NDArray[Any]:
        """Cosine of the factors of a user and of all; as of items."""
        return _cosines(self.user_factors, user)


def _cosines(factors: NDArray[Any], at: int) -> NDArray[Any]:
    lengths = np.linalg.norm(factors, axis=1)
    products = factors @ factors[at]
    whole = np.where(lengths > 0, lengths, 1) * max(lengths[at], 1e-300)
    return np.where(lengths > 0, products / whole, -np.inf)


@dataclass(frozen=True, eq=False)
class Seen:
    """Items that users have rated.

    Parameters
    ----------
    indptr : ndarray of int64 of shape (n_users + 1,)
    items : ndarray of int32
    """

    indptr: NDArray[np.int64]
    items: NDArray[np.int32]

    @classmethod
    def of(cls, users: NDArray[Any], items: NDArray[Any], n_users: int) -> Seen:
        """From positions of pairs; those with a position of -1 are left out."""
        known = (users >= 0) & (items >= 0)
        users, items = users[known], items[known]
        order = np.argsort(users, kind="stable")
        counts = np.bincount(users, minlength=n_users)
        return cls(np.concatenate([[0], np.cumsum(counts)]), items[order].astype(np.int32))

    def hide(self, users: Positions, scores: NDArray[Any]) -> None:
        """Set the scores of what the users have seen to minus infinity."""
        for row, user in zip(scores, users.tolist(), strict=True):
            if user >= 0:
                row[self.items[self.indptr[user] : self.indptr[user + 1]]] = -np.inf


def first_items(
    fitted: FittedFactors,
    users: Positions,
    n: int,
    seen: Seen | None,
    hidden: Positions | None = None,
) -> tuple[Positions, Positions, NDArray[Any]]:
    """The items with the highest scores for each user, but for `hidden` ones."""
    step = max(1, _BYTES // (4 * max(len(fitted.item_ids), 1)))
    found = []
    for at in row_slices(len(users), step):
        scores = fitted.of_users(users[at])
        if seen is not None:
            seen.hide(users[at], scores)
        if hidden is not None:
            scores[:, hidden] = -np.inf
        rows, items, best = highest(scores, n)
        found.append((rows + at.start, items, best))
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    rows, items, best = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return rows, items, fitted.predicted(best)


def highest(scores: NDArray[Any], n: int) -> tuple[Positions, Positions, NDArray[Any]]:
    """Rows, columns and values of the n highest finite scores of each row, in falling order."""
    n = min(n, scores.shape[1])
    some = np.argpartition(-scores, n - 1, axis=1)[:, :n] if n < scores.shape[1] else None
    if some is None:
        some = np.broadcast_to(np.arange(n), (len(scores), n))
    # Of equal scores the first item comes first.
    some = np.sort(some, axis=1)
    values = np.take_along_axis(scores, some, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    items, best = (np.take_along_axis(a, order, axis=1) for a in (some, values))
    rows, columns = np.nonzero(np.isfinite(best))
    return rows, items[rows, columns], best[rows, columns]
