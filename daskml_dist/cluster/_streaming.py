"""Streams of centroids: how they begin, resume, and set fitted attributes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.estimators.gradient_steps import BaseSteps
from daskml_dist.models.centroids import CentroidModel
from daskml_dist.ps.shard_state import ShardState

if TYPE_CHECKING:
    from daskml_dist.streaming.checkpoints import SavedStream
    from daskml_dist.streaming.drift import ProgressiveLoss
    from daskml_dist.streaming.start import StartedStream
    from daskml_dist.training.spec import FitSpec

#: Rows per centroid between two reassignments of low centroids; the number of scikit-learn.
ROWS_PER_REASSIGNMENT = 10


class StreamedCentroids(BaseSteps):
    """Base class of centroid estimators that can learn from a stream."""

    n_clusters: int
    init: Any
    reassignment_ratio: float
    cluster_centers_: NDArray[np.float64]
    _call_init: Callable[..., None]
    _whole_calls = True
    #: Rows since the last reassignment of low centroids was due.
    _n_since = 0

    def _check_one_pass(self) -> None:
        estimator: Any = super()
        estimator._check_one_pass()
        # A function `init` is called with the rows of the first call: its check is postponed.
        if callable(self.init):
            self.__dict__.setdefault("_called_init", None)

    def _begin_stream(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> StartedStream:
        self._call_init(X, self.cluster_centers_ if hasattr(self, "_state") else None)
        n_since = self._n_since if hasattr(self, "_state") else 0
        started = super()._begin_stream(X, None, sample_weight, classes)
        return self._with_centroid_steps(started, n_since)

    def _resume_stream(self, saved: SavedStream, path: Any, classes: Any) -> StartedStream:
        *values, n_since = saved.likeness_for("first", "shift", "n_since")
        first, shift = (None if value is None else np.array(value, np.float64) for value in values)
        assert first is not None
        self._call_init(None, first)

        def with_saved_centroids(fit: FitSpec) -> FitSpec:
            return fit.replace_work(model=CentroidModel(first, shift))

        from daskml_dist.streaming.start import plan_resumed_stream

        started = plan_resumed_stream(self, saved, path, classes, with_saved_centroids, len(first))
        return self._with_centroid_steps(started, n_since)

    def _with_centroid_steps(self, started: StartedStream, n_since: int) -> StartedStream:
        """Return the stream with steps that reassign low centroids after calls."""
        from daskml_dist.cluster._stream_steps import (
            CentroidSteps,
            ReassignmentSchedule,
            StartedCentroidStream,
        )

        model = started.fit.steps.model
        assert isinstance(model, CentroidModel)
        # Centroids are reassigned after calls, not within steps.
        fit = started.fit.replace_work(model=replace(model, reassignment=None))
        shift = None if model.shift is None else model.shift.tolist()
        started.likeness |= {"first": model.first.tolist(), "shift": shift}
        interval = ROWS_PER_REASSIGNMENT * int(self.n_clusters)
        reassignments = ReassignmentSchedule(fit, float(self.reassignment_ratio), interval, n_since)
        return StartedCentroidStream(
            **vars(started)
            | {
                "fit": fit,
                "steps": CentroidSteps(fit, reassignments),
                "open_cluster_steps": _open_cluster_steps,
            }
        )

    def _show_stream(
        self, started: StartedStream, state: ShardState, progress: ProgressiveLoss
    ) -> None:
        steps: Any = started.steps
        self._loss, self._n_since = steps.inertia, steps.reassignments.n_since
        super()._show_stream(started, state, progress)
        self.n_steps_: int = state.step
        self.__dict__.pop("labels_", None)  # labels of an earlier fit belong to other rows


def _open_cluster_steps(client: Any, plan: Any, fit: FitSpec, steps: Any) -> Any:
    """Return steps of centroids by lanes on a cluster."""
    from daskml_dist.cluster._stream_lanes import ClusterCentroidSteps

    return ClusterCentroidSteps(client, plan, fit, steps, steps.reassignments)
