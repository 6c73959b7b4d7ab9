"""Base class of the recommenders: ratings in, predictions, recommended and similar items out."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from daskml_dist._checks import check_count, check_flag
from daskml_dist.data.keyed import KeyedCollection
from daskml_dist.data.keyed.cut import Numbered
from daskml_dist.data.keyed.frames import Columns, entries_of_frame, entries_of_matrix
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.optional import load_pandas
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.errors import InvalidDataError, NotFittedError
from daskml_dist.inference.transform import map_pieces
from daskml_dist.metrics import ndcg_at_k
from daskml_dist.recommender._scores import Fitted, Seen, find_ids, first_items, highest
from daskml_dist.solvers.als import SIDES

__all__ = ["BaseRecommender"]


class BaseRecommender(BaseEstimator):
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

    # -- ratings -------------------------------------------------------------------------------

    def _entries(self, X: Any, rated: bool = True) -> KeyedCollection:
        """Ratings of a frame, or of a sparse matrix; without `rated` their pairs alone."""
        least = 0.0 if self.implicit else None
        if not is_dataframe_like(X):
            return entries_of_matrix(X, SIDES, least)
        value = self.rating_col if rated else None
        return entries_of_frame(X, Columns(self.user_col, self.item_col, value, least), SIDES)

    def _reduced(self, function: Any, X: Any, rated: bool = True) -> Any:
        """Sums of ``function(users, items, values)`` of positions in all parts of X, joined."""
        entries = self._entries(X, rated)
        assert entries.numbers is not None
        parts: list[Any] = [(source, None, None) for source in entries.sources]
        names = str(self.user_col), str(self.item_col)
        one = _OfEntries(entries.numbers, self.user_ids_, self.item_ids_, names, function)
        return reduce_parts(replace(entries, parts=parts), one, _joined)

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
        names = self.user_col, self.item_col
        if is_dataframe_like(X):
            if missing := [name for name in names if name not in X.columns]:
                raise InvalidDataError(
                    f"X has no column {' and '.join(map(repr, missing))}; it has "
                    f"{list(X.columns)}. Name the columns by user_col and item_col."
                )
            X = X[[*names]]
        function = partial(_predictions, self._fitted(), names)
        if is_dask(X):
            return map_pieces(_called, function, X, np.empty(0))
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
            squares, n = self._reduced(_Squares(self._fitted()), X)
            return -float(np.sqrt(squares.sum() / n.sum()))
        (users,) = self._reduced(_distinct_users, X, rated=False)
        pairs = self._reduced(_pairs, X, rated=False)
        pandas = load_pandas()
        held = dict(zip(("user", "item"), pairs, strict=True))
        seen = self._seen(None) if hasattr(self, "_given") else None
        places, items, best = first_items(self._fitted(), np.unique(users), 10, seen)
        found = {"user": np.unique(users)[places], "item": items, "score": best}
        return ndcg_at_k(pandas.DataFrame(held), pandas.DataFrame(found))
