"""Clients of every public estimator: invalid, closed or asynchronous ones, and the given one."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import pkgutil
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
from daskml_dist.collective import run_together
from daskml_dist.errors import InvalidParameterError
from daskml_dist.frequent_patterns import frequent_itemsets
from daskml_dist.graph import VertexProgram, connected_components, pagerank
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.model_selection import learning_rate_range
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
    """Provide a cluster inside this process, beside the shared one."""
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0",
        silence_logs=logging.ERROR,
    ) as cluster:  # fmt: skip
        yield cluster


@pytest.fixture(scope="module")
def no_clients(other: LocalCluster) -> dict[str, tuple[Any, str]]:
    """Return objects that may be mistaken for a client, with the remedy of each."""
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
def test_fits_refuse_invalid_clients(name: str, kind: str, no_clients: dict[str, Any]) -> None:
    X, y = rows_of(name) if kind == "memory" else _lazy(name)
    for client, remedy in no_clients.values():
        with pytest.raises(InvalidParameterError, match=remedy):
            _fit(name, X, y, client=client)


def test_plans_and_streams_refuse_invalid_clients(no_clients: dict[str, Any]) -> None:
    X, y = rows_of("SGDClassifier")
    for client, remedy in no_clients.values():
        with pytest.raises(InvalidParameterError, match=remedy):
            daskml_dist.advise(X, SGDClassifier(), y, client=client)
        with pytest.raises(InvalidParameterError, match=remedy):
            SGDClassifier().stream(client=client)


#: Estimators whose fit reads no rows.
LOOK_AT_NONE = {
    "Blockwise",
    "Categorizer",
    "DummyEncoder",
    "FeatureHasher",
    "FieldHasher",
    "HashingVectorizer",
    "NamespaceHasher",
    "PolynomialFeatures",
}


def test_fits_in_an_event_loop_name_the_required_client(other: LocalCluster) -> None:
    """In an event loop every fit raises an error that names the required client."""

    async def tried() -> dict[str, Any]:
        async with Client(other.scheduler_address, asynchronous=True) as client:
            found = {}
            for name in set(small_estimators()) - LOOK_AT_NONE:
                X, y = _lazy(name)
                found[name] = attempt(lambda n, *rows: _fit(n, *rows), name, X, y)
                if name in TAKE_A_CLIENT:
                    with_client = attempt(
                        lambda n, *rows: _fit(n, *rows, client=client), name, X, y
                    )
                    found[f"{name}, given"] = with_client
            return found

    found = asyncio.run(tried())
    wrong = {
        name: str(outcome)
        for name, outcome in found.items()
        if not (
            isinstance(outcome, Refusal)
            and outcome.is_ours
            and "synchronous Client" in str(outcome)
        )
    }
    assert wrong == {}


def _tasks_of(client: Client) -> int:
    """Return the number of tasks that the client's scheduler has ever had."""

    def count(dask_scheduler: Any) -> int:
        groups = dask_scheduler.task_prefixes.values()
        return sum(sum(prefix.state_counts.values()) for prefix in groups)

    found: int = client.run_on_scheduler(count)
    return found


def _methods_of(model: Any) -> list[str]:
    """Return the methods of a model that take a client and do work, ``fit`` first."""
    found = ["fit", "partial_fit", "fit_predict", "fit_transform", "stream"]
    return [
        method
        for method in found
        if hasattr(model, method)
        and "client" in inspect.signature(getattr(model, method)).parameters
    ]


def _call(name: str, method: str, X: Any, y: Any, client: Any) -> None:
    """Call a method of a model with a client and rows."""
    model = small_estimator(name)
    labels = [0, 1] if name in HAVE_CLASSES else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if method == "stream":
            rows = [part for part in rows_of(name) if part is not None]
            how = {} if labels is None else {"classes": labels}
            # Only its stream of ratings runs in the calling process.
            where = "inline" if name == "MatrixFactorization" else client
            with model.stream(client=where, **how) as stream:
                stream.learn(*rows)
            return
        how = {"classes": labels} if method == "partial_fit" and labels else {}
        rows = [part for part in (X, y) if part is not None]
        getattr(model, method)(*rows, client=client, **how)


