"""Shard: a slice of the parameters with its optimizer state and version.

The same class serves as a trainer's whole replica under policies without a server, so the same code
applies the updates of every policy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend, Step
from daskml_dist.backends.devices import get_backend
from daskml_dist.backends.namespace import cast, namespace, zeros
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.optimizers import OPTIMIZERS
from daskml_dist.optimizers.base import Optimizer
from daskml_dist.penalties import soft_threshold
from daskml_dist.privacy import NoiseStream
from daskml_dist.ps.rule import OUTER_PREFIX, ParameterGroup, UpdateRule
from daskml_dist.ps.shard_state import ShardSnapshot, ShardState, copy_array

#: Entries of a slice that is stepped at a time on the host: the temporary arrays (128 KiB of
#: float64) stay in the CPU's cache, and are small enough that malloc in a Dask worker keeps their
#: memory.
_SLICE_ENTRIES = 1 << 14


@dataclass(frozen=True, slots=True)
class _RowSlice:
    """Slice of a group's rows that array operations step together.

    Parameters
    ----------
    rows : slice
        Rows within the group.
    w : array
        View of their parameters.
    opt_state : dict of arrays
        Views of their optimizer state.
    n_penalised : int
        Number of leading rows of the slice to which the penalty applies.
    l1 : float or array of shape (n_rows, 1)
        Strength of the l1 penalty; 0.0 where there is none.
    """

    rows: slice
    w: Any
    opt_state: dict[str, Any]
    n_penalised: int
    l1: Any


class _GroupSteps:
    """Steps of all rows of a group along a dense gradient, summed over the rows of a batch.

    Parameters
    ----------
    group : ParameterGroup
        The part of the group that lies in this shard.
    w : array of shape (n_rows, width)
        All parameters of the shard.
    opt_state : dict of arrays
        The optimizer's state of all parameters of the shard.
    backend : Backend
    coordinates : bool
        Whether most rows of a gradient are zero (sparse batches).

    Attributes
    ----------
    rows : slice
        Rows of the group within the shard.
    covers_shard : bool
        Whether the group is the whole shard, so that gradients need not be sliced.
    """

    def __init__(
        self,
        group: ParameterGroup,
        w: Any,
        opt_state: dict[str, Any],
        backend: Backend,
        coordinates: bool,
    ) -> None:
        rows, k = group.rows, group.n_penalised
        self.group = group
        self.rows = rows
        self.covers_shard = group.stop - group.start == w.shape[0]
        self._w = w if self.covers_shard else w[rows, ...]
        self._opt_state = {name: opt_state[name][rows, ...] for name in group.state_names}
        self._l2 = group.penalty.l2 if k else 0.0
        self._slices = self._slice_rows(backend.device == "cpu", _make_l1_strengths(group, w))
        self._coordinates = coordinates
        self._backend = backend
        # On a device, the compiled step has the formulas of built-in optimizers. On the host it
        # compiles the optimizer's own update, so that any optimizer can be fused there.
        self._can_fuse = (
            group.descends
            and not group.rates
            and (_is_builtin_optimizer(group.optimizer) or backend.device == "cpu")
        )
        self._update: Callable[[Any, float, float, int], bool] | None = None

    def __call__(
        self, grad: Any, n_rows: float, learning_rate: float, step_number: int, fused: bool
    ) -> None:
        """Take one step; `grad` is a sum over `n_rows` rows of data, and may be overwritten."""
        group = self.group
        # Buffers are running means, additive rows are sums; neither is updated by an optimizer.
        if group.buffer:
            if group.retention != 1:
                self._w *= group.retention
            self._w -= grad / n_rows
            return
        if group.additive:
            self._w -= grad if group.rate == 1 else group.rate * grad
            return
        learning_rate *= group.rate
        if fused and self._can_fuse:
            if self._update is None:
                self._update = self._bind_update(n_rows, learning_rate, step_number)
            # False means that the backend has no kernel for these arrays.
            if self._update(grad, n_rows, learning_rate, step_number):
                return
        for row_slice in self._slices:
            own_grad = grad[row_slice.rows, ...]
            self._step_slice(row_slice, own_grad, n_rows, learning_rate, step_number)

    def _step_slice(
        self, row_slice: _RowSlice, grad: Any, n_rows: float, learning_rate: float,
        step_number: int,
    ) -> None:  # fmt: skip
        """Take the step of one slice by array operations; `grad` is overwritten."""
        grad /= n_rows
        k = row_slice.n_penalised
        # The gradient of the L2 penalty is added to that of the loss; L1 is the optimizer's
        # proximal step.
        if self._l2 and k == grad.shape[0]:
            grad += self._l2 * row_slice.w
        elif self._l2 and k:
            grad[:k, :] += self._l2 * row_slice.w[:k, ...]
        self.group.update(
            row_slice.w, grad, row_slice.opt_state, learning_rate, step_number, row_slice.l1
        )

    def _slice_rows(self, on_host: bool, l1: Any) -> list[_RowSlice]:
        """Return the slices in which rows are stepped: one slice unless steps are elementwise."""
        n_rows, width = self._w.shape
        # An optimizer that uses all entries (a norm, a matrix) needs the whole group.
        is_elementwise = on_host and self.group.optimizer.elementwise_update is not None
        max_rows = max(_SLICE_ENTRIES // width, 1) if is_elementwise else n_rows
        return [
            _RowSlice(
                rows,
                self._w[rows, ...],
                {name: array[rows, ...] for name, array in self._opt_state.items()},
                min(max(self.group.n_penalised - rows.start, 0), rows.stop - rows.start),
                l1 if isinstance(l1, float) else l1[rows, ...],
            )
            for rows in row_slices(n_rows, max_rows)
        ]

    def _bind_update(self, n_rows: float, learning_rate: float, step_number: int) -> Any:
        """Return the backend's fused step, bound to the group's arrays."""
        group = self.group
        l1, l2, k = group.penalty.l1, group.penalty.l2, group.n_penalised
        # The arrays are bound once; each step then passes only its gradient and scalars.
        step = Step(
            self._w, None, self._opt_state, n_rows, learning_rate, step_number, l1, l2, k,
            self._coordinates,
        )  # fmt: skip
        return self._backend.updater(group.optimizer, step)


def _make_l1_strengths(group: ParameterGroup, w: Any) -> Any:
    """Return the l1 strength of each row as a column, or 0.0 if the group has no l1 penalty."""
    if group.penalty.l1 == 0 or not group.descends:
        return 0.0
    # Always an array, not a float if all rows are penalised: a step must give the same bits however
    # the rows are sliced.
    strengths = zeros((group.stop - group.start, 1), w.dtype, w)
    strengths[: group.n_penalised, :] = group.penalty.l1
    return strengths


def _is_builtin_optimizer(optimizer: Optimizer) -> bool:
    """Return whether an optimizer is built in; a subclass may step differently."""
    return type(optimizer) is OPTIMIZERS.get(optimizer.name)


def find_group_rows(group: ParameterGroup, index: NDArray[np.int64] | None) -> slice:
    """Return the slice of a sorted array of row numbers (None: of all) that is in the group."""
    if index is None:
        return group.rows
    start, stop = np.searchsorted(index, (group.start, group.stop)).tolist()
    return slice(start, stop)


class TouchedRowSteps:
    """Steps of the rows of a group that a batch touched, with the penalty pending for them.

    Rows are penalised lazily: a row that was not touched for some steps gets the penalty of all of
    them when it is next touched.

    Parameters
    ----------
    group : ParameterGroup
        The part of the group in this shard.
    w : array of shape (n_rows, width)
        All parameters of the shard.
    opt_state : dict of arrays
        The optimizer's state of all parameters of the shard.
    row_rate_sums : ndarray of float64 of shape (n_rows,), or None
        Sum of the group's learning rates up to which each row has been penalised; None if there is
        no lazy penalty.
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
        rows = group.rows
        self._group = group
        self._covers_shard = group.stop - group.start == w.shape[0]
        self._w = w if self._covers_shard else w[rows]
        self._opt_state = {name: opt_state[name][rows] for name in group.state_names}
        self._row_rate_sums = None if row_rate_sums is None else row_rate_sums[rows]
        self._backend = backend
        #: The backend's compiled step; False if it has none, None if not requested yet.
        self._compiled: Any = None

    def __call__(
        self, grad: Any, n_rows: float, index: NDArray[np.int64], learning_rate: float,
        step_number: int, rate_sum: float,
    ) -> None:  # fmt: skip
        """Take one step of the sorted rows `index`; `rate_sum` is the sum of all rates so far."""
        group = self._group
        # Keep only the rows of this group.
        if not self._covers_shard:
            group_rows = find_group_rows(group, index)
            grad, index = grad[group_rows], index[group_rows] - group.start
            if not len(index):
                return
        if group.buffer:
            if group.retention != 1:
                self._w[index] *= group.retention
            self._w[index] -= grad / n_rows
            return
        if group.additive:
            self._w[index] -= grad if group.rate == 1 else group.rate * grad
            return
        learning_rate, rate_sum = learning_rate * group.rate, rate_sum * group.rate
        # Compiled for these arrays at the first step that needs it.
        if self._compiled is None:
            self._compiled = self._bind_update(step_number)
        if self._compiled and grad.dtype == self._w.dtype:
            self._compiled(index, grad, n_rows, learning_rate, step_number, rate_sum)
        else:
            grad /= n_rows
            self._step_gathered_rows(grad, index, learning_rate, step_number, rate_sum)

    def _bind_update(self, step_number: int) -> Any:
        """Return the backend's step for touched rows, bound to the arrays; False if it has none."""
        group = self._group
        if group.rates:
            return False
        l1, l2, k = group.penalty.l1, group.penalty.l2, group.n_penalised
        step = Step(self._w, None, self._opt_state, 0.0, 0.0, step_number, l1, l2, k, True)
        return self._backend.coordinate_updater(group.optimizer, step, self._row_rate_sums) or False

    def _step_gathered_rows(
        self, grad: Any, index: NDArray[np.int64], learning_rate: float, step_number: int,
        rate_sum: float,
    ) -> None:  # fmt: skip
        """Step a copy of the rows and write it back; bit-identical to the compiled step."""
        w = self._w[index]
        opt_state = {name: array[index] for name, array in self._opt_state.items()}
        group = self._group
        # Rows are sorted and penalised rows come first, so the first k touched rows are penalised.
        k = int(np.searchsorted(index, group.n_penalised))
        l1, l2 = group.penalty.l1, group.penalty.l2
        strength: Any = 0.0
        if self._row_rate_sums is not None and (l1 or l2) and learning_rate > 0:
            pending = (rate_sum - self._row_rate_sums[index])[:, None]
            pending[k:] = 0
            # The pending penalty, as a number of steps at the present learning rate.
            elapsed = (pending / learning_rate).astype(w.dtype)
            strength = l1 * elapsed if l1 else 0.0
            if l2:
                # Capped, so that the penalty of many missed steps does not overshoot zero.
                grad += l2 * np.minimum(elapsed, 1 / (group.by_column(learning_rate, w) * l2)) * w
            self._row_rate_sums[index] = rate_sum
        group.update(w, grad, opt_state, learning_rate, step_number, strength)
        self._w[index] = w
        for name, array in opt_state.items():
            self._opt_state[name][index] = array


