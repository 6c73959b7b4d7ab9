"""Hearing events of the scheduler: several fits of one client share its one handler a topic."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["listen", "stop_listening"]

Handler = Callable[[Any], None]

_topics: WeakKeyDictionary[Any, dict[str, dict[str, Handler]]] = WeakKeyDictionary()
_lock = threading.Lock()


def listen(client: Any, topic: str, listener: str, handler: Handler) -> None:
    """Call `handler(message)` for each event of a topic, in a thread of the client's.

    Parameters
    ----------
    client : distributed.Client
    topic : str
    listener : str
        Unique name; the same name again replaces its handler.
    handler : callable
        Must not block.
    """
    with _lock:
        handlers = _topics.setdefault(client, {}).setdefault(topic, {})
        if not handlers:
            client.subscribe_topic(topic, _Dispatch(handlers))
        handlers[listener] = handler


def stop_listening(client: Any, listener: str) -> None:
    """Undo :func:`listen` for all topics of a listener."""
    with _lock:
        topics = _topics.get(client, {})
        for topic, handlers in list(topics.items()):
            if handlers.pop(listener, None) is not None and not handlers:
                del topics[topic]
                with suppress(Exception):
                    client.unsubscribe_topic(topic)


class _Dispatch:
    """Hands an event to all who listen to its topic."""

    def __init__(self, handlers: dict[str, Handler]) -> None:
        self._handlers = handlers

    def __call__(self, event: tuple[float, Any]) -> None:
        for handler in list(self._handlers.values()):
            handler(event[1])
