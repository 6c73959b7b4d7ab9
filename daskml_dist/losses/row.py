"""Base class of custom losses that are written for one row."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from daskml_dist.backends.namespace import is_host, namespace
from daskml_dist.errors import InvalidParameterError
from daskml_dist.losses.base import Array, Loss, Multiclass, diagonal_matrices, sum_over_columns

__all__ = ["RowLoss"]


class RowLoss(Loss):
    """Base class of custom losses that are written for a single row and compiled.

    One class can be used by `SGDClassifier` and `SGDRegressor`, the solvers of linear models, and
    gradient boosting (`HistGradientBoostingClassifier`, `HistGradientBoostingRegressor`). numba
    compiles its functions if they use only arithmetic and `math`. Other functions run in Python,
    much slower, with the same results.

    A subclass sets `name` and `kind`, and defines:

    - ``evaluate_row(y, raw, parameters)``, a static method: the value of the loss of a row, and its
      derivative with respect to the raw prediction. y is the target; for two classes, -1 and +1.
    - ``derive_row(y, raw, parameters)``, a static method, optional: the first and the second
      derivative, which determine the steps of boosting's leaves and of Newton's method. Without it,
      leaves use the mean of the gradients.
    - `parameters`, optional: numbers that are passed to these functions.
    - ``inverse_link(raw)``, optional: the predicted target, for arrays. For two classes with
      ``proba = True``: the probability of the second class.
    - ``constant(mean)``, optional: the raw prediction to start from, given the mean of the targets
      as these functions get them (for classes, between -1 and 1).

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
        # The methods that a subclass defines determine whether boosting and Newton's method can use
        # it.
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
        """Return each row's loss, gradient, and second derivative with respect to `raw`."""
        if type(self).derive_row is None:
            return super().value_gradient_hessian(y, raw)
        values = self.value(y, raw)
        gradient, hessian = self._map_rows(type(self).derive_row, y, raw)
        return values, gradient, hessian if raw.ndim == 1 else diagonal_matrices(hessian)

    def predict_proba(self, raw: Array) -> Array:
        """Return the probabilities of two classes, from `inverse_link`."""
        if not self.proba or raw.ndim != 1:
            return super().predict_proba(raw)
        share = self.inverse_link(raw)
        return namespace(raw).stack([1 - share, share], axis=1)

    def _map_rows(self, function: Any, y: Array, raw: Array) -> tuple[Array, Array]:
        """Return the two results of a function of single rows, elementwise."""
        if not is_host(raw):
            raise InvalidParameterError(
                f"loss={self.name!r} is written for single rows, in Python, and runs on the CPU. "
                "Set device='cpu'; losses on arrays derive from daskml_dist.losses.Loss."
            )
        # Imported at first use, since it loads numba.
        from daskml_dist.backends.own_losses import map_row_function

        return map_row_function(function, y, raw, self.parameters)
