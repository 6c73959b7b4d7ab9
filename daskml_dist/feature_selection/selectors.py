"""Selectors of columns: by variance, and by univariate scores beside the target.

Rows in memory are left to scikit-learn. For a Dask collection the scores are those of all rows
(`scores.py`); which columns they select, and `transform`, block by block, are scikit-learn's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import numpy as np
from dask.utils import is_dataframe_like
from scipy import sparse
from sklearn import feature_selection
from sklearn.utils.sparsefuncs import mean_variance_axis, min_max_axis

from daskml_dist.backends.namespace import namespace
from daskml_dist.data.collection import as_collection, take_named_columns
from daskml_dist.data.column_statistics import (
    check_no_infinity,
    compute_column_moments,
    compute_column_ranges,
    merge_column_moments,
)
from daskml_dist.data.conversion import as_rows, convert_extension_column, convert_to_host
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import PassGenerator
from daskml_dist.data.row_checks import explain_row_errors, remember_dtypes
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.estimators.transformer import BlockTransformer
from daskml_dist.feature_selection import scores
from daskml_dist.inference.few_transformed_rows import take_device_rows

#: Scores of all rows, for scikit-learn's functions of the same names.
_SCORES_OF_ALL_ROWS: dict[Callable[..., Any], Callable[..., Any]] = {
    getattr(feature_selection, name): getattr(scores, name)
    for name in ("chi2", "f_classif", "f_regression", "r_regression")
}


class _ColumnSelector(BlockTransformer):
    """Base class of selectors, which leave rows on a GPU there."""

    def _rows_to_transform(self, X: Any) -> Any:
        rows = self._plain(X)
        # scikit-learn would return objects; the fit has read them as numbers.
        if is_dataframe_like(rows):
            objects = [name for name, dtype in rows.dtypes.items() if dtype.kind == "O"]
            return rows.astype(dict.fromkeys(objects, np.float64)) if objects else rows
        is_objects = getattr(rows, "dtype", None) == np.dtype(object)  # tensors have other dtypes
        return rows.astype(np.float64) if is_objects else rows

    def _apply_on_device(self, X: Any, is_inverse: bool) -> Any:
        if is_inverse or take_device_rows(self, X, self._allows_missing()) is None:
            return None
        indices = self.get_support(indices=True)
        xp = namespace(X)
        return xp.take(X, xp.asarray(indices), axis=1) if len(indices) else None

    def _allows_missing(self) -> bool:
        """Return whether rows may have missing values."""
        return bool(self.__sklearn_tags__().input_tags.allow_nan)


class VarianceThreshold(_ColumnSelector, feature_selection.VarianceThreshold):
    """:class:`sklearn.feature_selection.VarianceThreshold` for Dask collections.

    Variances of the blocks are merged as in Chan, Golub and LeVeque (1983).

    Parameters
    ----------
    threshold : float, default=0.0
        Columns of which the variance is not larger are dropped; 0: constant ones.

    Attributes
    ----------
    variances_ : ndarray of float64 of shape (n_features,)
        With a threshold of 0 the range of the values, if that is less.
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from daskml_dist.feature_selection import VarianceThreshold
    >>> X = da.from_array(np.array([[0, 2, 0, 3], [0, 1, 4, 3], [0, 1, 1, 3]]), chunks=(2, 4))
    >>> VarianceThreshold().fit_transform(X).compute()
    array([[2, 0],
           [1, 4],
           [1, 1]])
    """

    _summarises_on_device = True

    def _summarise(self, X: Any, sample_weight: Any) -> Any:
        """Return count, mean and variance of each feature, and its extremes."""
        rows = as_rows(X, any_order=True, on_device=True)
        if sparse.issparse(rows):
            check_no_infinity(rows.data)
            mean, var, count = mean_variance_axis(rows, axis=0, return_sum_weights=True)
            ranges = min_max_axis(rows, axis=0, ignore_nan=True)
        else:
            count, mean, var = compute_column_moments(rows)
            ranges = compute_column_ranges(rows)
        return (mean, var, count), ranges

    def _merge(self, summaries: list[Any]) -> Any:
        moments, ranges = zip(*summaries, strict=True)
        low, high = zip(*ranges, strict=True)
        # fmin and fmax ignore NaN, the extremes of a feature that is missing in a whole block.
        return merge_column_moments(moments), (np.fmin.reduce(low), np.fmax.reduce(high))

    def _finish(self, summary: Any) -> None:
        (_, variances, count), (low, high) = summary
        if self.threshold == 0:
            # The computed variance of a constant feature may be a rounding error; its range is 0.
            variances = np.fmin(variances, high - low)
        self.variances_ = variances
        if not (variances > self.threshold).any():
            one_row = " (X contains only one sample)" if np.max(count, initial=0) == 1 else ""
            raise InvalidDataError(
                f"No feature in X meets the variance threshold {self.threshold:.5f}{one_row}. Set "
                "a lower threshold."
            )


class _ScoreSelector(_ColumnSelector):
    """Base class of selectors by scores of each feature beside the target."""

    def fit(self, X: Any, y: Any = None) -> Self:
        """Compute the scores of all features, and select some.

        Parameters
        ----------
        X : array-like, scipy.sparse matrix, pandas.DataFrame, dask Array or dask DataFrame
            Of shape (n_rows, n_features).
        y : array-like, dask Array or dask Series of shape (n_rows,)
            Labels or numbers, as the score function needs.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            scikit-learn's score function has no counterpart for all rows of a Dask collection.
        """
        X, y = convert_to_host(X, y)
        if is_dask(X) or is_dask(y):
            return self._fit_lazy(X, y)
        with explain_row_errors(X):
            super(BlockTransformer, self).fit(self._plain(X), convert_extension_column(y))
        self._keep(X)
        return self

    def _passes(self, X: Any, y: Any = None, sample_weight: Any = None) -> PassGenerator[None]:
        self._check_parameters()
        if y is None:
            raise InvalidDataError(
                f"{type(self).__name__} requires y to be passed: pass fit(X, y)."
            )
        X, y, _ = take_named_columns(X, y, None)
        result = _find_score_of_all_rows(self.score_func)(X, y)
        # Scores alone, or with their p-values.
        self.scores_, p_values = result if isinstance(result, (list, tuple)) else (result, None)
        self.scores_ = np.asarray(self.scores_)
        self.pvalues_ = None if p_values is None else np.asarray(p_values)
        collection = as_collection(X, None, None)
        if self.scores_.shape != (shape := collection.row_shape or self.scores_.shape):
            raise InvalidParameterError(
                f"score_func returned scores of shape {self.scores_.shape} for rows of shape "
                f"{shape}. It must return a score for each feature."
            )
        (self.n_features_in_,) = shape
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        if (names := collection.feature_names) is not None:
            self.feature_names_in_ = names
        self._check_params(np.empty((0, self.n_features_in_)), None)
        remember_dtypes(self, X)
        yield from ()


def _find_score_of_all_rows(score_func: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that computes the scores of a Dask collection.

    A user's own is called with the collections as they are.
    """
    if isinstance(score_func, partial):
        function = _find_score_of_all_rows(score_func.func)
        return partial(function, *score_func.args, **score_func.keywords)
    if score_func in _SCORES_OF_ALL_ROWS:
        return _SCORES_OF_ALL_ROWS[score_func]
    if getattr(score_func, "__module__", "").startswith("sklearn."):
        raise InvalidParameterError(
            f"score_func={score_func.__name__} needs all rows in memory. Use f_classif, chi2, "
            "f_regression or r_regression of daskml_dist.feature_selection, a function of your own "
            "that takes Dask collections, or rows in memory: a sample, with .compute()."
        )
    return score_func


