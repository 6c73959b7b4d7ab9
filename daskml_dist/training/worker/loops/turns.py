"""Turns of threads that share memory: many at once, or one alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Turns"]


class Turns:
    """Turns of those that change entries together, and of those that change whole arrays alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._together = 0
        self._waiting = 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Hold off whoever wants to be alone; wait for those that do."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._together += 1
        try:
            yield
        finally:
            with self._changed:
                self._together -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for all others, and keep them waiting."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._together)
                yield
            finally:
                self._waiting -= 1
                self._changed.notify_all()
