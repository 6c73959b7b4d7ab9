"""Adagrad and Adam with one squared gradient per row, for tables of ids.

The entries of a row often have the same scale, so the mean of their squared gradients can be used
for all of them: the state of a row is then one number instead of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from daskml_dist.backends.namespace import namespace
from daskml_dist.optimizers.adagrad import Adagrad
from daskml_dist.optimizers.adam import Adam
from daskml_dist.optimizers.base import Array, Optimizer, OptimizerState

__all__ = ["RowWiseAdagrad", "RowWiseAdam"]


@dataclass(frozen=True)
class RowWiseAdagrad(Adagrad):
    """Adagrad with one accumulator per row: the mean squared gradient of the row.

    Only for models over ids: their table then holds one extra number per row, whereas Adagrad holds
    as many as the row has entries.

    Parameters
    ----------
    epsilon, initial_accumulator : float, default=1e-10, 0.0
        As in :class:`Adagrad`.

    References
    ----------
    D. Mudigere et al., "Software-Hardware Co-design for Fast and Scalable Training of Deep Learning
    Recommendation Models", ISCA 2022.

    Examples
    --------
    >>> from daskml_dist.optimizers import RowWiseAdagrad
    >>> from daskml_dist.recommender import FactorizationMachineClassifier
    >>> FactorizationMachineClassifier(optimizer=RowWiseAdagrad()).optimizer.name
    'row_wise_adagrad'
    """

    name = "row_wise_adagrad"
    state_names = ("row_accumulator",)
    single_rows = False
    row_wise = True

    def init(self, w: Array) -> OptimizerState:
        """Return the state before the first step: one number for each row."""
        start = float(self.initial_accumulator)
        return {"row_accumulator": namespace(w).full_like(w[:, :1], start)}

    def under_l1(self) -> Optimizer:
        """Return self: an l1 penalty needs whole parameters, which tables do not have."""
        return self

    def _descend(self, w: Array, grad: Array, opt_state: OptimizerState, lr: Any, step: int) -> Any:
        """Take a step, and return the rate of each row."""
        xp, accumulator = namespace(w), opt_state["row_accumulator"]
        accumulator += xp.mean(grad * grad, axis=1, keepdims=True)
        rate = lr / (xp.sqrt(accumulator) + self.epsilon)
        w -= rate * grad
        return rate


@dataclass(frozen=True)
class RowWiseAdam(Adam):
    """Adam with one second moment per row: the mean squared gradient of the row.

    Only for models over ids: their table holds a first moment for each entry, and one number per
    row for the second moment. Rows that a batch does not touch keep their moments ("lazy" Adam).

    Parameters
    ----------
    beta1, beta2, epsilon : float, default=0.9, 0.999, 1e-8
        As in :class:`Adam`.

    Examples
    --------
    >>> from daskml_dist.optimizers import RowWiseAdam
    >>> from daskml_dist.recommender import FactorizationMachineClassifier
    >>> FactorizationMachineClassifier(optimizer=RowWiseAdam()).optimizer.name
    'row_wise_adam'
    """

    name = "row_wise_adam"
    state_names = ("m", "row_v")
    row_wise = True

    def init(self, w: Array) -> OptimizerState:
        """Return the state before the first step; the second moment has one number for each row."""
        xp = namespace(w)
        return {"m": xp.zeros_like(w), "row_v": xp.zeros_like(w[:, :1])}

    def _descend(self, w: Array, grad: Array, opt_state: OptimizerState, lr: Any, step: int) -> Any:
        """Take a step, and return the rate of each row."""
        xp, m, v = namespace(w), opt_state["m"], opt_state["row_v"]
        p, rest_p, q, rest_q, correction, root_correction, epsilon = self.coefficients(step)
        v *= q
        v += rest_q * xp.mean(grad * grad, axis=1, keepdims=True)
        m *= p
        m += rest_p * grad
        rate = lr / (xp.sqrt(v) * root_correction + epsilon)
        w -= (rate * correction) * m
        return rate
