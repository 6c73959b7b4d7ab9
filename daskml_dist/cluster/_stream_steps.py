"""Steps of centres along a stream: what a lone step is followed by, without a fit around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from daskml_dist.cluster._stream_looks import Looks
from daskml_dist.data.blocks import Block
from daskml_dist.models.base import BatchRows
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.streaming.start import StartedStream
from daskml_dist.streaming.steps import Steps
from daskml_dist.training.spec import FitSpec

if TYPE_CHECKING:
    from daskml_dist.streaming.cluster.calls import StreamLayout

__all__ = ["StartedCentres", "StepsOfCentres"]


class StepsOfCentres(Steps):
    """Steps of centres, each of all rows of a call; centres of few rows begin anew after it.

    Parameters
    ----------
    fit : FitSpec
        Of one lane.
    looks : Looks

    Attributes
    ----------
    looks : Looks
    inertia : float
        Of the last call's rows, before their step.
    """

    def __init__(self, fit: FitSpec, looks: Looks) -> None:
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


class StartedCentres(StartedStream):
    """A stream of centres that has seen its first rows."""

    steps: StepsOfCentres

    def facts(self) -> dict[str, Any]:
        """As of any stream, with the rows since the last look for centres of few."""
        return {**self.likeness, "n_since": self.steps.looks.n_since}

    def over_lanes(self, client: Any, plan: StreamLayout) -> Any:
        """As of any stream, by steps of centres."""
        from daskml_dist.cluster._stream_lanes import LanesOfCentres

        return LanesOfCentres(client, plan, self.fit, self.steps, self.steps.looks)
