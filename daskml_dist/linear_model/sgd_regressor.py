"""`SGDRegressor`."""

from __future__ import annotations

from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.linear.base import LinearRegressor, densify, sparsify
from daskml_dist.estimators.linear.sgd import BaseSGD, set_loss_epsilon
from daskml_dist.estimators.regressor import partial_fit
from daskml_dist.losses import AFT, Cox, get_loss
from daskml_dist.losses.base import Loss
from daskml_dist.optimizers.base import Optimizer
from daskml_dist.parameters.run import Run
from daskml_dist.policies.base import Policy
from daskml_dist.privacy import DP
from daskml_dist.schedules import Schedule


class SGDRegressor(LinearRegressor, BaseSGD):
    """Linear regression trained by distributed stochastic gradient descent.

    Parameters
    ----------
    loss : str or Loss, default="squared_error"
        ``"squared_error"``, ``"huber"``, ``"epsilon_insensitive"``,
        ``"squared_epsilon_insensitive"``, ``"quantile"``, or with a log link ``"poisson"``,
        ``"gamma"`` or ``"tweedie"``, or an object with other parameters such as ``Quantile(0.9)``.
        With :class:`~daskml_dist.losses.AFT` y holds times, some of them censored.
    fit_intercept : bool, default=True
        The intercept begins near the targets: at their mean, with losses that resist outliers at a
        rough median, and with a log link at the logarithm of the mean.
    epsilon : float, default=0.1
        Threshold of ``"huber"``, ``"epsilon_insensitive"`` and ``"squared_epsilon_insensitive"`` by
        name, in the unit of the target.
    learning_rate : float, str or Schedule, default="auto"
        ``"auto"`` as in :class:`~daskml_dist.linear_model.SGDClassifier`; `tol` is then relative to
        the loss of the best constant prediction. If a fit continues another, it is the
        optimizer's own rate; for :meth:`partial_fit` and :meth:`stream` with Adagrad half of the
        classifier's. If the optimizer is adaptive, these rates are in units of the standard
        deviation of the targets of the first call in which they differ. See
        :mod:`daskml_dist.schedules`, and :class:`~daskml_dist.linear_model.SGDClassifier` for
        ``"adaptive"``.
    power_t : float, default=0.25
        Exponent of ``"invscaling"``: the rate of step t is ``eta0 / t ** power_t``.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,), or (n_targets, n_features) for several targets
    intercept_ : ndarray of shape (1,) or (n_targets,)
    n_iter_, n_features_in_, feature_names_in_, history_, t_
        As in :class:`~daskml_dist.linear_model.SGDClassifier`, whose notes also apply here.

    Notes
    -----
    With several targets (`y` of several columns, or named by a list) each target makes the steps of
    a separate fit: with the same batches, but its own start and rates. Only the end is common: with
    ``learning_rate="auto"`` the loss in ``history_`` is the sum over the targets of each one's loss
    divided by that of its best constant prediction, and `tol` applies to this sum, so that no
    target ends before its separate fit would have settled. Otherwise it is the sum of their losses.
    ``early_stopping`` uses the mean of their R^2.

    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> from daskml_dist.linear_model import SGDRegressor
    >>> X, y = make_regression(200, 3, noise=1.0, random_state=0)
    >>> reg = SGDRegressor(random_state=0, max_iter=50, tol=None).fit(X, y / y.std())
    >>> reg.score(X, y / y.std()) > 0.9
    True
    """

    _multi_output = True
    densify = densify
    sparsify = sparsify

    def __init__(
        self,
        # The objective: loss, penalty and intercept.
        loss: str | Loss = "squared_error",
        *,
        penalty: str | None = "l2",
        alpha: float = 0.0001,
        l1_ratio: float | None = 0.15,
        fit_intercept: bool = True,
        # Passes over the rows, and when they end; `epsilon` belongs to the loss.
        max_iter: int = 20,
        tol: float | None = 1e-3,
        shuffle: bool = True,
        verbose: int = 0,
        epsilon: float = 0.1,
        random_state: Any = None,
        # The size of steps.
        learning_rate: float | str | Schedule = "auto",
        eta0: float | None = None,
        power_t: float = 0.25,
        # Rows held out, on whose score the fit may end; then the rest of scikit-learn's parameters.
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        warm_start: bool = False,
        average: bool | int = False,
        # Beyond scikit-learn: how steps are made, by which workers, and on which device.
        batch_size: int | str | None = "auto",
        optimizer: str | Optimizer = "adagrad",
        policy: str | Policy = "sync",
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
        checkpoint: Any = None,
        privacy: DP | None = None,
    ) -> None:
        self.loss = loss
        self.penalty = penalty
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.shuffle = shuffle
        self.verbose = verbose
        self.epsilon = epsilon
        self.random_state = random_state
        self.learning_rate = learning_rate
        self.eta0 = eta0
        self.power_t = power_t
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.average = average
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.policy = policy
        self.run = run
        self.device = device
        self.callbacks = callbacks
        self.checkpoint = checkpoint
        self.privacy = privacy

    def _loss(self) -> Loss:
        if isinstance(self.loss, Cox):
            raise InvalidParameterError(
                "Cox's partial likelihood involves all rows at risk, but a step sees only a "
                "batch. Use HistGradientBoostingRegressor(loss=Cox()), or loss=AFT() here."
            )
        loss = get_loss(self.loss, "regression", censored=True)
        return set_loss_epsilon(loss, self.loss, self.epsilon)

    @property
    def _survival_loss(self) -> Any:
        return self.loss if isinstance(self.loss, AFT) else None

    partial_fit = partial_fit
