"""Connections of a trainer to its servers: in one process, in another, and to all shards.

`connect_to_server` chooses the shortest path to a server: direct calls without a copy in the same
process, else two channels. A `ShardedConnection` splits pushes over all servers and joins their
answers. `serve_connection` is the server's side of the channels.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.shared_buffer import LocalBuffer, SharedBuffer
from daskml_dist.comm.base import (
    CHECK_SECONDS,
    RENEWED_MESSAGE,
    Arrays,
    Communicator,
    Endpoint,
    Merge,
    WaitBound,
)
from daskml_dist.comm.listener import Channel, Credentials, call_listener
from daskml_dist.comm.packing import MessageBounds, make_malformed_error
from daskml_dist.comm.wire import (
    CALL,
    REPLY,
    REQUEST,
    FrameReader,
    PulledKeys,
    encode_call,
    encode_reply,
    encode_request,
)
from daskml_dist.compression import Compressor, Feedback, Packed
from daskml_dist.errors import (
    CommunicationError,
    GenerationError,
    RunAbortedError,
    SilentPeerError,
    WaitTimeoutError,
)
from daskml_dist.ps.messages import CallPayload, ServerReply, ServerRequest, ServerStatus
from daskml_dist.ps.server import ShardServer
from daskml_dist.ps.shard_state import ShardLayout

logger = logging.getLogger(__name__)

#: Operation by which a side announces that it closes the connection; an end of file without it
#: means that the peer was lost.
_GOODBYE = "bye"


class ServerConnection(ABC):
    """A trainer thread's connection to one server. Not thread-safe."""

    bytes_pushed: int = 0
    bytes_pulled: int = 0
    #: How messages travel: "sockets", "shared memory", or "one process".
    transport: str = "one process"

    def __init__(self) -> None:
        #: Answers that have arrived and were not taken: to lanes, and to control calls.
        self._early: dict[int, ServerReply] = {}
        self._answers: deque[CallPayload] = deque()

    @abstractmethod
    def send(self, request: ServerRequest) -> None:
        """Send a push or pull; its arrays must not change until its answer, if any, has arrived."""

    @abstractmethod
    def _next_message(self) -> ServerReply | CallPayload:
        """Wait for the next answer, to any lane or to any control call."""

    @abstractmethod
    def _has_message(self) -> bool:
        """Return whether :meth:`_next_message` would return without waiting, or would raise."""

    @abstractmethod
    def send_call(self, op: str, payload: CallPayload) -> None:
        """Send a control call; its :meth:`answer` must be taken later, in order."""

    def answer(self) -> CallPayload:
        """Wait for the answer to the oldest unanswered control call."""
        while not self._answers:
            self._keep(self._next_message())
        answer = self._answers.popleft()
        raise_for_status(answer.get("status", ServerStatus.ABORTED))
        return _CallAnswer(answer)

    def has_answer_to_call(self) -> bool:
        """Return whether :meth:`answer` would return without waiting, or would raise."""
        while not self._answers and self._has_message():
            self._keep(self._next_message())
        return bool(self._answers)

    def call(self, op: str, payload: CallPayload) -> CallPayload:
        """Make a control call and wait for its answer."""
        self.send_call(op, payload)
        return self.answer()

    @abstractmethod
    def close(self) -> None:
        """Close; may be called twice."""

    def receive(self, lane: int) -> ServerReply:
        """Wait for the answer to the open request of `lane`."""
        # Answers arrive in the order in which the policy releases lanes, not in the order of the
        # requests.
        while lane not in self._early:
            self._keep(self._next_message())
        return self._early.pop(lane)

    def has_answer(self, lane: int) -> bool:
        """Return whether the answer to the open request of `lane` has arrived; never waits."""
        while lane not in self._early and self._has_message():
            self._keep(self._next_message())
        return lane in self._early

    def _keep(self, message: ServerReply | CallPayload) -> None:
        """Store an answer until it is taken; raise if a lane's answer is not OK."""
        if isinstance(message, ServerReply):
            raise_for_status(message.status)
            self._early[message.lane] = message
        else:
            self._answers.append(message)


