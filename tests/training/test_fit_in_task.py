"""Fits inside Dask tasks: none waits for the slot of the task that calls it."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask.array as da
import joblib
import numpy as np
import pytest
from distributed import Client, LocalCluster, get_client, worker_client
from sklearn.model_selection import GridSearchCV

from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import LogisticRegression, SGDClassifier
from daskml_dist.metrics import accuracy_score
from daskml_dist.preprocessing import StandardScaler


def _rows() -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(400, 6))
    return X, (X[:, 0] > 0).astype(int)


def _lazy() -> tuple[Any, Any]:
    X, y = _rows()
    return da.from_array(X, chunks=(100, -1)), da.from_array(y, chunks=100)


def _sgd(*callbacks: Any) -> SGDClassifier:
    return SGDClassifier(max_iter=3, tol=None, random_state=0, callbacks=list(callbacks))


class Where:
    """Callback that records where a fit runs."""

    def __init__(self) -> None:
        self.trainers: list[str] | None = None

    def on_fit_begin(self, run: Any) -> None:
        self.trainers = list(run.trainer_addresses)


def in_memory() -> bool:
    get_client()
    where = Where()
    _sgd(where).fit(*_rows())
    return where.trainers == []


def in_memory_beside_a_client() -> bool:
    where = Where()
    with worker_client():
        _sgd(where).fit(*_rows())
    return where.trainers == []


def in_memory_from_a_thread() -> bool:
    get_client()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: _sgd().fit(*_rows()).n_iter_).result() == 3


def in_memory_with_the_client() -> bool:
    where = Where()
    _sgd(where).fit(*_rows(), client=get_client())
    return bool(where.trainers)


def lazy() -> bool:
    X, y = _lazy()
    clf = _sgd().fit(X, y)
    right = float((clf.predict(X) == y).mean().compute())
    return right == clf.score(X, y) and clf.history_.records[-1]["rows"] == 400


def lazy_beside_a_client() -> bool:
    with worker_client():
        return lazy()


def lazy_by_rounds() -> bool:
    X, y = _lazy()
    Z = StandardScaler().fit(X).transform(X)
    return accuracy_score(y, LogisticRegression().fit(Z, y).predict(Z)) > 0.9


def stream_on_the_cluster() -> bool:
    X, y = _rows()
    clf = SGDClassifier(random_state=0)
    with clf.stream(classes=[0, 1], client=get_client()) as session:
        for rows in range(0, len(X), 100):
            session.learn(X[rows : rows + 100], y[rows : rows + 100])
    return bool(session.n_rows == len(X) and clf.score(X, y) > 0.8)


FITS: list[Callable[[], bool]] = [
    in_memory,
    in_memory_beside_a_client,
    in_memory_from_a_thread,
    in_memory_with_the_client,
    lazy,
    lazy_beside_a_client,
    lazy_by_rounds,
    stream_on_the_cluster,
]


@pytest.mark.parametrize("fit", FITS, ids=lambda fit: fit.__name__)
def test_a_fit_inside_a_task_ends(client: Client, fit: Callable[[], bool]) -> None:
    assert client.submit(fit, pure=False).result(timeout=200)


@pytest.mark.parametrize("scale", [1, 2], ids=["as they are", "with work to do"])
def test_persisted_rows_captured_by_a_task_function_are_fitted(client: Client, scale: int) -> None:
    X, y = (part.persist() for part in _lazy())

    def fit() -> Any:
        rows = X if scale == 1 else X * scale
        clf = _sgd().fit(rows, y)
        return clf.coef_, clf.score(rows, y), LogisticRegression().fit(rows, y).coef_

    for theirs, ours in zip(client.submit(fit, pure=False).result(timeout=200), fit(), strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-12)


def test_a_fit_in_an_asynchronous_task_is_refused(client: Client) -> None:
    async def fit() -> str:
        try:
            return str(lazy())
        except InvalidParameterError as error:
            return str(error)

    assert "a plain function" in client.submit(fit, pure=False).result(timeout=200)


def test_concurrent_fits_inside_tasks_end(client: Client) -> None:
    futures = [client.submit(fit, pure=False) for fit in (lazy, lazy, lazy_by_rounds, in_memory)]
    assert client.gather(futures) == [True] * 4
    # Every task has released its thread.
    assert client.submit(lambda: 1, pure=False).result(timeout=200) == 1


def test_a_fit_waits_for_a_client_that_another_task_is_making(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of a worker share one client, which is current before it has connected."""
    start, made, connect = Client._start, queue.Queue[Client](), threading.Event()

    async def start_later(self: Client, **options: Any) -> None:
        self.status = "connecting"
        made.put(self)
        while not connect.is_set():
            await asyncio.sleep(0.01)
        await start(self, **options)

    monkeypatch.setattr(Client, "_start", start_later)
    with ThreadPoolExecutor(2) as pool:
        address = client.scheduler.address
        making = pool.submit(Client, address, set_as_default=False)
        fit = pool.submit(_sgd().fit, *_lazy(), client=made.get())
        threading.Timer(0.2, connect.set).start()
        assert fit.result(timeout=200).score(*_rows()) > 0.7
        making.result().close()


def test_streams_inside_tasks_of_all_threads_end(client: Client) -> None:
    """Each waits for actors, which no thread would make if the tasks kept theirs."""
    n_threads = sum(client.nthreads().values())
    streams = [client.submit(stream_on_the_cluster, pure=False) for _ in range(n_threads)]
    # A task that waits for a thread gives up after its timeout, longer than this one.
    assert [stream.result(timeout=200) for stream in streams] == [True] * n_threads
    assert client.submit(lambda: 1, pure=False).result(timeout=200) == 1


def test_a_search_of_scikit_learn_on_dasks_backend(client: Client) -> None:
    X, y = _rows()
    with joblib.parallel_backend("dask"):
        search = GridSearchCV(_sgd(), {"alpha": [1e-4, 1e-2]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.7


def test_tasks_in_threads_of_the_clients_own_process() -> None:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        futures = [client.submit(fit, pure=False) for fit in (in_memory, lazy, lazy)]
        assert client.gather(futures) == [True] * 3
