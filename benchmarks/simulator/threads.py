"""Cores that update one array: without locks, and under locks (Recht et al. 2011).

Simulated is the time of memory operations, not of arithmetic: if a core reads or writes data that
another core wrote, it must fetch them from that core's cache. Which coordinates collide is drawn,
not assumed: rows touch features by Zipf's law, like words.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["SCHEMES", "Memory", "updates_per_second"]

_Row = NDArray[np.int64]


@dataclass(frozen=True)
class Memory:
    """Seconds of memory operations, about those of current server processors.

    Parameters
    ----------
    write : float
        Adding to a coordinate in the core's own cache.
    line : float
        Fetching a coordinate from another core's cache.
    overlap : float
        Number of concurrent fetches; locks are taken one after the other.
    atomic : float
        Taking and releasing a free lock.
    """

    write: float = 2e-9
    line: float = 100e-9
    overlap: float = 8.0
    atomic: float = 10e-9


class _Array:
    """Coordinates: the core that wrote each last, and until when its lock is held."""

    def __init__(self, n_features: int, memory: Memory) -> None:
        self.writer = np.full(n_features, -1)
        self.free = np.zeros(n_features)
        self.memory = memory
        self.lock_free = 0.0
        self.lock_owner = -1

    def misses(self, core: int, row: _Row) -> int:
        """Return the number of coordinates of a row that another core wrote last."""
        writer = self.writer[row]
        return int(np.count_nonzero((writer >= 0) & (writer != core)))

    def fetch(self, core: int, row: _Row) -> float:
        """Return the time to fetch a row's coordinates into the core's cache."""
        return self.misses(core, row) * self.memory.line / self.memory.overlap

    def write(self, core: int, row: _Row) -> float:
        """Return the time to write a row's coordinates."""
        seconds = self.fetch(core, row) + len(row) * self.memory.write
        self.writer[row] = core
        return seconds


def _lock_free(array: _Array, core: int, row: _Row, now: float) -> float:
    """Return the end of an update by HOGWILD!: write without locks."""
    return now + array.write(core, row)


def _lock_each(array: _Array, core: int, row: _Row, now: float) -> float:
    """Return the end of an update by AIG: lock the coordinates in order, write, unlock."""
    memory = array.memory
    # A lock is beside its coordinate: both are fetched together.
    seconds = array.misses(core, row) * memory.line
    seconds += len(row) * (memory.atomic + memory.write)
    array.writer[row] = core
    end = max(now, float(array.free[row].max())) + seconds
    array.free[row] = end
    return end


def _lock_all(array: _Array, core: int, row: _Row, now: float) -> float:
    """Return the end of an update with one lock around the write."""
    start = max(now, array.lock_free) + array.memory.atomic
    if array.lock_owner not in (-1, core):
        start += array.memory.line
    array.lock_owner = core
    array.lock_free = start + array.write(core, row)
    return array.lock_free


#: Update schemes: (array, core, row, time when its gradient is ready) -> time of its end.
SCHEMES: dict[str, Callable[[_Array, int, _Row, float], float]] = {
    "lock-free": _lock_free,
    "one lock per coordinate": _lock_each,
    "one lock": _lock_all,
    # Round robin (RR): one lock that passes from core to core in order.
    "round-robin": _lock_all,
}


def updates_per_second(
    scheme: str,
    cores: int,
    gradient: float,
    *,
    memory: Memory = Memory(),
    n_features: int = 47_236,
    nnz: int = 76,
    updates: int = 2_000,
    seed: int = 0,
) -> float:
    """Return the updates per second of some cores.

    Parameters
    ----------
    scheme : str
        A key of ``SCHEMES``.
    cores : int
    gradient : float
        Seconds to compute one gradient, without waiting for memory.
    memory : Memory
    n_features, nnz : int
        The defaults are those of RCV1.
    updates : int
    seed : int

    Returns
    -------
    float
    """
    rng = np.random.default_rng(seed)
    rows = _rows(rng, n_features, nnz, min(updates, 499))
    array, update = _Array(n_features, memory), SCHEMES[scheme]
    # Rows differ in length.
    noise = rng.uniform(0.5, 1.5, updates).tolist()
    ready = [(gradient * (1 + core / cores), core) for core in range(cores)]
    heapq.heapify(ready)
    end = 0.0
    for k in range(updates):
        now, core = (
            _next_turn(ready, k % cores) if scheme == "round-robin" else heapq.heappop(ready)
        )
        end = update(array, core, rows[k % len(rows)], now)
        seconds = gradient * noise[k] + array.fetch(core, rows[(k + cores) % len(rows)])
        heapq.heappush(ready, (end + seconds, core))
    return float(updates / end)


def _next_turn(ready: list[tuple[float, int]], core: int) -> tuple[float, int]:
    """Return the gradient of the core whose turn it is, ready or not."""
    entry = next(one for one in ready if one[1] == core)
    ready.remove(entry)
    heapq.heapify(ready)
    return entry


def _rows(rng: np.random.Generator, n_features: int, nnz: int, count: int) -> list[_Row]:
    # The most frequent words are not used as features: Zipf-Mandelbrot.
    weight = 1 / (20 + np.arange(n_features))
    drawn = rng.choice(n_features, size=(count, nnz), p=weight / weight.sum())
    return [np.unique(row) for row in drawn]
