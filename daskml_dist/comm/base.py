"""Base class of communicators, the bound of every wait, and trees of ranks.

A `Communicator` makes the collectives among trainers; its waits, like those for servers
(`server_connections`), are bounded by a `WaitBound`. What is no sum is merged along binomial trees
(`merge_in_pairs`), which take as many rounds as the number of ranks has binary digits (Thakur et
al., "Optimization of collective communication operations in MPICH", 2005).
"""

from __future__ import annotations

import contextlib
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.shared_buffer import SharedBuffer
from daskml_dist.errors import GenerationError, RunAbortedError, WaitTimeoutError

#: Bytes of an array from which its memory is reused (1 MiB): malloc returns memory of that size to
#: the system, and the first write to each new page of it costs a page fault.
_MIN_REUSED_BYTES = 1 << 20
#: Bytes that are kept for the next use at most (64 MiB), by a communicator.
_MAX_KEPT_BYTES = 1 << 26

#: Memory that is free for the next use, by its size.
_FreeMemory = dict[int, list[NDArray[np.uint8]]]


class ReusedMemory:
    """Pool of arrays of bytes, which takes memory back once nobody holds a view of it."""

    def __init__(self) -> None:
        self._free: _FreeMemory = {}

    def empty(self, size: int) -> NDArray[np.uint8]:
        """Return an array of `size` bytes, with anything in it."""
        if size < _MIN_REUSED_BYTES:
            return np.empty(size, np.uint8)
        whole = self._taken(size)
        # The array that is given out is not `whole` itself: all views hold it as their base, so
        # that its end is the end of them all, and `whole` is free again.
        array: NDArray[np.uint8] = np.frombuffer(whole.data, np.uint8)
        weakref.finalize(array, _keep_memory, self._free, whole).atexit = False
        return array

    def _taken(self, size: int) -> NDArray[np.uint8]:
        """Return free memory of a size, or new memory."""
        with contextlib.suppress(LookupError):
            return self._free[size].pop()
        return np.empty(size, np.uint8)


def _keep_memory(free: _FreeMemory, whole: NDArray[np.uint8]) -> None:
    """Keep memory for the next use; the garbage collector may call this in any thread."""
    held = sum(size * len(some) for size, some in list(free.items()))
    if held + len(whole) > _MAX_KEPT_BYTES:
        free.clear()
    free.setdefault(len(whole), []).append(whole)


Arrays = list[NDArray[Any]]

#: Text of the error that ends a trainer's part in a generation; no user sees it.
RENEWED_MESSAGE = "The membership of the fit changed; this trainer waits for new instructions."
#: Seconds between two looks at whether a wait still makes sense: as long as Ctrl-C may take.
CHECK_SECONDS = 0.2


#: Silences of a connection after which it breaks by itself; by then the client has long been told.
SILENCES_TO_BREAK = 10.0


@dataclass(frozen=True)
class ConnectionSettings:
    """Behaviour of the connections between the processes of a fit.

    Parameters
    ----------
    shared_memory : bool
        Whether processes of one host may talk through memory that they share.
    silence : float
        Seconds after which it is told that the other side's kernel acknowledges nothing.
    broken_after : float
        Silences after which the connection breaks. The first one has the client ask the workers,
        which is what finds a host that is gone: a network that only falters breaks nothing.
    """

    shared_memory: bool = True
    silence: float = 1.0
    broken_after: float = SILENCES_TO_BREAK


@dataclass(frozen=True)
class Endpoint:
    """Address at which a server or a trainer listens.

    Parameters
    ----------
    key : str
        Unique name of the listener; the same process finds it by this name.
    host, port : str, int
        Address of its socket; port 0: it has none (same process only).
    """

    key: str
    host: str = ""
    port: int = 0


@dataclass
class WaitBound:
    """The bound of every wait of a trainer.

    Parameters
    ----------
    timeout : float
        Seconds without an answer after which :class:`WaitTimeoutError` is raised.
    is_aborted : callable
        Looked at every 0.2 s; True ends the wait with :class:`RunAbortedError`.
    is_renewed : callable
        Likewise, for :class:`GenerationError`: the trainer belongs to a newer generation.
    on_silence : callable
        Called once in a wait, where the other side's kernel seems to acknowledge nothing more.
    """

    timeout: float = 300.0
    is_aborted: Callable[[], bool] = field(default=lambda: False)
    is_renewed: Callable[[], bool] = field(default=lambda: False)
    on_silence: Callable[[], None] = field(default=lambda: None)

    def check(self, since: float, what: str) -> None:
        """Raise when the wait for `what`, begun at `since` (monotonic), must end."""
        # In this order: a client that stopped the fit explains more than a timeout does.
        if self.is_aborted():
            raise RunAbortedError(
                "The fit was stopped by its client; see the error that the client raised."
            )
        if self.is_renewed():
            raise GenerationError(RENEWED_MESSAGE)
        if time.monotonic() - since > self.timeout:
            raise WaitTimeoutError(
                f"Received nothing from {what} for {self.timeout:g} s. Is a worker stopped or "
                "overloaded? Check the workers' logs, or raise the limit with "
                'dask.config.set({"daskml_dist.timeout": seconds}).'
            )


