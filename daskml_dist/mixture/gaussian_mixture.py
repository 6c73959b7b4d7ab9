"""`GaussianMixture`: parameters, initial components, and functions of rows under the fitted model.

EM is in `solvers/em.py`, its M-step in `models/mixture.py`, the densities in `backends/mixture.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.base import DensityMixin
from sklearn.utils import check_random_state

from daskml_dist.backends.base import Backend
from daskml_dist.backends.mixture import log_densities
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.estimators.unsupervised import BaseUnlabelled, score_mean_log_likelihood
from daskml_dist.models.mixture import Mixture
from daskml_dist.models.row_models import Unlabelled
from daskml_dist.parameters.checks import (
    check_count,
    check_flag,
    check_number,
    check_one_of,
    seed_of,
)
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.base import Solution
from daskml_dist.solvers.em import MixtureSolver
from daskml_dist.solvers.k_means import round_to_float32
from daskml_dist.training.dataset_info import DatasetInfo

Array = NDArray[np.float64]


def _check_weights_init(weights: Any, k: int) -> Array:
    """Check the initial weights of the components, and return them as an array."""
    shares = _check_numbers("weights", weights, (k,))
    if (shares < 0).any() or (shares > 1).any():
        raise InvalidParameterError(
            "The parameter 'weights' should be in the range [0, 1], but got max value "
            f"{shares.max():.5f}, min value {shares.min():.5f}. Give shares of 1."
        )
    if not np.isclose(shares.sum(), 1.0):
        raise InvalidParameterError(
            "The parameter 'weights' should be normalized, but got sum(weights) = "
            f"{shares.sum():.5f}. Divide them by their sum."
        )
    return shares


def _compute_covariances_init(precisions: Any, kind: str, k: int, d: int) -> Array:
    """Check the initial precisions, and return their inverses, the covariances."""
    shape = {"full": (k, d, d), "tied": (d, d), "diag": (k, d), "spherical": (k,)}[kind]
    matrices = _check_numbers(f"{kind} precision", precisions, shape)
    if kind in ("diag", "spherical"):
        if not (matrices > 0).all():
            raise InvalidParameterError(f"'{kind} precision' should be positive. Give all above 0.")
        return np.asarray(1 / matrices)
    # One matrix for "tied", otherwise one per component.
    for matrix in matrices.reshape(-1, d, d):
        if not (np.allclose(matrix, matrix.T) and (np.linalg.eigvalsh(matrix) > 0).all()):
            raise InvalidParameterError(
                f"'{kind} precision' should be symmetric, positive-definite. Give inverses of "
                "covariances."
            )
    return np.asarray(np.linalg.inv(matrices))


def _check_numbers(name: str, values: Any, shape: tuple[int, ...]) -> Array:
    """Return values as a finite float64 array of a shape, or raise `InvalidParameterError`."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(
            f"The parameter '{name}' is not an array of numbers. Give one of shape {shape}."
        ) from error
    if array.shape != shape:
        raise InvalidParameterError(
            f"The parameter '{name}' should have the shape of {shape}, but got {array.shape}. "
            "Give one entry per component."
        )
    if not np.isfinite(array).all():
        raise InvalidParameterError(
            f"The parameter '{name}' holds NaN or infinity. Give numbers, or None."
        )
    return array


@dataclass(frozen=True, eq=False)
class MixtureFunction:
    """Function of rows that is computed from their log-densities under each component.

    Parameters
    ----------
    shift : ndarray of shape (n_features,)
        Subtracted from the rows, so that float32 rows far from 0 keep their digits.
    constants, factors : ndarrays
        As returned by :meth:`Mixture.terms`.
    means : ndarray of shape (n_components, n_features)
        Means minus the shift.
    postprocess : callable
        Function of the weighted log-densities, which have shape (n_rows, n_components).
    """

    shift: NDArray[np.float64]
    constants: NDArray[np.float64]
    means: NDArray[np.float64]
    factors: NDArray[np.float64]
    postprocess: Callable[[NDArray[Any]], NDArray[Any]]
    hides_not_finite: ClassVar[bool] = True
    makes_dense: ClassVar[bool] = True

    def __call__(self, X: Any) -> NDArray[Any]:
        """Return the value of each row."""
        # Products are in the dtype of the rows; logarithms are then added in float64.
        terms = (part.astype(X.dtype) for part in (self.constants, self.means, self.factors))
        shifted = (X if isinstance(X, np.ndarray) else X.toarray()) - self.shift.astype(X.dtype)
        return self.postprocess(log_densities(shifted, *terms).astype(np.float64))

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], NDArray[Any]]:
        """Return the function of rows of a dtype on a device; only log-densities leave it."""
        shift, *terms = (
            backend.to_device(part.astype(dtype))
            for part in (self.shift, self.constants, self.means, self.factors)
        )

        def apply(X: Any) -> NDArray[Any]:
            shifted = (X.toarray() if hasattr(X, "toarray") else X) - shift
            return self.postprocess(
                backend.to_numpy(log_densities(shifted, *terms)).astype(np.float64)
            )

        return apply


