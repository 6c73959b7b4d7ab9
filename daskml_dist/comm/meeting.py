"""Choice of a communicator: shared memory within a host, sockets between hosts.

`choose_communicator` finds out over sockets which ranks see each other's memory. Ranks that are all
on one host need no sockets (`OneHostMeeting`): all that they need for it they say at the first
server, where they meet anyhow, in a message or two however many ranks there are; sockets between
all pairs would be handshakes by the square of their number.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import Arrays, Communicator, Merge, Wait
from daskml_dist.comm.packing import (
    make_malformed_error,
    pack_array_parts,
    pack_arrays,
    unpack_arrays,
)
from daskml_dist.comm.shared_group import ENDED_WORD, SEGMENT_BYTES, RankMemory, SharedGroup
from daskml_dist.comm.shared_memory import (
    LONG_SPIN_SECONDS,
    SPIN_SECONDS,
    TOKEN_BYTES,
    ProcessLife,
    SharedSegment,
    SocketLife,
    WakePipe,
    identify_machine,
)
from daskml_dist.comm.socket_group import PeerGroup

__all__ = [
    "OneHostMeeting",
    "TellAll",
    "TwoLevelGroup",
    "choose_communicator",
    "find_shared_memory",
    "make_rank_memory",
    "open_rank_memory",
]


def choose_communicator(
    peers: PeerGroup, wait: Wait, allowed: bool, own_core: bool = False
) -> Communicator:
    """Return the fastest communicator of the same ranks."""
    try:
        hosts, places = find_shared_memory(peers, allowed)
    except BaseException:
        peers.close()
        raise
    # What it took to find out is no traffic of the fit.
    peers.bytes_sent = peers.bytes_received = 0
    # Every rank is alone on its host: there is no memory to share.
    if len(hosts) == peers.size:
        return peers
    # Ranks that are alone on their host have no local group; the others share memory there.
    local = None
    if len(places) > 1:
        lives = {r: SocketLife(peers.control(r)) for r in places if r != peers.rank}
        look = LONG_SPIN_SECONDS if own_core else SPIN_SECONDS
        local = SharedGroup(peers.rank, places, lives, wait, peers.close, look)
    if len(hosts) == 1 and local is not None:
        return local
    return TwoLevelGroup(peers, local, hosts)


class TwoLevelGroup(Communicator):
    """Several hosts: each sums by itself, their first ranks among them, and tell the others.

    Parameters
    ----------
    peers : PeerGroup
        All ranks; closed with the communicator.
    local : SharedGroup or None
        This host's; None for a rank that is alone there.
    hosts : list of list of int
        The ranks of each host.
    """

    def __init__(self, peers: PeerGroup, local: SharedGroup | None, hosts: list[list[int]]) -> None:
        super().__init__()
        self.rank, self.size = peers.rank, peers.size
        self._peers, self._local = peers, local
        self._order = [rank for ranks in hosts for rank in ranks]
        firsts = [ranks[0] for ranks in hosts]
        # The first ranks of the hosts sum among themselves over the network.
        self._first = peers.among(firsts) if self.rank in firsts else None
        self._here = next(ranks for ranks in hosts if self.rank in ranks)

    @property
    def traffic(self) -> dict[str, int]:
        """Return the bytes sent and received by this rank, by transport."""
        found: Counter[str] = Counter()
        for part in (self._peers, self._local, self._first):
            found.update({} if part is None else part.traffic)
        return dict(found)

    def _allreduce(self, array: NDArray[Any], out: NDArray[Any] | None) -> NDArray[Any]:
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
            # The ranks that are no host's first get the sum of all hosts.
            total = self._local.broadcast(total)
        self._count_traffic()
        return total

    def _allgather(self, arrays: Arrays) -> list[Arrays]:
        data = [_pack_as_array(arrays)]
        if self._local is not None:
            data = [own for (own,) in self._local.allgather(data)]
        if self._first is not None:
            # Three steps: within the host, between the hosts' first ranks, and back within the
            # host.
            data = [one for some in self._first.allgather(data) for one in some]
        if self._local is not None:
            data = self._local.allgather(data if self._first is not None else [])[0]
        self._count_traffic()
        by_rank = dict(zip(self._order, data, strict=True))
        return [unpack_arrays(by_rank[rank]) for rank in range(self.size)]

    def _alltoall(self, arrays: Arrays) -> Arrays:
        """Exchange within the host by its memory, and with ranks of other hosts by sockets."""
        # Sockets between ranks of a host only tell that both live.
        others = [rank for rank in self._order if rank not in self._here]
        had = self._peers.exchange(arrays, others)
        within = [arrays[rank] for rank in self._here]
        if self._local is not None:
            within = self._local.alltoall(within)
        had.update(zip(self._here, within, strict=True))
        self._count_traffic()
        return [had[rank] for rank in range(self.size)]

    def _reduce(self, arrays: Arrays, merge: Merge) -> Arrays:
        """Merge in the order of the hosts, and of the ranks of each."""
        if self._local is not None:
            arrays = self._local.reduce(arrays, merge)
        if self._first is not None:
            arrays = self._first.reduce(arrays, merge)
        if self._local is not None:
            data = self._local.broadcast_bytes(pack_array_parts(arrays))
            arrays = arrays if self._first is not None else unpack_arrays(data)
        self._count_traffic()
        return arrays

    def _broadcast_bytes(self, buffers: Sequence[Any]) -> NDArray[np.uint8]:
        data = np.empty(0, np.uint8)
        if self._first is not None:
            data = self._first.broadcast_bytes(buffers)
            buffers = buffers if self.rank == 0 else [data.data]
        if self._local is not None:
            heard = self._local.broadcast_bytes(buffers)
            data = data if self._first is not None else heard
        self._count_traffic()
        return data

    def _count_traffic(self) -> None:
        parts: list[Communicator] = [self._peers]
        parts += [p for p in (self._local, self._first) if p is not None]
        self.bytes_sent = sum(part.bytes_sent for part in parts)
        self.bytes_received = sum(part.bytes_received for part in parts)

    def close(self) -> None:
        """Close the sockets; the memory goes with its last user."""
        super().close()
        self._peers.close()


def _pack_as_array(arrays: list[NDArray[Any]]) -> NDArray[np.uint8]:
    return np.frombuffer(pack_arrays(arrays), np.uint8)


_NOWHERE = np.zeros(4, dtype=np.int64)


def find_shared_memory(peers: PeerGroup, allowed: bool) -> tuple[list[list[int]], RankMemory]:
    """Return the ranks of each host, and the memory of those on this one's host."""
    # A rank that takes no part still calls, with a place of zeros: collectives are of all ranks.
    own = make_rank_memory() if allowed else None
    place = _NOWHERE
    if own is not None:
        place = np.array([identify_machine(), os.getpid(), own[2], own[1].descriptor])
    try:
        # Step 1: all ranks tell where their memory is; each opens what it can reach.
        places = [_check_numbers(arrays) for arrays in peers.allgather([place])]
        seen = {
            rank: pair
            for rank, place in enumerate(places)
            if own is not None
            and (pair := own[:2] if rank == peers.rank else _open_if_local(place))
        }
        # Zeros stand for memory that this rank does not see.
        read = np.zeros((peers.size, TOKEN_BYTES), np.uint8)
        for rank, (segment, _) in seen.items():
            read[rank] = np.frombuffer(segment.token, np.uint8)
        # Step 2: all tell which tokens they have read. Only who reads the right token sees the
        # memory itself, and not another object under the same number.
        tokens = [_check_tokens(arrays, peers.size) for arrays in peers.allgather([read])]
    finally:
        if own is not None:
            os.close(own[2])
    # Step 3: all ranks have the same tokens, and so group the ranks alike.
    hosts = _group_by_host(tokens)
    mine = next(ranks for ranks in hosts if peers.rank in ranks)
    return hosts, {rank: seen[rank] for rank in mine if rank in seen}


