"""The ASGI application: routes of the Open Inference Protocol, version 2, without a framework.

`App` reads the path of a request and its body by the codec of its content type, hands the rows to
the `Batcher`, which calls the model, and writes the answer by the same codec. It runs in any server
of ASGI; `serve` runs it in uvicorn, with the connections of `daskml_dist.serving.connection`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import DaskMLDistError, RequestError
from daskml_dist.inference.request_rows import RequestRows, count_rows
from daskml_dist.serving.batching import BatchedPredictor, Batcher
from daskml_dist.serving.http_messages import (
    CLOSE,
    JSON,
    ClientDisconnectedError,
    Receive,
    RequestBodies,
    Response,
    Send,
    check_token,
    compress_response,
    encode_error,
    encode_json,
    respond,
)
from daskml_dist.serving.metrics import CONTENT_TYPE
from daskml_dist.serving.model_interface import (
    describe_model,
    describe_server,
    find_predictor,
    make_rows,
)
from daskml_dist.serving.protocol import Answer, Question, find_codec

_LOG = logging.getLogger("daskml_dist.serving")
_ACCESS_LOG = logging.getLogger("daskml_dist.serving.access")

#: Header whose value always meets the same version, where several share the requests.
ROUTE_KEY = b"x-route-key"
PATHS = (
    "/v2, /v2/health/live, /v2/health/ready, /v2/models/NAME[/versions/VERSION], the same with "
    "/ready or /infer behind it, /v2/repository/index, and /metrics"
)
INDEX_PATH, MODEL_PATH = "/v2/repository/index", "/v2/models/"


class ServedRequest:
    """A request, and what is known of it so far for metrics and the access log."""

    __slots__ = ("began", "client", "headers", "method", "model", "n_rows", "path", "version")

    def __init__(self, method: str, path: str, headers: dict[bytes, bytes], client: Any) -> None:
        self.began = time.perf_counter()
        self.method, self.path, self.headers, self.client = method, path, headers, client
        # Filled once a model is found: names that clients make up are not in the metrics.
        self.model = self.version = ""
        self.n_rows = 0

    def check_method(self, *methods: str) -> None:
        """Raise 405 for other methods of HTTP."""
        if self.method not in methods:
            allowed = ", ".join(methods)
            raise RequestError(
                f"{self.method[:20]} has no meaning for this path: send {allowed}.",
                405,
                ((b"allow", allowed.encode()),),
            )


class App:
    """An ASGI application that serves models.

    Parameters
    ----------
    models : Models
    metrics : Metrics
    token : str, optional
        That requests must carry (``Authorization: Bearer``), all but those for health.
    max_bytes : int, default=16 MiB
        Of a body; a larger one is refused (413).
    max_waiting : int, default=1024
        Requests that may wait for a model; a further one is refused (503, with Retry-After).
    max_delay : float, or mapping of names to floats, optional
        Seconds for which requests of a model wait for others, to share a call with them. The model
        is then called in a thread: for those whose calls take milliseconds, which would hold up all
        other requests. With 0, in a thread, but as exactly as without. None, the default: in the
        event loop, without a wait.
    together : bool, default=False
        Whether the requests of one turn of the event loop share a call, of any model. The last
        digit of a row then depends on the rows beside it, as BLAS has it. By default what is served
        is to the bit what the method gives to the rows of the request: requests are calls of their
        own, but where rows do not depend on each other (``Predictor.rows_apart``), or where those
        of a row each can be answered so in one call (``Predictor.each``).
    body_seconds : float, default=30
        In which a body must come; else it is refused (408). Heads are the server's to limit.
    cluster : Cluster, optional
        Workers that predict what has many rows (:class:`daskml_dist.serving.on_cluster.Cluster`).
    access_log : bool, default=False
        Whether each request is a line of the logger ``daskml_dist.serving.access``.
    compress_from : int, optional
        Bytes of an answer from which it is compressed, for clients whose ``Accept-Encoding`` takes
        gzip; None, the default: never, since many clients say so by themselves, and on a fast
        network compressing takes longer than the bytes.

    Notes
    -----
    Errors are JSON, ``{"error": message}``, and name the remedy: 400 a body that is damaged, 401 no
    token, 404 no such path, model or version, 405 another method of HTTP, 408 and 413 above,
    415 an unknown content type, 422 rows that are not of this model, 503 too many wait, or a model
    is not ready. A request that is refused disturbs no other, in the same call or on the same
    connection. Protocol: https://github.com/kserve/open-inference-protocol.
    """

    def __init__(
        self,
        models: Any,
        metrics: Any,
        *,
        token: str | None = None,
        max_bytes: int = 2**24,
        max_waiting: int = 1024,
        max_delay: float | Mapping[str, float] | None = None,
        together: bool = False,
        body_seconds: float = 30.0,
        cluster: Any = None,
        access_log: bool = False,
        compress_from: int | None = None,
    ) -> None:
        self.models = models
        self.metrics = metrics
        self.batcher = Batcher(max_waiting=max_waiting)
        self._together = together
        self._cluster = cluster
        self._token = None if token is None else token.encode()
        self._max_delay = max_delay
        self._bodies = RequestBodies(max_bytes, body_seconds)
        self._access_log = access_log
        self._compress_from = compress_from

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it."""
        if scope["type"] != "http":
            await self._lifespan(scope, receive, send)
            return
        request = ServedRequest(
            scope["method"], scope["path"], dict(scope["headers"]), scope.get("client")
        )
        try:
            status, headers, body = await self._answer(request, receive)
        except ClientDisconnectedError:
            return
        except Exception as error:
            status, headers, body = _refusal(error, request)
        if self._compress_from is not None and status == 200:
            headers, body = compress_response(request.headers, headers, body, self._compress_from)
        seconds = time.perf_counter() - request.began
        self.metrics.count(request.model, request.version, status)
        if status == 200 and request.n_rows:
            self.metrics.observe(request.model, request.version, seconds, request.n_rows)
        if self._access_log:
            line = f"{request.method} {_escape_path(request.path)}"
            _log_access(request.client, line, status, body, seconds)
        unread = receive if CLOSE in headers and status != 408 else None
        await respond(send, status, headers, body, request.method == "HEAD", unread)

    def count_refusal(self, status: int, body: bytes, client: Any) -> None:
        """Count and log what a connection has refused before it was a request."""
        self.metrics.count("", "", status)
        if self._access_log:
            _log_access(client, "-", status, body, 0.0)

    async def _lifespan(
        self, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        if scope["type"] != "lifespan":  # a websocket
            await send({"type": "websocket.close"})
            return
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self.batcher.close()
                if self._cluster is not None:
                    await asyncio.to_thread(self._cluster.close)
            else:
                # A collection that goes through all modules and models would hold up requests.
                gc.collect()
                gc.freeze()
                if self._cluster is not None:
                    self._cluster.start(self.metrics)
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return

    # --- routes --------------------------------------------------------------------------------

    async def _answer(self, request: ServedRequest, receive: Receive) -> Response:
        path = request.path
        if path.startswith("/v2/health/") and path[11:] in ("live", "ready"):  # without a token
            request.check_method("GET", "HEAD")
            if path.endswith("live"):
                return 200, JSON, encode_json({"live": True})
            return _readiness(self.models.is_ready(), "No model is ready")
        if self._token is not None:
            check_token(request.headers, self._token)
        if path.startswith(MODEL_PATH):
            name, version, action = _parse_model_path(path)
            if action == "infer":
                return await self._infer(request, receive, name, version)
            request.check_method("GET", "HEAD")
            served = self.models.get(name, version)
            if action == "ready":
                return _readiness(self.models.is_ready(name), f"Model {name!r} is not ready")
            return 200, JSON, encode_json(describe_model(served, self._versions(name)))
        if path == "/v2":
            request.check_method("GET", "HEAD")
            return 200, JSON, encode_json(describe_server())
        if path == INDEX_PATH:
            return await self._list_models(request, receive)
        if path == "/metrics":
            request.check_method("GET", "HEAD")
            return 200, ((b"content-type", CONTENT_TYPE),), self.metrics.render()
        raise _unknown_path(path)

    async def _list_models(self, request: ServedRequest, receive: Receive) -> Response:
        """Return versions of all models, as the protocol's extension of repositories lists them."""
        request.check_method("POST", "GET")
        # A body may ask for models that are ready, as all of these are: it is read and dropped.
        _, n_held = await self._bodies.read(receive, request.headers)
        self._bodies.release(n_held)
        listed = [
            {"name": name, "version": version, "state": "READY", "reason": ""}
            for name in self.models.names()
            for version in self._versions(name)
        ]
        return 200, JSON, encode_json(listed)

    def _versions(self, name: str) -> list[str]:
        versions = getattr(self.models, "versions", None)
        return list(versions(name)) if versions else [self.models.get(name).version]

    # --- inference -----------------------------------------------------------------------------

    async def _infer(
        self, request: ServedRequest, receive: Receive, name: str, version: str | None
    ) -> Response:
        """Read the rows of a request, ask the model and its shadows, and write the answer."""
        request.check_method("POST")
        codec = find_codec(request.headers)
        body, n_held = await self._bodies.read(receive, request.headers)
        try:
            if version is None:
                served, shadows = self.models.route(name, request.headers.get(ROUTE_KEY))
            else:
                served, shadows = self.models.get(name, version), ()
            request.model, request.version = served.name, str(served.version)
            question = codec.read(body, request.headers, served.predictor)
            waiting = self._enqueue(served, question)
            for shadow in shadows:
                self._ask_shadow(shadow, question)
            outputs = [(method, await answer) for method, answer in waiting]
            request.n_rows = len(outputs[0][1])
            headers, content = codec.write(
                Answer(request.model, request.version, outputs), question
            )
            return 200, headers, content
        finally:
            self._bodies.release(n_held)

    def _enqueue(self, served: Any, question: Question) -> list[tuple[str, Any]]:
        """Return futures of the outputs that a request asks for, by method."""
        main = served.predictor
        rows = make_rows(question.tensors, main)
        if self._cluster is not None and self._cluster.takes(main, rows):
            methods = [find_predictor(main, name).method for name in question.outputs]
            return [
                (method, self._cluster.ask(served, method, rows))
                for method in methods or [main.method]
            ]
        n_rows = count_rows(rows)
        # Rows of different dtypes or shapes cannot be stacked for one call.
        if isinstance(rows, dict):
            kind: Any = tuple(values.dtype for values in rows.values())
        else:
            kind = rows.dtype if rows.ndim == 2 else (rows.dtype, rows.shape[1:])
        delay = self._max_delay
        if isinstance(delay, Mapping):
            delay = delay.get(served.name)
        share = self._together or bool(delay)
        waiting = []
        for predictor in [find_predictor(main, name) for name in question.outputs] or [main]:
            shared = share or _are_independent(predictor, rows)
            product = BatchedPredictor(predictor)
            answer = self.batcher.ask((predictor, kind), product, rows, n_rows, delay, shared)
            waiting.append((predictor.method, answer))
        return waiting

    def _ask_shadow(self, shadow: Any, question: Question) -> None:
        """Have another version answer too; nothing of its answer but the metrics is kept."""
        began = time.perf_counter()
        name, version = shadow.name, str(shadow.version)

        def record(done: asyncio.Future[NDArray[Any]]) -> None:
            if done.cancelled():
                return
            error = done.exception()
            self.metrics.count(name, version, 200 if error is None else _status_of(error, True))
            if error is None:
                seconds = time.perf_counter() - began
                self.metrics.observe(name, version, seconds, len(done.result()))

        try:
            waiting = self._enqueue(shadow, question)
        except Exception as error:
            self.metrics.count(name, version, _status_of(error, True))
            return
        waiting[0][1].add_done_callback(record)
        for _, answer in waiting[1:]:  # an exception that nobody takes would be logged
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())


