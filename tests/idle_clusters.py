"""Clusters that cost little while no test uses them.

Each session has clusters of five workers that live until its end. While idle, they would take two
tenths of a core from the tests: profiles of the workers' threads (a hundred times per second, not
used here), checks of the event loops' delays (fifty times), and checks of each worker's memory by
itself and by its nanny (ten times). Clusters of the examples, the benchmarks and other scripts keep
these defaults, as users' clusters do.
"""

from __future__ import annotations

import dask

__all__ = ["keep_idle_clusters_quiet"]


def keep_idle_clusters_quiet() -> None:
    """Disable the periodic work of this process's clusters, or make it less frequent."""
    dask.config.set(
        {
            "distributed.worker.profile.enabled": False,
            # Still much shorter than the 3 s after which Dask warns.
            "distributed.admin.tick.interval": "500ms",
            # Tests of paused workers wait for this check; no test fills a worker's memory.
            "distributed.worker.memory.monitor-interval": "500ms",
            "distributed.admin.system-monitor.interval": "5s",
        }
    )
