"""Steps of a stream: the parameters and the optimizer's state, which stay between calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import get_backend
from daskml_dist.backends.denormals import arithmetic
from daskml_dist.backends.namespace import scalar
from daskml_dist.data.blocks import Block
from daskml_dist.data.feature_scales import compute_block_scales
from daskml_dist.models.base import BatchRows
from daskml_dist.optimizers import NAG
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training.spec import FitSpec
from daskml_dist.training.threads import OneThread, TrainerCores

__all__ = ["Steps"]


class Steps:
    """Steps of one model in the calling process, each along the gradient of some rows.

    Parameters
    ----------
    fit : FitSpec
        Of one lane.
    batch_rows : int or None
        Rows of a step at most; None: all rows of a call.
    rule_of : callable
        Rule of steps of so many rows, of the fit's own; by default the same.
    """

    def __init__(
        self,
        fit: FitSpec,
        batch_rows: int | None,
        rule_of: Callable[[UpdateRule, int], UpdateRule] = lambda rule, n_rows: rule,
    ) -> None:
        #: Context of each call's steps, where the estimator asks for one.
        self.around: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._work = work = fit.steps
        self._model: Any = work.model
        self._backend = get_backend("cpu")
        self.batch_rows = batch_rows
        self._rule_of = rule_of
        # Those of a trainer that is alone in its process.
        self._threads = 1 if fit.run.deterministic else max(1, len(TrainerCores.own(1).cores))
        #: Rows of a step that the shard's rule is for.
        self._ruled: int | None = None
        self._few = work.coordinates
        self.shard = Shard(work.rule, fit.make_start_state())
        self._gradient = np.zeros_like(self.shard.w)
        kinds = [group.optimizer for group in work.rule.groups]
        self._scaled = next((kind for kind in kinds if isinstance(kind, NAG)), None)
        #: Whether the fit took its scales from the rows that come next.
        self._has_scales = True

    def resumed(self) -> None:
        """Note that the rows which come next are not those that the fit was planned by."""
        self._has_scales = False

    def take(self, rows: BatchRows, block: Block) -> float:
        """Take the steps of a call's rows; the sum of their losses, each before its step."""
        n_rows, most = block.n_rows, self.batch_rows
        self._follow(n_rows if most is None else min(n_rows, most))
        with ExitStack() as stack:
            stack.enter_context(np.errstate(over="ignore", invalid="ignore"))
            if self._model.linear is None:
                # As a trainer does, so that the sums stay the same.
                stack.enter_context(self.around())
                stack.enter_context(OneThread())
                stack.enter_context(arithmetic(self._model.flushes))
                stack.enter_context(self._model.computing(self._threads))
            if (scales := self.scales_of(block)) is not None:
                self.shard.rescale(*scales)
            loss = self._steps(rows, n_rows)
        if self._few:
            self.shard.apply_pending_penalty()  # as at the end of a pass
        return loss

    def _steps(self, rows: BatchRows, n_rows: int) -> float:
        loss = 0.0
        for pieces, n in self.pieces(rows, n_rows, self.shard.step):
            loss += self._step(pieces, n)
        return loss

    def pieces(
        self, rows: BatchRows, n_rows: int, step: int
    ) -> Iterator[tuple[list[BatchRows], int]]:
        """Pieces of each step of a call, which comes after so many steps, and its rows."""
        most = self.batch_rows
        several = most is not None and n_rows > most
        # The same cuts as those of a pass.
        n_steps = -(-n_rows // most) if several and most else 1
        for clock in range(n_steps):
            a, b = clock * n_rows // n_steps, (clock + 1) * n_rows // n_steps
            pieces = self._pieces(rows, a, b, several)
            for number, piece in enumerate(pieces):
                # Random streams are those of a fit that goes on from the steps so far.
                piece.key = (self._work.seed + step, 0, clock, number)
            yield pieces, b - a

    def reset(self, parameters: bool) -> None:
        """Begin the optimizer and the schedule anew, and the parameters where asked for."""
        old, work = self.shard, self._work
        old.apply_pending_penalty()
        w = work.model.init(work.seed, old.w.dtype) if parameters else old.w
        opt_state = old.rule.init(w, 0)
        if "scale" in opt_state:  # units of the features are none of what was learned
            opt_state["scale"] = old.opt_state["scale"]
        self.shard = Shard(old.rule, ShardState(w, opt_state))

    def _follow(self, n_rows: int) -> None:
        """Step by the rule of steps of so many rows from now on."""
        if n_rows != self._ruled:
            self._ruled = n_rows
            rule = self.rule_of(n_rows)
            if rule is not self._work.rule:
                self.shard.change_rule(rule)

    def rule_of(self, n_rows: int) -> UpdateRule:
        """Rule of steps of so many rows."""
        return self._rule_of(self._work.rule, n_rows)

    def _pieces(self, rows: BatchRows, start: int, stop: int, several: bool) -> list[BatchRows]:
        """Rows of a step, as many at once as the user says.

        Where a call has `several` steps, they are as a trainer's reader would make them: even
        shares, in memory of their own, since some libraries round by where rows lie.
        """
        n_rows, most = stop - start, self._work.micro_batch
        sparse = hasattr(rows.X, "indptr")
        if most is None and not (several or sparse):
            return [rows]
        copies = several and not sparse and self._model.linear is None
        most = n_rows if most is None else most
        n = -(-n_rows // most)
        ends = [n_rows * (i + 1) // n if copies else min((i + 1) * most, n_rows) for i in range(n)]
        cuts = itertools.pairwise([start, *(start + end for end in ends)])
        return [self._part(rows, slice(a, b), copies) for a, b in cuts]

    def _step(self, pieces: list[BatchRows], n_rows: int) -> float:
        shard, model, backend = self.shard, self._model, self._backend
        index, w, own = None, shard.w, None
        if self._few:
            index = model.touched(pieces, backend)
            w = shard.w[index]
        elif len(pieces) == 1:
            own = model.own_gradient(w, pieces[0], backend)
        if own is not None:
            gradient, loss = own
        else:
            gradient, loss = self._room(w), 0.0
            for rows in pieces:
                loss = loss + model.add_gradient(w, rows, gradient, backend)
        loss = float(scalar(loss))
        shard.apply(gradient, n_rows, index)
        return loss

    def _room(self, w: Any) -> Any:
        """Zeros like some parameters."""
        if w is not self.shard.w:
            return np.zeros_like(w)
        self._gradient[...] = 0
        return self._gradient

    def _part(self, rows: BatchRows, at: slice, copies: bool) -> BatchRows:
        y, weight = (None if a is None else a[at] for a in (rows.y, rows.weight))
        if copies:
            return BatchRows(rows.X[at].copy(), y, weight)
        backend = self._backend
        return BatchRows(backend.rows(rows.X, backend.row_numbers(at)), y, weight)

    def scales_of(self, block: Block) -> tuple[NDArray[np.float64], float] | None:
        """Largest values of the features and norm of a call's rows, where steps need them.

        That is where the optimizer keeps to units of the features, as another fit that goes on
        would, and the rows are not those that the fit was planned by.
        """
        has_scales, self._has_scales = self._has_scales, False
        if self._scaled is None or has_scales or self._model.linear is None:
            return None
        scales = compute_block_scales(block)
        if self._model.linear.fit_intercept:
            scales = scales.with_intercept()
        return scales.largest, scales.norm

    def units(self, largest: NDArray[np.float64], norm: float) -> NDArray[Any]:
        """Units of the parameters for rows of such scales."""
        assert self._scaled is not None
        units: NDArray[Any] = self._scaled.init_scaled(self.shard.w, largest, norm)["scale"]
        return units

    @property
    def n_behind(self) -> int:
        """Rows that were learned and that the state lacks: none."""
        return 0

    def settle(self) -> None:
        """Wait for nothing: all steps have been made."""

    def state(self) -> ShardState:
        """State after all steps; a copy."""
        return self.shard.state()

    def meeting(self) -> ShardState:
        """The same, which all lanes go on from."""
        return self.state()

    def close(self) -> None:
        """Let go of nothing."""
