"""Base class of communicators, the bound of every wait, and trees of ranks.

A `Communicator` performs the collectives among trainers. Its waits, like waits for servers
(`server_connections`), are bounded by a `WaitBound`. Results that are not sums are merged along
binomial trees (`merge_in_pairs`), which take as many rounds as the number of ranks has binary
digits (Thakur et al., "Optimization of collective communication operations in MPICH", 2005).
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

#: Smallest array, in bytes, whose memory is reused (1 MiB): malloc returns memory of that size to
#: the system, and the first write to each new page costs a page fault.
_MIN_REUSED_BYTES = 1 << 20
#: Most bytes that a communicator keeps for reuse (64 MiB).
_MAX_KEPT_BYTES = 1 << 26

#: Free memory, by its size in bytes.
_FreeMemory = dict[int, list[NDArray[np.uint8]]]


class ReusedMemory:
    """Pool of byte arrays, which takes memory back once no view of it is left."""

    def __init__(self) -> None:
        self._free: _FreeMemory = {}

    def empty(self, size: int) -> NDArray[np.uint8]:
        """Return an uninitialized array of `size` bytes."""
        if size < _MIN_REUSED_BYTES:
            return np.empty(size, np.uint8)
        memory = self._take_free(size)
        # The returned array is not `memory` itself. All views hold the returned array as their
        # base, so it is collected once no view is left, and then `memory` is free again.
        array: NDArray[np.uint8] = np.frombuffer(memory.data, np.uint8)
        weakref.finalize(array, _keep_memory, self._free, memory).atexit = False
        return array

    def _take_free(self, size: int) -> NDArray[np.uint8]:
        """Return free memory of a size from the pool, or new memory."""
        with contextlib.suppress(LookupError):
            return self._free[size].pop()
        return np.empty(size, np.uint8)


def _keep_memory(free: _FreeMemory, memory: NDArray[np.uint8]) -> None:
    """Put memory back into the pool; the garbage collector may call this in any thread."""
    total = sum(size * len(arrays) for size, arrays in list(free.items()))
    if total + len(memory) > _MAX_KEPT_BYTES:
        free.clear()
    free.setdefault(len(memory), []).append(memory)


Arrays = list[NDArray[Any]]

#: Text of the error that ends a trainer's part in a generation; users never see it.
RENEWED_MESSAGE = "The membership of the fit changed; this trainer waits for new instructions."
#: Seconds between two checks of whether a wait must end; Ctrl-C may take this long.
CHECK_SECONDS = 0.2


#: Silence periods after which a connection breaks; the client was notified long before.
SILENCES_TO_BREAK = 10.0


@dataclass(frozen=True)
class ConnectionSettings:
    """Behaviour of the connections between the processes of a fit.

    Parameters
    ----------
    shared_memory : bool
        Whether processes of one host may communicate through shared memory.
    silence : float
        Seconds without an acknowledgement from the other side's kernel after which silence is
        reported.
    broken_after : float
        Number of silence periods after which the connection breaks. After the first one the client
        probes the workers, which detects a host that is gone. A slow network alone breaks nothing.
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
        Address of its socket; port 0 means no socket (same process only).
    """

    key: str
    host: str = ""
    port: int = 0


@dataclass
class WaitBound:
    """Bound of every wait of a trainer.

    Parameters
    ----------
    timeout : float
        Seconds without an answer after which :class:`WaitTimeoutError` is raised.
    is_aborted : callable
        Checked every 0.2 s; True ends the wait with :class:`RunAbortedError`.
    is_renewed : callable
        Checked likewise; True ends the wait with :class:`GenerationError`: the trainer belongs to a
        newer generation.
    on_silence : callable
        Called once per wait, when the other side's kernel seems to acknowledge nothing any more.
    """

    timeout: float = 300.0
    is_aborted: Callable[[], bool] = field(default=lambda: False)
    is_renewed: Callable[[], bool] = field(default=lambda: False)
    on_silence: Callable[[], None] = field(default=lambda: None)

    def check(self, since: float, source: str) -> None:
        """Raise if the wait for `source`, begun at `since` (monotonic), must end."""
        # In this order: a client that stopped the fit explains more than a timeout does.
        if self.is_aborted():
            raise RunAbortedError(
                "The fit was stopped by its client; see the error that the client raised."
            )
        if self.is_renewed():
            raise GenerationError(RENEWED_MESSAGE)
        if time.monotonic() - since > self.timeout:
            raise WaitTimeoutError(
                f"Received nothing from {source} for {self.timeout:g} s. Is a worker stopped or "
                "overloaded? Check the workers' logs, or raise the limit with "
                'dask.config.set({"daskml_dist.timeout": seconds}).'
            )


#: Merges the arrays of a higher rank into a lower rank's; takes and returns lists of arrays.
Merge = Callable[[Arrays, Arrays], Arrays]


class Communicator(ABC):
    """Collectives among all trainers of a fit, without a server; all ranks make the same calls."""

    rank: int
    size: int
    bytes_sent: int = 0
    bytes_received: int = 0
    #: Name of the transport, if all messages use the same one.
    transport: str = "one process"
    #: Whether arrays on a GPU are summed on the GPU; the same on all ranks.
    sums_on_device: bool = False

    @property
    def traffic(self) -> dict[str, int]:
        """Return this rank's bytes sent and received, by transport; callable in any thread."""
        return {self.transport: self.bytes_sent + self.bytes_received}

    @property
    def within_host(self) -> Communicator | None:
        """Return the communicator of this host's ranks; None if this rank is alone on its host."""
        return None

    # -- sums ----------------------------------------------------------------------------------

    @abstractmethod
    def allreduce(self, array: Any, out: Any = None) -> Any:
        """Return the sum of all ranks' arrays, bit-identical on all ranks."""

    def reduce_scatter(self, array: Any, bounds: list[int] | None = None) -> Any:
        """Return this rank's range of the sum of flat arrays, ``bounds[rank]:bounds[rank + 1]``."""
        return self._reduce_scatter(array, self.bounds(len(array)) if bounds is None else bounds)

    def _reduce_scatter(self, array: Any, bounds: list[int]) -> Any:
        """Return this rank's range of the sum of the ranks' arrays."""
        # Fallback for communicators without a better method: sum everything, keep the own range.
        total = self.allreduce(array, np.empty_like(array))
        return total[bounds[self.rank] : bounds[self.rank + 1]].copy()

    def bounds(self, n: int) -> list[int]:
        """Return the start of each rank's range of `n` elements, nearly equal in size, and `n`."""
        return [n * rank // self.size for rank in range(self.size + 1)]

    def board(
        self, n: int | None, dtype: Any, lanes: list[list[int]], in_order: bool
    ) -> SharedBuffer | None:
        """Return shared memory in which compiled loops sum gradients, or None if there is none.

        Its use counts as turns of the collectives.
        """
        return None

    # -- values of each rank --------------------------------------------------------------------

    def align(self, rank_values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a few numbers of every rank, one row per rank, once all ranks have called this.

        Unlike other calls, it may be made while other ranks have finished their work: every next
        step of a rank begins with it.
        """
        return np.stack([row for (row,) in self.allgather([rank_values])])

    def find_missing_ranks(self) -> list[int]:
        """Return the ranks that this one waits for, if they are known."""
        return []

    @abstractmethod
    def allgather(self, arrays: Arrays) -> list[Arrays]:
        """Return the arrays of every rank, by rank; shapes may differ from rank to rank."""

    @abstractmethod
    def alltoall(self, arrays: Arrays) -> Arrays:
        """Return the arrays that each rank sends to this one, by rank."""

    @abstractmethod
    def reduce(self, arrays: Arrays, merge: Merge) -> Arrays:
        """Return all ranks' arrays, merged in pairs, then pairs of pairs; the same on all ranks.

        For results that are not sums. It takes as many rounds as the number of ranks has binary
        digits. Arrays are merged in rank order, whichever rank arrives first.
        """

    @abstractmethod
    def broadcast_bytes(self, buffers: Sequence[Any] = ()) -> NDArray[np.uint8]:
        """Return the bytes of rank 0's buffers, joined, on every rank except rank 0.

        Rank 0 gets an empty array. Buffers given by other ranks are ignored.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the communicator; may be called twice."""


#: Sends arrays to a lower rank (`to`), or receives a higher rank's (`source`); all ranks call it.
SendInTree = Callable[[Arrays, int | None, int | None], Arrays]


def merge_in_pairs(
    rank: int, size: int, arrays: Arrays, merge: Merge, send_in_tree: SendInTree
) -> Arrays:
    """Merge the arrays of all ranks; rank 0 gets the result, other ranks the arrays they sent."""
    step = 1
    while step < size:
        # In round k, partners are 2^k ranks apart: the higher one sends its arrays to the lower one
        # and is done.
        place, source = rank % (2 * step), rank + step
        if place == step:
            send_in_tree(arrays, rank - step, None)
        elif place == 0 and source < size:
            arrays = merge(arrays, send_in_tree([], None, source))
        else:
            send_in_tree([], None, None)
        step *= 2
    return arrays


def find_parent(rank: int) -> int:
    """Return the rank from which this one receives rank 0's broadcast."""
    return rank & (rank - 1)


def find_children(rank: int, size: int) -> list[int]:
    """Return the ranks to which this one forwards a broadcast, most descendants first."""
    # The lowest set bit of a rank is its place in the binomial tree: it forwards to the ranks that
    # differ from it in one lower bit.
    lowest = rank & -rank if rank else 1 << size.bit_length()
    steps = [1 << k for k in reversed(range(size.bit_length())) if 1 << k < lowest]
    return [rank + step for step in steps if rank + step < size]
