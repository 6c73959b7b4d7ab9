"""Steps in the few rows of a group that a batch touches."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend
from daskml_dist.backends.step import Step
from daskml_dist.ps.rule import Group

__all__ = ["FewRows", "rows_of"]


def rows_of(group: Group, index: NDArray[np.int64]) -> slice:
    """Places of a group's rows among some sorted rows of the parameters."""
    start, stop = np.searchsorted(index, (group.start, group.stop)).tolist()
    return slice(start, stop)


class FewRows:
    """Steps of a group's rows where these are touched; what they owe of the penalty, they pay.

    Parameters
    ----------
    group : Group
        The shard's part of it.
    w : array of shape (n_rows, width)
        All parameters of the shard.
    slots : dict of arrays
        The optimizer's state of all of them.
    paid : ndarray of float64 of shape (n_rows,), or None
        Up to where each row has paid its penalty, as a sum of the group's learning rates; None:
        nothing is owed.
    backend : Backend
    """

    def __init__(
        self, group: Group, w: Any, slots: dict[str, Any], paid: Any, backend: Backend
    ) -> None:
        at = group.rows
        self._group = group
        self._whole = group.stop - group.start == w.shape[0]
        self._w = w if self._whole else w[at]
        self._slots = {name: slots[name][at] for name in group.slot_names}
        self._paid = None if paid is None else paid[at]
        self._backend = backend
        #: Compiled steps; False: there are none, None: nobody has looked.
        self._compiled: Any = None

    def __call__(
        self, grad: Any, rows: float, index: NDArray[np.int64], rate: float, number: int,
        charged: float,
    ) -> None:  # fmt: skip
        """Take one step.

        Parameters
        ----------
        grad : array of shape (len(index), width)
            SUM of the gradients; used as scratch.
        rows : float
            Number of rows in the sum.
        index : ndarray of int64
            Rows of all the shard's parameters, sorted and unique.
        rate : float
            Learning rate, but for the group's own factor.
        number : int
            Of the step, from 1.
        charged : float
            Sum of the learning rates, with this one.
        """
        group = self._group
        if not self._whole:
            some = rows_of(group, index)
            grad, index = grad[some], index[some] - group.start
            if not len(index):
                return
        if group.buffer:
            self._w[index] -= grad / rows
            return
        if group.additive:
            self._w[index] -= grad if group.rate == 1 else group.rate * grad
            return
        rate, charged = rate * group.rate, charged * group.rate
        if self._compiled is None:
            self._compiled = self._bound(number)
        if self._compiled and grad.dtype == self._w.dtype:
            self._compiled(index, grad, rows, rate, number, charged)
        else:
            grad /= rows
            self._in_arrays(grad, index, rate, number, charged)

    def _bound(self, number: int) -> Any:
        group = self._group
        if group.rates:
            return False
        l1, l2, k = group.penalty.l1, group.penalty.l2, group.n_penalised
        step = Step(self._w, None, self._slots, 0.0, 0.0, number, l1, l2, k, True)
        return self._backend.coordinate_updater(group.optimizer, step, self._paid) or False

    def _in_arrays(
        self, grad: Any, index: NDArray[np.int64], rate: float, number: int, charged: float
    ) -> None:
        """The same in rows that are gathered and put back; what is compiled has the same bits."""
        w = self._w[index]
        slots = {name: slot[index] for name, slot in self._slots.items()}
        group = self._group
        k = int(np.searchsorted(index, group.n_penalised))
        l1, l2 = group.penalty.l1, group.penalty.l2
        strength: Any = 0.0
        if self._paid is not None and (l1 or l2) and rate > 0:
            owed = (charged - self._paid[index])[:, None]
            owed[k:] = 0
            elapsed = (owed / rate).astype(w.dtype)
            strength = l1 * elapsed if l1 else 0.0
            if l2:
                # A row not touched for long must not be thrown past zero.
                grad += l2 * np.minimum(elapsed, 1 / (group.by_column(rate, w) * l2)) * w
            self._paid[index] = charged
        group.update(w, grad, slots, rate, number, strength)
        self._w[index] = w
        for name, slot in slots.items():
            self._slots[name][index] = slot
