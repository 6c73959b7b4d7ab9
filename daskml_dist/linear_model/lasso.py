"""`Lasso`."""

from __future__ import annotations

from typing import Any

from daskml_dist._run import Run
from daskml_dist.linear_model.elastic_net import ElasticNet

__all__ = ["Lasso"]


class Lasso(ElasticNet):
    """Linear regression with an l1 penalty, in one pass over the rows.

    Minimises half the mean squared error plus ``alpha * |w|_1``: an
    :class:`~daskml_dist.linear_model.ElasticNet` of which all is l1.

    Parameters
    ----------
    alpha : float, default=1.0
        Strength of the penalty.
    fit_intercept : bool, default=True
    max_iter : int, default=1000
        Cycles over the features at most; none of them reads a row.
    tol : float, default=1e-4
        Coordinate descent stops once the duality gap is at most `tol` times the mean squared
        (centred) target.
    warm_start : bool, default=False
        Start from the last fit's coefficients instead of from zero.
    positive : bool, default=False
        No coefficient is negative.
    random_state : int, RandomState or None, default=None
        Of the features drawn, for ``selection="random"``.
    selection : {"cyclic", "random"}, default="cyclic"
        Which feature comes next.
    verbose : int, default=0
        Show progress.
    run, device, callbacks
        As in :class:`~daskml_dist.linear_model.SGDRegressor`.

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
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Only where X had string column names.
    history_ : History
        One record a pass over the data.

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