def _check_numbers(arrays: list[NDArray[Any]]) -> list[int]:
    """Return the numbers of a rank's memory, as it announced them; raise for anything else."""
    if [(a.dtype, a.shape) for a in arrays] != [(_NOWHERE.dtype, _NOWHERE.shape)]:
        raise make_malformed_error("no place of its memory")
    return [int(number) for number in arrays[0]]


def _check_tokens(arrays: list[NDArray[Any]], size: int) -> NDArray[np.uint8]:
    """Return the tokens that a rank has read in the others' memory; raise for anything else."""
    if [(a.dtype, a.shape) for a in arrays] != [(np.dtype(np.uint8), (size, TOKEN_BYTES))]:
        raise make_malformed_error("no tokens")
    return arrays[0]


def _group_by_host(tokens: list[NDArray[np.uint8]]) -> list[list[int]]:
    """Return the ranks of each host; ``tokens[q][r]`` is what rank q read in rank r's segment."""
    ranks = range(len(tokens))

    def sees(q: int, r: int) -> bool:
        return q == r or bool(tokens[q][r].any() and (tokens[q][r] == tokens[r][r]).all())

    seen = [[r for r in ranks if sees(q, r)] for q in ranks]
    # Where some ranks see each other only one way, no rank shares memory.
    if any(seen[r] != seen[q] for q in ranks for r in seen[q]):
        return [[r] for r in ranks]
    return [some for rank, some in enumerate(seen) if some[0] == rank]


