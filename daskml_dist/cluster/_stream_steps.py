"""Steps of centroids along a stream, and the reassignment of centroids of few rows after calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from daskml_dist.data.blocks import Block
from daskml_dist.models.base import BatchRows
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.streaming.start import StartedStream
from daskml_dist.streaming.steps import Steps
from daskml_dist.training.spec import FitSpec

if TYPE_CHECKING:
    pass
from dataclasses import dataclass, replace

import numpy as np

from daskml_dist.cluster._mini_batches import begin_anew
from daskml_dist.data.collection import as_collection
from daskml_dist.models.centroids import CentroidModel, Reassignment
from daskml_dist.training.job import INLINE, FitJob
from daskml_dist.training.spec import RunSettings

__all__ = ["CentroidSteps", "ReassignmentSchedule", "StartedCentroidStream"]


@dataclass
class ReassignmentSchedule:
    """Looks for centres of few rows, each after a call.

    Parameters
    ----------
    fit : FitSpec
        Of one lane.
    ratio : float
        Share of the largest count below which a count is low; 0: none is.
    every : int
        Rows from one look to the next; as long as a centre has no rows, each call has one.
    n_since : int
        Rows since the last look.
    """

    fit: FitSpec
    ratio: float
    every: int
    n_since: int

    def count(self, n_rows: int, before: Any) -> bool:
        """Count the rows of a call, given parameters before it: whether a look follows it."""
        self.n_since += n_rows
        if self.n_since < self.every and (self._centres.parts(before)[0] > 0).all():
            return False
        self.n_since = 0
        return self.ratio > 0

    def after(self, state: ShardState, block: Block) -> ShardState | None:
        """State in which centres of few rows have begun anew at rows of a call; None: all stay."""
        model, n = self._centres, block.n_rows
        k, none = len(model.first), np.empty((0, model.n_features))
        rule = Reassignment(k, self.ratio, none, (0,), self.every / n, max(1, n // 2))
        if not rule.low(model.parts(state.w)[0]).any():
            return None
        weighted = None if block.sample_weight is None else 1.0
        spec = replace(self.fit.rows, lane_rows=(n,), weight_scale=weighted)
        found = replace(state)
        collection = as_collection(block.rows, None, block.sample_weight)
        with FitJob(collection, INLINE, RunSettings(n_lanes=1)) as job:
            job.summarize_rows()
            job.lay_out_lanes(1)
            begin_anew(job, replace(self.fit, rows=spec), found, rule)
        return found

    @property
    def _centres(self) -> CentroidModel:
        model = self.fit.steps.model
        assert isinstance(model, CentroidModel)
        return model


class CentroidSteps(Steps):
    """Steps of centres, each of all rows of a call; centres of few rows begin anew after it.

    Parameters
    ----------
    fit : FitSpec
        Of one lane.
    looks : ReassignmentSchedule

    Attributes
    ----------
    looks : ReassignmentSchedule
    inertia : float
        Of the last call's rows, before their step.
    """

    def __init__(self, fit: FitSpec, looks: ReassignmentSchedule) -> None:
        super().__init__(fit, None)
        self.looks = looks
        self.inertia = 0.0

    def take(self, rows: BatchRows, block: Block) -> float:
        """As in :class:`Steps`; the sum of the squared distances before the step."""
        is_due = self.looks.count(block.n_rows, self.shard.w)
        self.inertia = super().take(rows, block)
        if is_due:
            state: Any = ShardState(self.shard.w, {}, self.shard.step)
            if (found := self.looks.after(state, block)) is not None:
                self.shard.replace(found.w)
        return self.inertia


class StartedCentroidStream(StartedStream):
    """A stream of centres that has seen its first rows."""

    steps: CentroidSteps

    def facts(self) -> dict[str, Any]:
        """As of any stream, with the rows since the last look for centres of few."""
        return {**self.likeness, "n_since": self.steps.looks.n_since}
