"""`SGDClassifier`."""

from __future__ import annotations

from typing import Any, Self

from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.classifier import partial_fit
from daskml_dist.estimators.linear.base import LinearClassifier, densify, sparsify
from daskml_dist.estimators.linear.sgd import BaseSGD, set_loss_epsilon
from daskml_dist.losses import get_loss
from daskml_dist.losses.base import LABEL_LOSS_NAMES, Loss, label_loss_of
from daskml_dist.optimizers.base import Optimizer
from daskml_dist.parameters.run import Run
from daskml_dist.policies.base import Policy
from daskml_dist.privacy import DP
from daskml_dist.schedules import Schedule


class SGDClassifier(LinearClassifier, BaseSGD):
    """Linear classifier trained by distributed stochastic gradient descent.

    Parameters
    ----------
    loss : str or Loss, default="log_loss"
        ``"log_loss"`` (softmax for more than two classes), ``"hinge"``, ``"squared_hinge"``,
        ``"modified_huber"`` or ``"perceptron"`` (one against the rest). Also the losses of
        regression ``"squared_error"``, ``"huber"``, ``"epsilon_insensitive"`` and
        ``"squared_epsilon_insensitive"``, of targets -1 and +1.
    fit_intercept : bool, default=True
    epsilon : float, default=0.1
        Threshold of ``"huber"``, ``"epsilon_insensitive"`` and ``"squared_epsilon_insensitive"``.
    n_jobs : int or None, default=None
        Accepted for scikit-learn's interface, without effect: workers have the threads that the
        cluster gives them.
    learning_rate : float, str or Schedule, default="auto"
        ``"auto"``: a pilot on a sample of the rows finds the start of :meth:`fit` and a suitable
        constant rate, for any units of the features; see :doc:`/defaults`. A fit that continues
        another (`warm_start`), or starts at `coef_init`, has the optimizer's own rate.
        :meth:`partial_fit` and :meth:`stream` with Adagrad have a rate for the size of the first
        rows: 4 / (1 + sum of the magnitudes of a row's entries), at most 0.5. With a number, a
        schedule, or an `eta0`, a fit starts from zero. See :mod:`daskml_dist.schedules`.
        ``"adaptive"`` keeps a rate while the loss (or the validation score) improves by `tol`,
        then continues with a fifth of it, down to 1e-6. scikit-learn's ``"pa1"`` and ``"pa2"``
        are refused: they make a step for each single row.
    power_t : float, default=0.5
        Exponent of ``"invscaling"``: the rate of step t is ``eta0 / t ** power_t``.
    device : {"auto", "cpu", "gpu"}, default="auto"
        Resolved on each worker.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
    intercept_ : ndarray of shape (1,) or (n_classes,)
    classes_ : ndarray of shape (n_classes,)
    n_iter_ : int
        Passes made.

    Notes
    -----
    Weights scale the loss of a row. With full batches (``batch_size=None``, or fewer rows than a
    batch holds) weighting a row equals repeating it; smaller batches are drawn by rows, so there
    the two agree only in the mean. A fit divides weights by their mean. :meth:`partial_fit` and
    :meth:`stream` use them as they are, since the rows of a call may all have the same; but a call
    whose lanes are averaged (``"local"``, ``"average"``) divides them if it has several lanes.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = SGDClassifier(random_state=0, max_iter=50, tol=None).fit(X, y, policy="sync")
    >>> clf.score(X, y) > 0.9
    True
    """

    densify = densify
    sparsify = sparsify

    _accepted = ("n_jobs",)

    def __init__(
        self,
        # The objective: loss, penalty and intercept.
        loss: str | Loss = "log_loss",
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
        n_jobs: int | None = None,
        random_state: Any = None,
        # The size of steps.
        learning_rate: float | str | Schedule = "auto",
        eta0: float | None = None,
        power_t: float = 0.5,
        # Rows held out, on whose score the fit may end; then the rest of scikit-learn's parameters.
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        class_weight: Any = None,
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
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.learning_rate = learning_rate
        self.eta0 = eta0
        self.power_t = power_t
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.class_weight = class_weight
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
        # A loss of regression is for targets of -1 and +1.
        if isinstance(self.loss, str) and self.loss in LABEL_LOSS_NAMES:
            return label_loss_of(
                set_loss_epsilon(get_loss(self.loss, "regression"), "", self.epsilon)
            )
        return super()._loss()

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        sample_weight: Any = None,
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
            All labels of this and later calls; needed in the first call.

        Returns
        -------
        self
        """
        self._check_one_pass()
        # The rows of one call may lack a class, or have another share of it than later ones.
        if isinstance(self.class_weight, str):
            raise InvalidParameterError(
                f"class_weight {self.class_weight!r} is not supported for partial_fit. In order to "
                "use 'balanced' weights, use compute_class_weight('balanced', classes=classes, "
                "y=y). In place of y you can use a large enough sample of the full training set "
                "target to properly estimate the class frequency distributions. Pass the resulting "
                "weights as the class_weight parameter."
            )
        partial_fit(self, X, y, classes, sample_weight, policy=policy, client=client)
        return self
