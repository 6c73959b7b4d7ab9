"""Handling of Ctrl-C while a fit runs: it ends the fit once, between two steps.

`Interrupts` is the handler in the client's process. A terminal sends Ctrl-C to its whole process
group, so `shield_from_interrupts` and `end_shield` keep workers, nannies and schedulers of the
client's process group alive.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType
from typing import Any, NoReturn

#: Process id of each client whose fit shields this process from Ctrl-C, by the fit's name; and the
#: handler that was set before.
_shields: dict[str, int] = {}
_unshielded: Any = None
#: Names of the last shields that ended: a request to start a shield may arrive after the request to
#: end it.
_ended_shields: deque[str] = deque(maxlen=256)


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
        self._before: Any = None
        self._raised = False
        self._pending = False
        self._held = 0
        self._raised_pending: list[BaseException] = []
        self._waits = False
        self._stop = _stop_request.get()

    def __enter__(self) -> Interrupts:
        # Handlers can be set in the main thread only; other threads receive no Ctrl-C.
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(before):
            self._before = before
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if self._before is None:
            return
        # A Ctrl-C that was delayed until now is passed to the user's own handler.
        signal.signal(signal.SIGINT, self._before)
        if self._pending and kind is None:
            signal.raise_signal(signal.SIGINT)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Delay, ignore or pass on one Ctrl-C."""
        # Later ones are ignored while the first one ends the fit.
        if self._raised:
            return
        # If the first Ctrl-C still waits for the end of a step, a second one is raised at once.
        if self._held or (self._waits and not self._pending):
            self._pending = True
            return
        self._call_previous_handler(number, frame)

    def _call_previous_handler(self, number: int, frame: FrameType | None) -> None:
        """Call the handler that was set before, which usually raises `KeyboardInterrupt`."""
        self._pending = False
        try:
            self._before(number, frame)
        except BaseException:
            self._raised = True
            raise

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay Ctrl-C during a block that must not be interrupted; it is raised afterwards."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """Delay a first Ctrl-C until the next :meth:`raise_pending`, within the block."""
        with self._set_waiting(self._before is signal.default_int_handler):
            yield

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise Ctrl-C at once inside :meth:`between_steps`, for the user's own code."""
        with self._set_waiting(False):
            yield

    @contextmanager
    def _set_waiting(self, waits: bool) -> Iterator[None]:
        """Set whether a first Ctrl-C waits, and restore it afterwards."""
        before, self._waits = self._waits, waits
        try:
            yield
        finally:
            self._waits = before

    def raise_pending(self) -> None:
        """Raise a Ctrl-C that came during the last step, or that another thread requested."""
        is_requested = self._stop is not None and self._stop.is_set() and not self._raised
        if (self._pending or is_requested) and not self._held:
            self._pending, self._raised = False, True
            error = KeyboardInterrupt()
            self._raised_pending.append(error)
            raise error

    def was_pending(self, error: BaseException) -> bool:
        """Return whether :meth:`raise_pending` raised an error, so no step was interrupted."""
        return any(error is known for known in self._raised_pending)


def raise_interrupt(error: KeyboardInterrupt, passes: int) -> NoReturn:
    """Raise the interrupt of a fit, once the estimator holds the fit's result."""
    error.add_note(
        f"The estimator keeps the state of the fit after {passes} passes and what followed; a fit "
        "with warm_start=True continues from there."
    )
    # The traceback has no information for the user, and it references the rows.
    raise error.with_traceback(None) from None


def process_group() -> tuple[Any, ...] | None:
    """Return an identifier of this process group; None on systems without process groups.

    A terminal, and the stop button of JupyterLab, send Ctrl-C to all processes of a group.
    """
    if not hasattr(os, "getpgrp"):
        return None
    place: list[Any] = [socket.gethostname(), os.getpgrp()]
    with suppress(OSError):  # containers may share a host name and process ids
        place.append(os.readlink("/proc/self/ns/pid"))
    return tuple(place)


def shield_from_interrupts(name: str, pid: int, group: tuple[Any, ...]) -> bool:
    """Ignore Ctrl-C in this process while a fit of a client of its process group runs.

    Without this, Dask's workers, nannies and schedulers would exit; with it, the client decides.
    Call this in the event loop, which these processes run in their main thread.
    """
    global _unshielded
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or os.getpid() == pid or process_group() != group or name in _ended_shields:
        return False
    if not _shields:
        _unshielded = signal.signal(signal.SIGINT, _on_sigint)
    _shields[name] = pid
    return True


def end_shield(name: str) -> None:
    """Undo :func:`shield_from_interrupts`; the shield cannot be set again."""
    _ended_shields.append(name)
    if _shields.pop(name, None) is not None and not _shields:
        signal.signal(signal.SIGINT, _unshielded or signal.SIG_DFL)


def _on_sigint(*_: Any) -> None:
    """Remove the shields of clients that are gone; if none is left, handle Ctrl-C as before."""
    for name, pid in list(_shields.items()):
        try:
            # Signal 0 only checks whether the process exists.
            os.kill(pid, 0)
        except ProcessLookupError:
            end_shield(name)
    if not _shields:
        signal.raise_signal(signal.SIGINT)
