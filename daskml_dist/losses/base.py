"""Base class of the losses, their table, and sums over several columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from daskml_dist.backends.namespace import cast, namespace, total, zeros
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import ParameterObject

__all__ = [
    "LABEL_LOSS_NAMES",
    "LOSSES",
    "Array",
    "Exponential",
    "Kind",
    "Loss",
    "Multiclass",
    "diagonal_matrices",
    "label_loss_of",
    "sum_over_columns",
]


#: An array of NumPy, or of another library that follows the array API standard.
Array = Any
Kind = Literal["classification", "regression", "survival"]
#: A function that returns the exponential of each entry of an array, as a new array.
Exponential = Callable[[Array], Array]
Multiclass = Literal["softmax", "ovr"]


class Loss(ParameterObject):
    """Base class of losses: functions of a target and a raw prediction.

    Results have the dtype of the raw prediction (float32 or float64) and are new arrays.

    Attributes
    ----------
    name : str
        Value of an estimator's ``loss`` parameter that selects it.
    kind : {"classification", "regression", "survival"}
    multiclass : {"softmax", "ovr"} or None
        Form for more than two classes: one softmax over integer codes, or one -1/+1 problem for
        each class.
    proba : bool
        Whether :meth:`predict_proba` is defined.
    in_target_units : bool
        Whether raw predictions are in the units of the targets.
    center : {"mean", "median"} or None
        For a function of ``raw - y`` only: the statistic of the targets near which the best
        constant prediction lies. A fit then subtracts it from the targets, and adds it to the
        intercept. Not inherited by a class that overrides :meth:`value_and_gradient`.
    kernel : str or None
        Name of the fused kernel of backends that computes this loss for linear models. Not
        inherited, since a subclass may compute something else.
    evaluate_row : function or None
        Static: value and derivative of one row with one output, from its target (-1 or +1 for
        classification), raw prediction and `parameters`. It uses only arithmetic and `math`, so
        that numba can compile it. None: the loss has only its array form, and no steps of single
        rows.
    derive_row : function or None
        Static: first and second derivative of one row, with the arguments of `evaluate_row`; used
        by compiled gradient boosting.
    has_hessian : bool
        Whether :meth:`value_gradient_hessian` is defined.
    tree_kernel : str or None
        Name of the loss's gradient in tree_gradients.cu, which does the operations of
        :meth:`derive`. Not inherited.
    unit_hessian : bool
        Whether second derivatives are 1 everywhere. Not inherited.
    leaf_quantile : float or None
        A leaf of boosting predicts this quantile of its residuals (Friedman 2001, algorithm 3, for
        the median); None: a Newton step.
    overflow_remedy : str
        Remedy if derivatives overflow: the last sentence of boosting's error.

    Examples
    --------
    >>> from daskml_dist.losses import Loss, get_loss
    >>> isinstance(get_loss('huber', 'regression'), Loss)
    True
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    multiclass: ClassVar[Multiclass | None] = None
    proba: ClassVar[bool] = False
    in_target_units: ClassVar[bool] = False
    center: ClassVar[Literal["mean", "median"] | None] = None
    kernel: ClassVar[str | None] = None
    evaluate_row: ClassVar[Any] = None
    derive_row: ClassVar[Any] = None
    has_hessian: ClassVar[bool] = False
    tree_kernel: ClassVar[str | None] = None
    unit_hessian: ClassVar[bool] = False
    leaf_quantile: float | None = None
    overflow_remedy: ClassVar[str] = (
        "Check it for extreme predictions, such as an exponential that overflows; or lower "
        "learning_rate."
    )

    def __init_subclass__(cls) -> None:
        cls.kernel = vars(cls).get("kernel")
        cls.tree_kernel = vars(cls).get("tree_kernel")
        cls.unit_hessian = vars(cls).get("unit_hessian", False)
        # A subclass that overrides the array form must not inherit the form for one row.
        forms = {
            "value_and_gradient",
            "_evaluate_at_margin",
            "_evaluate_at_residual",
            "_evaluate_derivatives",
        }
        if forms & cls.__dict__.keys() and "evaluate_row" not in cls.__dict__:
            cls.evaluate_row = None
        if "value_and_gradient" in cls.__dict__ and "center" not in cls.__dict__:
            cls.center = None

    @property
    def parameters(self) -> tuple[float, ...]:
        """Return the numbers that `evaluate_row` needs in addition to the row."""
        return ()

    @abstractmethod
    def value_and_gradient(self, y: Array, raw: Array) -> tuple[Array, Array]:
        """Return the loss of each row, and its gradient.

        Parameters
        ----------
        y : ndarray
            Targets of the shape of `raw`: -1 or +1 for classification, numbers for regression.
            For ``"softmax"`` with 2-d `raw`: integer codes of shape (n,).
        raw : ndarray of shape (n,) or (n, K)

        Returns
        -------
        values : ndarray of shape (n,)
            Summed over the columns if `raw` is 2-d.
        gradient : ndarray of the shape of `raw`
            A subgradient at a kink.
        """

    def value(self, y: Array, raw: Array) -> Array:
        """Return the loss of each row, of shape (n,)."""
        return self.value_and_gradient(y, raw)[0]

    def gradient(self, y: Array, raw: Array) -> Array:
        """Return the gradient with respect to `raw`, of its shape."""
        return self.value_and_gradient(y, raw)[1]

    def value_gradient_hessian(self, y: Array, raw: Array) -> tuple[Array, Array, Array]:
        """Return each row's loss, gradient, and second derivative with respect to `raw`.

        Returns
        -------
        values, gradient : ndarray
        hessian : ndarray of shape (n,), or (n, K, K) if `raw` is 2-d
            Can be negative if the loss is not convex.

        Raises
        ------
        InvalidParameterError
            If the loss has no second derivative.
        """
        names = sorted(name for name, loss in LOSSES.items() if loss.has_hessian)
        raise InvalidParameterError(
            f"loss={self.name!r} has no second derivative. Use solver='lbfgs', or one of {names}."
        )

    def derive(self, y: Array, raw: Array, exponential: Exponential) -> tuple[Array, Array | None]:
        """Return first and second derivatives per row, for boosting.

        Apart from `exponential`, only operations whose rounding IEEE 754 defines are used, one row
        at a time. If `exponential` returns the same bits everywhere, the trees are the same on
        every machine.

        Parameters
        ----------
        y : ndarray of shape (n,)
            Targets; for classification, the index of the class.
        raw : ndarray of shape (n,), or (n_classes, n) for more than two classes
        exponential : callable

        Returns
        -------
        gradient : ndarray of the shape of `raw`
        hessian : ndarray of the shape of `raw`, or None
            None: 1 everywhere, also if the loss has no second derivative.
        """
        return self.gradient(y, raw), None

    def start(self, mean: Array) -> Array:
        """Return the raw predictions that boosting starts from.

        `mean` is the mean of the targets; for classification, the shares of the classes or, for a
        custom loss, the mean of -1 and 1.
        """
        # A loss of residuals has its minimum near the mean; other losses define where to start.
        return mean if self.center is not None else np.array([self.constant(float(mean[0]))])

    def predict_proba(self, raw: Array) -> Array:
        """Return the probabilities of the classes.

        Parameters
        ----------
        raw : ndarray of shape (n,) for two classes, or (n, n_classes)

        Returns
        -------
        ndarray of shape (n, n_classes)

        Raises
        ------
        InvalidParameterError
            If the loss has no probabilities.
        """
        names = sorted(name for name, loss in LOSSES.items() if loss.proba)
        raise InvalidParameterError(
            f"loss={self.name!r} gives no probabilities. Use one of {names}, or wrap the "
            "estimator in sklearn.calibration.CalibratedClassifierCV."
        )

    def write_proba(self, raw: Array, out: Array) -> None:
        """Write :meth:`predict_proba` to `out`, of shape (n, n_classes); may overwrite `raw`."""
        out[...] = self.predict_proba(raw)

    def inverse_link(self, raw: Array) -> Array:
        """Return the predicted target of a regression: `raw`, unless overridden."""
        return raw

    def constant(self, mean: float) -> float:
        """Return the raw prediction to start from, given the mean of the targets."""
        return 0.0

    def check_target(self, y: Array) -> None:
        """Raise InvalidDataError for a target outside the loss's domain."""


