"""Scalers of features: by moments, extremes and quantiles.

Rows in memory are left to scikit-learn. For a Dask collection each class summarises the blocks
(`_summarise`), merges the summaries (`_merge`) and sets scikit-learn's fitted attributes from them
(`_finish`); `transform` is then scikit-learn's, block by block. Moments are merged pairwise (T.
Chan, G. Golub and R. LeVeque, "Algorithms for computing the sample variance", 1983), which loses no
digits of a mean far from zero as sums of squares would; extremes by minima and maxima; quantiles by
sketches of a bounded size (`data/column_statistics.py`).
"""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from scipy import sparse, stats
from sklearn import preprocessing
from sklearn.utils.sparsefuncs import min_max_axis

from daskml_dist.backends.namespace import cast, namespace
from daskml_dist.data.column_statistics import (
    ColumnSketch,
    check_no_infinity,
    compute_column_moments,
    compute_column_ranges,
    compute_rank_error,
    merge_column_moments,
    merge_column_sketches,
    sketch_columns,
)
from daskml_dist.data.conversion import as_rows, convert_to_host
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.row_checks import explain_row_errors
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.transformer import BlockTransformer, keeping_lazy
from daskml_dist.inference.few_transformed_rows import take_device_rows
from daskml_dist.sklearn_internals import is_constant_feature, replace_zero_scales

#: Number of rows for which the rounding of a mean is allowed for, at least.
_MIN_ROWS_FOR_ROUNDING = 10


@keeping_lazy
class StandardScaler(BlockTransformer, preprocessing.StandardScaler):
    """:class:`sklearn.preprocessing.StandardScaler` for Dask collections.

    Means and variances of the blocks are merged as in Chan, Golub and LeVeque (1983).

    Parameters
    ----------
    copy, with_mean, with_std : bool, default=True
        As in scikit-learn.

    Attributes
    ----------
    mean_, var_, scale_ : ndarray of float64 of shape (n_features,), or None
    n_samples_seen_ : int or ndarray
        Rows, or sum of the weights; an array where features have missing values.
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.preprocessing import StandardScaler
    >>> X = np.array([[0.0, 10.0], [5.0, 20.0], [10.0, 60.0]])
    >>> StandardScaler().fit_transform(X).round(2)
    array([[-1.22, -0.93],
           [ 0.  , -0.46],
           [ 1.22,  1.39]])
    """

    _summarises_on_device = True

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit to rows in memory or, in one pass, to a Dask collection.

        Parameters
        ----------
        X : array-like, scipy.sparse matrix, pandas.DataFrame, dask Array or dask DataFrame
            Of shape (n_rows, n_features); NaN counts as missing.
        y : ignored
        sample_weight : array-like, dask Array or dask Series of shape (n_rows,), or None

        Returns
        -------
        self
        """
        X, sample_weight = convert_to_host(X, sample_weight)
        if not (is_dask(X) or is_dask(sample_weight)):
            with explain_row_errors(X):
                preprocessing.StandardScaler.fit(self, self._plain(X), y, sample_weight)
            self._keep(X)
            return self
        return self._fit_lazy(X, None, sample_weight)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Continue the last fit with more rows; parameters as in :meth:`fit`."""
        X, sample_weight = convert_to_host(X, sample_weight)
        if is_dask(X) or is_dask(sample_weight):
            return self._fit_more_rows(X, sample_weight)
        with explain_row_errors(X):
            preprocessing.StandardScaler.partial_fit(self, self._plain(X), y, sample_weight)
        return self

    def transform(self, X: Any, copy: bool | None = None) -> Any:
        """Transform rows; lazily, block by block, if X is a Dask collection.

        Parameters
        ----------
        X : as in :meth:`fit`
        copy : bool or None, default=None
            Whether to leave rows in memory unchanged; None: the constructor's `copy`. Rows of Dask
            collections are always left unchanged.

        Returns
        -------
        array, CSR matrix, pandas.DataFrame, dask Array or dask DataFrame
        """
        return self._transformed(X, copy=copy)

    def inverse_transform(self, X: Any, copy: bool | None = None) -> Any:
        """Undo :meth:`transform`; `copy` as there, and lazily if X is a Dask collection."""
        return self._inverse_transformed(X, copy=copy)

    def _summary(self) -> Any:
        return self.mean_, self.var_, np.asarray(self.n_samples_seen_)

    def _summarise(self, X: Any, sample_weight: Any) -> Any:
        """Return mean and variance of each feature (None if they are not needed), and its count."""
        # All rows of a block may have weight 0, which scikit-learn refuses.
        if sample_weight is not None and not np.any(sample_weight):
            nans = np.full(X.shape[1], np.nan)
            with_mean = self.with_mean or self.with_std
            return (nans if with_mean else None), (nans if self.with_std else None), np.zeros(())
        X = as_rows(X, any_order=True, on_device=True) if sample_weight is None else X
        if sample_weight is not None or sparse.issparse(X):
            preprocessing.StandardScaler.fit(self, X, sample_weight=sample_weight)
            # One number for each feature, to tell missing values from rows that all have weight 0.
            return self.mean_, self.var_, np.full(X.shape[1], self.n_samples_seen_)
        # Dense rows without weights: one compiled pass.
        count, mean, var = compute_column_moments(X)
        if not (self.with_mean or self.with_std):
            return None, None, count.astype(np.int64)
        return mean, var if self.with_std else None, count

    def _merge(self, summaries: list[Any]) -> Any:
        return merge_column_moments(summaries)

    def _finish(self, summary: Any) -> None:
        self.mean_, self.var_, n = summary
        if np.ndim(n) == 0 and n == 0:
            raise InvalidDataError(
                "Sample weights must contain at least one non-zero number. Give some rows a "
                "positive weight."
            )
        # scikit-learn's attribute is a number, unless features have different counts.
        self.n_samples_seen_ = n[()] if np.ndim(n) == 0 or np.ptp(n) else n[0]
        self.scale_ = None
        if self.with_std:
            # The computed variance of a constant feature may be a rounding error: scale it by 1.
            # The bound grows with the number of rows, which weights may make too small for the
            # rounding errors of the means of blocks.
            n_rows = np.maximum(self.n_samples_seen_, _MIN_ROWS_FOR_ROUNDING)
            constant = is_constant_feature(self.var_, self.mean_, n_rows)
            self.scale_ = replace_zero_scales(
                np.sqrt(self.var_), copy=False, constant_mask=constant
            )


