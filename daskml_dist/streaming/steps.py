"""Steps of a stream: the parameters and the optimizer's state, which stay between calls."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import get_backend
from daskml_dist.backends.denormals import arithmetic
from daskml_dist.backends.namespace import scalar
from daskml_dist.data.blocks import Block
from daskml_dist.data.scales import block_scales
from daskml_dist.models.base import BatchRows
from daskml_dist.optimizers import NAG
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training.spec import FitSpec

__all__ = ["Steps"]


class Steps:
    """Steps of one model in the calling process, each along the gradient of some rows.

    Parameters
    ----------
    fit : FitSpec
        Of one lane.
    batch_rows : int or None
        Rows of a step at most; None: all rows of a call.
    """

    def __init__(self, fit: FitSpec, batch_rows: int | None) -> None:
        self._work = work = fit.steps
        self._model: Any = work.model
        self._backend = get_backend("cpu")
        self.batch_rows = batch_rows
        self._few = work.coordinates
        self.shard = Shard(work.rule, fit.start_state())
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
        n_rows = block.n_rows
        with ExitStack() as stack:
            stack.enter_context(np.errstate(over="ignore", invalid="ignore"))
            if self._model.linear is None:
                stack.enter_context(arithmetic(self._model.flushes))
                stack.enter_context(self._model.computing(1))
            if (scales := self.scales_of(block)) is not None:
                self.shard.rescale(*scales)
            loss = self._steps(rows, n_rows)
        if self._few:
            self.shard.settle()  # as at the end of a pass
        return loss

    def _steps(self, rows: BatchRows, n_rows: int) -> float:
        most = self.batch_rows
        if most is None or n_rows <= most:
            is_sparse = hasattr(rows.X, "indptr")
            return self._step(self._part(rows, slice(0, n_rows)) if is_sparse else rows, n_rows)
        # The same cuts as those of a pass.
        n_steps = -(-n_rows // most)
        cuts = [i * n_rows // n_steps for i in range(n_steps + 1)]
        parts = itertools.pairwise(cuts)
        return sum(self._step(self._part(rows, slice(a, b)), b - a) for a, b in parts)

    def reset(self, parameters: bool) -> None:
        """Begin the optimizer and the schedule anew, and the parameters where asked for."""
        old, work = self.shard, self._work
        old.settle()
        w = work.model.init(work.seed, old.w.dtype) if parameters else old.w
        slots = work.rule.init(w, 0)
        if "scale" in slots:  # units of the features are none of what was learned
            slots["scale"] = old.slots["scale"]
        self.shard = Shard(work.rule, ShardState(w, slots))

    def _step(self, rows: BatchRows, n_rows: int) -> float:
        shard, model, backend = self.shard, self._model, self._backend
        rows.key = (self._work.seed, 0, shard.step, 0)
        if self._few:
            index = model.touched([rows], backend)
            w = shard.w[index]
            gradient: Any = np.zeros_like(w)
            loss = model.add_gradient(w, rows, gradient, backend)
        elif (own := model.own_gradient(shard.w, rows, backend)) is not None:
            index, (gradient, loss) = None, own
        else:
            index, gradient = None, self._gradient
            gradient[...] = 0
            loss = model.add_gradient(shard.w, rows, gradient, backend)
        loss = float(scalar(loss))
        shard.apply(gradient, n_rows, index)
        return loss

    def _part(self, rows: BatchRows, at: slice) -> BatchRows:
        y, weight = (None if a is None else a[at] for a in (rows.y, rows.weight))
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
        scales = block_scales(block)
        if self._model.linear.fit_intercept:
            scales = scales.with_intercept()
        return scales.largest, scales.norm

    def units(self, largest: NDArray[np.float64], norm: float) -> NDArray[Any]:
        """Units of the parameters for rows of such scales."""
        assert self._scaled is not None
        units: NDArray[Any] = self._scaled.init_scaled(self.shard.w, largest, norm)["scale"]
        return units

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
