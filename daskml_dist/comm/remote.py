"""The way to a server of another process: the trainer's side, and the server's."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from daskml_dist.comm.base import Endpoint, ServerConnection, Wait, check_status
from daskml_dist.comm.bounds import Bounds, malformed
from daskml_dist.comm.caller import call_listener
from daskml_dist.comm.listener import Channel, Credentials
from daskml_dist.comm.wire import (
    CALL,
    REPLY,
    REQUEST,
    Keys,
    Reader,
    encode_call,
    encode_reply,
    encode_request,
)
from daskml_dist.errors import CommunicationError, RunAbortedError, WaitTimeoutError
from daskml_dist.ps.messages import Call, Reply, Request, Status
from daskml_dist.ps.server import ParameterServer

__all__ = ["RemoteConnection", "serve"]

logger = logging.getLogger(__name__)

_BYE = "bye"


class _Answer(Call):
    """The answer to a control call."""

    def __missing__(self, key: str) -> Any:
        raise malformed(f"an answer without {key!r}")


class RemoteConnection(ServerConnection):
    """A trainer thread's two channels to a server in another process.

    Parameters
    ----------
    endpoint : Endpoint
    credentials : Credentials
    wait : Wait
    bounds : Bounds
        What the server and its trainers may send.
    """

    def __init__(
        self, endpoint: Endpoint, credentials: Credentials, wait: Wait, bounds: Bounds
    ) -> None:
        super().__init__()
        up, down = call_listener(endpoint, credentials)
        self._out, self._in = up.outbox(wait), down.inbox(wait)
        self.transport = "sockets" if up.ring is None else "shared memory"
        self._reader = Reader(self._in, bounds, (REPLY, CALL))
        self._n_rows = bounds.n_rows
        self._keys: Keys = {}
        #: Rows that each lane has asked for.
        self._asked: dict[int, int] = {}

    def send(self, request: Request) -> None:
        """Send the request; its arrays are copied on the way."""
        if request.pull:
            wanted = request.pull_index
            self._asked[request.lanes[0]] = self._n_rows if wanted is None else len(wanted)
        self._out.send(encode_request(request, self._keys))
        self.bytes_pushed = self._out.sent

    def _read(self) -> Any:
        message = self._reader.read()
        self.bytes_pulled = self._in.received
        if isinstance(message, Reply):
            rows = self._asked.pop(message.lane, None)
            if rows is None or (message.values is not None and len(message.values) != rows):
                self.close()
                raise malformed("an answer that nobody asked for")
        return message

    def _next_reply(self) -> Reply:
        reply: Reply = self._read()
        return reply

    def ask(self, op: str, payload: Call) -> None:
        """Make a control call."""
        self._out.send(encode_call({"op": op, **payload}))

    def answer(self) -> Call:
        """Wait for the answer to what was asked; answers to pulls are kept meanwhile."""
        while isinstance(answer := self._read(), Reply):
            self._keep(answer)
        check_status(answer.get("status", Status.ABORTED))
        return _Answer(answer)

    def close(self) -> None:
        """Say good-bye, so that nobody takes it for a loss, and close both channels."""
        with contextlib.suppress(CommunicationError, RunAbortedError, WaitTimeoutError):
            self._out.send(encode_call({"op": _BYE}))
        self._out.close()
        self._in.close()


def serve(
    server: ParameterServer,
    up: Channel,
    down: Channel,
    bounds: Bounds,
    on_loss: Callable[[BaseException], None] = lambda _: None,
) -> None:
    """Read frames of one connection until it ends; answers may be sent by any thread.

    `on_loss` is called with the error where it ends without a good-bye, or with a frame that has
    no meaning.
    """
    try:
        _converse(server, up, down, bounds)
    except ConnectionError as error:
        logger.debug("A connection of a server ended: %s", error)
        on_loss(error)
    except BaseException as error:
        on_loss(error)
        raise
    finally:
        down.close()
        up.close()


def _converse(server: ParameterServer, up: Channel, down: Channel, bounds: Bounds) -> None:
    """Read and answer until a good-bye."""
    out, reader = down.outbox(None), Reader(up.inbox(None), bounds, (REQUEST, CALL))

    def send(message: Reply | Call) -> None:
        # A trainer that is gone does not matter here: its client sees the loss.
        with contextlib.suppress(CommunicationError):
            out.send(encode_reply(message) if isinstance(message, Reply) else encode_call(message))

    # Whoever reads must never wait for a send: the other side may be sending too, and not read.
    later: queue.SimpleQueue[Reply | Call | None] = queue.SimpleQueue()
    answer: Callable[[Any], None] = send
    try:
        if server.most_answer_bytes > out.holds:
            answer = later.put
            threading.Thread(
                target=_drain, args=(later, send), daemon=True, name="daskml-answer"
            ).start()
        while _take(server, reader.read(), answer):
            pass
    finally:
        later.put(None)


def _take(server: ParameterServer, message: Any, answer: Callable[[Any], None]) -> bool:
    """Hand a message to the server; False for a good-bye."""
    try:
        if isinstance(message, Request):
            server.exchange(message, answer)
            return True
        op = message.pop("op")
        if op != _BYE:
            server.call(op, message, answer)
        return bool(op != _BYE)
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        logger.warning(
            "A server could not take a message, and closes its connection", exc_info=True
        )
        raise malformed(f"a message without a meaning ({error!r})") from error


def _drain(messages: queue.SimpleQueue[Any], send: Callable[[Any], None]) -> None:
    for message in iter(messages.get, None):
        send(message)
