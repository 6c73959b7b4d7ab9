"""Workers of the tests' clusters, forked from one process that has imported what they need.

A worker that is spawned imports Dask, pandas and this package, which takes longer than most tests
that want one. Those of the examples, the benchmarks and other scripts are spawned, as users' are.
"""

from __future__ import annotations

import multiprocessing
import sys

import dask
import distributed.utils

__all__ = ["fork_workers"]

#: What most workers import sooner or later. The package's compiled loops are not among it: which of
#: them are loaded when is under test.
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
    """Let nannies fork their workers, of a process that the first of them starts."""
    if sys.platform != "linux":
        return  # libraries of other systems do not bear it
    multiprocessing.get_context("forkserver").set_forkserver_preload(_IMPORTED)
    # Else Dask would put its own list in place of this one.
    distributed.utils._forkserver_preload_set = True
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
