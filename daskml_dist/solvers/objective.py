"""The penalised mean loss of a linear model, as a function of its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daskml_dist.backends import Backend
from daskml_dist.solvers.base import Array, Statistic, Sums

__all__ = ["LossGradient", "SmoothObjective"]


@dataclass(frozen=True, eq=False)
class LossGradient(Statistic):
    """Sum of the losses, and its gradient, at `w`: ``[loss, *gradient.ravel()]``."""

    w: Array

    def shape(self, model: Any) -> tuple[int, ...]:
        return (1 + self.w.size,)

    def add(
        self, model: Any, X: Any, y: Any, weight: Any | None, out: Array, backend: Backend
    ) -> float:
        w = self.w.astype(X.dtype)
        gradient = out[1:].reshape(self.w.shape)
        loss: float = model.add_gradient(w, X, y, weight, gradient, backend)
        out[0] += loss
        return loss


class SmoothObjective:
    """Mean loss plus ``l2 / 2 * |coef|^2``; the intercepts are not penalised.

    Parameters
    ----------
    model : LinearModel
    sums : Sums
    l2 : float
        Strength, relative to the mean loss.
    """

    def __init__(self, model: Any, sums: Sums, l2: float) -> None:
        self._model = model
        self._sums = sums
        self._l2 = l2

    def value_and_gradient(self, w: Array) -> tuple[float, Array]:
        """Value and gradient at `w`, in its shape."""
        total = self._sums(LossGradient(w)) / self._sums.n_rows
        return self.penalised(float(total[0]), total[1:].reshape(w.shape), w)

    def penalised(self, loss: float, gradient: Array, w: Array) -> tuple[float, Array]:
        """Value and gradient with the penalty, of those of the mean loss."""
        coef = w[: self._model.n_penalised]
        if self._l2:
            loss += self._l2 / 2 * float(np.vdot(coef, coef))
            gradient[: len(coef)] += self._l2 * coef
        return loss, gradient
