"""Clusters that cost little while no test asks them for anything.

Each session has a cluster that lives until its end, and what it does meanwhile takes a tenth of a
core from the tests: profiles of the workers' threads, a hundred times a second, which nobody looks
at here, and a look at how late each event loop is, fifty times. Those of the examples, the
benchmarks and other scripts do so, as users' do.
"""

from __future__ import annotations

import dask

__all__ = ["keep_idle_clusters_quiet"]


def keep_idle_clusters_quiet() -> None:
    """Leave out what clusters of this process do by the clock for the eyes of a person."""
    dask.config.set(
        {
            "distributed.worker.profile.enabled": False,
            # Still far more often than the 3 s from which on Dask warns.
            "distributed.admin.tick.interval": "500ms",
        }
    )
