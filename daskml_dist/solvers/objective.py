"""The penalised mean loss of a model as a function of its parameters: values and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import namespace
from daskml_dist.errors import DivergedError
from daskml_dist.models.base import BatchRows
from daskml_dist.penalties import Penalty
from daskml_dist.solvers.base import Array, Statistic, Sums
from daskml_dist.solvers.rows import to_rows_dtype


@dataclass(frozen=True, eq=False)
class LossGradient(Statistic):
    """Sum of the losses, and its gradient, at `w`: ``[loss, *gradient.ravel()]``."""

    w: Array
    n_numbers: ClassVar[int] = 1
    in_parts: ClassVar[bool] = True
    loss_is_first: ClassVar[bool] = True

    @property
    def shows_not_finite(self) -> bool:
        """Return whether `w` is zero; otherwise, a row with infinite margin may have loss zero."""
        return not self.w.any()

    def shape(self, model: Any) -> tuple[int, ...]:
        return (1 + self.w.size,)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        w = to_rows_dtype(self.w, rows.X, backend)
        gradient = namespace(out).reshape(out[1:], self.w.shape)
        # A step that a line search tries may be far too long; the search detects it from the loss.
        with np.errstate(over="ignore", invalid="ignore"):
            loss = model.add_gradient(w, rows, gradient, backend)
        # As a view: ``out[0] += loss`` would write a device's entry twice.
        first = out[:1]
        first += loss
        return loss


class SmoothObjective:
    """Mean loss plus the l2 part of a penalty.

    Parameters
    ----------
    model : StepModel
    sums : Sums
    penalty : Penalty
        Strengths, relative to the mean loss.
    """

    def __init__(self, model: Any, sums: Sums, penalty: Penalty) -> None:
        self._model = model
        self._sums = sums
        self._has_checked_overflow = False
        self.l2 = penalty_row_strengths(model, penalty.l2, penalty.intercept_scaling, power=2)

    def value_and_gradient(self, w: Array) -> tuple[float, Array]:
        """Return value and gradient at `w`, in its shape."""
        total = self._sums(LossGradient(w)) / self._sums.n_rows
        return self.penalised(float(total[0]), total[1:].reshape(w.shape), w)

    def penalised(self, loss: float, gradient: Array, w: Array) -> tuple[float, Array]:
        """Add the penalty to the value and gradient of the mean loss."""
        if not self._has_checked_overflow:
            check_gradient_overflow(gradient)
            self._has_checked_overflow = True
        if self.l2.any():
            # Half of l2 * |w|^2, whose gradient is l2 * w.
            pull = self.l2 * w
            loss += float(np.vdot(pull, w)) / 2
            gradient += pull
        return loss, gradient


def check_gradient_overflow(gradient: Array) -> None:
    """Check that a solver can square the gradient that it starts from."""
    with np.errstate(over="ignore"):
        square = np.vdot(gradient, gradient)
    if not np.isfinite(square):
        raise DivergedError(
            "Floating-point under-/overflow: the squares of the gradient overflow. Scale "
            "the features (StandardScaler) and the targets."
        )


def penalty_row_strengths(model: Any, strength: float, scaling: float | None, power: int) -> Array:
    """Return a penalty's strength on each row of the parameters; float64 of shape (n_rows, 1)."""
    parameters = model.parameters
    rows = np.full((parameters.shape[0], 1), float(strength))
    for part in parameters.parts:
        if not part.penalised:
            # Intercepts are free, or scaled as liblinear's: a column of `scaling` in X stands for
            # them.
            rows[parameters.rows[part.name]] *= 0.0 if scaling is None else scaling**-power
    return rows
