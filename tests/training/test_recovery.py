"""Fits that lose workers: every row counts once, and the result is that of an undisturbed fit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait
from distributed.comm import get_address_host_port
from sklearn.metrics import log_loss

from daskml_dist import Run
from daskml_dist.compression import TopK
from daskml_dist.errors import DataLostError
from daskml_dist.linear_model import LogisticRegression, SGDClassifier
from daskml_dist.policies import POLICIES
from daskml_dist.training.dask_internals import list_workers
from daskml_dist.training.worker.lane import Lane

N_ROWS, N_PASSES = 6_000, 20
EXACT = ["sync", "allreduce", "local", "average"]


def _listens(address: str) -> bool:
    host, port = get_address_host_port(address)
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def _wait_for_three(client: Client) -> None:
    """Until three workers are there: for a moment the scheduler lists those killed just now too."""
    deadline = time.monotonic() + 30
    while not (len(workers := list_workers(client)) == 3 and all(map(_listens, workers))):
        assert time.monotonic() < deadline, workers
        time.sleep(0.05)


@pytest.fixture
def crew_client(crew: LocalCluster, assert_clean: Callable[..., None]) -> Iterator[Client]:
    """A client that finds three workers, and leaves nothing behind."""
    with Client(crew) as client:
        _wait_for_three(client)
        yield client
        assert_clean(client)


def _rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, 8))
    return X, X[:, 0] + 0.3 * rng.normal(size=N_ROWS) > 0


def _lazy() -> tuple[Any, Any]:
    X, y = _rows()
    return da.from_array(X, chunks=(600, -1)), da.from_array(y, chunks=600)


def _classifier(policy: Any, *callbacks: Any, **params: Any) -> SGDClassifier:
    params = {"max_iter": N_PASSES, "tol": None, "batch_size": 16, "run": Run(n_lanes=3)} | params
    return SGDClassifier(policy=policy, random_state=0, callbacks=list(callbacks), **params)


_calm: dict[str, SGDClassifier] = {}


def _undisturbed(policy: str) -> SGDClassifier:
    if policy not in _calm:
        _calm[policy] = _classifier(policy).fit(*_lazy())
    return _calm[policy]


def _kill(client: Client, address: str) -> None:
    (pid,) = client.run(os.getpid, workers=[address]).values()
    os.kill(pid, signal.SIGKILL)


#: Seconds after which a fit has shadows; before, it begins anew where a server is lost.
SHADOWED = 0.6


class Strike:
    """Does something to the workers, once, so many seconds after the first pass or later."""

    def __init__(self, strike: Callable[[Any], None], after: float = SHADOWED) -> None:
        self.strike = strike
        self.after = after
        self.first = float("inf")
        self.struck = False
        self.events: list[Any] = []

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.first = min(self.first, time.monotonic())
        if not self.struck and time.monotonic() - self.first >= self.after:
            self.struck = True
            self.strike(run)

    def on_generation(self, run: Any, event: Any) -> None:
        self.events.append(event)


def _victims(run: Any, role: str) -> set[str]:
    """Workers that hold only a trainer, the server, or one of each."""
    server = run.server_addresses[0]
    trainer = next(a for a in reversed(run.trainer_addresses) if a != server)
    return {"trainer": {trainer}, "server": {server}, "both": {trainer, server}}[role]


def _killer(client: Client, role: str) -> Callable[[Any], None]:
    """What kills the workers of a role."""

    def kill(run: Any) -> None:
        for address in _victims(run, role):
            _kill(client, address)

    return kill


def _unequal_columns(low: float, high: float, of: int) -> tuple[Any, Any]:
    """Rows whose columns are of sizes from 10**low to 10**high, and labels by one of them."""
    rng = da.random.default_rng(0)
    X = rng.normal(size=(300_000, 20), chunks=(30_000, -1)) * np.logspace(low, high, 20)
    return X, X[:, of] + rng.normal(size=300_000, chunks=30_000) > 0


def _loss(clf: SGDClassifier) -> float:
    X, y = _rows()
    return float(log_loss(y, clf.predict_proba(X)))


def _check(clf: SGDClassifier, policy: str) -> None:
    """Every pass counts every row once, and the result is an undisturbed fit's."""
    records = clf.history_.records
    assert [record["pass"] for record in records] == list(range(1, N_PASSES + 1))
    assert {record["rows"] for record in records} == {N_ROWS}
    calm = _undisturbed(policy)
    if policy in EXACT:
        np.testing.assert_allclose(clf.coef_, calm.coef_, rtol=1e-6)
    assert _loss(clf) == pytest.approx(_loss(calm), rel=0.01)


