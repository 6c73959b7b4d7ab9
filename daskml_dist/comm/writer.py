"""Writer of buffers to memory that has room for a piece of them at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["Writer"]

#: Bytes from which a copy lets other threads run meanwhile.
_LARGE = 1 << 15


class Writer:
    """Writes buffers one after the other, as far as there is room."""

    def __init__(self, buffers: Sequence[Any]) -> None:
        self.length = sum(len(buffer) for buffer in buffers)
        self._left = [memoryview(buffer) for buffer in reversed(buffers) if len(buffer)]

    def write(self, room: memoryview) -> None:
        at = 0
        while self._left and at < len(room):
            buffer = self._left.pop()
            take = min(len(buffer), len(room) - at)
            _copy(room[at : at + take], buffer[:take])
            if take < len(buffer):
                self._left.append(buffer[take:])
            at += take


def _copy(to: memoryview, source: memoryview) -> None:
    if len(to) < _LARGE:
        to[:] = source
    else:  # lets other threads run meanwhile
        np.copyto(np.frombuffer(to, np.uint8), np.frombuffer(source, np.uint8))
