"""The ASGI application: routes of the Open Inference Protocol, version 2, without a framework."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import RequestError
from daskml_dist.inference.joined_rows import Rows, n_rows_of
from daskml_dist.serving import metadata
from daskml_dist.serving.batching import Batcher
from daskml_dist.serving.bodies import Bodies
from daskml_dist.serving.calls import (
    INDEX,
    MODEL,
    PATHS,
    Said,
    ServedRequest,
    parts_of,
    readiness,
    refusal,
    status_of,
)
from daskml_dist.serving.checks import rows_of
from daskml_dist.serving.heads import Head, Heads
from daskml_dist.serving.http import (
    CLOSE,
    JSON,
    ClientDisconnectedError,
    Receive,
    Send,
    check_token,
    compress,
    json_body,
    respond,
)
from daskml_dist.serving.metrics import CONTENT_TYPE
from daskml_dist.serving.outputs import predictor_of
from daskml_dist.serving.protocol import Question, codec_of
from daskml_dist.serving.replies import Product, Reply, said_of

__all__ = ["App"]

_ACCESS = logging.getLogger("daskml_dist.serving.access")

#: Header whose value always meets the same version, where several share the requests.
_KEY = b"x-route-key"


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
        self._max_bytes = max_bytes
        self._max_delay = max_delay
        self._bodies = Bodies(max_bytes, body_seconds)
        self._access_log = access_log
        self._compress_from = compress_from
        self.head = Heads(self._plain)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it."""
        if scope["type"] != "http":
            await self._lifespan(scope, receive, send)
            return
        call = ServedRequest(
            scope["method"], scope["path"], dict(scope["headers"]), scope.get("client")
        )
        try:
            said = await self._answer(call, receive)
        except ClientDisconnectedError:
            return
        except Exception as error:
            said = refusal(error, call)
        status, headers, body = self._end(call, said)
        unread = receive if CLOSE in headers and status != 408 else None
        await respond(send, status, headers, body, call.method == "HEAD", unread)

    def _end(self, call: ServedRequest, said: Said) -> Said:
        """Count a request that is answered, write its line, and return the answer as it is sent."""
        status, headers, body = said
        if self._compress_from is not None and status == 200:
            headers, body = compress(call.headers, headers, body, self._compress_from)
        seconds = time.perf_counter() - call.began
        self.metrics.count(call.model, call.version, status)
        if status == 200 and call.n_rows:
            self.metrics.observe(call.model, call.version, seconds, call.n_rows)
        if self._access_log:
            _log(call.client, f"{call.method} {_plain(call.path)}", status, body, seconds)
        return status, headers, body

    def refused(self, status: int, body: bytes, client: Any) -> None:
        """Count what a connection has refused before it was a request, and write its line."""
        self.metrics.count("", "", status)
        if self._access_log:
            _log(client, "-", status, body, 0.0)

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

    async def _answer(self, call: ServedRequest, receive: Receive) -> Said:
        path = call.path
        if path == "/v2/health/live":
            call.must_be("GET", "HEAD")
            return 200, JSON, json_body({"live": True})
        if path == "/v2/health/ready":
            call.must_be("GET", "HEAD")
            return readiness(self.models.is_ready(), "No model is ready")
        if self._token is not None:
            check_token(call.headers, self._token)
        if path.startswith(MODEL):
            return await self._of_model(call, receive)
        if path == "/v2":
            call.must_be("GET", "HEAD")
            return 200, JSON, json_body(metadata.of_server())
        if path == INDEX:
            return await self._index(call, receive)
        if path == "/metrics":
            call.must_be("GET", "HEAD")
            return 200, ((b"content-type", CONTENT_TYPE),), self.metrics.render()
        raise RequestError(f"There is no {path[:200]!r} here: ask for one of {PATHS}.", 404)

    async def _index(self, call: ServedRequest, receive: Receive) -> Said:
        """Versions of all models, as the protocol's extension of repositories lists them."""
        call.must_be("POST", "GET")
        async with self._bodies.of(receive, call.headers):
            pass  # it may ask for what is ready: all that is served is
        known = getattr(self.models, "versions", None)
        listed = [
            {"name": name, "version": version, "state": "READY", "reason": ""}
            for name in self.models.names()
            for version in (known(name) if known else [self.models.get(name).version])
        ]
        return 200, JSON, json_body(listed)

    async def _of_model(self, call: ServedRequest, receive: Receive) -> Said:
        name, version, action = parts_of(call.path)
        if action == "infer":
            call.must_be("POST")
            return await self._infer(call, receive, name, version)
        call.must_be("GET", "HEAD")
        served = self.models.get(name, version)
        if action == "ready":
            return readiness(self.models.is_ready(name), f"Model {name!r} is not ready")
        known = getattr(self.models, "versions", None)
        versions = list(known(name)) if known else [served.version]
        return 200, JSON, json_body(metadata.of_model(served, versions))

    # --- inference -----------------------------------------------------------------------------

    async def _infer(
        self, call: ServedRequest, receive: Receive, name: str, version: str | None
    ) -> Said:
        codec = codec_of(call.headers)
        async with self._bodies.of(receive, call.headers) as body:
            question, waiting = self._asked_of(call, codec, body, name, version)
            outputs = [(method, await answer) for method, answer in waiting]
            return said_of(call, codec, question, outputs)

    def _plain(self, path: str, headers: dict[bytes, bytes], size: int) -> Head | None:
        """Head of a request that :meth:`answer` may answer."""
        if self._token is not None:
            check_token(headers, self._token)
        if size > self._max_bytes or not path.startswith(MODEL) or b"content-encoding" in headers:
            return None
        name, version, action = parts_of(path)
        if action != "infer" or self._delay(name) is not None:
            return None
        return Head(size, path, name, version, codec_of(headers), headers)

    def answer(
        self, head: Head, body: bytes, client: Any, tell: Callable[[int, Any, bytes], None]
    ) -> None:
        """Answer a request that came whole, without a task."""
        reply = Reply(
            self._end, ServedRequest("POST", head.path, head.headers, client), head.codec, tell
        )
        try:
            reply.question, waiting = self._asked_of(
                reply.call, head.codec, body, head.name, head.version, reply
            )
        except Exception as error:
            reply.set_exception(error)
            return
        reply.names = [method for method, _ in waiting]
        if waiting[0][1] is not reply:
            asyncio.gather(*(answer for _, answer in waiting)).add_done_callback(reply.gathered)

    def _asked_of(
        self,
        call: ServedRequest,
        codec: Any,
        body: bytes,
        name: str,
        version: str | None,
        reply: Reply | None = None,
    ) -> tuple[Question, list[tuple[str, Any]]]:
        """A body as a question, and its answers to come, as :meth:`_asked` has them."""
        if version is None:
            served, shadows = self.models.route(name, call.headers.get(_KEY))
        else:
            served, shadows = self.models.get(name, version), ()
        call.model, call.version = served.name, str(served.version)
        question = codec.read(body, call.headers, served.predictor)
        waiting = self._asked(served, question.tensors, question.outputs, reply)
        for shadow in shadows:
            self._shadow(shadow, question)
        return question, waiting

    def _asked(
        self,
        served: Any,
        tensors: Any,
        outputs: tuple[str, ...],
        reply: Reply | None = None,
    ) -> list[tuple[str, Any]]:
        """Answers to come, by method: futures, or `reply` where there is one answer."""
        main = served.predictor
        rows = rows_of(tensors, main)
        if self._cluster is not None and self._cluster.takes(main, rows):
            there = [predictor_of(main, name).method for name in outputs or (main.method,)]
            return [(name, self._cluster.ask(served, name, rows)) for name in there]
        n_rows = n_rows_of(rows)
        if isinstance(rows, dict):
            kinds: Any = tuple(values.dtype for values in rows.values())
        else:
            kinds = rows.dtype if rows.ndim == 2 else (rows.dtype, rows.shape[1:])
        delay = self._delay(served.name)
        share = self._together or bool(delay)
        chosen = [predictor_of(main, name) for name in outputs] if outputs else (main,)
        to = reply if len(chosen) == 1 else None
        return [
            (
                one.method,
                self.batcher.ask(
                    (one, kinds),
                    Product(one),
                    rows,
                    n_rows,
                    delay,
                    share or _is_apart(one, rows),
                    to,
                ),
            )
            for one in chosen
        ]

    def _delay(self, name: str) -> float | None:
        delay = self._max_delay
        return delay.get(name) if isinstance(delay, Mapping) else delay

    def _shadow(self, shadow: Any, question: Any) -> None:
        """Have another version answer too; what becomes of it is told by the metrics alone."""
        began = time.perf_counter()
        name, version = shadow.name, str(shadow.version)

        def told(done: asyncio.Future[NDArray[Any]]) -> None:
            if done.cancelled():
                return
            error = done.exception()
            self.metrics.count(name, version, 200 if error is None else status_of(error, True))
            if error is None:
                seconds = time.perf_counter() - began
                self.metrics.observe(name, version, seconds, len(done.result()))

        try:
            waiting = self._asked(shadow, question.tensors, question.outputs)
        except Exception as error:
            self.metrics.count(name, version, status_of(error, True))
            return
        waiting[0][1].add_done_callback(told)
        for _, answer in waiting[1:]:
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())


def _is_apart(predictor: Any, rows: Rows) -> bool:
    """Say if rows are numbers of which those of several requests may share a call unharmed."""
    apart = getattr(predictor, "rows_apart", False)
    return apart and isinstance(rows, np.ndarray) and rows.dtype.kind != "O"


def _log(client: Any, request: str, status: int, body: bytes, seconds: float) -> None:
    """Write a line of the access log."""
    host = (client or ("-",))[0]
    _ACCESS.info('%s "%s" %d %d %.6f', host, request, status, len(body), seconds)


def _plain(path: str) -> str:
    """A path that ends no line of a log, and no quotes."""
    return path.encode("unicode_escape").decode("ascii").replace('"', '\\"')
