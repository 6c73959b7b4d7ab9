"""Base classes of what finds centres of rows."""

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

from daskml_dist.backends import get_backend
from daskml_dist.backends.numpy_backend import load_centre_loops
from daskml_dist.data.conversion import as_rows
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.base import BaseOnRows
from daskml_dist.estimators.transformer import LazyTransformerMixin
from daskml_dist.estimators.unsupervised import BaseUnlabelled
from daskml_dist.models.row_models import Unlabelled
from daskml_dist.parameters.checks import check_one_of
from daskml_dist.solvers import Solution
from daskml_dist.training.dataset_info import DataSummary
from daskml_dist.training.plan import DatasetInfo

__all__ = ["BaseCentroidEstimator", "BaseCentroidSolver"]


class BaseCentroidEstimator(
    ClassNamePrefixFeaturesOutMixin, LazyTransformerMixin, ClusterMixin, BaseOnRows
):
    """Base class of estimators of centres: labels, distances and scores of rows.

    A subclass sets ``cluster_centers_``, and `_shift`, what is taken from dense rows (or None).

    Parameters
    ----------
    n_clusters : int, default=8
    random_state : int, RandomState instance or None, default=None
        With the same chunks, draws are the same on any number of workers.
    max_iter : int, default=300
        Steps of a run.
    copy_x : bool, default=True
        X is never changed.
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
        # The graph of lazy labels holds the rows of the fit.
        return {name: v for name, v in state.items() if name != "labels_" or not is_dask(v)}

    # -- fitting -------------------------------------------------------------------------------

    def _set_of_rows(self, X: Any) -> None:
        self.labels_ = self.predict(X)

    def _set_labels(self, X: Any) -> None:
        self.__dict__.pop("labels_", None)
        if getattr(self, "compute_labels", True):
            self.labels_ = self.predict(X)

    def fit_predict(
        self, X: Any, y: None = None, sample_weight: Any = None, *, client: Any = None
    ) -> Any:
        """:meth:`fit`, and ``labels_``; parameters as there."""
        return self.fit(X, None, sample_weight, client=client).labels_

    def fit_transform(
        self, X: Any, y: None = None, sample_weight: Any = None, *, client: Any = None
    ) -> Any:
        """:meth:`fit`, and :meth:`transform` of the same rows; parameters as there."""
        return self.fit(X, None, sample_weight, client=client).transform(X)

    def _enough(self, rows: DatasetInfo) -> DataSummary:
        """The survey of rows that are at least as many as the clusters."""
        if (n_rows := rows.survey.n_rows) < self.n_clusters:
            raise InvalidDataError(
                f"n_samples={n_rows} should be >= n_clusters={self.n_clusters}. Ask for fewer "
                "clusters."
            )
        return rows.survey

    def _check_init(self, inits: tuple[str, ...]) -> None:
        """Check `init`; `inits` are the strings that it may be."""
        if isinstance(self.init, str):
            check_one_of("init", self.init, inits)
        elif callable(self.init) and not hasattr(self, "_called_init"):
            raise InvalidParameterError(
                "init is a function, and rows of a Dask collection may be more than one process "
                f"holds. Give what it returns for some rows, or one of {list(inits)}."
            )

    def _call_init(self, X: Any, known: NDArray[np.float64] | None = None) -> None:
        """Ask a function for the first centres of rows in memory, where none are known."""
        self.__dict__.pop("_called_init", None)
        if callable(self.init) and known is not None:
            self._called_init = known
        elif callable(self.init) and not is_dask(X):
            random = check_random_state(self.random_state)
            self._called_init = self.init(as_rows(X), self.n_clusters, random_state=random)

    def _warn_of_one_init(self) -> None:
        """Tell that centres which are given are tried once."""
        if self.n_init not in ("auto", 1):
            warnings.warn(
                f"Explicit initial center position passed: performing only one init in "
                f"{type(self).__name__} instead of n_init={self.n_init}.",
                RuntimeWarning,
                stacklevel=user_stack_level(),
            )

    def _given_centres(self, n_features: int, inits: tuple[str, ...]) -> NDArray[np.float64]:
        """First centres that the user gives, checked; `inits` are what else `init` may be."""
        given = self.__dict__.pop("_called_init", self.init)
        try:
            centres = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidParameterError(
                f"init={self.init!r}: use one of {list(inits)}, or an array of numbers."
            ) from error
        expected = self.n_clusters, n_features
        for what, given, wanted in zip(
            ("clusters", "features of the data"), (*centres.shape, 0, 0), expected, strict=False
        ):
            if centres.ndim != 2 or given != wanted:
                raise InvalidParameterError(
                    f"The shape of the initial centers {centres.shape} does not match the number "
                    f"of {what} {wanted}. Give init an array of shape {expected}."
                )
        if not np.isfinite(centres).all():
            raise InvalidParameterError("init holds NaN or infinity. Give it finite centres.")
        return centres

    # -- functions of rows ---------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """Number of the nearest centre of each row.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of int32 of shape (n_rows,)
        """
        return self._of_rows(_Labels, X, np.int32)

    def transform(self, X: Any) -> Any:
        """Distance of each row to each centre.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of float64 of shape (n_rows, n_clusters)
        """
        return self._of_rows(_Distances, X, np.float64, each=True)

    def score(self, X: Any, y: None = None, sample_weight: Any = None) -> float:
        """Minus the sum of the squared distances of the rows to their nearest centres, weighted.

        Parameters
        ----------
        X : as in :meth:`fit`
        y : ignored
        sample_weight : array-like, dask Array or dask Series of shape (n_rows,), or None
        """
        self._check_fitted(X)
        return -float(self._sum_over_blocks(_weighted_sum, X, None, sample_weight))

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        """The squared distance of each row to its nearest centre."""
        return _Squares(self.cluster_centers_, self._shift)

    def _of_rows(
        self, kind: type[_CentroidFunction], X: Any, dtype: Any, *, each: bool = False
    ) -> Any:
        """A number for each row, or for each row and centre."""
        self._check_fitted(X)
        function = kind(self.cluster_centers_, self._shift)
        return self._map_rows(function, X, dtype, len(self.cluster_centers_) if each else None)


class BaseCentroidSolver(BaseCentroidEstimator, BaseUnlabelled):
    """Base class of those that a round solver finds."""

    def fit(self, X: Any, y: None = None, sample_weight: Any = None, *, client: Any = None) -> Self:
        """Find the centres.

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
            What is found is not finite.
        TrainingError
            When the fit cannot go on.
        """
        self._call_init(X)
        return super().fit(X, None, sample_weight, client=client)

    def _set_centres(self, solution: Solution, model: Unlabelled, rows: DatasetInfo) -> None:
        """Attributes of a solution with ``"inertia"`` and ``"shift"``."""
        self.cluster_centers_ = solution.w
        self.inertia_ = float(solution.extra["inertia"]) / (rows.weight_scale or 1.0)
        self.n_features_in_ = model.n_features
        self._n_features_out = len(solution.w)
        self._shift = solution.extra["shift"]


@dataclass(frozen=True, eq=False)
class _CentroidFunction(ABC):
    """Function of rows and centres.

    Parameters
    ----------
    centres : ndarray of shape (k, n_features)
    shift : ndarray of shape (n_features,) or None
        What is taken from dense rows, as in the fit.
    """

    centres: NDArray[np.float64]
    shift: NDArray[np.float64] | None

    @abstractmethod
    def __call__(self, X: Any) -> NDArray[Any]:
        """Answer for each row."""

    def _nearest(self, X: Any) -> tuple[NDArray[np.intp], NDArray[Any]]:
        backend, dtype = get_backend("cpu"), X.dtype
        if sparse.issparse(X) or self.shift is None:
            rows = backend.rows(X, slice(0, X.shape[0]))
            return backend.nearest(rows, None, self.centres.astype(dtype))
        near = (self.centres - self.shift).astype(dtype)
        return backend.nearest(X, self.shift.astype(dtype), near)


class _Labels(_CentroidFunction):
    """Number of the nearest centre of each row."""

    def __call__(self, X: Any) -> NDArray[Any]:
        return self._nearest(X)[0].astype(np.int32)

    def for_dtype(self, dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """The same function of dense rows of a dtype; what they do not change is found once."""
        near = self.centres if self.shift is None else self.centres - self.shift
        shift = None if self.shift is None else self.shift.astype(dtype)
        centres = near.astype(dtype)
        half, turned = (centres * centres).sum(axis=1) / 2, centres.T

        def apply(X: NDArray[Any]) -> NDArray[Any]:
            if load_centre_loops(X, shift, len(centres)) is not None:
                return self(X)
            rows = X if shift is None else X - shift
            return np.asarray((half - rows @ turned).argmin(axis=1))

        return apply


class _Squares(_CentroidFunction):
    """Squared distance of each row to its nearest centre."""

    def __call__(self, X: Any) -> NDArray[Any]:
        return self._nearest(X)[1]


class _Distances(_CentroidFunction):
    """Distance of each row to each centre."""

    def __call__(self, X: Any) -> NDArray[Any]:
        return np.asarray(euclidean_distances(X, self.centres.astype(X.dtype)))


def _weighted_sum(y: None, squares: NDArray[Any], weight: NDArray[np.float64]) -> float:
    return float(weight @ squares)
