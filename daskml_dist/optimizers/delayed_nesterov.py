"""Delayed Nesterov: momentum that is updated and applied once every several steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.optimizers.base import Optimizer, check_decay

__all__ = ["DelayedNesterov"]


@dataclass(frozen=True)
class DelayedNesterov(Optimizer):
    """Nesterov's momentum applied only every few gradient steps (Liu et al. 2024).

    Each step moves along ``1 / every`` of its gradient. The last of `every` steps updates the
    momentum with the mean of their gradients, and also moves along the momentum: together, these
    steps equal one step of `Nesterov` along that mean.

    It is made for outer steps of some of the lanes, ``LocalSGD(quorum=..., outer=...)``. Momentum
    in each of these steps would count the progress of late lanes, which started from old
    parameters, too often.

    Parameters
    ----------
    momentum : float, default=0.9
        In [0, 1).
    every : int, default=4
        Number of steps between two updates of the momentum, about the number of lanes divided by
        the quorum; 1 is Nesterov's momentum.
    activation : float, default=0.0
        Share of the momentum applied in each step, from 0 to ``1 / every``; the last step applies
        the rest.

    References
    ----------
    B. Liu et al., "Asynchronous Local-SGD Training for Language Modeling", 2024 (algorithm 3).

    Examples
    --------
    >>> from daskml_dist.optimizers import DelayedNesterov
    >>> from daskml_dist.policies import LocalSGD
    >>> LocalSGD(64, outer=DelayedNesterov(every=8), quorum=1).outer
    DelayedNesterov(every=8)
    """

    name = "delayed_nesterov"
    default_learning_rate = 0.01
    state_names = ("velocity", "gathered")
    momentum: float = 0.9
    every: int = 4
    activation: float = 0.0

    def __post_init__(self) -> None:
        check_decay("momentum", self.momentum)
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise InvalidParameterError(f"every={self.every!r}: use an integer >= 1.")
        if not 0 <= self.activation <= 1 / self.every:
            raise InvalidParameterError(
                f"activation={self.activation!r}: use a number from 0 to 1 / every."
            )

    def coefficients(self, step: int) -> tuple[float, ...]:
        """Return the factors of this step on the terms of the update, and its long-run size."""
        n, beta, active = self.every, self.momentum, self.activation
        # Mean over all steps under a constant gradient: momentum tends to grad / (1 - beta).
        size = 1 / n / (1 - beta)
        if step % n:
            return 1.0, 0.0, 1.0, 1 / n, active * beta, size
        return beta, 1 / n, 0.0, 1 / n, (1 - active * n + active) * beta, size

    @staticmethod
    def elementwise_update(state: Any, k: int, grad: Any, lr: Any, coefficients: Any) -> Any:
        """Take one step in entry k."""
        gathered = state[2][k] + grad
        velocity = coefficients[0] * state[1][k] + coefficients[1] * gathered
        state[1][k] = velocity
        state[2][k] = coefficients[2] * gathered
        state[0][k] -= lr * (coefficients[3] * grad + coefficients[4] * velocity)
        return lr * coefficients[5]
