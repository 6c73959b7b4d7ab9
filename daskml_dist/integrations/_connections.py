"""Sockets that a library opens itself, which are shut down once its group of ranks has ended."""

from __future__ import annotations

import contextvars
import gc
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import TypeVar

from daskml_dist.collective import RankGroup
from daskml_dist.errors import RunAbortedError

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

#: Seconds between two checks whether the group has ended.
_LOOK_SECONDS = 0.2
#: Number of checks after the end of the group in which a library must return; otherwise it is
#: assumed that it never will: XGBoost 3.2 waits forever if it learns of a lost peer between two
#: messages (`Loop::Block`).
_PATIENCE_LOOKS = 5
_DESCRIPTORS = "/proc/self/fd"


#: Descriptor of a socket and its inode (a descriptor number is reused after it is closed).
_Socket = tuple[int, int]


def list_sockets() -> set[_Socket]:
    """Return this process's sockets that are not Python sockets.

    Python sockets (of Dask and of this package) are objects; the others belong to libraries in
    other languages.
    """
    if not os.path.isdir(_DESCRIPTORS):
        return set()
    # Check the types only: proxy objects may warn, or load their targets, if accessed.
    sockets = (thing for thing in gc.get_objects() if issubclass(type(thing), socket.socket))
    python = {one.fileno() for one in sockets}
    found = set()
    for name in os.listdir(_DESCRIPTORS):
        with suppress(OSError):
            about = os.fstat(int(name))
            if stat.S_ISSOCK(about.st_mode) and int(name) not in python:
                found.add((int(name), about.st_ino))
    return found


def shut_sockets(known: set[_Socket]) -> None:
    """Shut down library connections opened after `known` was listed: their peers read the end.

    Listening sockets stay open: PyTorch ends the whole process if it cannot accept.
    """
    for descriptor, _ in list_sockets() - known:
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as other:
            if not other.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                other.shutdown(socket.SHUT_RDWR)


@contextmanager
def break_connections(group: RankGroup) -> Iterator[None]:
    """Shut down the sockets that a library opens inside, once the group has ended.

    The library then raises an error instead of waiting for a lost or silent peer.
    """
    known = list_sockets()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_SECONDS):
            if group.has_ended:
                shut_sockets(known)

    watching = threading.Thread(target=watch, name="daskml-break", daemon=True)
    watching.start()
    try:
        yield
    except Exception as error:
        _meet_after_error(group, known, error)
        raise
    finally:
        over.set()
        watching.join()


def call_breakable(group: RankGroup, call: Callable[[], Result]) -> Result:
    """Return the result of a library's call; abandon the call if it does not end with the group.

    Like `break_connections`, for a library that may not return even then: the call runs in a
    separate thread, which is abandoned with the memory that it holds.
    """
    if group.size == 1:
        return call()
    known = list_sockets()
    # Thread-local settings, such as NumPy's error handling, must apply to the call too.
    context = contextvars.copy_context()
    answer: Future[Result] = Future()

    def work() -> None:
        try:
            answer.set_result(context.run(call))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, name="daskml-library", daemon=True).start()
    patience = _PATIENCE_LOOKS
    while not wait([answer], _LOOK_SECONDS).done and patience:
        if group.has_ended:
            shut_sockets(known)
            patience -= 1
    if not answer.done():
        logger.warning(
            "A library call has not returned although its group of ranks has ended. Its thread "
            "and rows stay in memory until it returns or this worker is restarted."
        )
        # This call raises the error that ended the group.
        group.barrier()
    error = answer.exception()
    if isinstance(error, Exception):
        _meet_after_error(group, known, error)
    return answer.result()


def _meet_after_error(group: RankGroup, known: set[_Socket], error: Exception) -> None:
    """Exchange errors with the other ranks after an error; raise if this rank is not the cause.

    If a rank is lost, that is the cause; otherwise the error with the earliest time. The errors of
    the other ranks are added as notes, since the clocks of hosts may differ.
    """
    at = time.time()
    # The library then fails on the other ranks too, and they also arrive here.
    shut_sockets(known)
    told = group.allgather((at, f"{type(error).__name__}: {error}"))
    first = min(range(group.size), key=lambda rank: told[rank][0])
    if first != group.rank:
        raise RunAbortedError(f"Rank {first} failed first: {told[first][1]}") from error
    for rank, (_, text) in enumerate(told):
        if rank != first:
            error.add_note(f"Rank {rank} then raised {text}")