def _find_components(log_densities: NDArray[Any]) -> NDArray[Any]:
    """Return the index of the most probable component of each row."""
    return np.asarray(log_densities.argmax(axis=1))


def _sum_densities(log_densities: NDArray[Any]) -> NDArray[Any]:
    """Return the log-likelihood of each row."""
    # log-sum-exp, since densities of rows far from all means would underflow to 0.
    return np.asarray(logsumexp(log_densities, axis=1))


def _compute_responsibilities(log_densities: NDArray[Any]) -> NDArray[Any]:
    """Return the posterior probability of each component for each row (the E-step)."""
    # Bayes' rule in logarithms, to avoid the same underflow.
    return np.asarray(np.exp(log_densities - logsumexp(log_densities, axis=1, keepdims=True)))


_COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
_INIT_METHODS = ("kmeans", "k-means++", "random", "random_from_data")


class GaussianMixture(DensityMixin, BaseUnlabelled):
    """Mixture of normal distributions, fitted to all rows by expectation maximisation (EM).

    A step is one pass over the rows, whose sums have the size of the components. Rows are not
    moved, in memory or streamed, and a lost worker costs only the sum that it was computing.

    Parameters
    ----------
    n_components : int, default=1
    covariance_type : {"full", "tied", "diag", "spherical"}, default="full"
        As in scikit-learn.
    tol : float, default=1e-3
        A run has converged when the mean log-likelihood changes by less than this.
    reg_covar : float, default=1e-6
        Added to all variances.
    max_iter, n_init : int, default=100, 1
        Largest number of steps of a run, and number of runs, of which the best is kept.
    init_params : {"kmeans", "k-means++", "random", "random_from_data"}, default="kmeans"
        How the first components are found. Each has the moments of the rows nearest to a centroid,
        which comes from k-means, from k-means++, or is a random row (``"random_from_data"``).
        ``"random"``: each row draws random shares in the components.
    weights_init, means_init, precisions_init : array-like or None, default=None
        Initial components, in the shapes of the attributes.
    random_state : int, RandomState instance or None, default=None
        With the same chunks, draws are the same on any number of workers.
    warm_start : bool, default=False
        Whether a fit continues from the components of the last one.
    verbose_interval : int, default=10
        Ignored.

    Attributes
    ----------
    weights_ : ndarray of float64 of shape (n_components,)
    means_ : ndarray of float64 of shape (n_components, n_features)
    covariances_, precisions_, precisions_cholesky_ : ndarrays of float64
        Of shape (n_components, n_features, n_features), (n_features, n_features),
        (n_components, n_features) or (n_components,), by `covariance_type`.
    converged_ : bool
    n_iter_ : int
        Steps of the best run.
    lower_bound_, lower_bounds_ : float, and list of float
        Mean log-likelihood of the rows before the last step of the best run, and before each of its
        steps.

    References
    ----------
    A. P. Dempster, N. M. Laird and D. B. Rubin, "Maximum likelihood from incomplete data via the
    EM algorithm", Journal of the Royal Statistical Society B 39(1), 1977.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.mixture import GaussianMixture
    >>> X = np.array([[1, 2], [1, 4], [1, 0], [10, 2], [10, 4], [10, 0]])
    >>> model = GaussianMixture(n_components=2, random_state=0).fit(X)
    >>> sorted(model.means_.round(6).tolist())
    [[1.0, 2.0], [10.0, 2.0]]
    """

    def __init__(
        self,
        # Model.
        n_components: int = 1,
        *,
        covariance_type: str = "full",
        # EM, and the number of runs.
        tol: float = 1e-3,
        reg_covar: float = 1e-6,
        max_iter: int = 100,
        n_init: int = 1,
        # Initial components.
        init_params: str = "kmeans",
        weights_init: Any = None,
        means_init: Any = None,
        precisions_init: Any = None,
        random_state: Any = None,
        warm_start: bool = False,
        # Reporting, and where the fit runs.
        verbose: int = 0,
        verbose_interval: int = 10,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.tol = tol
        self.reg_covar = reg_covar
        self.max_iter = max_iter
        self.n_init = n_init
        self.init_params = init_params
        self.weights_init = weights_init
        self.means_init = means_init
        self.precisions_init = precisions_init
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.verbose_interval = verbose_interval
        self.run = run
        self.device = device
        self.callbacks = callbacks

    # -- fitting -------------------------------------------------------------------------------

    def fit_predict(
        self, X: Any, y: None = None, sample_weight: Any = None, *, client: Any = None
    ) -> Any:
        """Fit the mixture and :meth:`predict` the same rows; parameters as :meth:`fit`."""
        return self.fit(X, None, sample_weight, client=client).predict(X)

    @property
    def _continues_last_fit(self) -> bool:
        """Return whether a fit continues from the last one."""
        return bool(self.warm_start) and hasattr(self, "converged_")

    def _check_params(self) -> None:
        check_count("n_components", self.n_components)
        check_count("n_init", self.n_init)
        if self.max_iter != 0:  # 0: the initial mixture
            check_count("max_iter", self.max_iter, "0")
        check_one_of("covariance_type", self.covariance_type, _COVARIANCE_TYPES)
        check_one_of("init_params", self.init_params, _INIT_METHODS)
        check_number("tol", self.tol)
        check_number("reg_covar", self.reg_covar)
        check_flag("warm_start", self.warm_start)

    def _problem(self, rows: DatasetInfo) -> tuple[Unlabelled, MixtureSolver]:
        summary, k = rows.summary, int(self.n_components)
        if summary.n_rows < 2:
            raise InvalidDataError(
                f"n_samples={summary.n_rows}: a mixture needs at least two rows."
            )
        if summary.n_rows < k:
            raise InvalidDataError(
                "Expected n_samples >= n_components but got n_components = "
                f"{k}, n_samples = {summary.n_rows}. Ask for fewer components."
            )
        solver = MixtureSolver(
            k=k,
            kind=self.covariance_type,
            init=self.init_params,
            # With given initial components all runs would be equal.
            n_init=1 if self._continues_last_fit else int(self.n_init),
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            reg_covar=float(self.reg_covar),
            seed=seed_of(self.random_state),
            sparse=summary.any_sparse,
            **self._initial_components(k, summary.n_features),
        )
        return Unlabelled(summary.n_features), solver

    def _initial_components(self, k: int, d: int) -> dict[str, Any]:
        """Return the initial components: the last fit's (`warm_start`), or the user's."""
        if self._continues_last_fit:
            last = (self.weights_, self.means_, self.covariances_)
            if len(self.weights_) != k or self._kind != self.covariance_type:
                raise InvalidParameterError(
                    f"warm_start=True continues with {len(self.weights_)} components of "
                    f"covariance_type={self._kind!r}, and {k} of {self.covariance_type!r} were "
                    "requested. Use a new estimator."
                )
            names = ("weights", "means", "covariances")
            # With the last bound, so that a converged mixture stops after one step.
            return {**dict(zip(names, last, strict=True)), "bound": self.lower_bound_}
        weights, means, precisions = self.weights_init, self.means_init, self.precisions_init
        kind = self.covariance_type
        return {
            "weights": None if weights is None else _check_weights_init(weights, k),
            "means": None if means is None else _check_numbers("means", means, (k, d)),
            "covariances": (
                None if precisions is None else _compute_covariances_init(precisions, kind, k, d)
            ),
        }

    def _set_fitted(self, solution: Solution, model: Unlabelled, rows: DatasetInfo) -> None:
        # The solver packs the components, then the bound and the convergence state.
        *components, (bound, converged, *_) = solution.w
        kind, d = self.covariance_type, model.n_features
        mixture = Mixture.of_packed(np.array(components), kind, d)
        factors = mixture.factors
        self.weights_, self.means_ = mixture.weights, mixture.means
        self.covariances_ = mixture.covariances
        self.precisions_cholesky_ = factors
        # Precisions of full matrices are products of their Cholesky factors.
        self.precisions_ = (
            factors @ np.swapaxes(factors, -1, -2) if kind in ("full", "tied") else factors**2
        )
        self.converged_, self.lower_bound_ = bool(converged), float(bound)
        self.lower_bounds_ = list(map(float, solution.extra.get("bounds", [bound])))
        # The covariance type of the fitted arrays, even if the parameter is changed later.
        self._kind = kind
        self.n_features_in_ = d

    # -- functions of rows ---------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """Return the index of the most probable component of each row.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of int64 of shape (n_rows,)
        """
        return self._map_function(_find_components, X, np.int64, None)

    def predict_proba(self, X: Any) -> Any:
        """Return the posterior probability of each component for each row.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of float64 of shape (n_rows, n_components)
        """
        return self._map_function(
            _compute_responsibilities, X, np.float64, len(self._fitted_mixture().weights)
        )

    def score_samples(self, X: Any) -> Any:
        """Return the log-likelihood of each row.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of float64 of shape (n_rows,)
        """
        return self._map_function(_sum_densities, X, np.float64, None)

    score = score_mean_log_likelihood

    def bic(self, X: Any, sample_weight: Any = None) -> float:
        """Return the Bayesian information criterion (lower is better); see :meth:`score`."""
        total, weight = self._sum_and_weight(X, sample_weight)
        # -2 log L + p log n (Schwarz 1978), with the weight of the rows in place of n.
        return -2 * total + self._count_parameters() * float(np.log(weight))

    def aic(self, X: Any, sample_weight: Any = None) -> float:
        """Return the Akaike information criterion (lower is better); see :meth:`score`."""
        # -2 log L + 2 p (Akaike 1974)
        return -2 * self._sum_and_weight(X, sample_weight)[0] + 2 * self._count_parameters()

    def sample(self, n_samples: int = 1) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Draw rows from the mixture.

        Parameters
        ----------
        n_samples : int, default=1

        Returns
        -------
        X : ndarray of float64 of shape (n_samples, n_features)
        y : ndarray of int64 of shape (n_samples,)
            Index of the component that each row was drawn from.
        """
        mixture = self._fitted_mixture()
        is_count = isinstance(n_samples, Integral) and not isinstance(n_samples, bool)
        if not is_count or n_samples < 1:
            raise InvalidParameterError(
                f"Invalid value for 'n_samples': {n_samples!r}. Draw at least one row."
            )
        rng = check_random_state(self.random_state)
        k, d = mixture.means.shape
        # Draw the number of rows of each component, then the rows, in scikit-learn's order.
        counts = rng.multinomial(n_samples, mixture.weights)
        rows = []
        for c, count in enumerate(counts):
            mean, covariance = mixture.means[c], mixture.covariances
            if mixture.kind in ("full", "tied"):
                component_covariance = covariance if mixture.kind == "tied" else covariance[c]
                rows.append(rng.multivariate_normal(mean, component_covariance, int(count)))
            else:
                rows.append(mean + rng.standard_normal((count, d)) * np.sqrt(covariance[c]))
        return np.vstack(rows), np.repeat(np.arange(k, dtype=np.int64), counts)

    def _count_parameters(self) -> int:
        """Return the number of free parameters of the model."""
        # A symmetric covariance has d (d + 1) / 2 free parameters. The means are added, and the
        # weights, one of which follows from the others because they sum to 1.
        k, d = self.means_.shape
        of_kind: dict[str, int] = {
            "full": k * d * (d + 1) // 2,
            "tied": d * (d + 1) // 2,
            "diag": k * d,
        }
        return int(of_kind.get(self._kind, k) + k * d + k - 1)

    def _fitted_mixture(self) -> Mixture:
        self._check_fitted()
        return Mixture(self.weights_, self.means_, self.covariances_, self._kind)

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        return self._make_function(_sum_densities)

    def _make_function(self, postprocess: Any) -> MixtureFunction:
        """Return the function of rows that applies `postprocess` to weighted log-densities."""
        mixture = self._fitted_mixture()
        # Rounded to float32, so that rows of either dtype are shifted by the same point.
        shift = round_to_float32(mixture.means.mean(axis=0))
        constants, factors = mixture.terms(self.precisions_cholesky_)
        return MixtureFunction(shift, constants, mixture.means - shift, factors, postprocess)

    def _map_function(self, postprocess: Any, X: Any, dtype: Any, n_outputs: int | None) -> Any:
        """Return a function of the rows' log-densities; lazy if X is lazy."""
        self._check_fitted(X)
        return self._map_rows(self._make_function(postprocess), X, dtype, n_outputs)
