"""Transformers to bins (`KBinsDiscretizer`) and to polynomials (`PolynomialFeatures`).

The edges of bins are computed from sketches of the columns: summaries of a bounded size, which can
be merged (`data/column_statistics.py`). A fit of polynomials only learns the number of columns.
"""

from __future__ import annotations

import copy
import functools
import operator
import warnings
from typing import Any, Self

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from scipy import sparse
from sklearn import preprocessing
from sklearn.utils import assert_all_finite

from daskml_dist.backends.namespace import cast, namespace, one_hot, ones
from daskml_dist.data.blocks import convert_weights, find_first_nonfinite
from daskml_dist.data.collection import Collection
from daskml_dist.data.column_statistics import (
    ColumnSketch,
    compute_column_ranges,
    compute_rank_error,
    merge_column_sketches,
    sketch_columns,
)
from daskml_dist.data.conversion import as_rows, convert_to_host, copy_to_host
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import PassGenerator
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.transformer import BlockTransformer
from daskml_dist.inference.block_mapping import make_sample_row
from daskml_dist.inference.few_transformed_rows import take_device_rows

#: Smallest width of a bin, as in scikit-learn; narrower ones are joined with the next.
_MIN_BIN_WIDTH = 1e-8
#: Quantile methods that are defined for weighted rows.
_WEIGHTED_QUANTILE_METHODS = ("averaged_inverted_cdf", "inverted_cdf")


