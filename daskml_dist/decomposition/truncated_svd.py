"""`TruncatedSVD`."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.decomposition._base import Components
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.models.row_models import Unlabelled
from daskml_dist.parameters.checks import check_count, check_number, check_one_of, seed_of
from daskml_dist.parameters.run import Run
from daskml_dist.solvers import Solution, Solver
from daskml_dist.solvers.principal_components import CovarianceEigenSolver, PowerIterations
from daskml_dist.training.plan import DatasetInfo

__all__ = ["TruncatedSVD"]

#: Features up to which all products of features are made: it is quick, and exact.
_FEW = 512


class TruncatedSVD(Components):
    """Largest singular values of all rows, which stay as they are: sparse ones are not centred.

    Of few features one pass makes their products; of more, each pass multiplies the rows by few
    vectors. Nothing of the size of ``n_features ** 2`` is made, so that hashed rows of any width
    can be projected.

    Parameters
    ----------
    n_components : int, default=2
    algorithm : {"randomized", "arpack"}, default="randomized"
        Power iterations from drawn vectors, or ARPACK, a pass for each of its products. Up to 512
        features either is exact, from one pass.
    n_iter : int, default=5
        Power iterations; fewer passes that keep all their vectors find as much.
    n_oversamples : int, default=10
        Vectors of power iterations beside those asked for.
    power_iteration_normalizer : {"auto", "QR", "LU", "none"}, default="auto"
        Always QR.
    random_state : int, RandomState instance or None, default=None
        Of drawn vectors.
    tol : float, default=0.0
        Of ARPACK.
    run, device, callbacks
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

    Attributes
    ----------
    components_ : ndarray of float64 of shape (n_components, n_features)
        The largest entry of each is positive.
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarrays of float64 of \
shape (n_components,)
    n_features_in_, feature_names_in_, history_
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

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
        n_rows, d, k = rows.survey.n_rows, rows.survey.n_features, int(self.n_components)
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
        if d <= _FEW:
            return Unlabelled(d), CovarianceEigenSolver(k, double=True, centred=False)
        return Unlabelled(d), PowerIterations(
            n_components=k,
            n_oversamples=int(self.n_oversamples),
            n_iter=int(self.n_iter) + 1,  # scikit-learn makes another, on the other side
            centred=False,
            seed=seed_of(self.random_state),
            lanczos=lanczos,
            tol=float(self.tol),
        )

    def _set_fitted(self, solution: Solution, model: Unlabelled, rows: DatasetInfo) -> None:
        k, found = int(self.n_components), solution.extra
        self.components_ = solution.w[:k].copy()
        values, variance = found["values"][:k], found["variance"]
        self.singular_values_ = np.sqrt(values * rows.weight_sum)
        # Projections have a mean, which is no part of their variance.
        means = self.components_ @ found["mean"]
        self.explained_variance_ = np.maximum(values - means**2, 0.0)
        self.explained_variance_ratio_ = (
            self.explained_variance_ / variance if variance > 0 else np.zeros(k)
        )
        self.n_features_in_ = model.n_features
