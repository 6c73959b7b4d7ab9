"""The ASGI application: routes of the Open Inference Protocol, version 2, without a framework."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Mapping, MutableMapping
from typing import Any

from numpy.typing import NDArray

from daskml_dist.errors import RequestError
from daskml_dist.serving import metadata
from daskml_dist.serving.batching import Batcher
from daskml_dist.serving.checks import joined, rows_of
from daskml_dist.serving.http import (
    JSON,
    Deadlines,
    Gone,
    Receive,
    Send,
    body_of,
    check_token,
    error_body,
    json_body,
    respond,
)
from daskml_dist.serving.outputs import predictor_of
from daskml_dist.serving.protocol import Answer, codec_of

__all__ = ["App"]

_LOG = logging.getLogger("daskml_dist.serving")
_ACCESS = logging.getLogger("daskml_dist.serving.access")

_PATHS = (
    "/v2, /v2/health/live, /v2/health/ready, /v2/models/NAME[/versions/VERSION], the same with "
    "/ready or /infer behind it, and /metrics"
)
#: Header whose value always meets the same version, where several share the requests.
_KEY = b"x-route-key"
_MODEL, _VERSION = "/v2/models/", "/versions/"


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
        Seconds for which requests of a model wait for others. With it, the model is called in a
        thread: for models whose calls take milliseconds, which would hold up all other requests.
        None, the default: what was parsed in one turn of the event loop is one call, without a
        wait.
    together : bool, optional
        Whether requests share a call. The last digit of a row then depends on the rows beside it,
        as BLAS has it. None: not where a call takes a few microseconds (``Predictor.bare``), so
        that what is served is to the bit what the method gives; True serves a fifth more there.
    body_seconds : float, default=30
        In which a body must come; else it is refused (408).
    cluster : Cluster, optional
        Workers that predict what has many rows (:class:`daskml_dist.serving.on_cluster.Cluster`).
    access_log : bool, default=False
        Whether each request is a line of the logger ``daskml_dist.serving.access``.

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
        together: bool | None = None,
        body_seconds: float = 30.0,
        cluster: Any = None,
        access_log: bool = False,
    ) -> None:
        self.models = models
        self.metrics = metrics
        self.batcher = Batcher(max_waiting=max_waiting)
        self._together = together
        self._cluster = cluster
        self._token = None if token is None else token.encode()
        self._max_bytes = max_bytes
        self._max_delay = max_delay
        self._deadlines = Deadlines(body_seconds)
        self._access_log = access_log

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it."""
        if scope["type"] != "http":
            await self._lifespan(scope, receive, send)
            return
        began = time.perf_counter()
        call = _Call(scope)
        try:
            status, headers, body = await self._answer(call, receive)
        except Gone:
            return
        except Exception as error:
            status, headers, body = _refusal(error, call)
        seconds = time.perf_counter() - began
        self.metrics.count(call.model, call.version, status)
        if status == 200 and call.n_rows:
            self.metrics.observe(call.model, call.version, seconds, call.n_rows)
        await respond(send, status, headers, body, call.method == "HEAD")
        if self._access_log:
            client = (scope.get("client") or ("-",))[0]
            _ACCESS.info(
                '%s "%s %r" %d %d %.6f', client, call.method, call.path, status, len(body), seconds
            )

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
            else:  # a collection that goes through all that is loaded would hold up requests
                gc.collect()
                gc.freeze()
                if self._cluster is not None:
                    self._cluster.start(self.metrics)
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return

    # --- routes --------------------------------------------------------------------------------

    async def _answer(self, call: _Call, receive: Receive) -> _Said:
        path = call.path
        if path == "/v2/health/live":
            call.must_be("GET", "HEAD")
            return 200, JSON, json_body({"live": True})
        if path == "/v2/health/ready":
            call.must_be("GET", "HEAD")
            return _readiness(self.models.is_ready(), "No model is ready")
        if self._token is not None:
            check_token(call.headers, self._token)
        if path.startswith(_MODEL):
            return await self._of_model(call, receive)
        if path == "/v2":
            call.must_be("GET", "HEAD")
            return 200, JSON, json_body(metadata.of_server())
        if path == "/metrics":
            call.must_be("GET", "HEAD")
            kind = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
            return 200, (kind,), self.metrics.render()
        raise RequestError(f"There is no {path[:200]!r} here: ask for one of {_PATHS}.", 404)

    async def _of_model(self, call: _Call, receive: Receive) -> _Said:
        name, version, action = _parts(call.path)
        if action == "infer":
            call.must_be("POST")
            return await self._infer(call, receive, name, version)
        call.must_be("GET", "HEAD")
        served = self.models.get(name, version)
        if action == "ready":
            return _readiness(self.models.is_ready(name), f"Model {name!r} is not ready")
        known = getattr(self.models, "versions", None)
        versions = list(known(name)) if known else [served.version]
        return 200, JSON, json_body(metadata.of_model(served, versions))

    # --- inference -----------------------------------------------------------------------------

    async def _infer(self, call: _Call, receive: Receive, name: str, version: str | None) -> _Said:
        codec = codec_of(call.headers)
        body = await body_of(receive, call.headers, self._max_bytes, self._deadlines)
        if version is None:
            served, shadows = self.models.route(name, call.headers.get(_KEY))
        else:
            served, shadows = self.models.get(name, version), ()
        call.model, call.version = served.name, str(served.version)
        question = codec.read(body, call.headers, served.predictor)
        waiting = self._asked(served, question.tensors, question.outputs)
        for shadow in shadows:
            self._shadow(shadow, question)
        outputs = [(method, await answer) for method, answer in waiting]
        call.n_rows = len(outputs[0][1])
        headers, answered = codec.write(Answer(call.model, call.version, outputs), question)
        return 200, headers, answered

    def _asked(
        self, served: Any, tensors: Any, outputs: tuple[str, ...]
    ) -> list[tuple[str, asyncio.Future[NDArray[Any]]]]:
        """Answers to come, by method."""
        main = served.predictor
        rows = rows_of(tensors, main)
        if self._cluster is not None and self._cluster.takes(main, rows):
            there = [predictor_of(main, name).method for name in outputs or (main.method,)]
            return [(name, self._cluster.ask(served, name, rows)) for name in there]
        if isinstance(rows, dict):
            kinds: Any = tuple(values.dtype for values in rows.values())
            n_rows = len(next(iter(rows.values())))
        else:
            kinds, n_rows = (
                rows.dtype if rows.ndim == 2 else (rows.dtype, rows.shape[1:]),
                len(rows),
            )
        delay = self._max_delay
        if isinstance(delay, Mapping):
            delay = delay.get(served.name)
        chosen = [predictor_of(main, name) for name in outputs] if outputs else (main,)
        return [
            (
                one.method,
                self.batcher.ask(
                    (one, kinds), _Product(one), rows, n_rows, delay, self._shares(one)
                ),
            )
            for one in chosen
        ]

    def _shares(self, predictor: Any) -> bool:
        if self._together is None:
            return not getattr(predictor, "bare", False)
        return self._together

    def _shadow(self, shadow: Any, question: Any) -> None:
        """Have another version answer too; what becomes of it is told by the metrics alone."""
        began = time.perf_counter()
        name, version = shadow.name, str(shadow.version)

        def told(done: asyncio.Future[NDArray[Any]]) -> None:
            if done.cancelled():
                return
            error = done.exception()
            self.metrics.count(name, version, 200 if error is None else _status(error, True))
            if error is None:
                seconds = time.perf_counter() - began
                self.metrics.observe(name, version, seconds, len(done.result()))

        try:
            waiting = self._asked(shadow, question.tensors, question.outputs)
        except Exception as error:
            self.metrics.count(name, version, _status(error, True))
            return
        waiting[0][1].add_done_callback(told)
        for _, answer in waiting[1:]:
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())


