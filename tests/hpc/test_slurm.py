"""Fits on a real Slurm: jobs cancelled, at their walltime, with lifetimes, and as many as needed.

Each test starts its own Slurm of one node, and is skipped where Slurm's programs are not here.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier
from tests.docs.blocks import PAGES, blocks
from tests.hpc.slurm_node import MISSING, run, slurm_node

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(280),
    pytest.mark.skipif(bool(MISSING), reason=f"no Slurm here: no {', '.join(MISSING)}"),
]

N_ROWS = 20_000
#: Passes that last long enough for jobs to come in the place of others.
LONG = {"max_iter": 400, "batch_size": 50}

#: Settings of the page's recipe for a large cluster, and their replacements on one node.
SMALLER = {
    "cores=8": "cores=1",
    'memory="32GB"': 'memory="1GB"',
    'walltime="01:00:00"': 'walltime="00:02:00"',
    'interface="ib0"': 'interface="lo", scheduler_options={"dashboard_address": "127.0.0.1:0"}',
    '"--lifetime", "55m"': '"--no-dashboard", "--lifetime", "25s"',
    '"--lifetime-stagger", "4m"': '"--lifetime-stagger", "5s"',
    "minimum_jobs=8, maximum_jobs=8": "minimum_jobs=2, maximum_jobs=2",
    "/scratch/me/": "",
    "n_lanes=64": "n_lanes=2",
    "max_iter=200": "max_iter=10**6, tol=None, callbacks=[until]",
}


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provide a one-node Slurm in a short temporary folder, which is the working directory."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)  # munged requires that its socket is accessible to all
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=":")
    quick = {"distributed.deploy.lost-worker-timeout": "2s"}
    try:
        with dask.config.set(quick), slurm_node(folder / "s"):
            yield folder
        assert not run("squeue", "-h")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _cluster(**options: Any) -> Iterator[tuple[Any, Client]]:
    jobqueue = pytest.importorskip("dask_jobqueue")
    cluster = jobqueue.SLURMCluster(
        queue="batch",
        **{"cores": 1, "processes": 1, "memory": "1GB", "walltime": "00:05:00"} | options,
        interface="lo",
        worker_extra_args=["--no-dashboard"],
        scheduler_options={"dashboard_address": "127.0.0.1:0"},
    )
    with cluster, Client(cluster) as client:
        yield cluster, client


def _rows() -> tuple[Any, Any]:
    X = da.random.default_rng(0).normal(size=(N_ROWS, 8), chunks=(N_ROWS // 10, 8))
    return X, X[:, 0] - X[:, 1] > 0


class _Until:
    """Callback that ends a fit once a condition on its generations holds after a pass."""

    def __init__(
        self,
        true: Callable[[list[Any]], bool],
    ) -> None:
        self.events: list[Any] = []
        self._true = true

    def on_generation(self, run: Any, event: Any) -> None:
        self.events.append(event)

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        if self._true(self.events):
            run.stop()


def _classifier(*callbacks: Any, **params: Any) -> SGDClassifier:
    params = {"max_iter": 40, "batch_size": 200} | params
    return SGDClassifier(
        policy="sync",
        run=Run(n_lanes=2),
        tol=None,
        random_state=0,
        callbacks=list(callbacks),
        **params,
    )


def _wait(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _n_workers(client: Client) -> int:
    return len(client.scheduler_info(n_workers=-1)["workers"])


def test_cancelled_jobs_change_nothing(slurm: Path, user_log: pytest.LogCaptureFixture) -> None:
    """Of two jobs one is cancelled, and then the one that has taken its place, or the other."""
    X, y = _rows()
    cancelled: list[str] = []
    with _cluster() as (cluster, client):
        cluster.adapt(minimum_jobs=2, maximum_jobs=2, interval="200ms")
        client.wait_for_workers(2, timeout=60)
        user_log.handler.setLevel(logging.WARNING)  # which the cluster has made an error's

        def cancel(events: list[Any]) -> bool:
            if len(cancelled) < 2 and len(events) >= len(cancelled) and _n_workers(client) == 2:
                cancelled.append(run("squeue", "-h", "-o", "%i", "--sort=i").split()[0])
                run("scancel", cancelled[-1])
                _wait(lambda: _n_workers(client) < 2)
            return False

        undisturbed = _classifier(**LONG).fit(X, y)
        until = _Until(cancel)
        struck = _classifier(until, **LONG).fit(X, y)
    reasons = [event.reason for event in until.events]
    assert len(set(cancelled)) == 2
    for job in cancelled:
        assert any(f"job {job} of Slurm was cancelled" in reason for reason in reasons), reasons
        assert f"job {job} of Slurm was cancelled" in user_log.text
    assert {record["rows"] for record in struck.history_} == {N_ROWS}
    np.testing.assert_array_equal(struck.coef_, undisturbed.coef_)


def test_a_walltime_error_names_all_workers(
    slurm: Path, user_log: pytest.LogCaptureFixture
) -> None:
    """Slurm checks limits twice a minute, and ends both jobs simultaneously."""
    with _cluster(walltime="00:01:00") as (cluster, client):
        cluster.adapt(minimum_jobs=2, maximum_jobs=2, interval="200ms")
        client.wait_for_workers(2, timeout=60)
        user_log.handler.setLevel(logging.WARNING)
        addresses = set(client.scheduler_info(n_workers=-1)["workers"])
        until = _Until(lambda events: any("walltime" in event.reason for event in events))
        X, y = _rows()
        fitted = _classifier(until, max_iter=10**6).fit(X, y)
    reasons = "\n".join(event.reason for event in until.events)
    assert all(address in reasons for address in addresses)
    assert "of Slurm reached the walltime of 00:01:00" in reasons
    assert {record["rows"] for record in fitted.history_} == {N_ROWS}
    assert "Time limit exhausted for JobId=1" in (slurm / "s" / "slurmctld.log").read_text()
    warnings = [m for m in user_log.messages if "--lifetime" in m]
    assert warnings
    assert all(any(address in message for message in warnings) for address in addresses)


def test_no_worker_is_kept_where_none_is_needed(slurm: Path) -> None:
    with _cluster() as (cluster, _):
        cluster.adapt(minimum=0, maximum=2, interval="200ms", wait_count=2)
        assert not run("squeue", "-h")
        X, y = _rows()
        fitted = _classifier().fit(X, y)
        assert run("squeue", "-h")
        _wait(lambda: not run("squeue", "-h"))
        refitted = _classifier().fit(X, y)
    np.testing.assert_allclose(refitted.coef_, fitted.coef_, rtol=1e-9)


def test_the_recipe_of_the_page(slurm: Path) -> None:
    """Line by line, with other numbers; workers go by their lifetimes, before Slurm ends them."""
    pytest.importorskip("dask_jobqueue")
    (recipe,) = blocks(PAGES["docs/hpc.md"], "python")
    code = recipe.code
    for large, small in SMALLER.items():
        assert code.count(large) == 1, large
        code = code.replace(large, small)
    names: dict[str, Any] = dict(zip("Xy", _rows(), strict=True))
    names["until"] = until = _Until(lambda events: sum("leaving" in e.reason for e in events) > 1)
    try:
        exec(compile(code, "docs/hpc.md", "exec"), names)
    finally:
        for name in ("client", "cluster"):
            if name in names:
                names[name].close()
    assert until.events
    assert {record["rows"] for record in names["clf"].history_} == {N_ROWS}
    assert Path("fit.npz").exists() or list(slurm.glob("fit*"))
    assert "Time limit exhausted" not in (slurm / "s" / "slurmctld.log").read_text()
