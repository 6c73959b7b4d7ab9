"""Fits on a real cluster report their passes, clean up, and never hang."""

from __future__ import annotations

import asyncio
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, Security
from scipy import sparse

from daskml_dist import Run
from daskml_dist.errors import InvalidDataError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.policies import POLICIES, BoundedStaleness, Synchronous
from daskml_dist.training.client import run_actors
from daskml_dist.training.client.cluster_rows import ClusterRows
from daskml_dist.training.client.run_actors import RunActors, WorkerUnreachableError
from tests.quick import quick

N_ROWS = 2_000


def _rows(n_rows: int = N_ROWS) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 8))
    return X, X[:, 0] + 0.3 * rng.normal(size=n_rows) > 0


def _lazy(n_rows: int = N_ROWS, blocks: int = 5) -> tuple[Any, Any]:
    X, y = _rows(n_rows)
    size = -(-n_rows // blocks)
    return da.from_array(X, chunks=(size, -1)), da.from_array(y, chunks=size)


def _endless(policy: Any, *callbacks: Any) -> SGDClassifier:
    """Estimator whose fit ends only if stopped from outside, or by the test's timeout."""
    return SGDClassifier(
        policy=policy,
        max_iter=10**6,
        tol=None,
        batch_size=64,
        random_state=0,
        callbacks=list(callbacks),
    )


@pytest.mark.parametrize("policy", quick(POLICIES, "sync", "allreduce", "async", "local"))
def test_every_pass_counts_every_row_once(client: Client, policy: str) -> None:
    X, y = _lazy()
    clf = SGDClassifier(policy=policy, max_iter=4, tol=None, random_state=0).fit(X, y)
    assert [record["pass"] for record in clf.history_.records] == [1, 2, 3, 4]
    assert all(record["rows"] == N_ROWS for record in clf.history_.records)
    assert clf.score(X, y) > 0.85
    assert clf.history_.extra["policy"] == policy


def test_backup_workers_report_the_rows_that_they_drop(client: Client) -> None:
    X, y = _lazy()
    clf = SGDClassifier(policy=Synchronous(backup_workers=1), max_iter=3, tol=None, random_state=0)
    clf.fit(X, y)
    assert all(0 < record["rows"] <= N_ROWS for record in clf.history_.records)
    assert clf.score(X, y) > 0.8


@pytest.mark.parametrize("bound", [0, 2])
def test_staleness_stays_within_the_bound(client: Client, bound: int) -> None:
    clf = SGDClassifier(policy=BoundedStaleness(bound), max_iter=5, tol=None, batch_size=16)
    clf.fit(*_lazy())
    # Between a lane's pull and push each other lane may push up to 2 * bound + 1 times.
    n_lanes = clf.history_.extra["n_lanes"]
    largest = max(record["staleness_max"] for record in clf.history_.records)
    assert largest <= (n_lanes - 1) * (2 * bound + 1)


def test_all_workers_of_one_process_forget_a_run() -> None:
    def list_plugins(dask_worker: Any) -> list[str]:
        return [name for name in dask_worker.plugins if name.startswith("daskml-")]

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        SGDClassifier(max_iter=2, tol=None, run=Run(n_lanes=2)).fit(*_lazy())
        deadline = time.monotonic() + 100
        while any((left := client.run(list_plugins)).values()):
            assert time.monotonic() < deadline, left
            time.sleep(0.01)


@pytest.mark.parametrize("policy", quick(POLICIES, "sync", "local"))
def test_early_stopping_scores_each_pass(client: Client, policy: str) -> None:
    clf = SGDClassifier(policy=policy, early_stopping=True, max_iter=8, random_state=0)
    clf.fit(*_lazy())
    assert all(0.5 < record["val_score"] <= 1 for record in clf.history_.records)
    assert clf.history_.records[0]["rows"] == round(0.9 * N_ROWS)


def test_persisted_rows_are_summarised_together_if_they_fit_in_memory(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def widen(rows: Any) -> Any:
        rows = sparse.csr_matrix(rows)
        rows.resize(rows.shape[0], 2**16)
        return rows

    waves: list[int] = []
    inspect = ClusterRows._make_and_inspect
    monkeypatch.setattr(
        ClusterRows, "_make_and_inspect", lambda *args: (waves.append(len(args[1])), inspect(*args))
    )
    X, y = _lazy(blocks=10)
    # Dask estimates the size of sparse rows by their dense shape.
    X, y = client.persist([X.map_blocks(widen, chunks=(X.chunks[0], (2**16,))), y])
    run = Run(memory_budget="50 MB")  # a budget that the rows would exceed if dense
    SGDClassifier(max_iter=1, tol=None, random_state=0, batch_size=N_ROWS, run=run).fit(X, y)
    assert waves == [10]


def test_sparse_rows_are_streamed(client: Client) -> None:
    X, y = _lazy(blocks=10)
    X, y = client.persist([X.map_blocks(sparse.csr_matrix), y])
    run = Run(memory_budget=25_000)
    clf = SGDClassifier(max_iter=2, tol=None, random_state=0, run=run).fit(X, y)
    assert clf.history_.extra["streamed"]
    assert [record["rows"] for record in clf.history_.records] == [N_ROWS, N_ROWS]


class Watch:
    """Callback that records its arguments."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.run: Any = None

    def on_fit_begin(self, run: Any) -> None:
        self.run = run
        self.events.append("begin")

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.events.append(f"pass {record['pass']}")
        if record["pass"] == 3:
            run.stop()

    def on_fit_end(self, run: Any) -> None:
        self.events.append("end")


@pytest.mark.parametrize("policy", ["sync", "allreduce", "async"])
def test_callbacks_receive_the_run_and_may_stop_it(client: Client, policy: str) -> None:
    watch = Watch()
    clf = _endless(policy, watch).fit(*_lazy())
    assert watch.events == ["begin", *(f"pass {i + 1}" for i in range(clf.n_iter_)), "end"]
    workers = client.scheduler_info(n_workers=-1)["workers"]
    assert set(watch.run.trainer_addresses) <= set(workers)
    assert set(watch.run.server_addresses) <= set(workers)
    assert watch.run.server_addresses


class Fail:
    """Callback that raises at the end of a pass."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        raise self.error


class Pruned(Exception):
    """Stand-in for `optuna.TrialPruned`, which a study recognises by its type."""


@pytest.mark.parametrize("policy", quick(POLICIES, "sync", "allreduce", "async", "local"))
def test_a_callbacks_exception_is_raised_unchanged(client: Client, policy: str) -> None:
    pruned = Pruned("oh")
    with pytest.raises(Pruned) as caught:
        _endless(policy, Fail(pruned)).fit(*_lazy())
    assert caught.value is pruned
    assert pruned.__cause__ is None
    assert pruned.__notes__ == ["raised by the callback Fail.on_pass_end"]


def test_nan_error_names_its_block(client: Client) -> None:
    X, y = _rows()
    X[1300, 2] = np.nan
    with pytest.raises(InvalidDataError, match="Block 3"):
        _endless("sync").fit(da.from_array(X, chunks=(400, -1)), da.from_array(y, chunks=400))


def test_a_slow_result_is_transferred_once(client: Client) -> None:
    """Requesting it again during the transfer would hold several copies in memory.

    Meanwhile one request to the scheduler checks that all workers are present.
    """
    gathers, looked_for = [], []

    class Slow:
        loop = client.loop

        async def gather(self, futures: Any, asynchronous: bool) -> list[str]:
            gathers.append(futures)
            await asyncio.sleep(1.0)
            return ["all of it"]

    def find_lost(addresses: set[str]) -> set[str]:
        looked_for.append(sorted(addresses))
        return set()

    membership = SimpleNamespace(find_lost=find_lost)
    fleet: Any = SimpleNamespace(_client=Slow(), _membership=membership)
    seat, other = (
        SimpleNamespace(future=SimpleNamespace(status="finished"), address=address)
        for address in "ab"
    )
    trainers: Any = [seat, other]
    assert RunActors._gather_results(fleet, trainers) == ["all of it"]
    assert len(gathers) == 1
    assert looked_for == [["a", "b"]] * len(looked_for)
    seat.future.status = "lost"
    with pytest.raises(WorkerUnreachableError):
        RunActors._gather_results(fleet, trainers)


def test_two_concurrent_fits_are_independent(cluster: LocalCluster, client: Client) -> None:
    def fit(policy: str) -> float:
        with Client(cluster, set_as_default=False) as thread_client:
            X, y = _lazy()
            clf = SGDClassifier(policy=policy, max_iter=10, tol=None, random_state=0)
            return clf.fit(X, y, client=thread_client).n_iter_

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(fit, ["sync", "allreduce"])) == [10, 10]


def test_a_fit_while_the_user_computes(client: Client) -> None:
    others = client.map(lambda i: sum(range(10**5)) + i, range(40), pure=False)
    SGDClassifier(max_iter=5, tol=None).fit(*_lazy())
    assert len(client.gather(others)) == 40


@pytest.mark.parametrize("policy", ["sync", pytest.param("allreduce", marks=pytest.mark.slow)])
def test_fit_on_a_tls_cluster(policy: str) -> None:
    pytest.importorskip("cryptography")
    security = Security.temporary()
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="tls://127.0.0.1",
            dashboard_address=":0",
            security=security,
        ) as cluster,
        Client(cluster) as client,
    ):
        assert cluster.scheduler_address.startswith("tls://")
        X, y = _lazy()
        clf = SGDClassifier(policy=policy, max_iter=5, tol=None, random_state=0).fit(X, y)
        assert clf.score(X, y) > 0.85
        assert client.status == "running"


