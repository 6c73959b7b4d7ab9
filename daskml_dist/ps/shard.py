"""A shard: a slice of the parameters with its optimizer state and version.

The same class is the whole replica of a trainer under the policies without a server, so every
policy applies updates by the same lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import get_backend
from daskml_dist.backends.base import Backend, Step
from daskml_dist.backends.namespace import cast, namespace, zeros
from daskml_dist.optimizers import OPTIMIZERS, Adagrad, Optimizer
from daskml_dist.penalties import Penalty, soft_threshold
from daskml_dist.schedules import Schedule

__all__ = ["Shard", "ShardImage", "ShardState", "UpdateRule"]


@dataclass(frozen=True)
class UpdateRule:
    """How a mean gradient becomes a step.

    Parameters
    ----------
    optimizer, schedule, penalty : Optimizer, Schedule, Penalty
    n_penalised : int
        Leading rows of the whole parameters that the penalty applies to.
    steps_per_pass : float
        Steps (applies) in one pass, for schedules that count passes.
    average_after : int or None
        Start averaging the parameters once so many rows were seen (averaged SGD, Polyak and
        Juditsky 1992); None: never.
    coordinates : bool
        Whether gradients touch few rows: then a row's penalty is applied when it is touched, for
        all the steps since (lazy regularisation, Carpenter 2008).
    share : float
        Share of the fit's steps that the shard makes itself, where several make them.
    """

    optimizer: Optimizer
    schedule: Schedule
    penalty: Penalty
    n_penalised: int
    steps_per_pass: float
    average_after: int | None = None
    coordinates: bool = False
    share: float = 1.0

    @property
    def owes(self) -> bool:
        """Whether rows that no gradient touches owe a penalty (coordinates only)."""
        return self.coordinates and bool(self.penalty.l1 or self.penalty.l2)

    @property
    def steps_alone(self) -> bool:
        """Whether several steps may be made at once."""
        # A device has a kernel for steps at coordinates, of one optimizer.
        at_all = not self.coordinates or (type(self.optimizer) is Adagrad and not self.owes)
        return at_all and self.average_after is None


@dataclass
class ShardState:
    """All that a fit must keep to go on later; arrays of shape (n_rows, width)."""

    w: NDArray[Any]
    slots: dict[str, NDArray[Any]]
    step: int = 0
    rows: float = 0.0
    average: NDArray[Any] | None = None
    n_averaged: int = 0

    def part(self, rows: slice) -> ShardState:
        """Copy of a slice of rows."""
        return ShardState(
            _copy(self.w[rows, ...]),
            {name: _copy(slot[rows, ...]) for name, slot in self.slots.items()},
            self.step,
            self.rows,
            None if self.average is None else _copy(self.average[rows, ...]),
            self.n_averaged,
        )

    @staticmethod
    def join(parts: list[ShardState]) -> ShardState:
        """The state whose slices `parts` are."""
        first = parts[0]
        concat = namespace(first.w).concat
        return ShardState(
            concat([p.w for p in parts]),
            {name: concat([p.slots[name] for p in parts]) for name in first.slots},
            first.step,
            first.rows,
            None
            if any(p.average is None for p in parts)
            else concat([p.average for p in parts if p.average is not None]),
            first.n_averaged,
        )


@dataclass(frozen=True)
class ShardImage:
    """All of a shard at one version: restored, it goes on to the bit as it would have.

    Unlike a `ShardState` it leaves penalties that untouched rows owe as they are, since paying
    them at another time would change the digits.
    """

    w: NDArray[Any]
    slots: dict[str, NDArray[Any]]
    version: int
    first_step: int
    rows: float
    charged: float
    paid: NDArray[np.float64] | None
    total: NDArray[np.float64] | None
    n_summed: int


class Shard:
    """Rows ``start`` to ``start + len(state.w)`` of the parameters, and how they are updated.

    Not thread-safe: whoever shares a shard guards it, or means to race (``"hogwild"``).

    Parameters
    ----------
    rule : UpdateRule
    state : ShardState
        Taken over, not copied.
    start : int, default=0
        First row in the whole parameters.
    backend : Backend or None
        Of a device where the state lies, or None: the host's. It may have a kernel for whole steps.
    """

    def __init__(
        self,
        rule: UpdateRule,
        state: ShardState,
        start: int = 0,
        backend: Backend | None = None,
    ) -> None:
        self.rule = rule
        self._backend = get_backend("cpu") if backend is None else backend
        self._by_passes = self._backend.steps_by_passes(state.w.shape[0] * state.w.shape[1])
        self.w = state.w
        self.slots = state.slots or rule.optimizer.init(state.w)
        self.version = 0
        self.rows = state.rows
        self._first_step = state.step
        self._n_penalised = int(min(max(rule.n_penalised - start, 0), state.w.shape[0]))
        self._l1 = self._strengths(rule.penalty.l1)
        # Sum of the learning rates so far, and up to where each row has paid its penalty.
        self._charged = 0.0
        self._paid = np.zeros(len(self.w)) if rule.owes else None
        self._snapshot: NDArray[Any] | None = None
        self._sum: NDArray[np.float64] | None = None
        self._n_summed = state.n_averaged
        if state.average is not None and state.n_averaged:
            xp = namespace(state.average)
            self._sum = cast(state.average, xp.float64) * state.n_averaged

    def _strengths(self, l1: float) -> Any:
        if l1 == 0:
            return 0.0
        # Always an array: the digits of a step must not depend on how the rows are cut.
        strengths = zeros((self.w.shape[0], 1), self.w.dtype, self.w)
        strengths[: self._n_penalised, :] = l1
        return strengths

    @property
    def step(self) -> int:
        """Steps applied, those of earlier fits that this one goes on from included."""
        return self._first_step + self.version

    def learning_rate(self) -> float:
        """Learning rate of the step that comes next."""
        done = self.step / self.rule.share
        return self.rule.schedule(round(done) + 1, done / self.rule.steps_per_pass)

    def apply(
        self,
        grad: NDArray[Any],
        rows: float,
        index: NDArray[np.int64] | None = None,
        scale: float = 1.0,
    ) -> None:
        """Apply one step.

        Parameters
        ----------
        grad : ndarray of shape (n_rows, width) or (len(index), width)
            SUM of the gradients of the rows; used as scratch.
        rows : float
            Number of rows in the sum; 0 makes an empty step.
        index : ndarray of int, optional
            The (sorted, unique) rows of the parameters that `grad` belongs to.
        scale : float
            Factor on the learning rate (staleness).
        """
        rate = self._count(rows, scale)
        if rows > 0:
            if index is None:
                self._step_all(grad, rows, rate)
            elif len(index):
                grad /= rows
                self._step_at(grad, index, rate)
        self._add_to_average()

    def _count(self, rows: float, scale: float = 1.0) -> float:
        """Count a step; its learning rate."""
        # A NumPy float64 would widen a float32 step.
        rate = float(self.learning_rate() * scale)
        self.version += 1
        self.rows += rows
        self._charged += rate
        self._snapshot = None
        return rate

    @property
    def on_device(self) -> bool:
        """Whether the state lies on a device."""
        return self._backend.device != "cpu"

    @property
    def steps_alone(self) -> bool:
        """Whether several steps may be made at once, where the state lies."""
        return self._knows_optimizer and self.rule.steps_alone

    def empty_step(self) -> Step:
        """A step of no rows, which changes nothing."""
        return self._described(None, 0.0, 0.0)

    def next_steps(self, rows: Sequence[float]) -> list[Step]:
        """Count steps that are made at once, of so many rows each; what they are."""
        return [self._described(None, n, self._count(n)) for n in rows]

    def _described(self, grad: Any, rows: float, rate: float) -> Step:
        l1, l2 = self.rule.penalty.l1, self.rule.penalty.l2
        number, k, few = self.step, self._n_penalised, self.rule.coordinates
        return Step(self.w, grad, self.slots, rows, rate, number, l1, l2, k, few)

    @property
    def _knows_optimizer(self) -> bool:
        # A subclass may compute something else.
        optimizer = self.rule.optimizer
        return type(optimizer) is OPTIMIZERS.get(optimizer.name)

    def interleave(self) -> NDArray[Any]:
        """Lay out what each parameter needs side by side, so that it shares a cache line.

        For parameters of width 1 that step by coordinates.

        Returns
        -------
        ndarray of shape (n_rows, 1, 2 or 4)
            ``(w, *slots, paid)``, of which the shard's own arrays are views from now on; `paid`
            is up to where a parameter has paid its penalty.
        """
        names = self.rule.optimizer.slot_names
        paid = np.zeros(len(self.w)) if self._paid is None else self._paid
        parts = [self.w[:, 0], *(self.slots[name][:, 0] for name in names), paid]
        cells = np.zeros((len(self.w), 1 << (len(parts) - 1).bit_length()), dtype=self.w.dtype)
        for at, part in enumerate(parts):
            cells[:, at] = part
        self.w, self._paid = cells[:, :1], cells[:, len(parts) - 1]
        self.slots = {name: cells[:, i : i + 1] for i, name in enumerate(names, start=1)}
        return cells

    @property
    def charged(self) -> float:
        """Sum of the learning rates of all steps, by which penalties are paid."""
        return self._charged

    def count_row_steps(self, rows: int, rate: float) -> None:
        """Count a batch whose rows were steps of their own, made on :meth:`interleave`'s cells."""
        self.version += 1
        self.rows += rows
        self._charged += rows * rate
        self._snapshot = None

    def _step_all(self, grad: NDArray[Any], rows: float, rate: float) -> None:
        # A step is made in the same way in each run: which way, its number says.
        if self.version > self._by_passes and (self._knows_optimizer or not self.on_device):
            if self._backend.update(self.rule.optimizer, self._described(grad, rows, rate)):
                return
        grad /= rows
        k, l2 = self._n_penalised, self.rule.penalty.l2
        if l2 and k == grad.shape[0]:
            grad += l2 * self.w
        elif l2 and k:
            grad[:k, :] += l2 * self.w[:k, :]
        self.rule.optimizer.update(self.w, grad, self.slots, rate, self.step, self._l1)

    def _step_at(self, grad: NDArray[Any], index: NDArray[np.int64], rate: float) -> None:
        w = self.w[index]
        slots = {name: slot[index] for name, slot in self.slots.items()}
        k = int(np.searchsorted(index, self._n_penalised))
        l1, l2 = self.rule.penalty.l1, self.rule.penalty.l2
        strength: Any = 0.0
        if self._paid is not None and (l1 or l2) and rate > 0:
            owed = (self._charged - self._paid[index])[:, None]
            owed[k:] = 0
            elapsed = (owed / rate).astype(w.dtype)
            strength = l1 * elapsed if l1 else 0.0
            if l2:
                # A row not touched for long must not be thrown past zero.
                np.minimum(elapsed, 1 / (rate * l2), out=elapsed)
                grad += l2 * elapsed * w
            self._paid[index] = self._charged
        self.rule.optimizer.update(w, grad, slots, rate, self.step, strength)
        self.w[index] = w
        for name, slot in slots.items():
            self.slots[name][index] = slot

    def add(self, delta: NDArray[Any], rows: float) -> None:
        """Add what another process changed (``"hogwild"``)."""
        self.w += delta
        self.rows += rows
        self.version += 1
        self._snapshot = None
        self._add_to_average()

    def settle(self) -> None:
        """Apply the penalty that untouched rows still owe (coordinates only)."""
        k, penalty = self._n_penalised, self.rule.penalty
        if self._paid is None or not (penalty.l1 or penalty.l2) or k == 0:
            return
        owed = (self._charged - self._paid[:k]).astype(self.w.dtype)[:, None]
        self.w[:k] /= 1 + owed * penalty.l2
        if penalty.l1:
            soft_threshold(self.w[:k], owed * penalty.l1)
        self._paid[:] = self._charged
        self._snapshot = None

    def _add_to_average(self) -> None:
        after = self.rule.average_after
        if after is None or self.rows < after:
            return
        if self._sum is None:
            self._sum = zeros(self.w.shape, np.float64, self.w)
        self._sum += self.w
        self._n_summed += 1

    def replace(self, w: NDArray[Any]) -> None:
        """Take parameters from outside (an average over lanes); the optimizer state stays."""
        self.w[...] = w
        self._snapshot = None

    def image(self) -> ShardImage:
        """Copy of everything."""
        return ShardImage(
            _copy(self.w),
            {name: _copy(slot) for name, slot in self.slots.items()},
            self.version,
            self._first_step,
            self.rows,
            self._charged,
            None if self._paid is None else _copy(self._paid),
            None if self._sum is None else _copy(self._sum),
            self._n_summed,
        )

    def restore(self, image: ShardImage) -> None:
        """Become what the shard of the image was; the image stays as it is."""
        self.w = _copy(image.w)
        self.slots = {name: _copy(slot) for name, slot in image.slots.items()}
        self.version, self._first_step = image.version, image.first_step
        self.rows, self._charged = image.rows, image.charged
        self._paid = None if image.paid is None else _copy(image.paid)
        self._sum = None if image.total is None else _copy(image.total)
        self._n_summed = image.n_summed
        self._snapshot = None

    def snapshot(self) -> NDArray[Any]:
        """Read-only copy of the parameters at this version; one copy a version."""
        if self._snapshot is None:
            self._snapshot = self.w.copy()
            self._snapshot.flags.writeable = False
        return self._snapshot

    def state(self) -> ShardState:
        """Settle, and return a copy of everything a later fit needs."""
        self.settle()
        average = None
        if self._sum is not None:
            average = cast(self._sum / self._n_summed, self.w.dtype)
        whole = ShardState(self.w, self.slots, self.step, self.rows, average, self._n_summed)
        return whole.part(slice(None))


def _copy(array: Any) -> Any:
    # Only what the standard alone describes has no method for it.
    return array.copy() if hasattr(array, "copy") else namespace(array).asarray(array, copy=True)
