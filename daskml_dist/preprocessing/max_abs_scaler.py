"""`MaxAbsScaler`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn import preprocessing
from sklearn.utils.sparsefuncs import min_max_axis

from daskml_dist.data.column_statistics import check_no_infinity, compute_column_ranges
from daskml_dist.data.conversion import as_rows, convert_to_host
from daskml_dist.data.lazy import is_dask
from daskml_dist.estimators.transformer import BlockTransformer

__all__ = ["MaxAbsScaler"]


class MaxAbsScaler(BlockTransformer, preprocessing.MaxAbsScaler):
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

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Go on from the last fit with more rows; parameters as in :meth:`fit`."""
        # `_finish` fits scikit-learn, which comes through here with rows in memory.
        if is_dask(X := convert_to_host(X)):
            return self._fit_more(X)
        preprocessing.MaxAbsScaler.partial_fit(self, self._plain(X), y)
        return self

    def _summary(self) -> Any:
        return self.max_abs_, self.n_samples_seen_

    def _summarise(self, X: Any, y: Any, sample_weight: Any) -> Any:
        rows = as_rows(X, any_order=True)
        # scikit-learn warns of a feature that is missing in all rows; here it may be in one block.
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
        names = self.__dict__.pop("feature_names_in_", None)
        preprocessing.MaxAbsScaler.fit(self, largest[None, :])
        self.n_samples_seen_ = n
        if names is not None:
            self.feature_names_in_ = names
