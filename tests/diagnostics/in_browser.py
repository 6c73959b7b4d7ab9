"""The page in the system's Chromium, behind a proxy like JupyterLab's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler
from tornado.websocket import WebSocketClientConnection, WebSocketHandler, websocket_connect

#: Script that reads the columns of a bokeh source in the browser.
_COLUMNS = """name => {
    const source = Bokeh.documents[0].get_model_by_name(name)
    const data = source.data instanceof Map ? source.data : Object.entries(source.data)
    return Object.fromEntries([...data].map(([key, values]) => [key, Array.from(values)]))
}"""


@contextmanager
def open_browser() -> Iterator[Any]:
    """Open a browser; the test is skipped, with the reason, if there is none."""
    pytest.importorskip("bokeh", reason="no bokeh: pip install 'daskml-dist[viz]'")
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install it")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        # Its sandbox does not work for root.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def columns(page: Any, name: str) -> dict[str, list[Any]]:
    """Return the columns that a figure of a page shows; values that are not numbers become None."""
    found: dict[str, list[Any]] = page.evaluate(_COLUMNS, name)
    return found


def open_proxy(to: str) -> tuple[HTTPServer, int]:
    """Open a proxy from ``/proxy/N/...`` to "host:port"; return it, and its port.

    It must be called in an event loop.
    """

    class Page(RequestHandler):
        async def get(self, path: str) -> None:
            url = f"http://{to}/{path}?{self.request.query}"
            answer = await AsyncHTTPClient().fetch(url, raise_error=False, follow_redirects=False)
            self.set_status(answer.code)
            for name in ("Content-Type", "Location"):
                if name in answer.headers:
                    self.set_header(name, answer.headers[name])
            self.finish(answer.body)

    class Socket(WebSocketHandler):
        _other: WebSocketClientConnection

        def select_subprotocol(self, subprotocols: list[str]) -> str | None:
            return subprotocols[0] if subprotocols else None

        async def open(self, path: str) -> None:  # type: ignore[override]
            protocols = self.request.headers.get("Sec-WebSocket-Protocol", "")
            self._other = await websocket_connect(
                f"ws://{to}/{path}?{self.request.query}",
                subprotocols=[name.strip() for name in protocols.split(",")],
                on_message_callback=self._hand_on,
            )

        def _hand_on(self, message: Any) -> None:
            if message is None:
                self.close()
            elif self.ws_connection is not None:
                self.write_message(message, binary=isinstance(message, bytes))

        def on_message(self, message: Any) -> None:
            self._other.write_message(message, binary=isinstance(message, bytes))

        def on_close(self) -> None:
            self._other.close()

    server = HTTPServer(Application([(r"/proxy/\d+/(.*/ws)", Socket), (r"/proxy/\d+/(.*)", Page)]))
    sockets = bind_sockets(0, "127.0.0.1")
    server.add_sockets(sockets)
    return server, int(sockets[0].getsockname()[1])
