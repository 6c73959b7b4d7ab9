"""A process that answers requests: uvicorn on a socket shared with other such processes.

`run_server_process` loads the models, notifies the parent that it is ready, and answers until
SIGTERM or until the parent ends. It then ends in three steps (`_end_gracefully`): it accepts no
more connections; it sends ``Connection: close`` in each response, and waits up to `keep_alive` for
idle connections; uvicorn then waits up to `end_within` for running requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any

from daskml_dist.errors import DaskMLDistError, ServingError
from daskml_dist.serving.metrics import Metrics
from daskml_dist.serving.models import Models
from daskml_dist.serving.supervisor import ProcessSlot
from daskml_dist.serving.tls import Certificates

_LOG = logging.getLogger("daskml_dist.serving")
#: Seconds between two updates of the shared metrics: the maximum age of other processes' counts in
#: a scrape, which Prometheus makes every few seconds or less often.
_METRICS_SECONDS = 0.5

#: An ASGI application.
App = Callable[[Any, Any, Any], Awaitable[None]]
#: Maps uvicorn's server to a coroutine that runs concurrently with it.
Task = Callable[[Any], Coroutine[Any, Any, None]]


def load_uvicorn() -> Any:
    """Return the module uvicorn, and check for the packages that it needs here."""
    try:
        import httptools  # noqa: F401
        import msgspec  # noqa: F401
        import uvicorn
        import uvloop  # noqa: F401
    except ImportError as error:
        raise ServingError(
            f'The server needs {error.name}: pip install "daskml-dist[serve]".'
        ) from error
    return uvicorn


def run_server_process(
    process_slot: ProcessSlot,
    listener: socket.socket,
    make_models: Callable[[Metrics], Models],
    make_app: Callable[[Models, Metrics], App],
    metrics: Metrics,
    *,
    watch: float | None,
    keep_alive: float,
    end_within: float,
    head_seconds: float,
    certificates: Certificates | None,
) -> None:
    """Answer requests until SIGTERM or the end of the parent, then the remaining ones."""
    uvicorn = load_uvicorn()
    metrics.attach(process_slot.slot)
    # Startup errors are reported by the parent, which learns of them only here.
    try:
        models = make_models(metrics)
        # With `watch`, a registry may be empty at first.
        if not models.is_ready() and watch is None:
            raise ServingError(models.why_none())
        config = _configure_uvicorn(uvicorn, make_app(models, metrics), keep_alive, end_within)
        if certificates is not None:
            config.ssl = certificates.context()
    except (DaskMLDistError, OSError) as error:
        process_slot.report_failure(str(error))
        raise SystemExit(1) from error
    import uvloop

    meanwhile: list[Task] = [
        lambda server: _share_metrics(metrics),
        lambda server: _close_slow_connections(server, head_seconds),
    ]
    if watch is not None:
        models.watch(watch)
        if certificates is not None:
            meanwhile.append(lambda server: _renew_certificates(certificates, config.ssl, watch))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run_uvicorn(uvicorn, config, process_slot, listener, keep_alive, meanwhile))
    finally:
        models.close()
        metrics.share()  # the last half second's, for the next process in this slot


def _configure_uvicorn(uvicorn: Any, app: App, keep_alive: float, end_within: float) -> Any:
    """Return the configuration of uvicorn for an application, loaded."""
    from daskml_dist.serving.connection import LimitedConnection

    config = uvicorn.Config(
        app,
        http=LimitedConnection,
        ws="none",
        # The application has its own access log; the user configures logging.
        access_log=False,
        log_config=None,
        log_level="warning",
        # Two headers less in each response, and no proxy header of a request is trusted.
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, round(keep_alive)),
        timeout_graceful_shutdown=max(1, round(end_within)),
    )
    config.load()
    return config


async def _run_uvicorn(
    uvicorn: Any,
    config: Any,
    process_slot: ProcessSlot,
    listener: socket.socket,
    keep_alive: float,
    meanwhile: Iterable[Task],
) -> None:
    """Run uvicorn's server and its concurrent tasks until the process must end."""

    class Server(uvicorn.Server):
        # uvicorn's handlers would end without waiting for idle connections: see below.
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()
            process_slot.report_ready()

    loop = asyncio.get_running_loop()
    server, started, ends = Server(config), asyncio.Event(), asyncio.Event()
    # Two reasons to end: SIGTERM, and the parent's end, with which the kernel closes a pipe.
    loop.add_signal_handler(signal.SIGTERM, ends.set)
    loop.add_reader(
        process_slot.parent_end, _end_when_orphaned, loop, process_slot.parent_end, ends
    )
    tasks = [loop.create_task(_end_gracefully(server, started, ends, keep_alive))]
    tasks += [loop.create_task(make_task(server)) for make_task in meanwhile]
    for task in tasks:
        task.add_done_callback(_log_failed_task)
    try:
        await server.serve(sockets=[listener])
    finally:
        for task in tasks:
            task.cancel()
        loop.remove_reader(process_slot.parent_end)


def _log_failed_task(task: asyncio.Task[None]) -> None:
    """Log the exception of a task, which would otherwise be lost; requests are still answered."""
    if not task.cancelled() and (error := task.exception()):
        _LOG.error("A background task failed; the server continues", exc_info=error)


def _end_when_orphaned(loop: asyncio.AbstractEventLoop, fd: int, end_event: asyncio.Event) -> None:
    """Begin to end when the pipe to the parent is closed, which is read as no bytes."""
    if not os.read(fd, 1):
        loop.remove_reader(fd)
        end_event.set()


async def _share_metrics(metrics: Metrics) -> None:
    """Publish this process's metrics for the other processes, periodically."""
    while True:
        metrics.share()
        await asyncio.sleep(_METRICS_SECONDS)


async def _close_slow_connections(server: Any, seconds: float) -> None:
    """Close slow connections of a server; imported here since the module needs the extra."""
    from daskml_dist.serving.connection import close_slow_connections

    await close_slow_connections(server.server_state.connections, seconds)


async def _renew_certificates(certificates: Certificates, context: Any, interval: float) -> None:
    """Load renewed certificates into the active context, periodically."""
    while True:
        await asyncio.sleep(interval)
        certificates.renew(context)


async def _end_gracefully(
    server: Any, started: asyncio.Event, end_event: asyncio.Event, keep_alive: float
) -> None:
    """Wait until the server must end; then close its socket, and each connection by its response.

    To close an idle connection at once would break a request that is on its way on it.
    """
    await end_event.wait()
    # SIGTERM, or the end of the parent, may come before the server listens: only then is there
    # something to close.
    await started.wait()
    for socket_server in server.servers:
        socket_server.close()
    # Headers of all later responses: uvicorn copies the first list to the second each second, so
    # both are extended.
    for headers in (server.config.encoded_headers, server.server_state.default_headers):
        headers.append((b"connection", b"close"))
    connections = server.server_state.connections
    for connection in list(connections):
        # A running request (a cycle of uvicorn's) may hold an older copy of the list.
        cycle = connection.cycle
        if cycle is not None and not cycle.response_started:
            cycle.keep_alive = False
    deadline = time.monotonic() + keep_alive
    while connections and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    server.should_exit = True
