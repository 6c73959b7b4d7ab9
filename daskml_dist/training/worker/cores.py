"""Cores of a trainer: the share of its host's processors to which it is pinned.

A system that wakes two processes at the same time may place both on one core, where each waits for
the other: trainers that exchange data at each step would lose half of their time. So each is pinned
to a share of the cores that it may use; threads of other processes and fits may use them, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from daskml_dist.comm.shared_memory import identify_machine

# File that lists the processors (hyperthreads) of a physical core.
_CORE = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@dataclass(frozen=True)
class TrainerCores:
    """Processors of a trainer, as it announces them to the others.

    Parameters
    ----------
    host : int
        Number that identifies its machine; 0 if unknown: it then shares cores with no other
        trainer.
    n_threads : int
        Compute threads.
    cores : tuple of int
        Processors that it may use.
    """

    host: int
    n_threads: int
    cores: tuple[int, ...]

    @classmethod
    def detect(cls, n_threads: int) -> TrainerCores:
        """Return the processors of the calling thread."""
        # Pinning threads is only possible on Linux.
        if not hasattr(os, "sched_getaffinity"):
            return cls(0, n_threads, ())
        return cls(identify_machine(), n_threads, tuple(sorted(os.sched_getaffinity(0))))


def choose_core_share(rank: int, trainer_cores: Sequence[TrainerCores]) -> frozenset[int]:
    """Return the processors to which a trainer is pinned; empty if it is not pinned."""
    # Only trainers of the same machine share its cores.
    own_cores = trainer_cores[rank]
    ranks = [
        r
        for r, trainer in enumerate(trainer_cores)
        if trainer.host and trainer.host == own_cores.host
    ]
    threads = [trainer_cores[r].n_threads for r in ranks]
    # If the user has assigned different processors to the trainers, these are kept.
    have_same_cores = all(trainer_cores[r].cores == own_cores.cores for r in ranks)
    if len(ranks) < 2 or not have_same_cores or sum(threads) > len(own_cores.cores):
        return frozenset()
    # Contiguous shares in rank order, in proportion to each trainer's number of threads.
    n_before = sum(threads[: ranks.index(rank)])
    cuts = [
        n * len(own_cores.cores) // sum(threads) for n in (n_before, n_before + own_cores.n_threads)
    ]
    return frozenset(_sort_by_core(own_cores.cores)[slice(*cuts)])


def _sort_by_core(processors: Sequence[int]) -> list[int]:
    """Return processors sorted so that those of one physical core are adjacent."""

    def core(processor: int) -> tuple[int, int]:
        with suppress(OSError, ValueError):
            siblings = Path(_CORE.format(processor)).read_text().replace("-", ",")
            return int(siblings.split(",")[0]), processor
        return processor, processor

    return sorted(processors, key=core)


@contextmanager
def pin_to_processors(processors: frozenset[int]) -> Iterator[None]:
    """Pin the calling thread, and the threads that it starts, to some processors."""
    processors_before: set[int] | None = None
    with suppress(OSError):  # not allowed here
        processors_before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        if processors_before is not None:
            with suppress(OSError):
                os.sched_setaffinity(0, processors_before)