class KBinsDiscretizer(BlockTransformer, preprocessing.KBinsDiscretizer):
    """:class:`sklearn.preprocessing.KBinsDiscretizer` for Dask collections.

    All rows count. ``strategy="uniform"`` is exact; edges of ``"quantile"`` and ``"kmeans"`` come
    from a sketch of each column, exact up to 8192 different values a column; beyond that the rank
    of each edge of ``"quantile"`` is wrong by `rank_error_` of the rows at most (about ``1e-4``),
    and ``"kmeans"`` groups the 8192 values of the sketch, weighted by the rows they represent.

    Parameters
    ----------
    n_bins : int or array-like of shape (n_features,), default=5
    encode : {"onehot", "onehot-dense", "ordinal"}, default="onehot"
        With ``"onehot"`` a Dask Array has CSR chunks.
    strategy : {"uniform", "quantile", "kmeans"}, default="quantile"
    quantile_method : str, default="averaged_inverted_cdf"
        As in :func:`numpy.quantile`; with weights only the default or ``"inverted_cdf"``.
    dtype : {numpy.float32, numpy.float64}, default=None
        Dtype of the result; None: that of the rows.
    subsample : int or None, default=200_000
        Number of rows in memory that are used. All rows of a Dask collection are.
    random_state : int, RandomState instance or None, default=None
        Seed of the subsample.

    Attributes
    ----------
    bin_edges_ : ndarray of object of shape (n_features,)
        For each feature an ndarray of float64 of shape (n_bins + 1,).
    n_bins_ : ndarray of int of shape (n_features,)
        Number of bins: bins that are too narrow are removed, with a warning.
    rank_error_ : float
        Largest error of a rank, as a share of the rows (Dask collections only).
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.preprocessing import KBinsDiscretizer
    >>> X = np.array([[0.0, 10.0], [5.0, 20.0], [10.0, 60.0]])
    >>> KBinsDiscretizer(n_bins=2, encode='ordinal', strategy='uniform').fit_transform(X)
    array([[0., 0.],
           [1., 0.],
           [1., 1.]])
    """

    _remedy = "Fill missing values first (SimpleImputer)."
    _summarises_on_device = True

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Find the bins of rows in memory or, in one pass, of a Dask collection.

        Parameters
        ----------
        X : array-like, pandas.DataFrame, dask Array or dask DataFrame
            Of shape (n_rows, n_features).
        y : ignored
        sample_weight : array-like, dask Array or dask Series of shape (n_rows,), or None

        Returns
        -------
        self
        """
        X, sample_weight = convert_to_host(X, sample_weight)
        if is_dask(X) or is_dask(sample_weight):
            return self._fit_lazy(X, None, sample_weight)
        try:
            preprocessing.KBinsDiscretizer.fit(self, self._plain(X), y, sample_weight)
        except IndexError:  # of its encoder, for a column without bins
            if not self._give_every_column_a_bin():
                raise
        self._give_every_column_a_bin()
        self._keep(X)
        return self

    def _give_every_column_a_bin(self) -> bool:
        """Give a bin to columns in memory without; return whether there were any.

        scikit-learn leaves none where all values of a column lie closer than a bin is wide.
        """
        narrow = np.flatnonzero(self.n_bins_ == 0)
        for j in narrow:
            self.bin_edges_[j], self.n_bins_[j] = np.array([-np.inf, np.inf]), 1
        if len(narrow) and self.encode != "ordinal":
            self._encoder.categories = [np.arange(n) for n in self.n_bins_]
            self._encoder.fit(np.zeros((1, len(self.n_bins_))))
        return len(narrow) > 0

    def _transformed(self, X: Any, **options: Any) -> Any:
        # scikit-learn's `transform` changes the dtype of its encoder while it runs, so each thread
        # needs a copy.
        discretizer = self
        if "_encoder" in vars(self):
            discretizer = copy.copy(self)
            discretizer._encoder = copy.copy(self._encoder)
        return super(KBinsDiscretizer, discretizer)._transformed(X, **options)

    def _rows_to_transform(self, X: Any) -> Any:
        rows = super()._rows_to_transform(X)
        # scikit-learn writes into the array that it makes of bools, which pandas keeps read-only.
        if is_dataframe_like(rows) and any(dtype.kind == "b" for dtype in rows.dtypes):
            rows = rows.astype("float64")
        return rows

    def _sample_result(self, X: Any) -> Any:
        row = make_sample_row(X)
        return row * 0 if self.encode == "ordinal" else row  # every feature has a bin 0

    def _apply_on_device(self, X: Any, is_inverse: bool) -> Any:
        # Only the host makes sparse results.
        if is_inverse or self.encode == "onehot":
            return None
        if (rows := take_device_rows(self, X, missing=False)) is None:
            return None
        xp, codes = namespace(rows), []
        rows = rows if self.dtype is None else cast(rows, np.dtype(self.dtype))
        for j, edges in enumerate(self.bin_edges_):
            column = cast(rows[:, j], np.dtype(np.float64))
            codes.append(xp.searchsorted(xp.asarray(edges[1:-1]), column, side="right"))
        if self.encode == "ordinal":
            return cast(xp.stack(codes, axis=1), rows.dtype)
        columns = zip(codes, self.n_bins_.tolist(), strict=True)
        return xp.concat(
            [one_hot(column_codes, n, rows.dtype) for column_codes, n in columns], axis=1
        )

    def _passes(self, X: Any, y: Any = None, sample_weight: Any = None) -> PassGenerator[None]:
        weighted = sample_weight is not None
        if (
            weighted
            and self.strategy == "quantile"
            and self.quantile_method not in _WEIGHTED_QUANTILE_METHODS
        ):
            raise InvalidParameterError(
                "When fitting with strategy='quantile' and sample weights, quantile_method should "
                "either be set to 'averaged_inverted_cdf' or 'inverted_cdf', got "
                f"quantile_method={self.quantile_method!r} instead."
            )
        yield from super()._passes(X, y, sample_weight)

    def _summarise(self, X: Any, sample_weight: Any) -> Any:
        rows = as_rows(X, any_order=True, on_device=True)
        if sparse.issparse(rows):
            raise InvalidDataError(
                "KBinsDiscretizer does not support sparse input: zero would fall into some bin. "
                "Make the rows dense: X.map_blocks(lambda block: block.toarray())."
            )
        if find_first_nonfinite(rows) is not None:
            assert_all_finite(copy_to_host(rows), input_name="X")
        weighted = sample_weight is not None
        if weighted:
            sample_weight = convert_weights(np.asarray(sample_weight), np.float64, None)
        # Bins of equal width only depend on the extremes: sketch two rows with these.
        if self.strategy == "uniform":
            counted = rows[sample_weight > 0] if weighted else rows
            if len(counted):
                counted = np.stack(compute_column_ranges(counted))
            rows, sample_weight = counted, None
        return sketch_columns(rows, sample_weight), rows.dtype, weighted

    def _merge(self, summaries: list[Any]) -> Any:
        sketches, dtypes, weighted = zip(*summaries, strict=True)
        columns = merge_column_sketches(sketches)
        return columns, np.result_type(*dtypes), any(weighted)

    def _finish(self, summary: Any) -> None:
        sketches, dtype, weighted = summary
        if not all(len(sketch.values) for sketch in sketches):
            raise InvalidDataError("All rows have weight 0. Give some a weight above 0.")
        n_bins = self._validate_n_bins(len(sketches))
        edges = np.empty(len(sketches), dtype=object)
        for j, sketch in enumerate(sketches):
            edges[j] = self._find_bin_edges(j, sketch, int(n_bins[j]), weighted)
            n_bins[j] = len(edges[j]) - 1
        self.rank_error_ = compute_rank_error(sketches)
        self.bin_edges_, self.n_bins_ = edges, n_bins
        self.__dict__.pop("_encoder", None)  # of an earlier fit with another `encode`
        if self.encode != "ordinal":
            self._encoder = preprocessing.OneHotEncoder(
                categories=[np.arange(n) for n in n_bins],
                sparse_output=self.encode == "onehot",
                dtype=self.dtype or dtype,
            ).fit(np.zeros((1, len(n_bins))))

    def _find_bin_edges(
        self, feature_index: int, sketch: ColumnSketch, n_bins: int, weighted: bool
    ) -> NDArray[np.float64]:
        """Return the edges of the bins of a column, for `n_bins` bins or fewer."""
        low, high = sketch.values[[0, -1]]
        if low == high:
            warnings.warn(
                f"Feature {feature_index} is constant and will be replaced with 0.",
                stacklevel=user_stack_level(),
            )
            return np.array([-np.inf, np.inf])
        even = np.linspace(low, high, n_bins + 1)
        if self.strategy == "uniform":
            return even
        # scikit-learn computes percentiles: the division gives the same last digit.
        shares = np.linspace(0, 100, n_bins + 1) / 100
        if self.strategy == "kmeans":
            edges = _find_kmeans_edges(sketch, even)
        elif weighted:
            average = self.quantile_method == "averaged_inverted_cdf"
            edges = sketch.weighted_quantile(shares, average)
        else:
            # The default of scikit-learn before version 1.9 was "warn", which meant "linear".
            method = "linear" if self.quantile_method == "warn" else self.quantile_method
            edges = sketch.quantile(shares, method)
        edges = edges[np.ediff1d(edges, to_begin=np.inf) > _MIN_BIN_WIDTH]
        if len(edges) == 1:  # the whole range is narrower than a bin may be
            edges = np.array([-np.inf, np.inf])
        if len(edges) <= n_bins:
            warnings.warn(
                f"Bins whose width are too small (i.e., <= {_MIN_BIN_WIDTH:.0e}) in feature "
                f"{feature_index} are removed. Consider decreasing the number of bins.",
                stacklevel=user_stack_level(),
            )
        return edges


def _find_kmeans_edges(
    sketch: ColumnSketch, even_edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return edges midway between centroids of k-means, which starts from the `even_edges` bins."""
    # In one dimension these edges are the boundaries of the clusters (a Voronoi tessellation).
    first = (even_edges[1:] + even_edges[:-1])[:, None] * 0.5
    if len(sketch.values) <= len(first):  # each value is a cluster of its own
        centroids = sketch.values
    else:
        from sklearn.cluster import KMeans  # slow to load, and few callers need it

        clusters = KMeans(len(first), init=first, n_init=1).fit(
            sketch.values[:, None], sample_weight=sketch.weights
        )
        centroids = np.sort(clusters.cluster_centers_[:, 0])
    return np.concatenate([even_edges[:1], (centroids[1:] + centroids[:-1]) * 0.5, even_edges[-1:]])


