"""Connections of a library's own, which are shut once the group that it runs in has ended."""

from __future__ import annotations

import gc
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from daskml_dist.collective import RankGroup

#: Seconds between two looks at whether the group has ended.
_LOOK_SECONDS = 0.2
_DESCRIPTORS = "/proc/self/fd"


#: Descriptor of a socket and its inode: numbers of closed descriptors are used again.
_Socket = tuple[int, int]


def list_sockets() -> set[_Socket]:
    """Return this process's sockets that are none of Python's own.

    Those of Python (Dask's, ours) are objects; the others are of libraries in other languages.
    """
    if not os.path.isdir(_DESCRIPTORS):
        return set()
    python = {s.fileno() for s in gc.get_objects() if isinstance(s, socket.socket)}
    found = set()
    for name in os.listdir(_DESCRIPTORS):
        with suppress(OSError):
            about = os.fstat(int(name))
            if stat.S_ISSOCK(about.st_mode) and int(name) not in python:
                found.add((int(name), about.st_ino))
    return found


def shut_sockets(known: set[_Socket]) -> None:
    """Shut all sockets of libraries that came later than `known`: their peers read an end."""
    for descriptor, _ in list_sockets() - known:
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as other:
            other.shutdown(socket.SHUT_RDWR)


@contextmanager
def break_connections(group: RankGroup, known: set[_Socket]) -> Iterator[None]:
    """Shut sockets of a library's that came later than `known`, once the group has ended.

    The library then raises an error in place of waiting for a peer that is gone or silent. After
    an error of the library all ranks meet: where one is lost, that is the error.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_SECONDS):
            if group.has_ended:
                shut_sockets(known)

    watching = threading.Thread(target=watch, name="daskml-break", daemon=True)
    watching.start()
    try:
        yield
    except Exception:
        # The others then hear of it in the library, and come here, too.
        shut_sockets(known)
        group.barrier()
        raise
    finally:
        over.set()
        watching.join()
