"""Steps of one group of a shard's parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daskml_dist.backends.base import Backend, Step
from daskml_dist.backends.namespace import zeros
from daskml_dist.optimizers import OPTIMIZERS, Optimizer
from daskml_dist.ps.rule import Group

__all__ = ["GroupSteps", "knows"]


class GroupSteps:
    """Steps of a group's rows along their summed gradient; the rows are looked up once.

    Parameters
    ----------
    group : Group
        The shard's part of it.
    w : array of shape (n_rows, width)
        All parameters of the shard.
    slots : dict of arrays
        The optimizer's state of all of them.
    backend : Backend
    coordinates : bool
        Whether gradients touch few rows.
    """

    def __init__(
        self, group: Group, w: Any, slots: dict[str, Any], backend: Backend, coordinates: bool
    ) -> None:
        at, k = group.rows, group.n_penalised
        self.group = group
        self.at = at
        self.whole = group.stop - group.start == w.shape[0]
        self._w = w if self.whole else w[at, ...]
        self._slots = {name: slots[name][at, ...] for name in group.slot_names}
        self._l2 = group.penalty.l2 if k else 0.0
        self._penalised = self._w if k == self._w.shape[0] else self._w[:k, ...]
        self._l1 = _strengths(group, w)
        self._coordinates = coordinates
        self._backend = backend
        self._fuses = not group.buffer and (knows(group.optimizer) or backend.device == "cpu")
        self._update: Callable[[Any, float, float, int], bool] | None = None

    def __call__(self, grad: Any, rows: float, rate: float, number: int, fused: bool) -> None:
        """Take one step.

        Parameters
        ----------
        grad : array of shape (n_rows, width)
            SUM of the gradients of the group's rows; used as scratch.
        rows : float
            Number of rows in the sum.
        rate : float
            Learning rate, but for the group's own factor.
        number : int
            Of the step, from 1.
        fused : bool
            Whether it is worth a launch, or a compiled pass.
        """
        group = self.group
        if group.buffer:
            self._w -= grad / rows
            return
        rate *= group.rate
        if fused and self._fuses:
            if self._update is None:
                self._update = self._bound(rows, rate, number)
            if self._update(grad, rows, rate, number):
                return
        grad /= rows
        if self._l2 and self._penalised is self._w:
            grad += self._l2 * self._w
        elif self._l2:
            grad[: group.n_penalised, :] += self._l2 * self._penalised
        group.optimizer.update(self._w, grad, self._slots, rate, number, self._l1)

    def _bound(self, rows: float, rate: float, number: int) -> Any:
        """The backend's steps over these arrays."""
        group, few = self.group, self._coordinates
        l1, l2, k = group.penalty.l1, group.penalty.l2, group.n_penalised
        step = Step(self._w, None, self._slots, rows, rate, number, l1, l2, k, few)
        return self._backend.updater(group.optimizer, step)


def _strengths(group: Group, w: Any) -> Any:
    """Strength of a group's l1 penalty for each of its rows."""
    if group.penalty.l1 == 0 or group.buffer:
        return 0.0
    # Always an array: the digits of a step must not depend on how the rows are cut.
    strengths = zeros((group.stop - group.start, 1), w.dtype, w)
    strengths[: group.n_penalised, :] = group.penalty.l1
    return strengths


def knows(optimizer: Optimizer) -> bool:
    """Whether an optimizer is one of the package's own; a subclass may compute something else."""
    return type(optimizer) is OPTIMIZERS.get(optimizer.name)
