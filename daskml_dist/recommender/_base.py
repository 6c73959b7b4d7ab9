"""Base class of the recommenders: predictions, recommendations, and similar items and users.

Recommenders differ in how they find factors. After the fit all use the same score: that of a user u
and an item i is x_u'y_i, plus biases and the mean if the model has them. Ids are any sortable
values; internally they are positions in the sorted ids of the fit, with -1 for an unseen id.
"""

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

from daskml_dist.data.conversion import convert_foreign, load_pandas
from daskml_dist.data.keyed.collection import (
    EntryColumns,
    KeyedCollection,
    read_frame_entries,
    read_matrix_entries,
)
from daskml_dist.data.keyed.cut import NumberedEntries
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.errors import InvalidDataError
from daskml_dist.errors.sklearn_errors import make_not_fitted_error
from daskml_dist.estimators.estimator_mixin import EstimatorMixin
from daskml_dist.inference.block_mapping import map_blocks, map_pieces
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
        """Fit the factors to ratings."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # X is ratings of pairs of ids, or a matrix of them: not a table of features, and without a
        # y.
        tags.input_tags.two_d_array = False
        tags.input_tags.sparse = True
        tags.target_tags.required = False
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        # Lazy ratings are not pickled: their Dask graph holds the rows of the fit.
        return {name: v for name, v in state.items() if name != "_given" or not is_dask(v)}

    def _in_files(self) -> dict[str, Any]:
        """Return attributes to save in a model file: the items users rated, not the ratings."""
        ratings = vars(self).get("_given")
        return (
            {}
            if ratings is None
            else {"_given": None if is_dask(ratings) else self._find_seen_items(ratings)}
        )

    # -- ratings -------------------------------------------------------------------------------

    def _entries(self, X: Any, rated: bool = True) -> KeyedCollection:
        """Return the ratings of a frame or a sparse matrix; without `rated`, only their pairs."""
        # Implicit ratings are checked to be at least 0.
        min_rating = 0.0 if self.implicit else None
        X = convert_foreign(X)
        if not is_dataframe_like(X):
            return read_matrix_entries(X, SIDES, min_rating)
        value = self.rating_col if rated else None
        return read_frame_entries(
            X, EntryColumns(self.user_col, self.item_col, value, min_rating), SIDES
        )

    def _reduce_entries(
        self, function: Callable[[NumberedEntries], Any], X: Any, rated: bool = True
    ) -> Any:
        """Return the arrays of a function of each part of X, concatenated over the parts."""
        entries = self._entries(X, rated)
        # `reduce_parts` takes parts of X, y and weights; a part of ratings is one source.
        parts: list[Any] = [(source, None, None) for source in entries.sources]
        apply = partial(_apply_to_part, function, entries.number_entries)
        return reduce_parts(replace(entries, parts=parts), apply, _concatenate_parts)

    # -- predictions ---------------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """Return the predicted rating, or preference, of each pair of a user and an item.

        A pair with an id that the fit has not seen gets the mean of all ratings, plus the bias of a
        known id if there are biases; 0 for implicit ratings. No prediction is NaN (Spark's
        ``coldStartStrategy`` gives NaN or drops such a pair).

        Parameters
        ----------
        X : dataframe or table of any kind, or array-like of shape (n_pairs, 2)
            With the columns `user_col` and `item_col`, or with a user and an item in each row.

        Returns
        -------
        ndarray or lazy dask Array of float64 of shape (n_pairs,)

        Raises
        ------
        InvalidDataError
            A column is not there, an id is missing, or ids are of another type than in the fit.
        """
        self._check_fitted()
        names, X = self._names, convert_foreign(X)
        if is_dataframe_like(X):
            if missing := [name for name in names if name not in X.columns]:
                raise InvalidDataError(
                    f"X has no column {' and '.join(map(repr, missing))}; it has "
                    f"{list(X.columns)}. Name the columns by user_col and item_col."
                )
            X = X[[*names]]  # other columns are not passed to the function
        function = partial(predict_pairs, self._fitted(), names)
        if is_dask(X):
            return map_pieces(_call_on_part, function, X, np.empty(0))
        return function(X)

    def score(self, X: Any, y: None = None) -> float:
        """Return the score of held-out ratings; higher is better.

        Parameters
        ----------
        X : as in :meth:`fit`
        y : ignored

        Returns
        -------
        float
            Minus the root mean squared error of :meth:`predict`; for implicit ratings the
            :func:`~daskml_dist.metrics.ndcg_at_k` of ten recommendations to each user of items that
            the user has not rated in the fit.
        """
        self._check_fitted()
        if not self.implicit:
            squares, n = self._reduce_entries(
                partial(_sum_squared_errors, self._fitted(), self._names), X
            )
            check_any_ratings(n.sum())
            return -float(np.sqrt(squares.sum() / n.sum()))
        # Implicit ratings have no error: the ranking of the chosen items is scored.
        users, items = self._reduce_entries(_take_pairs, X, rated=False)
        check_any_ratings(len(users))
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
        """Return the items with the highest predictions for each user.

        A user that the fit has not seen gets the items that are best for the mean user.

        Parameters
        ----------
        users : array-like or dask Series of ids, of shape (n_users,), or None
            None: all users of the fit. Of a dataframe, the column `user_col` is taken.
        n : int, default=10
            Items for each user; fewer if a user has seen nearly all.
        filter_seen : bool, default=True
            Leave out items that a user has rated in `seen`.
        seen : as X in :meth:`fit`, or None
            None: the ratings of the fit, which an estimator that was fitted to a Dask collection
            reads again, and does not keep when it is pickled. The pairs of `users` are gathered on
            the client.
        filter_items : array-like of ids, of shape (n_items,), or None
            Items that are never recommended, for example because they are sold out.

        Returns
        -------
        pandas.DataFrame or lazy dask DataFrame
            Columns `user_col`, `item_col` and "score": users in the given order, the highest scores
            of each first. Lazy if `users` is.

        Raises
        ------
        InvalidParameterError, InvalidDataError
            `n` is not a positive integer; ids are of another type than in the fit; `seen` is None
            and the ratings of the fit are not kept.
        """
        self._check_fitted()
        check_count("n", n)
        check_flag("filter_seen", filter_seen)
        user_ids = self.user_ids_ if users is None else users
        if is_dataframe_like(user_ids):
            if self.user_col not in user_ids.columns:
                raise InvalidDataError(
                    f"users has no column {self.user_col!r}; it has {list(user_ids.columns)}. Pass "
                    "the ids of the users, such as frame['user']."
                )
            user_ids = user_ids[self.user_col]
        lazy = is_dask(user_ids)
        # Lazy ids are unknown here, so the items of all users are sent with the function.
        seen_items = (
            self._find_seen_items(seen, None if lazy or users is None else user_ids)
            if filter_seen
            else None
        )
        hidden = None
        if filter_items is not None:
            hidden = find_id_positions(self.item_ids_, np.asarray(filter_items), str(self.item_col))
            hidden = hidden[hidden >= 0]  # items that the fit has not seen are never recommended
        function = partial(
            _recommend_to_users, self._fitted(), self._names, int(n), seen_items, hidden
        )
        if not lazy:
            return function(user_ids)
        frame = user_ids.to_frame(self.user_col) if is_series_like(user_ids) else user_ids
        # The result for one user has the columns and dtypes that Dask's metadata needs.
        user = load_pandas().Series(self.user_ids_[:1])
        dtype = frame.dtypes.get(self.user_col) if is_dataframe_like(frame) else frame.dtype
        if user.dtype.kind in "iu" and getattr(dtype, "kind", "O") in "iu":
            user = user.astype(dtype)  # ids come back in the dtype in which they are given
        return map_blocks(function, frame, function(user))

    def _find_seen_items(self, seen_ratings: Any, users: Any = None) -> SeenItems:
        """Return the items that `users` have rated; None: all users."""
        if seen_ratings is None and (seen_ratings := getattr(self, "_given", None)) is None:
            raise InvalidDataError(
                "The items that users have seen are unknown: the fit used a Dask collection, "
                "which is not pickled, or a stream, which is not stored. Pass recommend(..., "
                "seen=ratings), or filter_seen=False."
            )
        if isinstance(seen_ratings, SeenItems):
            return seen_ratings
        seen_ratings = convert_foreign(seen_ratings)
        if is_dataframe_like(seen_ratings) and not is_dask(seen_ratings) and not len(seen_ratings):
            nothing = np.empty(0, np.int64)
            return SeenItems.from_pairs(nothing, nothing, len(self.user_ids_))
        is_wanted = np.full(len(self.user_ids_), users is None)
        if users is not None:
            positions = find_id_positions(self.user_ids_, users, str(self.user_col))
            is_wanted[positions[positions >= 0]] = True
        # Filtered on the workers: the client gets only the pairs of these users.
        find_pairs = partial(_find_positions_of_users, self.user_ids_, self.item_ids_, is_wanted)
        at_users, at_items = self._reduce_entries(find_pairs, seen_ratings, rated=False)
        return SeenItems.from_pairs(at_users, at_items, len(self.user_ids_))

    def similar_items(self, items: Any, n: int = 10) -> Any:
        """Return the items whose factors have the highest cosine similarity to those of each item.

        Parameters
        ----------
        items : array-like of ids, of shape (n_items,)
        n : int, default=10

        Returns
        -------
        pandas.DataFrame
            Columns `item_col`, "similar" and "score", the cosine: items in the given order, the
            most similar ones of each first, without the item itself.

        Raises
        ------
        InvalidParameterError, InvalidDataError
            `n` is not a positive integer; the fit has not seen an item.
        """
        self._check_fitted()
        return self._similar(items, n, self.item_col, self.item_ids_, self._fitted().similar_items)

    def similar_users(self, users: Any, n: int = 10) -> Any:
        """Return the users whose factors have the highest cosine similarity to those of each user.

        Parameters
        ----------
        users : array-like of ids, of shape (n_users,)
        n : int, default=10

        Returns
        -------
        pandas.DataFrame
            Columns `user_col`, "similar" and "score", the cosine: users in the given order, the
            most similar ones of each first, without the user itself.

        Raises
        ------
        InvalidParameterError, InvalidDataError
            `n` is not a positive integer; the fit has not seen a user.
        """
        self._check_fitted()
        return self._similar(users, n, self.user_col, self.user_ids_, self._fitted().similar_users)

    def _similar(
        self,
        query_ids: Any,
        n: Any,
        column: Any,
        table: NDArray[Any],
        cosines_of: Callable[[int], Any],
    ) -> Any:
        """Return a frame of the ids in `table` that are most similar to each given id.

        `cosines_of` returns the cosines of the id at a position of the table to all of them.
        """
        check_count("n", n)
        ids = np.asarray(query_ids).reshape(-1)
        positions = find_id_positions(table, ids, str(column))
        if (positions < 0).any():
            side = "items" if table is self.item_ids_ else "users"
            raise InvalidDataError(
                f"The fit has not seen the {side} {ids[positions < 0][:5].tolist()}. Ask for "
                f"{side} of {side[:-1]}_ids_."
            )
        # Starts with an empty part, in case there are no ids.
        parts = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
        # One id at a time: a matrix of all cosines may not fit in memory.
        for i, position in enumerate(positions.tolist()):
            cosines = cosines_of(position)[np.newaxis]
            cosines[0, position] = -np.inf  # an id is not similar to itself
            rows, similar, best = find_highest_scores(cosines, int(n))
            parts.append((rows + i, similar, best))
        rows, similar, best = _concatenate_parts(parts)
        return load_pandas().DataFrame(
            {column: ids[rows], "similar": table[similar], "score": best}
        )

    # -- fitted attributes -----------------------------------------------------------------------

    @property
    def _names(self) -> tuple[Any, Any]:
        """Return the names of the columns of users and of items."""
        return self.user_col, self.item_col

    def _check_fitted(self, X: Any = None) -> None:
        """Raise if there are no factors yet."""
        if not hasattr(self, "user_factors_"):
            raise make_not_fitted_error(self)

    def _fitted(self) -> FittedFactors:
        """Return the fitted attributes as one picklable object, without the estimator."""
        # Implicit preferences are products of factors only, without the mean of the counts.
        return FittedFactors(
            self.user_ids_,
            self.item_ids_,
            self.user_factors_,
            self.item_factors_,
            getattr(self, "user_biases_", None),
            getattr(self, "item_biases_", None),
            0.0 if self.implicit else self.mean_,
        )


def check_any_ratings(n: float) -> None:
    """Raise if a collection has no ratings, which is known only once its parts are read."""
    if not n:
        raise InvalidDataError(
            "X has no ratings in any part. Check the files or the filter that they come from."
        )


def _call_on_part(rows: Any, function: Callable[[Any], Any], block_index: int) -> Any:
    """Return a function of a part's rows; `map_pieces` also passes the part's number."""
    return function(rows)


def _column(rows: Any, name: Any, column_index: int) -> Any:
    """Return a column of a frame, or of an array of pairs."""
    if is_dataframe_like(rows):
        return rows[name]
    # NumPy would make texts of the numbers in a list of both.
    is_list = isinstance(rows, list | tuple)
    pairs = np.asarray(rows, object if is_list else None)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise InvalidDataError(
            f"Pairs have the shape {pairs.shape}. Give one user and one item per row, or a "
            f"dataframe with the column {name!r}."
        )
    return (
        load_pandas().Series(pairs[:, column_index].tolist()) if is_list else pairs[:, column_index]
    )


def predict_pairs(fitted: FittedFactors, names: tuple[Any, Any], rows: Any) -> NDArray[np.float64]:
    """Return the prediction of each pair of a frame or an array."""
    tables = fitted.user_ids, fitted.item_ids
    users, items = (
        find_id_positions(tables[side], _column(rows, name, side), str(name))
        for side, name in enumerate(names)
    )
    return fitted.apply_link(fitted.score_pairs(users, items))


def _recommend_to_users(
    fitted: FittedFactors,
    names: tuple[Any, Any],
    n: int,
    seen_items: SeenItems | None,
    hidden: NDArray[np.int64] | None,
    users: Any,
) -> Any:
    """Return a frame of the best items for some users, without `seen_items` and `hidden` ones."""
    ids = users[names[0]] if is_dataframe_like(users) else users
    ids = np.asarray(ids).reshape(-1)
    positions = find_id_positions(fitted.user_ids, ids, str(names[0]))
    rows, items, best = find_best_items(fitted, positions, n, seen_items, hidden)
    columns = {
        names[0]: _take_ids(ids, rows), names[1]: _take_ids(fitted.item_ids, items), "score": best
    }  # fmt: skip
    return load_pandas().DataFrame(columns)


def _take_ids(ids: NDArray[Any], positions: NDArray[np.int64]) -> Any:
    """Return ids as a column, whose dtype is the same if there are none."""
    series = load_pandas().Series  # which makes strings of objects that are texts, if it sees one
    return series(ids[positions]) if len(positions) else series(ids[:1])[:0]


# -- functions of the entries of a part --------------------------------------------------------


def _apply_to_part(
    function: Callable[[NumberedEntries], Any], number_entries: Any, index: int, block: Any, *_: Any
) -> Any:
    """Return a function of the numbered entries of a part."""
    return function(number_entries(block))


def _concatenate_parts(array_tuples: list[tuple[Any, ...]]) -> tuple[NDArray[Any], ...]:
    """Concatenate the first arrays of all parts, their second arrays, and so on."""
    return tuple(np.concatenate(arrays) for arrays in zip(*array_tuples, strict=True))


def _take_pairs(entries: NumberedEntries) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the user ids and the item ids of the pairs of a part."""
    return entries.ids[0][entries.codes[0]], entries.ids[1][entries.codes[1]]


