"""All-reduce among trainers over their own sockets.

Small arrays: every rank sends its array to all others and adds them in rank order (one hop). Larger
ones: each rank adds one range of all arrays, also in rank order, and sends the sum to all others
(two hops). Large arrays: a ring of reduce-scatter and all-gather (Patarasuk and Yuan 2009;
Horovod). The last two send 2 (n - 1) / n of the array for n trainers. All three give the same bits
on all ranks.
"""

from __future__ import annotations

import copy
import itertools
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import (
    Arrays,
    Communicator,
    Endpoint,
    Merge,
    WaitBound,
    find_children,
    find_parent,
    merge_in_pairs,
)
from daskml_dist.comm.channels import EagerOutbox, Inbox, close_socket, describe_lost_connection
from daskml_dist.comm.listener import Credentials, Listener, call_peer
from daskml_dist.comm.packing import (
    make_malformed_error,
    pack_array_parts,
    unpack_arrays,
    view_bytes,
)
from daskml_dist.errors import CommunicationError

#: Most bytes that a rank sends in total (48 KiB) for which every other rank gets the whole array:
#: larger ones would take longer than the second hop of ranges. At 1 Gbit/s, 8 hosts add 8 KiB in
#: 1.5 ms this way, and in 1.0 ms by ranges; 3 hosts add 16 KiB in 0.38 and 0.19 ms. Two ranks send
#: the same amount either way.
_MAX_MESH_BYTES = 48 << 10
#: Largest array, in bytes, of which each rank adds a range (256 KiB), in two hops; larger arrays
#: take a ring.
_MAX_RANGE_BYTES = 1 << 18
#: Bytes that are added at a time (256 KiB), while they are still in the processor's cache.
_ADD_PIECE_BYTES = 1 << 18
#: Most bytes that are allocated before any have arrived (64 MiB), which limits the cost of a false
#: length.
_TRUSTED_BYTES = 1 << 26


def choose_allreduce(size: int, n_bytes: float) -> Literal["mesh", "ranges", "ring"]:
    """Return the algorithm with which `size` ranks add arrays of `n_bytes` bytes."""
    if n_bytes > _MAX_RANGE_BYTES:
        return "ring"
    return "mesh" if size == 2 or (size - 1) * n_bytes <= _MAX_MESH_BYTES else "ranges"


class PeerListener:
    """Listener to which the other trainers connect; opened before the group is formed.

    Parameters
    ----------
    host : str
    credentials : Credentials
    key : str
        Name of the listener: the run, and the trainer's rank in a generation.
    """

    def __init__(self, host: str, credentials: Credentials, key: str = "") -> None:
        self._sockets: dict[int, socket.socket] = {}
        self._arrival = threading.Condition()
        self._closed = False
        self._listener = Listener(host, credentials, on_peer=self._add, key=key)
        self.endpoint = self._listener.endpoint

    def _add(self, rank: int, sock: socket.socket) -> None:
        """Keep the socket of a rank that has connected; close a second one of the same rank."""
        with self._arrival:
            if self._closed or rank in self._sockets:  # a trainer calls once
                close_socket(sock)
                return
            self._sockets[rank] = sock
            self._arrival.notify_all()

    def open_inbox(self, rank: int, wait: WaitBound) -> Inbox:
        """Wait for the socket of another trainer, and return its reading side."""
        since = time.monotonic()
        with self._arrival:
            while rank not in self._sockets:
                self._arrival.wait(0.2)
                wait.check(since, f"trainer {rank}")
            return Inbox(self._sockets[rank], wait)

    def close(self) -> None:
        """Close the listener and all accepted sockets."""
        self._listener.close()
        with self._arrival:
            self._closed = True
            for sock in self._sockets.values():
                close_socket(sock)


