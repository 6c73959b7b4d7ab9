"""Messages between trainers and servers at each step."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.compression import Packed

#: Number of a lane, the rows (None: all) to which its gradient belongs, and the gradient.
LaneGradient = tuple[int, NDArray[np.int64] | None, NDArray[Any]]

#: Payload of a control call and of its answer: plain values, arrays, and snapshots under "blob".
CallPayload = dict[str, Any]
CallReply = Callable[[CallPayload], None]


class ServerStatus(IntEnum):
    """Status of a server's answer."""

    OK = 0
    ABORTED = 1
    STALE_GENERATION = 2


@dataclass(slots=True)
class ServerRequest:
    """Push, pull, or both in one message.

    Parameters
    ----------
    lanes : tuple of int
        Lanes that the message represents; the answer goes to the first.
    generation : int
        Generation in which it was made; a server in another generation refuses it.
    clock : int
        Number of steps that the lanes have finished with this push.
    version : int
        Version of the shard at which the gradient was computed.
    rows : float
        Rows in the gradient sum.
    loss : float
        Sum of the losses of these rows.
    values : ndarray of shape (n, width), optional
        SUM of the gradients over the lanes' rows; None for a pull only.
    index : ndarray of int64 of shape (n,), optional
        Rows of the shard to which `values` belong; None: all.
    pull : bool
        Whether an answer is expected.
    pull_index : ndarray of int64, optional
        Rows to return; None: all.
    progress : ndarray of float64 of shape (n, 3), optional
        If lanes push together but step separately: clock, and rows and loss since the last push, of
        each lane. If a lane's push covers many steps: first the clock before them, then the clock,
        rows and loss at the end of each pass among them and at the push.
    owned : bool
        Whether the server may overwrite `values`, of which it has the only reference.
    packed : Packed, optional
        The values, compressed; `values` is then None.
    """

    lanes: tuple[int, ...]
    generation: int
    clock: int
    version: int = 0
    rows: float = 0.0
    values: NDArray[Any] | None = None
    index: NDArray[np.int64] | None = None
    pull: bool = True
    pull_index: NDArray[np.int64] | None = None
    loss: float = 0.0
    progress: NDArray[np.float64] | None = None
    owned: bool = False
    packed: Packed | None = None


@dataclass(slots=True)
class ServerReply:
    """Answer to a pull.

    Parameters
    ----------
    lane : int
        First lane of the request.
    status : ServerStatus
    stop : bool
        Whether the fit has reached its end (lanes at their own pace then stop).
    version : int
        Version of the returned parameters.
    clock : int
        Clock from which the lanes continue; larger than their own if a round closed without them.
    values : ndarray of shape (n, width) or None
        Read-only parameters.
    n_steps : int
        Steps that the lane should make before its next push; 0: as many as before.
    """

    lane: int
    status: ServerStatus = ServerStatus.OK
    stop: bool = False
    version: int = 0
    clock: int = 0
    values: NDArray[Any] | None = None
    n_steps: int = 0


def sum_in_lane_order(
    lane_gradients: list[LaneGradient], owned: Container[int] = ()
) -> tuple[NDArray[np.int64] | None, NDArray[Any]]:
    """Add gradients in lane order, independent of the order of arrival."""
    # Sums of floats depend on their order; lane order is the same in every run.
    lane_gradients = sorted(lane_gradients, key=lambda part: part[0])
    lane, first, values = lane_gradients[0]
    # Dense gradients, or a single one, have no indices to merge.
    if first is None or len(lane_gradients) == 1:
        # The sum is made in place, unless the sender is in the same process and still uses the
        # array.
        total = values if lane in owned else values.copy()
        for _, _, values in lane_gradients[1:]:
            total += values
        return first, total
    from daskml_dist.backends.host_update import merge_gradients

    union, total = first, values
    for _, index, values in lane_gradients[1:]:
        assert index is not None
        union, total = merge_gradients(union, total, index, values)
    return union, total