_Said = tuple[int, Any, bytes]


class _Product:
    """A predictor, as a function of the rows of some requests."""

    __slots__ = ("predictor",)

    def __init__(self, predictor: Any) -> None:
        self.predictor = predictor

    def __call__(self, pieces: list[Any]) -> NDArray[Any]:
        answers: NDArray[Any] = self.predictor(joined(pieces, self.predictor))
        return answers


class _Call:
    """A request, and what is known of it so far."""

    __slots__ = ("headers", "method", "model", "n_rows", "path", "version")

    def __init__(self, scope: MutableMapping[str, Any]) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        # Of metrics: names that clients make up are not among them.
        self.model = self.version = ""
        self.n_rows = 0

    def must_be(self, *methods: str) -> None:
        """Refuse other methods of HTTP."""
        if self.method not in methods:
            allowed = ", ".join(methods)
            raise RequestError(
                f"{self.method[:20]} has no meaning for this path: send {allowed}.",
                405,
                ((b"allow", allowed.encode()),),
            )


def _parts(path: str) -> tuple[str, str | None, str]:
    """Name, version and action of the path of a model."""
    rest = path[len(_MODEL) :]
    action = ""
    for one in ("infer", "ready"):
        if rest.endswith("/" + one):
            rest, action = rest[: -len(one) - 1], one
            break
    name, slash, version = rest.partition(_VERSION)
    if not name or "/" in name or "/" in version or (slash and not version):
        raise RequestError(f"There is no {path[:200]!r} here: ask for one of {_PATHS}.", 404)
    return name, version or None, action


def _readiness(ready: bool, otherwise: str) -> _Said:
    if ready:
        return 200, JSON, json_body({"ready": True})
    raise RequestError(f"{otherwise}: ask again in a while.", 503, ((b"retry-after", b"1"),))


def _status(error: BaseException, found: bool) -> int:
    """The status of an error; of rows that a model does not take it is 422.

    A failed look-up is of the model's name before it is found, and the model's own afterwards.
    """
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, LookupError):
        return 500 if found else 404
    return 422 if isinstance(error, (ValueError, TypeError)) else 500


def _refusal(error: Exception, call: _Call) -> _Said:
    status = _status(error, bool(call.model))
    headers = error.headers if isinstance(error, RequestError) else ()
    if status == 500:
        _LOG.error("%s %r failed", call.method, call.path, exc_info=error)
        message = "The model failed: whoever runs the server finds the reason in its log."
        return status, (*JSON, *headers), error_body(message)
    return status, (*JSON, *headers), error_body(str(error))
