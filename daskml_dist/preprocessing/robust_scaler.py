"""`RobustScaler`."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse, stats
from sklearn import preprocessing

from daskml_dist.data.conversion import as_rows
from daskml_dist.data.quantiles import (
    ColumnSketch,
    compute_rank_error,
    merge_sketches,
    sketch_columns,
)
from daskml_dist.errors import InvalidDataError
from daskml_dist.estimators.transformer import BlockTransformer
from daskml_dist.sklearn_internals import replace_zero_scales

__all__ = ["RobustScaler"]


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

    def _summarise(self, X: Any, y: Any, sample_weight: Any) -> Any:
        rows = as_rows(X, any_order=True)
        if sparse.issparse(rows) and self.with_centering:
            raise InvalidDataError(
                "Cannot center sparse matrices: use `with_centering=False` instead."
            )
        return sketch_columns(rows)

    def _merge(self, summaries: list[Any]) -> Any:
        return [merge_sketches(list(column)) for column in zip(*summaries, strict=True)]

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
            if self.unit_variance:
                self.scale_ /= stats.norm.ppf(high / 100) - stats.norm.ppf(low / 100)
