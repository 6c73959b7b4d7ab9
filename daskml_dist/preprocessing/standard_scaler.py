"""`StandardScaler`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn import preprocessing

from daskml_dist.data.column_statistics import compute_column_moments
from daskml_dist.data.conversion import as_rows, convert_to_host
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.row_checks import explain_row_errors
from daskml_dist.errors import InvalidDataError
from daskml_dist.estimators.transformer import CopyingTransformer
from daskml_dist.sklearn_internals import is_constant_feature, replace_zero_scales

__all__ = ["StandardScaler"]


class StandardScaler(CopyingTransformer, preprocessing.StandardScaler):
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
        """Go on from the last fit with more rows; parameters as in :meth:`fit`."""
        X, sample_weight = convert_to_host(X, sample_weight)
        if is_dask(X) or is_dask(sample_weight):
            return self._fit_more(X, sample_weight)
        with explain_row_errors(X):
            preprocessing.StandardScaler.partial_fit(self, self._plain(X), y, sample_weight)
        return self

    def _summary(self) -> Any:
        return self.mean_, self.var_, np.asarray(self.n_samples_seen_)

    def _summarise(self, X: Any, y: Any, sample_weight: Any) -> Any:
        if sample_weight is not None and not np.any(sample_weight):
            # scikit-learn refuses rows that all weigh 0, of which there may be a block.
            none = np.full(X.shape[1], np.nan)
            with_mean = self.with_mean or self.with_std
            return (none if with_mean else None), (none if self.with_std else None), np.zeros(())
        X = as_rows(X, any_order=True) if sample_weight is None else X
        if sample_weight is not None or sparse.issparse(X):
            preprocessing.StandardScaler.fit(self, X, sample_weight=sample_weight)
            return self.mean_, self.var_, np.asarray(self.n_samples_seen_)
        count, mean, var = compute_column_moments(X)
        if not (self.with_mean or self.with_std):
            return None, None, count.astype(np.int64)
        return mean, var if self.with_std else None, count

    def _merge(self, summaries: list[Any]) -> Any:
        mean, var, n = summaries[0]
        for mean_b, var_b, n_b in summaries[1:]:
            total = n + n_b
            if mean is not None:
                share = np.divide(n_b, total, out=np.zeros(np.shape(total)), where=total > 0)
                # A feature that a block has no value of has NaN there.
                a, b = (np.where(count > 0, m, 0.0) for m, count in ((mean, n), (mean_b, n_b)))
                if var is not None:
                    va = np.where(n > 0, var, 0.0)
                    vb = np.where(n_b > 0, var_b, 0.0)
                    var = va + share * (vb - va) + share * (1 - share) * (b - a) ** 2
                    var = np.where(total > 0, var, np.nan)
                mean = np.where(total > 0, a + share * (b - a), np.nan)
            n = total
        return mean, var, n

    def _finish(self, summary: Any) -> None:
        self.mean_, self.var_, n = summary
        if np.ndim(n) == 0 and n == 0:
            raise InvalidDataError(
                "Sample weights must contain at least one non-zero number. Give some rows a "
                "positive weight."
            )
        self.n_samples_seen_ = n[()] if np.ndim(n) == 0 or np.ptp(n) else n[0]
        self.scale_ = None
        if self.with_std:
            constant = is_constant_feature(self.var_, self.mean_, self.n_samples_seen_)
            self.scale_ = replace_zero_scales(
                np.sqrt(self.var_), copy=False, constant_mask=constant
            )
