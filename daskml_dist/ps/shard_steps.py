"""Steps of one group of a shard's parameters: of all its rows, or of rows that a batch touches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend, Step
from daskml_dist.backends.namespace import zeros
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.optimizers import OPTIMIZERS, Optimizer
from daskml_dist.ps.rule import ParameterGroup

__all__ = ["GroupSteps", "TouchedRowSteps", "find_group_rows", "is_own_optimizer"]

#: Entries that go through a step's operations together on the host: what these make of them stays
#: in a cache, and is small enough that a worker of Dask keeps the memory.
_CACHED_ENTRIES = 1 << 14


@dataclass(frozen=True, slots=True)
class _GroupPiece:
    """Neighbouring rows of a group, whose step is made by one operation after another.

    Parameters
    ----------
    at : slice
        Of the group's rows.
    w : array
    opt_state : dict of arrays
    n_penalised : int
        Leading rows that the penalty applies to.
    l1 : float or array
    """

    at: slice
    w: Any
    opt_state: dict[str, Any]
    n_penalised: int
    l1: Any


class GroupSteps:
    """Steps of a group's rows along their summed gradient; the rows are looked up once.

    Parameters
    ----------
    group : ParameterGroup
        The shard's part of it.
    w : array of shape (n_rows, width)
        All parameters of the shard.
    opt_state : dict of arrays
        The optimizer's state of all of them.
    backend : Backend
    coordinates : bool
        Whether gradients touch few rows.
    """

    def __init__(
        self,
        group: ParameterGroup,
        w: Any,
        opt_state: dict[str, Any],
        backend: Backend,
        coordinates: bool,
    ) -> None:
        at, k = group.rows, group.n_penalised
        self.group = group
        self.at = at
        self.whole = group.stop - group.start == w.shape[0]
        self._w = w if self.whole else w[at, ...]
        self._opt_state = {name: opt_state[name][at, ...] for name in group.state_names}
        self._l2 = group.penalty.l2 if k else 0.0
        self._pieces = self._cut_pieces(backend.device == "cpu", _make_l1_strengths(group, w))
        self._coordinates = coordinates
        self._backend = backend
        self._fuses = (
            group.descends
            and not group.rates
            and (is_own_optimizer(group.optimizer) or backend.device == "cpu")
        )
        self._update: Callable[[Any, float, float, int], bool] | None = None

    def __call__(self, grad: Any, rows: float, rate: float, number: int, fused: bool) -> None:
        """Take one step."""
        group = self.group
        if group.buffer:
            self._w -= grad / rows
            return
        if group.additive:
            self._w -= grad if group.rate == 1 else group.rate * grad
            return
        rate *= group.rate
        if fused and self._fuses:
            if self._update is None:
                self._update = self._bind_update(rows, rate, number)
            if self._update(grad, rows, rate, number):
                return
        for piece in self._pieces:
            self._step_piece(piece, grad[piece.at, ...], rows, rate, number)

    def _step_piece(
        self, piece: _GroupPiece, grad: Any, rows: float, rate: float, number: int
    ) -> None:
        grad /= rows
        k = piece.n_penalised
        # The gradient of the L2 penalty joins that of the loss; L1 is the optimizer's proximal
        # step.
        if self._l2 and k == grad.shape[0]:
            grad += self._l2 * piece.w
        elif self._l2 and k:
            grad[:k, :] += self._l2 * piece.w[:k, ...]
        self.group.update(piece.w, grad, piece.opt_state, rate, number, piece.l1)

    def _cut_pieces(self, on_host: bool, l1: Any) -> list[_GroupPiece]:
        """Return pieces of the rows; one piece where the optimizer may look at all entries."""
        n_rows, width = self._w.shape
        # An optimizer that looks at all entries at once (a norm, a matrix) must see the group
        # whole.
        of_entries = on_host and self.group.optimizer.elementwise_update is not None
        most = max(_CACHED_ENTRIES // width, 1) if of_entries else n_rows
        return [
            _GroupPiece(
                at,
                self._w[at, ...],
                {name: array[at, ...] for name, array in self._opt_state.items()},
                min(max(self.group.n_penalised - at.start, 0), at.stop - at.start),
                l1 if isinstance(l1, float) else l1[at, ...],
            )
            for at in row_slices(n_rows, most)
        ]

    def _bind_update(self, rows: float, rate: float, number: int) -> Any:
        """Return the backend's steps over these arrays."""
        group, few = self.group, self._coordinates
        l1, l2, k = group.penalty.l1, group.penalty.l2, group.n_penalised
        # The arrays are bound once; each step then passes its numbers alone.
        step = Step(self._w, None, self._opt_state, rows, rate, number, l1, l2, k, few)
        return self._backend.updater(group.optimizer, step)