def raise_for_status(status: int) -> None:
    """Raise the error of an answer whose status is not OK."""
    if status == ServerStatus.OK:
        return
    if status == ServerStatus.STALE_GENERATION:
        raise GenerationError(RENEWED_MESSAGE)
    raise RunAbortedError("The fit was stopped; see the error that the client raised.")


class _CallAnswer(CallPayload):
    """Answer to a control call; a missing key is an error of the peer."""

    def __missing__(self, key: str) -> Any:
        raise make_malformed_error(f"an answer without {key!r}")


class RemoteConnection(ServerConnection):
    """A trainer thread's two channels to a server in another process.

    Parameters
    ----------
    endpoint : Endpoint
    credentials : Credentials
    wait : WaitBound
    bounds : MessageBounds
        Bounds of the messages that the server and its trainers may send.
    """

    def __init__(
        self, endpoint: Endpoint, credentials: Credentials, wait: WaitBound, bounds: MessageBounds
    ) -> None:
        super().__init__()
        # Two channels, so that answers can arrive while the next push is being sent.
        up, down = call_listener(endpoint, credentials)
        self._out, self._in = up.open_outbox(wait), down.open_inbox(wait)
        self.transport = "sockets" if up.ring is None else "shared memory"
        self._reader = FrameReader(self._in, bounds, (REPLY, CALL))
        self._n_rows = bounds.n_rows
        #: Rows that each lane pulled last, which its next push need not name again (see `wire`).
        self._keys: PulledKeys = {}
        #: Number of rows in each lane's open pull.
        self._n_pulled_rows: dict[int, int] = {}

    def send(self, request: ServerRequest) -> None:
        """Send the request; its arrays are copied into the transport."""
        # The answer is checked against the number of rows that were requested.
        if request.pull:
            index = request.pull_index
            self._n_pulled_rows[request.lanes[0]] = self._n_rows if index is None else len(index)
        self._out.send(encode_request(request, self._keys))
        self.bytes_pushed = self._out.bytes_sent

    def _next_message(self) -> ServerReply | CallPayload:
        message: Any = self._reader.read_frame()
        self.bytes_pulled = self._in.received
        if isinstance(message, ServerReply):
            rows = self._n_pulled_rows.pop(message.lane, None)
            # An answer of the wrong size, or to no request, cannot be assigned to a lane.
            if rows is None or (message.values is not None and len(message.values) != rows):
                self.close()
                raise make_malformed_error("an unexpected answer")
        payload: ServerReply | CallPayload = message
        return payload

    def _has_message(self) -> bool:
        return self._in.has_arrived()

    def send_call(self, op: str, payload: CallPayload) -> None:
        """Send a control call."""
        self._out.send(encode_call({"op": op, **payload}))

    def close(self) -> None:
        """Announce the end, so that it does not count as a loss, and close both channels."""
        # The other side may have closed already.
        with contextlib.suppress(CommunicationError, RunAbortedError, WaitTimeoutError):
            self._out.send(encode_call({"op": _GOODBYE}))
        self._out.close()
        self._in.close()


def serve_connection(
    server: ShardServer,
    up: Channel,
    down: Channel,
    bounds: MessageBounds,
    on_loss: Callable[[BaseException], None] = lambda _: None,
) -> None:
    """Read and handle the frames of one connection until it ends; any thread may send answers.

    `on_loss` is called with the error if the connection ends without a goodbye, or with an invalid
    frame.
    """
    try:
        _answer_until_goodbye(server, up, down, bounds, on_loss)
    except ConnectionError as error:
        logger.debug("A connection of a server ended: %s", error)
        on_loss(error)
    except BaseException as error:
        on_loss(error)
        raise
    finally:
        down.close()
        up.close()