def _find_positions_of_users(
    user_ids: NDArray[Any],
    item_ids: NDArray[Any],
    is_wanted: NDArray[np.bool_],
    entries: NumberedEntries,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return positions of user and item for the pairs of wanted users that the fit knows."""
    users = find_id_positions(user_ids, entries.ids[0], "user")[entries.codes[0]]
    items = find_id_positions(item_ids, entries.ids[1], "item")[entries.codes[1]]
    # An unknown user has position -1, which indexes `is_wanted` from the end: the first term
    # discards it.
    is_known = (users >= 0) & (items >= 0) & is_wanted[users]
    return users[is_known].astype(np.int32), items[is_known].astype(np.int32)


def score_ratings(
    fitted: FittedFactors, names: tuple[Any, Any], entries: NumberedEntries
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ratings of a part, and the scores of their pairs."""
    users, items = (
        find_id_positions(ids, part_ids, str(name))[codes]
        for ids, part_ids, codes, name in zip(
            (fitted.user_ids, fitted.item_ids), entries.ids, entries.codes, names, strict=True
        )
    )
    # Without a column of ratings every pair is a rating of 1.
    values = np.ones(len(users)) if entries.values is None else entries.values.astype(np.float64)
    return values, fitted.score_pairs(users, items)


def _sum_squared_errors(
    fitted: FittedFactors, names: tuple[Any, Any], entries: NumberedEntries
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sum of the squared errors of a part's ratings, and their number."""
    values, scores = score_ratings(fitted, names, entries)
    errors = values - fitted.apply_link(scores)
    # Arrays of one number: `_reduce_entries` concatenates the parts, and `score` adds them up.
    return np.array([errors @ errors]), np.array([float(len(errors))])