class SelectKBest(_ScoreSelector, feature_selection.SelectKBest):
    """:class:`sklearn.feature_selection.SelectKBest` for Dask collections.

    Parameters
    ----------
    score_func : callable, default=f_classif
        Function of X and y that returns scores, or scores and p-values. A function of your own gets
        Dask collections as they are.
    k : int or "all", default=10
        Number of features to keep.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,)
    pvalues_ : ndarray of shape (n_features,), or None
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from daskml_dist.feature_selection import SelectKBest
    >>> X = da.from_array(np.array([[1.0, 0.0], [2.0, 4.0], [5.0, 0.0], [6.0, 4.0]]), chunks=2)
    >>> y = da.from_array(np.array([0, 0, 1, 1]), chunks=2)
    >>> SelectKBest(k=1).fit(X, y).get_support()
    array([ True, False])
    """


class SelectPercentile(_ScoreSelector, feature_selection.SelectPercentile):
    """:class:`sklearn.feature_selection.SelectPercentile` for Dask collections.

    Parameters
    ----------
    score_func : callable, default=f_classif
        As in :class:`SelectKBest`.
    percentile : int, default=10
        Percentage of features to keep.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,)
    pvalues_ : ndarray of shape (n_features,), or None
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from daskml_dist.feature_selection import SelectPercentile
    >>> X = da.from_array(np.array([[1.0, 0.0], [2.0, 4.0], [5.0, 0.0], [6.0, 4.0]]), chunks=2)
    >>> y = da.from_array(np.array([0, 0, 1, 1]), chunks=2)
    >>> SelectPercentile(percentile=50).fit(X, y).get_support()
    array([ True, False])
    """


