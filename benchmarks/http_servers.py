"""The serving application behind several HTTP servers, one process on one core.

Every server answers the same requests with the same application, models and codecs (`serving.app`),
so only HTTP and the event loop differ. ASGI servers run the application directly; granian's RSGI,
robyn and aiohttp, which pass whole requests, call it through a few lines here. wrk runs on the
other core. CPU time is compared, since a machine may have other work: requests per CPU second are
the rate of a dedicated core.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks._common import logistic_rows, markdown
from benchmarks.serving import (
    CONNECTIONS,
    FEATURES,
    INFER,
    cpu_seconds,
    free_port,
    json_request,
    running_server,
    wrk_figures,
    wrk_script,
)
from daskml_dist.linear_model import SGDClassifier

#: Each server, and the packages whose versions the table shows.
SERVERS: dict[str, tuple[str, ...]] = {
    "daskml_dist.serving.serve": ("uvicorn", "httptools"),
    "uvicorn, httptools": ("uvicorn", "httptools"),
    "uvicorn, h11": ("uvicorn", "h11"),
    "hypercorn": ("hypercorn",),
    "granian, ASGI": ("granian",),
    "granian, RSGI": ("granian",),
    "robyn": ("robyn",),
    "aiohttp": ("aiohttp",),
}


def run(tiny: bool = False) -> str:
    """Return the table."""
    X, y = logistic_rows(2_000, FEATURES)
    model = SGDClassifier(loss="log_loss", random_state=0).fit(X, y)
    body = json_request(X[0].tolist())
    names = [n for n, packages in SERVERS.items() if all(map(find_spec, packages))]
    names = names[:2] if tiny else names
    rounds, seconds = (1, 1) if tiny else (3, 4)
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    root = str(Path(__file__).parents[1])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.skops"
        model.save(str(path))
        script = wrk_script(body, "application/json", Path(folder))
        for _ in range(rounds):  # alternating, since the machine may be busy for a while
            for name in names:
                port = free_port()
                command = [sys.executable, "-m", "benchmarks.http_servers", name, str(path)]
                with running_server([*command, str(port)], port, INFER, body, root) as server:
                    wrk_figures(port, INFER, script, 1)
                    before = cpu_seconds(server)
                    rate, p50, p99, failed = wrk_figures(port, INFER, script, seconds)
                    spent = cpu_seconds(server) - before
                if failed != "0":
                    raise RuntimeError(f"{name}: {failed} requests failed")
                requests = float(rate.replace(",", ""))
                found[name].append([requests * seconds / spent, requests, float(p50), float(p99)])
    rows = []
    for name, runs in found.items():
        versions = ", ".join(f"{one} {metadata.version(one)}" for one in SERVERS[name])
        best = max(runs)
        rows.append([name, versions, f"{best[0]:,.0f}", f"{best[1]:,.0f}", best[2],
                     min(one[3] for one in runs)])  # fmt: skip
    head = ["", "versions", "requests a CPU second", "requests/s", "p50, ms", "least p99, ms"]
    title = f"HTTP servers, one process, {CONNECTIONS} connections, a row of {FEATURES} in JSON"
    return markdown(title, head, rows)


# --- one server, in a separate process -----------------------------------------------------------


def _application(path: str) -> Any:
    from daskml_dist.serving.app import App
    from daskml_dist.serving.metrics import Metrics
    from daskml_dist.serving.models import Models

    metrics = Metrics()
    return App(Models(path, metrics=metrics), metrics)


def _own(path: str, port: int) -> None:
    from daskml_dist.serving import serve

    serve(path, port=port)


def _uvicorn(path: str, port: int, http: str) -> None:
    import uvicorn

    uvicorn.run(_application(path), port=port, http=http, ws="none", loop="uvloop",
                access_log=False, log_level="error")  # fmt: skip


def _hypercorn(path: str, port: int) -> None:
    import uvloop
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    uvloop.run(serve(_application(path), config))


async def _answer(
    app: Any, path: str, headers: Any, body: bytes
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of the application's answer to a whole request."""
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, end = sent
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], headers, end["body"]


def _granian(path: str, port: int, interface: str) -> None:
    import uvloop
    from granian.constants import Interfaces
    from granian.server.embed import Server

    app = _application(path)
    target = app

    class Rsgi:
        """The same application for RSGI."""

        async def __rsgi__(self, scope: Any, protocol: Any) -> None:
            body = await protocol()
            pairs = [(name.encode(), value.encode()) for name, value in scope.headers.items()]
            status, headers, content = await _answer(app, scope.path, pairs, body)
            protocol.response_bytes(status, list(headers.items()), content)

    if interface == "rsgi":
        target = Rsgi()
    server = Server(target, port=port, interface=Interfaces(interface), log_enabled=False)
    uvloop.run(server.serve())


def _robyn(path: str, port: int) -> None:
    from robyn import Request, Response, Robyn

    logging.disable(logging.CRITICAL)
    app, robyn = _application(path), Robyn(__file__)

    @robyn.post("/v2/models/:name/infer")
    async def infer(request: Request) -> Response:
        found = request.headers.get_headers().items()
        pairs = [(name.encode(), ",".join(values).encode()) for name, values in found]
        body = request.body if isinstance(request.body, bytes) else request.body.encode()
        status, headers, content = await _answer(app, request.url.path, pairs, body)
        return Response(status_code=status, headers=headers, description=content)

    sys.argv = sys.argv[:1]
    robyn.start(port=port, _check_port=False)


def _aiohttp(path: str, port: int) -> None:
    import uvloop
    from aiohttp import web

    app = _application(path)

    async def infer(request: web.BaseRequest) -> web.Response:
        pairs = [(name.lower(), value) for name, value in request.raw_headers]
        status, headers, content = await _answer(app, request.path, pairs, await request.read())
        return web.Response(status=status, headers=headers, body=content)

    async def serve() -> None:
        runner = web.ServerRunner(web.Server(infer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()

    uvloop.run(serve())


_START: dict[str, Callable[[str, int], None]] = {
    "daskml_dist.serving.serve": _own,
    "uvicorn, httptools": lambda path, port: _uvicorn(path, port, "httptools"),
    "uvicorn, h11": lambda path, port: _uvicorn(path, port, "h11"),
    "hypercorn": _hypercorn,
    "granian, ASGI": lambda path, port: _granian(path, port, "asgi"),
    "granian, RSGI": lambda path, port: _granian(path, port, "rsgi"),
    "robyn": _robyn,
    "aiohttp": _aiohttp,
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.environ.setdefault("ROBYN_HOST", "127.0.0.1")
    _START[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