class PeerGroup(Communicator):
    """All-reduce over sockets, one per direction and pair of trainers.

    Parameters
    ----------
    rank : int
    endpoints : list of Endpoint
        Address at which each rank listens.
    listener : PeerListener
        This rank's listener.
    credentials : Credentials
    wait : WaitBound
    """

    transport = "sockets"

    def __init__(
        self,
        rank: int,
        endpoints: list[Endpoint],
        listener: PeerListener,
        credentials: Credentials,
        wait: WaitBound,
    ) -> None:
        super().__init__()
        self.rank = rank
        self.size = len(endpoints)
        self._listener = listener
        self._other_ranks = [r for r in range(self.size) if r != rank]
        self._out = {
            r: EagerOutbox(call_peer(endpoints[r], credentials, rank), wait)
            for r in self._other_ranks
        }
        self._in = {r: listener.open_inbox(r, wait) for r in self._other_ranks}
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="daskml-send")
        self._counting = threading.Lock()
        #: Rank that :meth:`align` waits for.
        self._awaited: int | None = None

    def _send(self, ranks: list[int], *buffers: Any) -> Future[None] | None:
        """Send buffers; a background thread sends the bytes that the system does not accept now."""
        self.bytes_sent += sum(len(buffer) for buffer in buffers) * len(ranks)
        unfinished = [
            outbox
            for outbox in map(self._out.__getitem__, ranks)
            if not outbox.begin_sending(list(buffers))
        ]
        if not unfinished:
            return None

        def finish() -> None:
            for outbox in unfinished:
                outbox.finish()

        try:
            return self._sender.submit(finish)
        except RuntimeError as error:  # closed meanwhile, by another thread
            raise CommunicationError(describe_lost_connection("sending to", error)) from error

    def _receive(self, rank: int, array: NDArray[Any]) -> None:
        """Fill an array with the next bytes of a rank."""
        self._in[rank].read_into(array.data.cast("B"))
        self.bytes_received += array.nbytes

    def _receive_and_add(self, rank: int, array: NDArray[Any]) -> None:
        """Add the bytes of a rank to an array, while more of them arrive."""
        # Pieces stay in the processor's cache between their arrival and their addition.
        scratch = np.empty(min(len(array), _ADD_PIECE_BYTES // array.itemsize), dtype=array.dtype)
        for start in range(0, len(array), len(scratch)):
            piece = array[start : start + len(scratch)]
            received = scratch[: len(piece)]
            self._receive(rank, received)
            piece += received

    # -- sums ----------------------------------------------------------------------------------

    def allreduce(self, array: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        array = np.ascontiguousarray(array)
        algorithm = choose_allreduce(self.size, array.nbytes) if array.size else None
        if algorithm == "mesh":
            return self._allreduce_mesh(array, out)
        if algorithm == "ranges":
            return self._allreduce_ranges(array, out)
        if out is not None:
            out[...] = array
            array = out
        return array if algorithm is None else self._allreduce_ring(array)

    def _allreduce_mesh(self, array: NDArray[Any], out: NDArray[Any] | None) -> NDArray[Any]:
        """Send the array to every rank, and add all in rank order: one hop, for small arrays."""
        sending = self._send(self._other_ranks, array.data.cast("B"))
        arrays = {self.rank: array}
        for r in self._other_ranks:
            arrays[r] = np.empty_like(array)
            self._receive(r, arrays[r])
        if sending is not None:
            sending.result()
        # In rank order on every rank, so that all get the same bits.
        return self._add_in_order(arrays, out)

    def _add_in_order(
        self, arrays_by_rank: dict[int, NDArray[Any]], out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Return the sum of each rank's part, added in the order of the ranks."""
        total = np.add(arrays_by_rank[0], arrays_by_rank[1], out=out)
        for r in range(2, self.size):
            total += arrays_by_rank[r]
        return np.asarray(total)

    def _allreduce_ranges(self, array: NDArray[Any], out: NDArray[Any] | None) -> NDArray[Any]:
        """Add a range of the array on each rank, and send the sums to every rank: two hops."""
        bounds = self.bounds(array.size)
        ranges = [array.reshape(-1)[a:b] for a, b in itertools.pairwise(bounds)]
        sending = [self._send([r], view_bytes(ranges[r])) for r in self._other_ranks]
        ranges_received = {self.rank: ranges[self.rank]}
        for r in self._other_ranks:
            ranges_received[r] = np.empty_like(ranges[self.rank])
            self._receive(r, ranges_received[r])
        total = self._add_in_order(ranges_received)
        sending.append(self._send(self._other_ranks, view_bytes(total)))
        # `out` may be the array itself. This is safe: another rank's sum arrives only after that
        # rank has received this rank's part.
        result = out if out is not None and out.flags.c_contiguous else np.empty_like(array)
        flat = result.reshape(-1)
        flat[bounds[self.rank] : bounds[self.rank + 1]] = total
        for r in self._other_ranks:
            self._receive(r, flat[bounds[r] : bounds[r + 1]])
        for future in sending:
            if future is not None:
                future.result()
        if out is None or out is result:
            return result
        out[...] = result
        return out

    def _allreduce_ring(self, array: NDArray[Any]) -> NDArray[Any]:
        """Sum by a ring of reduce-scatter and all-gather, for large arrays."""
        flat = array.reshape(-1)
        bounds = np.linspace(0, len(flat), self.size + 1).astype(int)
        chunks = [flat[a:b] for a, b in itertools.pairwise(bounds)]
        next_rank, previous_rank = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        # Patarasuk and Yuan (2009), with the fewest bytes that any all-reduce can send. The first
        # size - 1 steps add (reduce-scatter): each chunk goes around the ring and collects every
        # rank's part. The other steps copy (all-gather): each finished chunk goes around again. A
        # chunk is summed once, in ring order, and all ranks copy this sum.
        for step in range(2 * (self.size - 1)):
            outgoing = chunks[(self.rank - step) % self.size]
            incoming = chunks[(self.rank - step - 1) % self.size]
            sending = self._send([next_rank], outgoing.data.cast("B"))
            if step < self.size - 1:
                self._receive_and_add(previous_rank, incoming)
            else:
                self._receive(previous_rank, incoming)
            if sending is not None:
                sending.result()
        return array

    def _reduce_scatter(self, array: NDArray[Any], bounds: list[int]) -> NDArray[Any]:
        """Send each other rank its range: as many bytes as a ring, in fewer turns."""
        array = np.ascontiguousarray(array)
        total = array[bounds[self.rank] : bounds[self.rank + 1]].copy()
        for target, source in self._pair_turns():
            sending = self._send([target], view_bytes(array[bounds[target] : bounds[target + 1]]))
            if total.size:
                self._receive_and_add(source, total)
            if sending is not None:
                sending.result()
        return total

    def _pair_turns(self) -> list[tuple[int, int]]:
        """Return the ranks to send to and to receive from in each turn."""
        # In turn s every rank sends s places ahead and receives from s places behind, so that no
        # rank sends or receives twice in a turn.
        steps = range(1, self.size)
        return [((self.rank + s) % self.size, (self.rank - s) % self.size) for s in steps]

    # -- from one rank to another --------------------------------------------------------------

    def send(self, rank: int, arrays: Arrays) -> None:
        """Send arrays to a rank that waits for them; may be called in any thread."""
        frame = _pack_frame(arrays)
        self._out[rank].send(frame)
        with self._counting:
            self.bytes_sent += sum(len(buffer) for buffer in frame)

    def receive(self, rank: int) -> Arrays:
        """Wait for the next arrays that a rank sends."""
        return unpack_arrays(self._receive_frame(rank))

    # -- values of each rank --------------------------------------------------------------------

    def align(self, rank_values: NDArray[np.int64]) -> NDArray[np.int64]:
        # Lengths are not sent: the messages of all ranks have the same size.
        sending = self._send(self._other_ranks, rank_values.data.cast("B"))
        rows = np.empty((self.size, len(rank_values)), np.int64)
        rows[self.rank] = rank_values
        for rank in self._other_ranks:
            self._awaited = rank
            self._receive(rank, rows[rank])
        self._awaited = None
        if sending is not None:
            sending.result()
        return rows

    def find_missing_ranks(self) -> list[int]:
        return [] if self._awaited is None else [self._awaited]

    def allgather(self, arrays: Arrays) -> list[Arrays]:
        sending = self._send(self._other_ranks, *_pack_frame(arrays))
        gathered = [arrays if r == self.rank else self.receive(r) for r in range(self.size)]
        if sending is not None:
            sending.result()
        return gathered

    def alltoall(self, arrays: Arrays) -> Arrays:
        received = self.exchange(arrays, self._other_ranks)
        received[self.rank] = arrays[self.rank]
        return [received[r] for r in range(self.size)]

    def exchange(self, arrays: Arrays, ranks: list[int]) -> dict[int, NDArray[Any]]:
        """Send some other ranks their arrays, and receive the array that each has for this one."""
        received = {}
        for target, source in self._pair_turns():
            sending = (
                self._send([target], *_pack_frame([arrays[target]])) if target in ranks else None
            )
            if source in ranks:
                received[source] = _unwrap_single(self.receive(source))
            if sending is not None:
                sending.result()
        return received

    def reduce(self, arrays: Arrays, merge: Merge) -> Arrays:
        # Up the tree to rank 0, and down again with the result: 2 log2(n) rounds.
        arrays = merge_in_pairs(self.rank, self.size, arrays, merge, self._send_in_tree)
        data = self.broadcast_bytes(pack_array_parts(arrays) if self.rank == 0 else ())
        return arrays if self.rank == 0 else unpack_arrays(data)

    def _send_in_tree(self, arrays: Arrays, destination: int | None, source: int | None) -> Arrays:
        """Send arrays to a lower rank, or receive a higher rank's."""
        if (
            destination is not None
            and (sending := self._send([destination], *_pack_frame(arrays))) is not None
        ):
            sending.result()
        return [] if source is None else self.receive(source)

    def broadcast_bytes(self, buffers: Sequence[Any] = ()) -> NDArray[np.uint8]:
        data = np.empty(0, np.uint8)
        if self.rank:
            data = self._receive_frame(find_parent(self.rank))
            buffers = [data.data]
        for rank in find_children(self.rank, self.size):
            sending = self._send([rank], *_prefix_length(buffers))
            if sending is not None:
                sending.result()
        return data

    def _receive_frame(self, rank: int) -> NDArray[np.uint8]:
        """Return the next frame of a rank, without its length."""
        length = np.empty(1, dtype="<i8")
        self._receive(rank, length)
        return self._receive_bytes(rank, int(length[0]))

    def _receive_bytes(self, rank: int, length: int) -> NDArray[np.uint8]:
        """Return `length` bytes; allocates at most twice the bytes that have arrived."""
        if length < 0:
            raise make_malformed_error(f"{length} bytes")
        data, n_received = np.empty(min(length, _TRUSTED_BYTES), dtype=np.uint8), 0
        while True:
            self._receive(rank, data[n_received:])
            if len(data) == length:
                return data
            n_received = len(data)
            larger = np.empty(min(length, 2 * n_received), dtype=np.uint8)
            larger[:n_received] = data
            data = larger

    def make_subgroup(self, ranks: list[int]) -> PeerGroup:
        """Return the group of some ranks, with this one, numbered by their order in `ranks`."""
        group = copy.copy(self)
        group.rank, group.size = ranks.index(self.rank), len(ranks)
        group.bytes_sent = group.bytes_received = 0
        # The sockets are shared with the whole group: collectives of both groups never overlap.
        group._other_ranks = [index for index in range(group.size) if index != group.rank]
        group._out = {index: self._out[ranks[index]] for index in group._other_ranks}
        group._in = {index: self._in[ranks[index]] for index in group._other_ranks}
        return group

    def control(self, rank: int) -> socket.socket:
        """Return the socket whose end of file shows that a rank has ended."""
        return self._in[rank].sock

    def close(self) -> None:
        """Close all sockets and the threads."""
        for outbox in self._out.values():
            outbox.close()
        for inbox in self._in.values():
            inbox.close()
        self._listener.close()
        self._sender.shutdown(wait=False)


def _prefix_length(buffers: Sequence[Any]) -> list[Any]:
    """Return buffers, preceded by their total length."""
    return [sum(len(buffer) for buffer in buffers).to_bytes(8, "little"), *buffers]


def _pack_frame(arrays: Arrays) -> list[Any]:
    """Return the buffers of some arrays, preceded by their total length."""
    return _prefix_length(pack_array_parts(arrays))


def _unwrap_single(arrays: Arrays) -> NDArray[Any]:
    """Return the only array of a message; raise if there are more or none."""
    if len(arrays) != 1:
        raise make_malformed_error(f"{len(arrays)} arrays for one")
    return arrays[0]


#: Size of a message (32 KiB) of which the system's buffers between two sockets hold several.
_AWAITED_BYTES = 1 << 15


class PairMessages:
    """Messages between pairs of ranks, outside the group's collectives. Used by one thread.

    :meth:`send` does not wait. Each destination has its own thread, so that a rank that does not
    read delays no message to others. All messages are received before the next collective of the
    group, which uses the same sockets.

    Parameters
    ----------
    peers : PeerGroup
    """

    def __init__(self, peers: PeerGroup) -> None:
        self._peers = peers
        #: Messages that have arrived, or that this rank sent to itself, and were not received yet.
        self._received: dict[tuple[int, int], Arrays] = {}
        #: Thread of each destination, and its pending sends, oldest first.
        self._senders: dict[int, ThreadPoolExecutor] = {}
        self._sending: dict[int, deque[Future[None]]] = {}

    def send(self, destination: int, name: int, arrays: Arrays, *, awaited: bool = False) -> None:
        """Send arrays, which must not change before :meth:`flush`.

        `awaited` states that at most a few such messages are unread at any time. The system's
        buffers then hold small ones, so they are sent without another thread.
        """
        if destination == self._peers.rank:
            self._received[destination, name] = arrays
            return
        message = [np.array([name], np.int64), *arrays]
        sending = self._sending.setdefault(destination, deque())
        while sending and sending[0].done():
            sending.popleft().result()
        # Sent by the caller itself: switching threads would cost more than the small message.
        if awaited and not sending and sum(array.nbytes for array in arrays) <= _AWAITED_BYTES:
            self._peers.send(destination, message)
            return
        if destination not in self._senders:
            self._senders[destination] = ThreadPoolExecutor(1, thread_name_prefix="daskml-line")
        try:
            sending.append(
                self._senders[destination].submit(self._peers.send, destination, message)
            )
        except RuntimeError as error:  # closed meanwhile, by another thread
            raise CommunicationError(describe_lost_connection("sending to", error)) from error

    def receive(self, source: int, name: int) -> Arrays:
        """Wait for the message of that name; other messages that arrive first are stored."""
        while (source, name) not in self._received:
            if source == self._peers.rank:
                raise make_malformed_error(f"no message {name} of its own")
            head, *arrays = self._peers.receive(source)
            self._received[source, int(head[0])] = arrays
        return self._received.pop((source, name))

    def flush(self) -> None:
        """Wait until everything has been sent."""
        for sending in self._sending.values():
            while sending:
                sending.popleft().result()

    def close(self) -> None:
        """End the threads; their pending sends end with the group's sockets."""
        for sender in self._senders.values():
            sender.shutdown(wait=False, cancel_futures=True)
