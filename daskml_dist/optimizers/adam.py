"""Adam, and Adam with weight decay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskml_dist.errors import InvalidParameterError
from daskml_dist.optimizers.base import Optimizer, check_decay, check_positive

__all__ = ["Adam", "AdamW"]


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015), with the paper's correction of the bias towards zero.

    Rows that a sparse batch does not touch keep their moments ("lazy" Adam).

    Parameters
    ----------
    beta1, beta2 : float, default=0.9, 0.999
        Decay rates of the first and second moment, in [0, 1).
    epsilon : float, default=1e-8
        Added to the square root, to avoid division by zero.

    Examples
    --------
    >>> from daskml_dist.optimizers import Adam
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> clf = SGDClassifier(optimizer=Adam())
    >>> clf.optimizer.name
    'adam'
    """

    name = "adam"
    adaptive = True
    default_learning_rate = 1e-3
    state_names = ("m", "v")
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        check_decay("beta1", self.beta1)
        check_decay("beta2", self.beta2)
        check_positive("epsilon", self.epsilon)

    def coefficients(self, step: int) -> tuple[float, ...]:
        """Return beta1, 1 - beta1, beta2, 1 - beta2, both bias corrections, and `epsilon`."""
        p, q = self.beta1, self.beta2
        # The corrections of m and of the root of v are factors: a division for each entry would
        # take as long as the rest of the step.
        return p, 1 - p, q, 1 - q, 1 / (1 - p**step), (1 - q**step) ** -0.5, self.epsilon

    @staticmethod
    def elementwise_update(state: Any, k: int, grad: Any, lr: Any, coefficients: Any) -> Any:
        """Take one step in entry k."""
        return _step_by_moments(state, k, grad, lr, coefficients)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    All rows of the parameters decay, including the intercept.

    Parameters
    ----------
    beta1, beta2 : float, default=0.9, 0.999
        Decay rates of the first and second moment, in [0, 1).
    epsilon : float, default=1e-8
        Added to the square root, to avoid division by zero.
    weight_decay : float, default=1e-2
        Each step shrinks `w` by the factor ``1 - lr * weight_decay``.

    Examples
    --------
    >>> from daskml_dist.optimizers import AdamW
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> clf = SGDClassifier(optimizer=AdamW())
    >>> clf.optimizer.name
    'adamw'
    """

    name = "adamw"
    weight_decay: float = 1e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.weight_decay < np.inf:
            raise InvalidParameterError(
                f"weight_decay={self.weight_decay!r}: use a finite number >= 0."
            )

    def coefficients(self, step: int) -> tuple[float, ...]:
        """Return the coefficients of Adam, and `weight_decay`."""
        return *super().coefficients(step), self.weight_decay

    @staticmethod
    def elementwise_update(state: Any, k: int, grad: Any, lr: Any, coefficients: Any) -> Any:
        """Take one step in entry k."""
        state[0][k] -= lr * coefficients[7] * state[0][k]  # not part of the moments: decoupled
        return _step_by_moments(state, k, grad, lr, coefficients)


def _step_by_moments(state: Any, k: int, grad: Any, lr: Any, coefficients: Any) -> Any:
    """Update both moments of entry k, take the step, and return its rate."""
    # Algorithm 1 of Kingma and Ba; `coefficients` in the order of `Adam.coefficients`.
    m = coefficients[0] * state[1][k] + coefficients[1] * grad
    v = coefficients[2] * state[2][k] + coefficients[3] * (grad * grad)
    rate = lr / (math.sqrt(v) * coefficients[5] + coefficients[6])
    state[1][k] = m
    state[2][k] = v
    state[0][k] -= rate * m * coefficients[4]
    return rate
