"""Stand-ins for the inputs of an application, and a client that speaks ASGI to it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from daskml_dist.inference import Predictor

__all__ = ["Metrics", "Models", "Reply", "ask", "ask_async", "tensor"]


class _Served(NamedTuple):
    name: str
    version: str
    predictor: Any
    manifest: dict[str, Any]


class Models:
    """Models by name and version, without a registry."""

    def __init__(self, **models: Any) -> None:
        self.served: dict[str, list[_Served]] = {}
        self.shadowed: set[str] = set()
        for name, model in models.items():
            self.put(name, model)

    def put(self, name: str, model: Any) -> None:
        """Serve a fitted model, or a predictor, as the newest version of a name."""
        predictor = model if hasattr(model, "method") else Predictor(model)
        versions = self.served.setdefault(name, [])
        versions.append(_Served(name, str(len(versions) + 1), predictor, {}))

    def get(self, name: str, version: str | None = None) -> _Served:
        try:
            found = self.served[name]
            return found[-1] if version is None else {one.version: one for one in found}[version]
        except KeyError:
            raise LookupError(f"No model {name!r} of version {version}.") from None

    def route(self, name: str, key: Any = None) -> tuple[_Served, tuple[_Served, ...]]:
        found = self.get(name)
        return found, tuple(self.served[name][:-1]) if name in self.shadowed else ()

    def names(self) -> list[str]:
        return sorted(self.served)

    def is_ready(self, name: str | None = None) -> bool:
        return bool(self.served) if name is None else name in self.served


class Metrics:
    """Counts that tests can read."""

    def __init__(self) -> None:
        self.codes: Counter[tuple[str, str, int]] = Counter()
        self.rows: Counter[tuple[str, str]] = Counter()

    def count(self, model: str, version: str, code: int) -> None:
        self.codes[model, version, code] += 1

    def observe(self, model: str, version: str, seconds: float, n_rows: int) -> None:
        assert seconds >= 0
        self.rows[model, version] += n_rows

    def render(self) -> bytes:
        return b"counted 1\n"


class Reply(NamedTuple):
    """An answer of the application."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def tensor(values: Any, datatype: str = "FP64", name: str = "rows", **more: Any) -> dict[str, Any]:
    """Return an input of a request in JSON."""
    return {
        "name": name,
        "shape": list(values.shape),
        "datatype": datatype,
        "data": values.ravel().tolist(),
        **more,
    }


async def ask_async(
    app: Any,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
    method: str | None = None,
    receive: Callable[[], Any] | None = None,
) -> Reply:
    """Return the answer to a request; a body that is not bytes is sent as JSON."""
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    all_headers = {"content-length": str(len(body or b"")), **(headers or {})}
    scope = {
        "type": "http",
        "method": method or ("GET" if body is None else "POST"),
        "path": path,
        "headers": [(name.lower().encode(), value.encode()) for name, value in all_headers.items()],
        "client": ("127.0.0.1", 1),
    }
    sent: list[Any] = []

    async def whole() -> Any:
        return {"type": "http.request", "body": body or b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive or whole, send)
    start, end, *rest = sent
    assert [start["type"], end["type"]] == ["http.response.start", "http.response.body"]
    if end.get("more_body"):  # the connection stays open, but the answer is complete
        assert rest == [{"type": "http.response.body", "body": b""}]
    else:
        assert rest == []
    found = dict(start["headers"])
    if scope["method"] != "HEAD":
        assert int(found[b"content-length"]) == len(end["body"])
    return Reply(start["status"], found, end["body"])


def ask(*args: Any, **more: Any) -> Reply:
    """Return the answer to a request, in a new event loop."""
    return asyncio.run(ask_async(*args, **more))
