"""Base classes of the k-means estimators, and functions of rows and centroids."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils import check_random_state

from daskml_dist.backends.base import Backend
from daskml_dist.backends.devices import get_backend
from daskml_dist.backends.namespace import cast, namespace, total
from daskml_dist.backends.numpy_backend import load_centroid_loops
from daskml_dist.data.conversion import as_rows
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.base import BaseOnRows
from daskml_dist.estimators.transformer import LazyTransformerMixin
from daskml_dist.estimators.unsupervised import BaseUnlabelled
from daskml_dist.models.row_models import Unlabelled
from daskml_dist.parameters.checks import check_one_of
from daskml_dist.solvers.base import Solution
from daskml_dist.training.dataset_info import DatasetInfo, DataSummary


class BaseCentroidEstimator(
    ClassNamePrefixFeaturesOutMixin, LazyTransformerMixin, ClusterMixin, BaseOnRows
):
    """Base class of estimators with centroids: labels, distances and scores of rows.

    A subclass sets ``cluster_centers_``, and `_shift`: the vector that is subtracted from dense
    rows and from the centroids before distances are computed (None for sparse rows).

    Parameters
    ----------
    n_clusters : int, default=8
    random_state : int, RandomState instance or None, default=None
        With the same chunks, draws are the same on any number of workers.
    max_iter : int, default=300
        Largest number of iterations of a run.
    copy_x : bool, default=True
        Without effect: X is never changed.
    """

    n_clusters: int
    init: Any
    n_init: int | str
    random_state: Any
    cluster_centers_: NDArray[np.float64]
    n_features_in_: int
    _shift: NDArray[np.float64] | None

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        # Lazy labels are not pickled: their Dask graph contains the rows of the fit.
        return {name: v for name, v in state.items() if name != "labels_" or not is_dask(v)}

    # -- fitting -------------------------------------------------------------------------------

    def _set_of_rows(self, X: Any) -> None:
        # Lazy if X is lazy: the rows are only read when the labels are computed.
        self.labels_ = self.predict(X)

    def _set_labels(self, X: Any) -> None:
        """Set `labels_` if `compute_labels` is True, and drop the labels of an earlier fit."""
        self.__dict__.pop("labels_", None)
        if getattr(self, "compute_labels", True):
            self.labels_ = self.predict(X)

    def fit_predict(
        self, X: Any, y: None = None, sample_weight: Any = None, *, client: Any = None
    ) -> Any:
        """Fit the model and return ``labels_``; parameters as in :meth:`fit`."""
        return self.fit(X, None, sample_weight, client=client).labels_

    def fit_transform(
        self, X: Any, y: None = None, sample_weight: Any = None, *, client: Any = None
    ) -> Any:
        """Fit the model and :meth:`transform` the same rows; parameters as in :meth:`fit`."""
        return self.fit(X, None, sample_weight, client=client).transform(X)

    def _check_n_rows(self, rows: DatasetInfo) -> DataSummary:
        """Return the summary of the rows; raise if there are fewer rows than clusters."""
        if (n_rows := rows.summary.n_rows) < self.n_clusters:
            raise InvalidDataError(
                f"n_samples={n_rows} should be >= n_clusters={self.n_clusters}. Ask for fewer "
                "clusters."
            )
        return rows.summary

    def _check_init(self, inits: tuple[str, ...]) -> None:
        """Raise if `init` is a string not in `inits`, or a function for a Dask collection."""
        if isinstance(self.init, str):
            check_one_of("init", self.init, inits)
        elif callable(self.init) and not hasattr(self, "_called_init"):
            raise InvalidParameterError(
                "init is a function, which needs all rows in one process, and X is a Dask "
                f"collection. Give what it returns for a sample of rows, or one of {list(inits)}."
            )

    def _call_init(self, X: Any, known_centroids: NDArray[np.float64] | None = None) -> None:
        """Call `init` if it is a function, and keep its centroids until they are checked.

        If `known_centroids` centroids are given, they are used instead. The function is not called
        with a Dask collection: :meth:`_check_init` then raises.
        """
        self.__dict__.pop("_called_init", None)
        if callable(self.init) and known_centroids is not None:
            self._called_init = known_centroids
        elif callable(self.init) and not is_dask(X):
            random = check_random_state(self.random_state)
            self._called_init = self.init(as_rows(X), self.n_clusters, random_state=random)

    def _warn_of_one_init(self) -> None:
        """Warn if `n_init` requests several runs although the first centroids are given."""
        if self.n_init not in ("auto", 1):
            warnings.warn(
                f"Explicit initial center position passed: performing only one init in "
                f"{type(self).__name__} instead of n_init={self.n_init}.",
                RuntimeWarning,
                stacklevel=user_stack_level(),
            )

    def _resolve_given_centroids(
        self, n_features: int, inits: tuple[str, ...]
    ) -> NDArray[np.float64]:
        """Return the first centroids that the user gave, after checks.

        If they are not an array, the error lists the strings `inits` that `init` may be.
        """
        # The centroids that a function `init` has returned, or `init` itself.
        init = self.__dict__.pop("_called_init", self.init)
        try:
            centroids = np.asarray(init, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidParameterError(
                f"init={self.init!r}: use one of {list(inits)}, or an array of numbers."
            ) from error
        expected = self.n_clusters, n_features
        # Pad the shape, since an array with fewer dimensions has a shorter one.
        for axis_name, size, expected_size in zip(
            ("clusters", "features of the data"), (*centroids.shape, 0, 0), expected, strict=False
        ):
            if centroids.ndim != 2 or size != expected_size:
                raise InvalidParameterError(
                    f"The shape of the initial centers {centroids.shape} does not match the number "
                    f"of {axis_name} {expected_size}. Give init an array of shape {expected}."
                )
        if not np.isfinite(centroids).all():
            raise InvalidParameterError("init holds NaN or infinity. Give it finite centres.")
        return centroids

    # -- functions of rows ---------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """Return the index of the nearest centroid of each row.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of int32 of shape (n_rows,)
        """
        return self._map_centroid_function(_Labels, X, np.int32)

    def transform(self, X: Any) -> Any:
        """Return the distance of each row to each centroid.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of float64 of shape (n_rows, n_clusters)
        """
        return self._map_centroid_function(_Distances, X, np.float64, per_centroid=True)

    def score(self, X: Any, y: None = None, sample_weight: Any = None) -> float:
        """Return minus the weighted sum of the rows' squared distances to the nearest centroids.

        Parameters
        ----------
        X : as in :meth:`fit`
        y : ignored
        sample_weight : array-like, dask Array or dask Series of shape (n_rows,), or None
        """
        self._check_fitted(X)
        return -float(self._sum_over_blocks(_weighted_sum, X, None, sample_weight))

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        """Return the function that computes the rows' squared distances to the nearest centroid."""
        return _SquaredDistances(self.cluster_centers_, self._shift)

    def _map_centroid_function(
        self, kind: type[_CentroidFunction], X: Any, dtype: Any, *, per_centroid: bool = False
    ) -> Any:
        """Return a number for each row, or for each row and centroid; lazy if X is lazy."""
        self._check_fitted(X)
        function = kind(self.cluster_centers_, self._shift)
        n_columns = len(self.cluster_centers_) if per_centroid else None
        return self._map_rows(function, X, dtype, n_columns)


