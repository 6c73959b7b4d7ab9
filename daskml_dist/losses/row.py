"""Base class of losses of the user's own, written for one row."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from daskml_dist.backends.namespace import is_host, namespace
from daskml_dist.errors import InvalidParameterError
from daskml_dist.losses.base import Array, Loss, Multiclass, diagonal_matrices, sum_over_columns

__all__ = ["RowLoss"]


class RowLoss(Loss):
    """Base class of custom losses that are written for a single row and compiled.

    One class serves `SGDClassifier` and `SGDRegressor`, the solvers of linear models, and gradient
    boosting (`HistGradientBoostingClassifier`, `HistGradientBoostingRegressor`). Its functions are
    compiled by numba where they can be: arithmetic and `math`. Others run in Python, much slower,
    with the same numbers.

    A subclass sets `name` and `kind`, and defines:

    - ``evaluate_row(y, raw, parameters)``, a static method: the value of the loss of a row, and its
      derivative by the raw prediction. y is the target, or -1 and +1 for two classes.
    - ``derive_row(y, raw, parameters)``, a static method, optional: the first and the second
      derivative, by which leaves of boosting and Newton's method take their steps. Without it
      leaves take the mean of the gradients.
    - `parameters`, optional: numbers that these functions are given.
    - ``inverse_link(raw)``, optional: the predicted target, of arrays. For two classes with
      ``proba = True``: the probability of the second one.
    - ``constant(mean)``, optional: the raw prediction to start from, by the mean of the targets as
      the functions see them (of classes between -1 and 1).

    Examples
    --------
    >>> import math
    >>> import numpy as np
    >>> from daskml_dist.ensemble import HistGradientBoostingRegressor
    >>> from daskml_dist.losses import RowLoss
    >>> class LogCosh(RowLoss):
    ...     name, kind = "log_cosh", "regression"
    ...     @staticmethod
    ...     def evaluate_row(y, raw, parameters):
    ...         error = raw - y
    ...         return math.log(math.cosh(error)), math.tanh(error)
    ...     @staticmethod
    ...     def derive_row(y, raw, parameters):
    ...         slope = math.tanh(raw - y)
    ...         return slope, 1.0 - slope * slope
    >>> X = np.arange(100.0).reshape(-1, 1)
    >>> model = HistGradientBoostingRegressor(LogCosh(), max_iter=50).fit(X, X[:, 0] > 49)
    >>> model.predict(np.array([[10.0], [80.0]])).round(1).tolist()
    [0.0, 1.0]
    """

    multiclass: ClassVar[Multiclass | None] = "ovr"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # What a subclass writes down says what boosting and Newton's method may ask of it.
        cls.has_hessian = cls.derive_row is not None

    @staticmethod
    @abstractmethod
    def evaluate_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Return value and derivative of one row."""

    def value_and_gradient(self, y: Array, raw: Array) -> tuple[Array, Array]:
        """Return the loss of each row, and its gradient."""
        values, gradient = self._map_rows(type(self).evaluate_row, y, raw)
        return sum_over_columns(values), gradient

    def value_gradient_hessian(self, y: Array, raw: Array) -> tuple[Array, Array, Array]:
        """Return the loss of each row, its gradient, and its second derivative by `raw`."""
        if type(self).derive_row is None:
            return super().value_gradient_hessian(y, raw)
        values = self.value(y, raw)
        gradient, hessian = self._map_rows(type(self).derive_row, y, raw)
        return values, gradient, hessian if raw.ndim == 1 else diagonal_matrices(hessian)

    def predict_proba(self, raw: Array) -> Array:
        """Return the probabilities of two classes, by `inverse_link`."""
        if not self.proba or raw.ndim != 1:
            return super().predict_proba(raw)
        share = self.inverse_link(raw)
        return namespace(raw).stack([1 - share, share], axis=1)

    def _map_rows(self, function: Any, y: Array, raw: Array) -> tuple[Array, Array]:
        """Return the two results of a function of rows, elementwise."""
        if not is_host(raw):
            raise InvalidParameterError(
                f"loss={self.name!r} is written for single rows, in Python, and runs on the CPU. "
                "Set device='cpu'; losses on arrays derive from daskml_dist.losses.Loss."
            )
        # At first use: it loads numba.
        from daskml_dist.backends.own_losses import map_row_function

        return map_row_function(function, y, raw, self.parameters)
