"""Calls that an event loop awaits: fits, scores and predictions with an asynchronous client."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import daskml_dist
from daskml_dist import Run
from daskml_dist.errors import InvalidDataError, InvalidParameterError, TrainingError
from daskml_dist.linear_model import LogisticRegression, SGDClassifier
from daskml_dist.metrics import accuracy_score
from daskml_dist.model_selection import GridSearchCV
from daskml_dist.preprocessing import StandardScaler

X = np.random.default_rng(0).normal(size=(400, 4))
Y = (X[:, 0] > 0).astype(int)


def _lazy() -> tuple[Any, Any]:
    return da.from_array(X, chunks=(100, 4)), da.from_array(Y, chunks=100)


def _sgd(**params: Any) -> SGDClassifier:
    return SGDClassifier(random_state=0, **{"max_iter": 3, "tol": None, **params})


def test_fits_with_an_asynchronous_client(cluster: LocalCluster, client: Client) -> None:
    rows, target = _lazy()
    run = Run(n_lanes=2)
    expected = _sgd(run=run).fit(rows, target)

    async def fit() -> Any:
        async with Client(cluster.scheduler_address, asynchronous=True) as async_client:
            model = _sgd(run=run)
            assert await model.fit_async(rows, target) is model
            assert await async_client.compute(model.predict(rows).sum()) == model.predict(X).sum()
            persisted = await async_client.persist(rows)
            by_rounds = await LogisticRegression().fit_async(persisted, target, client=async_client)
            assert by_rounds.score(X, Y) > 0.9
            scaler = await StandardScaler().fit_async(rows)
            scored = await daskml_dist.run_async(model.score, rows, target)
            awaited = await daskml_dist.run_async(accuracy_score, target, model.predict(rows))
            assert scored == awaited == model.score(X, Y)
            search = GridSearchCV(_sgd(), {"alpha": [1e-4, 1e-2]}, cv=2)
            await asyncio.gather(search.fit_async(rows, target), model.fit_async(rows, target))
            with pytest.raises(InvalidParameterError, match=r"await model\.fit_async"):
                _sgd().fit(rows, target)
            return model, scaler, search

    model, scaler, search = asyncio.run(fit())
    np.testing.assert_array_equal(model.coef_, expected.coef_)
    np.testing.assert_allclose(scaler.mean_, X.mean(axis=0))
    assert search.best_score_ > 0.7


def test_event_loop_is_not_blocked_by_a_fit_without_a_client() -> None:
    began, go_on = threading.Event(), threading.Event()

    class Waits:
        def on_pass_end(self, run: Any, record: Any) -> None:
            began.set()
            assert go_on.wait(60)

    async def fit() -> Any:
        task = asyncio.create_task(_sgd(callbacks=[Waits()]).fit_async(X, Y))
        while not began.is_set():
            await asyncio.sleep(0.001)
        go_on.set()  # impossible if the fit blocked the event loop
        return await task

    assert asyncio.run(fit()).score(X, Y) > 0.8


def test_errors_of_the_awaited_call_are_raised() -> None:
    with pytest.raises(InvalidDataError, match="inconsistent"):
        asyncio.run(_sgd().fit_async(X, Y[1:]))


@pytest.mark.parametrize("where", ["inline", "cluster"])
@pytest.mark.parametrize("kind", ["steps", "rounds"])
def test_a_cancelled_fit_ends_and_keeps_its_last_iterate(
    where: str, kind: str, request: pytest.FixtureRequest
) -> None:
    client = request.getfixturevalue("client") if where == "cluster" else None
    began, go_on = threading.Event(), threading.Event()

    class Waits:
        def on_pass_end(self, run: Any, record: Any) -> None:
            if run.n_passes > 3:  # a solver has completed its first iterate
                began.set()
                assert go_on.wait(60)

    if kind == "steps":
        model: Any = _sgd(max_iter=10**6, callbacks=[Waits()])
    else:
        model = LogisticRegression(max_iter=10**6, tol=0.0, callbacks=[Waits()])
    rows = _lazy() if client else (X, Y)

    async def fit() -> None:
        task = asyncio.create_task(model.fit_async(*rows, client=client))
        while not began.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.sleep(0)  # cancelling the task stops the fit
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(fit())
    assert len(model.history_) < 10**6
    assert model.score(X, Y) > 0.8


def test_stop_iteration_from_a_call_is_raised_as_an_error() -> None:
    with pytest.raises(TrainingError, match="StopIteration"):
        asyncio.run(daskml_dist.run_async(next, iter([])))
