"""An application on a socket, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from daskml_dist.serving.connection import LimitedConnection, close_slow_connections

__all__ = ["served"]


class _Limited(uvicorn.Server):
    """Server that closes slow connections, as each of its processes does."""

    def __init__(self, config: Any, seconds: float) -> None:
        super().__init__(config)
        self.seconds = seconds

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        limit = close_slow_connections(self.server_state.connections, self.seconds)
        self.limit = asyncio.get_running_loop().create_task(limit)

    async def shutdown(self, sockets: Any = None) -> None:
        assert not self.limit.done()  # it must watch the connections until the end
        self.limit.cancel()
        await super().shutdown(sockets)


@contextmanager
def served(app: Any, head_seconds: float = 30.0) -> Iterator[int]:
    """Yield the port on which an application answers, until the end of the context."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kinds = {"loop": "asyncio", "http": LimitedConnection, "ws": "none"}
        config = uvicorn.Config(app, log_config=None, timeout_keep_alive=60, **kinds)
        server = _Limited(config, head_seconds)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.001)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()
