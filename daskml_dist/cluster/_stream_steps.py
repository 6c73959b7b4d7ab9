"""Steps of centroids along a stream, with reassignment of low-count centroids after calls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from daskml_dist.cluster._mini_batches import reassign_low_centroids
from daskml_dist.data.blocks import Block
from daskml_dist.data.collection import as_collection
from daskml_dist.models.base import BatchRows
from daskml_dist.models.centroids import CentroidModel, Reassignment
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.streaming.start import StartedStream
from daskml_dist.streaming.steps import InProcessSteps
from daskml_dist.training.job import INLINE, FitJob
from daskml_dist.training.spec import FitSpec, RunSettings


@dataclass
class ReassignmentSchedule:
    """Schedule of the reassignment of centroids with low counts, after calls of a stream.

    Parameters
    ----------
    fit : FitSpec
        Specification of a fit with one lane.
    ratio : float
        A count is low if it is below this share of the largest count; 0: no count is low.
    row_interval : int
        Number of rows between two reassignments; while any centroid has no rows, one is due after
        each call.
    n_since : int
        Rows since the last reassignment was due.
    """

    fit: FitSpec
    ratio: float
    row_interval: int
    n_since: int

    def count_rows(self, n_rows: int, parameters: Any) -> bool:
        """Count the rows of a call; return whether centroids must be reassigned after it.

        `parameters` are the parameters before the call.
        """
        self.n_since += n_rows
        # As in scikit-learn: immediately while a centroid has no row, otherwise after
        # `row_interval` rows.
        if (
            self.n_since < self.row_interval
            and (self._model.view_counts_and_sums(parameters)[0] > 0).all()
        ):
            return False
        self.n_since = 0
        return self.ratio > 0

    def reassign_low_centroids(self, state: ShardState, block: Block) -> ShardState | None:
        """Return the state with low centroids moved to rows of the call; None if none is low."""
        model, n = self._model, block.n_rows
        # No rows yet: rows are drawn once the number of low centroids is known.
        k, no_rows = len(model.first), np.empty((0, model.n_features))
        rule = Reassignment(k, self.ratio, no_rows, (0,), self.row_interval / n, max(1, n // 2))
        if not rule.find_low_centroids(model.view_counts_and_sums(state.w)[0]).any():
            return None
        # A fit in this process over only the rows of the call, from which some are drawn.
        weight_scale = None if block.sample_weight is None else 1.0
        rows_spec = replace(self.fit.rows, lane_rows=(n,), weight_scale=weight_scale)
        reassigned = replace(state)
        collection = as_collection(block.rows, None, block.sample_weight)
        with FitJob(collection, INLINE, RunSettings(n_lanes=1)) as job:
            job.summarize_rows()
            job.lay_out_lanes(1)
            reassign_low_centroids(job, replace(self.fit, rows=rows_spec), reassigned, rule)
        return reassigned

    @property
    def _model(self) -> CentroidModel:
        model = self.fit.steps.model
        assert isinstance(model, CentroidModel)
        return model


class CentroidSteps(InProcessSteps):
    """Steps of centroids, each of all rows of a call; low centroids are reassigned after it.

    Parameters
    ----------
    fit : FitSpec
        Specification of a fit with one lane.
    reassignments : ReassignmentSchedule

    Attributes
    ----------
    reassignments : ReassignmentSchedule
    inertia : float
        Sum of squared distances of the last call's rows, before their step.
    """

    def __init__(self, fit: FitSpec, reassignments: ReassignmentSchedule) -> None:
        super().__init__(fit, None)
        self.reassignments = reassignments
        self.inertia = 0.0

    def learn_rows(self, rows: BatchRows, block: Block) -> float:
        """Take a step; return the sum of the rows' squared distances before it."""
        is_due = self.reassignments.count_rows(block.n_rows, self.shard.w)
        self.inertia = super().learn_rows(rows, block)
        if is_due:
            state: Any = ShardState(self.shard.w, {}, self.shard.step)
            if (reassigned := self.reassignments.reassign_low_centroids(state, block)) is not None:
                self.shard.replace(reassigned.w)
        return self.inertia


class StartedCentroidStream(StartedStream):
    """Stream of centroids whose first rows have arrived."""

    steps: CentroidSteps

    def describe(self) -> dict[str, Any]:
        """Return the facts for a stream's checkpoint, with the rows since the last reassignment."""
        return {**self.likeness, "n_since": self.steps.reassignments.n_since}
