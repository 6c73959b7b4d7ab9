"""Calls of functions on workers, and events that workers log for the client."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from distributed import Client

from daskml_dist.comm.base import CHECK_SECONDS

Handler = Callable[[Any], None]
_handlers_of_client: WeakKeyDictionary[Any, dict[str, dict[str, Handler]]] = WeakKeyDictionary()
_lock = threading.Lock()


def call_workers(
    client: Client,
    function: Callable[..., Any],
    args: Mapping[str, tuple[Any, ...]],
    timeout: float,
) -> dict[str, Any]:
    """Call a function on several workers in parallel; return the answers that arrived in time."""

    async def call(address: str) -> dict[str, Any]:
        """Call one worker; return an empty dictionary if it does not answer."""
        with suppress(Exception):
            # In the client's own loop, `run` is a coroutine.
            running: Any = client.run(function, *args[address], workers=[address])
            return dict(await running)
        return {}

    async def call_all() -> dict[str, Any]:
        """Call all workers until the deadline; stop waiting for workers that are gone."""
        calls = {asyncio.ensure_future(call(address)): address for address in args}
        deadline = time.monotonic() + timeout
        pending = set(calls)
        # Check regularly whether a silent worker is still on the scheduler's list.
        while pending and time.monotonic() < deadline:
            _, pending = await asyncio.wait(pending, timeout=min(CHECK_SECONDS, timeout))
            if pending:
                # A worker that is no longer listed will not answer.
                scheduler: Any = client.scheduler
                workers = (await scheduler.identity(n_workers=-1))["workers"]
                pending = {running for running in pending if calls[running] in workers}
        for running in calls:
            running.cancel()
        finished = [running for running in calls if running.done() and not running.cancelled()]
        return {
            address: value for running in finished for address, value in running.result().items()
        }

    if not args:
        return {}
    answers: dict[str, Any] = client.sync(call_all)
    return answers


def listen_to_topic(client: Any, topic: str, listener: str, handler: Handler) -> None:
    """Call `handler(message)` for each event of a topic, in a thread of the client."""
    with _lock:
        handlers = _handlers_of_client.setdefault(client, {}).setdefault(topic, {})
        # Dask keeps one handler per topic, so fits share it.
        if not handlers:
            client.subscribe_topic(topic, partial(_dispatch_event, handlers))
        handlers[listener] = handler


def stop_listening(client: Any, listener: str) -> None:
    """Undo :func:`listen_to_topic` for all topics of a listener."""
    with _lock:
        topics = _handlers_of_client.get(client, {})
        for topic, handlers in list(topics.items()):
            if handlers.pop(listener, None) is not None and not handlers:
                del topics[topic]
                with suppress(Exception):
                    client.unsubscribe_topic(topic)


def _dispatch_event(handlers: dict[str, Handler], event: tuple[float, Any]) -> None:
    """Pass an event to all listeners of its topic."""
    for handler in list(handlers.values()):
        handler(event[1])