def _answer_until_goodbye(
    server: ShardServer,
    up: Channel,
    down: Channel,
    bounds: MessageBounds,
    on_silence: Callable[[BaseException], None],
) -> None:
    """Read and answer messages until a goodbye."""
    # A trainer may take any time for its next step, but its host always acknowledges TCP's probes.
    wait = None
    if up.ring is None:
        error = SilentPeerError("The host of a trainer does not acknowledge data.")
        wait = WaitBound(math.inf, on_silence=partial(on_silence, error))
    outbox = down.open_outbox(None)
    reader = FrameReader(up.open_inbox(wait), bounds, (REQUEST, CALL))

    def send(message: ServerReply | CallPayload) -> None:
        # A lost trainer needs no handling here: the client detects the loss.
        with contextlib.suppress(CommunicationError):
            outbox.send(
                encode_reply(message) if isinstance(message, ServerReply) else encode_call(message)
            )

    # The reading thread must never wait for a send. While the other side sends, it does not read,
    # so two sides that both send would wait for each other for ever.
    queued: queue.SimpleQueue[ServerReply | CallPayload | None] = queue.SimpleQueue()
    answer: Callable[[Any], None] = send
    try:
        # Answers that fit into the system's buffers never block; larger ones are sent by a thread.
        if server.most_answer_bytes > outbox.holds:
            answer = queued.put
            threading.Thread(
                target=_send_queued, args=(queued, send), daemon=True, name="daskml-answer"
            ).start()
        while _handle_message(server, reader.read_frame(), answer):
            pass
    finally:
        queued.put(None)  # ends the thread


def _handle_message(server: ShardServer, message: Any, answer: Callable[[Any], None]) -> bool:
    """Pass a message to the server; return False for a goodbye."""
    try:
        if isinstance(message, ServerRequest):
            server.exchange(message, answer)
            return True
        op = message.pop("op")
        if op != _GOODBYE:
            server.call(op, message, answer)
        return bool(op != _GOODBYE)
    # The errors that a well-formed but meaningless message can raise in the server. It costs the
    # sender its connection, not the server its thread.
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        logger.warning(
            "A server could not take a message, and closes its connection", exc_info=True
        )
        raise make_malformed_error(f"a message that cannot be understood ({error!r})") from error


def _send_queued(messages: queue.SimpleQueue[Any], send: Callable[[Any], None]) -> None:
    """Send messages as they are queued until None arrives; the body of a thread."""
    for message in iter(messages.get, None):
        send(message)


#: Servers of this process by their keys; weak, so that a run that ended abruptly leaves none.
_local_servers: weakref.WeakValueDictionary[str, ShardServer] = weakref.WeakValueDictionary()


def publish_server(key: str, server: ShardServer) -> None:
    """Make `server` available to trainers of this process, until it is garbage-collected."""
    _local_servers[key] = server


def count_servers(prefix: str) -> int:
    """Return how many servers of this process have keys with this prefix and have not ended."""
    return sum(key.startswith(prefix) and not s.is_over for key, s in list(_local_servers.items()))