def make_rank_memory() -> tuple[SharedSegment, WakePipe, int] | None:
    """Return new memory, its wake pipe and its descriptor, to close once found, else None."""
    try:
        bell = WakePipe.make()
        segment, memory = SharedSegment.make(SEGMENT_BYTES)
    except OSError:
        return None
    return segment, bell, memory


def open_rank_memory(pid: int, memory: int, bell: int) -> tuple[SharedSegment, WakePipe]:
    """Return the memory and wake pipe of another process, by its descriptors there."""
    return SharedSegment.find(pid, memory, SEGMENT_BYTES), WakePipe.find(pid, bell)


def _open_if_local(place: list[int]) -> tuple[SharedSegment, WakePipe] | None:
    """Return the memory and wake pipe at a place of this machine; None where not reachable."""
    host, *numbers = place
    if host and host == identify_machine():
        with contextlib.suppress(OSError):
            return open_rank_memory(*numbers)
    return None


#: Takes what this rank says; waits for and returns what all say, by rank.
TellAll = Callable[[Any], list[Any]]


class OneHostMeeting:
    """This rank's memory, before the others have found it.

    Parameters
    ----------
    allowed : bool
        Whether this rank takes part.
    """

    def __init__(self, allowed: bool) -> None:
        self._own = make_rank_memory() if allowed else None

    @property
    def place(self) -> list[Any]:
        """Return the numbers by which other ranks find the memory, and the token that proves it."""
        if self._own is None:
            return [0, 0, 0, 0, ""]
        segment, bell, memory = self._own
        return [identify_machine(), os.getpid(), memory, bell.descriptor, segment.token.hex()]

    def group(
        self, rank: int, places: list[Any], tell: TellAll, wait: Wait, look: float = SPIN_SECONDS
    ) -> SharedGroup | None:
        """Return the communicator of all ranks; None on all where some do not see each other."""
        places = [_check_place(place) for place in places]
        if not places[0][0] or any(place[0] != places[0][0] for place in places):
            return None
        seen = self._open_all_memory(rank, places)
        # One rank that cannot see another is enough: then all take sockets, together.
        if not all(said is True for said in tell(seen is not None)) or seen is None:
            return None
        return SharedGroup(rank, *seen, wait, look=look)

    def _open_all_memory(
        self, rank: int, places: list[list[Any]]
    ) -> tuple[RankMemory, dict[int, ProcessLife]] | None:
        """Return memory and lives of all ranks; None where this one does not see them all."""
        assert self._own is not None
        segment, bell, _ = self._own
        found: RankMemory = {rank: (segment, bell)}
        lives: dict[int, ProcessLife] = {}
        try:
            for other, (_, pid, memory, number, token) in enumerate(places):
                if other == rank:
                    continue
                # Before its memory is opened by number: while the process lives, its number means
                # the same.
                lives[other] = ProcessLife(pid)
                found[other] = theirs = open_rank_memory(pid, memory, number)
                if theirs[0].token.hex() != token:
                    return None
                lives[other].watch(segment.words, theirs[0].words, ENDED_WORD)
        except OSError:
            return None
        return found, lives

    def close(self) -> None:
        """Close what the others no longer need to find it."""
        if self._own is not None:
            os.close(self._own[2])


def _check_place(place: Any) -> list[Any]:
    """Return the place that a rank announced; raise for anything else."""
    kinds = [int, int, int, int, str]
    if not isinstance(place, list | tuple) or [type(part) for part in place] != kinds:
        raise make_malformed_error("no place of its memory")
    return list(place)
