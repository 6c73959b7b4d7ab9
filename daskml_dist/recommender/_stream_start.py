"""A stream of ratings that has begun: its ids, and its state by their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.ps.shard_state import ShardState
from daskml_dist.recommender._stream_ids import Ids, plain_ids
from daskml_dist.streaming.start import StartedStream

if TYPE_CHECKING:
    from daskml_dist.streaming.cluster.calls import StreamLayout

__all__ = ["StartedPairs"]

Array = NDArray[Any]


@dataclass
class StartedPairs(StartedStream):
    """A stream of ratings that has seen its first ones.

    Parameters
    ----------
    ids : tuple of Ids
        Of users and items.
    """

    ids: tuple[Ids, Ids]

    def facts(self) -> dict[str, Any]:
        """As of any stream, with the ids that have come, and the room that there is."""
        model: Any = self.fit.steps.model
        ids = [plain_ids(own.array) for own in self.ids]
        room = [model.n_users, model.n_items]
        return {**self.likeness, "ids": ids, "room": room, "offset": float(model.offset)}

    def over_lanes(self, client: Any, plan: StreamLayout) -> Any:
        """As of any stream, by steps of factors."""
        from daskml_dist.recommender._stream_lanes import LanesOfPairs

        steps: Any = self.steps
        return LanesOfPairs(client, plan, self.fit, steps)

    def sorted_state(self, state: ShardState) -> tuple[ShardState, tuple[Array, Array]]:
        """State of the ids that have come, by their order, and these."""
        model: Any = self.fit.steps.model
        given = [own.array for own in self.ids]
        orders = [np.argsort(ids, kind="stable") for ids in given]
        at = np.concatenate([orders[0], orders[1] + model.n_users])
        opt_state = {name: array[at] for name, array in state.opt_state.items()}
        users, items = (ids[order] for ids, order in zip(given, orders, strict=True))
        return ShardState(state.w[at], opt_state, state.step, state.rows), (users, items)
