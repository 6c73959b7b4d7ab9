"""The ASGI application: routes of the Open Inference Protocol, version 2, without a framework.

A request for inference goes through these steps (`App._infer`):

1. its body is read within bounds of size, time and memory (`RequestBodies.read`);
2. the path's model, or the version that its share of the requests falls to, is looked up;
3. the codec of the content type makes the body a `Question`, a list of named tensors;
4. the `Batcher` calls the model, possibly with the rows of other requests, or a `Cluster` does;
5. the same codec encodes the outputs as the response.

Any step may raise; the error's class decides the status (`_status_of`), and its message is the
body.
It runs in any server of ASGI; `serve` runs it in uvicorn, with the connections of
`daskml_dist.serving.connection`.
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
    list_predictors,
    make_rows,
)
from daskml_dist.serving.protocol import Answer, Question, find_codec

_LOG = logging.getLogger("daskml_dist.serving")
_ACCESS_LOG = logging.getLogger("daskml_dist.serving.access")

#: Header that identifies a user or session: requests with the same value are answered by the same
#: version, if several versions share the requests.
_ROUTE_KEY = b"x-route-key"
#: Existing paths, for the message about an unknown one.
_PATHS = (
    "/v2, /v2/health/live, /v2/health/ready, /v2/models/NAME[/versions/VERSION], the same with "
    "/ready or /infer behind it, /v2/repository/index, and /metrics"
)
_INDEX_PATH, _MODEL_PATH = "/v2/repository/index", "/v2/models/"


class _ServedRequest:
    """A request, with the facts about its response for metrics and the access log."""

    __slots__ = ("began", "client", "headers", "method", "model", "n_rows", "path", "version")

    def __init__(self, method: str, path: str, headers: dict[bytes, bytes], client: Any) -> None:
        self.began = time.perf_counter()
        self.method, self.path, self.headers, self.client = method, path, headers, client
        # Empty until a model is found: clients could otherwise fill the metrics with invented
        # names.
        self.model = self.version = ""
        self.n_rows = 0

    def check_method(self, *methods: str) -> None:
        """Raise 405 for other HTTP methods."""
        if self.method not in methods:
            allowed = ", ".join(methods)
            raise RequestError(
                f"{self.method[:20]} is not supported on this path: send {allowed}.",
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
        Token that requests must carry (``Authorization: Bearer``), except health checks.
    max_bytes : int, default=16 MiB
        Size of a body; a larger one is refused (413).
    max_waiting : int, default=1024
        Requests that may wait for a model; a further one is refused (503, with Retry-After).
    max_delay : float, or mapping of names to floats, optional
        Seconds for which requests of a model wait for others, to share a call with them. The model
        is then called in a thread: this suits models whose calls take milliseconds and would block
        all other requests. With 0 it is called in a thread too, but requests share no calls that
        could change a bit of their answers. None (the default): it is called in the event loop,
        without a wait.
    together : bool, default=False
        Whether the requests of one iteration of the event loop share a call, for any model. The
        last digit of a row may then depend on the other rows, since BLAS's rounding depends on
        their number. By default an answer has the same bits as a call with only the request's rows:
        each request is a separate call, unless rows are independent (``Predictor.rows_apart``), or
        requests of one row each can be answered with the same bits in one call
        (``Predictor.each``).
    body_seconds : float, default=30
        Time that a body may take to arrive; otherwise it is refused (408). The server limits heads.
    cluster : Cluster, optional
        Workers that predict requests with many rows
        (:class:`daskml_dist.serving.on_cluster.Cluster`).
    access_log : bool, default=False
        Whether each request is a line of the logger ``daskml_dist.serving.access``.
    compress_from : int, optional
        Minimum bytes of a response to be compressed, for clients whose ``Accept-Encoding`` includes
        gzip. None (the default): never, since many clients send that header automatically, and on a
        fast network compressing takes longer than sending the bytes.

    Notes
    -----
    Errors are JSON, ``{"error": message}``, and name the remedy: 400 damaged body, 401 no token,
    404 unknown path, model or version, 405 wrong HTTP method, 408 and 413 as above, 415 unknown
    content type, 422 rows that do not fit the model, 500 other failure of a model, 503 too many
    waiting requests, or a model is not ready. A refused request does not affect others, in the same
    call or on the same connection. Protocol: https://github.com/kserve/open-inference-protocol.
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
        """Answer a request, as ASGI specifies."""
        if scope["type"] != "http":
            await self._lifespan(scope, receive, send)
            return
        request = _ServedRequest(
            scope["method"], scope["path"], dict(scope["headers"]), scope.get("client")
        )
        try:
            status, headers, body = await self._answer(request, receive)
        except ClientDisconnectedError:
            return
        except Exception as error:
            status, headers, body = _refusal(error, request)
        # The latency ends here, without the time that the client takes to read the response.
        if self._compress_from is not None and status == 200:
            headers, body = compress_response(request.headers, headers, body, self._compress_from)
        seconds = time.perf_counter() - request.began
        self.metrics.count(request.model, request.version, status)
        if status == 200 and request.n_rows:
            self.metrics.observe(request.model, request.version, seconds, request.n_rows)
        if self._access_log:
            # Escaped, since line ends and quotes in a path could forge lines of the log.
            path = request.path.encode("unicode_escape").decode("ascii").replace('"', '\\"')
            line = f"{request.method} {path}"
            _log_access(request.client, line, status, body, seconds)
        # The header "connection: close" means that the rest of the body has not been read; it is
        # awaited and dropped, but not after 408, whose body did not arrive in time.
        unread = receive if CLOSE in headers and status != 408 else None
        await respond(send, status, headers, body, request.method == "HEAD", unread)

    def count_refusal(self, status: int, body: bytes, client: Any) -> None:
        """Count and log a request refused by its connection before it reached the application."""
        self.metrics.count("", "", status)
        if self._access_log:
            _log_access(client, "-", status, body, 0.0)

    async def _lifespan(
        self, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        """Run the server's startup and shutdown work; close websockets, which are not supported."""
        if scope["type"] != "lifespan":
            await send({"type": "websocket.close"})
            return
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self.batcher.close()
                if self._cluster is not None:
                    await asyncio.to_thread(self._cluster.close)
            else:
                # Otherwise the garbage collector would repeatedly scan all modules and models, and
                # delay requests: it ignores the existing objects from now on.
                gc.collect()
                gc.freeze()
                if self._cluster is not None:
                    self._cluster.start(self.metrics)
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return

    # --- routes --------------------------------------------------------------------------------

    async def _answer(self, request: _ServedRequest, receive: Receive) -> Response:
        """Return the response to a request by its path; raise if it is refused."""
        path = request.path
        # Orchestrators check health without a token.
        if path in ("/v2/health/live", "/v2/health/ready"):
            request.check_method("GET", "HEAD")
            if path.endswith("live"):
                return 200, JSON, encode_json({"live": True})
            return _readiness(self.models.is_ready(), "No model is ready")
        if self._token is not None:
            check_token(request.headers, self._token)
        if path.startswith(_MODEL_PATH):
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
        if path == _INDEX_PATH:
            return await self._list_models(request, receive)
        if path == "/metrics":
            request.check_method("GET", "HEAD")
            return 200, ((b"content-type", CONTENT_TYPE),), self.metrics.render()
        raise _unknown_path(path)

    async def _list_models(self, request: _ServedRequest, receive: Receive) -> Response:
        """Return the versions of all models, in the form of the protocol's repository extension."""
        request.check_method("POST", "GET")
        # The body may restrict the list to ready models, which all of these are: it is read, so
        # that the connection can be reused, and dropped.
        _, n_held = await self._bodies.read_body(receive, request.headers)
        self._bodies.release(n_held)
        entries = [
            {"name": name, "version": version, "state": "READY", "reason": ""}
            for name in self.models.names()
            for version in self._versions(name)
        ]
        return 200, JSON, encode_json(entries)

    def _versions(self, name: str) -> list[str]:
        """Return the versions of a model: the served one alone if the models have no list."""
        versions = getattr(self.models, "versions", None)
        return list(versions(name)) if versions else [self.models.get(name).version]

    # --- inference -----------------------------------------------------------------------------

    async def _infer(
        self, request: _ServedRequest, receive: Receive, name: str, version: str | None
    ) -> Response:
        """Return a model's response to the rows of a request; pass the rows to its shadows too."""
        request.check_method("POST")
        # The content type is checked before the body is read.
        codec = find_codec(request.headers)
        body, n_held = await self._bodies.read_body(receive, request.headers)
        try:
            if version is None:
                served, shadows = self.models.route(name, request.headers.get(_ROUTE_KEY))
            else:
                served, shadows = self.models.get(name, version), ()
            request.model, request.version = served.name, str(served.version)
            question = codec.read(body, request.headers, served.predictor)
            # Shadows are called after the model; only the model's answer is awaited.
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
            # Only now, since tensors of the question may be views of the body.
            self._bodies.release(n_held)

    def _enqueue(self, served: Any, question: Question) -> list[tuple[str, Any]]:
        """Return (method, future) for each output of a request, else for the default output."""
        default = served.predictor
        rows = make_rows(question.tensors, default)
        predictors = list_predictors(default, question)
        if self._cluster is not None and self._cluster.takes(default, rows):
            return [
                (
                    predictor.method,
                    self._cluster.ask(served, getattr(predictor, "maker", predictor.method), rows),
                )
                for predictor in predictors
            ]
        n_rows = count_rows(rows)
        # Requests may share a call of a predictor if their rows can be stacked, which needs equal
        # dtypes and shapes.
        if isinstance(rows, dict):
            kind: Any = tuple(values.dtype for values in rows.values())
        else:
            kind = rows.dtype if rows.ndim == 2 else (rows.dtype, rows.shape[1:])
        delay = self._max_delay
        if isinstance(delay, Mapping):
            delay = delay.get(served.name)
        share = self._together or bool(delay)
        waiting = []
        for predictor in predictors:
            shared = share or _are_independent(predictor, rows)
            call = BatchedPredictor(predictor)
            answer = self.batcher.ask((predictor, kind), call, rows, n_rows, delay, shared)
            waiting.append((predictor.method, answer))
        return waiting

    def _ask_shadow(self, shadow: Any, question: Question) -> None:
        """Pass the same rows to another version; only the metrics of its answer are kept."""
        began = time.perf_counter()
        name, version = shadow.name, str(shadow.version)

        def record(future: asyncio.Future[NDArray[Any]]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            self.metrics.count(name, version, 200 if error is None else _status_of(error, True))
            if error is None:
                seconds = time.perf_counter() - began
                self.metrics.observe(name, version, seconds, len(future.result()))

        try:
            waiting = self._enqueue(shadow, question)
        except Exception as error:
            self.metrics.count(name, version, _status_of(error, True))
            return
        # The first output represents the request. asyncio logs exceptions that are never retrieved,
        # so those of the others are retrieved and dropped.
        waiting[0][1].add_done_callback(record)
        for _, answer in waiting[1:]:
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())


