"""Steps of centres along a stream: what a lone step is followed by, without a fit around it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from daskml_dist.cluster._mini_batches import begin_anew
from daskml_dist.data.blocks import Block
from daskml_dist.data.collection import as_collection
from daskml_dist.models.base import BatchRows
from daskml_dist.models.centres import Centres, Reassignment
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.streaming.start import Started
from daskml_dist.streaming.steps import Steps
from daskml_dist.training.in_process import InProcessEngine
from daskml_dist.training.spec import FitSpec

__all__ = ["StartedCentres", "StepsOfCentres"]


class StepsOfCentres(Steps):
    """Steps of centres, each of all rows of a call; centres of few rows begin anew after it.

    Parameters
    ----------
    fit : FitSpec
        Of one lane.
    ratio : float
        Share of the largest count below which a count is low.
    look : int
        Rows from one look for these to the next.
    n_since : int
        Rows since the last look.

    Attributes
    ----------
    n_since : int
    inertia : float
        Of the last call's rows, before their step.
    """

    def __init__(self, fit: FitSpec, ratio: float, look: int, n_since: int) -> None:
        super().__init__(fit, None)
        self._fit, self._ratio, self._look = fit, ratio, look
        self.n_since = n_since
        self.inertia = 0.0

    def take(self, rows: BatchRows, block: Block) -> float:
        """As in :class:`Steps`; the sum of the squared distances before the step."""
        has_rows = (self._centres.parts(self.shard.w)[0] > 0).all()
        self.inertia = super().take(rows, block)
        self.n_since += block.n_rows
        if self.n_since >= self._look or not has_rows:
            self.n_since = 0
            self._begin_anew(block)
        return self.inertia

    @property
    def _centres(self) -> Centres:
        model = self._fit.steps.model
        assert isinstance(model, Centres)
        return model

    def _begin_anew(self, block: Block) -> None:
        """Let centres of few rows begin anew at rows of a call."""
        model, n = self._centres, block.n_rows
        k, none = len(model.first), np.empty((0, model.n_features))
        rule = Reassignment(k, self._ratio, none, (0,), self._look / n, max(1, n // 2))
        if not (self._ratio and rule.low(model.parts(self.shard.w)[0]).any()):
            return
        state: Any = ShardState(self.shard.w, {}, self.shard.step)
        weighted = None if block.sample_weight is None else 1.0
        spec = replace(self._fit.rows, lane_rows=(n,), weight_scale=weighted)
        with InProcessEngine(as_collection(block.rows, None, block.sample_weight)) as engine:
            engine.survey()
            engine.lanes(1, share=None, passes=1)
            begin_anew(engine, replace(self._fit, rows=spec), state, rule)
        self.shard.replace(state.w)


class StartedCentres(Started):
    """A stream of centres that has seen its first rows."""

    steps: StepsOfCentres

    def facts(self) -> dict[str, Any]:
        """As of any stream, with the rows since the last look for centres of few."""
        return {**self.likeness, "n_since": self.steps.n_since}
