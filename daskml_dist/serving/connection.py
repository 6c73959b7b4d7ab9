"""Connections of HTTP: a request that is whole in one read is answered without a task.

All that uvicorn does for any application, its cycles of messages and a task a request, is most of
the time of a request to a small model. So what nearly all clients send, the same head again and
again with a short body behind it, in one piece, is answered where it is read; whatever is not so
is uvicorn's: heads and bodies in pieces, several requests at once, other methods, what is damaged.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from daskml_dist.serving.limits import Limited

__all__ = ["Connection"]

#: End of the head of a request of HTTP.
_END = b"\r\n\r\n"


class Connection(Limited):
    """A connection, as uvicorn makes one for each client.

    The application may have two methods, without which all requests are uvicorn's:
    ``head(data)``, a head that is in order or None (:class:`daskml_dist.serving.heads.Heads`), and
    ``answer(head, body, client, tell)``, which calls ``tell(status, headers, body)`` once, at once
    or later.
    """

    def __init__(
        self,
        config: Any,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._app: Any = config.app
        self._at_once = getattr(self._app, "head", None) is not None
        self._between = True  # no message has begun that uvicorn's parser has not seen whole
        self._asked = False  # a request is under way here
        self._held = b""  # what came behind it
        self._is_last = False
        self._last = 0.0

    def on_message_begin(self) -> None:
        self._between = False
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._between = True
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        """Answer a whole request, or have uvicorn read on."""
        if self._asked:
            self._held += data
            if len(self._held) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
        elif not (self._at_once and self._between and self._take(data)):
            super().data_received(data)

    def _take(self, data: bytes) -> bool:
        """Return whether data is one whole request, and has been taken."""
        end = data.find(_END) + 4
        if end == 3 or self._ahead or not self._is_idle():
            return False
        head = self._app.head(data[:end])
        if head is None or len(data) != end + head.size:
            return False
        self._asked = True
        self._app.answer(head, data[end:], self.client, self._tell)
        return True

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's is None alone
        """Answer what has come, though its client sends no more."""
        if not self._asked or self.scheme != "http":
            return super().eof_received()
        self._is_last = not self._held  # else what is held is answered, and the time ends it
        return True

    def is_waiting(self) -> bool:
        """Say if nothing but bytes of the client is waited for, and not for a next request."""
        return not self._asked and super().is_waiting()

    def _is_idle(self) -> bool:
        cycle = self.cycle
        free = not (self.is_refused or self.flow.write_paused)
        return free and (cycle is None or cycle.response_complete)

    def _tell(self, status: int, headers: Any, body: bytes) -> None:
        """Write an answer, and go on with what came meanwhile."""
        self._asked = False
        if self.transport.is_closing():  # its client has left
            return
        lines = [STATUS_LINE[status]]
        for name, value in (*self.server_state.default_headers, *headers):
            lines += (name, b": ", value, b"\r\n")
        if self._is_last:
            lines.append(b"connection: close\r\n")
        lines.append(b"content-length: %d\r\n\r\n" % len(body))
        lines.append(body)
        self.transport.write(b"".join(lines))
        self.server_state.total_requests += 1
        if self._is_last:
            self.transport.close()
            return
        # One timer for all of a connection's answers, which looks again when it finds a late one.
        self._last = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._look_after(self.timeout_keep_alive)
        if self._held:
            held, self._held = self._held, b""
            self.flow.resume_reading()
            self.data_received(held)

    def _look_after(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection, where it has been idle for so long."""
        left = self._last + self.timeout_keep_alive - self.loop.time()
        if self._asked:
            self._look_after(self.timeout_keep_alive)
        elif left > 0:
            self._look_after(left)
        else:
            super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        """Close the connection once it has its answer."""
        if self._asked:
            self._is_last = True
        else:
            super().shutdown()
