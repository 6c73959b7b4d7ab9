"""Workers of the tests' clusters, forked from one process that has imported their packages.

A spawned worker imports Dask, pandas and this package, which takes longer than most tests that need
one. Workers of the examples, the benchmarks and other scripts are spawned, as users' workers are.
"""

from __future__ import annotations

import multiprocessing
import sys

import dask
import distributed.utils

__all__ = ["fork_workers"]

#: Modules that most workers import at some time. The package's compiled loops are not included:
#: tests check which of them are loaded when.
_IMPORTED = [
    "distributed.http.worker",
    "distributed.nanny",
    "distributed.shuffle",
    "dask.array",
    "dask.dataframe",
    "tests.numba_at_work",
    "pyarrow.parquet",
    "scipy.sparse",
    "daskml_dist.cluster",
    "daskml_dist.linear_model",
    "daskml_dist.metrics",
    "daskml_dist.preprocessing",
    "daskml_dist.training",
    "daskml_dist.training.worker.host",
    "daskml_dist.training.worker.trainer",
    "tests.frozen",  # last
]


def fork_workers() -> None:
    """Let nannies fork their workers from a process that the first of them starts."""
    if sys.platform != "linux":
        return  # libraries of other systems do not support forks
    multiprocessing.get_context("forkserver").set_forkserver_preload(_IMPORTED)
    # Otherwise Dask would replace this list by its own.
    distributed.utils._forkserver_preload_set = True
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