def test_dask_rows_without_a_client() -> None:
    X, y = _lazy()
    clf = SGDClassifier(max_iter=3, tol=None).fit(X, y)
    assert isinstance(clf.predict(X), da.Array)
    assert clf.score(X, y) > 0.85
    with pytest.raises(ValueError, match="No clients found"):
        Client.current()


def test_rows_in_memory_are_fitted_on_the_current_client(client: Client) -> None:
    watch = Watch()
    X, y = _rows()
    clf = SGDClassifier(max_iter=3, tol=None, callbacks=watch).fit(X, y)
    assert len(watch.run.trainer_addresses) == 2
    assert isinstance(clf.predict(X), np.ndarray)


def test_predictions_are_lazy_and_need_no_cluster(client: Client) -> None:
    X, y = _lazy()
    clf = SGDClassifier(max_iter=3, tol=None).fit(X, y)
    rows, _ = _rows()
    copy = pickle.loads(pickle.dumps(clf))
    for method in ("predict", "predict_proba", "decision_function"):
        lazy = getattr(clf, method)(X)
        assert isinstance(lazy, da.Array)
        np.testing.assert_allclose(lazy.compute(), getattr(copy, method)(rows))


# --- uneven rows -----------------------------------------------------------------------------


def test_graphs_do_not_grow_faster_than_the_blocks(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, sizes = client._send_to_scheduler, list[int]()

    def record(message: dict[str, Any]) -> None:
        if message["op"] == "update-graph":
            sizes.append(sum(len(frame) for frame in message["expr_ser"].frames))
        send(message)

    found = {}
    for n_blocks in (8, 64):
        X, y = client.persist(_lazy(blocks=n_blocks))
        with monkeypatch.context() as patch:
            patch.setattr(client, "_send_to_scheduler", record)
            SGDClassifier("hinge", policy="allreduce", max_iter=1).fit(X, y)
        found[n_blocks] = len(sizes), sum(sizes)
        sizes.clear()
    # One graph for each step of the fit and worker, not each block; the size of all graphs has a
    # part that does not depend on the blocks.
    assert found[64][0] <= found[8][0] + 2
    assert found[64][1] <= 4 * found[8][1]


def test_rows_on_one_worker_are_moved_to_others(client: Client) -> None:
    home = min(client.scheduler_info(n_workers=-1)["workers"])
    lazy = da.random.default_rng(0).normal(size=(60_000, 8), chunks=(10_000, 8))
    X = client.persist(lazy, workers=[home])
    y = client.persist((X[:, 0] > 0).astype(int), workers=[home])
    # Enough passes for moving to pay off on any machine; the tolerance stops the fit early.
    facts = SGDClassifier(max_iter=5000, tol=0.1, random_state=0).fit(X, y).history_.extra
    assert facts["skew"] == pytest.approx(2.0)
    assert facts["moved_bytes"] == 3 * 10_000 * 9 * 8
    assert facts["n_lanes"] == 2
    assert all(home in holders for holders in client.who_has(X).values())
    even = SGDClassifier(max_iter=2, random_state=0).fit(lazy.persist(), y)
    assert "skew" not in even.history_.extra


def test_an_actor_that_no_server_takes_ends_at_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An actor starts while rows are read, but its server needs another if the state is large.

    The end of a fit with standbys would wait for it.
    """
    monkeypatch.setattr(run_actors, "_MAX_INLINE_FIT_BYTES", -1)
    actor_names: list[set[str]] = []

    class SeeActors:
        def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
            actors = client.run(lambda dask_worker: [*map(str, dask_worker.state.actors)])
            actor_names.append(
                {name for names in actors.values() for name in names if "daskml" in name}
            )

    SGDClassifier(max_iter=3, tol=None, callbacks=[SeeActors()]).fit(*_lazy())
    assert actor_names[-1]
    assert not any(name.endswith("early") for name in actor_names[-1])