class LocalConnection(ServerConnection):
    """Connection to a server of this process, whose methods are called directly."""

    def __init__(self, server: ShardServer, wait: WaitBound) -> None:
        super().__init__()
        self._server = server
        self._wait = wait
        self._messages: queue.SimpleQueue[ServerReply | CallPayload] = queue.SimpleQueue()

    def send(self, request: ServerRequest) -> None:
        """Pass a request to the server; a push that must wait is kept there without a copy."""
        self._server.exchange(request, self._messages.put)
        # Release the GIL for threads of other lanes and of connections to other processes. They
        # would otherwise get it only after the interpreter's switch interval (5 ms), many steps of
        # this lane. With a single lane, the 50 microseconds are saved.
        if self._server.is_shared:
            time.sleep(0)

    def _next_message(self) -> ServerReply | CallPayload:
        # The check raises once waiting makes no sense any more.
        since = time.monotonic()
        while True:
            try:
                return self._messages.get(timeout=CHECK_SECONDS)
            except queue.Empty:
                self._wait.check(since, "a server of this process")

    def _has_message(self) -> bool:
        return not self._messages.empty()

    def send_call(self, op: str, payload: CallPayload) -> None:
        """Make a control call."""
        self._server.call(op, payload, self._messages.put)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class SoloCommunicator(Communicator):
    """Communicator of a single trainer: each collective returns its own data."""

    rank = 0
    size = 1

    def allreduce(self, array: Any, out: Any = None) -> Any:
        if out is None:
            return array
        out[...] = array
        return out

    def allgather(self, arrays: Arrays) -> list[Arrays]:
        return [arrays]

    def board(
        self, n: int | None, dtype: Any, lanes: list[list[int]], in_order: bool
    ) -> SharedBuffer | None:
        """Return a buffer of this trainer's gradients, if they touch few of the parameters."""
        return LocalBuffer(lanes[0]) if n is None else None

    def alltoall(self, arrays: Arrays) -> Arrays:
        return [arrays[0]]

    def reduce(self, arrays: Arrays, merge: Merge) -> Arrays:
        return arrays

    def broadcast_bytes(self, buffers: Sequence[Any] = ()) -> NDArray[np.uint8]:
        return np.empty(0, np.uint8)

    def close(self) -> None:
        """Do nothing: nothing was opened."""


def connect_to_server(
    endpoint: Endpoint, credentials: Credentials, wait: WaitBound, bounds: MessageBounds
) -> ServerConnection:
    """Connect to a server."""
    # Within one process, calls go to the server directly: nothing is copied or sent.
    server = _local_servers.get(endpoint.key)
    if server is not None:
        return LocalConnection(server, wait)
    return RemoteConnection(endpoint, credentials, wait, bounds)


@dataclass(slots=True)
class PulledParameters:
    """Pulled parameters, the clock of the servers, and whether the fit ends."""

    w: NDArray[Any]
    clock: int
    stop: bool