class BaseCentroidSolver(BaseCentroidEstimator, BaseUnlabelled):
    """Base class of estimators whose centroids are found by a round solver."""

    def fit(self, X: Any, y: None = None, sample_weight: Any = None, *, client: Any = None) -> Self:
        """Find the centroids.

        Parameters
        ----------
        X, sample_weight, client
            As in :meth:`daskml_dist.linear_model.SGDClassifier.fit`. A weight of k equals a row
            repeated k times.
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
            Before any pass, naming the remedy (NaN and infinity: during the first pass).
        DivergedError
            If the centroids are not finite.
        TrainingError
            When the fit cannot go on.
        """
        self._call_init(X)
        return super().fit(X, None, sample_weight, client=client)

    def _set_centroids(self, solution: Solution, model: Unlabelled, rows: DatasetInfo) -> None:
        """Set the attributes of a solution whose `extra` has ``"inertia"`` and ``"shift"``."""
        self.cluster_centers_ = solution.w
        # The fit's weights are scaled to a mean of 1: restore the user's scale.
        self.inertia_ = float(solution.extra["inertia"]) / (rows.weight_scale or 1.0)
        self.n_features_in_ = model.n_features
        self._n_features_out = len(solution.w)
        self._shift = solution.extra["shift"]


@dataclass(frozen=True, eq=False)
class _CentroidFunction(ABC):
    """Function of rows and fixed centroids.

    Parameters
    ----------
    centroids : ndarray of shape (k, n_features)
    shift : ndarray of shape (n_features,) or None
        Subtracted from dense rows and from the centroids, as in the fit.
    """

    centroids: NDArray[np.float64]
    shift: NDArray[np.float64] | None

    @abstractmethod
    def __call__(self, X: Any) -> NDArray[Any]:
        """Return a value, or a row of values, for each row."""

    def _find_nearest(self, X: Any) -> tuple[NDArray[np.intp], NDArray[Any]]:
        """Return the index of each row's nearest centroid and the squared distance to it."""
        backend, dtype = get_backend("cpu"), X.dtype
        # Sparse rows are not shifted: that would make them dense.
        if sparse.issparse(X) or self.shift is None:
            rows = backend.rows(X, slice(0, X.shape[0]))
            return backend.nearest(rows, None, self.centroids.astype(dtype))
        # Subtract in float64 before the cast, so that float32 keeps the digits of the differences.
        shifted = (self.centroids - self.shift).astype(dtype)
        return backend.nearest(X, self.shift.astype(dtype), shifted)

    def _find_nearest_on_device(
        self, backend: Backend, dtype: Any
    ) -> Callable[[Any], tuple[Any, Any]]:
        """Return the result of :meth:`_find_nearest` for rows of a dtype on a device."""
        shifted = self.centroids if self.shift is None else self.centroids - self.shift
        centroids, near = (backend.to_device(c.astype(dtype)) for c in (self.centroids, shifted))
        shift = None if self.shift is None else backend.to_device(self.shift.astype(dtype))

        def find(X: Any) -> tuple[Any, Any]:
            if hasattr(X, "tocsr"):
                return backend.nearest(backend.rows(X, slice(0, X.shape[0])), None, centroids)
            return backend.nearest(X, shift, near)

        return find


