"""Base class of the recommenders: ratings in, predict_pairs, recommended and similar items out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from daskml_dist.data.conversion import load_pandas
from daskml_dist.data.keyed import KeyedCollection
from daskml_dist.data.keyed.collection import EntryColumns, read_frame_entries, read_matrix_entries
from daskml_dist.data.keyed.cut import NumberedEntries
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.errors import InvalidDataError, NotFittedError
from daskml_dist.estimators.estimator_mixin import EstimatorMixin
from daskml_dist.inference.block_mapping import map_pieces
from daskml_dist.inference.recommendation_hits import compute_gains, find_hits
from daskml_dist.parameters.checks import check_count, check_flag
from daskml_dist.recommender._scores import (
    FittedFactors,
    SeenItems,
    find_best_items,
    find_highest_scores,
    find_id_positions,
)
from daskml_dist.solvers.als import SIDES

__all__ = ["BaseRecommender", "predict_pairs", "score_ratings"]


class BaseRecommender(EstimatorMixin, BaseEstimator):
    """Base class of estimators that learn factors of users and items from ratings.

    A fit sets ``user_ids_``, ``item_ids_``, ``user_factors_``, ``item_factors_``, ``mean_`` and,
    with biases, ``user_biases_`` and ``item_biases_``.
    """

    user_col: Any = "user"
    item_col: Any = "item"
    rating_col: Any = "rating"
    implicit: bool = False

    @abstractmethod
    def fit(self, X: Any, y: None = None, *, client: Any = None) -> Any:
        """Learn the factors."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.sparse = True
        tags.target_tags.required = False
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        # The graph of lazy ratings holds the rows of the fit.
        return {name: v for name, v in state.items() if name != "_given" or not is_dask(v)}

    def _in_files(self) -> dict[str, Any]:
        """Return the attributes of model files: what users have rated, without the ratings."""
        given = vars(self).get("_given")
        return {} if given is None else {"_given": None if is_dask(given) else self._seen(given)}

    # -- ratings -------------------------------------------------------------------------------

    def _entries(self, X: Any, rated: bool = True) -> KeyedCollection:
        """Return the ratings of a frame or a sparse matrix; without `rated` their pairs alone."""
        least = 0.0 if self.implicit else None
        if not is_dataframe_like(X):
            return read_matrix_entries(X, SIDES, least)
        value = self.rating_col if rated else None
        return read_frame_entries(
            X, EntryColumns(self.user_col, self.item_col, value, least), SIDES
        )

    def _reduce_entries(
        self, function: Callable[[NumberedEntries], Any], X: Any, rated: bool = True
    ) -> Any:
        """Return the joined arrays that a function of entries makes of all parts of X."""
        entries = self._entries(X, rated)
        parts: list[Any] = [(source, None, None) for source in entries.sources]
        one = partial(_apply_to_part, function, entries.numbers)
        return reduce_parts(replace(entries, parts=parts), one, _concatenate_parts)

    # -- predictions ---------------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """Rating, or preference, of each pair of a user and an item.

        A pair with an id that the fit has not seen (Spark's ``coldStartStrategy`` gives NaN or
        drops it) has the mean of all ratings, with biases that of the known id besides; 0 where
        ratings are implicit. No prediction is NaN.

        Parameters
        ----------
        X : pandas.DataFrame, dask DataFrame or array-like of shape (n_pairs, 2)
            With the columns `user_col` and `item_col`, or a user and an item a row.

        Returns
        -------
        ndarray or lazy dask Array of float64 of shape (n_pairs,)

        Raises
        ------
        InvalidDataError
            A column is not there, an id is missing, or ids are of another type than in the fit.
        """
        self._check_fitted()
        names = self._names
        if is_dataframe_like(X):
            if missing := [name for name in names if name not in X.columns]:
                raise InvalidDataError(
                    f"X has no column {' and '.join(map(repr, missing))}; it has "
                    f"{list(X.columns)}. Name the columns by user_col and item_col."
                )
            X = X[[*names]]
        function = partial(predict_pairs, self._fitted(), names)
        if is_dask(X):
            return map_pieces(_call_on_part, function, X, np.empty(0))
        return function(X)

    def score(self, X: Any, y: None = None) -> float:
        """Score of held-out ratings; higher is better.

        Parameters
        ----------
        X : as in :meth:`fit`
        y : ignored

        Returns
        -------
        float
            Minus the root mean squared error of :meth:`predict`; of implicit ratings the
            :func:`~daskml_dist.metrics.ndcg_at_k` of ten items a user that are new to him.
        """
        self._check_fitted()
        if not self.implicit:
            squares, n = self._reduce_entries(
                partial(_sum_squared_errors, self._fitted(), self._names), X
            )
            return -float(np.sqrt(squares.sum() / n.sum()))
        users, items = self._reduce_entries(_take_pairs, X, rated=False)
        held_out = load_pandas().DataFrame({self.user_col: users, self.item_col: items})
        best = self.recommend(held_out[self.user_col].unique(), 10)
        return float(compute_gains(*find_hits(held_out, best, 10, (*self._names, "score"))).mean())

    # -- recommendations -----------------------------------------------------------------------

    def recommend(
        self,
        users: Any = None,
        n: int = 10,
        filter_seen: bool = True,
        *,
        seen: Any = None,
        filter_items: Any = None,
    ) -> Any:
        """The items with the highest predictions for each user.

        A user that the fit has not seen gets the items that are best for the mean user.

        Parameters
        ----------
        users : array-like or dask Series of ids, of shape (n_users,), or None
            None: all of the fit.
        n : int, default=10
            Items a user; less where a user has seen nearly all.
        filter_seen : bool, default=True
            Leave out items that a user has rated in `seen`.
        seen : as X in :meth:`fit`, or None
            None: the ratings of the fit, which an estimator that was fitted to a Dask collection
            reads again, and does not keep when it is pickled. Of the users asked for, the pairs
            come to the client.
        filter_items : array-like of ids, of shape (n_items,), or None
            Items that nobody is to get, such as those that are sold out.

        Returns
        -------
        pandas.DataFrame or lazy dask DataFrame
            Columns `user_col`, `item_col` and "score": users in the given order, the highest
            scores of each first. Lazy where `users` is.

        Raises
        ------
        InvalidParameterError, InvalidDataError
            `n` is no number of items; ids are of another type than in the fit; nobody knows what
            was seen.
        """
        self._check_fitted()
        check_count("n", n)
        check_flag("filter_seen", filter_seen)
        given = self.user_ids_ if users is None else users
        lazy = is_dask(given)
        shown = self._seen(seen, None if lazy or users is None else given) if filter_seen else None
        hidden = None
        if filter_items is not None:
            hidden = find_id_positions(self.item_ids_, np.asarray(filter_items), str(self.item_col))
            hidden = hidden[hidden >= 0]  # what the fit has not seen is not recommended anyway
        function = partial(_recommend_to_users, self._fitted(), self._names, int(n), shown, hidden)
        if not lazy:
            return function(given)
        frame = given.to_frame(self.user_col) if is_series_like(given) else given
        return map_pieces(_call_on_part, function, frame, function(self.user_ids_[:0]))

    def _seen(self, seen: Any, users: Any = None) -> SeenItems:
        """Return the items that some users have rated, or all users."""
        if seen is None and (seen := getattr(self, "_given", None)) is None:
            raise InvalidDataError(
                "Nobody knows which items users have seen: the fit was to a Dask collection, and "
                "pickling left it behind, or to a stream, which is not kept. Give "
                "recommend(..., seen=ratings), or filter_seen=False."
            )
        if isinstance(seen, SeenItems):
            return seen
        wanted = np.ones(len(self.user_ids_), np.bool_)
        if users is not None:
            wanted[:] = False
            found = find_id_positions(self.user_ids_, users, str(self.user_col))
            wanted[found[found >= 0]] = True
        of = partial(_find_positions_of_users, self.user_ids_, self.item_ids_, wanted)
        pairs = self._reduce_entries(of, seen, rated=False)
        return SeenItems.of(pairs[0], pairs[1], len(self.user_ids_))

    def similar_items(self, items: Any, n: int = 10) -> Any:
        """The items whose factors point in nearly the same direction as those of some items.

        Parameters
        ----------
        items : array-like of ids, of shape (n_items,)
        n : int, default=10

        Returns
        -------
        pandas.DataFrame
            Columns `item_col`, "similar" and "score", the cosine: items in the given order, the
            most similar ones of each first, without itself.

        Raises
        ------
        InvalidParameterError, InvalidDataError
            `n` is no number of items; the fit has not seen an item.
        """
        self._check_fitted()
        return self._similar(items, n, self.item_col, self.item_ids_, self._fitted().similar_items)

    def similar_users(self, users: Any, n: int = 10) -> Any:
        """The users whose factors point in nearly the same direction as those of some users.

        Parameters
        ----------
        users : array-like of ids, of shape (n_users,)
        n : int, default=10

        Returns
        -------
        pandas.DataFrame
            Columns `user_col`, "similar" and "score", the cosine: users in the given order, the
            most similar ones of each first, without the user himself.

        Raises
        ------
        InvalidParameterError, InvalidDataError
            `n` is no number of users; the fit has not seen a user.
        """
        self._check_fitted()
        return self._similar(users, n, self.user_col, self.user_ids_, self._fitted().similar_users)

    def _similar(
        self, given: Any, n: Any, column: Any, table: NDArray[Any], cosines_of: Callable[[int], Any]
    ) -> Any:
        """Return the ids of a table that are most similar to some of them."""
        check_count("n", n)
        ids = np.asarray(given).reshape(-1)
        at = find_id_positions(table, ids, str(column))
        if (at < 0).any():
            side = "items" if table is self.item_ids_ else "users"
            raise InvalidDataError(
                f"The fit has not seen the {side} {ids[at < 0][:5].tolist()}. Ask for {side} of "
                f"{side[:-1]}_ids_."
            )
        found = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
        for i, own in enumerate(at.tolist()):
            cosines = cosines_of(own)[np.newaxis]
            cosines[0, own] = -np.inf
            rows, others, best = find_highest_scores(cosines, int(n))
            found.append((rows + i, others, best))
        rows, others, best = _concatenate_parts(found)
        return load_pandas().DataFrame({column: ids[rows], "similar": table[others], "score": best})

    # -- what was fitted -----------------------------------------------------------------------

    @property
    def _names(self) -> tuple[Any, Any]:
        return self.user_col, self.item_col

    def _check_fitted(self, X: Any = None) -> None:
        if not hasattr(self, "user_factors_"):
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet. Call 'fit' with "
                "appropriate arguments before using this estimator."
            )

    def _fitted(self) -> FittedFactors:
        return FittedFactors(
            self.user_ids_,
            self.item_ids_,
            self.user_factors_,
            self.item_factors_,
            getattr(self, "user_biases_", None),
            getattr(self, "item_biases_", None),
            0.0 if self.implicit else self.mean_,
        )


def _call_on_part(rows: Any, function: Callable[[Any], Any], number: int) -> Any:
    return function(rows)


def _column(rows: Any, name: Any, at: int) -> Any:
    """Return a column of a frame, or of an array of pairs."""
    if is_dataframe_like(rows):
        return rows[name]
    pairs = np.asarray(rows)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise InvalidDataError(
            f"Pairs have the shape {pairs.shape}. Give a user and an item in each row, or a "
            f"dataframe with the column {name!r}."
        )
    return pairs[:, at]


def predict_pairs(fitted: FittedFactors, names: tuple[Any, Any], rows: Any) -> NDArray[np.float64]:
    """Return the prediction of each pair of a frame or an array."""
    tables = fitted.user_ids, fitted.item_ids
    users, items = (
        find_id_positions(tables[at], _column(rows, name, at), str(name))
        for at, name in enumerate(names)
    )
    return fitted.apply_link(fitted.score_pairs(users, items))


def _recommend_to_users(
    fitted: FittedFactors,
    names: tuple[Any, Any],
    n: int,
    seen: SeenItems | None,
    hidden: NDArray[np.int64] | None,
    users: Any,
) -> Any:
    ids = users[names[0]] if is_dataframe_like(users) else users
    ids = np.asarray(ids).reshape(-1)
    at = find_id_positions(fitted.user_ids, ids, str(names[0]))
    rows, items, best = find_best_items(fitted, at, n, seen, hidden)
    found = {names[0]: ids[rows], names[1]: fitted.item_ids[items], "score": best}
    return load_pandas().DataFrame(found)


# -- functions of the entries of a part --------------------------------------------------------


def _apply_to_part(
    function: Callable[[NumberedEntries], Any], numbers: Any, index: int, part: Any, *_: Any
) -> Any:
    return function(numbers(part))


def _concatenate_parts(parts: list[tuple[Any, ...]]) -> tuple[NDArray[Any], ...]:
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))


def _take_pairs(entries: NumberedEntries) -> tuple[NDArray[Any], NDArray[Any]]:
    return entries.ids[0][entries.codes[0]], entries.ids[1][entries.codes[1]]


def _find_positions_of_users(
    user_ids: NDArray[Any],
    item_ids: NDArray[Any],
    wanted: NDArray[np.bool_],
    entries: NumberedEntries,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the positions of the pairs of some users, whose ids the fit has both seen."""
    users = find_id_positions(user_ids, entries.ids[0], "user")[entries.codes[0]]
    items = find_id_positions(item_ids, entries.ids[1], "item")[entries.codes[1]]
    known = (users >= 0) & (items >= 0) & wanted[users]
    return users[known].astype(np.int32), items[known].astype(np.int32)


def score_ratings(
    fitted: FittedFactors, names: tuple[Any, Any], entries: NumberedEntries
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return some ratings, and the scores of their pairs."""
    users, items = (
        find_id_positions(ids, own, str(name))[codes]
        for ids, own, codes, name in zip(
            (fitted.user_ids, fitted.item_ids), entries.ids, entries.codes, names, strict=True
        )
    )
    values = np.ones(len(users)) if entries.values is None else entries.values.astype(np.float64)
    return values, fitted.score_pairs(users, items)


def _sum_squared_errors(
    fitted: FittedFactors, names: tuple[Any, Any], entries: NumberedEntries
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sum of the squared errors of some ratings, and their number."""
    values, scores = score_ratings(fitted, names, entries)
    errors = values - fitted.apply_link(scores)
    return np.array([errors @ errors]), np.array([float(len(errors))])