class ShardedConnection:
    """Connections to all shards as one: splits pushes and joins pulls. Not thread-safe.

    Parameters
    ----------
    connections : list of ServerConnection
        One per shard; the first server also holds the ledger.
    layout : ShardLayout
    generation : int
    compression : Compressor or None
        Compresses pushes. The residual of each lane is kept here and added to the lane's next push.
        It is dropped with the connection: a new generation may restart from a clock before the
        steps to which the residual belongs.
    """

    def __init__(
        self,
        connections: list[ServerConnection],
        layout: ShardLayout,
        generation: int,
        compression: Compressor | None = None,
    ) -> None:
        self._connections = connections
        self._slices = layout.slices()
        self._layout = layout
        self._generation = generation
        #: Version of each shard that each lane pulled last.
        self._versions: dict[tuple[int, int], int] = {}
        self._compression = compression
        #: Residual of each lane and shard.
        self._feedback: dict[tuple[int, int], Feedback] = {}

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """Return the bytes pushed and pulled so far."""
        return (
            sum(c.bytes_pushed for c in self._connections),
            sum(c.bytes_pulled for c in self._connections),
        )

    @property
    def traffic(self) -> list[tuple[str, int]]:
        """Return the transport of each connection, and its bytes pushed and pulled so far."""
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
        uncompressed: bool = False,
    ) -> None:
        """Push to, and pull from, every shard; see :class:`ServerRequest` for the parameters.

        With `uncompressed` the push is not compressed, and includes the residuals of earlier ones.
        """
        pushes = None if index is None else self._layout.split_index(index)
        pulls = None if pull_index is None else self._layout.split_index(pull_index)
        # All parts are sent before any answer is awaited.
        for s, connection in enumerate(self._connections):
            # For the rows of shard s: their values, their numbers within it, and the packed values.
            shard_values, shard_rows, packed = None, None if pushes is None else pushes[s][0], None
            if values is not None:
                shard_values = values[self._slices[s] if pushes is None else pushes[s][1]]
            # A push of no rows makes an empty step, which would lose the residual.
            if shard_values is not None and self._compression is not None and rows > 0:
                shard_values, shard_rows, packed = self._compress_part(
                    lanes[0], s, shard_values, shard_rows, uncompressed
                )
            connection.send(
                ServerRequest(
                    lanes,
                    self._generation,
                    clock,
                    self._versions.get((lanes[0], s), 0),
                    rows,
                    shard_values,
                    shard_rows,
                    pull,
                    None if pulls is None else pulls[s][0],
                    loss,
                    progress,
                    packed=packed,
                )
            )

    def push_to_shard(
        self,
        s: int,
        lane: int,
        clock: int,
        rows: float,
        values: NDArray[Any] | None,
        packed: Packed | None,
        progress: NDArray[np.float64] | None,
    ) -> None:
        """Push values, plain or packed, to one shard only, and pull from it."""
        version = self._versions.get((lane, s), 0)
        request = ServerRequest(
            (lane,), self._generation, clock, version, rows, values, progress=progress,
            packed=packed,
        )  # fmt: skip
        self._connections[s].send(request)

    def pull_from_shard(self, s: int, lane: int, clock: int) -> None:
        """Pull from one shard only."""
        self._connections[s].send(ServerRequest((lane,), self._generation, clock))

    def has_answer_of_shard(self, s: int, lane: int) -> bool:
        """Return whether the answer of one shard to a lane has arrived."""
        return self._connections[s].has_answer(lane)

    def leave_shard(self, s: int, lane: int) -> None:
        """Notify one shard that a lane is done."""
        self._connections[s].call("leave", {"generation": self._generation, "lanes": [lane]})

    def receive_from_shard(self, s: int, lane: int) -> ServerReply:
        """Wait for the answer of one shard to a lane."""
        reply = self._connections[s].receive(lane)
        self._versions[lane, s] = reply.version
        return reply

    def _compress_part(
        self,
        lane: int,
        s: int,
        shard_values: NDArray[Any],
        shard_rows: NDArray[np.int64] | None,
        uncompressed: bool,
    ) -> tuple[NDArray[Any] | None, NDArray[np.int64] | None, Packed | None]:
        """Return the values, index and packed values to send to shard `s`."""
        # Error feedback: the part that a compressed push omits is added to the lane's next push.
        feedback = self._feedback.get((lane, s))
        if feedback is None:
            assert self._compression is not None
            rows = self._slices[s]
            shape = (rows.stop - rows.start, self._layout.width)
            feedback = Feedback(self._compression, shape, shard_values.dtype)
            self._feedback[lane, s] = feedback
        if uncompressed:
            return *feedback.flush(shard_values, shard_rows), None
        return None, shard_rows, feedback.pack(shard_values, shard_rows)

    def receive(self, lane: int) -> PulledParameters:
        """Wait for the answers of all shards to the open pull of `lane`."""
        replies = [self.receive_from_shard(s, lane) for s in range(len(self._connections))]
        shard_values = [reply.values for reply in replies if reply.values is not None]
        w = shard_values[0] if len(shard_values) == 1 else np.concatenate(shard_values)
        return PulledParameters(w, replies[0].clock, replies[0].stop)

    def call(self, op: str, **payload: Any) -> CallPayload:
        """Make a control call to the first server."""
        return self._connections[0].call(op, {"generation": self._generation, **payload})

    def send_call(self, op: str, **payload: Any) -> None:
        """Send a control call to the first server; its :meth:`answer` is taken later, in order."""
        self._connections[0].send_call(op, {"generation": self._generation, **payload})

    def answer(self) -> CallPayload:
        """Wait for the answer to the oldest unanswered control call."""
        return self._connections[0].answer()

    def has_answer_to_call(self) -> bool:
        """Return whether :meth:`answer` would return without waiting, or would raise."""
        return self._connections[0].has_answer_to_call()

    def call_all(self, op: str, **payload: Any) -> None:
        """Make a control call to every server."""
        for connection in self._connections:
            connection.call(op, {"generation": self._generation, **payload})

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()
