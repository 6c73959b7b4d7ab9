"""A fit that outlives its workers: each has a walltime, as on a cluster with a batch system.

``python examples/walltime.py`` needs no batch system: dask-jobqueue's `LocalCluster` starts its
jobs as processes of this machine, with the options that a SLURM job would get. Each worker closes
after 30 s (give or take 5), another takes its place, and the fit goes on.

    pip install "daskml-dist[hpc]"
    python examples/walltime.py --lifetime 30 --seconds 60

On SLURM, put ``SLURMCluster(walltime="01:00:00", ...)`` in the place of `jobs` below, with a
lifetime a few minutes shorter than the walltime; docs/hpc.md has the whole recipe.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import dask
import dask.array as da
from distributed import Client

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier


def jobs(lifetime: float) -> Any:
    """Two jobs of one worker each, that close after `lifetime` seconds, give or take a sixth."""
    from dask_jobqueue.local import LocalCluster

    return LocalCluster(
        cores=1,
        processes=1,
        memory="2GB",
        worker_extra_args=[
            *("--host", "127.0.0.1", "--no-dashboard"),
            *("--lifetime", f"{lifetime}s", "--lifetime-stagger", f"{lifetime / 6}s"),
        ],
        scheduler_options={"host": "127.0.0.1", "dashboard_address": ":0"},
    )


class Watch:
    """Tells what happens to the fit, and ends it after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds

    def on_generation(self, run: Any, event: Any) -> None:
        print(event, flush=True)

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        if time.monotonic() > self.until:
            run.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lifetime", type=float, default=30.0, help="seconds of a worker")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the fit, at least")
    parser.add_argument("--policy", default="sync")
    options = parser.parse_args()
    # How soon dask-jobqueue sees that a job has ended.
    dask.config.set({"distributed.deploy.lost-worker-timeout": "2s"})
    with jobs(options.lifetime) as cluster, Client(cluster) as client:
        cluster.adapt(minimum=2, maximum=2, interval="500ms")
        client.wait_for_workers(2, timeout=60)
        X = da.random.default_rng(0).normal(size=(100_000, 20), chunks=(10_000, 20))
        y = X[:, 0] - X[:, 1] > 0
        classifier = SGDClassifier(
            policy=options.policy,
            run=Run(n_lanes=2),
            max_iter=10**6,
            tol=None,
            random_state=0,
            callbacks=[Watch(options.seconds)],
        )
        start = time.monotonic()
        classifier.fit(X, y)
        seconds = time.monotonic() - start
        rows = {record["rows"] for record in classifier.history_}
        generations = len(classifier.history_.extra["generations"])
        print(f"{classifier.n_iter_} passes in {seconds:.0f} s, each of {rows} rows")
        print(f"{generations} changes of membership; accuracy {classifier.score(X, y):.3f}")


if __name__ == "__main__":
    main()
