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
    sockets = (
        candidate for candidate in gc.get_objects() if issubclass(type(candidate), socket.socket)
    )
    python = {python_socket.fileno() for python_socket in sockets}
    sockets_found = set()
    for name in os.listdir(_DESCRIPTORS):
        with suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode) and int(name) not in python:
                sockets_found.add((int(name), status.st_ino))
    return sockets_found


class LibraryConnections:
    """Connections that a library opens between the ranks of a group, apart from those of others.

    Parameters
    ----------
    group : RankGroup
    """

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._earlier_sockets = list_sockets()
        #: The library's sockets; None until `claim`.
        self._own_sockets: set[_Socket] | None = None

    def claim(self) -> None:
        """Find the library's connections (a collective call), once it has opened all of them.

        Other tasks of this worker open sockets too, for example to a database. Both ends of a
        library's connection are in processes of the group, and were opened since it began.
        """
        if self._group.size == 1:
            return
        ends = {
            opened: pair
            for opened in self._list_opened()
            if (pair := _find_ends(opened[0])) is not None
        }
        known_ends = {
            ends_pair for rank in self._group.allgather(list(ends.values())) for ends_pair in rank
        }
        own_sockets = {
            opened for opened, (local, remote) in ends.items() if (remote, local) in known_ends
        }
        # Behind a translation of addresses, no rank sees the addresses that its peers see.
        self._own_sockets = own_sockets or None

    def shut(self) -> None:
        """Shut down the library's connections: their peers read the end.

        Listening sockets stay open: PyTorch ends the whole process if it cannot accept.
        """
        for opened in self._list_opened():
            if not self._is_library(opened):
                continue
            with suppress(OSError), socket.socket(fileno=os.dup(opened[0])) as duplicate:
                if not duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    duplicate.shutdown(socket.SHUT_RDWR)

    def _list_opened(self) -> set[_Socket]:
        """Return the sockets of libraries that were opened since the beginning."""
        return list_sockets() - self._earlier_sockets

    def _is_library(self, connection: _Socket) -> bool:
        """Return whether a socket is, or may be, one of the library's."""
        if self._own_sockets is not None:
            return connection in self._own_sockets
        # Libraries let the system choose the port at which a rank listens, which databases and
        # other services do not.
        first = _read_first_free_port()
        ends = _find_ends(connection[0])
        return ends is not None and all(port >= first for _, port in ends)


#: Address of one end of a connection: host and port.
_HostPort = tuple[str, int]


def _find_ends(descriptor: int) -> tuple[_HostPort, _HostPort] | None:
    """Return the addresses of both ends of a TCP connection; None for another socket."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as duplicate:
            if duplicate.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            ends = duplicate.getsockname(), duplicate.getpeername()
    except OSError:  # closed meanwhile, or not connected
        return None
    # The same host in IPv4 and as IPv6 writes it.
    local, remote = ((host.removeprefix("::ffff:"), port) for host, port, *_ in ends)
    return local, remote


def _read_first_free_port() -> int:
    """Return the lowest port that the system gives to a socket that asks for any."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError):
        return 32_768  # Linux's default


@contextmanager
def break_connections(group: RankGroup) -> Iterator[LibraryConnections]:
    """Shut down the connections that a library opens inside, once the group has ended.

    The library then raises an error instead of waiting for a lost or silent peer.
    """
    connections = LibraryConnections(group)
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(_LOOK_SECONDS):
            if group.has_ended:
                connections.shut()

    watching = threading.Thread(target=watch, name="daskml-break", daemon=True)
    watching.start()
    try:
        yield connections
    except Exception as error:
        _meet_after_error(group, connections, error)
        raise
    finally:
        finished.set()
        watching.join()


def call_breakable(group: RankGroup, call: Callable[[LibraryConnections], Result]) -> Result:
    """Return the result of a library's call; abandon the call if it does not end with the group.

    Like `break_connections`, for a library that may not return even then: the call runs in a
    separate thread, which is abandoned with the memory that it holds.
    """
    connections = LibraryConnections(group)
    if group.size == 1:
        return call(connections)
    # Thread-local settings, such as NumPy's error handling, must apply to the call too.
    context = contextvars.copy_context()
    answer: Future[Result] = Future()

    def work() -> None:
        try:
            answer.set_result(context.run(call, connections))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, name="daskml-library", daemon=True).start()
    patience = _PATIENCE_LOOKS
    while not wait([answer], _LOOK_SECONDS).done and patience:
        if group.has_ended:
            connections.shut()
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
        _meet_after_error(group, connections, error)
    return answer.result()


def _meet_after_error(group: RankGroup, connections: LibraryConnections, error: Exception) -> None:
    """Exchange errors with the other ranks after an error; raise if this rank is not the cause.

    If a rank is lost, that is the cause; otherwise the error with the earliest time. The errors of
    the other ranks are added as notes, since the clocks of hosts may differ.
    """
    failed_at = time.time()
    # The library then fails on the other ranks too, and they also arrive here.
    connections.shut()
    failures = group.allgather((failed_at, f"{type(error).__name__}: {error}"))
    first = min(range(group.size), key=lambda rank: failures[rank][0])
    if first != group.rank:
        raise RunAbortedError(f"Rank {first} failed first: {failures[first][1]}") from error
    for rank, (_, text) in enumerate(failures):
        if rank != first:
            error.add_note(f"Rank {rank} then raised {text}")
