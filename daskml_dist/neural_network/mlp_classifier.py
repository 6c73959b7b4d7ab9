"""`MLPClassifier`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if

from daskml_dist.estimators.classifier import BaseClassifier
from daskml_dist.losses.base import Loss
from daskml_dist.losses.margin import LogLoss
from daskml_dist.models.mlp import MLP
from daskml_dist.neural_network._mlp import BaseMLP, steps_alone
from daskml_dist.optimizers.base import Optimizer
from daskml_dist.parameters.run import Run
from daskml_dist.policies.base import Pipeline, Policy
from daskml_dist.privacy import DP
from daskml_dist.schedules import Schedule
from daskml_dist.training.dataset_info import DatasetInfo


class MLPClassifier(BaseClassifier, BaseMLP):
    """Multi-layer perceptron for classification, with one or several labels per row.

    It has scikit-learn's parameters and attributes, and supports Dask collections and any policy.

    Parameters
    ----------
    alpha : float, default=0.0001
        Strength of the l2 penalty of the weights, divided by the number of rows in a batch (with
        ``"lbfgs"``, of all rows), as in scikit-learn. Intercepts are not penalised.
    beta_1, beta_2, epsilon : float, default=0.9, 0.999, 1e-8
        Parameters of Adam.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        For several labels per row, the indices of the columns of y.

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
        return LogLoss()

    def _n_outputs(self, rows: DatasetInfo) -> int:
        assert rows.classes is not None
        n_classes = len(rows.classes)
        # Two classes need one output (the log odds); several labels need one output each.
        return 1 if n_classes == 2 and not self._several else n_classes

    def _out_activation(self, model: MLP) -> str:
        # The labels of a row are independent of each other; classes exclude each other.
        return "logistic" if model.is_multi_output or model.n_outputs == 1 else "softmax"

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
        """Make one pass over more rows, continuing from the last state.

        Parameters
        ----------
        X, y, sample_weight, policy, client
            As in :meth:`fit`.
        classes : array-like of shape (n_classes,), optional
            All labels that will ever occur; needed in the first call.

        Returns
        -------
        self
        """
        classes = self._all_classes(classes, not hasattr(self, "classes_"))
        self._fit_one_pass(X, y, sample_weight, policy, client, classes)
        return self

    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities of the classes, or of each of several labels.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows, n_classes)
        """
        self._check_fitted(X)
        write = _write_label_proba if self._several else LogLoss().write_proba
        return self._map_raw_predictions(write, X, self._state.w.dtype, len(self.classes_))

    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithm of :meth:`predict_proba`, with the same parameters and shape."""
        return np.log(self.predict_proba(X))


def _write_label_proba(raw: NDArray[Any], out: NDArray[Any]) -> None:
    """Write the probability of each of several labels to `out`."""
    # Each raw output is the log odds of two classes, the second of which is the label.
    out[...] = LogLoss().predict_proba(raw.ravel())[:, 1].reshape(out.shape)
