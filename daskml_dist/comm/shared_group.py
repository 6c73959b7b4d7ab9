"""All-reduce among trainers of one host, in memory that all of them see.

Everything is made of one move: each rank writes into an area of its own, says so, waits until all
have, and reads the others' areas. Two areas take turns: whoever has begun a turn has finished
reading the one before the last, so an area is free again when its next turn comes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.allreduce import PeerGroup
from daskml_dist.comm.base import Communicator, Wait
from daskml_dist.comm.bounds import malformed
from daskml_dist.comm.packing import pack, unpack
from daskml_dist.comm.shared_memory import TOKEN, WORD, Bell, Segment, Sleeper, fence, here
from daskml_dist.comm.socket import gone
from daskml_dist.errors import CommunicationError

__all__ = ["Places", "SharedGroup", "see_hosts"]

_TURN, _ASLEEP = 0, WORD
#: Bytes of an area: pieces of this size stay in the processor's cache on their way.
_AREA = 1 << 18
#: Bytes up to which more than two ranks add everything themselves, in one turn.
_ONE_HOP = 1 << 15
_NOWHERE = np.zeros(4, dtype=np.int64)


Places = dict[int, tuple[Segment, Bell]]


def see_hosts(peers: PeerGroup, allowed: bool) -> tuple[list[list[int]], Places]:
    """Which ranks share memory: the ranks of each host, and what this rank sees of its own's.

    Parameters
    ----------
    peers : PeerGroup
    allowed : bool
        Whether this rank takes part; all ranks must call, whatever they say.
    """
    own = _make() if allowed else None
    place = _NOWHERE
    if own is not None:
        place = np.array([here(), os.getpid(), own[2], own[1].descriptor])
    try:
        places = [_numbers(arrays) for arrays in peers.allgather([place])]
        seen = {
            rank: pair
            for rank, place in enumerate(places)
            if own is not None and (pair := own[:2] if rank == peers.rank else _find(place))
        }
        read = np.zeros((peers.size, TOKEN), np.uint8)
        for rank, (segment, _) in seen.items():
            read[rank] = np.frombuffer(segment.token, np.uint8)
        tokens = [_tokens(arrays, peers.size) for arrays in peers.allgather([read])]
    finally:
        if own is not None:
            os.close(own[2])
    hosts = _hosts(tokens)
    mine = next(ranks for ranks in hosts if peers.rank in ranks)
    return hosts, {rank: seen[rank] for rank in mine if rank in seen}


def _numbers(arrays: list[NDArray[Any]]) -> list[int]:
    """Where a rank says that its memory is."""
    if [(a.dtype, a.shape) for a in arrays] != [(_NOWHERE.dtype, _NOWHERE.shape)]:
        raise malformed("no place of its memory")
    return [int(number) for number in arrays[0]]


def _tokens(arrays: list[NDArray[Any]], size: int) -> NDArray[np.uint8]:
    """What a rank has read in the others' memory."""
    if [(a.dtype, a.shape) for a in arrays] != [(np.dtype(np.uint8), (size, TOKEN))]:
        raise malformed("no tokens")
    return arrays[0]


def _hosts(tokens: list[NDArray[np.uint8]]) -> list[list[int]]:
    """The ranks of each host; ``tokens[q][r]`` is what rank q read in the segment of rank r."""
    ranks = range(len(tokens))

    def sees(q: int, r: int) -> bool:
        return q == r or bool(tokens[q][r].any() and (tokens[q][r] == tokens[r][r]).all())

    seen = [[r for r in ranks if sees(q, r)] for q in ranks]
    # Where some see each other and some do not, nobody shares.
    if any(seen[r] != seen[q] for q in ranks for r in seen[q]):
        return [[r] for r in ranks]
    return [some for rank, some in enumerate(seen) if some[0] == rank]


def _make() -> tuple[Segment, Bell, int] | None:
    try:
        bell = Bell.make()
        segment, memory = Segment.make(2 * _AREA)
    except OSError:
        return None
    return segment, bell, memory


def _find(place: list[int]) -> tuple[Segment, Bell] | None:
    host, pid, memory, bell = place
    if host and host == here():
        with contextlib.suppress(OSError):
            return Segment.find(pid, memory, 2 * _AREA), Bell.find(pid, bell)
    return None


