"""Handling of Ctrl-C while a fit runs: it ends the fit once, between two steps.

`Interrupts` is the handler in the client's process. Workers of its process group are protected by
`dask_internals/interrupt_shields.py`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, NoReturn


class StopRequest(threading.Event):
    """Request that the fits of another thread end, between two steps."""


_stop_request: ContextVar[StopRequest | None] = ContextVar("daskml_dist_stop", default=None)


def obey_stop_request(request: StopRequest) -> None:
    """Make fits of this context end as after Ctrl-C, once the request is set."""
    _stop_request.set(request)


class Interrupts:
    """Handler of Ctrl-C while a fit holds its rows. Use it as a context manager.

    The first Ctrl-C raises ``KeyboardInterrupt`` as usual. Later ones are ignored, so that none
    interrupts the clean-up. A fit in another thread than the main one gets no Ctrl-C, but may obey
    a :class:`StopRequest`.
    """

    def __init__(self) -> None:
        self._previous_handler: Any = None
        self._raised = False
        self._pending = False
        self._n_delays = 0
        self._raised_pending: list[BaseException] = []
        self._waits = False
        self._stop = _stop_request.get()

    def __enter__(self) -> Interrupts:
        # Handlers can be set in the main thread only; other threads receive no Ctrl-C.
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(handler):
            self._previous_handler = handler
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if self._previous_handler is None:
            return
        # A Ctrl-C that was delayed until now is passed to the user's own handler.
        signal.signal(signal.SIGINT, self._previous_handler)
        if self._pending and kind is None:
            signal.raise_signal(signal.SIGINT)

    def _on_signal(self, signal_number: int, frame: FrameType | None) -> None:
        """Delay, ignore or pass on one Ctrl-C."""
        # Later ones are ignored while the first one ends the fit.
        if self._raised:
            return
        # If the first Ctrl-C still waits for the end of a step, a second one is raised at once.
        if self._n_delays or (self._waits and not self._pending):
            self._pending = True
            return
        self._call_previous_handler(signal_number, frame)

    def _call_previous_handler(self, signal_number: int, frame: FrameType | None) -> None:
        """Call the handler that was set before, which usually raises `KeyboardInterrupt`."""
        self._pending = False
        try:
            self._previous_handler(signal_number, frame)
        except BaseException:
            self._raised = True
            raise

    @contextmanager
    def delay(self) -> Iterator[None]:
        """Delay Ctrl-C during a block that must not be interrupted; it is raised afterwards."""
        self._n_delays += 1
        try:
            yield
        finally:
            self._n_delays -= 1

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """Delay a first Ctrl-C until the next :meth:`raise_pending`, within the block."""
        with self._set_waiting(self._previous_handler is signal.default_int_handler):
            yield

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise Ctrl-C at once inside :meth:`between_steps`, for the user's own code."""
        with self._set_waiting(False):
            yield

    @contextmanager
    def _set_waiting(self, waits: bool) -> Iterator[None]:
        """Set whether a first Ctrl-C waits, and restore it afterwards."""
        waited, self._waits = self._waits, waits
        try:
            yield
        finally:
            self._waits = waited

    def raise_pending(self) -> None:
        """Raise a Ctrl-C that came during the last step, or that another thread requested."""
        is_requested = self._stop is not None and self._stop.is_set() and not self._raised
        if (self._pending or is_requested) and not self._n_delays:
            self._pending, self._raised = False, True
            error = KeyboardInterrupt()
            self._raised_pending.append(error)
            raise error

    def was_pending(self, error: BaseException) -> bool:
        """Return whether :meth:`raise_pending` raised an error, so no step was interrupted."""
        return any(error is raised for raised in self._raised_pending)


def raise_interrupt(error: KeyboardInterrupt, passes: int) -> NoReturn:
    """Raise the interrupt of a fit, once the estimator holds the fit's result."""
    error.add_note(
        f"The estimator keeps the state of the fit after {passes} passes and what followed; a fit "
        "with warm_start=True continues from there."
    )
    # The traceback has no information for the user, and it references the rows.
    raise error.with_traceback(None) from None
