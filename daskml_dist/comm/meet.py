"""Way of an all-reduce: by memory within a host, by sockets between hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.allreduce import PeerGroup
from daskml_dist.comm.base import Arrays, Communicator, Merge, Wait
from daskml_dist.comm.hosts import see_hosts
from daskml_dist.comm.life import SocketLife
from daskml_dist.comm.packing import pack, pack_parts, unpack
from daskml_dist.comm.shared_group import SharedGroup
from daskml_dist.comm.shared_memory import LONG_LOOK, LOOK

__all__ = ["TwoLevels", "share_memory"]


def share_memory(
    peers: PeerGroup, wait: Wait, allowed: bool, own_core: bool = False
) -> Communicator:
    """The fastest communicator of the same ranks.

    Parameters
    ----------
    peers : PeerGroup
        Its sockets stay open and tell that a rank has ended. Closed where this fails.
    wait : Wait
    allowed : bool
        Whether this rank takes part; all ranks must call, whatever they say.
    own_core : bool
        Whether nobody else wants this rank's processor: it then looks longer for the others.
    """
    try:
        hosts, places = see_hosts(peers, allowed)
    except BaseException:
        peers.close()
        raise
    # What it took to find out is no traffic of the fit.
    peers.bytes_sent = peers.bytes_received = 0
    if len(hosts) == peers.size:
        return peers
    local = None
    if len(places) > 1:
        lives = {r: SocketLife(peers.control(r)) for r in places if r != peers.rank}
        look = LONG_LOOK if own_core else LOOK
        local = SharedGroup(peers.rank, places, lives, wait, peers.close, look)
    if len(hosts) == 1 and local is not None:
        return local
    return TwoLevels(peers, local, hosts)


class TwoLevels(Communicator):
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
        self._first = peers.among(firsts) if self.rank in firsts else None
        self._here = next(ranks for ranks in hosts if self.rank in ranks)

    @property
    def traffic(self) -> dict[str, int]:
        """Bytes sent and received by this rank, by transport."""
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
            total = self._local.broadcast(total)
        self._count()
        return total

    def _allgather(self, arrays: Arrays) -> list[Arrays]:
        data = [_packed(arrays)]
        if self._local is not None:
            data = [own for (own,) in self._local.allgather(data)]
        if self._first is not None:
            data = [one for some in self._first.allgather(data) for one in some]
        if self._local is not None:
            data = self._local.allgather(data if self._first is not None else [])[0]
        self._count()
        by_rank = dict(zip(self._order, data, strict=True))
        return [unpack(by_rank[rank]) for rank in range(self.size)]

    def _alltoall(self, arrays: Arrays) -> Arrays:
        """Within the host by its memory, and to ranks of other hosts by their sockets."""
        # Sockets between ranks of a host only tell that both live.
        others = [rank for rank in self._order if rank not in self._here]
        had = self._peers.exchange(arrays, others)
        within = [arrays[rank] for rank in self._here]
        if self._local is not None:
            within = self._local.alltoall(within)
        had.update(zip(self._here, within, strict=True))
        self._count()
        return [had[rank] for rank in range(self.size)]

    def _reduce(self, arrays: Arrays, merge: Merge) -> Arrays:
        """In the order of the hosts, and of the ranks of each."""
        if self._local is not None:
            arrays = self._local.reduce(arrays, merge)
        if self._first is not None:
            arrays = self._first.reduce(arrays, merge)
        if self._local is not None:
            data = self._local.broadcast_bytes(pack_parts(arrays))
            arrays = arrays if self._first is not None else unpack(data)
        self._count()
        return arrays

    def _broadcast_bytes(self, buffers: Sequence[Any]) -> NDArray[np.uint8]:
        data = np.empty(0, np.uint8)
        if self._first is not None:
            data = self._first.broadcast_bytes(buffers)
            buffers = buffers if self.rank == 0 else [data.data]
        if self._local is not None:
            heard = self._local.broadcast_bytes(buffers)
            data = data if self._first is not None else heard
        self._count()
        return data

    def _count(self) -> None:
        parts: list[Communicator] = [self._peers]
        parts += [p for p in (self._local, self._first) if p is not None]
        self.bytes_sent = sum(part.bytes_sent for part in parts)
        self.bytes_received = sum(part.bytes_received for part in parts)

    def close(self) -> None:
        """Close the sockets; the memory goes with its last user."""
        super().close()
        self._peers.close()


def _packed(arrays: list[NDArray[Any]]) -> NDArray[np.uint8]:
    return np.frombuffer(pack(arrays), np.uint8)
