"""Trainers that end or fail before the others are not waited for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait

from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.training.client import cluster_run, run_actors
from daskml_dist.training.worker import host
from daskml_dist.training.worker.trainer import Trainer

X = np.random.default_rng(0).normal(size=(160, 3))
Y = (X[:, 0] > 0).astype(int)
_run = Trainer.run
_is_free, _are_busy = threading.Event(), threading.Semaphore(0)


@pytest.fixture(params=[1, 2, 8])
def several_workers_client(
    request: pytest.FixtureRequest, assert_clean: Callable[..., None]
) -> Iterator[tuple[Client, Any, Any]]:
    """Return a client of several workers that all hold rows."""
    options: Any = {"threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    n = request.param
    # Bound of the wait for a trainer that does not connect.
    with (
        dask.config.set({"daskml_dist.timeout": 60}),
        LocalCluster(n_workers=n, memory_limit=0, **options) as cluster,
        Client(cluster) as client,
    ):
        rows = [da.from_array(a, chunks=(len(X) // n, *a.shape[1:])).persist() for a in (X, Y)]
        wait(rows)
        yield client, *rows
        assert_clean(client, keep=rows)


def _fit(X: Any, y: Any, *callbacks: Any) -> SGDClassifier:
    clf = SGDClassifier(
        policy="allreduce", learning_rate=0.1, max_iter=3, random_state=0, callbacks=callbacks
    )
    return clf.fit(X, y)


def test_the_others_do_not_wait_for_one_that_has_ended(
    several_workers_client: tuple[Client, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For instance, it ended just before it could receive its assignment of a new generation."""
    _, *rows = several_workers_client
    expected, events = _fit(*rows).coef_, list[Any]()

    class Told:
        def on_generation(self, run: Any, event: Any) -> None:
            events.append((event.generation, event.reason))

    def run(trainer: Trainer, blocks: Any) -> Any:
        is_early = trainer._spec.rank == 0 and trainer._spec.generation == 0
        return trainer.interrupted() if is_early else _run(trainer, blocks)

    monkeypatch.setattr(Trainer, "run", run)
    np.testing.assert_array_equal(_fit(*rows, Told()).coef_, expected)
    assert events == [(1, "a trainer ended early")]


def _keep_busy() -> None:
    _are_busy.release()
    assert _is_free.wait(100)


def test_an_error_is_raised_although_other_trainers_have_not_started(
    several_workers_client: tuple[Client, Any, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client, *rows = several_workers_client
    busy: list[Any] = []

    class Busy:
        def on_fit_begin(self, run: Any) -> None:
            for address in run.trainer_addresses[1:]:
                busy.append(client.submit(_keep_busy, workers=[address], pure=False))
                assert _are_busy.acquire(timeout=100)

    def run(trainer: Trainer, blocks: Any) -> Any:
        raise InvalidParameterError("this trainer's own")

    monkeypatch.setattr(Trainer, "run", run)
    caplog.set_level(logging.WARNING, "daskml_dist")
    _is_free.clear()
    try:
        with pytest.raises(InvalidParameterError, match="this trainer's own"):
            _fit(*rows, Busy())
    finally:
        _is_free.set()
    client.gather(busy)
    assert "waiting for the workers to end" not in caplog.text


def test_an_actor_lost_before_the_run_starts_is_replaced(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker dies after it reported to run and before its address was requested."""
    calls = []
    found = run_actors.wait_for_actor

    def lose(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise RuntimeError("Worker holding Actor was lost")
        return found(*arguments)

    monkeypatch.setattr(run_actors, "wait_for_actor", lose)
    # A fast worker sends its endpoint unrequested; here the client requests it.
    monkeypatch.setattr(run_actors.EarlyHost, "set_endpoint", lambda self, endpoint: None)
    X = da.random.default_rng(0).normal(size=(80, 2), chunks=(20, 2)).persist()
    SGDClassifier(policy="sync", max_iter=2, tol=None).fit(X, (X[:, 0] > 0).astype(int))
    assert calls
    del X


def test_trainers_are_notified_of_a_server_that_fails_to_start(
    several_workers_client: tuple[Client, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the notification they would wait until their own timeout."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise InvalidParameterError("This server cannot be made. Do without it.")

    # The client waits as long for trainers that do not receive the notification.
    monkeypatch.setattr(cluster_run, "_WIND_DOWN", 1e6)
    monkeypatch.setattr(host, "make_server", fail)
    with pytest.raises(InvalidParameterError, match="Do without it"):
        _fit(*several_workers_client[1:])
