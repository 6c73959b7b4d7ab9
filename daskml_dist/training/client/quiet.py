"""Silence of Dask's logs while clusters of our own run, which come and go in any order."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["silence"]

_lock = threading.Lock()
_users = 0
#: Handlers that are silenced, and the level of each before.
_levels: dict[logging.Handler, int] = {}


@contextmanager
def silence() -> Iterator[None]:
    """Keep what Dask logs from the user's terminal, until the last of these ends.

    A cluster's own silence (``silence_logs=``) ends with the cluster that began it, also while
    others run.
    """
    global _users
    with _lock:
        _users += 1
        for handler in logging.getLogger("distributed").handlers:
            if isinstance(handler, logging.StreamHandler) and handler not in _levels:
                _levels[handler] = handler.level
                handler.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            while not _users and _levels:
                handler, level = _levels.popitem()
                handler.setLevel(level)
