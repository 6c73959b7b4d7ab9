"""Lines: messages from one trainer to another, each waited for by its name."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from daskml_dist.comm.allreduce import PeerGroup
from daskml_dist.comm.base import Arrays
from daskml_dist.comm.bounds import malformed
from daskml_dist.comm.socket import gone
from daskml_dist.errors import CommunicationError

__all__ = ["Lines"]

#: Bytes of a message of which the system surely holds a few between two sockets.
_SMALL = 1 << 15


class Lines:
    """Messages between pairs of ranks, beside the collectives of a group. Used by one thread.

    Who sends goes on at once. Each destination has a thread of its own, so that one that does not
    read keeps up nothing that is for another. Between two collectives of the group all that was
    sent is received.

    Parameters
    ----------
    peers : PeerGroup
    """

    def __init__(self, peers: PeerGroup) -> None:
        self._peers = peers
        #: What has come, or was sent to the own rank, and nobody has asked for yet.
        self._come: dict[tuple[int, int], Arrays] = {}
        self._senders: dict[int, ThreadPoolExecutor] = {}
        self._sending: dict[int, deque[Future[None]]] = {}

    def send(self, to: int, name: int, arrays: Arrays, *, awaited: bool = False) -> None:
        """Send arrays, which must not change before :meth:`flush`.

        `awaited`: there are never more than a few such messages that nobody has asked for, so that
        the system holds small ones, and they need not wait for another thread.

        Raises
        ------
        CommunicationError
            An earlier message could not be sent.
        """
        if to == self._peers.rank:
            self._come[to, name] = arrays
            return
        message = [np.array([name], np.int64), *arrays]
        sending = self._sending.setdefault(to, deque())
        while sending and sending[0].done():
            sending.popleft().result()
        if awaited and not sending and sum(array.nbytes for array in arrays) <= _SMALL:
            self._peers.send(to, message)
            return
        if to not in self._senders:
            self._senders[to] = ThreadPoolExecutor(1, thread_name_prefix="daskml-line")
        try:
            sending.append(self._senders[to].submit(self._peers.send, to, message))
        except RuntimeError as error:  # closed meanwhile, by another thread
            raise CommunicationError(gone("sending to", error)) from error

    def receive(self, source: int, name: int) -> Arrays:
        """Wait for the message of that name; others that come before are kept."""
        while (source, name) not in self._come:
            if source == self._peers.rank:
                raise malformed(f"no message {name} of its own")
            head, *arrays = self._peers.receive(source)
            self._come[source, int(head[0])] = arrays
        return self._come.pop((source, name))

    def flush(self) -> None:
        """Wait until all has been sent."""
        for sending in self._sending.values():
            while sending:
                sending.popleft().result()

    def close(self) -> None:
        """End the threads; what they are at ends with the group's sockets."""
        for sender in self._senders.values():
            sender.shutdown(wait=False, cancel_futures=True)
