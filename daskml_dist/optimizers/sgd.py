"""Stochastic gradient descent, plain and with momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from daskml_dist.optimizers.base import Optimizer, check_decay, take_ftrl_step
from daskml_dist.optimizers.ftrl import FTRL

__all__ = ["SGD", "Momentum", "Nesterov"]


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent (Robbins and Monro 1951).

    Examples
    --------
    >>> from daskml_dist.optimizers import SGD
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> clf = SGDClassifier(optimizer=SGD())
    >>> clf.optimizer.name
    'sgd'
    """

    name = "sgd"
    default_learning_rate = 0.01
    single_rows = True

    def under_l1(self) -> Optimizer:
        """Return SGD with FTRL's dual variables for the penalty."""
        return _SparseSGD()

    @staticmethod
    def elementwise_update(state: Any, k: int, grad: Any, lr: Any, coefficients: Any) -> Any:
        """Take one step in entry k."""
        state[0][k] -= lr * grad
        return lr


@dataclass(frozen=True)
class Momentum(Optimizer):
    """SGD with heavy-ball momentum (Polyak 1964): ``v = momentum * v + grad``.

    Parameters
    ----------
    momentum : float, default=0.9
        In [0, 1).

    Examples
    --------
    >>> from daskml_dist.optimizers import Momentum
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> clf = SGDClassifier(optimizer=Momentum())
    >>> clf.optimizer.name
    'momentum'
    """

    name = "momentum"
    default_learning_rate = 0.01
    state_names = ("velocity",)
    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_decay("momentum", self.momentum)

    def coefficients(self, step: int) -> tuple[float, ...]:
        """Return `momentum`, and the long-run size of a step in units of the learning rate."""
        # Under a constant gradient the velocity tends to grad * (1 + momentum + momentum**2 + ...).
        return self.momentum, 1 / (1 - self.momentum)

    @staticmethod
    def elementwise_update(state: Any, k: int, grad: Any, lr: Any, coefficients: Any) -> Any:
        """Take one step in entry k."""
        velocity = coefficients[0] * state[1][k] + grad
        state[1][k] = velocity
        state[0][k] -= lr * velocity
        return lr * coefficients[1]


@dataclass(frozen=True)
class Nesterov(Momentum):
    """SGD with Nesterov's accelerated gradient (Nesterov 1983, Sutskever et al. 2013).

    The step is ``grad + momentum * v``: `w` is the look-ahead point at which gradients are
    computed.

    Parameters
    ----------
    momentum : float, default=0.9
        In [0, 1).

    Examples
    --------
    >>> from daskml_dist.optimizers import Nesterov
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> clf = SGDClassifier(optimizer=Nesterov())
    >>> clf.optimizer.name
    'nesterov'
    """

    name = "nesterov"

    @staticmethod
    def elementwise_update(state: Any, k: int, grad: Any, lr: Any, coefficients: Any) -> Any:
        """Take one step in entry k."""
        velocity = coefficients[0] * state[1][k] + grad
        state[1][k] = velocity
        state[0][k] -= lr * (grad + coefficients[0] * velocity)
        return lr * coefficients[1]


@dataclass(frozen=True)
class _SparseSGD(FTRL):
    """SGD with FTRL's dual variables for the l1 penalty; without a penalty it is SGD."""

    name = SGD.name
    adaptive = SGD.adaptive
    default_learning_rate = SGD.default_learning_rate
    state_names = ("dual", "bound")

    elementwise_update = staticmethod(SGD.elementwise_update)

    @staticmethod
    def elementwise_update_l1(
        state: Any, k: int, grad: Any, lr: Any, l1: Any, coefficients: Any
    ) -> None:
        """Take one step in entry k."""
        take_ftrl_step(state[0], state[1], state[2], k, grad, lr, l1)
