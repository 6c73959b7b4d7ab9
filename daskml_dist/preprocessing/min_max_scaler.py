"""`MinMaxScaler`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn import preprocessing

from daskml_dist.data.column_statistics import compute_column_ranges
from daskml_dist.data.conversion import as_rows, convert_to_host
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError
from daskml_dist.estimators.transformer import BlockTransformer

__all__ = ["MinMaxScaler"]


class MinMaxScaler(BlockTransformer, preprocessing.MinMaxScaler):
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

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Go on from the last fit with more rows; parameters as in :meth:`fit`."""
        # `_finish` fits scikit-learn, which comes through here with rows in memory.
        if is_dask(X := convert_to_host(X)):
            return self._fit_more(X)
        preprocessing.MinMaxScaler.partial_fit(self, self._plain(X), y)
        return self

    def _summary(self) -> Any:
        return self.data_min_, self.data_max_, self.n_samples_seen_

    def _summarise(self, X: Any, y: Any, sample_weight: Any) -> Any:
        rows = as_rows(X, any_order=True)
        if sparse.issparse(rows):
            raise InvalidDataError(
                "MinMaxScaler does not support sparse input. Use MaxAbsScaler instead."
            )
        # scikit-learn warns of a feature that is missing in all rows; here it may be in one block.
        return *compute_column_ranges(rows), len(rows)

    def _merge(self, summaries: list[Any]) -> Any:
        low, high, n = zip(*summaries, strict=True)
        return np.fmin.reduce(low), np.fmax.reduce(high), sum(n)

    def _finish(self, summary: Any) -> None:
        low, high, n = summary
        names = self.__dict__.pop("feature_names_in_", None)
        preprocessing.MinMaxScaler.fit(self, np.stack([low, high]))
        self.n_samples_seen_ = n
        if names is not None:
            self.feature_names_in_ = names
