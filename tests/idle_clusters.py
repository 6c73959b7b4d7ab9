"""Clusters that cost little while no test asks them for anything.

Each session has clusters of five workers that live until its end, and what they do meanwhile takes
two tenths of a core from the tests: profiles of the workers' threads, a hundred times a second,
which nobody looks at here, a look at how late each event loop is, fifty times, and looks at the
memory of each worker by itself and by its nanny, ten times. Those of the examples, the benchmarks
and other scripts do so, as users' do.
"""

from __future__ import annotations

import dask

__all__ = ["keep_idle_clusters_quiet"]


def keep_idle_clusters_quiet() -> None:
    """Leave out, or do less often, what clusters of this process do by the clock."""
    dask.config.set(
        {
            "distributed.worker.profile.enabled": False,
            # Still far more often than the 3 s from which on Dask warns.
            "distributed.admin.tick.interval": "500ms",
            # Tests of paused workers wait for this look; no test fills a worker's memory.
            "distributed.worker.memory.monitor-interval": "500ms",
            "distributed.admin.system-monitor.interval": "5s",
        }
    )
