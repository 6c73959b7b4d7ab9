"""`TorchClassifier`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.classifier import BaseClassifier, partial_fit
from daskml_dist.models.torch_modules.module import cross_entropy
from daskml_dist.models.torch_modules.source import class_name_of
from daskml_dist.neural_network._torch.base import BaseTorch
from daskml_dist.neural_network._torch.predict import (
    MarginOutputs,
    find_nonlinearity,
    sigmoid,
    softmax_or_sigmoid,
)
from daskml_dist.parameters.run import Run
from daskml_dist.policies.base import Pipeline
from daskml_dist.privacy import DP


class TorchClassifier(BaseClassifier, BaseTorch):
    """Classifier that trains a PyTorch module under any policy.

    Parameters
    ----------
    criterion : class or callable, default=None
        Class of a criterion such as ``torch.nn.CrossEntropyLoss``, with arguments given as
        ``criterion__name=value``; or a function of outputs and targets that returns the loss of
        each row. None: the cross-entropy of logits; the module returns one logit per class, or, for
        two classes, only that of the second.
    predict_nonlinearity : "auto", callable or None, default="auto"
        Function of a tensor, from the module's outputs to probabilities. ``"auto"``: softmax,
        sigmoid or exp, depending on torch's criterion, or on the one that a class is derived from;
        outputs of any other criterion are taken for probabilities, and a fit warns if they are
        none. None: outputs are already probabilities.
    **passed_on
        ``module__name=value`` and ``criterion__name=value``.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)

    Raises
    ------
    InvalidParameterError
        PyTorch is not installed.

    Examples
    --------
    >>> from torch import nn
    >>> from daskml_dist.neural_network import TorchClassifier
    >>> def make(width):
    ...     return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = TorchClassifier(
    ...     make, module__width=16, learning_rate=0.02, max_iter=50, random_state=0
    ... )
    >>> clf.fit(X, y).score(X, y) > 0.9
    True
    """

    _multi_label = True

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
        # Classes: from outputs to probabilities, and class weights.
        predict_nonlinearity: Any = "auto",
        class_weight: Any = None,
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
        self.predict_nonlinearity = predict_nonlinearity
        self.class_weight = class_weight
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
        return cross_entropy

    def _set_parameters(self, w: NDArray[Any], model: Any, rows: Any) -> None:
        super()._set_parameters(w, model, rows)
        self.classes_ = rows.classes

    partial_fit = partial_fit

    def _model(self, rows: Any, last: Any) -> Any:
        trial = self._trial  # removed at the end of the fit
        model = super()._model(rows, last)
        self._warn_of_outputs(*trial.output_range)
        return model

    def _warn_of_outputs(self, min_output: float, max_output: float) -> None:
        """Warn if outputs that are taken for probabilities are none: predictions would be wrong."""
        if self.predict_nonlinearity != "auto" or self._nonlinearity() is not None:
            return
        if min_output >= 0 and max_output <= 1:
            return
        warnings.warn(
            f"The outputs of {class_name_of(self.module)} are no probabilities (a few rows gave "
            f"{min_output:.3g} to {max_output:.3g}), and criterion={class_name_of(self.criterion)} "
            "does not say how to make some of them: predict_proba returns the outputs themselves, "
            "and a single output means the second class above 0.5. Set predict_nonlinearity to a "
            "function of the outputs, such as torch.sigmoid, or to None if this is meant.",
            UserWarning,
            stacklevel=user_stack_level(),
        )

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
        function = self._nonlinearity()
        # With several labels per row, each has an independent logit, unlike classes.
        if self._several and function is softmax_or_sigmoid:
            function = sigmoid
        return self._map_outputs(
            self._outputs(postprocess=function), X, len(self.classes_), _write_proba
        )

    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithm of :meth:`predict_proba`, with the same parameters and shape."""
        return np.log(self.predict_proba(X))

    def _raw_prediction(self) -> Any:
        # For two classes or several labels, `BaseClassifier` uses the sign of each output.
        reads_signs = self._several or len(self.classes_) == 2
        margins = MarginOutputs(self._threshold(), self._several) if reads_signs else None
        return self._outputs(postprocess=margins)

    def _threshold(self) -> float:
        return 0.5 if self._nonlinearity() is None else 0.0

    def _nonlinearity(self) -> Any:
        """Return the function from outputs to probabilities; None if outputs are probabilities."""
        nonlinearity = self.predict_nonlinearity
        if nonlinearity is None or callable(nonlinearity):
            return nonlinearity
        if nonlinearity != "auto":
            raise InvalidParameterError(
                f'predict_nonlinearity={nonlinearity!r}: use "auto", a function of a tensor, or '
                "None."
            )
        return find_nonlinearity(
            self._default_criterion() if self.criterion is None else self.criterion
        )


def _write_proba(proba: NDArray[Any], out: NDArray[Any]) -> None:
    """Write probabilities to `out`; if only the second of two classes is given, both."""
    if proba.ndim == 2:
        out[...] = proba
        return
    out[:, 1] = proba
    np.subtract(1, proba, out=out[:, 0])