class _ExtremesScaler(BlockTransformer):
    """Base class of scalers by the extreme values of each feature."""

    _summarises_on_device = True

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Continue the last fit with more rows; parameters as in :meth:`fit`."""
        # `_finish` calls scikit-learn's `fit`, which calls this with rows in memory.
        if is_dask(X := convert_to_host(X)):
            return self._fit_more_rows(X)
        fitted: Self = super().partial_fit(self._plain(X), y)
        return fitted


class MinMaxScaler(_ExtremesScaler, preprocessing.MinMaxScaler):
    """:class:`sklearn.preprocessing.MinMaxScaler` for Dask collections; exact.

    Parameters
    ----------
    feature_range : tuple (min, max), default=(0, 1)
    copy : bool, default=True
    clip : bool, default=False

    Attributes
    ----------
    min_, scale_, data_min_, data_max_, data_range_ : ndarray of shape (n_features,)
    n_samples_seen_, n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.preprocessing import MinMaxScaler
    >>> X = np.array([[0.0, 10.0], [5.0, 20.0], [10.0, 60.0]])
    >>> MinMaxScaler().fit_transform(X).round(2)
    array([[0. , 0. ],
           [0.5, 0.2],
           [1. , 1. ]])
    """

    def _summary(self) -> Any:
        return self.data_min_, self.data_max_, self.n_samples_seen_

    def _summarise(self, X: Any, sample_weight: Any) -> Any:
        rows = as_rows(X, any_order=True, on_device=True)
        if sparse.issparse(rows):
            raise InvalidDataError(
                "MinMaxScaler does not support sparse input. Use MaxAbsScaler instead."
            )
        # scikit-learn's function would warn of a feature that is missing in all rows of a block.
        return *compute_column_ranges(rows), rows.shape[0]

    def _merge(self, summaries: list[Any]) -> Any:
        # fmin and fmax ignore NaN, the extremes of a feature that is missing in a whole block.
        low, high, n = zip(*summaries, strict=True)
        return np.fmin.reduce(low), np.fmax.reduce(high), sum(n)

    def _finish(self, summary: Any) -> None:
        # Two made-up rows with these extremes: scikit-learn's fit to them sets the attributes.
        low, high, n = summary
        preprocessing.MinMaxScaler.fit(self, np.stack([low, high]))
        self.n_samples_seen_ = n


class MaxAbsScaler(_ExtremesScaler, preprocessing.MaxAbsScaler):
    """:class:`sklearn.preprocessing.MaxAbsScaler` for Dask collections, sparse ones too; exact.

    Parameters
    ----------
    copy : bool, default=True
    clip : bool, default=False

    Attributes
    ----------
    scale_, max_abs_ : ndarray of shape (n_features,)
    n_samples_seen_, n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.preprocessing import MaxAbsScaler
    >>> X = np.array([[0.0, 10.0], [5.0, 20.0], [10.0, 60.0]])
    >>> MaxAbsScaler().fit_transform(X).round(2)
    array([[0.  , 0.17],
           [0.5 , 0.33],
           [1.  , 1.  ]])
    """

    def _summary(self) -> Any:
        return self.max_abs_, self.n_samples_seen_

    def _summarise(self, X: Any, sample_weight: Any) -> Any:
        rows = as_rows(X, any_order=True, on_device=True)
        # scikit-learn's function would warn of a feature that is missing in all rows of a block.
        if sparse.issparse(rows):
            check_no_infinity(rows.data)
            low, high = min_max_axis(rows, axis=0, ignore_nan=True)
        else:
            low, high = compute_column_ranges(rows)
        return np.fmax(np.abs(low), np.abs(high)), rows.shape[0]

    def _merge(self, summaries: list[Any]) -> Any:
        largest, n = zip(*summaries, strict=True)
        return np.fmax.reduce(largest), sum(n)

    def _finish(self, summary: Any) -> None:
        largest, n = summary
        preprocessing.MaxAbsScaler.fit(self, largest[None, :])
        self.n_samples_seen_ = n


class RobustScaler(BlockTransformer, preprocessing.RobustScaler):
    """:class:`sklearn.preprocessing.RobustScaler` for Dask collections.

    Quantiles come from a sketch of each column, exact up to 8192 different values a column; beyond
    that the rank of each is wrong by `rank_error_` of the rows at most (about ``1e-4``).

    Parameters
    ----------
    with_centering, with_scaling : bool, default=True
    quantile_range : tuple (q_min, q_max), default=(25.0, 75.0)
    copy : bool, default=True
    unit_variance : bool, default=False

    Attributes
    ----------
    center_, scale_ : ndarray of shape (n_features,), or None
    rank_error_ : float
        Largest error of a rank, as a share of the rows (Dask collections only).
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.preprocessing import RobustScaler
    >>> X = np.array([[0.0, 10.0], [5.0, 20.0], [10.0, 60.0]])
    >>> RobustScaler().fit_transform(X).round(2)
    array([[-1. , -0.4],
           [ 0. ,  0. ],
           [ 1. ,  1.6]])
    """

    _summarises_on_device = True

    def _summarise(self, X: Any, sample_weight: Any) -> Any:
        rows = as_rows(X, any_order=True, on_device=True)
        if sparse.issparse(rows) and self.with_centering:
            raise InvalidDataError(
                "Cannot center sparse matrices: use `with_centering=False` instead."
            )
        check_no_infinity(rows.data if sparse.issparse(rows) else rows)
        return sketch_columns(rows)

    def _merge(self, summaries: list[Any]) -> Any:
        return merge_column_sketches(summaries)

    def _finish(self, summary: list[ColumnSketch]) -> None:
        self.rank_error_ = compute_rank_error(summary)
        self.center_ = self.scale_ = None
        if self.with_centering:
            self.center_ = np.array([s.quantile(0.5) for s in summary])
        if self.with_scaling:
            low, high = self.quantile_range
            if not 0 <= low <= high <= 100:
                raise InvalidDataError(
                    f"Invalid quantile range: {self.quantile_range}. Give (low, high) in percent, "
                    "such as (25.0, 75.0)."
                )
            scale = np.array([s.quantile(high / 100) - s.quantile(low / 100) for s in summary])
            self.scale_ = replace_zero_scales(scale, copy=False)
            # The range of a normal feature in standard deviations: its variance becomes 1.
            if self.unit_variance:
                self.scale_ /= stats.norm.ppf(high / 100) - stats.norm.ppf(low / 100)


class QuantileTransformer(BlockTransformer, preprocessing.QuantileTransformer):
    """:class:`sklearn.preprocessing.QuantileTransformer` for Dask collections, sparse ones too.

    Quantiles are those of all rows, from a sketch of each column: exact up to 8192 different values
    a column; beyond that the rank of each is wrong by `rank_error_` of the rows at most (about
    ``1e-4``; the default subsample of 10,000 rows of scikit-learn: about ``5e-3``).

    Parameters
    ----------
    n_quantiles : int, default=1000
    output_distribution : {"uniform", "normal"}, default="uniform"
    ignore_implicit_zeros : bool, default=False
        Whether the quantiles ignore the zeros that sparse rows do not store.
    subsample : int or None, default=10_000
        Number of rows in memory that are used. All rows of a Dask collection are.
    random_state : int, RandomState instance or None, default=None
        Seed of the subsample.
    copy : bool, default=True

    Attributes
    ----------
    n_quantiles_ : int
    quantiles_ : ndarray of shape (n_quantiles, n_features)
    references_ : ndarray of shape (n_quantiles,)
    rank_error_ : float
        Largest error of a rank, as a share of the rows (Dask collections only).
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.preprocessing import QuantileTransformer
    >>> X = np.array([[0.0, 10.0], [5.0, 20.0], [10.0, 60.0]])
    >>> QuantileTransformer(n_quantiles=3).fit_transform(X).round(2)
    array([[0. , 0. ],
           [0.5, 0.5],
           [1. , 1. ]])
    """

    _summarises_on_device = True

    def _apply_on_device(self, X: Any, is_inverse: bool) -> Any:
        # Quantiles of the normal distribution are computed on the host.
        if self.output_distribution != "uniform" or (rows := take_device_rows(self, X)) is None:
            return None
        if np.isnan(self.quantiles_).any():
            return None
        xp, columns = namespace(rows), []
        references = xp.asarray(self.references_)
        for j, column_quantiles in enumerate(self.quantiles_.T):
            column = xp.ascontiguousarray(cast(rows[:, j], np.dtype(np.float64)))
            quantiles = xp.asarray(np.ascontiguousarray(column_quantiles))
            if is_inverse:
                columns.append(xp.interp(column, references, quantiles))
                continue
            # If several quantiles are equal, their value gets the mean of the first and the last
            # reference, and the smallest and largest value get 0 and 1, as in scikit-learn.
            down = xp.asarray(-column_quantiles[::-1]), xp.asarray(-self.references_[::-1])
            shares = 0.5 * (xp.interp(column, quantiles, references) - xp.interp(-column, *down))
            shares = xp.where(column == quantiles[-1], 1.0, shares)
            columns.append(xp.where(column == quantiles[0], 0.0, shares))
        return cast(xp.stack(columns, axis=1), rows.dtype)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.subsample is not None and self.n_quantiles > self.subsample:
            raise InvalidParameterError(
                "The number of quantiles cannot be greater than the number of samples used. Got "
                f"{self.n_quantiles} quantiles and {self.subsample} samples. Ask for fewer "
                "quantiles, or set subsample=None."
            )

    def _summarise(self, X: Any, sample_weight: Any) -> Any:
        rows = as_rows(X, any_order=True, on_device=True)
        is_sparse = sparse.issparse(rows)
        check_no_infinity(rows.data if is_sparse else rows)
        if is_sparse and not self.ignore_implicit_zeros and (rows.data < 0).any():
            raise InvalidDataError("QuantileTransformer only accepts non-negative sparse matrices.")
        sketches = sketch_columns(rows, stored=self.ignore_implicit_zeros)
        return sketches, rows.shape[0], is_sparse

    def _merge(self, summaries: list[Any]) -> Any:
        sketches, n_rows, is_sparse = zip(*summaries, strict=True)
        columns = merge_column_sketches(sketches)
        return columns, sum(n_rows), any(is_sparse)

    def _finish(self, summary: Any) -> None:
        sketches, n_rows, is_sparse = summary
        if self.ignore_implicit_zeros and not is_sparse:
            warnings.warn(
                "'ignore_implicit_zeros' takes effect only with sparse matrix. This parameter has "
                "no effect.",
                stacklevel=user_stack_level(),
            )
        if self.n_quantiles > n_rows:
            warnings.warn(
                f"n_quantiles ({self.n_quantiles}) is greater than the total number of samples "
                f"({n_rows}). n_quantiles is set to n_samples.",
                stacklevel=user_stack_level(),
            )
        self.n_quantiles_ = max(1, min(self.n_quantiles, n_rows))
        self.references_ = np.linspace(0, 1, self.n_quantiles_, endpoint=True)
        self.rank_error_ = compute_rank_error(sketches)
        # scikit-learn computes percentiles. The last digit must be the same, since it decides which
        # values equal a quantile.
        shares = self.references_ * 100 / 100
        quantiles = [sketch.quantile(shares) for sketch in sketches]
        if is_sparse:  # a column may store nothing
            quantiles = [np.zeros_like(q) if np.isnan(q).all() else q for q in quantiles]
        self.quantiles_ = np.column_stack(quantiles)
