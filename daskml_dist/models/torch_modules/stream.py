"""Torch's random stream, which the threads of a process share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, TypeVar

from daskml_dist.models.torch_modules.library import load_torch

__all__ = ["Drawing", "Seed", "seeded"]

R = TypeVar("R")
#: Begins the stream of a key.
Seed = Callable[[tuple[int, ...]], None]


class _Turns:
    """Turns of threads at the stream: one that draws is alone with it, others are together."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._together = 0
        self._waiting = 0
        self._alone = False

    @contextmanager
    def together(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not (self._alone or self._waiting))
            self._together += 1
        try:
            yield
        finally:
            with self._changed:
                self._together -= 1
                if self._waiting:
                    self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not (self._alone or self._together))
            self._waiting -= 1
            self._alone = True
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()


_TURNS = _Turns()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw the host's random numbers from a seed meanwhile; the stream is then as it was."""
    generator = load_torch().default_generator
    with _TURNS.alone():
        before = generator.get_state()
        generator.manual_seed(seed)
        try:
            yield
        finally:
            generator.set_state(before)


class Drawing:
    """Calls of functions that may draw random numbers: then from streams that they name.

    Whether they draw is seen from the stream, at each call, until one does.

    Parameters
    ----------
    on_device : bool
        Whether they compute on a device, whose stream is not looked at: then they always draw.
    """

    def __init__(self, on_device: bool) -> None:
        self._on_device = on_device
        self._draws = on_device

    def call(self, function: Callable[[Seed], R], undo: Callable[[], Any]) -> R:
        """Result of a function.

        Parameters
        ----------
        function : callable
            Calls what it is given with the key of a stream, before it draws from that.
        undo : callable
            Takes back what a call has changed that is to be repeated.
        """
        if not self._draws:
            with _TURNS.together():
                before = _position()
                result = function(lambda key: None)
                if _position() == before:
                    return result
            undo()
            self._draws = True
        with _TURNS.alone():
            return function(self._seed)

    def _seed(self, key: tuple[int, ...]) -> None:
        digest = blake2b(repr(key).encode(), digest_size=7).digest()
        torch = load_torch()
        seed = torch.manual_seed if self._on_device else torch.default_generator.manual_seed
        seed(int.from_bytes(digest))


def _position() -> bytes:
    state: bytes = load_torch().default_generator.get_state().numpy().tobytes()
    return state
