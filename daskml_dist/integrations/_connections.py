"""Connections of a library's own, which are shut once the group that it runs in has ended."""

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

#: Seconds between two looks at whether the group has ended.
_LOOK_SECONDS = 0.2
#: Looks after the end of the group, within which a library returns unless it never does: XGBoost
#: 3.2 waits for ever where it hears of a lost peer between two messages (`Loop::Block`).
_PATIENCE_LOOKS = 5
_DESCRIPTORS = "/proc/self/fd"


#: Descriptor of a socket and its inode: numbers of closed descriptors are used again.
_Socket = tuple[int, int]


def list_sockets() -> set[_Socket]:
    """Return this process's sockets that are none of Python's own.

    Those of Python (Dask's, ours) are objects; the others are of libraries in other languages.
    """
    if not os.path.isdir(_DESCRIPTORS):
        return set()
    # By their types: objects that pretend to a class may warn, or load what they stand for.
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
    """Shut connections of libraries that came later than `known`: their peers read an end.

    Sockets that listen stay: PyTorch ends the whole process where it cannot accept.
    """
    for descriptor, _ in list_sockets() - known:
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as other:
            if not other.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                other.shutdown(socket.SHUT_RDWR)


@contextmanager
def break_connections(group: RankGroup) -> Iterator[None]:
    """Shut the sockets that a library opens inside, once the group has ended.

    The library then raises an error in place of waiting for a peer that is gone or silent.
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
    """Return what a library's call returns; leave it behind where it does not end with the group.

    As `break_connections`, for a library that may not return even then: the call has a thread of
    its own, which is left to its wait with what it holds.
    """
    if group.size == 1:
        return call()
    known = list_sockets()
    # What is set for this thread alone, as of NumPy's warnings, is to hold for the call, too.
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
        # A call of the group tells why it ended.
        group.barrier()
    error = answer.exception()
    if isinstance(error, Exception):
        _meet_after_error(group, known, error)
    return answer.result()


def _meet_after_error(group: RankGroup, known: set[_Socket], error: Exception) -> None:
    """Meet the other ranks after an error; raise where this one is not the cause.

    Where a rank is lost, that is the cause; else the error that came first, with those of the other
    ranks beside it, since clocks of hosts may be apart.
    """
    at = time.time()
    # The others then hear of it in the library, and come here, too.
    shut_sockets(known)
    told = group.allgather((at, f"{type(error).__name__}: {error}"))
    first = min(range(group.size), key=lambda rank: told[rank][0])
    if first != group.rank:
        raise RunAbortedError(f"Rank {first} failed first: {told[first][1]}") from error
    for rank, (_, text) in enumerate(told):
        if rank != first:
            error.add_note(f"Rank {rank} then raised {text}")
