"""One thread's connections to all shards, as if they were one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import ServerConnection
from daskml_dist.compression import Compressor, Feedback, Packed
from daskml_dist.ps.layout import Layout
from daskml_dist.ps.messages import Call, Reply, Request

__all__ = ["Pulled", "ShardedConnection"]


@dataclass(slots=True)
class Pulled:
    """Parameters, and what came with them."""

    w: NDArray[Any]
    clock: int
    stop: bool


class ShardedConnection:
    """Splits pushes over the shards and joins pulls. Not thread-safe.

    Parameters
    ----------
    connections : list of ServerConnection
        One a shard; the first server also holds the ledger.
    layout : Layout
    generation : int
    compression : Compressor or None
        Makes pushes smaller. What they leave out is kept here, for each lane that pushes, and goes
        with its next push. It ends with the connection, since a new generation may go back to
        before the steps that it belongs to: with it, what waits is dropped.
    """

    def __init__(
        self,
        connections: list[ServerConnection],
        layout: Layout,
        generation: int,
        compression: Compressor | None = None,
    ) -> None:
        self._connections = connections
        self._slices = layout.slices()
        self._layout = layout
        self._generation = generation
        self._versions: dict[int, list[int]] = {}
        self._compression = compression
        self._feedback: dict[tuple[int, int], Feedback] = {}

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """Bytes pushed and pulled so far."""
        return (
            sum(c.bytes_pushed for c in self._connections),
            sum(c.bytes_pulled for c in self._connections),
        )

    @property
    def traffic(self) -> list[tuple[str, int]]:
        """Bytes pushed and pulled so far by each connection, after its transport."""
        return [(c.transport, c.bytes_pushed + c.bytes_pulled) for c in self._connections]

    def send(
        self,
        lanes: tuple[int, ...],
        clock: int,
        rows: float = 0.0,
        values: NDArray[Any] | None = None,
        index: NDArray[np.int64] | None = None,
        *,
        loss: float = 0.0,
        progress: NDArray[np.float64] | None = None,
        pull: bool = True,
        pull_index: NDArray[np.int64] | None = None,
        whole: bool = False,
    ) -> None:
        """Push to, and pull from, every shard; see :class:`Request` for the parameters.

        With `whole` the push is not compressed, and takes along what earlier ones left out.
        """
        versions = self._versions.get(lanes[0])
        pushes = None if index is None else self._layout.split_index(index)
        pulls = None if pull_index is None else self._layout.split_index(pull_index)
        for s, connection in enumerate(self._connections):
            part, at, packed = None, None if pushes is None else pushes[s][0], None
            if values is not None:
                part = values[self._slices[s] if pushes is None else pushes[s][1]]
            # A push of no rows makes an empty step, with which a residual would be lost.
            if part is not None and self._compression is not None and rows > 0:
                part, at, packed = self._smaller(lanes[0], s, part, at, whole)
            connection.send(
                Request(
                    lanes,
                    self._generation,
                    clock,
                    versions[s] if versions else 0,
                    rows,
                    part,
                    at,
                    pull,
                    None if pulls is None else pulls[s][0],
                    loss,
                    progress,
                    packed=packed,
                )
            )

    def _smaller(
        self,
        lane: int,
        s: int,
        part: NDArray[Any],
        at: NDArray[np.int64] | None,
        whole: bool,
    ) -> tuple[NDArray[Any] | None, NDArray[np.int64] | None, Packed | None]:
        """Values, index and packed values to send to shard `s`."""
        feedback = self._feedback.get((lane, s))
        if feedback is None:
            assert self._compression is not None
            rows = self._slices[s]
            shape = (rows.stop - rows.start, self._layout.width)
            feedback = Feedback(self._compression, shape, part.dtype)
            self._feedback[lane, s] = feedback
        if whole:
            return *feedback.flush(part, at), None
        return None, at, feedback.pack(part, at)

    def receive(self, lane: int) -> Pulled:
        """Wait for the answers of all shards to the open pull of `lane`."""
        replies: list[Reply] = [c.receive(lane) for c in self._connections]
        self._versions[lane] = [reply.version for reply in replies]
        parts = [reply.values for reply in replies if reply.values is not None]
        w = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return Pulled(w, replies[0].clock, replies[0].stop)

    def call(self, op: str, **payload: Any) -> Call:
        """Make a control call to the first server."""
        return self._connections[0].call(op, {"generation": self._generation, **payload})

    def ask(self, op: str, **payload: Any) -> None:
        """Make a control call to the first server, whose :meth:`answer` is waited for later."""
        self._connections[0].ask(op, {"generation": self._generation, **payload})

    def answer(self) -> Call:
        """Wait for the answer to what was asked."""
        return self._connections[0].answer()

    def call_all(self, op: str, **payload: Any) -> None:
        """Make a control call to every server."""
        for connection in self._connections:
            connection.call(op, {"generation": self._generation, **payload})

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()
