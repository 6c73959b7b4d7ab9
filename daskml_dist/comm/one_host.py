"""Meeting of ranks that are all on one host: memory alone, and no sockets between them.

What is needed for it all ranks say at the first server, where they meet anyhow. So each has a
message or two, however many ranks there are; sockets between all pairs would be handshakes by the
square of their number.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from daskml_dist.comm.area_board import ENDED
from daskml_dist.comm.base import Wait
from daskml_dist.comm.bounds import malformed
from daskml_dist.comm.hosts import find_memory, make_memory
from daskml_dist.comm.life import ProcessLife
from daskml_dist.comm.shared_group import Places, SharedGroup
from daskml_dist.comm.shared_memory import LOOK, here

__all__ = ["OneHost", "Tell"]

#: Takes what this rank says; waits for and returns what all say, by rank.
Tell = Callable[[Any], list[Any]]


class OneHost:
    """This rank's memory, before the others have found it.

    Parameters
    ----------
    allowed : bool
        Whether this rank takes part.
    """

    def __init__(self, allowed: bool) -> None:
        self._own = make_memory() if allowed else None

    @property
    def place(self) -> list[Any]:
        """Numbers by which the others find it, and the token that proves it."""
        if self._own is None:
            return [0, 0, 0, 0, ""]
        segment, bell, memory = self._own
        return [here(), os.getpid(), memory, bell.descriptor, segment.token.hex()]

    def group(
        self, rank: int, places: list[Any], tell: Tell, wait: Wait, look: float = LOOK
    ) -> SharedGroup | None:
        """The communicator of all ranks; None on all of them where some do not see each other.

        Parameters
        ----------
        rank : int
        places : list
            What all ranks have said, by rank: the same list on each.
        tell : callable
            Takes what this rank says next; waits for and returns what all say.
        wait : Wait
        look : float
            Seconds to look for the others without sleeping.
        """
        places = [_checked(place) for place in places]
        if not places[0][0] or any(place[0] != places[0][0] for place in places):
            return None
        seen = self._seen(rank, places)
        if not all(said is True for said in tell(seen is not None)) or seen is None:
            return None
        return SharedGroup(rank, *seen, wait, look=look)

    def _seen(
        self, rank: int, places: list[list[Any]]
    ) -> tuple[Places, dict[int, ProcessLife]] | None:
        """Memory and lives of all ranks, where this one sees them all."""
        assert self._own is not None
        segment, bell, _ = self._own
        found: Places = {rank: (segment, bell)}
        lives: dict[int, ProcessLife] = {}
        try:
            for other, (_, pid, memory, number, token) in enumerate(places):
                if other == rank:
                    continue
                lives[other] = ProcessLife(pid)
                found[other] = theirs = find_memory(pid, memory, number)
                if theirs[0].token.hex() != token:
                    return None
                lives[other].watch(segment.words, theirs[0].words, ENDED)
        except OSError:
            return None
        return found, lives

    def close(self) -> None:
        """Close what the others no longer need to find it."""
        if self._own is not None:
            os.close(self._own[2])


def _checked(place: Any) -> list[Any]:
    kinds = [int, int, int, int, str]
    if not isinstance(place, list | tuple) or [type(part) for part in place] != kinds:
        raise malformed("no place of its memory")
    return list(place)
