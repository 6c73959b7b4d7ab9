"""Shields of a process from the Ctrl-C that ends a fit: its client decides what ends."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import deque
from contextlib import suppress
from typing import Any

__all__ = ["process_group", "shield", "unshield"]

#: Process of the client of each fit that shields this one from Ctrl-C, by the fit's name; and the
#: handler before.
_shields: dict[str, int] = {}
_unshielded: Any = None
#: Names of the last shields that ended: the word to make one may come after the word to end it.
_ended_shields: deque[str] = deque(maxlen=256)


def process_group() -> tuple[Any, ...] | None:
    """Mark that tells the process group of this process from all others; None: there is none.

    A terminal, and JupyterLab's button, send Ctrl-C to all processes of a group.
    """
    if not hasattr(os, "getpgrp"):
        return None
    place: list[Any] = [socket.gethostname(), os.getpgrp()]
    with suppress(OSError):  # containers may share a host's name, and count processes from 1
        place.append(os.readlink("/proc/self/ns/pid"))
    return tuple(place)


def shield(name: str, pid: int, group: tuple[Any, ...]) -> bool:
    """Let this process ignore Ctrl-C for as long as a fit of a client of its process group runs.

    Dask's workers, nannies and schedulers would end for good; the client decides what ends. To be
    called in the event loop, which a process that is one of these runs in its main thread.

    Parameters
    ----------
    name : str
        Of the fit.
    pid : int
        The client's process; once it is gone, Ctrl-C works as before.
    group : tuple
        The client's :func:`process_group`.

    Returns
    -------
    bool
        Whether it does; not in other groups, nor in the client's own process, nor once it ended.
    """
    global _unshielded
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or os.getpid() == pid or process_group() != group or name in _ended_shields:
        return False
    if not _shields:
        _unshielded = signal.signal(signal.SIGINT, _on_sigint)
    _shields[name] = pid
    return True


def unshield(name: str) -> None:
    """Undo :func:`shield`, for good."""
    _ended_shields.append(name)
    if _shields.pop(name, None) is not None and not _shields:
        signal.signal(signal.SIGINT, _unshielded or signal.SIG_DFL)


def _on_sigint(*_: Any) -> None:
    for name, pid in list(_shields.items()):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            unshield(name)
    if not _shields:
        signal.raise_signal(signal.SIGINT)
