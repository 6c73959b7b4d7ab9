"""Ctrl-C while a fit runs: it ends the fit once, and in a place where that does no harm."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

__all__ = ["Interrupts", "raise_interrupt"]


class Interrupts:
    """The handler of Ctrl-C for as long as a fit has its rows. A context manager.

    The first Ctrl-C raises ``KeyboardInterrupt`` as it always does. Later ones are swallowed, so
    that none cuts the clean-up short. In a thread of its own a fit sees no Ctrl-C, and this does
    nothing.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._raised = False
        self._pending = False
        self._held = 0
        self._at_rest: list[BaseException] = []
        self._waits = False

    def __enter__(self) -> Interrupts:
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(before):
            self._before = before
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if self._before is None:
            return
        signal.signal(signal.SIGINT, self._before)
        if self._pending and kind is None:
            signal.raise_signal(signal.SIGINT)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._raised:
            return
        # A second one, where the first still waits for the end of a step, waits no more.
        if self._held or (self._waits and not self._pending):
            self._pending = True
            return
        self._raise(number, frame)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self._pending = False
        try:
            self._before(number, frame)
        except BaseException:
            self._raised = True
            raise

    @contextmanager
    def held(self) -> Iterator[None]:
        """While something must not be cut short; what came meanwhile is raised with the end."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """Until the end, a first Ctrl-C waits for the next call of :meth:`rest`."""
        with self._waiting(self._before is signal.default_int_handler):
            yield

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """In the midst of :meth:`between_steps`, while a user's own code runs."""
        with self._waiting(False):
            yield

    @contextmanager
    def _waiting(self, waits: bool) -> Iterator[None]:
        before, self._waits = self._waits, waits
        try:
            yield
        finally:
            self._waits = before

    def rest(self) -> None:
        """Raise a Ctrl-C that came during the last step.

        Raises
        ------
        KeyboardInterrupt
        """
        if self._pending and not self._held:
            self._pending, self._raised = False, True
            error = KeyboardInterrupt()
            self._at_rest.append(error)
            raise error

    def came_at_rest(self, error: BaseException) -> bool:
        """Whether an interrupt was raised by :meth:`rest`, so that no step was cut short."""
        return any(error is known for known in self._at_rest)


def raise_interrupt(error: KeyboardInterrupt, passes: int) -> NoReturn:
    """Raise what interrupted a fit, once the estimator has what the fit had come to."""
    error.add_note(
        f"The estimator keeps what the fit had come to, {passes} passes and what followed; a fit "
        "with warm_start=True goes on from there."
    )
    # Where it came on its way says nothing to a user, and holds the rows.
    raise error.with_traceback(None) from None