HAVE_CLASSES = {
    name
    for name, model in small_estimators().items()
    if "classes" in inspect.signature(getattr(model, "partial_fit", lambda: None)).parameters
}


@pytest.mark.parametrize("name", each_base(TAKE_A_CLIENT))
def test_methods_work_on_the_given_client(
    name: str, other: LocalCluster, cluster: LocalCluster
) -> None:
    """No work is sent to the current client if another one is given."""
    X, y = _lazy(name)
    with Client(other, set_as_default=False) as own_client, Client(cluster) as current:
        before, of_given = _tasks_of(current), _tasks_of(own_client)
        for method in _methods_of(small_estimator(name)):
            _call(name, method, X, y, own_client)
            assert _tasks_of(current) == before, method
        assert _tasks_of(own_client) > of_given


class _Largest(VertexProgram):
    """Vertex program: largest number among a vertex and all vertices that lead to it."""

    combine = "max"

    def start(self, vertices: Any, degree: Any) -> Any:
        return vertices.astype(float)

    def apply(self, old: Any, total: Any) -> Any:
        return np.maximum(old, total)


def _count_blocks(group: Any, blocks: Any, state: Any) -> int:
    return len(blocks)


_EDGES = pd.DataFrame({"source": [0, 1, 2, 3, 4, 5], "target": [1, 2, 0, 4, 5, 3]})
_BASKETS = np.eye(8)[:, :4]
#: Public functions, and methods of other classes, that take a client.
FUNCTIONS: dict[str, Any] = {
    "connected_components": lambda client: connected_components(_as_dask(_EDGES, 2), client=client),
    "frequent_itemsets": lambda client: frequent_itemsets(
        _as_dask(_BASKETS, 2), min_support=0.1, client=client
    ),
    "frequent_itemsets of a long frame": lambda client: frequent_itemsets(
        _as_dask(_EDGES, 2), min_support=1, basket="source", item="target", client=client
    ),
    "learning_rate_range": lambda client: learning_rate_range(
        SGDClassifier(random_state=0), *_lazy("SGDClassifier"), rates=[0.1, 1.0], client=client
    ),
    "pagerank": lambda client: pagerank(_as_dask(_EDGES, 2), client=client),
    "run_together": lambda client: run_together(client, _count_blocks, _as_dask(_BASKETS, 2)),
    "VertexProgram": lambda client: _Largest().run(_as_dask(_EDGES, 2), client=client),
    "advise": lambda client: daskml_dist.advise(
        _lazy("SGDClassifier")[0], SGDClassifier(), _lazy("SGDClassifier")[1], client=client
    ),
}


def test_functions_work_on_the_given_client(other: LocalCluster, cluster: LocalCluster) -> None:
    with Client(other, set_as_default=False) as own_client, Client(cluster) as current:
        before = _tasks_of(current)
        for name, call in FUNCTIONS.items():
            call(own_client)
            assert _tasks_of(current) == before, name
        assert _tasks_of(own_client) > 0


def test_every_function_that_takes_a_client_is_in_the_table() -> None:
    found = {
        name
        for subpackage in pkgutil.iter_modules(daskml_dist.__path__)
        if not subpackage.name.startswith("_")
        for name in getattr(
            importlib.import_module(f"daskml_dist.{subpackage.name}"), "__all__", []
        )
        if _takes_a_client(getattr(importlib.import_module(f"daskml_dist.{subpackage.name}"), name))
    }
    assert found <= {name.partition(" ")[0] for name in FUNCTIONS}


def _takes_a_client(value: Any) -> bool:
    return inspect.isfunction(value) and "client" in inspect.signature(value).parameters


def test_work_of_the_current_client_is_counted(client: Client) -> None:
    before = _tasks_of(client)
    SGDClassifier(max_iter=1, tol=None).fit(*_lazy("SGDClassifier"))
    assert _tasks_of(client) > before
