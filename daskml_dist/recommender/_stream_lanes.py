"""Steps of factors along a stream on a cluster: the client numbers ids, and lanes step."""

from __future__ import annotations

from typing import Any

from distributed import Client

from daskml_dist.models.base import BatchRows
from daskml_dist.ps.shard import Shard
from daskml_dist.recommender._stream_steps import RatingSteps, UnnumberedRatings
from daskml_dist.streaming.cluster.calls import StreamLayout
from daskml_dist.streaming.cluster.steps import ClusterSteps
from daskml_dist.training.interrupts import Interrupts
from daskml_dist.training.spec import FitSpec


class ClusterRatingSteps(ClusterSteps):
    """Steps of factors by lanes on workers; the client holds the ids, and draws items.

    If new ids need more rows than are reserved, the client fetches the state, and new lanes begin
    with it and twice the rows, so that this is rare.

    Parameters
    ----------
    client, plan, fit
        As of :class:`ClusterSteps`.
    base : RatingSteps
    """

    _base: RatingSteps

    def __init__(self, client: Client, plan: StreamLayout, fit: FitSpec, base: RatingSteps) -> None:
        super().__init__(client, plan, fit, base)
        #: Steps made before step 0 of the stream, so that draws continue those of the fit.
        self._step_offset = base.shard.step

    def _prepare(self, rows: BatchRows, block: Any) -> None:
        ratings: UnnumberedRatings = block
        if (sizes := self._base.find_sizes_needed(ratings)) is not None:
            self._grow(*sizes)
        self._base.number_rows(rows, ratings)
        # Drawn here and sent with the call: if it is repeated after a loss, it has the same items.
        rows.X = self._base.draw_items_of_steps(
            rows, block.n_rows, self._step_offset + self._log.next_step
        )

    def _grow(self, n_users: int, n_items: int) -> None:
        """Move the state to more rows, and continue with new lanes from there."""
        base, state = self._base, self.state()
        with Interrupts() as interrupts, interrupts.delay():
            base.shard = Shard(base.fit.steps.rule, state)
            base.grow_parameters(n_users, n_items)
            self._continue_from(base.fit, base.shard.state())

    def reset(self, parameters: bool) -> None:
        """Reset as :class:`ClusterSteps` does; draws then restart at step 0."""
        super().reset(parameters)
        self._step_offset = -self._log.next_step
