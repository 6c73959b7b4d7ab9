"""`ElasticNet` and `Lasso`: least squares with an l1 penalty, by coordinate descent.

One pass sums the Gram matrix; coordinate descent with covariance updates needs only this matrix (J.
Friedman, T. Hastie and R. Tibshirani, "Regularization paths for generalized linear models via
coordinate descent", 2010, section 2.2).
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.linear_model._least_squares import BaseLeastSquares, moments_of
from daskml_dist.models.linear import LinearModel
from daskml_dist.parameters.checks import (
    check_accepted,
    check_count,
    check_flag,
    check_number,
    seed_of,
)
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.base import Solution, Solver
from daskml_dist.solvers.least_squares import CoordinateDescent
from daskml_dist.training.dataset_info import DatasetInfo


class ElasticNet(BaseLeastSquares):
    """Linear regression with an l1 and a squared-norm penalty, in one pass over the rows.

    Minimises half the mean squared error plus ``alpha * l1_ratio * |w|_1`` and
    ``alpha * (1 - l1_ratio) / 2 * |w|^2``, by coordinate descent on the Gram matrix (Friedman,
    Hastie and Tibshirani 2010). The intercept is not penalised.

    Parameters
    ----------
    alpha : float, default=1.0
        Strength of the penalty.
    l1_ratio : float, default=0.5
        Share of l1.
    fit_intercept : bool, default=True
    precompute, copy_X
        Accepted for scikit-learn's interface, without effect: the Gram matrix is always computed,
        and rows are never written to.
    max_iter : int, default=1000
        Most cycles over the features; none of them reads a row.
    tol : float, default=1e-4
        Coordinate descent stops once the duality gap is at most `tol` times the mean squared
        (centred) target.
    warm_start : bool, default=False
        Start from the last fit's coefficients instead of from zero.
    positive : bool, default=False
        No coefficient is negative.
    random_state : int, RandomState or None, default=None
        Seed of the order of the features, for ``selection="random"``.
    selection : {"cyclic", "random"}, default="cyclic"
        Order in which coefficients are updated.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,), or (n_targets, n_features) for more than one target
    sparse_coef_ : CSR matrix of shape (1, n_features) or (n_targets, n_features)
        `coef_` as a sparse matrix.
    intercept_ : float or ndarray of shape (n_targets,)
    dual_gap_ : float or ndarray of shape (n_targets,)
        Duality gap of the mean objective.
    n_iter_ : int or list of int
        Cycles of each target.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.linear_model import ElasticNet
    >>> X = np.array([[1.0, 1.0], [1.0, 2.0], [2.0, 2.0], [2.0, 3.0]])
    >>> ElasticNet(alpha=0.1).fit(X, X @ [1.0, 2.0] + 3).coef_.round(2)
    array([0.83, 1.8 ])
    """

    _accepted: ClassVar[tuple[str, ...]] = ("precompute", "copy_X")

    def __init__(
        self,
        # The penalty.
        alpha: float = 1.0,
        *,
        l1_ratio: float = 0.5,
        fit_intercept: bool = True,
        # Coordinate descent; `precompute` and `copy_X` have no effect.
        precompute: Any = False,
        max_iter: int = 1000,
        copy_X: bool = True,
        tol: float = 1e-4,
        warm_start: bool = False,
        positive: bool = False,
        random_state: Any = None,
        selection: str = "cyclic",
        # Reports of the fit, and where it runs.
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.precompute = precompute
        self.max_iter = max_iter
        self.copy_X = copy_X
        self.tol = tol
        self.warm_start = warm_start
        self.positive = positive
        self.random_state = random_state
        self.selection = selection
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        check_input: bool = True,
        *,
        client: Any = None,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X, y, sample_weight, client
            As in :meth:`daskml_dist.linear_model.SGDClassifier.fit`. A weight of k equals a row
            repeated k times; `y` may have several columns.
        check_input : bool, default=True
            Accepted for scikit-learn's interface, without effect: rows are always checked.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
            Before any pass, naming the remedy (NaN and infinity: during the first pass).
        TrainingError
            When the fit cannot continue.
        """
        return super().fit(X, y, sample_weight, client=client)

    @property
    def sparse_coef_(self) -> Any:
        """Return `coef_` as a sparse matrix."""
        return sparse.csr_matrix(self.coef_)

    def _set_n_iter(self, solution: Solution) -> None:
        """Set `n_iter_` and `dual_gap_`: numbers for one target, sequences for several."""
        gaps, n_iter = solution.extra["dual_gap"], solution.extra["n_iter"]
        if len(gaps) == 1:
            self.dual_gap_, self.n_iter_ = gaps[0], n_iter[0]
        else:
            self.dual_gap_, self.n_iter_ = np.array(gaps), n_iter

    def _check_params(self) -> None:
        check_accepted(self)
        check_flag("fit_intercept", self.fit_intercept)
        check_flag("positive", self.positive)
        check_number("alpha", self.alpha)
        check_number("tol", self.tol)
        check_number("l1_ratio", self.l1_ratio, lambda v: 0 <= v <= 1, "from 0 to 1")
        check_count("max_iter", self.max_iter)
        if self.selection not in ("cyclic", "random"):
            raise InvalidParameterError(f'selection={self.selection!r}: use "cyclic" or "random".')
        # The same words as scikit-learn's warning.
        if self.alpha == 0:
            warnings.warn(
                "With alpha=0, this algorithm does not converge well. You are advised to use the "
                "LinearRegression estimator.",
                stacklevel=user_stack_level(),
            )

    def _problem(self, rows: DatasetInfo) -> tuple[LinearModel, Solver]:
        # The objective is a mean over the rows, whose weights the fit scales to a mean of 1: unlike
        # the sum of `Ridge`, it needs no factor for `alpha`.
        model = self._model(rows)
        return model, CoordinateDescent(
            alpha=float(self.alpha),
            l1_ratio=float(self.l1_ratio),
            n_rows=rows.summary.n_rows,
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            positive=bool(self.positive),
            selection=self.selection,
            seed=seed_of(self.random_state),
            **moments_of(rows),
        )

    def _starting_parameters(self, model: LinearModel, rows: DatasetInfo) -> NDArray[Any] | None:
        # The optimum is the same from any start, but needs fewer cycles from a near one.
        return self._find_warm_start(model)


class Lasso(ElasticNet):
    """Linear regression with an l1 penalty, in one pass over the rows.

    Minimises half the mean squared error plus ``alpha * |w|_1``: an
    :class:`~daskml_dist.linear_model.ElasticNet` with ``l1_ratio=1``.

    Attributes
    ----------
    coef_, sparse_coef_, intercept_, dual_gap_, n_iter_
        As in :class:`~daskml_dist.linear_model.ElasticNet`.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.linear_model import Lasso
    >>> X = np.array([[1.0, 1.0], [1.0, 2.0], [2.0, 2.0], [2.0, 3.0]])
    >>> Lasso(alpha=0.1).fit(X, X @ [1.0, 2.0] + 3).coef_.round(2)
    array([0.6, 2. ])
    """

    # A class attribute, not a parameter: `ElasticNet` reads it as `self.l1_ratio`.
    l1_ratio = 1.0

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        fit_intercept: bool = True,
        # Coordinate descent, as in `ElasticNet`.
        precompute: Any = False,
        copy_X: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-4,
        warm_start: bool = False,
        positive: bool = False,
        random_state: Any = None,
        selection: str = "cyclic",
        # Reports of the fit, and where it runs.
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.precompute = precompute
        self.copy_X = copy_X
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.positive = positive
        self.random_state = random_state
        self.selection = selection
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks
