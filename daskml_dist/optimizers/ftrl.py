"""FTRL: an account of the l1 penalty that each parameter owes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from daskml_dist.backends.namespace import namespace
from daskml_dist.optimizers.base import Array, Optimizer, Slots
from daskml_dist.optimizers.checks import check_positive

__all__ = ["FTRL"]


@dataclass(frozen=True)
class FTRL(Optimizer):
    """FTRL-Proximal (McMahan 2011, McMahan et al. 2013): Adagrad's rates, and sparser under l1.

    After step t, `w` minimises the sum of all gradients so far, the l1 penalty of all steps so
    far (``t * l1``, so that it weighs against the mean loss), and the proximity to the points
    passed. The rate of a parameter is ``lr / (beta + sqrt(n))``.

    Of the papers' z only the part is kept that `w` does not tell, the dual
    ``z + w / rate`` (in ``[-bound, bound]``). So the learning rate may change between steps, and
    `w` be set from outside.

    Parameters
    ----------
    beta : float, default=1.0
        Larger is slower at first.
    """

    name = "ftrl"
    adaptive = True
    default_learning_rate = 0.1
    slot_names: ClassVar[tuple[str, ...]] = ("n", "dual", "bound")
    beta: float = 1.0

    def __post_init__(self) -> None:
        check_positive("beta", self.beta)

    def update(
        self, w: Array, grad: Array, slots: Slots, lr: float, step: int, l1: float | Array = 0.0
    ) -> None:
        """Take one step, in place; see :meth:`Optimizer.update`."""
        if lr == 0 or (isinstance(l1, float) and l1 == 0):
            self._descend(w, grad, slots, lr, step)
            return
        rate = self._rate(grad, slots, lr)
        dual, bound = slots["dual"], slots["bound"]
        xp = namespace(w)
        dual[...] = xp.where(w != 0, xp.copysign(bound, -w), dual)
        z = grad
        z += dual
        z -= w / rate
        bound += l1
        dual[...] = xp.maximum(xp.minimum(z, bound), -bound)
        w[...] = (dual - z) * rate

    def _descend(self, w: Array, grad: Array, slots: Slots, lr: float, step: int) -> Array:
        rate = self._rate(grad, slots, lr)
        grad *= rate
        w -= grad
        return rate

    def numbers(self, step: int) -> tuple[float, ...]:
        """`beta`."""
        return (self.beta,)

    def _rate(self, grad: Array, slots: Slots, lr: float) -> Array:
        n = slots["n"]
        n += grad * grad
        root = namespace(n).sqrt(n)
        root += self.beta
        return lr / root
