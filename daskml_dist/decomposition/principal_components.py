"""Principal components: `PCA`, `TruncatedSVD` and `IncrementalPCA`.

The first two are fitted by a solver over all rows (`solvers/principal_components.py`): an exact
covariance for few features, power iterations for many. Their base class, `BaseComponents`, projects
rows. `IncrementalPCA` processes the rows in batches, one worker after the other, as scikit-learn
does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from sklearn import decomposition
from sklearn.utils import gen_batches

from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import namespace, total
from daskml_dist.data.blocks import check_finite_rows
from daskml_dist.data.collection import as_collection, take_named_columns
from daskml_dist.data.conversion import as_rows, convert_to_host
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import fold_parts
from daskml_dist.data.row_checks import check_feature_names, make_no_rows_error
from daskml_dist.diagnostics.operation_progress import report_reading
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError, as_ours
from daskml_dist.estimators.transformer import BlockTransformer
from daskml_dist.estimators.unsupervised import BaseUnlabelledTransformer, score_mean_log_likelihood
from daskml_dist.models.row_models import Unlabelled
from daskml_dist.parameters.checks import (
    check_count,
    check_flag,
    check_number,
    check_one_of,
    seed_of,
)
from daskml_dist.parameters.run import Run
from daskml_dist.sklearn_internals import infer_dimension
from daskml_dist.solvers.base import Solution, Solver
from daskml_dist.solvers.principal_components import CovarianceEigenSolver, PowerIterations
from daskml_dist.training.dataset_info import DatasetInfo

Array = NDArray[np.float64]


class BaseComponents(BaseUnlabelledTransformer):
    """Base class of estimators that project rows on ``components_``.

    Parameters
    ----------
    tol : float, default=0.0
        Tolerance of ARPACK; 0: machine precision.
    n_oversamples : int, default=10
        Number of vectors of the power iterations in addition to the components.
    power_iteration_normalizer : {"auto", "QR", "LU", "none"}, default="auto"
        Without effect: QR is always used.
    random_state : int, RandomState instance or None, default=None
        Seed of the vectors from which power iterations start.

    Attributes
    ----------
    components_ : ndarray of float64 of shape (n_components, n_features)
    """

    components_: Array

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def _set_n_iter(self, solution: Solution) -> None:
        """Set nothing: `n_iter_` has no meaning for eigenvectors."""

    def transform(self, X: Any) -> Any:
        """Return the projections of rows on the components.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows, n_components)
            float32 if X is; otherwise float64, also for a list of delayed blocks, whose dtype is
            not known until they are computed.
        """
        self._check_fitted(X)
        return self._map_rows(
            self._make_projection(), X, _resolve_result_dtype(X), self._n_features_out
        )

    def inverse_transform(self, X: Any) -> Any:
        """Return the rows with the given projections.

        Parameters
        ----------
        X : as :meth:`transform` returns

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows, n_features)
        """
        self._check_fitted()
        width, shape = self.n_features_in_, (self._n_features_out,)
        return self._map_rows(
            self._make_expansion(), X, _resolve_result_dtype(X), width, row_shape=shape
        )

    def _make_projection(self) -> Callable[[Any], NDArray[Any]]:
        return AffineProjection(self.components_.T)

    def _make_expansion(self) -> Callable[[Any], NDArray[Any]]:
        return AffineProjection(self.components_)

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        return self._make_projection()


@dataclass(frozen=True, eq=False)
class AffineProjection:
    """Function of rows: ``(X - before) @ matrix + after``.

    Parameters
    ----------
    matrix : ndarray of shape (n_columns, m)
    shift, offset : ndarrays of shape (n_columns,) and (m,), or None
    """

    matrix: Array
    shift: Array | None = None
    offset: Array | None = None
    stays_on_device: ClassVar[bool] = True

    def __call__(self, X: Any) -> NDArray[Any]:
        """Return the projections, in the dtype of the rows."""
        matrix = self.matrix.astype(X.dtype)
        # Dense rows are centred first, so that float32 rows far from 0 keep their digits.
        if self.shift is not None and isinstance(X, np.ndarray):
            X = X - self.shift.astype(X.dtype)
        projections = np.asarray(X @ matrix)
        # Centring would make sparse rows dense: subtract the projection of the centre instead.
        if self.shift is not None and not isinstance(X, np.ndarray):
            projections = projections - (self.shift @ self.matrix).astype(X.dtype)
        return projections if self.offset is None else projections + self.offset.astype(X.dtype)

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], Any]:
        """Return the function of rows of a dtype on a device; the projections stay there."""
        matrix = backend.to_device(np.ascontiguousarray(self.matrix, dtype))
        before, after = (
            None if vector is None else backend.to_device(vector.astype(dtype))
            for vector in (self.shift, self.offset)
        )
        # As above: dense rows are centred; for sparse rows the projection of the centre is
        # subtracted.
        shift = (
            None
            if self.shift is None
            else backend.to_device((self.shift @ self.matrix).astype(dtype))
        )

        def apply(X: Any) -> Any:
            is_sparse = hasattr(X, "tocsr")
            rows = X if before is None or is_sparse else X - before
            projections = namespace(matrix).reshape(backend.dot(rows, matrix), (X.shape[0], -1))
            projections = projections - shift if is_sparse and shift is not None else projections
            return projections if after is None else projections + after

        return apply


def _resolve_result_dtype(X: Any) -> np.dtype[Any]:
    """Return the dtype of projections: float32 if all rows have it, else float64."""
    dtypes = X.dtypes if hasattr(X, "dtypes") else [getattr(X, "dtype", np.float64)]
    return np.dtype(np.float32 if {str(dtype) for dtype in dtypes} == {"float32"} else np.float64)


#: Largest number of features for which `TruncatedSVD` sums the products of all pairs of features
#: (X.T @ X, 2 MiB) in one exact pass.
_MAX_FEATURES_OF_PRODUCTS = 512


class TruncatedSVD(BaseComponents):
    """Truncated singular value decomposition of all rows, without centring.

    Sparse rows stay sparse. For up to 512 features one pass sums the products of all pairs of
    features. For more features, each pass multiplies the rows by a few vectors, and no array of
    size ``n_features ** 2`` is created, so that hashed rows of any width can be projected.

    Parameters
    ----------
    n_components : int, default=2
    algorithm : {"randomized", "arpack"}, default="randomized"
        Power iterations from random vectors, or ARPACK, with one pass for each of its products. For
        up to 512 features both are exact, from one pass.
    n_iter : int, default=5
        Number of power iterations. The vectors of all iterations are kept (a block Krylov space),
        so that fewer passes reach the same accuracy.

    Attributes
    ----------
    components_ : ndarray of float64 of shape (n_components, n_features)
        The largest entry of each is positive.
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarrays of float64 of \
    shape (n_components,)

    References
    ----------
    N. Halko, P. G. Martinsson and J. A. Tropp, "Finding structure with randomness: probabilistic
    algorithms for constructing approximate matrix decompositions", SIAM Review 53(2), 2011. C.
    Musco and C. Musco, "Randomized block Krylov methods for stronger and faster approximate
    singular value decomposition", NIPS 2015.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.decomposition import TruncatedSVD
    >>> X = np.array([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    >>> TruncatedSVD(n_components=2).fit(X).singular_values_.round(6)
    array([3., 2.])
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        algorithm: str = "randomized",
        n_iter: int = 5,
        n_oversamples: int = 10,
        power_iteration_normalizer: str = "auto",
        random_state: Any = None,
        tol: float = 0.0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.n_components = n_components
        self.algorithm = algorithm
        self.n_iter = n_iter
        self.n_oversamples = n_oversamples
        self.power_iteration_normalizer = power_iteration_normalizer
        self.random_state = random_state
        self.tol = tol
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _check_params(self) -> None:
        check_count("n_components", self.n_components)
        check_one_of("algorithm", self.algorithm, ("randomized", "arpack"))
        if self.n_iter != 0:
            check_count("n_iter", self.n_iter, "0")
        check_count("n_oversamples", self.n_oversamples)
        normalizers = ("auto", "QR", "LU", "none")
        check_one_of("power_iteration_normalizer", self.power_iteration_normalizer, normalizers)
        check_number("tol", self.tol)

    def _problem(self, rows: DatasetInfo) -> tuple[Unlabelled, Solver]:
        n_rows, d, k = rows.summary.n_rows, rows.summary.n_features, int(self.n_components)
        if d < 2:
            raise InvalidDataError(
                f"Found array with {d} feature(s) (shape=({n_rows}, {d})) while a minimum of 2 is "
                "required by TruncatedSVD. Give more columns."
            )
        lanczos = self.algorithm == "arpack"
        if k > d or (lanczos and k >= d):
            raise InvalidParameterError(
                f"n_components({k}) must be {'<' if lanczos else '<='} n_features({d}). Ask for "
                "fewer components."
            )
        # With few features, the right singular vectors are the eigenvectors of the second moments
        # of all rows.
        if d <= _MAX_FEATURES_OF_PRODUCTS:
            return Unlabelled(d), CovarianceEigenSolver(k, double=True, centred=False)
        return Unlabelled(d), PowerIterations(
            n_components=k,
            n_oversamples=int(self.n_oversamples),
            n_iter=int(self.n_iter) + 1,  # one more pass for scikit-learn's last product with X.T
            centred=False,
            seed=seed_of(self.random_state),
            lanczos=lanczos,
            tol=float(self.tol),
        )

    def _set_fitted(self, solution: Solution, model: Unlabelled, rows: DatasetInfo) -> None:
        k, extra = int(self.n_components), solution.extra
        self.components_ = solution.w[:k].copy()
        values, variance = extra["values"][:k], extra["variance"]
        # Eigenvalues of the mean of x x.T.
        self.singular_values_ = np.sqrt(values * rows.weight_sum)
        # Variance of the projections: given, or their mean square minus their squared mean.
        projected = values - (self.components_ @ extra["mean"]) ** 2
        projected = extra.get("projected", projected)[:k]
        self.explained_variance_ = np.maximum(projected, 0.0)
        self.explained_variance_ratio_ = (
            self.explained_variance_ / variance if variance > 0 else np.zeros(k)
        )
        self.n_features_in_ = model.n_features


class IncrementalPCA(BlockTransformer, decomposition.IncrementalPCA):
    """:class:`sklearn.decomposition.IncrementalPCA` for Dask collections, batch by batch.

    Batches are cut from the rows in their order, across block boundaries. The components are passed
    from worker to worker, so only one worker computes at a time.
    :class:`~daskml_dist.decomposition.PCA` is exact, makes one pass and uses all workers: use this
    class for rows that arrive in parts (`partial_fit`), or for the same results as scikit-learn.

    Parameters
    ----------
    n_components : int or None, default=None
    whiten : bool, default=False
    copy : bool, default=True
    batch_size : int or None, default=None
        None: five times the number of features.

    Attributes
    ----------
    components_, explained_variance_, explained_variance_ratio_, singular_values_, mean_, var_, \
noise_variance_, n_components_, n_samples_seen_, batch_size_
        As in scikit-learn.
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    References
    ----------
    D. Ross, J. Lim, R. Lin and M. Yang, "Incremental learning for robust visual tracking",
    International Journal of Computer Vision 77, 2008.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.decomposition import IncrementalPCA
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> pca = IncrementalPCA(n_components=2)
    >>> for part in np.split(X, 3):
    ...     _ = pca.partial_fit(part)
    >>> pca.transform(X).shape
    (60, 2)
    """

    def partial_fit(self, X: Any, y: Any = None, check_input: bool = True) -> Self:
        """Update the components with more rows: one batch in memory, or a collection's batches.

        Parameters
        ----------
        X : array-like, pandas.DataFrame, dask Array or dask DataFrame
            Of shape (n_rows, n_features).
        y : ignored
        check_input : bool, default=True
            Whether to check rows in memory.

        Returns
        -------
        self
        """
        if is_dask(X := convert_to_host(X)):
            if hasattr(self, "components_"):
                check_feature_names(self, X, reset=False)
            return self._fit_batches(X, self)
        # Overflow is checked below, and NaN from equal rows is replaced.
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            decomposition.IncrementalPCA.partial_fit(self, X, y, check_input=check_input)
        if not (np.isfinite(self.components_).all() and np.isfinite(self.var_).all()):
            raise DivergedError(
                "The squares of the rows overflow. Scale the features (StandardScaler), and fit a "
                "new IncrementalPCA."
            )
        # Contiguous, because sums over a slice may round differently from sums over its stored
        # copy.
        components = np.ascontiguousarray(vars(self)["components_"])
        self.__dict__["components_"] = components
        ratio: NDArray[Any] = vars(self)["explained_variance_ratio_"]
        # Equal rows have no variance, and scikit-learn divides by it.
        self.explained_variance_ratio_ = np.where(np.isfinite(ratio), ratio, 0.0)
        return self

    def _fit_lazy(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        fresh = type(self)(**self.get_params(deep=False))
        self._fit_batches(X, fresh)
        # As in scikit-learn, only `fit` sets it.
        self.batch_size_ = _choose_batch_size(self, self.n_features_in_)
        return self

    def _fit_batches(self, X: Any, initial_model: IncrementalPCA) -> Self:
        """Fit to all batches of a collection, starting from the state of `initial_model`."""
        self._check_parameters()
        collection = as_collection(*take_named_columns(X, None, None), numeric=self._numeric)
        with report_reading(type(self).__name__):
            # Blocks update the state one after the other, in their order.
            progress = fold_parts(
                collection, _fit_block, _PartialComponents(initial_model)
            ).fit_last_batches()
        if not progress.n_rows:
            raise make_no_rows_error()
        fitted = vars(progress.model)
        self.__dict__.update({n: v for n, v in fitted.items() if n.endswith("_")})
        # The batches were arrays, so the model has no feature names: they come from the collection.
        self.__dict__.pop("feature_names_in_", None)
        self.n_features_in_ = self.components_.shape[1]
        if collection.feature_names is not None:
            self.feature_names_in_ = collection.feature_names
        return self

    def _summarise(self, X: Any, sample_weight: Any) -> Any:
        raise AssertionError("batches are not merged")


@dataclass(frozen=True)
class _PartialComponents:
    """State of an incremental fit between two blocks.

    Parameters
    ----------
    model : IncrementalPCA
        Model fitted to the batches so far.
    remaining_rows : ndarray or None
        Last rows, not yet enough for a batch.
    n_rows : int
        Number of rows of the collection so far.
    """

    model: IncrementalPCA
    remaining_rows: NDArray[Any] | None = None
    n_rows: int = 0

    def fit_whole_batches(self, rows: NDArray[Any]) -> _PartialComponents:
        """Fit the batches that following rows cannot change; return the new state."""
        # Batches cross block boundaries, as if all rows were one array.
        if self.remaining_rows is not None:
            rows = np.vstack([self.remaining_rows, rows])
        model = copy.copy(self.model)
        # A batch needs `n_components` rows. As in `gen_batches`, a batch is cut only if the
        # remaining rows suffice for another one; otherwise both are one batch.
        size, min_rest = _choose_batch_size(model, rows.shape[1]), model.n_components or 0
        start = 0
        while start + size + min_rest <= len(rows):
            # A copy, because scikit-learn subtracts the mean from the batch in place.
            model.partial_fit(rows[start : start + size].copy(), check_input=False)
            start += size
        return replace(self, model=model, remaining_rows=rows[start:].copy())

    def fit_last_batches(self) -> _PartialComponents:
        """Fit the rows that remain after the last block; return the new state."""
        if self.remaining_rows is None or not len(self.remaining_rows):
            return self
        model = copy.copy(self.model)
        try:
            n_rows, n_features = self.remaining_rows.shape
            size = _choose_batch_size(model, n_features)
            for batch in gen_batches(n_rows, size, min_batch_size=model.n_components or 0):
                model.partial_fit(self.remaining_rows[batch].copy(), check_input=False)
        except ValueError as error:
            raise as_ours(error) from error
        return replace(self, model=model, remaining_rows=None)


def _choose_batch_size(model: IncrementalPCA, n_features: int) -> int:
    """Return the number of rows of a batch."""
    return model.batch_size or 5 * n_features


def _fit_block(
    progress: _PartialComponents, index: int, X: Any, y: Any, sample_weight: Any
) -> _PartialComponents:
    """Return the state after one more block."""
    rows = as_rows(X, index=index)
    rows = rows.toarray() if hasattr(rows, "toarray") else rows
    if not len(rows):
        return progress
    check_finite_rows(rows, index)
    try:
        updated = progress.fit_whole_batches(rows)
    except ValueError as error:
        raise as_ours(error, f"Block {index} of X: ") from error
    return replace(updated, n_rows=progress.n_rows + len(rows))


_SVD_SOLVERS = ("auto", "full", "covariance_eigh", "arpack", "randomized")
#: Largest number of features for which a few components are computed from the full covariance (128
#: MiB).
_MAX_FEATURES_EXACT = 4096
#: Largest number of features for which a covariance is computed at all (2 GiB).
_MAX_FEATURES_OF_COVARIANCE = 2**14
#: Largest number of multiplications for which the covariance is computed in float64 whatever the
#: dtype of the rows: it takes milliseconds.
_MAX_DOUBLE_PRODUCTS = 10**7


class PCA(BaseComponents):
    """Principal components of all rows, from one pass over them.

    The pass sums the covariance, of size ``n_features ** 2``, each block about a point near its own
    mean, so rows are not moved, in memory or streamed. For more than 4,096 features, it is replaced
    by a few passes of products with about ``n_components`` vectors.

    Parameters
    ----------
    n_components : int, float, "mle" or None, default=None
        As in scikit-learn: a number of components; between 0 and 1: the share of the variance to
        explain; ``"mle"``: Minka's estimate; None: the smaller of the numbers of rows and features.
    copy : bool, default=True
        Without effect: X is never changed.
    whiten : bool, default=False
        Whether projections are scaled to variance 1.
    svd_solver : {"auto", "full", "covariance_eigh", "arpack", "randomized"}, default="auto"
        ``"covariance_eigh"``: the covariance from products in the dtype of the rows, summed in
        float64, and its eigenvectors by LAPACK. ``"full"``: the same, with products in float64.
        ``"randomized"`` (power iterations from random vectors) and ``"arpack"`` (one pass for each
        of its products) are used if there are more than 4,096 features and a number of components
        is given; otherwise the covariance costs less and is exact. ``"auto"``: ``"full"`` for few
        rows, else ``"covariance_eigh"`` or ``"randomized"``.
    iterated_power : int or "auto", default="auto"
        Number of power iterations.

    Attributes
    ----------
    components_ : ndarray of float64 of shape (n_components, n_features)
        Sorted by decreasing variance; the largest entry of each is positive.
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarrays of float64 of \
    shape (n_components,)
    mean_ : ndarray of float64 of shape (n_features,)
    noise_variance_ : float
        Mean variance of the discarded directions.
    n_components_ : int
    n_samples_ : int
        Number of rows, or the sum of their weights.

    References
    ----------
    M. E. Tipping and C. M. Bishop, "Probabilistic principal component analysis", Journal of the
    Royal Statistical Society B 61(3), 1999. T. P. Minka, "Automatic choice of dimensionality for
    PCA", NIPS 2000.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.decomposition import PCA
    >>> X = np.array([[-1, -1], [-2, -1], [-3, -2], [1, 1], [2, 1], [3, 2]])
    >>> PCA(n_components=2).fit(X).explained_variance_ratio_.round(4)
    array([0.9924, 0.0076])
    """

    def __init__(
        self,
        n_components: Any = None,
        *,
        copy: bool = True,
        whiten: bool = False,
        svd_solver: str = "auto",
        tol: float = 0.0,
        iterated_power: int | str = "auto",
        n_oversamples: int = 10,
        power_iteration_normalizer: str = "auto",
        random_state: Any = None,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.n_components = n_components
        self.copy = copy
        self.whiten = whiten
        self.svd_solver = svd_solver
        self.tol = tol
        self.iterated_power = iterated_power
        self.n_oversamples = n_oversamples
        self.power_iteration_normalizer = power_iteration_normalizer
        self.random_state = random_state
        self.run = run
        self.device = device
        self.callbacks = callbacks

    # -- fitting -------------------------------------------------------------------------------

    def _check_params(self) -> None:
        n = self.n_components
        is_count = self._n_requested is not None and not isinstance(n, bool) and n >= 0
        share = isinstance(n, Real) and not isinstance(n, Integral) and 0 < float(n) < 1
        if not (n is None or is_count or share or (isinstance(n, str) and n == "mle")):
            raise InvalidParameterError(
                f"n_components={n!r}: use an integer >= 0, a number between 0 and 1 (the share of "
                'the variance), "mle" or None.'
            )
        for name in ("copy", "whiten"):
            check_flag(name, getattr(self, name))
        check_one_of("svd_solver", self.svd_solver, _SVD_SOLVERS)
        if self.svd_solver in ("arpack", "randomized") and (share or isinstance(n, str)):
            raise InvalidParameterError(
                f"n_components={n!r} needs all variances, but svd_solver={self.svd_solver!r} is "
                'for a few. Give a number of components, or svd_solver="auto".'
            )
        check_number("tol", self.tol)
        if self.iterated_power != "auto" and self.iterated_power != 0:
            check_count("iterated_power", self.iterated_power, '0 or "auto"')
        check_count("n_oversamples", self.n_oversamples)
        normalizers = ("auto", "QR", "LU", "none")
        check_one_of("power_iteration_normalizer", self.power_iteration_normalizer, normalizers)

    def _problem(self, rows: DatasetInfo) -> tuple[Unlabelled, Solver]:
        n_rows, d = self._count_weighted_rows(rows), rows.summary.n_features
        self._check_enough_rows(rows, min(n_rows, d))
        return Unlabelled(d), self._choose_solver(n_rows, d)

    @staticmethod
    def _count_weighted_rows(rows: DatasetInfo) -> int:
        """Return the number of rows, with a row of weight k counted as k rows."""
        return rows.summary.n_rows if rows.weight_scale is None else int(rows.weight_sum + 1e-6)

    def _check_enough_rows(self, rows: DatasetInfo, max_components: int) -> None:
        """Raise if the rows have no variance, or are fewer than the requested components."""
        n_rows = rows.summary.n_rows
        if n_rows < 2 or rows.weight_sum < 2:
            raise InvalidDataError(
                f"n_samples={n_rows} with a total weight of {rows.weight_sum:g}: a variance "
                "needs at least two rows, and weights whose sum is at least 2, since a weight "
                "of 2 counts a row twice. Give more rows, or larger weights."
            )
        if self._n_requested is not None and self._n_requested > max_components:
            raise InvalidParameterError(
                f"n_components={self.n_components} must be between 0 and min(n_samples, n_features)"
                f"={max_components} with svd_solver={self.svd_solver!r}. Ask for fewer components."
            )
        if self.n_components == "mle" and self._count_weighted_rows(rows) < rows.summary.n_features:
            raise InvalidDataError(
                "n_components='mle' is only supported if n_samples >= n_features. Give a number "
                "of components."
            )

    def _choose_solver(self, n_rows: int, d: int) -> Solver:
        """Return power iterations for a few components of many features, else the covariance."""
        k = self._n_requested
        if k is not None and self._prefers_power_iterations(d, k):
            return PowerIterations(
                n_components=k,
                n_oversamples=int(self.n_oversamples),
                n_iter=self._count_power_iterations(k, min(n_rows, d)),
                centred=True,
                seed=seed_of(self.random_state),
                lanczos=self.svd_solver == "arpack",
                tol=float(self.tol),
            )
        if d > _MAX_FEATURES_OF_COVARIANCE:
            raise InvalidParameterError(
                f"n_components={self.n_components!r} and svd_solver={self.svd_solver!r} would "
                f"need the whole covariance matrix of {d:,} features. Ask for a number of "
                'components, with svd_solver="randomized".'
            )
        # With fewer than 10 rows per feature scikit-learn computes the SVD of X, which loses fewer
        # digits than a covariance: products in float64 compensate for that.
        has_few_rows = n_rows < 10 * d or n_rows * d * d <= _MAX_DOUBLE_PRODUCTS
        double = self.svd_solver == "full" or (
            self.svd_solver != "covariance_eigh" and has_few_rows
        )
        return CovarianceEigenSolver(k, double)

    @property
    def _n_requested(self) -> int | None:
        """Return the number of components, or None if the parameter is not an integer."""
        return int(self.n_components) if isinstance(self.n_components, Integral) else None

    def _prefers_power_iterations(self, d: int, k: int) -> bool:
        """Return whether power iterations cost less than a covariance and are allowed."""
        if d <= _MAX_FEATURES_EXACT or not k or self.svd_solver in ("full", "covariance_eigh"):
            return False
        # "auto": the number of vectors must be small compared with the number of features.
        return self.svd_solver != "auto" or 2 * (k + self.n_oversamples) < d

    def _count_power_iterations(self, k: int, least: int) -> int:
        """Return the number of passes: scikit-learn's, plus one for its last product with X.T."""
        if self.iterated_power != "auto":
            return int(self.iterated_power) + 1
        # The numbers 7 and 4 of scikit-learn, plus one.
        return 8 if k < 0.1 * least else 5

    def _set_fitted(self, solution: Solution, model: Unlabelled, rows: DatasetInfo) -> None:
        extra, weight = solution.extra, rows.weight_sum
        n_rows, d = self._count_weighted_rows(rows), model.n_features
        if not extra["total"] > 0:
            raise InvalidDataError(
                "All rows of X are equal: there is no variance to explain. Check the filter or the "
                "columns that made them."
            )
        # Convert variances over n to unbiased ones over n - 1; a row of weight k counts as k rows.
        unbiased, k_max = weight / (weight - 1), min(n_rows, d)
        variance, total = extra["values"][:k_max] * unbiased, extra["total"] * unbiased
        ratio = variance / total
        k = self._resolve_n_components(variance, ratio, weight, k_max)
        self.n_components_ = k
        self.components_ = solution.w[:k].copy()
        self.explained_variance_, self.explained_variance_ratio_ = variance[:k], ratio[:k]
        self.singular_values_ = np.sqrt(variance[:k] * (weight - 1))
        self.mean_ = extra["mean"]
        # Noise variance: the mean of the discarded eigenvalues (Tipping and Bishop, equation 8).
        # Power iterations have not computed them, but their sum is the remainder of the total.
        discarded = variance[k:].sum() if len(variance) == k_max else total - variance[:k].sum()
        self.noise_variance_ = max(0.0, float(discarded)) / (k_max - k) if k < k_max else 0.0
        self.n_samples_ = n_rows
        self.n_features_in_ = d

    def _resolve_n_components(
        self, variance: Array, ratio: Array, weight: float, max_components: int
    ) -> int:
        """Return the number of components that the parameter requests."""
        if self.n_components is None:
            return max_components
        if self.n_components == "mle":
            return int(infer_dimension(variance, weight))
        if self._n_requested is not None:
            return self._n_requested
        # A share of the variance: the smallest number of components that explain more than it.
        enough = np.searchsorted(np.cumsum(ratio), self.n_components, side="right") + 1
        return min(int(enough), max_components)

    # -- functions of rows ---------------------------------------------------------------------

    @property
    def _whitening_scales(self) -> Array:
        """Return the divisors of whitened projections, which are never zero."""
        root = np.sqrt(self.explained_variance_)
        return np.asarray(np.maximum(root, np.finfo(np.float64).eps))

    def _make_projection(self) -> AffineProjection:
        matrix = self.components_.T / self._whitening_scales if self.whiten else self.components_.T
        return AffineProjection(np.ascontiguousarray(matrix), shift=self.mean_)

    def _make_expansion(self) -> AffineProjection:
        scaled = (
            self.components_ * self._whitening_scales[:, None] if self.whiten else self.components_
        )
        return AffineProjection(scaled, offset=self.mean_)

    def get_covariance(self) -> Array:
        """Return the covariance of the model: that of the components, plus isotropic noise.

        Returns
        -------
        ndarray of float64 of shape (n_features, n_features)
        """
        self._check_fitted()
        # W W.T + noise * I, with W the scaled components (Tipping and Bishop).
        excess = np.maximum(self.explained_variance_ - self.noise_variance_, 0.0)
        covariance = (self.components_.T * excess) @ self.components_
        covariance.flat[:: len(covariance) + 1] += self.noise_variance_
        return np.asarray(covariance)

    def get_precision(self) -> Array:
        """Return the inverse of the model's covariance.

        Returns
        -------
        ndarray of float64 of shape (n_features, n_features)
        """
        self._check_fitted()
        d, noise = self.n_features_in_, self.noise_variance_
        if self.n_components_ == 0:
            return np.eye(d) / noise
        if noise == 0:
            try:
                return np.asarray(linalg.inv(self.get_covariance()))
            except linalg.LinAlgError as error:
                raise InvalidDataError(
                    "The covariance of the model is singular: the rows do not vary in all "
                    "directions, so their likelihood is infinite. Fit fewer components "
                    "(n_components), or more rows."
                ) from error
        # Invert the eigenvalues of the covariance (the variances, at least the noise, and the
        # noise): no d x d system is solved.
        share = 1 / np.maximum(self.explained_variance_, noise) - 1 / noise
        precision = (self.components_.T * share) @ self.components_
        precision.flat[:: d + 1] += 1 / noise
        return np.asarray(precision)

    def score_samples(self, X: Any) -> Any:
        """Return the log-likelihood of each row under the model.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of float64 of shape (n_rows,)
        """
        self._check_fitted(X)
        return self._map_raw_predictions(None, X, np.float64, None)

    score = score_mean_log_likelihood

    def _raw_prediction(self) -> _NormalLogLikelihood:
        precision = self.get_precision()
        # (log |P| - d log(2 pi)) / 2
        constant = np.linalg.slogdet(precision)[1] - len(precision) * np.log(2 * np.pi)
        return _NormalLogLikelihood(self.mean_, precision, float(constant) / 2)


@dataclass(frozen=True, eq=False)
class _NormalLogLikelihood:
    """Log-likelihood of rows under a normal distribution.

    Parameters
    ----------
    mean, precision : ndarrays of shapes (n_features,) and (n_features, n_features)
    constant : float
    """

    mean: Array
    precision: Array
    constant: float
    makes_dense: ClassVar[bool] = True

    def __call__(self, X: Any) -> NDArray[np.float64]:
        """Return the log-likelihood of each row."""
        rows = X.toarray() if hasattr(X, "toarray") else X
        centred = rows - self.mean
        # Squared Mahalanobis distances.
        squares: NDArray[np.float64] = np.einsum("ij,ij->i", centred, centred @ self.precision)
        return self.constant - squares / 2

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], NDArray[np.float64]]:
        """Return the function of rows on a device; only the log-likelihoods are copied from it."""
        mean, precision = backend.to_device(self.mean), backend.to_device(self.precision)

        def apply(X: Any) -> NDArray[np.float64]:
            centred = (X.toarray() if hasattr(X, "toarray") else X) - mean
            squares = total(centred * (centred @ precision), axis=1)
            return backend.to_numpy(self.constant - squares / 2)

        return apply
