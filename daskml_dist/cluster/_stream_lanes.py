"""Steps of centroids along a stream on a cluster: lanes sum rows, the client reassigns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from distributed import Client

from daskml_dist.cluster._stream_steps import ReassignmentSchedule
from daskml_dist.data.blocks import Block
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.streaming.cluster.calls import StreamLayout
from daskml_dist.streaming.cluster.steps import ClusterSteps
from daskml_dist.streaming.steps import InProcessSteps
from daskml_dist.training.spec import FitSpec


class ClusterCentroidSteps(ClusterSteps):
    """Steps of centroids by lanes on workers; the client holds the rows and reassigns afterwards.

    Parameters
    ----------
    client, plan, fit, base
        As in :class:`ClusterSteps`.
    reassignments : ReassignmentSchedule

    Attributes
    ----------
    reassignments : ReassignmentSchedule
    inertia : float
        Sum of squared distances of the last call known to be processed, before its step.
    """

    def __init__(
        self,
        client: Client,
        plan: StreamLayout,
        fit: FitSpec,
        base: InProcessSteps,
        reassignments: ReassignmentSchedule,
    ) -> None:
        super().__init__(client, plan, fit, base)
        self.reassignments, self.inertia = reassignments, 0.0

    def _find_change_after(self, block: Block) -> Callable[[ShardState], ShardState | None] | None:
        # This state may be older than the call. That does no harm: counts only grow, and as long as
        # one is 0, reassignment is due after each call, which updates the state.
        if not self.reassignments.count_rows(block.n_rows, self._log.state.w):
            return None
        # A copy, since the caller may overwrite the rows after an interrupt.
        copied = replace(block, rows=block.rows.copy())
        return partial(self.reassignments.reassign_low_centroids, block=copied)

    def pop_finished(self) -> tuple[Any, float] | None:
        """Return the next call with a known loss, and the loss, which is stored as the inertia."""
        call_and_loss = super().pop_finished()
        if call_and_loss is not None:
            self.inertia = call_and_loss[1]
        return call_and_loss
