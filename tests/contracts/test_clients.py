"""Clients of every public estimator: what is none, closed or asynchronous; and the one given."""

from __future__ import annotations

import asyncio
import inspect
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster

import daskml_dist
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import SGDClassifier
from tests.contracts.compare import Refusal, attempt
from tests.contracts.small_fits import each_base, rows_of, small_estimator, small_estimators

TAKE_A_CLIENT = [
    name
    for name, model in small_estimators().items()
    if "client" in inspect.signature(model.fit).parameters
]


def _lazy(name: str, n_blocks: int = 2) -> tuple[Any, Any]:
    """Return X and y of an estimator as Dask collections."""
    return tuple(_as_dask(values, n_blocks) for values in rows_of(name))  # type: ignore[return-value]


def _as_dask(values: Any, n_blocks: int) -> Any:
    if isinstance(values, pd.DataFrame):
        return dd.from_pandas(values, npartitions=n_blocks)
    if isinstance(values, list):
        values = np.array(values, dtype=object)
    if values is None:
        return None
    return da.from_array(values, chunks=(len(values) // n_blocks, *values.shape[1:]))


def _fit(name: str, X: Any, y: Any, **how: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = small_estimator(name)
        return model.fit(X, **how) if y is None else model.fit(X, y, **how)


@pytest.fixture(scope="module")
def other() -> Iterator[LocalCluster]:
    """A cluster inside this process, beside the shared one."""
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0",
        silence_logs=logging.ERROR,
    ) as cluster:  # fmt: skip
        yield cluster


@pytest.fixture(scope="module")
def no_clients(other: LocalCluster) -> dict[str, tuple[Any, str]]:
    """What may be taken for a client, and the remedy of each."""
    closed = Client(other, set_as_default=False)
    closed.close()
    return {
        "cluster": (other, r"that is a cluster. .*client=cluster.get_client\(\)"),
        "address": ("tcp://1.2.3.4:8786", r"client=Client\('tcp://1.2.3.4:8786'\)"),
        "class": (Client, "that is a class"),
        "closed": (closed, "it is closed. Pass a Client that is open"),
        "number": (3, "pass a distributed.Client"),
    }


@pytest.mark.parametrize("kind", ["memory", "Dask"])
@pytest.mark.parametrize("name", TAKE_A_CLIENT)
def test_fits_given_no_client(name: str, kind: str, no_clients: dict[str, Any]) -> None:
    X, y = rows_of(name) if kind == "memory" else _lazy(name)
    for client, remedy in no_clients.values():
        with pytest.raises(InvalidParameterError, match=remedy):
            _fit(name, X, y, client=client)


def test_plans_and_streams_given_no_client(no_clients: dict[str, Any]) -> None:
    X, y = rows_of("SGDClassifier")
    for client, remedy in no_clients.values():
        with pytest.raises(InvalidParameterError, match=remedy):
            daskml_dist.advise(X, SGDClassifier(), y, client=client)
        with pytest.raises(InvalidParameterError, match=remedy):
            SGDClassifier().stream(client=client)


#: Estimators whose fit looks at no row.
LOOK_AT_NONE = {
    "Blockwise",
    "Categorizer",
    "DummyEncoder",
    "FeatureHasher",
    "HashingVectorizer",
    "NamespaceHasher",
    "PolynomialFeatures",
}


def test_an_asynchronous_client(other: LocalCluster) -> None:
    """In the event loop every fit says what client it needs, whatever it is given."""

    async def tried() -> dict[str, Any]:
        async with Client(other.scheduler_address, asynchronous=True) as client:
            found = {}
            for name in set(small_estimators()) - LOOK_AT_NONE:
                X, y = _lazy(name)
                found[name] = attempt(lambda n, *rows: _fit(n, *rows), name, X, y)
                if name in TAKE_A_CLIENT:
                    given = attempt(lambda n, *rows: _fit(n, *rows, client=client), name, X, y)
                    found[f"{name}, given"] = given
            return found

    found = asyncio.run(tried())
    wrong = {
        name: str(said)
        for name, said in found.items()
        if not (isinstance(said, Refusal) and said.is_ours and "synchronous Client" in str(said))
    }
    assert wrong == {}


def _tasks_of(client: Client) -> int:
    """Return how many tasks the scheduler of a client has ever known."""

    def count(dask_scheduler: Any) -> int:
        groups = dask_scheduler.task_prefixes.values()
        return sum(sum(prefix.state_counts.values()) for prefix in groups)

    found: int = client.run_on_scheduler(count)
    return found


@pytest.mark.parametrize("name", each_base(TAKE_A_CLIENT))
def test_the_given_client_is_the_one_that_works(
    name: str, other: LocalCluster, cluster: LocalCluster
) -> None:
    """Nothing of a fit goes to the current client where another one is given."""
    X, y = _lazy(name)
    with Client(other, set_as_default=False) as given, Client(cluster) as current:
        before = _tasks_of(current)
        _fit(name, X, y, client=given)
        assert _tasks_of(current) == before


def test_work_of_the_current_client_is_counted(client: Client) -> None:
    before = _tasks_of(client)
    SGDClassifier(max_iter=1, tol=None).fit(*_lazy("SGDClassifier"))
    assert _tasks_of(client) > before
