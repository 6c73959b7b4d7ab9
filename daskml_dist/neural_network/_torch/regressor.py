"""`TorchRegressor`."""

from __future__ import annotations

from typing import Any

from daskml_dist.estimators.regressor import partial_fit
from daskml_dist.models.torch_modules.module import squared_error
from daskml_dist.neural_network._base import NetworkRegressor
from daskml_dist.neural_network._torch.base import BaseTorch
from daskml_dist.parameters.run import Run
from daskml_dist.policies.base import Pipeline
from daskml_dist.privacy import DP


class TorchRegressor(NetworkRegressor, BaseTorch):
    """Regressor that trains a PyTorch module under any policy.

    Parameters
    ----------
    criterion : class or callable, default=None
        Class of a criterion such as ``torch.nn.HuberLoss``, with arguments given as
        ``criterion__name=value``; or a function of outputs and targets that returns the loss of
        each row. None: the squared error.
    **passed_on
        ``module__name=value`` and ``criterion__name=value``.

    Raises
    ------
    InvalidParameterError
        PyTorch is not installed.

    Examples
    --------
    >>> from torch import nn
    >>> from daskml_dist.neural_network import TorchRegressor
    >>> def make():
    ...     return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    >>> import numpy as np
    >>> X = np.linspace(-1, 1, 500, dtype=np.float32)[:, None]
    >>> reg = TorchRegressor(make, learning_rate=0.02, max_iter=50, random_state=0)
    >>> reg.fit(X, X[:, 0] ** 2).score(X, X[:, 0] ** 2) > 0.9
    True
    """

    def __init__(
        self,
        # The network, and the loss of each row.
        module: Any = None,
        *,
        criterion: Any = None,
        # Steps of the parameters, and the rows of a step.
        optimizer: Any = "adam",
        learning_rate: Any = "auto",
        schedule: Any = None,
        max_iter: int = 10,
        batch_size: Any = 128,
        micro_batch_size: int | None = None,
        clip: float | None = None,
        groups: Any = None,
        # Arithmetic, and the conversion of rows to tensors.
        precision: str | None = None,
        dtype: str = "float32",
        images: str | None = None,
        inputs: Any = None,
        embeddings: Any = None,
        layer: str | None = None,
        # How the lanes step together.
        policy: Any = "allreduce",
        pipeline: Pipeline | None = None,
        # Stopping, and held-out rows.
        tol: float | None = None,
        n_iter_no_change: int = 5,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        shuffle: bool = True,
        average: bool | int = False,
        warm_start: bool = False,
        # Saving, reporting, and where the fit runs.
        checkpoint: Any = None,
        privacy: DP | None = None,
        callbacks: Any = None,
        verbose: int = 0,
        device: str = "auto",
        random_state: Any = None,
        run: Run | None = None,
        # Arguments of the module and the criterion, by prefix (`module__`, `criterion__`).
        **passed_on: Any,
    ) -> None:
        self.module = module
        self.criterion = criterion
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.micro_batch_size = micro_batch_size
        self.clip = clip
        self.groups = groups
        self.precision = precision
        self.dtype = dtype
        self.images = images
        self.inputs = inputs
        self.embeddings = embeddings
        self.layer = layer
        self.policy = policy
        self.pipeline = pipeline
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.shuffle = shuffle
        self.average = average
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.privacy = privacy
        self.callbacks = callbacks
        self.verbose = verbose
        self.device = device
        self.random_state = random_state
        self.run = run
        self._pass_on(passed_on)

    def _default_criterion(self) -> Any:
        return squared_error

    partial_fit = partial_fit