def _are_independent(predictor: Any, rows: RequestRows) -> bool:
    """Return whether rows are numbers whose answers do not depend on rows of other requests."""
    # Objects hold strings, but the predictor's attribute is only about numbers.
    is_independent = getattr(predictor, "rows_apart", False)
    return is_independent and isinstance(rows, np.ndarray) and rows.dtype.kind != "O"


def _parse_model_path(path: str) -> tuple[str, str | None, str]:
    """Return name, version (or None) and action ("infer", "ready" or "") of a model's path."""
    remainder = path[len(_MODEL_PATH) :]
    action = ""
    for suffix in ("infer", "ready"):
        if remainder.endswith("/" + suffix):
            remainder, action = remainder[: -len(suffix) - 1], suffix
            break
    name, slash, version = remainder.partition("/versions/")
    if not name or "/" in name or "/" in version or (slash and not version):
        raise _unknown_path(path)
    return name, version or None, action


def _unknown_path(path: str) -> RequestError:
    """Return the error for a path without a route."""
    return RequestError(f"There is no {path[:200]!r} here; use one of {_PATHS}.", 404)


def _readiness(is_ready: bool, otherwise: str) -> Response:
    """Return the response for readiness, or raise 503."""
    if is_ready:
        return 200, JSON, encode_json({"ready": True})
    raise RequestError(f"{otherwise}: try again later.", 503, ((b"retry-after", b"1"),))


