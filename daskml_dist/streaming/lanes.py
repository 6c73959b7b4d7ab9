"""Lanes of a session on a cluster: what they have learned is counted in the order of the calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from daskml_dist.streaming.start import Started

if TYPE_CHECKING:
    from daskml_dist.streaming.cluster.steps import ClusterSteps

__all__ = ["Lanes", "check_lanes"]


def check_lanes(estimator: Any) -> Any:
    """Layout of an estimator's stream on a cluster."""
    # It loads the engine of clusters, which streams of this process do without.
    from daskml_dist.streaming.cluster.plan import StreamLayout

    return StreamLayout.of(estimator)


class Lanes:
    """Lanes of a session, whose steps take the place of those that it has started with.

    Parameters
    ----------
    client : distributed.Client
    estimator : estimator
    started : Started
    learned : callable
        Called with the loss, the weight, the rows and the position of each call, in their order.
    """

    def __init__(
        self, client: Any, estimator: Any, started: Started, learned: Callable[..., None]
    ) -> None:
        steps: Any = started.over_lanes(client, check_lanes(estimator))
        self._steps: ClusterSteps = steps
        started.steps = steps
        self._learned = learned
        self._failed = False

    @property
    def failed(self) -> bool:
        """Return whether they cannot go on; the state is then of fewer calls than were given."""
        return self._failed or self._steps.is_cut_off

    def give(self, rows: Any, block: Any, weight: float, position: Any) -> None:
        """Have lanes learn a call, and count those that they have learned.

        `position` is that of the stream after the call.
        """
        self._steps.check(block.n_rows)  # what is refused changes nothing
        try:
            self._steps.take(rows, block, (weight, block.n_rows, position))
        except Exception:
            self._failed = True
            raise
        self._count()

    def settle(self) -> None:
        """Wait until all calls that were given are learned and counted."""
        try:
            self._steps.settle()
        except Exception:
            self._failed = True
            raise
        self._count()

    def _count(self) -> None:
        # What is done on a drift may ask for the stream, which counts the others first.
        while (learned := self._steps.finished()) is not None:
            tag, loss = learned
            self._learned(loss, *tag)

    def given(self, reached: Any) -> Any:
        """Position of the last call that was given, of a stream that has reached another one."""
        return reached if self._steps.last is None else self._steps.last[2]

    def skip(self) -> None:
        """Note that a call without rows was the last one; all before are learned."""
        self.settle()
        self._steps.last = None
