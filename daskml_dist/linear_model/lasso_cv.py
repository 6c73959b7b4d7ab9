"""`LassoCV`."""

from __future__ import annotations

from typing import Any

from daskml_dist.linear_model.elastic_net_cv import ElasticNetCV
from daskml_dist.parameters.run import Run

__all__ = ["LassoCV"]


class LassoCV(ElasticNetCV):
    """Lasso whose penalty is chosen by cross-validation, in two passes over the rows.

    An :class:`~daskml_dist.linear_model.ElasticNetCV` of which all is l1.

    Attributes
    ----------
    alpha_, alphas_, mse_path_, coef_, intercept_, dual_gap_, n_iter_
        As in :class:`~daskml_dist.linear_model.ElasticNetCV`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from daskml_dist.linear_model import LassoCV
    >>> X, y = load_diabetes(return_X_y=True)
    >>> LassoCV().fit(X, y).mse_path_.shape
    (100, 5)
    """

    _has_ratio = False
    l1_ratio = 1.0

    def __init__(
        self,
        *,
        eps: float = 1e-3,
        alphas: Any = 100,
        fit_intercept: bool = True,
        precompute: Any = "auto",
        max_iter: int = 1000,
        tol: float = 1e-4,
        copy_X: bool = True,
        cv: Any = None,
        verbose: int = 0,
        n_jobs: int | None = None,
        positive: bool = False,
        random_state: Any = None,
        selection: str = "cyclic",
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.eps = eps
        self.alphas = alphas
        self.fit_intercept = fit_intercept
        self.precompute = precompute
        self.max_iter = max_iter
        self.tol = tol
        self.copy_X = copy_X
        self.cv = cv
        self.verbose = verbose
        self.n_jobs = n_jobs
        self.positive = positive
        self.random_state = random_state
        self.selection = selection
        self.run = run
        self.device = device
        self.callbacks = callbacks
