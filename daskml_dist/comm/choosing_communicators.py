"""Choice of a communicator: shared memory within a host, sockets between hosts.

`choose_communicator` finds out over sockets which ranks can access each other's memory. Ranks that
are all on one host need no sockets (`OneHostSetup`): they exchange the necessary data through the
first server, to which they are connected already, in one or two messages, however many ranks there
are. Sockets between all pairs would take a number of handshakes that grows with the square of the
number of ranks.

Each collective in shared memory repeats one operation, a turn: each rank writes into its own area,
publishes the number of the turn, waits until all ranks have published it, and reads the other
ranks' areas. Each rank has two areas, used in alternate turns. A rank that has begun a turn has
finished reading the areas of the turn before the previous one, so an area is free again when it is
next used.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from array import array as packed_array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.shared_buffer import SharedBuffer
from daskml_dist.comm.base import (
    Arrays,
    Communicator,
    Merge,
    ReusedMemory,
    WaitBound,
    merge_in_pairs,
)
from daskml_dist.comm.channels import describe_lost_connection
from daskml_dist.comm.packing import (
    make_malformed_error,
    pack_array_parts,
    pack_arrays,
    unpack_arrays,
)
from daskml_dist.comm.shared_memory import (
    LONG_SPIN_SECONDS,
    SPIN_SECONDS,
    TOKEN_BYTES,
    WORDS_PER_LINE,
    PeerLife,
    PieceWriter,
    ProcessLife,
    SharedSegment,
    SocketLife,
    SpinningWait,
    WakePipe,
    fence_memory,
    identify_machine,
)
from daskml_dist.comm.socket_group import PeerGroup
from daskml_dist.errors import CommunicationError

#: Bytes of an area (256 KiB): pieces of this size stay in the processor's cache until they are
#: read.
_AREA_BYTES = 1 << 18
#: Bytes of a rank's memory: two areas, used in alternate turns.
SEGMENT_BYTES = 2 * _AREA_BYTES
#: Largest array, in bytes, that more than two ranks sum in one turn, each rank the whole of it (32
#: KiB): below this size, a second turn costs more than adding each byte on every rank.
_MAX_ONE_TURN_BYTES = 1 << 15
#: Element of an area that holds messages.
_BYTE = np.dtype(np.uint8)
#: Words of a rank: the last turn it has written, whether it sleeps, and whether it is done.
TURN_WORD, ASLEEP_WORD, ENDED_WORD = 0, WORDS_PER_LINE, 2 * WORDS_PER_LINE
#: Bytes that processors exchange at a time (two cache lines, which x86 fetches together): parts
#: that two ranks write must not share such a unit, or each write would evict it from the other's
#: cache.
_LINE_BYTES = 128
#: Nanoseconds that a loop polls for the other ranks before it sleeps (1 ms): the time of a few
#: gradients.
_SPIN_NANOSECONDS = 1_000_000

RankMemory = dict[int, tuple[SharedSegment, WakePipe]]


class SharedGroup(Communicator):
    """Communicator of the ranks of one host, numbered by their order on this host.

    Parameters
    ----------
    rank : int
        Number of this rank among all ranks of the fit.
    places : dict of int to (SharedSegment, WakePipe)
        Memory and wake pipe of each rank of the host, by its number among all ranks.
    lives : mapping of int to PeerLife
        Liveness check of each other rank of the host.
    wait : WaitBound
    close : callable
        Called when the group is closed.
    spin_seconds : float
        Seconds to poll for the other ranks before sleeping.
    """

    transport = "shared memory"

    def __init__(
        self,
        rank: int,
        places: RankMemory,
        lives: Mapping[int, PeerLife],
        wait: WaitBound,
        close: Callable[[], None] = lambda: None,
        spin_seconds: float = SPIN_SECONDS,
    ) -> None:
        super().__init__()
        ranks = sorted(places)
        self.rank, self.size = ranks.index(rank), len(ranks)
        self._close = close
        self._last_turn = 0
        self._memory = ReusedMemory()
        own_segment, wake_pipe = places[rank]
        self._places = [places[r] for r in ranks]
        self._own_words = own_segment.words
        self._areas = [
            [places[r][0].data[:_AREA_BYTES], places[r][0].data[_AREA_BYTES:]] for r in ranks
        ]
        self._views: dict[tuple[str, int, int], list[NDArray[Any]]] = {}
        other_ranks = [r for r in ranks if r != rank]
        self._peer_signals = [(places[r][0].words, places[r][1]) for r in other_ranks]
        peers = [(places[r][0].words, lives[r]) for r in other_ranks]
        self._sleeper = SpinningWait(
            wake_pipe, self._own_words, ASLEEP_WORD, peers, TURN_WORD, wait, spin_seconds
        )

    # -- a turn --------------------------------------------------------------------------------

    @property
    def within_host(self) -> Communicator | None:
        return self

    def _view_areas(self, dtype: np.dtype[Any], n: int) -> list[NDArray[Any]]:
        """Return the first `n` elements of all ranks' areas of the next turn."""
        # Even and odd turns use different areas.
        key = dtype.str, n, self._last_turn & 1
        views = self._views.get(key)
        if views is None:
            # A fit uses few sizes, but solvers whose arrays shrink must not fill the memory with
            # views.
            if len(self._views) > 100:
                self._views.clear()
            size = n * dtype.itemsize
            views = [areas[key[2]][:size].view(dtype) for areas in self._areas]
            self._views[key] = views
        return views

    def _finish_turn(self) -> None:
        """Publish that this rank's area is written, and wait until all ranks' areas are."""
        # The area must be visible before the turn's number; the fences keep this order.
        self._last_turn = turn = self._last_turn + 1
        fence_memory()
        self._own_words[TURN_WORD] = turn
        fence_memory()
        # A rank that arrives early wakes no other: the last to arrive wakes all sleeping ranks, so
        # each sleeps at most once. If several arrive at the same time, at least one of them sees
        # that all have.
        if [1 for words, _ in self._peer_signals if words[TURN_WORD] < turn]:
            self.wait(turn)
            return
        for words, wake_pipe in self._peer_signals:
            if words[ASLEEP_WORD]:
                wake_pipe.wake()
        fence_memory()

    def wait(self, turn: int) -> None:
        """Wait until all ranks have written their areas of a turn."""
        if not self._sleeper.wait_until(turn):
            raise CommunicationError(describe_lost_connection("receiving from", "end of file"))
        fence_memory()

    def board(
        self, n: int | None, dtype: Any, lanes: list[list[int]], in_order: bool
    ) -> SharedBuffer | None:
        """Return the areas as a buffer of gradients that are summed in one turn, or in parts."""
        if n is None:
            return _AreaBuffer(self, self._places, _AREA_BYTES, lanes, _AREA_BYTES, False)
        size = n * dtype.itemsize
        n_lanes = max(map(len, lanes)) if in_order else 1
        if (self.size > 2 and size > _MAX_ONE_TURN_BYTES) or n_lanes * _round_to_lines(
            size
        ) > _AREA_BYTES:
            return None
        return _AreaBuffer(self, self._places, _AREA_BYTES, lanes, size, in_order)

    def count_turns(self, turns: int, n_bytes_written: int) -> None:
        """Count the turns that a loop has taken, and the bytes that this rank wrote in them."""
        self._last_turn += turns
        self._count_traffic((self.size - 1) * n_bytes_written)

    @property
    def last_turn(self) -> int:
        """Return the number of the last turn."""
        return self._last_turn

    # -- sums ----------------------------------------------------------------------------------

    def allreduce(self, array: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        array = np.ascontiguousarray(array)
        if out is None:
            out = array if array.flags.writeable else array.copy()
        flat, total = array.reshape(-1), out.reshape(-1)
        # Small arrays: every rank reads every area, in one turn. Large arrays: each rank adds one
        # part, in two turns, but every byte is added once on the host instead of once on each rank.
        one_hop = self.size == 2 or array.nbytes <= _MAX_ONE_TURN_BYTES
        reduce = self._sum_in_one_turn if one_hop else self._sum_by_parts
        step = _AREA_BYTES // flat.itemsize
        for start in range(0, len(flat), step):
            reduce(flat[start : start + step], total[start : start + step])
        return out

    def _sum_in_one_turn(self, values: NDArray[Any], out: NDArray[Any]) -> None:
        """Add the whole arrays on every rank, in rank order."""
        views = self._view_areas(values.dtype, len(values))
        views[self.rank][...] = values
        self._finish_turn()
        np.add(views[0], views[1], out=out)
        for view in views[2:]:
            out += view
        self._count_traffic((self.size - 1) * values.nbytes)

    def _sum_by_parts(self, values: NDArray[Any], out: NDArray[Any]) -> None:
        """Add one part of the piece on each rank (reduce-scatter); then each reads all sums."""
        n = len(values)
        bounds = [n * r // self.size for r in range(self.size + 1)]
        low, high = bounds[self.rank], bounds[self.rank + 1]
        views = self._view_areas(values.dtype, n)
        # This rank's part need not be shared: it reads that part in place.
        views[self.rank][:low] = values[:low]
        views[self.rank][high:] = values[high:]
        self._finish_turn()
        total, augend = out[low:high], values[low:high]
        for r, view in enumerate(views):
            if r != self.rank:
                augend = np.add(augend, view[low:high], out=total)
        sums = self._view_areas(values.dtype, n)
        sums[self.rank][low:high] = total
        self._finish_turn()
        for r, (a, b) in enumerate(itertools.pairwise(bounds)):
            if r != self.rank:
                out[a:b] = sums[r][a:b]
        self._count_traffic(2 * (n - (high - low)) * values.itemsize)

    def _reduce_scatter(self, array: NDArray[Any], bounds: list[int]) -> NDArray[Any]:
        """Sum this rank's range; each turn carries a piece of it from every rank."""
        total = np.empty(bounds[self.rank + 1] - bounds[self.rank], array.dtype)
        # An area has one slot for the piece of each receiving rank.
        slot = _AREA_BYTES // array.itemsize // self.size
        longest = max(b - a for a, b in itertools.pairwise(bounds))
        for start in range(0, longest, slot):
            pieces = [array[min(a + start, b) : min(a + start + slot, b)]
                      for a, b in itertools.pairwise(bounds)]  # fmt: skip
            views = self._view_areas(array.dtype, slot * self.size)
            for r, piece in enumerate(pieces):
                if r != self.rank:
                    views[self.rank][r * slot : r * slot + len(piece)] = piece
            self._finish_turn()
            own_piece = total[start : start + slot]
            areas = [
                pieces[r] if r == self.rank else view[self.rank * slot :][: len(own_piece)]
                for r, view in enumerate(views)
            ]
            np.add(areas[0], areas[1], out=own_piece)
            for area in areas[2:]:
                own_piece += area
        self._count_traffic((len(array) - len(total)) * array.itemsize)
        return total

    def _count_traffic(self, size: int) -> None:
        """Count the bytes that this rank wrote for other ranks; it has read as many from them."""
        self.bytes_sent += size
        self.bytes_received += size

    # -- values of each rank --------------------------------------------------------------------

    def broadcast(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the first rank's array; other ranks' arrays, of the same form, are overwritten."""
        flat = array.reshape(-1)
        step = _AREA_BYTES // flat.itemsize
        for start in range(0, len(flat), step):
            piece = flat[start : start + step]
            root_view = self._view_areas(piece.dtype, len(piece))[0]
            if self.rank == 0:
                root_view[...] = piece
            self._finish_turn()
            if self.rank:
                piece[...] = root_view
                self.bytes_received += piece.nbytes
            else:
                self.bytes_sent += piece.nbytes * (self.size - 1)
        return array

    def align(self, rank_values: NDArray[np.int64]) -> NDArray[np.int64]:
        # One turn, in which an area holds only these numbers.
        views = self._view_areas(rank_values.dtype, len(rank_values))
        views[self.rank][...] = rank_values
        self._finish_turn()
        return np.stack(views)

    def find_missing_ranks(self) -> list[int]:
        other_ranks = [r for r in range(self.size) if r != self.rank]
        places = zip(other_ranks, self._peer_signals, strict=True)
        return [r for r, (words, *_) in places if words[TURN_WORD] < self._last_turn]

    def allgather(self, arrays: Arrays) -> list[Arrays]:
        other_ranks = [r for r in range(self.size) if r != self.rank]
        received = self._exchange_messages([pack_array_parts(arrays)], other_ranks)
        return [arrays if r == self.rank else unpack_arrays(received[r]) for r in range(self.size)]

    def alltoall(self, arrays: Arrays) -> Arrays:
        other_ranks = [r for r in range(self.size) if r != self.rank]
        messages = [[] if r == self.rank else pack_array_parts([a]) for r, a in enumerate(arrays)]
        received = self._exchange_messages(messages, other_ranks)
        return [
            arrays[r] if r == self.rank else unpack_arrays(received[r])[0] for r in range(self.size)
        ]

    def reduce(self, arrays: Arrays, merge: Merge) -> Arrays:
        arrays = merge_in_pairs(self.rank, self.size, arrays, merge, self._send_in_tree)
        data = self.broadcast_bytes(pack_array_parts(arrays) if self.rank == 0 else ())
        return arrays if self.rank == 0 else unpack_arrays(data)

    def _send_in_tree(self, arrays: Arrays, destination: int | None, source: int | None) -> Arrays:
        """Send arrays to a lower rank, or receive a higher rank's, in a turn of all ranks."""
        message = [] if destination is None else pack_array_parts(arrays)
        received = self._exchange_messages([message], [] if source is None else [source])
        return [] if source is None else unpack_arrays(received[source])

    def broadcast_bytes(self, buffers: Sequence[Any] = ()) -> NDArray[np.uint8]:
        """Return the first rank's bytes, which pass through its areas piece by piece."""
        data, writer = np.empty(0, np.uint8), PieceWriter(buffers if self.rank == 0 else ())
        # Each area begins with the length of the message (int64). The other ranks read it in the
        # first turn; the initial length of 1 makes them take part in that turn.
        offset, length, turn_bytes = 0, 1, _AREA_BYTES - 8
        while offset < length:
            area = self._view_areas(_BYTE, _AREA_BYTES)[0]
            if self.rank == 0:
                length, buffer = writer.length, area.data
                buffer[:8] = length.to_bytes(8, "little")
                writer.write(buffer[8:])
            self._finish_turn()
            if self.rank:
                if not offset:
                    length = int.from_bytes(area[:8].tobytes(), "little")
                    data = self._memory.empty(length)
                piece = data[offset : offset + turn_bytes]
                piece[...] = area[8 : 8 + len(piece)]
            offset += turn_bytes
        self.bytes_sent += writer.length * (self.size - 1)
        self.bytes_received += len(data)
        return data

    def _exchange_messages(
        self, messages: Sequence[Sequence[Any]], sources: list[int]
    ) -> dict[int, NDArray[np.uint8]]:
        """Return the messages that `sources` have for this rank.

        Each rank has one message for all ranks, or one for each. A turn carries the lengths of all
        messages of a rank, and a piece of each.
        """
        # Area layout: the lengths (int64, padded to a cache line of 64 bytes), then one slot per
        # message, equal in size and of whole cache lines.
        n = len(messages)
        head = 8 * n + -8 * n % 64
        slot = (_AREA_BYTES - head) // n // 64 * 64
        start = head + slot * (self.rank if n > 1 else 0)
        writers = [PieceWriter(message) for message in messages]
        offset, longest, received = 0, 1, dict[int, NDArray[np.uint8]]()
        while offset < longest:
            areas = self._view_areas(_BYTE, _AREA_BYTES)
            own_area = areas[self.rank].data
            own_area[: 8 * n].cast("q")[:] = memoryview(
                packed_array("q", [w.length for w in writers])
            )
            for i, writer in enumerate(writers):
                writer.write(own_area[head + i * slot : head + (i + 1) * slot])
            self._finish_turn()
            if not offset:
                lengths = [area[: 8 * n].view(np.int64) for area in areas]
                longest = max(int(sizes.max()) for sizes in lengths)
                position = self.rank if n > 1 else 0
                received = {r: np.empty(int(lengths[r][position]), np.uint8) for r in sources}
            for r, target in received.items():
                piece = target[offset : offset + slot]
                piece[...] = areas[r][start : start + len(piece)]
            offset += slot
        self.bytes_sent += sum(w.length for w in writers) * (self.size - 1 if n == 1 else 1)
        self.bytes_received += sum(target.nbytes for target in received.values())
        return received

    def close(self) -> None:
        """Announce that this rank is done; the memory is freed with its last user."""
        # Other ranks may be asleep, waiting for a turn that this rank will not take.
        self._own_words[ENDED_WORD] = 1
        fence_memory()
        for _, wake_pipe in self._peer_signals:
            wake_pipe.wake()
        self._close()


def _round_to_lines(size: int) -> int:
    """Return a size in bytes, rounded up to whole cache lines."""
    return -(-size // _LINE_BYTES) * _LINE_BYTES


class _AreaBuffer(SharedBuffer):
    """Buffer of gradients in the areas of a group; the areas of a rank are adjacent.

    Parameters
    ----------
    group : SharedGroup
    places : sequence of (SharedSegment, WakePipe)
        Memory and wake pipe of each rank.
    area : int
        Bytes of an area.
    lanes : list of list of int
        Numbers of each rank's lanes.
    size : int
        Bytes of a gradient.
    in_order : bool
        Whether to add in the order of lanes; otherwise each rank first adds its own lanes.
    """

    def __init__(
        self,
        group: SharedGroup,
        places: Sequence[tuple[SharedSegment, WakePipe]],
        area: int,
        lanes: list[list[int]],
        size: int,
        in_order: bool,
    ) -> None:
        # In the order of lanes, each lane has a place for its gradient; otherwise each rank has one
        # place, for the sum of its lanes.
        writers = lanes if in_order else [numbers[:1] for numbers in lanes]
        self._group, self._size = group, size * len(writers[group.rank])
        segments = [segment for segment, _ in places]
        # Number of the writer, and the addresses of its place in even and odd turns. Odd turns use
        # the first area, since turns are counted from 1.
        lane_places = [
            [
                (
                    number,
                    s.find_address(area + k * _round_to_lines(size)),
                    s.find_address(k * _round_to_lines(size)),
                )
                for k, number in enumerate(numbers)
            ]
            for s, numbers in zip(segments, writers, strict=True)
        ]
        all_places = [place for numbers in lane_places for place in numbers]
        # Addresses with which a compiled loop waits for and wakes another rank without Python.
        peer_addresses = [
            (s.find_word_address(TURN_WORD), s.find_word_address(ASLEEP_WORD), wake_pipe.descriptor)
            for rank, (s, wake_pipe) in enumerate(places)
            if rank != group.rank
        ]
        super().__init__(
            segments[group.rank].find_word_address(TURN_WORD),
            _split_by_turn(lane_places[group.rank]),
            _split_by_turn(sorted(all_places) if in_order else all_places),
            np.array(peer_addresses, np.int64),
            _SPIN_NANOSECONDS,
            True,
            lanes,
            group.rank,
            size,
        )

    @property
    def last_turn(self) -> int:
        return self._group.last_turn

    def wait(self, turn: int) -> None:
        self._group.wait(turn)

    def count_turns(self, turns: int, n_bytes_written: int | None = None) -> None:
        self._group.count_turns(
            turns, self._size * turns if n_bytes_written is None else n_bytes_written
        )


def _split_by_turn(places: list[tuple[int, int, int]]) -> NDArray[np.int64]:
    """Return the addresses used in even turns, and those used in odd turns, as two rows."""
    return np.ascontiguousarray(np.array(places, np.int64).reshape(-1, 3)[:, 1:].T)


def choose_communicator(
    peers: PeerGroup, wait: WaitBound, allowed: bool, own_core: bool = False
) -> Communicator:
    """Return the fastest communicator among the ranks of `peers`."""
    try:
        hosts, places = find_shared_memory(peers, allowed)
    except BaseException:
        peers.close()
        raise
    # The traffic of this search does not count as traffic of the fit.
    peers.bytes_sent = peers.bytes_received = 0
    # If every rank is alone on its host, there is no memory to share.
    if len(hosts) == peers.size:
        return peers
    # A rank that is alone on its host has no local group; the others share memory on theirs.
    shared_group = None
    if len(places) > 1:
        lives = {r: SocketLife(peers.control(r)) for r in places if r != peers.rank}
        spin_seconds = LONG_SPIN_SECONDS if own_core else SPIN_SECONDS
        shared_group = SharedGroup(peers.rank, places, lives, wait, peers.close, spin_seconds)
    if len(hosts) == 1 and shared_group is not None:
        return shared_group
    return TwoLevelGroup(peers, shared_group, hosts)


class TwoLevelGroup(Communicator):
    """Communicator of several hosts, in two levels: within hosts, and between their first ranks.

    A sum takes three steps: each host sums in its shared memory, the first ranks of the hosts sum
    over the network, and each sends the sum to the other ranks of its host. So each byte crosses
    the network once per host.

    Parameters
    ----------
    peers : PeerGroup
        All ranks; closed with the communicator.
    local : SharedGroup or None
        Group of this host; None for a rank that is alone on its host.
    hosts : list of list of int
        The ranks of each host.
    """

    def __init__(self, peers: PeerGroup, local: SharedGroup | None, hosts: list[list[int]]) -> None:
        super().__init__()
        self.rank, self.size = peers.rank, peers.size
        self._peers, self._local = peers, local
        self._order = [rank for ranks in hosts for rank in ranks]
        first_ranks = [ranks[0] for ranks in hosts]
        # The first ranks of the hosts sum among themselves over the network.
        self._first = peers.make_subgroup(first_ranks) if self.rank in first_ranks else None
        self._host_ranks = next(ranks for ranks in hosts if self.rank in ranks)

    @property
    def within_host(self) -> Communicator | None:
        return self._local

    @property
    def traffic(self) -> dict[str, int]:
        """Return the bytes sent and received by this rank, by transport."""
        totals: Counter[str] = Counter()
        for group in (self._peers, self._local, self._first):
            totals.update({} if group is None else group.traffic)
        return dict(totals)

    def allreduce(self, array: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        total = array
        if self._local is not None:
            total = self._local.allreduce(total, out)
        elif out is not None:
            out[...] = array
            total = out
        if self._first is not None:
            total = self._first.allreduce(total)
            if out is not None and total is not out:
                out[...] = total
                total = out
        if self._local is not None:
            # All ranks but each host's first get the sum of all hosts.
            total = self._local.broadcast(total)
        self._count_traffic()
        return total

    def align(self, rank_values: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._peers.align(rank_values)

    def find_missing_ranks(self) -> list[int]:
        return self._peers.find_missing_ranks()

    def allgather(self, arrays: Arrays) -> list[Arrays]:
        # One array of bytes, which other ranks forward without unpacking it.
        data = [np.frombuffer(pack_arrays(arrays), np.uint8)]
        if self._local is not None:
            data = [packed for (packed,) in self._local.allgather(data)]
        if self._first is not None:
            # Three steps: within the host, between the hosts' first ranks, and back within the
            # host.
            data = [packed for host_data in self._first.allgather(data) for packed in host_data]
        if self._local is not None:
            data = self._local.allgather(data if self._first is not None else [])[0]
        self._count_traffic()
        by_rank = dict(zip(self._order, data, strict=True))
        return [unpack_arrays(by_rank[rank]) for rank in range(self.size)]

    def alltoall(self, arrays: Arrays) -> Arrays:
        """Exchange within the host through its memory, and with other hosts over sockets."""
        # Sockets between ranks of one host only show that both are alive.
        remote_ranks = [rank for rank in self._order if rank not in self._host_ranks]
        received = self._peers.exchange(arrays, remote_ranks)
        host_arrays = [arrays[rank] for rank in self._host_ranks]
        if self._local is not None:
            host_arrays = self._local.alltoall(host_arrays)
        received.update(zip(self._host_ranks, host_arrays, strict=True))
        self._count_traffic()
        return [received[rank] for rank in range(self.size)]

    def reduce(self, arrays: Arrays, merge: Merge) -> Arrays:
        """Merge in the order of the hosts, and within each host in the order of its ranks."""
        if self._local is not None:
            arrays = self._local.reduce(arrays, merge)
        if self._first is not None:
            arrays = self._first.reduce(arrays, merge)
        if self._local is not None:
            data = self._local.broadcast_bytes(pack_array_parts(arrays))
            arrays = arrays if self._first is not None else unpack_arrays(data)
        self._count_traffic()
        return arrays

    def broadcast_bytes(self, buffers: Sequence[Any] = ()) -> NDArray[np.uint8]:
        data = np.empty(0, np.uint8)
        if self._first is not None:
            data = self._first.broadcast_bytes(buffers)
            buffers = buffers if self.rank == 0 else [data.data]
        if self._local is not None:
            received = self._local.broadcast_bytes(buffers)
            data = data if self._first is not None else received
        self._count_traffic()
        return data

    def _count_traffic(self) -> None:
        """Add up the bytes of both levels."""
        groups: list[Communicator] = [self._peers]
        groups += [p for p in (self._local, self._first) if p is not None]
        self.bytes_sent = sum(group.bytes_sent for group in groups)
        self.bytes_received = sum(group.bytes_received for group in groups)

    def close(self) -> None:
        """Close the sockets; the memory goes with its last user."""
        self._peers.close()


#: Place of a rank that shares no memory. The numbers are machine, process, and the descriptors of
#: memory and pipe.
_NOWHERE = np.zeros(4, dtype=np.int64)


def find_shared_memory(peers: PeerGroup, allowed: bool) -> tuple[list[list[int]], RankMemory]:
    """Return the ranks of each host, and the memory of the ranks on this host."""
    # A rank that shares no memory still makes the calls, with a place of zeros: collectives need
    # all ranks.
    own_memory = make_rank_memory() if allowed else None
    announced = _NOWHERE
    if own_memory is not None:
        announced = np.array(
            [identify_machine(), os.getpid(), own_memory[2], own_memory[1].descriptor]
        )
    try:
        # Step 1: every rank announces where its memory is, and opens the memory that it can reach.
        places = [_check_numbers(arrays) for arrays in peers.allgather([announced])]
        visible = {
            rank: pair
            for rank, announced in enumerate(places)
            if own_memory is not None
            and (pair := own_memory[:2] if rank == peers.rank else _open_if_local(announced))
        }
        # Zeros mean memory that this rank cannot read.
        tokens_read = np.zeros((peers.size, TOKEN_BYTES), np.uint8)
        for rank, (segment, _) in visible.items():
            tokens_read[rank] = np.frombuffer(segment.token, np.uint8)
        # Step 2: every rank announces the tokens it has read. A rank that read the right token sees
        # the memory itself, and not another object under the same number.
        tokens = [_check_tokens(arrays, peers.size) for arrays in peers.allgather([tokens_read])]
    finally:
        if own_memory is not None:
            os.close(own_memory[2])
    # Step 3: all ranks have the same tokens, so they all form the same groups.
    hosts = _group_by_host(tokens)
    own_ranks = next(ranks for ranks in hosts if peers.rank in ranks)
    return hosts, {rank: visible[rank] for rank in own_ranks if rank in visible}


def _check_numbers(arrays: list[NDArray[Any]]) -> list[int]:
    """Return the four numbers that a rank announced for its memory; raise if they are malformed."""
    if [(a.dtype, a.shape) for a in arrays] != [(_NOWHERE.dtype, _NOWHERE.shape)]:
        raise make_malformed_error("no place of its memory")
    return [int(number) for number in arrays[0]]


def _check_tokens(arrays: list[NDArray[Any]], size: int) -> NDArray[np.uint8]:
    """Return the tokens that a rank read in other ranks' memory; raise if they are malformed."""
    if [(a.dtype, a.shape) for a in arrays] != [(np.dtype(np.uint8), (size, TOKEN_BYTES))]:
        raise make_malformed_error("no tokens")
    return arrays[0]


def _group_by_host(tokens: list[NDArray[np.uint8]]) -> list[list[int]]:
    """Return the ranks of each host; ``tokens[q][r]`` is what rank q read in rank r's segment."""
    ranks = range(len(tokens))

    def sees(q: int, r: int) -> bool:
        return q == r or bool(tokens[q][r].any() and (tokens[q][r] == tokens[r][r]).all())

    visible = [[r for r in ranks if sees(q, r)] for q in ranks]
    # If visibility is one-way between any two ranks, no rank shares memory.
    if any(visible[r] != visible[q] for q in ranks for r in visible[q]):
        return [[r] for r in ranks]
    return [group for rank, group in enumerate(visible) if group[0] == rank]


def make_rank_memory() -> tuple[SharedSegment, WakePipe, int] | None:
    """Return new memory, its wake pipe and its descriptor; None if the system has none."""
    try:
        wake_pipe = WakePipe.make()
        segment, memory = SharedSegment.allocate(SEGMENT_BYTES)
    except OSError:
        return None
    return segment, wake_pipe, memory


def open_rank_memory(pid: int, memory: int, wake_pipe: int) -> tuple[SharedSegment, WakePipe]:
    """Return the memory and wake pipe of another process, by its descriptors there."""
    return SharedSegment.find(pid, memory, SEGMENT_BYTES), WakePipe.find(pid, wake_pipe)


def _open_if_local(memory_handle: list[int]) -> tuple[SharedSegment, WakePipe] | None:
    """Return the memory and wake pipe at a place; None if it is not reachable from here."""
    host, *numbers = memory_handle
    if host and host == identify_machine():
        with contextlib.suppress(OSError):
            return open_rank_memory(*numbers)
    return None


#: All-gather of small values through the first server: takes this rank's value, returns all by
#: rank.
ExchangeValues = Callable[[Any], list[Any]]


class OneHostSetup:
    """Setup of shared memory among ranks that may all be on one host; it holds this rank's memory.

    Parameters
    ----------
    allowed : bool
        Whether this rank may share memory.
    """

    def __init__(self, allowed: bool) -> None:
        self._own_memory = make_rank_memory() if allowed else None

    @property
    def memory_handle(self) -> list[Any]:
        """Return the numbers by which other ranks find the memory, and the token that proves it."""
        if self._own_memory is None:
            return [0, 0, 0, 0, ""]
        segment, wake_pipe, memory = self._own_memory
        return [identify_machine(), os.getpid(), memory, wake_pipe.descriptor, segment.token.hex()]

    def group(
        self,
        rank: int,
        places: list[Any],
        exchange: ExchangeValues,
        wait: WaitBound,
        spin_seconds: float = SPIN_SECONDS,
    ) -> SharedGroup | None:
        """Return the communicator of all ranks; None on all of them if any cannot see another."""
        places = [_check_place(place) for place in places]
        if not places[0][0] or any(place[0] != places[0][0] for place in places):
            return None
        memory = self._open_all_memory(rank, places)
        # If a single rank cannot see another, all ranks use sockets.
        if not all(sees_all is True for sees_all in exchange(memory is not None)) or memory is None:
            return None
        return SharedGroup(rank, *memory, wait, spin_seconds=spin_seconds)

    def _open_all_memory(
        self, rank: int, places: list[list[Any]]
    ) -> tuple[RankMemory, dict[int, ProcessLife]] | None:
        """Return all ranks' memory and liveness checks; None if this rank cannot see them all."""
        assert self._own_memory is not None
        segment, wake_pipe, _ = self._own_memory
        segments: RankMemory = {rank: (segment, wake_pipe)}
        lives: dict[int, ProcessLife] = {}
        try:
            for peer, (_, pid, memory, number, token) in enumerate(places):
                if peer == rank:
                    continue
                # The process is opened before its memory: while it is alive, its number cannot be
                # reused.
                lives[peer] = ProcessLife(pid)
                segments[peer] = opened = open_rank_memory(pid, memory, number)
                if opened[0].token.hex() != token:
                    return None
                lives[peer].watch(segment.words, opened[0].words, ENDED_WORD)
        except OSError:
            return None
        return segments, lives

    def close(self) -> None:
        """Close the descriptor of the memory once the other ranks have opened it."""
        if self._own_memory is not None:
            os.close(self._own_memory[2])


def _check_place(memory_handle: Any) -> list[Any]:
    """Return the place that a rank announced; raise if it is malformed."""
    kinds = [int, int, int, int, str]
    if (
        not isinstance(memory_handle, list | tuple)
        or [type(field) for field in memory_handle] != kinds
    ):
        raise make_malformed_error("no place of its memory")
    return list(memory_handle)
