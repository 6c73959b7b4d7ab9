"""`MLPClassifier`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if

from daskml_dist.estimators.classifier import BaseClassifier
from daskml_dist.losses import LogLoss, Loss
from daskml_dist.models.mlp import MLP
from daskml_dist.neural_network._mlp import BaseMLP, steps_alone
from daskml_dist.optimizers import Optimizer
from daskml_dist.parameters.run import Run
from daskml_dist.policies import Pipeline, Policy
from daskml_dist.schedules import Schedule
from daskml_dist.training.dataset_info import DatasetInfo

__all__ = ["MLPClassifier"]


class MLPClassifier(BaseClassifier, BaseMLP):
    """Multi-layer perceptron for classification, of one label a row or several.

    scikit-learn's parameters and attributes, on rows anywhere, under every policy.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(100,)
        Units of each hidden layer; ``()``: none.
    activation : {"identity", "logistic", "tanh", "relu"}, default="relu"
        Of the hidden layers.
    solver : {"adam", "sgd", "lbfgs"}, default="adam"
        The first two step along batches under a `policy`; ``"lbfgs"`` asks for the loss and the
        gradient of all rows, round by round (Sandblaster).
    alpha : float, default=0.0001
        Strength of the l2 penalty of the weights, over the rows of a batch (of ``"lbfgs"``, over
        all rows), as in scikit-learn. Intercepts are not penalised.
    batch_size : int, "auto" or None, default="auto"
        Rows of one step of the parameters, over all lanes: lanes that step together share them,
        while under ``"ssp"``, ``"async"`` and ``"hogwild"`` each lane's push has so many.
        ``"auto"`` is 200, and 16 a lane at least; None takes all rows.
    learning_rate : {"constant", "invscaling", "adaptive"}, default="constant"
        With ``solver="sgd"``. ``"invscaling"`` divides `learning_rate_init` by the number of the
        step to the power of `power_t`; ``"adaptive"`` divides the rate by five each time that the
        fit would have ended, and ends below 1e-6.
    learning_rate_init : float, default=0.001
    power_t : float, default=0.5
    max_iter : int, default=200
        Passes over the data at most; of ``"lbfgs"``, iterations.
    shuffle : bool, default=True
        Visit the rows in a new order in each pass.
    random_state : int, RandomState or None, default=None
        Decides the initial parameters (an int: those of scikit-learn), the order of the rows and
        the rows held out.
    tol : float, default=1e-4
        The fit ends once the loss, or the validation score, has not improved by `tol` for more than
        `n_iter_no_change` passes. Of ``"lbfgs"``, the largest component of the gradient.
    verbose : int, default=0
    warm_start : bool, default=False
        Go on from the last fit.
    momentum : float, default=0.9
        With ``solver="sgd"``.
    nesterovs_momentum : bool, default=True
        With ``solver="sgd"`` and a momentum.
    early_stopping : bool, default=False
        Hold out rows and stop on their score; the parameters are those of the last pass.
    validation_fraction : float, default=0.1
    beta_1, beta_2, epsilon : float, default=0.9, 0.999, 1e-8
        Of Adam.
    n_iter_no_change : int, default=10
        ``np.inf``: make all `max_iter` passes.
    max_fun : int, default=15000
        Evaluations of ``"lbfgs"`` at most.
    policy : str or Policy, default="allreduce"
        How updates meet; see :mod:`daskml_dist.policies`. ``fit(..., policy=...)`` overrides it.
    optimizer : str or Optimizer, default=None
        In place of the solver's; see :mod:`daskml_dist.optimizers`.
    schedule : float, str or Schedule, default=None
        In place of `learning_rate`; a name starts from `learning_rate_init`. See
        :mod:`daskml_dist.schedules`.
    pipeline : Pipeline or None, default=None
        Layers spread over workers; see :class:`daskml_dist.policies.Pipeline`.
    run, device, callbacks, checkpoint
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Of several labels a row, the numbers of the columns of y.
    coefs_ : list of ndarray of shape (n_in, n_out)
        Weights of each layer.
    intercepts_ : list of ndarray of shape (n_out,)
    loss_ : float
        Mean loss of the rows in the last pass, without the penalty; of ``"lbfgs"`` with it.
    best_loss_ : float or None
        The least of `loss_curve_`; None with `early_stopping`.
    loss_curve_ : list of float
        Mean loss in each pass, without the penalty.
    validation_scores_ : list of float, or None
        Score of the held-out rows after each pass; None without `early_stopping`.
    best_validation_score_ : float or None
    n_iter_ : int
        Passes made; of ``"lbfgs"``, iterations.
    n_layers_ : int
        Layers, input and output among them.
    n_outputs_ : int
    out_activation_ : str
    t_ : int
        Rows that the parameters were trained on.
    n_features_in_, feature_names_in_, history_
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from daskml_dist.neural_network import MLPClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = MLPClassifier((16,), max_iter=100, learning_rate_init=0.01, random_state=0).fit(X, y)
    >>> clf.score(X, y) > 0.9
    True
    """

    _multi_label = True

    def __init__(
        self,
        hidden_layer_sizes: Any = (100,),
        activation: str = "relu",
        *,
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
        momentum: float = 0.9,
        nesterovs_momentum: bool = True,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        n_iter_no_change: int = 10,
        max_fun: int = 15_000,
        policy: str | Policy = "allreduce",
        optimizer: str | Optimizer | None = None,
        schedule: float | str | Schedule | None = None,
        pipeline: Pipeline | None = None,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
        checkpoint: Any = None,
    ) -> None:
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

    def _loss(self) -> Loss:
        return LogLoss()

    def _n_outputs(self, rows: DatasetInfo) -> int:
        assert rows.classes is not None
        n_classes = len(rows.classes)
        return 1 if n_classes == 2 and not self._several else n_classes

    def _out_activation(self, model: MLP) -> str:
        return "logistic" if model.several or model.n_outputs == 1 else "softmax"

    @available_if(steps_alone)  # type: ignore[untyped-decorator]
    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        classes: Any = None,
        *,
        policy: str | Policy | None = None,
        client: Any = None,
    ) -> Self:
        """Make one pass over more rows, going on from the last state.

        Parameters
        ----------
        X, y, sample_weight, policy, client
            As in :meth:`fit`.
        classes : array-like of shape (n_classes,), optional
            All labels that will ever come; needed in the first call.

        Returns
        -------
        self
        """
        classes = self._all_classes(classes, not hasattr(self, "classes_"))
        self._fit_one_pass(X, y, sample_weight, policy, client, classes)
        return self

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes, or of each of several labels.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows, n_classes)
        """
        self._check_fitted(X)
        write = _write_each if self._several else LogLoss().write_proba
        return self._map_raw_predictions(write, X, self._state.w.dtype, len(self.classes_))

    def predict_log_proba(self, X: Any) -> Any:
        """Logarithm of :meth:`predict_proba`, with the same parameters and shape."""
        return np.log(self.predict_proba(X))


def _write_each(raw: NDArray[Any], out: NDArray[Any]) -> None:
    """Write the probability of each of several labels."""
    out[...] = LogLoss().predict_proba(raw.ravel())[:, 1].reshape(out.shape)
