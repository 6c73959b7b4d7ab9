"""Calls: requests as far as they are known, what their paths name, and how they are refused."""

from __future__ import annotations

import logging
import time
from typing import Any

from daskml_dist.errors import DaskMLDistError, RequestError
from daskml_dist.serving.http import JSON, error_body, json_body

__all__ = [
    "INDEX",
    "MODEL",
    "PATHS",
    "Said",
    "ServedRequest",
    "parts_of",
    "readiness",
    "refusal",
    "status_of",
]

_LOG = logging.getLogger("daskml_dist.serving")

PATHS = (
    "/v2, /v2/health/live, /v2/health/ready, /v2/models/NAME[/versions/VERSION], the same with "
    "/ready or /infer behind it, /v2/repository/index, and /metrics"
)
INDEX = "/v2/repository/index"
MODEL, _VERSION = "/v2/models/", "/versions/"

#: Status, headers and body of an answer.
Said = tuple[int, Any, bytes]


class ServedRequest:
    """A request, and what is known of it so far."""

    __slots__ = ("began", "client", "headers", "method", "model", "n_rows", "path", "version")

    def __init__(self, method: str, path: str, headers: dict[bytes, bytes], client: Any) -> None:
        self.began = time.perf_counter()
        self.method, self.path, self.headers, self.client = method, path, headers, client
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


def parts_of(path: str) -> tuple[str, str | None, str]:
    """Name, version and action of the path of a model."""
    rest = path[len(MODEL) :]
    action = ""
    for one in ("infer", "ready"):
        if rest.endswith("/" + one):
            rest, action = rest[: -len(one) - 1], one
            break
    name, slash, version = rest.partition(_VERSION)
    if not name or "/" in name or "/" in version or (slash and not version):
        raise RequestError(f"There is no {path[:200]!r} here: ask for one of {PATHS}.", 404)
    return name, version or None, action


def readiness(ready: bool, otherwise: str) -> Said:
    """The answer to whether something is ready; what is `otherwise` is refused for now."""
    if ready:
        return 200, JSON, json_body({"ready": True})
    raise RequestError(f"{otherwise}: ask again in a while.", 503, ((b"retry-after", b"1"),))


def status_of(error: BaseException, found: bool) -> int:
    """The status of an error; of rows that a model does not take it is 422.

    A failed look-up is of the model's name before it is found, and the model's own afterwards.
    """
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, LookupError):
        return 500 if found else 404
    return 422 if isinstance(error, (ValueError, TypeError)) else 500


def refusal(error: Exception, call: ServedRequest) -> Said:
    """The answer to a request that failed; what no client is to know goes to the log."""
    status = status_of(error, bool(call.model))
    headers = error.headers if isinstance(error, RequestError) else ()
    if status == 500:
        _LOG.error("%s %r failed", call.method, call.path, exc_info=error)
        message = "The model failed: whoever runs the server finds the reason in its log."
        return status, (*JSON, *headers), error_body(message)
    message = str(error)
    if status == 422 and not isinstance(error, DaskMLDistError):  # the words of other packages
        message += (
            " (the model's own words). Send rows of the kind that it was fitted to: "
            f"GET /v2/models/{call.model} names its inputs and their datatypes."
        )
    return status, (*JSON, *headers), error_body(message)
