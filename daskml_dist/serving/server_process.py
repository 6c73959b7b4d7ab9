"""The process that answers requests: uvicorn on a socket that it shares with others like it.

`run_server_process` loads the models, tells the parent that it is ready, and answers until SIGTERM
or until the parent is gone. It then ends in three steps (`_end_gracefully`): it takes no more
connections; it says ``Connection: close`` in each answer, and waits for idle connections up to
`keep_alive`; uvicorn then waits for requests under way, up to `end_within`.
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
#: Seconds between two updates of the shared metrics: how old the other processes' counts are in a
#: scrape, which Prometheus makes every few seconds or less often.
_METRICS_SECONDS = 0.5

#: An ASGI application.
App = Callable[[Any, Any, Any], Awaitable[None]]
#: Function of uvicorn's server to a coroutine that runs beside it.
Task = Callable[[Any], Coroutine[Any, Any, None]]


def load_uvicorn() -> Any:
    """Return the module uvicorn, and check the packages that it needs here."""
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
    place: ProcessSlot,
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
    """Answer requests until SIGTERM or the end of the parent, and then those that have come."""
    uvicorn = load_uvicorn()
    metrics.attach(place.slot)
    # Errors of the start are the parent's to report, which has no other way to hear of them.
    try:
        models = make_models(metrics)
        # With `watch` a registry may be empty at first.
        if not models.is_ready() and watch is None:
            raise ServingError(models.why_none())
        config = _configure_uvicorn(uvicorn, make_app(models, metrics), keep_alive, end_within)
        if certificates is not None:
            config.ssl = certificates.context()
    except (DaskMLDistError, OSError) as error:
        place.failed(str(error))
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
            runner.run(_run_uvicorn(uvicorn, config, place, listener, keep_alive, meanwhile))
    finally:
        models.close()
        metrics.share()  # the last half second's, for the process that follows in this slot


def _configure_uvicorn(uvicorn: Any, app: App, keep_alive: float, end_within: float) -> Any:
    """Return the configuration of uvicorn for an application, loaded."""
    from daskml_dist.serving.connection import LimitedConnection

    config = uvicorn.Config(
        app,
        http=LimitedConnection,
        ws="none",
        # The application has an access log of its own; logging is configured by the user.
        access_log=False,
        log_config=None,
        log_level="warning",
        # Two headers less in each answer, and none of a request is believed.
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
    place: ProcessSlot,
    listener: socket.socket,
    keep_alive: float,
    meanwhile: Iterable[Task],
) -> None:
    """Run uvicorn's server and the tasks beside it until the process is to end."""

    class Server(uvicorn.Server):
        # uvicorn's handlers would end without waiting for idle connections: see below.
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            place.ready()

    loop = asyncio.get_running_loop()
    server, ends = Server(config), asyncio.Event()
    # Two reasons to end: SIGTERM, and a pipe that the kernel closes with the parent.
    loop.add_signal_handler(signal.SIGTERM, ends.set)
    loop.add_reader(place.parent_end, _end_when_orphaned, loop, place.parent_end, ends)
    tasks = [loop.create_task(_end_gracefully(server, ends, keep_alive))]
    tasks += [loop.create_task(one(server)) for one in meanwhile]
    for task in tasks:
        task.add_done_callback(_log_failed_task)
    try:
        await server.serve(sockets=[listener])
    finally:
        for task in tasks:
            task.cancel()
        loop.remove_reader(place.parent_end)


def _log_failed_task(task: asyncio.Task[None]) -> None:
    """Log the exception of a task, which would else be lost; requests are answered on."""
    if not task.cancelled() and (error := task.exception()):
        _LOG.error("A background task failed; the server continues", exc_info=error)


def _end_when_orphaned(loop: asyncio.AbstractEventLoop, fd: int, ends: asyncio.Event) -> None:
    """Begin to end where the pipe to the parent is closed, which reads as no bytes."""
    if not os.read(fd, 1):
        loop.remove_reader(fd)
        ends.set()


async def _share_metrics(metrics: Metrics) -> None:
    """Put this process's metrics where the others read them, periodically."""
    while True:
        metrics.share()
        await asyncio.sleep(_METRICS_SECONDS)


async def _close_slow_connections(server: Any, seconds: float) -> None:
    """Close connections of a server that are slow; its own module needs the extra."""
    from daskml_dist.serving.connection import close_slow_connections

    await close_slow_connections(server.server_state.connections, seconds)


async def _renew_certificates(certificates: Certificates, context: Any, interval: float) -> None:
    """Load renewed certificates into the context in use, periodically."""
    while True:
        await asyncio.sleep(interval)
        certificates.renew(context)


async def _end_gracefully(server: Any, ends: asyncio.Event, keep_alive: float) -> None:
    """Wait until the server is to end; then close its socket, and each connection by its answer.

    To close an idle connection at once would break a request that is on its way on it.
    """
    await ends.wait()
    for one in server.servers:
        one.close()
    # Headers of all answers to come: uvicorn makes the second list from the first each second, so
    # both are extended.
    for headers in (server.config.encoded_headers, server.server_state.default_headers):
        headers.append((b"connection", b"close"))
    connections = server.server_state.connections
    for connection in list(connections):
        # A request under way (a cycle of uvicorn's) may hold the list of an earlier second.
        cycle = connection.cycle
        if cycle is not None and not cycle.response_started:
            cycle.keep_alive = False
    until = time.monotonic() + keep_alive
    while connections and time.monotonic() < until:
        await asyncio.sleep(0.02)
    server.should_exit = True