class SelectFpr(_ScoreSelector, feature_selection.SelectFpr):
    """:class:`sklearn.feature_selection.SelectFpr` for Dask collections.

    Parameters
    ----------
    score_func : callable, default=f_classif
        As in :class:`SelectKBest`, with p-values.
    alpha : float, default=5e-2
        Features whose p-value is smaller are kept: the rate of false positives.

    Attributes
    ----------
    scores_, pvalues_ : ndarray of shape (n_features,)
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from daskml_dist.feature_selection import SelectFpr
    >>> X = da.from_array(np.array([[1.0, 0.0], [2.0, 4.0], [5.0, 0.0], [6.0, 4.0]]), chunks=2)
    >>> y = da.from_array(np.array([0, 0, 1, 1]), chunks=2)
    >>> SelectFpr(alpha=0.05).fit(X, y).get_support()
    array([ True, False])
    """


class SelectFdr(_ScoreSelector, feature_selection.SelectFdr):
    """:class:`sklearn.feature_selection.SelectFdr` for Dask collections.

    Parameters
    ----------
    score_func : callable, default=f_classif
        As in :class:`SelectKBest`, with p-values.
    alpha : float, default=5e-2
        Bound of the rate of false discoveries among the kept features (Benjamini and Hochberg
        1995).

    Attributes
    ----------
    scores_, pvalues_ : ndarray of shape (n_features,)
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from daskml_dist.feature_selection import SelectFdr
    >>> X = da.from_array(np.array([[1.0, 0.0], [2.0, 4.0], [5.0, 0.0], [6.0, 4.0]]), chunks=2)
    >>> y = da.from_array(np.array([0, 0, 1, 1]), chunks=2)
    >>> SelectFdr(alpha=0.1).fit(X, y).get_support()
    array([ True, False])
    """


class SelectFwe(_ScoreSelector, feature_selection.SelectFwe):
    """:class:`sklearn.feature_selection.SelectFwe` for Dask collections.

    Parameters
    ----------
    score_func : callable, default=f_classif
        As in :class:`SelectKBest`, with p-values.
    alpha : float, default=5e-2
        Bound of the probability that any feature is kept by chance (Bonferroni).

    Attributes
    ----------
    scores_, pvalues_ : ndarray of shape (n_features,)
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from daskml_dist.feature_selection import SelectFwe
    >>> X = da.from_array(np.array([[1.0, 0.0], [2.0, 4.0], [5.0, 0.0], [6.0, 4.0]]), chunks=2)
    >>> y = da.from_array(np.array([0, 0, 1, 1]), chunks=2)
    >>> SelectFwe(alpha=0.1).fit(X, y).get_support()
    array([ True, False])
    """


class GenericUnivariateSelect(_ScoreSelector, feature_selection.GenericUnivariateSelect):
    """:class:`sklearn.feature_selection.GenericUnivariateSelect` for Dask collections.

    Parameters
    ----------
    score_func : callable, default=f_classif
        As in :class:`SelectKBest`.
    mode : {"percentile", "k_best", "fpr", "fdr", "fwe"}, default="percentile"
    param : "all", float or int, default=1e-5
        The parameter of the mode.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,)
    pvalues_ : ndarray of shape (n_features,), or None
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from daskml_dist.feature_selection import GenericUnivariateSelect
    >>> X = da.from_array(np.array([[1.0, 0.0], [2.0, 4.0], [5.0, 0.0], [6.0, 4.0]]), chunks=2)
    >>> y = da.from_array(np.array([0, 0, 1, 1]), chunks=2)
    >>> GenericUnivariateSelect(mode="k_best", param=1).fit(X, y).get_support()
    array([ True, False])
    """
