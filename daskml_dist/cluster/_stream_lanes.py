"""Steps of centres along a stream on a cluster: lanes add rows up, and the client looks."""

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
from daskml_dist.streaming.steps import Steps
from daskml_dist.training.spec import FitSpec

__all__ = ["ClusterCentroidSteps"]


class ClusterCentroidSteps(ClusterSteps):
    """Steps of centres by lanes on workers; the client, which has the rows, looks for those of few.

    Parameters
    ----------
    client, plan, fit, base
        As of :class:`ClusterSteps`.
    looks : ReassignmentSchedule

    Attributes
    ----------
    looks : ReassignmentSchedule
    inertia : float
        Of the last call that is known to be learned, before its step.
    """

    def __init__(
        self,
        client: Client,
        plan: StreamLayout,
        fit: FitSpec,
        base: Steps,
        looks: ReassignmentSchedule,
    ) -> None:
        super().__init__(client, plan, fit, base)
        self.looks, self.inertia = looks, 0.0

    def _then(self, block: Block) -> Callable[[ShardState], ShardState | None] | None:
        # Counts only grow, and as long as one is 0 each call is looked after.
        if not self.looks.count(block.n_rows, self._course.state.w):
            return None
        # The caller may write over the rows after an interrupt.
        own = replace(block, rows=block.rows.copy())
        return partial(self.looks.after, block=own)

    def finished(self) -> tuple[Any, float] | None:
        """As in :class:`ClusterSteps`, and keep the loss."""
        found = super().finished()
        if found is not None:
            self.inertia = found[1]
        return found