def _cases() -> Iterator[Any]:
    """Each policy with each role; by default, one; `chaos` kills under the others."""
    quick = {("sync", "both")}
    for policy in POLICIES:
        for role in ("both", "trainer", "server"):
            marks = [] if (policy, role) in quick else pytest.mark.slow
            yield pytest.param(policy, role, marks=marks)


def _first_of(*values: Any) -> list[Any]:
    """All values; by default, the first."""
    return [values[0], *(pytest.param(v, marks=pytest.mark.slow) for v in values[1:])]


@pytest.mark.parametrize(("policy", "role"), list(_cases()))
def test_a_killed_worker_changes_nothing(crew_client: Client, policy: str, role: str) -> None:
    strike = Strike(_killer(crew_client, role))
    clf = _classifier(policy, strike).fit(*_lazy())
    _check(clf, policy)
    assert strike.events
    assert clf.history_.extra["generations"][0]["reason"].count("was lost")
    assert clf.history_.extra["lost_rows"] == 0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("role", _first_of("both", "trainer", "server"))
def test_a_round_solver_goes_on_from_what_others_remember(crew_client: Client, role: str) -> None:
    # Enough work that the fit lasts longer than it takes to kill somebody.
    X, y = _unequal_columns(-2, 2, of=3)

    def fit(*callbacks: Any) -> LogisticRegression:
        clf = LogisticRegression(
            max_iter=60, tol=0, run=Run(n_lanes=3, deterministic=True), callbacks=list(callbacks)
        )
        return clf.fit(X, y)

    calm, strike = fit(), Strike(_killer(crew_client, role), after=0)
    clf = fit(strike)
    assert strike.events
    assert not strike.events[0].anew
    assert strike.events[0].lost_versions <= 1
    np.testing.assert_array_equal(clf.coef_, calm.coef_)
    assert clf.n_iter_ == calm.n_iter_
    records = clf.history_.records
    assert [record["pass"] for record in records] == list(range(1, len(calm.history_) + 1))
    assert {record["rows"] for record in records} == {len(X)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("role", ["both", "trainer", "server"])
def test_a_solver_in_ranges_goes_on_from_the_last_point(crew_client: Client, role: str) -> None:
    """It forgets the curvature, so it takes other steps to the same optimum."""
    X, y = _unequal_columns(-1, 1, of=10)

    def fit(*callbacks: Any) -> LogisticRegression:
        clf = LogisticRegression(
            max_iter=500, tol=1e-9, run=Run(n_lanes=3), callbacks=list(callbacks)
        )
        with dask.config.set({"daskml_dist.ranges_from": 1}):
            return clf.fit(X, y)

    calm, strike = fit(), Strike(_killer(crew_client, role), after=0.1)
    clf = fit(strike)
    assert strike.events
    assert not strike.events[0].anew
    np.testing.assert_allclose(clf.coef_, calm.coef_, atol=1e-4)
    records = clf.history_.records
    assert [record["pass"] for record in records] == list(range(1, len(records) + 1))
    assert {record["rows"] for record in records} == {len(X)}
    # Less than a fit that began anew.
    assert clf.n_iter_ < 2 * calm.n_iter_


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["allreduce", "sync", "async"])
def test_without_a_shadow_yet_the_fit_begins_anew(
    crew_client: Client, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a first pass takes longer than until there are shadows.
    monkeypatch.setattr("daskml_dist.training.client.cluster_run._SHADOW_AFTER", 60.0)
    strike = Strike(lambda run: _kill(crew_client, run.server_addresses[0]), after=0)
    clf = _classifier(policy, strike).fit(*_lazy())
    _check(clf, policy)
    assert strike.events[0].anew
    assert "begins anew" in str(strike.events[0])


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["sync", "average"])
def test_all_workers_lost_at_once(crew_client: Client, policy: str) -> None:
    def kill_all(run: Any) -> None:
        for pid in crew_client.run(os.getpid).values():
            os.kill(pid, signal.SIGKILL)

    clf = _classifier(policy, Strike(kill_all)).fit(*_lazy())
    _check(clf, policy)


