"""All-reduces by MPI, a rank a process: ``mpirun -n 2 python -m benchmarks._transport_mpi PLAN``.

PLAN is a JSON list of (number of float32 elements, repetitions). Rank 0 prints its microseconds as
JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np

#: Number of repetitions, whose median counts, as for the other ways.
REPEATS = 5


def measure(plan: list[tuple[int, int]]) -> list[float]:
    """Return the median microseconds of an in-place all-reduce, for each size of the plan."""
    from mpi4py import MPI

    world, found = MPI.COMM_WORLD, []
    for n, times in plan:
        array = np.zeros(n, np.float32)
        for _ in range(5):
            world.Allreduce(MPI.IN_PLACE, array)
        taken = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            for _ in range(times):
                world.Allreduce(MPI.IN_PLACE, array)
            taken.append((time.perf_counter() - start) / times * 1e6)
        found.append(statistics.median(taken))
    return found if world.rank == 0 else []


if __name__ == "__main__":
    if measured := measure(json.loads(sys.argv[1])):
        print(json.dumps(measured), flush=True)