#: Puts what a higher rank has to what a lower one has: both, and the result, are lists of arrays.
Merge = Callable[[Arrays, Arrays], Arrays]


class Communicator(ABC):
    """All trainers of a fit, who meet without a server; every rank makes the same calls in turn."""

    rank: int
    size: int
    bytes_sent: int = 0
    bytes_received: int = 0
    #: How its messages travel, where all travel one way.
    transport: str = "one process"
    #: Whether sums of arrays on a GPU are made there, the same on all ranks.
    sums_on_device: bool = False

    @property
    def traffic(self) -> dict[str, int]:
        """Return the bytes sent and received by this rank, by transport; in any thread."""
        return {self.transport: self.bytes_sent + self.bytes_received}

    @property
    def within_host(self) -> Communicator | None:
        """Return the communicator of this host's ranks alone; None for a rank by itself."""
        return None

    # -- sums ----------------------------------------------------------------------------------

    @abstractmethod
    def allreduce(self, array: Any, out: Any = None) -> Any:
        """Return the sum of all ranks' arrays, the same to the bit on all of them."""

    def reduce_scatter(self, array: Any, bounds: list[int] | None = None) -> Any:
        """Return this rank's range of the sum of flat arrays, ``bounds[rank]:bounds[rank + 1]``."""
        return self._reduce_scatter(array, self.bounds(len(array)) if bounds is None else bounds)

    def _reduce_scatter(self, array: Any, bounds: list[int]) -> Any:
        """Return this rank's range of the sum of the ranks' arrays."""
        # The plain way, for communicators without a better one: sum all, keep the own range.
        total = self.allreduce(array, np.empty_like(array))
        return total[bounds[self.rank] : bounds[self.rank + 1]].copy()

    def bounds(self, n: int) -> list[int]:
        """Return where each rank's nearly even range of `n` elements begins, and `n`."""
        return [n * rank // self.size for rank in range(self.size + 1)]

    def board(
        self, n: int | None, dtype: Any, lanes: list[list[int]], in_order: bool
    ) -> SharedBuffer | None:
        """Return shared memory in which compiled loops sum gradients, in turn with the
        collectives.
        """
        return None

    # -- what each rank has --------------------------------------------------------------------

    def align(self, words: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a few numbers of every rank, one row a rank, once all have come here.

        Unlike other calls it may meet ranks that are at the end of their work: all that a rank
        does next begins with it.
        """
        return np.stack([theirs for (theirs,) in self.allgather([words])])

    def find_missing_ranks(self) -> list[int]:
        """Return the ranks that this one waits for, where it knows them."""
        return []

    @abstractmethod
    def allgather(self, arrays: Arrays) -> list[Arrays]:
        """Return the arrays of every rank, by rank; shapes may differ from rank to rank."""

    @abstractmethod
    def alltoall(self, arrays: Arrays) -> Arrays:
        """Return the arrays that each rank has for this one, by rank."""

    @abstractmethod
    def reduce(self, arrays: Arrays, merge: Merge) -> Arrays:
        """Return all ranks' arrays, merged in pairs, then pairs of pairs; the same on all ranks.

        For what is no sum. It takes as many rounds as the number of ranks has binary digits, and
        the order is that of the ranks, whichever comes first.
        """

    @abstractmethod
    def broadcast_bytes(self, buffers: Sequence[Any] = ()) -> NDArray[np.uint8]:
        """Return the bytes of rank 0's buffers, joined, on every rank but rank 0 itself.

        Rank 0 gets an empty array, and what others give is not sent.
        """

    @abstractmethod
    def close(self) -> None:
        """Close; may be called twice."""


#: Gives arrays to a lower rank (`to`), or takes a higher one's (`source`); all ranks call it.
HandDown = Callable[[Arrays, int | None, int | None], Arrays]


def merge_in_pairs(
    rank: int, size: int, arrays: Arrays, merge: Merge, hand_down: HandDown
) -> Arrays:
    """Merge the arrays of all ranks; rank 0 gets the result, others what they have given."""
    step = 1
    while step < size:
        # In round k pairs are 2^k ranks apart: the higher one of each hands its part down and is
        # done.
        place, source = rank % (2 * step), rank + step
        if place == step:
            hand_down(arrays, rank - step, None)
        elif place == 0 and source < size:
            arrays = merge(arrays, hand_down([], None, source))
        else:
            hand_down([], None, None)
        step *= 2
    return arrays


def find_parent(rank: int) -> int:
    """Return the rank from which this one receives what rank 0 sends to all."""
    return rank & (rank - 1)


def find_children(rank: int, size: int) -> list[int]:
    """Return the ranks that this one sends it on to, the one with the most descendants first."""
    # The lowest set bit of a rank is its place in the binomial tree: it sends on to the ranks that
    # differ from it in one lower bit.
    lowest = rank & -rank if rank else 1 << size.bit_length()
    steps = [1 << k for k in reversed(range(size.bit_length())) if 1 << k < lowest]
    return [rank + step for step in steps if rank + step < size]