class PolynomialFeatures(BlockTransformer, preprocessing.PolynomialFeatures):
    """:class:`sklearn.preprocessing.PolynomialFeatures` for Dask collections, sparse ones too.

    A fit only learns the number of columns, and reads no rows if Dask knows it. Rows with missing
    values raise an error when a result is computed.

    Parameters
    ----------
    degree : int or tuple (min_degree, max_degree), default=2
    interaction_only : bool, default=False
    include_bias : bool, default=True
    order : {"C", "F"}, default="C"
        Memory layout of dense blocks.

    Attributes
    ----------
    powers_ : ndarray of int of shape (n_output_features, n_features)
    n_output_features_, n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.preprocessing import PolynomialFeatures
    >>> PolynomialFeatures(degree=2).fit_transform(np.array([[2.0, 3.0]]))
    array([[1., 2., 3., 4., 6., 9.]])
    """

    _remedy = "Fill missing values first (SimpleImputer)."

    def _apply_on_device(self, X: Any, is_inverse: bool) -> Any:
        if self.order != "C" or (rows := take_device_rows(self, X, missing=False)) is None:
            return None
        # Each result is a product of `degree` columns, padded by columns of 1 at the end. They are
        # multiplied from the last to the first, as in scikit-learn.
        powers, (n_rows, ones_column) = self.powers_, rows.shape
        factors = np.full((len(powers), max(int(powers.sum(axis=1).max()), 1)), ones_column)
        for columns, row_powers in zip(factors, powers, strict=True):
            columns[: row_powers.sum()] = np.repeat(np.arange(ones_column), row_powers)
        xp = namespace(rows)
        rows = xp.concat([rows, ones((n_rows, 1), rows.dtype, like=rows)], axis=1)
        *left_factors, last = (xp.take(rows, xp.asarray(factor), axis=1) for factor in factors.T)
        return functools.reduce(operator.mul, reversed(left_factors), last)

    def _summarise_all(self, collection: Collection) -> PassGenerator[tuple[int, Any]]:
        # No pass is needed if Dask knows the number of columns.
        if collection.n_features is not None:
            return collection.n_features, None
        return (yield from super()._summarise_all(collection))

    def _summarise(self, X: Any, sample_weight: Any) -> None:
        return None

    def _merge(self, summaries: list[Any]) -> None:
        return None

    def _finish(self, summary: None) -> None:
        preprocessing.PolynomialFeatures.fit(self, np.zeros((1, self.n_features_in_)))
