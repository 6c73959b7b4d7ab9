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
    """Steps of a group's touched rows, with the penalty that is pending for these.

    Parameters
    ----------
    group : Group
        The shard's part of it.
    w : array of shape (n_rows, width)
        All parameters of the shard.
    opt_state : dict of arrays
        The optimizer's state of all of them.
    row_rate_sums : ndarray of float64 of shape (n_rows,), or None
        Rate sum up to which each row's penalty has been applied, as a sum of the group's learning
        rates; None: no penalty is pending.
    backend : Backend
    """

    def __init__(
        self, group: Group, w: Any, opt_state: dict[str, Any], row_rate_sums: Any, backend: Backend
    ) -> None:
        at = group.rows
        self._group = group
        self._whole = group.stop - group.start == w.shape[0]
        self._w = w if self._whole else w[at]
        self._opt_state = {name: opt_state[name][at] for name in group.state_names}
        self._row_rate_sums = None if row_rate_sums is None else row_rate_sums[at]
        self._backend = backend
        #: Compiled steps; False: there are none, None: nobody has looked.
        self._compiled: Any = None

    def __call__(
        self, grad: Any, rows: float, index: NDArray[np.int64], rate: float, number: int,
        rate_sum: float,
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
        rate_sum : float
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
        rate, rate_sum = rate * group.rate, rate_sum * group.rate
        if self._compiled is None:
            self._compiled = self._bound(number)
        if self._compiled and grad.dtype == self._w.dtype:
            self._compiled(index, grad, rows, rate, number, rate_sum)
        else:
            grad /= rows
            self._in_arrays(grad, index, rate, number, rate_sum)

    def _bound(self, number: int) -> Any:
        group = self._group
        if group.rates:
            return False
        l1, l2, k = group.penalty.l1, group.penalty.l2, group.n_penalised
        step = Step(self._w, None, self._opt_state, 0.0, 0.0, number, l1, l2, k, True)
        return self._backend.coordinate_updater(group.optimizer, step, self._row_rate_sums) or False

    def _in_arrays(
        self, grad: Any, index: NDArray[np.int64], rate: float, number: int, rate_sum: float
    ) -> None:
        """The same in rows that are gathered and put back; what is compiled has the same bits."""
        w = self._w[index]
        opt_state = {name: array[index] for name, array in self._opt_state.items()}
        group = self._group
        k = int(np.searchsorted(index, group.n_penalised))
        l1, l2 = group.penalty.l1, group.penalty.l2
        strength: Any = 0.0
        if self._row_rate_sums is not None and (l1 or l2) and rate > 0:
            pending = (rate_sum - self._row_rate_sums[index])[:, None]
            pending[k:] = 0
            elapsed = (pending / rate).astype(w.dtype)
            strength = l1 * elapsed if l1 else 0.0
            if l2:
                # A row not touched for long must not be thrown past zero.
                grad += l2 * np.minimum(elapsed, 1 / (group.by_column(rate, w) * l2)) * w
            self._row_rate_sums[index] = rate_sum
        group.update(w, grad, opt_state, rate, number, strength)
        self._w[index] = w
        for name, array in opt_state.items():
            self._opt_state[name][index] = array