def _make_l1_strengths(group: ParameterGroup, w: Any) -> Any:
    """Return the strength of a group's l1 penalty for each of its rows."""
    if group.penalty.l1 == 0 or not group.descends:
        return 0.0
    # Always an array: the digits of a step must not depend on how the rows are cut.
    strengths = zeros((group.stop - group.start, 1), w.dtype, w)
    strengths[: group.n_penalised, :] = group.penalty.l1
    return strengths


def is_own_optimizer(optimizer: Optimizer) -> bool:
    """Return whether an optimizer is the package's own; a subclass may compute something else."""
    return type(optimizer) is OPTIMIZERS.get(optimizer.name)


def find_group_rows(group: ParameterGroup, index: NDArray[np.int64]) -> slice:
    """Return the places of a group's rows among some sorted rows of the parameters."""
    start, stop = np.searchsorted(index, (group.start, group.stop)).tolist()
    return slice(start, stop)


class TouchedRowSteps:
    """Steps of a group's touched rows, with the penalty that is pending for these.

    Parameters
    ----------
    group : ParameterGroup
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
        self,
        group: ParameterGroup,
        w: Any,
        opt_state: dict[str, Any],
        row_rate_sums: Any,
        backend: Backend,
    ) -> None:
        at = group.rows
        self._group = group
        self._whole = group.stop - group.start == w.shape[0]
        self._w = w if self._whole else w[at]
        self._opt_state = {name: opt_state[name][at] for name in group.state_names}
        self._row_rate_sums = None if row_rate_sums is None else row_rate_sums[at]
        self._backend = backend
        #: Compiled steps; False: there are none, None: not looked for yet.
        self._compiled: Any = None

    def __call__(
        self, grad: Any, rows: float, index: NDArray[np.int64], rate: float, number: int,
        rate_sum: float,
    ) -> None:  # fmt: skip
        """Take one step."""
        group = self._group
        # Rows of other groups are stepped by these.
        if not self._whole:
            some = find_group_rows(group, index)
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
        # Compiled for these arrays at the first step that needs it.
        if self._compiled is None:
            self._compiled = self._bind_update(number)
        if self._compiled and grad.dtype == self._w.dtype:
            self._compiled(index, grad, rows, rate, number, rate_sum)
        else:
            grad /= rows
            self._step_gathered_rows(grad, index, rate, number, rate_sum)

    def _bind_update(self, number: int) -> Any:
        group = self._group
        if group.rates:
            return False
        l1, l2, k = group.penalty.l1, group.penalty.l2, group.n_penalised
        step = Step(self._w, None, self._opt_state, 0.0, 0.0, number, l1, l2, k, True)
        return self._backend.coordinate_updater(group.optimizer, step, self._row_rate_sums) or False

    def _step_gathered_rows(
        self, grad: Any, index: NDArray[np.int64], rate: float, number: int, rate_sum: float
    ) -> None:
        """Take the step in rows that are gathered and put back, to the bits of the compiled one."""
        w = self._w[index]
        opt_state = {name: array[index] for name, array in self._opt_state.items()}
        group = self._group
        # Rows are sorted and penalised ones lead: the first k of the touched rows are penalised.
        k = int(np.searchsorted(index, group.n_penalised))
        l1, l2 = group.penalty.l1, group.penalty.l2
        strength: Any = 0.0
        if self._row_rate_sums is not None and (l1 or l2) and rate > 0:
            pending = (rate_sum - self._row_rate_sums[index])[:, None]
            pending[k:] = 0
            # The pending penalty as a number of steps at the present learning rate.
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
