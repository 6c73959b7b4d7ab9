"""Steps of a stream in the calling process.

`InProcessSteps` keeps a model's parameters and optimizer state between calls, and updates them with
each call's rows in the same way as a fit of one lane.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.devices import get_backend
from daskml_dist.backends.host_threads import BlasThreads, count_cores, flush_denormals
from daskml_dist.backends.namespace import scalar
from daskml_dist.data.blocks import Block
from daskml_dist.data.feature_scales import compute_block_scales
from daskml_dist.models.base import BatchRows
from daskml_dist.optimizers.adagrad import NAG
from daskml_dist.ps.growing_shard import make_shard
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training.spec import FitSpec


class InProcessSteps:
    """Gradient steps of one model in the calling process; the state stays between calls.

    Parameters
    ----------
    fit : FitSpec
        Specification of a fit of one lane.
    batch_rows : int or None
        Most rows of a step; None: a step takes all rows of a call.
    rule_of : callable
        Function from the fit's update rule and a number of rows to the rule of steps of that many
        rows; by default the fit's own rule.
    """

    #: Number of learned rows that the state does not include: always 0 in this process.
    n_behind = 0

    def __init__(
        self,
        fit: FitSpec,
        batch_rows: int | None,
        rule_of: Callable[[UpdateRule, int], UpdateRule] = lambda rule, n_rows: rule,
    ) -> None:
        #: Context of each call's steps, if the estimator needs one.
        self.step_context: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._work = work = fit.steps
        self._model: Any = work.model
        self._backend = get_backend("cpu")
        self.batch_rows = batch_rows
        self._rule_of = rule_of
        # As many threads as a trainer uses that is alone in its process.
        self._n_threads = 1 if fit.run.deterministic else count_cores()
        #: Rows of a step for which the shard's rule was made; None before the first step.
        self._rule_rows: int | None = None
        self.shard = make_shard(work.rule, work.model.table, fit.make_start_state())
        self._gradient = np.zeros_like(self.shard.w[:0] if work.coordinates else self.shard.w)
        kinds = [group.optimizer for group in work.rule.groups]
        #: Optimizer that keeps a scale of each feature in its state; None if none does.
        self._scaled_optimizer = next((kind for kind in kinds if isinstance(kind, NAG)), None)
        #: Whether the optimizer's scales already include the next call's rows: true for the first
        #: call, from which the fit was planned.
        self._has_scales = True

    def note_resumed(self) -> None:
        """Record that the next rows are not those from which the fit was planned."""
        self._has_scales = False

    def learn_rows(self, rows: BatchRows, block: Block) -> float:
        """Make the steps of a call's rows; return the sum of their losses, each before its step."""
        n_rows, max_rows = block.n_rows, self.batch_rows
        step_rows = n_rows if max_rows is None else min(n_rows, max_rows)
        if step_rows != self._rule_rows:
            self._rule_rows = step_rows
            rule = self.rule_of(step_rows)
            if rule is not self._work.rule:
                self.shard.change_rule(rule)
        loss = 0.0
        with ExitStack() as stack:
            # No warning for an overflow: the session reports a loss that is not finite.
            stack.enter_context(np.errstate(over="ignore", invalid="ignore"))
            if self._model.linear is None:
                # The same threads and denormals as in a trainer, so that sums have the same bits.
                stack.enter_context(self.step_context())
                stack.enter_context(BlasThreads())
                stack.enter_context(flush_denormals(self._model.flushes))
                stack.enter_context(self._model.computing(self._n_threads))
            if (scales := self.find_scales(block)) is not None:
                self.shard.rescale(*scales)
            for pieces, n in self.cut_into_steps(rows, n_rows, self.shard.step):
                loss += self._step(pieces, n)
        if self._work.coordinates:
            self.shard.apply_pending_penalty()  # as at the end of a pass
        return loss

    def cut_into_steps(
        self, rows: BatchRows, n_rows: int, step: int
    ) -> Iterator[tuple[list[BatchRows], int]]:
        """Yield the micro-batches of each step of a call, and the step's number of rows.

        `step` is the number of steps made before the call.
        """
        max_rows = self.batch_rows
        several = max_rows is not None and n_rows > max_rows
        # The steps of a call have equal shares of its rows, as in a pass of a fit.
        n_steps = -(-n_rows // max_rows) if several and max_rows else 1
        for clock in range(n_steps):
            start, stop = clock * n_rows // n_steps, (clock + 1) * n_rows // n_steps
            pieces = self._cut_step(rows, start, stop, several)
            for number, piece in enumerate(pieces):
                # The key (seed, lane, clock, piece) of the random stream of a fit that continues
                # from here.
                piece.key = (self._work.seed + step, 0, clock, number)
            yield pieces, stop - start

    def reset(self, parameters: bool) -> None:
        """Reset the optimizer and the schedule, and with `parameters` also the parameters."""
        rule, learned = self.shard.rule, self.shard.state(copy=False)
        start = self._work.make_fresh_state(learned, parameters)
        self.shard = make_shard(rule, self._work.model.table, start)

    def rule_of(self, n_rows: int) -> UpdateRule:
        """Return the update rule of steps of `n_rows` rows."""
        return self._rule_of(self._work.rule, n_rows)

    def _cut_step(
        self, rows: BatchRows, start: int, stop: int, has_several_steps: bool
    ) -> list[BatchRows]:
        """Return the rows `start` to `stop` of one step, in micro-batches of the user's size.

        If a call has `has_several_steps` steps, they are cut as a trainer's reader cuts them: in
        equal shares and copied, since the rounding of some libraries depends on the rows' memory
        addresses.
        """
        n_rows, most = stop - start, self._work.micro_batch
        sparse = hasattr(rows.X, "indptr")
        if most is None and not (has_several_steps or sparse):
            return [rows]
        copies = has_several_steps and not sparse and self._model.linear is None
        most = n_rows if most is None else most
        n = -(-n_rows // most)
        ends = [n_rows * (i + 1) // n if copies else min((i + 1) * most, n_rows) for i in range(n)]
        bounds = itertools.pairwise([start, *(start + end for end in ends)])
        return [self._slice_rows(rows, slice(a, b), copies) for a, b in bounds]

    def _step(self, micro_batches: list[BatchRows], n_rows: int) -> float:
        """Make one step of `n_rows` rows; return the sum of their losses before it."""
        shard, model, backend = self.shard, self._model, self._backend
        index, w, gradient_and_loss = None, shard.w, None
        if self._work.coordinates:  # the gradient has only the touched rows
            index = model.touched(micro_batches, backend)
            w = shard.take(index)
        elif len(micro_batches) == 1:
            gradient_and_loss = model.own_gradient(w, micro_batches[0], backend)
        if gradient_and_loss is not None:  # in an array of the model itself
            gradient, loss = gradient_and_loss
        else:
            if index is None:
                gradient = self._gradient  # allocated once, for all steps
                gradient[...] = 0
            else:
                gradient = np.zeros_like(w)
            loss = 0.0
            for rows in micro_batches:
                loss = loss + model.add_gradient(w, rows, gradient, backend)
        loss = float(scalar(loss))
        shard.apply(gradient, n_rows, index)
        return loss

    def _slice_rows(self, rows: BatchRows, row_slice: slice, copies: bool) -> BatchRows:
        """Return some of the rows, with their targets and weights."""
        y, weight = (None if a is None else a[row_slice] for a in (rows.y, rows.weight))
        if copies:
            return BatchRows(rows.X[row_slice].copy(), y, weight)
        backend = self._backend
        return BatchRows(backend.rows(rows.X, backend.row_numbers(row_slice)), y, weight)

    def find_scales(self, block: Block) -> tuple[NDArray[np.float64], float] | None:
        """Return the largest value of each feature and the norm of a call's rows.

        Return None if steps do not need them: no optimizer keeps scales of features, or the scales
        already include the rows, since the fit was planned from them.
        """
        has_scales, self._has_scales = self._has_scales, False
        if self._scaled_optimizer is None or has_scales or self._model.linear is None:
            return None
        scales = compute_block_scales(block)
        if self._model.linear.fit_intercept:
            scales = scales.with_intercept()
        return scales.largest, scales.norm

    def compute_parameter_scales(self, largest: NDArray[np.float64], norm: float) -> NDArray[Any]:
        """Return the optimizer's scale of each parameter, for rows with these scales."""
        assert self._scaled_optimizer is not None
        units: NDArray[Any] = self._scaled_optimizer.init_scaled(self.shard.w, largest, norm)[
            "scale"
        ]
        return units

    def wait_until_learned(self) -> None:
        """Do nothing: all steps have been made."""

    def state(self) -> ShardState:
        """Return a copy of the state after all steps."""
        return self.shard.state()

    def synchronize(self) -> ShardState:
        """Return :meth:`state`; with several lanes, all lanes continue from it."""
        return self.state()

    def close(self) -> None:
        """Do nothing: there are no actors to close."""
