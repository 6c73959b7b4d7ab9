"""`QuantileTransformer`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy import sparse
from sklearn import preprocessing

from daskml_dist.data.column_statistics import check_no_infinity
from daskml_dist.data.conversion import as_rows
from daskml_dist.data.quantiles import compute_rank_error, merge_sketches, sketch_columns
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.outside import outside
from daskml_dist.estimators.transformer import BlockTransformer

__all__ = ["QuantileTransformer"]


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
        Leave the zeros that sparse rows do not store out of the quantiles.
    subsample : int or None, default=10_000
        Of rows in memory alone: of a Dask collection every row counts.
    random_state : int, RandomState instance or None, default=None
        Of the subsample.
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

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.subsample is not None and self.n_quantiles > self.subsample:
            raise InvalidParameterError(
                "The number of quantiles cannot be greater than the number of samples used. Got "
                f"{self.n_quantiles} quantiles and {self.subsample} samples. Ask for fewer "
                "quantiles, or set subsample=None."
            )

    def _summarise(self, X: Any, y: Any, sample_weight: Any) -> Any:
        rows = as_rows(X, any_order=True)
        is_sparse = sparse.issparse(rows)
        check_no_infinity(rows.data if is_sparse else rows)
        if is_sparse and not self.ignore_implicit_zeros and (rows.data < 0).any():
            raise InvalidDataError("QuantileTransformer only accepts non-negative sparse matrices.")
        sketches = sketch_columns(rows, stored=self.ignore_implicit_zeros)
        return sketches, rows.shape[0], is_sparse

    def _merge(self, summaries: list[Any]) -> Any:
        sketches, n_rows, is_sparse = zip(*summaries, strict=True)
        columns = [merge_sketches(list(column)) for column in zip(*sketches, strict=True)]
        return columns, sum(n_rows), any(is_sparse)

    def _finish(self, summary: Any) -> None:
        sketches, n_rows, is_sparse = summary
        if self.ignore_implicit_zeros and not is_sparse:
            warnings.warn(
                "'ignore_implicit_zeros' takes effect only with sparse matrix. This parameter has "
                "no effect.",
                stacklevel=outside(),
            )
        if self.n_quantiles > n_rows:
            warnings.warn(
                f"n_quantiles ({self.n_quantiles}) is greater than the total number of samples "
                f"({n_rows}). n_quantiles is set to n_samples.",
                stacklevel=outside(),
            )
        self.n_quantiles_ = max(1, min(self.n_quantiles, n_rows))
        self.references_ = np.linspace(0, 1, self.n_quantiles_, endpoint=True)
        self.rank_error_ = compute_rank_error(sketches)
        # scikit-learn asks for percentiles: the last digit decides what is equal to a quantile.
        shares = self.references_ * 100 / 100
        quantiles = [sketch.quantile(shares) for sketch in sketches]
        if is_sparse:  # a column may store nothing
            quantiles = [np.zeros_like(q) if np.isnan(q).all() else q for q in quantiles]
        self.quantiles_ = np.column_stack(quantiles)