@pytest.mark.slow
@pytest.mark.parametrize("most_in_memory", [2**25, 0], ids=["memory", "disk"])
def test_the_only_worker_is_lost(
    most_in_memory: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("daskml_dist.training.client.generations._MOST_SAVED", most_in_memory)
    monkeypatch.setattr("daskml_dist.training.client.cluster_run._SAVE", 0.1)
    options: dict[str, Any] = {"processes": True, "host": "127.0.0.1", "silence_logs": 50}
    sizes = []

    def kill(run: Any) -> None:
        sizes.append(sum(file.stat().st_size for file in tmp_path.rglob("images")))
        _kill(client, run.server_addresses[0])

    with (
        dask.config.set({"temporary-directory": str(tmp_path)}),
        LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=":0", **options
        ) as cluster,
        Client(cluster) as client,
    ):
        strike = Strike(kill, after=1.0)
        clf = _classifier("sync", strike, max_iter=60).fit(*_lazy())
        assert not strike.events[0].anew
        assert {record["rows"] for record in clf.history_.records} == {N_ROWS}
        calm = _classifier("sync", max_iter=60).fit(*_lazy())
    np.testing.assert_allclose(clf.coef_, calm.coef_, rtol=1e-6)
    assert (sizes[0] > 0) == (most_in_memory == 0)
    assert not list(tmp_path.rglob("images"))


@pytest.mark.slow
@pytest.mark.parametrize("n_servers", [2, 3])
def test_servers_go_back_to_a_place_that_all_know(crew_client: Client, n_servers: int) -> None:
    strike = Strike(lambda run: _kill(crew_client, run.server_addresses[1]))
    clf = _classifier("sync", strike, run=Run(n_lanes=3, n_servers=n_servers)).fit(*_lazy())
    _check(clf, "sync")
    assert not strike.events[0].anew
    assert strike.events[0].lost_versions <= 64


@pytest.mark.parametrize("policy", _first_of("async", "sync"))
def test_a_stopped_process_is_found(crew_client: Client, policy: str) -> None:
    stopped: list[int] = []

    def stop(run: Any) -> None:
        (address,) = _victims(run, "trainer")
        stopped.extend(crew_client.run(os.getpid, workers=[address]).values())
        os.kill(stopped[0], signal.SIGSTOP)

    strike = Strike(stop)
    clf = _classifier(policy, strike).fit(*_lazy())
    _check(clf, policy)
    assert "stopped answering" in str(strike.events[0])


@pytest.mark.slow
@pytest.mark.parametrize("role", ["trainer", "server", "both"])
def test_a_compressed_fit_drops_what_waits_and_goes_on(crew_client: Client, role: str) -> None:
    """No residual is applied twice; what a new generation drops hardly shows in the loss."""

    strike = Strike(_killer(crew_client, role))
    plain: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.05}
    calm = _classifier("sync", **plain).fit(*_lazy())
    clf = _classifier("sync", strike, run=Run(n_lanes=3, compression=TopK(0.2)), **plain).fit(
        *_lazy()
    )
    assert strike.events
    records = clf.history_.records
    assert [record["pass"] for record in records] == list(range(1, N_PASSES + 1))
    assert {record["rows"] for record in records} == {N_ROWS}
    assert _loss(clf) == pytest.approx(_loss(calm), rel=0.002)


def _slow_down(seconds: float) -> None:
    """Let every gradient of this process take longer."""
    make = Lane.add_gradient

    def add_gradient(self: Lane, *args: Any) -> None:
        since = time.perf_counter()
        make(self, *args)
        time.sleep(seconds)
        self._busy += time.perf_counter() - since

    Lane.add_gradient = add_gradient  # type: ignore[method-assign]


