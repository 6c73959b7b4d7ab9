"""Ordinary least squares from one reduction of the rows."""

from __future__ import annotations

from typing import Any

from daskml_dist.errors import InvalidTypeError
from daskml_dist.linear_model._least_squares import BaseLeastSquares, moments_of
from daskml_dist.linear_model._summary import summarize_fit
from daskml_dist.models.linear import LinearModel
from daskml_dist.parameters.checks import check_accepted, check_flag, check_number
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.base import Solution, Solver
from daskml_dist.solvers.least_squares import OrdinaryLeastSquares
from daskml_dist.training.dataset_info import DatasetInfo


class LinearRegression(BaseLeastSquares):
    """Ordinary least squares, in one pass over the rows.

    The Gram matrix is summed over all rows in their own dtype. If that leaves fewer than half
    the digits (nearly dependent features, or means far from zero), the rows are read again: in
    float64, about their means, and if that is not enough, multiplied by the inverse of the Cholesky
    factor found so far (shifted CholeskyQR, Fukaya et al. 2020), which is as exact as an orthogonal
    factorisation of all rows. For dependent features, the solution of least norm is returned.

    Parameters
    ----------
    fit_intercept : bool, default=True
    copy_X, n_jobs
        Accepted for scikit-learn's interface, without effect: rows are never written to, and
        workers have the threads that the cluster gives them.
    tol : float, default=1e-6
        Singular values below this share of the largest count as zero. For sparse rows, so do those
        that one pass cannot distinguish from zero (about 1e-6 of the largest for a thousand
        features).
    positive : bool, default=False
        No coefficient is negative (dense rows only).

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,), or (n_targets, n_features) for y of two dimensions
    intercept_ : float or ndarray of shape (n_targets,)
    rank_ : int
        Rank of X, centred if an intercept is fitted. Set for dense rows without `positive`, like
        the next.
    singular_ : ndarray of float64 of shape (min(n_rows, n_features),)
        Singular values of X.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.linear_model import LinearRegression
    >>> X = np.array([[1.0, 1.0], [1.0, 2.0], [2.0, 2.0], [2.0, 3.0]])
    >>> LinearRegression().fit(X, X @ [1.0, 2.0] + 3).coef_.round(6)
    array([1., 2.])
    """

    _flat_column = False
    _accepted = ("copy_X", "n_jobs")
    summary = summarize_fit

    def __init__(
        self,
        *,
        # In scikit-learn's order; `copy_X` and `n_jobs` have no effect.
        fit_intercept: bool = True,
        copy_X: bool = True,
        tol: float = 1e-6,
        n_jobs: int | None = None,
        positive: bool = False,
        # Reports of the fit, and where it runs.
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.fit_intercept = fit_intercept
        self.copy_X = copy_X
        self.tol = tol
        self.n_jobs = n_jobs
        self.positive = positive
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = not self.positive
        return tags

    def _clear_fitted(self) -> None:
        # Sparse rows and `positive` give no singular values: those of an earlier fit would remain.
        for name in ("rank_", "singular_"):
            self.__dict__.pop(name, None)

    def _set_fitted(self, solution: Solution, model: LinearModel, rows: DatasetInfo) -> None:
        super()._set_fitted(solution, model, rows)
        # Only if the solver has computed singular values: for dense rows without `positive`.
        if "rank" in solution.extra:
            self.rank_, self.singular_ = solution.extra["rank"], solution.extra["singular"]

    def _check_params(self) -> None:
        check_accepted(self)
        check_flag("fit_intercept", self.fit_intercept)
        check_flag("positive", self.positive)
        check_number("tol", self.tol)

    def _problem(self, rows: DatasetInfo) -> tuple[LinearModel, Solver]:
        model = self._model(rows)
        moments = moments_of(rows)
        # As in scikit-learn, whose error begins with these words.
        if self.positive and moments["sparse"]:
            raise InvalidTypeError(
                "Sparse data was passed for X, but dense data is required. positive=True needs "
                "dense rows: pass X.toarray() (X.map_blocks(...) of a Dask "
                "Array), or use Ridge(positive=True)."
            )
        return model, OrdinaryLeastSquares(
            tol=float(self.tol),
            positive=bool(self.positive),
            mean_weight=rows.weight_sum / rows.summary.n_rows,
            **moments,
        )
