"""The way to a server of another process: the trainer's side, and the server's."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from numpy.typing import DTypeLike

from daskml_dist.comm.base import Endpoint, ServerConnection, Wait, check_status
from daskml_dist.comm.listener import Channel, Credentials, call_listener
from daskml_dist.comm.wire import Keys, Reader, encode_call, encode_reply, encode_request
from daskml_dist.errors import CommunicationError, RunAbortedError, WaitTimeoutError
from daskml_dist.ps.messages import Call, Reply, Request
from daskml_dist.ps.server import ParameterServer

__all__ = ["RemoteConnection", "serve"]

_BYE = "bye"


class RemoteConnection(ServerConnection):
    """A trainer thread's two channels to a server in another process.

    Parameters
    ----------
    endpoint : Endpoint
    credentials : Credentials
    wait : Wait
    dtype : dtype of the parameters
    width : int
        Second dimension of the parameters.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        credentials: Credentials,
        wait: Wait,
        dtype: DTypeLike,
        width: int,
    ) -> None:
        super().__init__()
        up, down = call_listener(endpoint, credentials)
        self._out, self._in = up.outbox(wait), down.inbox(wait)
        self._reader = Reader(self._in, dtype, width)
        self._keys: Keys = {}

    def send(self, request: Request) -> None:
        """Send the request; its arrays are copied on the way."""
        self._out.send(encode_request(request, self._keys))
        self.bytes_pushed = self._out.sent

    def _read(self) -> Any:
        message = self._reader.read()
        self.bytes_pulled = self._in.received
        return message

    def _next_reply(self) -> Reply:
        reply: Reply = self._read()
        return reply

    def call(self, op: str, payload: Call) -> Call:
        """Make a control call and wait for its answer; answers to pulls are kept meanwhile."""
        self._out.send(encode_call({"op": op, **payload}))
        while isinstance(answer := self._read(), Reply):
            self._keep(answer)
        check_status(answer["status"])
        return dict(answer)

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
    dtype: DTypeLike,
    width: int,
    on_loss: Callable[[], None] = lambda: None,
) -> None:
    """Read frames of one connection until it ends; answers may be sent by any thread.

    `on_loss` is called where it ends without a good-bye.
    """
    out, reader = down.outbox(None), Reader(up.inbox(None), dtype, width)

    def send(message: Reply | Call) -> None:
        # A trainer that is gone does not matter here: its client sees the loss.
        with contextlib.suppress(CommunicationError):
            out.send(encode_reply(message) if isinstance(message, Reply) else encode_call(message))

    # Whoever reads must never wait for a send: the other side may be sending too, and not read.
    later: queue.SimpleQueue[Reply | Call | None] = queue.SimpleQueue()
    answer: Callable[[Any], None] = send
    if server.most_answer_bytes > out.holds:
        answer = later.put
        threading.Thread(
            target=_drain, args=(later, send), daemon=True, name="daskml-answer"
        ).start()
    try:
        while True:
            message = reader.read()
            if isinstance(message, Request):
                server.exchange(message, answer)
            elif isinstance(message, dict):
                if message["op"] == _BYE:
                    break
                server.call(message.pop("op"), message, answer)
    except ConnectionError:
        on_loss()
    finally:
        later.put(None)
        out.close()
        up.close()


def _drain(messages: queue.SimpleQueue[Any], send: Callable[[Any], None]) -> None:
    for message in iter(messages.get, None):
        send(message)