@pytest.mark.slow
def test_a_slow_worker_gives_lanes_to_others(crew_client: Client) -> None:
    def slow_down(run: Any) -> None:
        victims = list(_victims(run, "trainer"))
        crew_client.run(_slow_down, 0.02, workers=victims)

    class Stop:
        def on_generation(self, run: Any, event: Any) -> None:
            if "is slow" in str(event):
                run.stop()

    strike = Strike(slow_down)
    endless = {"run": Run(n_lanes=6), "batch_size": None, "max_iter": 10**6}
    clf = _classifier("sync", strike, Stop(), **endless).fit(*_lazy())
    assert any("is slow" in str(event) for event in strike.events)
    assert {record["rows"] for record in clf.history_.records} == {N_ROWS}
    crew_client.restart_workers(list(list_workers(crew_client)))


# --- rows ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_rows_in_the_clients_memory_are_sent_again(crew_client: Client) -> None:
    strike = Strike(lambda run: _kill(crew_client, _victims(run, "trainer").pop()))
    X, y = _rows()
    calm = _classifier("sync").fit(X, y)
    clf = _classifier("sync", strike).fit(X, y)
    assert strike.events
    assert {record["rows"] for record in clf.history_.records} == {N_ROWS}
    np.testing.assert_allclose(clf.coef_, calm.coef_, rtol=1e-6)


@pytest.mark.slow
def test_persisted_rows_are_read_again(crew_client: Client) -> None:
    X, y = (part.persist() for part in _lazy())
    wait([X, y])
    strike = Strike(lambda run: _kill(crew_client, _victims(run, "trainer").pop()))
    clf = _classifier("sync", strike).fit(X, y)
    assert strike.events
    _check(clf, "sync")


def _scattered(client: Client) -> tuple[Any, Any]:
    """Rows without a recipe, each block with one worker."""
    X, y = _rows()
    workers = sorted(list_workers(client))
    parts = []
    for number, rows in enumerate(np.array_split(np.arange(N_ROWS), 6)):
        held = client.scatter([(X[rows], y[rows])], workers=[workers[number % 3]], hash=False)[0]
        parts.append(dask.delayed(held))
    X_parts = [da.from_delayed(p[0], (1_000, 8), dtype="float64") for p in parts]
    y_parts = [da.from_delayed(p[1], (1_000,), dtype=bool) for p in parts]
    return da.concatenate(X_parts), da.concatenate(y_parts)


@pytest.mark.parametrize("policy", _first_of("allreduce", "sync", "async"))
def test_rows_lost_for_good_are_told_or_skipped(crew_client: Client, policy: str) -> None:
    for mode in ("raise", "skip"):
        _wait_for_three(crew_client)
        X, y = _scattered(crew_client)
        strike = Strike(lambda run: _kill(crew_client, _victims(run, "trainer").pop()))
        clf = _classifier(policy, strike, run=Run(on_lost_data=mode))
        if mode == "raise":
            with pytest.raises(DataLostError, match=r"persist\(\) rather than scatter"):
                clf.fit(X, y)
            continue
        clf.fit(X, y)
        # One of the two blocks may have a copy where it was used.
        lost = clf.history_.extra["lost_rows"]
        assert lost in (1_000, 2_000)
        assert clf.history_.records[0]["rows"] == N_ROWS
        assert clf.history_.records[-1]["rows"] == N_ROWS - lost
        assert clf.score(*_rows()) > 0.85
        del X, y


# --- a client that dies ----------------------------------------------------------------------


def _traces(dask_worker: Any) -> dict[str, Any]:
    """What a run leaves in a worker's process."""
    from daskml_dist.training.worker import orders

    return {
        "actors": list(dask_worker.state.actors),
        "tasks": list(dask_worker.state.tasks),
        "plugins": [name for name in dask_worker.plugins if name.startswith("daskml")],
        "orders": list(orders._orders),
        "threads": [t.name for t in threading.enumerate() if t.name.startswith("daskml")],
    }


@pytest.mark.parametrize("policy", _first_of("sync", "allreduce", "async"))
def test_a_client_that_dies_leaves_nothing(
    crew: LocalCluster, crew_client: Client, policy: str
) -> None:
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
        assert any(found["actors"] for found in crew_client.run(_traces).values())
        process.kill()
    deadline = time.monotonic() + 60
    while any(any(found.values()) for found in crew_client.run(_traces).values()):
        assert time.monotonic() < deadline, crew_client.run(_traces)
        time.sleep(0.1)