#: Losses by the names that estimators accept; filled in `daskml_dist.losses`. Defined here because
#: error messages of `Loss` list its keys.
LOSSES: dict[str, type[Loss]] = {}


def sum_over_columns(values: Array) -> Array:
    """Return losses of shape (n,), summed over the columns if they have shape (n, K)."""
    return values if values.ndim == 1 else total(values, axis=1)


def diagonal_matrices(hessian: Array) -> Array:
    """Return diagonal matrices (n, K, K) of second derivatives of shape (n, K)."""
    n, width = hessian.shape
    # In a flattened matrix every (width + 1)-th entry lies on the diagonal.
    pairs = zeros((n, width**2), hessian.dtype, hessian)
    pairs[:, :: width + 1] = hessian
    return namespace(hessian).reshape(pairs, (n, width, width))


#: Names of regression losses that classifiers accept too, for targets -1 and +1.
LABEL_LOSS_NAMES = ("squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive")


@dataclass(frozen=True)
class _LabelLoss(Loss):
    """Loss of the residual ``raw - y`` for labels y in {-1, +1}, one class against the rest.

    It has only its array form: the fused kernels of regression need one column of targets per
    output.

    Parameters
    ----------
    loss : Loss
        A regression loss.
    """

    kind = "classification"
    multiclass = "ovr"
    loss: Loss

    @property
    def name(self) -> str:  # type: ignore[override]
        """Return the name of the regression loss."""
        return self.loss.name

    def value_and_gradient(self, y: Array, raw: Array) -> tuple[Array, Array]:
        return self.loss.value_and_gradient(cast(y, raw.dtype), raw)


def label_loss_of(loss: Loss) -> Loss:
    """Return a classification loss made from a regression loss."""
    return _LabelLoss(loss)
