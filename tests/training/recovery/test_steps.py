"""Step fits that lose workers count every row once and equal an undisturbed fit."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

from daskml_dist import Run
from daskml_dist.compression import EF21, OneBit, TopK
from daskml_dist.dask_internals.cluster import list_workers
from daskml_dist.policies import POLICIES, FederatedAveraging, LocalSGD
from daskml_dist.training.client import membership
from daskml_dist.training.worker.lane import Lane
from tests.training.recovery.strikes import (
    EXACT,
    N_PASSES,
    N_ROWS,
    Strike,
    check_fit,
    first_of,
    hold_lock,
    kill_worker,
    lazy_rows,
    lazy_sparse_rows,
    loss_on_rows,
    make_classifier,
    make_strike,
    release_lock,
    workers_of,
)


def _cases() -> Iterator[Any]:
    """Return each policy with each role; one by default, since `chaos` covers the others."""
    quick = {("sync", "both")}
    for policy in POLICIES:
        for role in ("both", "trainer", "server"):
            marks = [] if (policy, role) in quick else pytest.mark.slow
            yield pytest.param(policy, role, marks=marks)


@pytest.mark.parametrize(("policy", "role"), list(_cases()))
def test_a_killed_worker_changes_nothing(crew_client: Client, policy: str, role: str) -> None:
    strike = make_strike(crew_client, role)
    clf = make_classifier(policy, strike).fit(*lazy_rows())
    check_fit(clf, policy)
    assert strike.events
    assert clf.history_.extra["generations"][0]["reason"].count("was lost")
    assert clf.history_.extra["lost_rows"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("policy", EXACT)
def test_a_killed_worker_changes_nothing_of_sparse_rows(crew_client: Client, policy: str) -> None:
    """Batches of touched coefficients, and single rows where lanes step alone."""
    passes = N_PASSES * (6 if policy in ("local", "average") else 2)
    params: dict[str, Any] = {"batch_size": "auto", "max_iter": passes}
    undisturbed = make_classifier(policy, **params).fit(*lazy_sparse_rows())
    strike = make_strike(crew_client, "trainer")
    struck = make_classifier(policy, strike, **params).fit(*lazy_sparse_rows())
    assert strike.events
    np.testing.assert_array_equal(struck.coef_, undisturbed.coef_)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outer", "compression"), [("nesterov", None), ("nesterov", "8bit"), ("adam", None)]
)
def test_outer_steps_resume_with_their_momentum(
    outer: str, compression: str | None, crew_client: Client
) -> None:
    """Also from the residuals that lanes had not sent yet."""
    policy = LocalSGD(7, outer=outer, outer_momentum=0.5)
    params = {"run": Run(n_lanes=3, compression=compression)}
    undisturbed = make_classifier(policy, **params).fit(*lazy_rows())
    strike = make_strike(crew_client, "trainer")
    struck = make_classifier(policy, strike, **params).fit(*lazy_rows())
    assert strike.events
    np.testing.assert_array_equal(struck.coef_, undisturbed.coef_)


@pytest.mark.parametrize("case", first_of((None, "trainer"), ("adam", "server"), ("muon", "both")))
def test_a_killed_worker_changes_no_round_of_clients(crew_client: Client, case: Any) -> None:
    """Neither the sampled clients nor any bit."""
    outer, role = case
    policy = FederatedAveraging(0.4, local_epochs=2, proximal=0.1, outer=outer)
    params: dict[str, Any] = {"run": Run(deterministic=True), "max_iter": 8}
    undisturbed = make_classifier(policy, **params).fit(*lazy_rows())
    strike = make_strike(crew_client, role)
    struck = make_classifier(policy, strike, **params).fit(*lazy_rows())
    assert strike.events
    np.testing.assert_array_equal(struck.coef_, undisturbed.coef_)
    for key in ("clients", "rows"):
        assert [r[key] for r in struck.history_] == [r[key] for r in undisturbed.history_]


@pytest.mark.slow
@pytest.mark.parametrize(
    "compression",
    [TopK(0.2), OneBit(4, momentum=0.5), EF21(0.2, momentum=0.5)],
    ids=lambda compression: compression.name,
)
def test_a_compressed_allreduce_resumes_with_residuals(
    compression: Any, crew_client: Client
) -> None:
    params = {"run": Run(n_lanes=3, compression=compression, deterministic=True)}
    undisturbed = make_classifier("allreduce", **params).fit(*lazy_rows())
    strike = make_strike(crew_client, "trainer")
    struck = make_classifier("allreduce", strike, **params).fit(*lazy_rows())
    assert strike.events
    np.testing.assert_array_equal(struck.coef_, undisturbed.coef_)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["allreduce", "sync", "async"])
def test_the_fit_restarts_if_there_is_no_standby_yet(
    crew_client: Client, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine standbys may exist before the first pass ends.
    monkeypatch.setattr("daskml_dist.training.client.cluster_run._STANDBY_AFTER", 60.0)
    strike = Strike(lambda run: kill_worker(crew_client, run.server_addresses[0]), after=0)
    clf = make_classifier(policy, strike).fit(*lazy_rows())
    check_fit(clf, policy)
    assert strike.events[0].restarted
    assert "starts again" in str(strike.events[0])


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["sync", "average"])
def test_a_fit_survives_the_simultaneous_loss_of_all_workers(
    crew_client: Client, policy: str
) -> None:
    def kill_all(run: Any) -> None:
        for pid in crew_client.run(os.getpid).values():
            os.kill(pid, signal.SIGKILL)

    clf = make_classifier(policy, Strike(kill_all)).fit(*lazy_rows())
    check_fit(clf, policy)


@pytest.mark.slow
@pytest.mark.parametrize("most_in_memory", [2**25, 0], ids=["memory", "disk"])
def test_a_fit_survives_the_loss_of_its_only_worker(
    most_in_memory: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("daskml_dist.training.client.generations._MOST_SAVED", most_in_memory)
    monkeypatch.setattr("daskml_dist.training.client.cluster_run._SAVE", 0.1)
    options: dict[str, Any] = {"processes": True, "host": "127.0.0.1", "silence_logs": 50}
    sizes = []

    def kill(run: Any) -> None:
        sizes.append(sum(file.stat().st_size for file in tmp_path.rglob("snapshots")))
        kill_worker(client, run.server_addresses[0])

    with (
        dask.config.set({"temporary-directory": str(tmp_path)}),
        LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=":0", **options
        ) as cluster,
        Client(cluster) as client,
    ):
        strike = Strike(kill, after=1.0)
        clf = make_classifier("sync", strike, max_iter=60).fit(*lazy_rows())
        assert not strike.events[0].restarted
        assert {record["rows"] for record in clf.history_.records} == {N_ROWS}
        undisturbed = make_classifier("sync", max_iter=60).fit(*lazy_rows())
    np.testing.assert_allclose(clf.coef_, undisturbed.coef_, rtol=1e-6)
    assert (sizes[0] > 0) == (most_in_memory == 0)
    assert not list(tmp_path.rglob("snapshots"))


@pytest.mark.slow
@pytest.mark.parametrize("n_servers", [2, 3])
def test_servers_return_to_a_common_snapshot(crew_client: Client, n_servers: int) -> None:
    strike = Strike(lambda run: kill_worker(crew_client, run.server_addresses[1]))
    clf = make_classifier("sync", strike, run=Run(n_lanes=3, n_servers=n_servers)).fit(*lazy_rows())
    check_fit(clf, "sync")
    assert not strike.events[0].restarted
    assert strike.events[0].lost_versions <= 64


@pytest.mark.slow  # chaos also stops processes
@pytest.mark.parametrize("policy", ["async", "sync"])
def test_a_stopped_process_is_replaced(crew_client: Client, policy: str) -> None:
    stopped: list[int] = []

    def stop(run: Any) -> None:
        (address,) = workers_of(run, "trainer")
        stopped.extend(crew_client.run(os.getpid, workers=[address]).values())
        os.kill(stopped[0], signal.SIGSTOP)

    strike = Strike(stop)
    clf = make_classifier(policy, strike).fit(*lazy_rows())
    check_fit(clf, policy)
    assert "stopped answering" in str(strike.events[0])


@pytest.mark.slow
@pytest.mark.parametrize("role", ["trainer", "server"])
def test_a_busy_worker_is_not_lost(
    crew_client: Client, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the GIL until it was found busy, and again afterwards."""
    flag = tmp_path / "flag"
    flag.write_bytes(b"\0")
    signs: list[membership.Sign] = []
    find = membership._find_sign

    async def find_sign(*args: Any) -> membership.Sign:
        signs.append(sign := await find(*args))
        if signs.count(membership.Sign.BUSY) > 1:
            release_lock(flag)
        return sign

    monkeypatch.setattr(membership, "_find_sign", find_sign)
    holding: list[threading.Thread] = []

    def hold(run: Any) -> None:
        (address,) = workers_of(run, role)
        holding.append(
            threading.Thread(
                target=crew_client.run, args=(hold_lock, str(flag)), kwargs={"workers": [address]}
            )
        )
        holding[0].start()

    strike = Strike(hold)
    with dask.config.set({"daskml_dist.lease": 1.0}):
        clf = make_classifier("sync", strike).fit(*lazy_rows())
    holding[0].join()
    check_fit(clf, "sync")
    assert signs.count(membership.Sign.BUSY) > 1
    assert not strike.events


