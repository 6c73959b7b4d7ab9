"""Messages between trainers and servers at each step."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.compression import Packed

#: Number of a lane, the rows (None: all) that its gradient belongs to, and the gradient.
LaneGradient = tuple[int, NDArray[np.int64] | None, NDArray[Any]]

#: Payload of a control call and of its answer: plain values, arrays, and snapshots under "blob".
CallPayload = dict[str, Any]
CallReply = Callable[[CallPayload], None]


class ServerStatus(IntEnum):
    """Kind of a server's answer."""

    OK = 0
    ABORTED = 1
    STALE_GENERATION = 2


@dataclass(slots=True)
class ServerRequest:
    """Push, pull, or both in one message.

    Parameters
    ----------
    lanes : tuple of int
        The lanes that it speaks for; the answer goes to the first.
    generation : int
        Membership in which it was made; another one is refused.
    clock : int
        Steps that the lanes have finished once the push counts.
    version : int
        Version of the shard that the gradient was computed at.
    rows : float
        Rows in the gradient sum.
    loss : float
        Sum of the losses of these rows.
    values : ndarray of shape (n, width), optional
        Gradient SUM over the lanes' rows; None for a pull alone.
    index : ndarray of int64 of shape (n,), optional
        The shard's rows that `values` belong to; None: all.
    pull : bool
        Whether an answer is wanted.
    pull_index : ndarray of int64, optional
        The rows wanted; None: all.
    progress : ndarray of float64 of shape (n, 3), optional
        Where lanes push together but step apart: clock, and rows and loss since the last push,
        of each. Where a lane's push is of many steps: the clock at which they begin, and the clock,
        rows and loss at the end of each pass among them, and of the push.
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
        Whether the fit has reached its end (lanes at their own pace stop on it).
    version : int
        Version of the values.
    clock : int
        Clock that the lanes go on from; larger than their own where a round closed without them.
    values : ndarray of shape (n, width) or None
        Read-only parameters.
    n_steps : int
        Steps that the lane should make up to its next push; 0: as many as so far.
    """

    lane: int
    status: ServerStatus = ServerStatus.OK
    stop: bool = False
    version: int = 0
    clock: int = 0
    values: NDArray[Any] | None = None
    n_steps: int = 0


def sum_in_lane_order(
    parts: list[LaneGradient], owned: Container[int] = ()
) -> tuple[NDArray[np.int64] | None, NDArray[Any]]:
    """Add gradients in the order of their lanes, whatever the order of their arrival."""
    # Sums of floats depend on their order: that of the lanes does not change from run to run.
    parts = sorted(parts, key=lambda part: part[0])
    lane, first, values = parts[0]
    # Dense gradients, or a single one: no indices to merge.
    if first is None or len(parts) == 1:
        # The sum is made in place: a sender in the same process still holds its own array.
        total = values if lane in owned else values.copy()
        for _, _, values in parts[1:]:
            total += values
        return first, total
    from daskml_dist.backends.host_update import merge_gradients

    union, total = first, values
    for _, index, values in parts[1:]:
        assert index is not None
        union, total = merge_gradients(union, total, index, values)
    return union, total