#: Rows whose pending penalty is applied at a time.
_PENALTY_ROWS = 1 << 18


class Shard:
    """Rows ``start`` to ``start + len(state.w)`` of the parameters, and their updates.

    Not thread-safe: threads that share a shard use a lock, or race on purpose (``"hogwild"``).

    Parameters
    ----------
    rule : UpdateRule
    state : ShardState
        Taken over without a copy.
    start : int, default=0
        Number of the shard's first row in the whole parameters.
    backend : Backend or None
        Backend of the device that holds the state, or None for the host's. It may have a kernel for
        whole steps.
    """

    def __init__(
        self,
        rule: UpdateRule,
        state: ShardState,
        start: int = 0,
        backend: Backend | None = None,
    ) -> None:
        self._backend = get_backend("cpu") if backend is None else backend
        self._fused = False
        self._first_row = start
        self._noise: NoiseStream | None = None
        self.rule = rule
        self.w = state.w
        self.opt_state = state.opt_state or rule.init(state.w, start)
        self._n_outer_steps = state.n_outer_steps if state.opt_state else 0
        self._take_outer_state()
        self.version = 0
        self.rows = state.rows
        self._first_step = state.step
        #: Step at which the optimizer was restarted; it counts its steps from there.
        self._optimizer_since = 0
        #: Parameters towards which `rule.proximal` pulls; None if there are none.
        self.anchor: Any = None
        self.change_rule(rule)
        # Built-in optimizers give the same bits by array operations and compiled.
        self._has_equal_bits = all(_is_builtin_optimizer(group.optimizer) for group in self._groups)
        # Sum of the learning rates so far, and its value when the penalty of each row was last
        # applied; the difference is the pending penalty (lazy regularisation).
        self._rate_sum = 0.0
        #: The rate sum at which no row had a pending penalty; None if unknown.
        self._applied_rate_sum: float | None = 0.0
        self._row_rate_sums = np.zeros(len(self.w)) if rule.penalty_is_lazy else None
        self._published: NDArray[Any] | None = None
        self._sum: NDArray[np.float64] | None = None
        self._n_summed = state.n_averaged
        if state.average is not None and state.n_averaged:
            xp = namespace(state.average)
            self._sum = cast(state.average, xp.float64) * state.n_averaged

    def _take_outer_state(self) -> None:
        """Keep the outer-step state of an earlier fit only if all of it suits this rule."""
        outer, opt_state = self.rule.outer, self.opt_state
        needed = () if outer is None else outer.state_names
        outer_names = {name for name in opt_state if name.startswith(OUTER_PREFIX)}
        if outer_names == {*needed}:
            return
        optimizer_state = {
            name: array for name, array in opt_state.items() if name not in outer_names
        }
        outer_state = {} if outer is None else outer.init(self.w)
        # After other policies or optimizers, lanes start from other parameters than the stored
        # ones. The residual of compression may be missing, or be present without need.
        residual = {"outer_residual"}
        if outer_names - residual == {*needed} - residual:
            outer_state |= {name: opt_state[name] for name in outer_names & outer_state.keys()}
        else:
            self._n_outer_steps = 0
        self.opt_state = optimizer_state | outer_state

    def _bind_steps(self) -> list[_GroupSteps]:
        """Return the steps of the groups, bound to the arrays that now hold the parameters."""
        by_coordinates = self.rule.coordinates
        #: Steps of touched rows of each group; None until they are needed.
        self._touched_row_steps: list[TouchedRowSteps] | None = None
        return [
            _GroupSteps(part, self.w, self.opt_state, self._backend, by_coordinates)
            for part in self._groups
        ]

    def change_rule(self, rule: UpdateRule) -> None:
        """Change to a rule that differs only in penalties."""
        self.rule = rule
        start, stop = self._first_row, self._first_row + self.w.shape[0]
        parts = [group.part_within(start, stop) for group in rule.groups]
        #: The part of each group in this shard.
        self._groups = [part for part in parts if part.start < part.stop or len(parts) == 1]
        self._steps = self._bind_steps()

    @property
    def _only_group(self) -> ParameterGroup:
        """Return the only group of the parameters that is not a sum."""
        (group,) = (group for group in self._groups if not group.additive)
        return group

    @property
    def step(self) -> int:
        """Return the number of steps applied, including those of earlier parts of the fit."""
        return self._first_step + self.version

    def learning_rate(self, ahead: float = 0.0) -> float:
        """Return the learning rate of the next step, or of the one after `ahead` more updates."""
        # If several shards or replicas make the steps of a fit, each applies a share of them.
        steps_done = (self.step + ahead) / self.rule.step_share
        number = round(steps_done * self.rule.scheduled_steps) + 1
        return self.rule.schedule(number, steps_done / self.rule.steps_per_pass)

    def steps_at_once(self, max_steps: int) -> int:
        """Return how many of the next `max_steps` steps share the first one's learning rate."""
        first = self.learning_rate()
        steps_of_same_rate = itertools.takewhile(
            lambda n: self.learning_rate(n) == first, range(1, max_steps)
        )
        return 1 + sum(1 for _ in steps_of_same_rate)

    def apply(
        self,
        grad: NDArray[Any],
        rows: float,
        index: NDArray[np.int64] | None = None,
        scale: float = 1.0,
    ) -> None:
        """Apply one step."""
        rate = self._count_step(rows, scale)
        if rows > 0:
            if self.anchor is not None and self.rule.proximal:
                self._add_pull_back(grad, rows)
            if self.rule.noise is not None:
                grad = grad + self._draw_noise()
            # Clipping scales the gradient before the optimizer uses it.
            if self.rule.clip is not None:
                self._clip_gradient(grad, rows, index)
            if index is None:
                # All rows, group by group. The backend decides by the step's number whether to use
                # the compiled step, so that each run makes a step in the same way.
                if not self._fused:
                    n_rows, width = self.w.shape
                    self._fused = self._backend.updates_at(
                        self.version, n_rows * width, self._has_equal_bits
                    )
                for steps in self._steps:
                    part = grad if steps.covers_shard else grad[steps.rows, ...]
                    steps(part, rows, rate, self._optimizer_step, self._fused)
            elif len(index):
                if self._touched_row_steps is None:
                    arrays = self.w, self.opt_state, self._row_rate_sums, self._backend
                    self._touched_row_steps = [
                        TouchedRowSteps(group, *arrays) for group in self._groups
                    ]
                for row_steps in self._touched_row_steps:
                    row_steps(grad, rows, index, rate, self._optimizer_step, self._rate_sum)
        self._add_to_average()

    def _add_pull_back(self, grad: Any, rows: float) -> None:
        """Add the gradient of half the squared distance from the anchor (FedProx)."""
        # Gradients are sums over rows; running means and sums are not gradients.
        for group in (group for group in self._groups if group.descends):
            group_rows = group.rows
            grad[group_rows, ...] += (
                self.rule.proximal * rows * (self.w[group_rows, ...] - self.anchor[group_rows, ...])
            )

    def skip(self, steps: int, rows: float = 0.0) -> None:
        """Count steps that other lanes make, so that schedules advance."""
        self.version += steps
        self.rows += rows
        self._published = None

    def restart_optimizer(self) -> None:
        """Let the optimizer count its steps from now on; its state is new."""
        self._optimizer_since = self.step

    @property
    def _optimizer_step(self) -> int:
        """Return the number of steps that the optimizer has made."""
        return self.step - self._optimizer_since

    def _count_step(self, rows: float, scale: float = 1.0) -> float:
        """Count a step, and return its learning rate."""
        # A NumPy float64 would widen a float32 step.
        rate = float(self.learning_rate() * scale)
        self.version += 1
        self.rows += rows
        self._rate_sum += rate
        self._published = None
        return rate

    def _draw_noise(self) -> NDArray[Any] | None:
        """Return the noise of the last counted step; None without noise."""
        if self.rule.noise is None:
            return None
        if self._noise is None:
            self._noise = self.rule.noise.open(self.w, self._first_row)
        return self._noise.draw(self.step)

    @property
    def on_device(self) -> bool:
        """Return whether the state lies on a device."""
        return self._backend.device != "cpu"

    @property
    def steps_alone(self) -> bool:
        """Return whether the backend may make several steps in one call."""
        if not self.on_device:
            return self.rule.steps_alone
        return self.rule.can_run_in_kernels and _is_builtin_optimizer(self.rule.groups[0].optimizer)

    def empty_step(self) -> Step:
        """Return the next step, with no rows, which changes nothing."""
        return replace(self._describe_step(0.0, 0.0), number=self._optimizer_step + 1)

    def next_steps(self, rows: Sequence[float]) -> list[Step]:
        """Count steps with these numbers of rows, and return them, to be made in one call."""
        return [self._describe_step(n, self._count_step(n)) for n in rows]

    def uncount_steps(self, steps: Sequence[Step]) -> None:
        """Undo the counting of the last steps of :meth:`next_steps`, which were not made."""
        self.version -= len(steps)
        for step in steps:
            self.rows -= step.rows
            self._rate_sum -= step.lr

    def _describe_step(self, rows: float, rate: float) -> Step:
        """Return a step over all rows, without its gradient, in the form that backends take."""
        group, by_coordinates = self._only_group, self.rule.coordinates
        l1, l2, k = group.penalty.l1, group.penalty.l2, group.n_penalised
        number = max(self._optimizer_step, 1)  # an empty step may be described before the first
        return Step(
            self.w,
            None,
            self.opt_state,
            rows,
            rate,
            number,
            l1,
            l2,
            k,
            by_coordinates,
            self._row_rate_sums,
            self._rate_sum,
            self._draw_noise(),
        )

    def interleave(self) -> NDArray[Any]:
        """Store all numbers of each parameter side by side, so that they share a cache line.

        For parameters of width 1 that step by coordinates.
        """
        names = self._only_group.state_names
        row_rate_sums = (
            np.zeros(len(self.w)) if self._row_rate_sums is None else self._row_rate_sums
        )
        parts = [self.w[:, 0], *(self.opt_state[name][:, 0] for name in names), row_rate_sums]
        # A power of two of numbers per parameter, so that none straddles two cache lines.
        cells = np.zeros((len(self.w), 1 << (len(parts) - 1).bit_length()), dtype=self.w.dtype)
        for column, part in enumerate(parts):
            cells[:, column] = part
        self.w, self._row_rate_sums = cells[:, :1], cells[:, len(parts) - 1]
        self.opt_state |= {name: cells[:, i : i + 1] for i, name in enumerate(names, start=1)}
        self._steps = self._bind_steps()
        return cells

    @property
    def rate_sum(self) -> float:
        """Return the sum of all steps' learning rates, which measures pending penalties."""
        return self._rate_sum

    def count_row_steps(self, rows: Sequence[int], rate: float) -> None:
        """Count batches of which each row was a step, made on :meth:`interleave`'s cells.

        `rate` is the mean learning rate of the rows.
        """
        for n in rows:
            self._rate_sum += n * rate
        self.version += len(rows)
        self.rows += sum(rows)
        self._published = None

    def _clip_gradient(self, grad: Any, rows: float, index: NDArray[np.int64] | None) -> None:
        """Clip the mean gradient to the largest norm; untouched rows contribute zero."""
        xp = namespace(grad)
        # Running means and sums are not gradients, and do not count in the norm.
        groups = [group for group in self._groups if group.descends]
        group_rows = [
            group.rows if index is None else find_group_rows(group, index) for group in groups
        ]
        parts = [grad[row_numbers, ...] for row_numbers in group_rows]
        total = sum(float(xp.sum(cast(part, xp.float64) ** 2)) for part in parts)
        # The gradient is a sum over rows; the norm of its mean is bounded.
        norm = float(total) ** 0.5 / rows
        assert self.rule.clip is not None
        if norm > self.rule.clip:
            for part in parts:
                part *= self.rule.clip / norm

    def add(
        self,
        delta: NDArray[Any],
        rows: float,
        index: NDArray[np.int64] | None = None,
        steps: int = 0,
    ) -> None:
        """Add the changes that another process made in some steps (``"hogwild"``).

        They are of all rows or of distinct sorted ones. Running means are first multiplied by their
        retention in these steps.
        """
        for group in self._groups:
            if group.retention != 1:
                group_rows = find_group_rows(group, index)
                self.w[group_rows if index is None else index[group_rows]] *= group.retention**steps
        if index is None:
            self.w += delta
        else:
            self.w[index] += delta
        self.rows += rows
        self.version += 1
        self._published = None
        self._add_to_average()

    def clear_means_and_sums(self, values: NDArray[Any], index: NDArray[np.int64] | None) -> None:
        """Set rows of running means and sums to zero in `values`, which has some rows or all."""
        for group in self._groups:
            if not group.descends:
                values[find_group_rows(group, index)] = 0

    def apply_pending_penalty(self, by_optimizer: bool = False) -> None:
        """Apply the pending penalty of untouched rows (coordinates only).

        With `by_optimizer`, in steps as long as the optimizer's, as where each row of the data is a
        step; at most as long as without it, since parameters without gradients have no length.
        """
        if self._row_rate_sums is None or self._rate_sum == self._applied_rate_sum:
            return
        self._applied_rate_sum = self._rate_sum
        for group in self._groups:
            sizes = None
            if by_optimizer:
                state = {name: self.opt_state[name][group.rows] for name in group.state_names}
                sizes = np.minimum(group.optimizer.step_sizes(state), 1.0)
            self._apply_pending_penalty_of(
                group, self.w[group.rows], self._row_rate_sums[group.rows], sizes
            )
        self._published = None

    def _apply_pending_penalty_of(
        self,
        group: ParameterGroup,
        w: NDArray[Any],
        row_rate_sums: NDArray[np.float64],
        sizes: Any,
    ) -> None:
        """Apply the penalty that is pending for the rows of a group."""
        rate_sum, penalty = self._rate_sum * group.rate, group.penalty
        for rows in row_slices(group.n_penalised, _PENALTY_ROWS):
            if not (penalty.l1 or penalty.l2):
                break
            # Lazy regularisation (Carpenter 2008): the penalty of all steps since the row was last
            # touched. L2 shrinks by the proximal step 1 / (1 + rate * l2), L1 by soft thresholding.
            # Threads that race estimate the steps of all, and may be some steps ahead.
            rate_sums = np.maximum(rate_sum - row_rate_sums[rows], 0.0)
            pending = group.by_column(rate_sums.astype(w.dtype)[:, None], w)
            if sizes is not None:
                pending = pending * (sizes[rows] if np.ndim(sizes) else w.dtype.type(sizes))
            w[rows] /= 1 + pending * penalty.l2
            if penalty.l1:
                soft_threshold(w[rows], pending * penalty.l1)
        np.maximum(row_rate_sums, rate_sum, out=row_rate_sums)

    def _add_to_average(self) -> None:
        """Add the parameters to the sum of their average, if averaging has begun."""
        min_rows = self.rule.average_after
        if min_rows is None or self.rows < min_rows:
            return
        # Averaged SGD (Polyak and Juditsky 1992): summed in float64, whatever the dtype of the fit.
        if self._sum is None:
            self._sum = zeros(self.w.shape, np.float64, self.w)
        self._sum += self.w
        self._n_summed += 1

    def replace(self, w: NDArray[Any], index: NDArray[np.int64] | None = None) -> None:
        """Replace the parameters, or some rows of them; the optimizer state stays."""
        self.w[... if index is None else index] = w
        self._published = None

    def take_outer_step(self, mean: NDArray[Any]) -> None:
        """Continue from the mean over lanes by the rule's outer step; optimizer state stays."""
        if self.rule.outer is None:
            self.replace(mean)
            return
        self._n_outer_steps += 1
        self.rule.outer.take(self.w, mean, self.opt_state, self._n_outer_steps)
        self._published = None

    def rescale(self, largest: NDArray[np.float64], norm: float) -> None:
        """Adapt to rows of larger values, if the optimizer keeps scales of the features."""
        kind: Any = next((g.optimizer for g in self._groups if g.optimizer.uses_scales), None)
        if kind is None:
            return
        opt_state = dict(self.opt_state)
        kind.rescale(self.w, opt_state, largest, norm)
        for name, array in opt_state.items():  # in place, since steps are bound to the arrays
            self.opt_state[name][...] = array
        self._published = None

    def snapshot(self) -> ShardSnapshot:
        """Return a copy of the whole state."""
        return ShardSnapshot(
            copy_array(self.w),
            {name: copy_array(array) for name, array in self.opt_state.items()},
            self.version,
            self._first_step,
            self.rows,
            self._rate_sum,
            None if self._row_rate_sums is None else copy_array(self._row_rate_sums),
            None if self._sum is None else copy_array(self._sum),
            self._n_summed,
            self._n_outer_steps,
        )

    def snapshot_at(self, position: int, max_snapshots: int, is_complete: bool) -> ShardSnapshot:
        """Return a snapshot to keep, as one of `max_snapshots`, and to send to a standby.

        If it is not `is_complete`, it may contain only the changes since the last one.
        """
        return self.snapshot()

    def follow(self, position: int, snapshot: ShardSnapshot, max_snapshots: int) -> None:
        """Apply a standby's snapshot of a place; a plain shard keeps snapshots as they are."""

    def whole_snapshot(self, position: int, snapshot: ShardSnapshot) -> ShardSnapshot:
        """Return the full snapshot of a place from its kept one."""
        return snapshot

    def go_back(self, position: int, snapshot: ShardSnapshot) -> None:
        """Go back to a place, given its snapshot."""
        self.restore(snapshot)

    def restore(self, snapshot: ShardSnapshot) -> None:
        """Restore the state of a snapshot, which is not changed."""
        self.w = copy_array(snapshot.w)
        self.opt_state = {name: copy_array(array) for name, array in snapshot.opt_state.items()}
        self.version, self._first_step = snapshot.version, snapshot.first_step
        self.rows, self._rate_sum = snapshot.rows, snapshot.rate_sum
        self._row_rate_sums = (
            None if snapshot.row_rate_sums is None else copy_array(snapshot.row_rate_sums)
        )
        self._sum = None if snapshot.total is None else copy_array(snapshot.total)
        self._n_summed, self._n_outer_steps = snapshot.n_summed, snapshot.n_outer_steps
        self._steps, self._applied_rate_sum = self._bind_steps(), None
        self._published = None

    def take(self, index: NDArray[np.int64]) -> NDArray[Any]:
        """Return a copy of some rows of the parameters."""
        return self.w[index]

    def published(self) -> NDArray[Any]:
        """Return a read-only copy of the parameters at this version; one copy per version."""
        if self._published is None:
            self._published = self.w.copy()
            self._published.flags.writeable = False
        return self._published

    def state(self, copy: bool = True) -> ShardState:
        """Apply pending penalties, and return a copy of everything that a later fit needs.

        Without `copy`, the shard's own arrays are returned; the shard must not be used afterwards.
        """
        self.apply_pending_penalty()
        average = None
        if self._sum is not None:
            average = cast(self._sum / self._n_summed, self.w.dtype)
        shard_state = ShardState(
            self.w,
            self.opt_state,
            self.step,
            self.rows,
            average,
            self._n_summed,
            self._n_outer_steps,
        )
        return shard_state.slice_rows(slice(None)) if copy else shard_state