@pytest.mark.slow
@pytest.mark.parametrize("role", ["trainer", "server", "both"])
def test_an_asynchronous_compressed_fit_drops_residuals_and_resumes(
    crew_client: Client, role: str
) -> None:
    """No residual is applied twice; dropping the old generation's hardly changes the loss."""

    strike = make_strike(crew_client, role)
    plain: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.05}
    undisturbed = make_classifier("sync", **plain).fit(*lazy_rows())
    clf = make_classifier("sync", strike, run=Run(n_lanes=3, compression=TopK(0.2)), **plain).fit(
        *lazy_rows()
    )
    assert strike.events
    records = clf.history_.records
    assert [record["pass"] for record in records] == list(range(1, N_PASSES + 1))
    assert {record["rows"] for record in records} == {N_ROWS}
    assert loss_on_rows(clf) == pytest.approx(loss_on_rows(undisturbed), rel=0.002)


def _slow_down(seconds: float) -> None:
    """Slow every gradient of this process down."""
    make = Lane.add_gradient

    def add_gradient(self: Lane, *args: Any) -> None:
        since = time.perf_counter()
        make(self, *args)
        time.sleep(seconds)
        self._busy += time.perf_counter() - since

    Lane.add_gradient = add_gradient  # type: ignore[method-assign]


@pytest.mark.slow
def test_lanes_of_a_slow_worker_move_to_others(crew_client: Client) -> None:
    def slow_down(run: Any) -> None:
        victims = list(workers_of(run, "trainer"))
        crew_client.run(_slow_down, 0.02, workers=victims)

    class Stop:
        def on_generation(self, run: Any, event: Any) -> None:
            if "is slow" in str(event):
                run.stop()

    strike = Strike(slow_down)
    endless = {"run": Run(n_lanes=6), "batch_size": None, "max_iter": 10**6}
    clf = make_classifier("sync", strike, Stop(), **endless).fit(*lazy_rows())
    assert any("is slow" in str(event) for event in strike.events)
    assert {record["rows"] for record in clf.history_.records} == {N_ROWS}
    crew_client.restart_workers(list(list_workers(crew_client)))