def _status_of(error: BaseException, is_found: bool) -> int:
    """Return the status of an error: 422 if a model does not accept the rows, 500 otherwise.

    A LookupError is of the model's name before the model is found, and the model's own afterwards.
    """
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, LookupError):
        return 500 if is_found else 404
    return 422 if isinstance(error, (ValueError, TypeError)) else 500


def _refusal(error: Exception, request: _ServedRequest) -> Response:
    """Return the response to a failed request; only the log describes unexpected errors."""
    status = _status_of(error, bool(request.model))
    headers = error.headers if isinstance(error, RequestError) else ()
    if status == 500:
        _LOG.error("%s %r failed", request.method, request.path, exc_info=error)
        message = "The model failed; the server log has the reason."
        return status, (*JSON, *headers), encode_error(message)
    message = str(error)
    # Messages of other packages have no remedy for a client.
    if status == 422 and not isinstance(error, DaskMLDistError):
        message += (
            " (message of the model). Send rows like those that it was fitted to: GET "
            f"/v2/models/{request.model} lists its inputs and datatypes."
        )
    return status, (*JSON, *headers), encode_error(message)


def _log_access(client: Any, request: str, status: int, body: bytes, seconds: float) -> None:
    """Log client, request, status, bytes of the response and seconds, as one line."""
    host = (client or ("-",))[0]
    _ACCESS_LOG.info('%s "%s" %d %d %.6f', host, request, status, len(body), seconds)
