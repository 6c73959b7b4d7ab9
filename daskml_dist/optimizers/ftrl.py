"""FTRL-Proximal, whose dual variables give exact zeros under an l1 penalty."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from daskml_dist.optimizers.base import Optimizer, check_positive, take_ftrl_step

__all__ = ["FTRL"]


@dataclass(frozen=True)
class FTRL(Optimizer):
    """FTRL-Proximal (McMahan 2011, McMahan et al. 2013): Adagrad's rates, but sparser under l1.

    After step t, `w` minimises the sum of all gradients so far, the l1 penalty of all steps so far
    (``t * l1``, so that it is relative to the mean loss), and weighted squared distances to the
    earlier `w`. The rate of a parameter is ``lr / (beta + sqrt(n))``, with n the sum of its squared
    gradients.

    Of z in the papers, only the part that does not follow from `w` is stored: the dual variable ``z
    + w / rate`` (in ``[-bound, bound]``). So the learning rate may change between steps, and `w`
    may be set from outside.

    Parameters
    ----------
    beta : float, default=1.0
        Added to the square root; a larger value makes the first steps smaller.

    Examples
    --------
    >>> from daskml_dist.optimizers import FTRL
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> clf = SGDClassifier(optimizer=FTRL())
    >>> clf.optimizer.name
    'ftrl'
    """

    name = "ftrl"
    adaptive = True
    default_learning_rate = 0.1
    state_names: ClassVar[tuple[str, ...]] = ("n", "dual", "bound")
    beta: float = 1.0

    def __post_init__(self) -> None:
        check_positive("beta", self.beta)

    def coefficients(self, step: int) -> tuple[float, ...]:
        """Return `beta`."""
        return (self.beta,)

    @staticmethod
    def elementwise_update(state: Any, k: int, grad: Any, lr: Any, coefficients: Any) -> Any:
        """Take one step in entry k."""
        # Without an l1 penalty this is Adagrad's step, and the dual variables do not change.
        n = state[1][k] + grad * grad
        rate = lr / (math.sqrt(n) + coefficients[0])
        state[1][k] = n
        state[0][k] -= rate * grad
        return rate

    @staticmethod
    def elementwise_update_l1(
        state: Any, k: int, grad: Any, lr: Any, l1: Any, coefficients: Any
    ) -> None:
        """Take one step in entry k."""
        n = state[1][k] + grad * grad
        state[1][k] = n
        rate = lr / (math.sqrt(n) + coefficients[0])
        take_ftrl_step(state[0], state[2], state[3], k, grad, rate, l1)
