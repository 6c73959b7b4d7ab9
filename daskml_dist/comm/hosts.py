"""Hosts of the ranks, found out by opening each other's memory over the sockets between them."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.allreduce import PeerGroup
from daskml_dist.comm.bounds import malformed
from daskml_dist.comm.shared_group import SEGMENT, Places
from daskml_dist.comm.shared_memory import TOKEN, Bell, SharedSegment, here

__all__ = ["find_memory", "make_memory", "see_hosts"]

_NOWHERE = np.zeros(4, dtype=np.int64)


def see_hosts(peers: PeerGroup, allowed: bool) -> tuple[list[list[int]], Places]:
    """Ranks that share memory: those of each host, and what this rank sees of its own's.

    Parameters
    ----------
    peers : PeerGroup
    allowed : bool
        Whether this rank takes part; all ranks must call, whatever they say.
    """
    own = make_memory() if allowed else None
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
    """Numbers of a rank's memory, as it tells the others."""
    if [(a.dtype, a.shape) for a in arrays] != [(_NOWHERE.dtype, _NOWHERE.shape)]:
        raise malformed("no place of its memory")
    return [int(number) for number in arrays[0]]


def _tokens(arrays: list[NDArray[Any]], size: int) -> NDArray[np.uint8]:
    """Tokens that a rank has read in the others' memory."""
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


def make_memory() -> tuple[SharedSegment, Bell, int] | None:
    """Own memory, its bell and its descriptor, to be closed once found; None: there is none."""
    try:
        bell = Bell.make()
        segment, memory = SharedSegment.make(SEGMENT)
    except OSError:
        return None
    return segment, bell, memory


def find_memory(pid: int, memory: int, bell: int) -> tuple[SharedSegment, Bell]:
    """Memory and bell of another process, by its descriptors there.

    Raises
    ------
    OSError
    """
    return SharedSegment.find(pid, memory, SEGMENT), Bell.find(pid, bell)


def _find(place: list[int]) -> tuple[SharedSegment, Bell] | None:
    host, *numbers = place
    if host and host == here():
        with contextlib.suppress(OSError):
            return find_memory(*numbers)
    return None
