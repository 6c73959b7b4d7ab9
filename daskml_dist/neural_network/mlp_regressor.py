"""Multi-layer perceptron for regression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if

from daskml_dist.estimators.regressor import partial_fit
from daskml_dist.losses import get_loss
from daskml_dist.losses.base import Loss
from daskml_dist.models.mlp import MLP
from daskml_dist.neural_network._base import NetworkRegressor
from daskml_dist.neural_network._mlp import BaseMLP, steps_alone
from daskml_dist.optimizers.base import Optimizer
from daskml_dist.parameters.run import Run
from daskml_dist.policies.base import Pipeline, Policy
from daskml_dist.privacy import DP
from daskml_dist.schedules import Schedule
from daskml_dist.training.dataset_info import DatasetInfo


class MLPRegressor(NetworkRegressor, BaseMLP):
    """Multi-layer perceptron for regression, with one target or several.

    It has scikit-learn's parameters and attributes, and supports Dask collections and any policy.

    Parameters
    ----------
    loss : str or Loss, default="squared_error"
        As in :class:`~daskml_dist.linear_model.SGDRegressor`.
    alpha : float, default=0.0001
        Strength of the l2 penalty of the weights, divided by the number of rows in a batch (with
        ``"lbfgs"``, of all rows), as in scikit-learn. Intercepts are not penalised.
    beta_1, beta_2, epsilon : float, default=0.9, 0.999, 1e-8
        Parameters of Adam.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.neural_network import MLPRegressor
    >>> X = np.random.default_rng(0).normal(size=(500, 2))
    >>> y = np.tanh(X[:, 0]) * X[:, 1]
    >>> reg = MLPRegressor(hidden_layer_sizes=(32,), learning_rate_init=0.01, random_state=0)
    >>> reg.fit(X, y).score(X, y) > 0.9
    True
    """

    def __init__(
        self,
        # The loss, at the same position as in scikit-learn.
        loss: str | Loss = "squared_error",
        # The network.
        hidden_layer_sizes: Any = (100,),
        activation: str = "relu",
        *,
        # The optimisation, in scikit-learn's order of parameters.
        solver: str = "adam",
        alpha: float = 0.0001,
        batch_size: int | str | None = "auto",
        learning_rate: str = "constant",
        learning_rate_init: float = 0.001,
        power_t: float = 0.5,
        max_iter: int = 200,
        shuffle: bool = True,
        random_state: Any = None,
        tol: float = 1e-4,
        verbose: int = 0,
        warm_start: bool = False,
        # Only for solver="sgd".
        momentum: float = 0.9,
        nesterovs_momentum: bool = True,
        # For both: held-out rows, whose score may end the fit.
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        # Only for solver="adam".
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        # For "sgd" and "adam": number of passes without progress after which the fit ends.
        n_iter_no_change: int = 10,
        # Only for solver="lbfgs": largest number of evaluations of the loss.
        max_fun: int = 15_000,
        # Not in scikit-learn: how workers share the steps, and replacements of the solver's
        # optimizer and schedule.
        policy: str | Policy = "allreduce",
        optimizer: str | Optimizer | None = None,
        schedule: float | str | Schedule | None = None,
        pipeline: Pipeline | None = None,
        # Where the fit runs, reporting and saving.
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
        checkpoint: Any = None,
        privacy: DP | None = None,
    ) -> None:
        self.loss = loss
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.solver = solver
        self.alpha = alpha
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.learning_rate_init = learning_rate_init
        self.power_t = power_t
        self.max_iter = max_iter
        self.shuffle = shuffle
        self.random_state = random_state
        self.tol = tol
        self.verbose = verbose
        self.warm_start = warm_start
        self.momentum = momentum
        self.nesterovs_momentum = nesterovs_momentum
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.n_iter_no_change = n_iter_no_change
        self.max_fun = max_fun
        self.policy = policy
        self.optimizer = optimizer
        self.schedule = schedule
        self.pipeline = pipeline
        self.run = run
        self.device = device
        self.callbacks = callbacks
        self.checkpoint = checkpoint
        self.privacy = privacy

    def _loss(self) -> Loss:
        return get_loss(self.loss, "regression")

    def _inverse_link(self) -> Callable[[NDArray[Any]], NDArray[Any]]:
        return self._prediction_loss.inverse_link

    def _n_outputs(self, rows: DatasetInfo) -> int:
        self._loss().check_target(rows.summary.target_range)
        return rows.summary.n_targets or 1

    def _out_activation(self, model: MLP) -> str:
        # The inverse link is either the identity or the exponential: exp(1) is not 1.
        link = self._loss().inverse_link
        return "identity" if link(np.ones(1))[0] == 1 else "exp"

    partial_fit = available_if(steps_alone)(partial_fit)
