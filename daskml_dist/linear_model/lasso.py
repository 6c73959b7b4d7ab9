"""`Lasso`."""

from __future__ import annotations

from typing import Any

from daskml_dist.linear_model.elastic_net import ElasticNet
from daskml_dist.parameters.run import Run

__all__ = ["Lasso"]


class Lasso(ElasticNet):
    """Linear regression with an l1 penalty, in one pass over the rows.

    Minimises half the mean squared error plus ``alpha * |w|_1``: an
    :class:`~daskml_dist.linear_model.ElasticNet` of which all is l1.

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

    l1_ratio = 1.0

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        fit_intercept: bool = True,
        precompute: Any = False,
        copy_X: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-4,
        warm_start: bool = False,
        positive: bool = False,
        random_state: Any = None,
        selection: str = "cyclic",
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
