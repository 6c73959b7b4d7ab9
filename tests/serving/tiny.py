"""A server in a separate process, with ten lines of ASGI, and a client that sends requests."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from daskml_dist.errors import DaskMLDistError


class Tiny:
    """Application that answers with its process and the version that it serves."""

    def __init__(self, models: Any, metrics: Any) -> None:
        self.models, self.metrics = models, metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while scope["type"] == "lifespan":
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind.endswith("shutdown"):
                return
        while (await receive()).get("more_body"):
            pass
        body = self.metrics.render()
        if scope["path"] != "/metrics":
            served = self.models.get("m")
            self.metrics.count("m", served.version, 200)
            body = f"{os.getpid()} {served.version}".encode()
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})


def run(log: str, path: str, options: dict[str, Any]) -> None:
    """Run the server's process."""
    from daskml_dist.serving import serve

    logging.basicConfig(filename=log, format="%(process)d %(message)s", force=True)
    logging.getLogger("daskml_dist.serving").setLevel(logging.INFO)
    try:
        serve(path, port=0, **options)
    except DaskMLDistError as error:
        logging.getLogger("daskml_dist.serving").error("%s: %s", type(error).__name__, error)
        raise SystemExit(1) from error


def until(happens: Callable[[], Any], seconds: float = 200.0) -> Any:
    """Wait until a function returns a true value, and return it; fail if it does not in time."""
    end = time.monotonic() + seconds
    while not (found := happens()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
    return found


class Server:
    """A server of the application in a folder."""

    def __init__(self, folder: Path, path: Path, app: Any = Tiny, **options: Any) -> None:
        options["app"] = app
        self._log = folder / "log"
        context = multiprocessing.get_context("forkserver")
        self.process = context.Process(target=run, args=(str(self._log), str(path), options))
        self.process.start()

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    @property
    def port(self) -> int:
        return int(until(lambda: re.search(r"Serving at \S+:(\d+),", self.log))[1])

    def ready(self, n: int) -> list[int]:
        """Return all processes that were ever ready, as soon as there are `n`."""

        def pids() -> list[int]:
            return [int(one) for one in re.findall(r"Process (\d+) is ready", self.log)]

        until(lambda: len(pids()) >= n)
        return pids()

    def tell(self, number: int) -> None:
        os.kill(self.process.pid or 0, number)

    def ended(self) -> int | None:
        self.process.join(200)
        return self.process.exitcode


@contextmanager
def server(folder: Path, path: Path, **options: Any) -> Iterator[Server]:
    """Run a server until the end of the context."""
    found = Server(folder, path, **options)
    try:
        yield found
    finally:
        if found.process.is_alive():
            found.tell(signal.SIGTERM)
            found.ended()
        found.process.kill()
        found.process.join()


def ask(port: int, path: str = "/") -> str:
    """Return the body of an answer, on a new connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        data = b""
        while more := connection.recv(65536):
            data += more
    return data.partition(b"\r\n\r\n")[2].decode()


class Load:
    """Clients that send requests on open connections, in a thread, until the end of the context.

    A new connection is only made if an answer was marked as the last on its connection; everything
    else is a failure, and is not retried.
    """

    def __init__(
        self,
        port: int,
        n_connections: int,
        pause: float = 0.0,
        request: bytes = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        version: str = r"\d+ (\d+)",
    ) -> None:
        self._port, self._n, self._pause = port, n_connections, pause
        self._request, self._version = request, version
        self.answers: Counter[str] = Counter()  # by version
        self.failures: list[str] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()))

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    @property
    def n(self) -> int:
        return sum(self.answers.values())

    async def _all(self) -> None:
        await asyncio.gather(*(self._one() for _ in range(self._n)))

    async def _one(self) -> None:
        writer: asyncio.StreamWriter | None = None
        while not self._end.is_set():
            try:
                if writer is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writer.write(self._request)
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                size = re.search(rb"content-length: (\d+)", head)
                body = await reader.readexactly(int(size[1]) if size else 0)
                match = re.search(self._version, body.decode())
                if match is None or not head.startswith(b"http/1.1 200"):
                    raise ValueError(head.decode() + body.decode())
                self.answers[match[1]] += 1
            except (OSError, EOFError, ValueError, asyncio.IncompleteReadError) as error:
                self.failures.append(repr(error))
                head = b"connection: close"
            if b"connection: close" in head and writer is not None:
                writer.close()
                writer = None
            if self._pause:
                await asyncio.sleep(self._pause)
        if writer is not None:
            writer.close()