def _are_independent(predictor: Any, rows: RequestRows) -> bool:
    """Return whether rows are numbers that give the same bits beside rows of other requests."""
    apart = getattr(predictor, "rows_apart", False)
    return apart and isinstance(rows, np.ndarray) and rows.dtype.kind != "O"


def _parse_model_path(path: str) -> tuple[str, str | None, str]:
    """Return name, version and action of the path of a model."""
    rest = path[len(MODEL_PATH) :]
    action = ""
    for known in ("infer", "ready"):
        if rest.endswith("/" + known):
            rest, action = rest[: -len(known) - 1], known
            break
    name, slash, version = rest.partition("/versions/")
    if not name or "/" in name or "/" in version or (slash and not version):
        raise _unknown_path(path)
    return name, version or None, action


def _unknown_path(path: str) -> RequestError:
    return RequestError(f"There is no {path[:200]!r} here: ask for one of {PATHS}.", 404)


def _readiness(is_ready: bool, otherwise: str) -> Response:
    """Return the answer to whether something is ready, or raise 503."""
    if is_ready:
        return 200, JSON, encode_json({"ready": True})
    raise RequestError(f"{otherwise}: ask again in a while.", 503, ((b"retry-after", b"1"),))


def _status_of(error: BaseException, is_found: bool) -> int:
    """Return the status of an error: 422 of rows that a model does not take.

    A LookupError is of the model's name before the model is found, and the model's own afterwards.
    """
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, LookupError):
        return 500 if is_found else 404
    return 422 if isinstance(error, (ValueError, TypeError)) else 500


def _refusal(error: Exception, request: ServedRequest) -> Response:
    """Return the answer to a request that failed; errors of the server go to its log alone."""
    status = _status_of(error, bool(request.model))
    headers = error.headers if isinstance(error, RequestError) else ()
    if status == 500:
        _LOG.error("%s %r failed", request.method, request.path, exc_info=error)
        message = "The model failed: whoever runs the server finds the reason in its log."
        return status, (*JSON, *headers), encode_error(message)
    message = str(error)
    if status == 422 and not isinstance(error, DaskMLDistError):  # the words of other packages
        message += (
            " (the model's own words). Send rows of the kind that it was fitted to: "
            f"GET /v2/models/{request.model} names its inputs and their datatypes."
        )
    return status, (*JSON, *headers), encode_error(message)


def _log_access(client: Any, request: str, status: int, body: bytes, seconds: float) -> None:
    host = (client or ("-",))[0]
    _ACCESS_LOG.info('%s "%s" %d %d %.6f', host, request, status, len(body), seconds)


def _escape_path(path: str) -> str:
    """Return a path without line ends and quotes, which could forge lines of the log."""
    return path.encode("unicode_escape").decode("ascii").replace('"', '\\"')
