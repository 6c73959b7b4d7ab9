"""Wall clocks of workers, scheduler and client are changed while fits run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import distributed.batched
import distributed.scheduler
import numpy as np
import pytest
from distributed import Client

from benchmarks._hosts import HostCluster, HostNetwork, network_problem
from daskml_dist.dask_internals.cluster import list_workers
from daskml_dist.linear_model import SGDClassifier
from tests.hosts.clocks import HostClocks

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4_000, 12))
Y = (X[:, 0] - X[:, 1] > 0).astype(np.int64)
#: Seconds within which heartbeats must resume: many leases, and less than Dask waits (300).
BOUND = 60.0


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[tuple[HostNetwork, HostClocks, Client]]:
    """Provide two hosts with separate clocks."""
    if problem := network_problem():
        pytest.skip(f"no network namespaces: {problem}")
    clocks = HostClocks(tmp_path)
    with HostNetwork(2) as network, HostCluster(network, environ=clocks.environ) as client:
        yield network, clocks, client


class SetClock:
    """Callback that sets a clock after the first pass, then ends the fit after some heartbeats."""

    def __init__(self, client: Client, set_clock: Callable[[], None]) -> None:
        self.client, self.set_clock = client, set_clock
        self.beats: dict[str, set[float]] = {}
        self.generations: list[str] = []
        self.deadline = 0.0

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        if not self.deadline:
            self.set_clock()
            self.deadline = time.monotonic() + BOUND
            return
        for address, worker in list_workers(self.client).items():
            self.beats.setdefault(address, set()).add(worker["last_seen"])
        if self.go_on or time.monotonic() > self.deadline:
            run.stop()

    def on_generation(self, run: Any, event: Any) -> None:
        self.generations.append(str(event))

    @property
    def go_on(self) -> bool:
        """Return whether each worker has sent some heartbeats since."""
        return bool(self.beats) and min(map(len, self.beats.values())) > 4


def fit(callback: SetClock) -> SGDClassifier:
    """Run a fit that only its callback ends."""
    rows = da.from_array(X, chunks=(500, -1)), da.from_array(Y, chunks=500)
    return SGDClassifier(
        policy="sync", max_iter=10**6, tol=None, random_state=0, callbacks=[callback]
    ).fit(*rows)


@pytest.mark.parametrize("seconds", [-3_600.0, 3_600.0], ids=["back", "forward"])
def test_changing_the_clock_of_a_worker_loses_nothing(
    two_hosts: tuple[HostNetwork, HostClocks, Client], seconds: float, assert_clean: Any
) -> None:
    """Its heartbeats continue, so that neither the fit nor the scheduler considers it lost."""
    network, clocks, client = two_hosts
    callback = SetClock(client, lambda: clocks.put_ahead(network.hosts[1], seconds))
    clf = fit(callback)
    assert callback.go_on
    assert callback.generations == []
    assert clf.score(X, Y) > 0.9
    assert_clean(client)


@pytest.mark.parametrize("seconds", [-3_600.0, 3_600.0], ids=["back", "forward"])
def test_changing_the_clock_of_scheduler_and_client_loses_nothing(
    two_hosts: tuple[HostNetwork, HostClocks, Client],
    seconds: float,
    monkeypatch: pytest.MonkeyPatch,
    assert_clean: Any,
) -> None:
    """Both are in this process, whose messages continue."""
    _, _, client = two_hosts
    wall = time.time

    def shift() -> None:
        # Modules of Dask hold references to the function.
        for module in (time, distributed.batched, distributed.scheduler):
            monkeypatch.setattr(module, "time", lambda: wall() + seconds)

    callback = SetClock(client, shift)
    clf = fit(callback)
    assert callback.go_on
    assert callback.generations == []
    assert clf.score(X, Y) > 0.9
    assert_clean(client)
