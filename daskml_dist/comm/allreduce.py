"""All-reduce among trainers over their own sockets.

Small arrays: everyone sends to everyone and adds in rank order (one hop). Large arrays: a ring
of reduce-scatter and all-gather, which sends 2 (n - 1) / n of the array whatever the number of
trainers n (Patarasuk and Yuan 2009; Horovod). Both give all ranks the same bits.
"""

from __future__ import annotations

import copy
import itertools
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import Communicator, Endpoint, Wait
from daskml_dist.comm.bounds import malformed
from daskml_dist.comm.listener import Credentials, Listener, call_peer
from daskml_dist.comm.packing import pack, unpack
from daskml_dist.comm.socket import Inbox, Outbox, close_socket

__all__ = ["PeerGroup", "PeerListener"]

#: Bytes up to which a send surely fits the system's buffers, so that all may send first.
_SMALL = 1 << 15
#: Bytes of an array up to which everyone sends to everyone.
_MESH = 1 << 18
#: Bytes that are added at a time, while they are still in the processor's cache.
_PIECE = 1 << 18
#: Bytes that are made room for before any of them has come.
_TRUSTED = 1 << 26


class PeerListener:
    """Where the other trainers connect to; open before the trainers meet.

    Parameters
    ----------
    host : str
    credentials : Credentials
    key : str
        Name of the listener: the run, and the trainer's rank in a generation.
    """

    def __init__(self, host: str, credentials: Credentials, key: str = "") -> None:
        self._sockets: dict[int, socket.socket] = {}
        self._came = threading.Condition()
        self._closed = False
        self._listener = Listener(host, credentials, on_peer=self._add, key=key)
        self.endpoint = self._listener.endpoint

    def _add(self, rank: int, sock: socket.socket) -> None:
        with self._came:
            if self._closed or rank in self._sockets:  # a trainer calls once
                close_socket(sock)
                return
            self._sockets[rank] = sock
            self._came.notify_all()

    def inbox(self, rank: int, wait: Wait) -> Inbox:
        """Wait for the socket of another trainer."""
        since = time.monotonic()
        with self._came:
            while rank not in self._sockets:
                self._came.wait(0.2)
                wait.check(since, f"trainer {rank}")
            return Inbox(self._sockets[rank], wait)

    def close(self) -> None:
        """Close the listener and all that came in."""
        self._listener.close()
        with self._came:
            self._closed = True
            for sock in self._sockets.values():
                close_socket(sock)


class PeerGroup(Communicator):
    """All-reduce over sockets, one a direction and pair of trainers.

    Parameters
    ----------
    rank : int
    endpoints : list of Endpoint
        Where each rank listens.
    listener : PeerListener
        This rank's own.
    credentials : Credentials
    wait : Wait
    """

    def __init__(
        self,
        rank: int,
        endpoints: list[Endpoint],
        listener: PeerListener,
        credentials: Credentials,
        wait: Wait,
    ) -> None:
        super().__init__()
        self.rank = rank
        self.size = len(endpoints)
        self._listener = listener
        self._others = [r for r in range(self.size) if r != rank]
        self._out = {
            r: Outbox(call_peer(endpoints[r], credentials, rank), wait) for r in self._others
        }
        self._in = {r: listener.inbox(r, wait) for r in self._others}
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="daskml-send")

    def _send(self, ranks: list[int], data: memoryview) -> Future[None] | None:
        """Send; in the background where the system's buffers might be too small."""

        def send() -> None:
            for r in ranks:
                self._out[r].send([data])

        self.bytes_sent += len(data) * len(ranks)
        if len(data) <= _SMALL:
            send()
            return None
        return self._sender.submit(send)

    def _receive(self, rank: int, array: NDArray[Any]) -> None:
        self._in[rank].read_into(array.data.cast("B"))
        self.bytes_received += array.nbytes

    def _receive_and_add(self, rank: int, array: NDArray[Any]) -> None:
        """Add what comes while more of it is on its way."""
        scratch = np.empty(min(len(array), _PIECE // array.itemsize), dtype=array.dtype)
        for start in range(0, len(array), len(scratch)):
            part = array[start : start + len(scratch)]
            received = scratch[: len(part)]
            self._receive(rank, received)
            part += received

    def allreduce(self, array: NDArray[Any]) -> NDArray[Any]:
        """Sum over the ranks, the same to the bit on all of them."""
        array = np.ascontiguousarray(array)
        if not array.size:
            return array
        if array.nbytes <= _MESH:
            return self._allreduce_mesh(array)
        return self._allreduce_ring(array)

    def _allreduce_mesh(self, array: NDArray[Any]) -> NDArray[Any]:
        sending = self._send(self._others, array.data.cast("B"))
        parts = {self.rank: array}
        for r in self._others:
            parts[r] = np.empty_like(array)
            self._receive(r, parts[r])
        if sending is not None:
            sending.result()
        total = parts[0] + parts[1]
        for r in range(2, self.size):
            total += parts[r]
        return np.asarray(total)

    def _allreduce_ring(self, array: NDArray[Any]) -> NDArray[Any]:
        flat = array.reshape(-1)
        bounds = np.linspace(0, len(flat), self.size + 1).astype(int)
        chunks = [flat[a:b] for a, b in itertools.pairwise(bounds)]
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        for step in range(2 * (self.size - 1)):
            outgoing = chunks[(self.rank - step) % self.size]
            incoming = chunks[(self.rank - step - 1) % self.size]
            sending = self._send([after], outgoing.data.cast("B"))
            if step < self.size - 1:
                self._receive_and_add(before, incoming)
            else:
                self._receive(before, incoming)
            if sending is not None:
                sending.result()
        return array

    def allgather(self, arrays: list[NDArray[Any]]) -> list[list[NDArray[Any]]]:
        """The arrays of every rank, by rank."""
        data = pack(arrays)
        sending = self._send(self._others, memoryview(len(data).to_bytes(8, "little") + data))
        gathered = [arrays if r == self.rank else self._receive_arrays(r) for r in range(self.size)]
        if sending is not None:
            sending.result()
        return gathered

    def _receive_arrays(self, rank: int) -> list[NDArray[Any]]:
        length = np.empty(1, dtype="<i8")
        self._receive(rank, length)
        return unpack(self._receive_bytes(rank, int(length[0])))

    def _receive_bytes(self, rank: int, length: int) -> NDArray[np.uint8]:
        """So many bytes; room is made for no more than twice those that have come."""
        if length < 0:
            raise malformed(f"{length} bytes")
        data, done = np.empty(min(length, _TRUSTED), dtype=np.uint8), 0
        while True:
            self._receive(rank, data[done:])
            if len(data) == length:
                return data
            done = len(data)
            more = np.empty(min(length, 2 * done), dtype=np.uint8)
            more[:done] = data
            data = more

    def among(self, ranks: list[int]) -> PeerGroup:
        """The group of some ranks, this one among them; their numbers there are their places."""
        group = copy.copy(self)
        group.rank, group.size = ranks.index(self.rank), len(ranks)
        group.bytes_sent = group.bytes_received = 0
        group._others = [place for place in range(group.size) if place != group.rank]
        group._out = {place: self._out[ranks[place]] for place in group._others}
        group._in = {place: self._in[ranks[place]] for place in group._others}
        return group

    def control(self, rank: int) -> socket.socket:
        """The socket whose end of file tells that a rank has ended."""
        return self._in[rank].sock

    def close(self) -> None:
        """Close all sockets and the sending thread."""
        for outbox in self._out.values():
            outbox.close()
        for inbox in self._in.values():
            inbox.close()
        self._listener.close()
        self._sender.shutdown(wait=False)
