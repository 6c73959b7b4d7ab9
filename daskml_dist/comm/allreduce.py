"""All-reduce among trainers over their own sockets.

Small arrays: everyone sends to everyone and adds in rank order (one hop). Large arrays: a ring
of reduce-scatter and all-gather, which sends 2 (n - 1) / n of the array whatever the number of
trainers n (Patarasuk and Yuan 2009; Horovod). Both give all ranks the same bits.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import Communicator, Endpoint, Wait
from daskml_dist.comm.socket import Credentials, Inbox, Listener, Outbox, connect_peer

__all__ = ["PeerGroup", "PeerListener"]

#: Bytes up to which a send surely fits the system's buffers, so that all may send first.
_SMALL = 1 << 15
#: Bytes of an array up to which everyone sends to everyone.
_MESH = 1 << 18


class PeerListener:
    """Where the other trainers connect to; open before the trainers meet.

    Parameters
    ----------
    host : str
    credentials : Credentials
    """

    def __init__(self, host: str, credentials: Credentials) -> None:
        self._sockets: dict[int, socket.socket] = {}
        self._came = threading.Condition()
        self._listener = Listener(host, credentials, on_peer=self._add)
        self.endpoint = Endpoint("", host, self._listener.port)

    def _add(self, rank: int, sock: socket.socket) -> None:
        with self._came:
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
            r: Outbox(connect_peer(endpoints[r], credentials, rank), wait) for r in self._others
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

    def allreduce(self, array: NDArray[Any]) -> NDArray[Any]:
        """Sum over the ranks, the same to the bit on all of them."""
        array = np.ascontiguousarray(array)
        if array.nbytes <= _MESH or self.size == 2:
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
        scratch = np.empty(max(map(len, chunks)), dtype=flat.dtype)
        for step in range(2 * (self.size - 1)):
            outgoing = chunks[(self.rank - step) % self.size]
            incoming = chunks[(self.rank - step - 1) % self.size]
            sending = self._send([after], outgoing.data.cast("B"))
            if step < self.size - 1:
                received = scratch[: len(incoming)]
                self._receive(before, received)
                incoming += received
            else:
                self._receive(before, incoming)
            if sending is not None:
                sending.result()
        return array

    def allgather(self, arrays: list[NDArray[Any]]) -> list[list[NDArray[Any]]]:
        """The arrays of every rank, by rank."""
        header = np.array([len(arrays)], dtype=np.int64)
        blobs = [np.frombuffer(_describe(a), dtype=np.uint8) for a in arrays]
        lengths = np.array([len(b) for b in blobs], dtype=np.int64)
        payload: list[NDArray[Any]] = [header, lengths]
        for blob, array in zip(blobs, arrays, strict=True):
            payload += [blob, np.ascontiguousarray(array)]
        data = b"".join(p.data.cast("B") for p in payload if p.size)
        sending = self._send(self._others, memoryview(data))
        gathered = [arrays if r == self.rank else self._receive_arrays(r) for r in range(self.size)]
        if sending is not None:
            sending.result()
        return gathered

    def _receive_arrays(self, rank: int) -> list[NDArray[Any]]:
        header = np.empty(1, dtype=np.int64)
        self._receive(rank, header)
        lengths = np.empty(int(header[0]), dtype=np.int64)
        if lengths.size:
            self._receive(rank, lengths)
        arrays = []
        for length in lengths:
            blob = np.empty(int(length), dtype=np.uint8)
            self._receive(rank, blob)
            dtype, *shape = blob.tobytes().decode().split()
            array = np.empty(tuple(map(int, shape)), dtype=dtype)
            if array.size:
                self._receive(rank, array)
            arrays.append(array)
        return arrays

    def close(self) -> None:
        """Close all sockets and the sending thread."""
        for outbox in self._out.values():
            outbox.close()
        for inbox in self._in.values():
            inbox.close()
        self._listener.close()
        self._sender.shutdown(wait=False)


def _describe(array: NDArray[Any]) -> bytes:
    return " ".join([array.dtype.str, *map(str, array.shape)]).encode()
