"""Steps of one group of a shard's parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import zeros
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.backends.step import Step
from daskml_dist.optimizers import OPTIMIZERS, Optimizer
from daskml_dist.ps.rule import Group

__all__ = ["GroupSteps", "knows"]

#: Entries that go through a step's operations together on the host: what these make of them stays
#: in a cache, and is small enough that a worker of Dask keeps the memory.
_ENTRIES = 1 << 14


@dataclass(frozen=True, slots=True)
class _Piece:
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
    group : Group
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
        self, group: Group, w: Any, opt_state: dict[str, Any], backend: Backend, coordinates: bool
    ) -> None:
        at, k = group.rows, group.n_penalised
        self.group = group
        self.at = at
        self.whole = group.stop - group.start == w.shape[0]
        self._w = w if self.whole else w[at, ...]
        self._opt_state = {name: opt_state[name][at, ...] for name in group.state_names}
        self._l2 = group.penalty.l2 if k else 0.0
        self._pieces = self._cut(backend.device == "cpu", _strengths(group, w))
        self._coordinates = coordinates
        self._backend = backend
        self._fuses = (
            group.descends
            and not group.rates
            and (knows(group.optimizer) or backend.device == "cpu")
        )
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
        if group.additive:
            self._w -= grad if group.rate == 1 else group.rate * grad
            return
        rate *= group.rate
        if fused and self._fuses:
            if self._update is None:
                self._update = self._bound(rows, rate, number)
            if self._update(grad, rows, rate, number):
                return
        for piece in self._pieces:
            self._step(piece, grad[piece.at, ...], rows, rate, number)

    def _step(self, piece: _Piece, grad: Any, rows: float, rate: float, number: int) -> None:
        grad /= rows
        k = piece.n_penalised
        if self._l2 and k == grad.shape[0]:
            grad += self._l2 * piece.w
        elif self._l2 and k:
            grad[:k, :] += self._l2 * piece.w[:k, ...]
        self.group.update(piece.w, grad, piece.opt_state, rate, number, piece.l1)

    def _cut(self, on_host: bool, l1: Any) -> list[_Piece]:
        """Pieces of the rows; the whole group, where its optimizer may look at all entries."""
        n_rows, width = self._w.shape
        of_entries = on_host and self.group.optimizer.elementwise_update is not None
        most = max(_ENTRIES // width, 1) if of_entries else n_rows
        return [
            _Piece(
                at,
                self._w[at, ...],
                {name: array[at, ...] for name, array in self._opt_state.items()},
                min(max(self.group.n_penalised - at.start, 0), at.stop - at.start),
                l1 if isinstance(l1, float) else l1[at, ...],
            )
            for at in row_slices(n_rows, most)
        ]

    def _bound(self, rows: float, rate: float, number: int) -> Any:
        """The backend's steps over these arrays."""
        group, few = self.group, self._coordinates
        l1, l2, k = group.penalty.l1, group.penalty.l2, group.n_penalised
        step = Step(self._w, None, self._opt_state, rows, rate, number, l1, l2, k, few)
        return self._backend.updater(group.optimizer, step)


def _strengths(group: Group, w: Any) -> Any:
    """Strength of a group's l1 penalty for each of its rows."""
    if group.penalty.l1 == 0 or not group.descends:
        return 0.0
    # Always an array: the digits of a step must not depend on how the rows are cut.
    strengths = zeros((group.stop - group.start, 1), w.dtype, w)
    strengths[: group.n_penalised, :] = group.penalty.l1
    return strengths


def knows(optimizer: Optimizer) -> bool:
    """Whether an optimizer is one of the package's own; a subclass may compute something else."""
    return type(optimizer) is OPTIMIZERS.get(optimizer.name)
