"""`Alone`: one thread at a time, of which others are told."""

from __future__ import annotations

import threading

from daskml_dist.errors import InvalidParameterError

__all__ = ["Alone"]


class Alone:
    """Context of one thread at a time, which it may enter again; another one does not wait.

    Raises
    ------
    InvalidParameterError
        Another thread is in it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise InvalidParameterError(
                "Another thread is using this stream. Let one thread use it, and hand it the rows "
                "of others by a queue.Queue; to predict in another thread, give it a copy that the "
                "stream's thread has made: copy.copy(estimator)."
            )

    def __exit__(self, *error: object) -> None:
        self._lock.release()