class SharedGroup(Communicator):
    """The areas of the ranks of one host; their numbers here are their places among them.

    Parameters
    ----------
    peers : PeerGroup
        Closed with the group; its sockets tell that a rank has ended.
    places : dict of int to (Segment, Bell)
        Of each rank of the host, by its number among all.
    wait : Wait
    """

    def __init__(self, peers: PeerGroup, places: Places, wait: Wait) -> None:
        super().__init__()
        ranks = sorted(places)
        self.rank, self.size = ranks.index(peers.rank), len(ranks)
        self._peers = peers
        self._turn = 0
        own, bell = places[peers.rank]
        self._words = own.words
        self._areas = [[places[r][0].data[:_AREA], places[r][0].data[_AREA:]] for r in ranks]
        self._views: dict[tuple[str, int, int], list[NDArray[Any]]] = {}
        self._others = [
            (
                places[r][0].words,
                places[r][1],
                Sleeper(bell, self._words, _ASLEEP, peers.control(r), wait),
            )
            for r in ranks
            if r != peers.rank
        ]

    # -- the one move --------------------------------------------------------------------------

    def _open(self, dtype: np.dtype[Any], n: int) -> list[NDArray[Any]]:
        """The first `n` elements of all ranks' areas of the turn that comes."""
        key = dtype.str, n, self._turn & 1
        views = self._views.get(key)
        if views is None:
            if len(self._views) > 100:
                self._views.clear()
            size = n * dtype.itemsize
            views = [areas[key[2]][:size].view(dtype) for areas in self._areas]
            self._views[key] = views
        return views

    def _meet(self) -> None:
        """Say that this rank's area is written, and wait until all ranks' are."""
        self._turn = turn = self._turn + 1
        fence()
        self._words[_TURN] = turn
        fence()
        for words, bell, _ in self._others:
            if words[_ASLEEP]:
                bell.ring()
        for words, _, sleeper in self._others:
            if words[_TURN] < turn and not sleeper.until(words, _TURN, turn):
                raise CommunicationError(gone("receiving from", "end of file"))
        fence()

    # -- collectives ---------------------------------------------------------------------------

    def allreduce(self, array: NDArray[Any]) -> NDArray[Any]:
        """Sum over the ranks, the same to the bit on all of them."""
        array = np.ascontiguousarray(array)
        if not array.flags.writeable:
            array = array.copy()
        flat = array.reshape(-1)
        one_hop = self.size == 2 or array.nbytes <= _ONE_HOP
        reduce = self._sum if one_hop else self._sum_by_parts
        step = _AREA // flat.itemsize
        for start in range(0, len(flat), step):
            reduce(flat[start : start + step])
        return array

    def _sum(self, piece: NDArray[Any]) -> None:
        """Everyone adds everything, in rank order."""
        views = self._open(piece.dtype, len(piece))
        views[self.rank][...] = piece
        self._meet()
        np.add(views[0], views[1], out=piece)
        for view in views[2:]:
            piece += view
        self._count((self.size - 1) * piece.nbytes)

    def _sum_by_parts(self, piece: NDArray[Any]) -> None:
        """Each rank adds its part of the piece (reduce-scatter); then all read the sums."""
        n = len(piece)
        bounds = [n * r // self.size for r in range(self.size + 1)]
        low, high = bounds[self.rank], bounds[self.rank + 1]
        views = self._open(piece.dtype, n)
        views[self.rank][:low] = piece[:low]
        views[self.rank][high:] = piece[high:]
        self._meet()
        total = piece[low:high]
        for r, view in enumerate(views):
            if r != self.rank:
                total += view[low:high]
        sums = self._open(piece.dtype, n)
        sums[self.rank][low:high] = total
        self._meet()
        for r, (a, b) in enumerate(itertools.pairwise(bounds)):
            if r != self.rank:
                piece[a:b] = sums[r][a:b]
        self._count(2 * (n - (high - low)) * piece.itemsize)

    def _count(self, size: int) -> None:
        self.bytes_sent += size
        self.bytes_received += size

    def broadcast(self, array: NDArray[Any]) -> NDArray[Any]:
        """The first rank's array; the others', of the same shape and dtype, are written over."""
        flat = array.reshape(-1)
        step = _AREA // flat.itemsize
        for start in range(0, len(flat), step):
            piece = flat[start : start + step]
            first = self._open(piece.dtype, len(piece))[0]
            if self.rank == 0:
                first[...] = piece
            self._meet()
            if self.rank:
                piece[...] = first
                self.bytes_received += piece.nbytes
            else:
                self.bytes_sent += piece.nbytes * (self.size - 1)
        return array

    def allgather(self, arrays: list[NDArray[Any]]) -> list[list[NDArray[Any]]]:
        """The arrays of every rank, by rank."""
        data = np.frombuffer(pack(arrays), np.uint8)
        word = np.dtype(np.int64)
        head = self._open(word, 1)
        areas = [area[word.itemsize :] for area in self._open(np.dtype(np.uint8), _AREA)]
        head[self.rank][0] = len(data)
        _put(areas[self.rank], data, 0)
        self._meet()
        sizes = [int(size[0]) for size in head]
        wholes = [np.empty(size, np.uint8) for size in sizes]
        done, longest = 0, max(sizes)
        while True:
            for r, whole in enumerate(wholes):
                if r != self.rank:
                    _take(whole, areas[r], done)
            done += len(areas[0])
            if done >= longest:
                break
            areas = self._open(np.dtype(np.uint8), _AREA)
            _put(areas[self.rank], data, done)
            self._meet()
        self.bytes_sent += len(data) * (self.size - 1)
        self.bytes_received += sum(sizes) - len(data)
        return [arrays if r == self.rank else unpack(w) for r, w in enumerate(wholes)]

    def close(self) -> None:
        """Close the sockets; the memory goes with its last user."""
        self._peers.close()


def _put(area: NDArray[np.uint8], data: NDArray[np.uint8], start: int) -> None:
    piece = data[start : start + len(area)]
    area[: len(piece)] = piece


def _take(whole: NDArray[np.uint8], area: NDArray[np.uint8], start: int) -> None:
    piece = whole[start : start + len(area)]
    piece[...] = area[: len(piece)]
