"""A client that dies leaves nothing on the cluster."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import pytest
from distributed import Client, LocalCluster


def _make_traces() -> Callable[..., dict[str, Any]]:
    """Return a local function, which is pickled by value.

    A worker that had to import this module would not reply meanwhile, and be evicted.
    """

    def traces(dask_worker: Any) -> dict[str, Any]:
        """Return what a run left in a worker's process."""
        import threading

        from daskml_dist.training.worker import control as orders

        return {
            "actors": list(dask_worker.state.actors),
            "tasks": list(dask_worker.state.tasks),
            "plugins": [name for name in dask_worker.plugins if name.startswith("daskml")],
            "orders": list(orders._orders),
            "threads": [t.name for t in threading.enumerate() if t.name.startswith("daskml")],
        }

    return traces


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["sync", "allreduce", "async"])
def test_a_killed_client_leaves_nothing_on_the_cluster(
    crew: LocalCluster, crew_client: Client, policy: str
) -> None:
    traces = _make_traces()
    script = f"""
    import dask.array as da, numpy as np
    from distributed import Client
    from daskml_dist.linear_model import LogisticRegression, SGDClassifier

    class Ready:
        def on_pass_end(self, run, record):
            if record["pass"] == 20:
                print("ready", flush=True)

    X = np.random.default_rng(0).normal(size=(1000, 4))
    client = Client({crew.scheduler_address!r})
    SGDClassifier(policy={policy!r}, max_iter=10**7, tol=None, callbacks=[Ready()]).fit(
        da.from_array(X, chunks=(250, -1)), da.from_array(X[:, 0] > 0, chunks=250))
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert any(found["actors"] for found in crew_client.run(traces).values())
        process.kill()
    deadline = time.monotonic() + 200
    while any(any(found.values()) for found in crew_client.run(traces).values()):
        assert time.monotonic() < deadline, crew_client.run(traces)
        time.sleep(0.1)