class _Labels(_CentroidFunction):
    """Index of the nearest centroid of each row."""

    hides_not_finite = True

    def __call__(self, X: Any) -> NDArray[Any]:
        return self._find_nearest(X)[0].astype(np.int32)

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], NDArray[Any]]:
        """Return the function of rows on a device; only the labels are copied from it."""
        find = self._find_nearest_on_device(backend, dtype)
        return lambda X: backend.to_numpy(find(X)[0]).astype(np.int32)

    def for_dtype(self, dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """Return the function for dense rows of a dtype, with cached terms of the centroids."""
        # The same shift and casts as in `_find_nearest`, done only once.
        shifted = self.centroids if self.shift is None else self.centroids - self.shift
        shift = None if self.shift is None else self.shift.astype(dtype)
        centroids = shifted.astype(dtype)
        half_norms, transposed = (centroids * centroids).sum(axis=1) / 2, centroids.T

        def apply(X: NDArray[Any]) -> NDArray[Any]:
            # Compiled loops are even faster, if they are loaded for such rows.
            if load_centroid_loops(X, shift, len(centroids)) is not None:
                return self(X)
            rows = X if shift is None else X - shift
            # |x - c|^2 / 2 without |x|^2 / 2, which is equal for all centroids of a row.
            return np.asarray((half_norms - rows @ transposed).argmin(axis=1))

        return apply


class _SquaredDistances(_CentroidFunction):
    """Squared distance of each row to its nearest centroid."""

    def __call__(self, X: Any) -> NDArray[Any]:
        return self._find_nearest(X)[1]

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], NDArray[Any]]:
        """Return the function of rows on a device; only the distances are copied from it."""
        find = self._find_nearest_on_device(backend, dtype)
        return lambda X: backend.to_numpy(find(X)[1])


class _Distances(_CentroidFunction):
    """Distance of each row to each centroid."""

    stays_on_device = True
    makes_dense = True

    def __call__(self, X: Any) -> NDArray[Any]:
        return np.asarray(euclidean_distances(X, self.centroids.astype(X.dtype)))

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], Any]:
        """Return the function of rows of a dtype on a device; the distances stay there."""
        centroids = backend.to_device(self.centroids.astype(dtype).astype(np.float64))
        norms = total(centroids * centroids, axis=1)

        def apply(X: Any) -> Any:
            # |x|^2 + |c|^2 - 2 x c in float64, as in scikit-learn; rounding may make it negative.
            rows = cast(X.toarray() if hasattr(X, "toarray") else X, centroids.dtype)
            squares = total(rows * rows, axis=1)[:, None] + norms - 2 * (rows @ centroids.T)
            xp = namespace(squares)
            return xp.sqrt(xp.where(squares > 0, squares, 0 * squares))

        return apply


def _weighted_sum(y: None, squares: NDArray[Any], weight: NDArray[np.float64]) -> float:
    """Return the weighted sum of a block's squared distances; rows without targets have no `y`."""
    return float(weight @ squares)
