"""Rows of a fit are freed when it ends, not when Python's garbage collector runs."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist import Run
from daskml_dist.data.collection import Collection
from daskml_dist.linear_model import LogisticRegression, SGDClassifier
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.policies import POLICIES
from daskml_dist.training.worker.reader import ReadyBlock
from tests.quick import quick

N_ROWS = 400


def _sgd(**params: Any) -> SGDClassifier:
    return SGDClassifier(max_iter=2, tol=None, random_state=0, run=Run(n_lanes=2), **params)


def _make_columns() -> SGDClassifier:
    return SGDClassifier(max_iter=2, tol=None, random_state=0, run=Run(n_lanes=2, shard="features"))


def _make_network() -> MLPClassifier:
    return MLPClassifier((4,), max_iter=2, random_state=0, run=Run(n_lanes=2))


FITS: dict[str, Callable[[], Any]] = {
    **{policy: partial(_sgd, policy=policy) for policy in POLICIES},
    "columns": _make_columns,
    "network": _make_network,
    "rounds": LogisticRegression,
}


def _rows() -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(N_ROWS, 6))
    return X, (X[:, 0] > 0).astype(int)


def _count(cls: type) -> int:
    # Nothing is collected here, so objects in reference cycles are counted.
    return sum(isinstance(thing, cls) for thing in gc.get_objects())


@contextmanager
def _no_collection(call_everywhere: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
    call_everywhere(gc.collect)
    call_everywhere(gc.disable)
    try:
        yield
    finally:
        call_everywhere(gc.enable)


@pytest.mark.parametrize("name", quick(FITS, "allreduce", "hogwild", "columns"))
def test_workers_free_the_rows_of_a_fit_without_garbage_collection(
    client: Client, name: str
) -> None:
    X, y = _rows()
    lazy = da.from_array(X, chunks=(100, -1)), da.from_array(y, chunks=100)

    def count_prepared_blocks() -> int:  # local, so pickled by value
        import gc

        return sum(type(thing).__name__ == "ReadyBlock" for thing in gc.get_objects())

    with _no_collection(client.run):
        FITS[name]().fit(*lazy)
        deadline = time.monotonic() + 30
        # The last trainers end in the background.
        while any((left := client.run(count_prepared_blocks)).values()):
            assert time.monotonic() < deadline, left
            time.sleep(0.01)


@pytest.mark.parametrize("name", quick(FITS, "sync", "rounds"))
def test_clients_free_the_rows_of_a_fit_without_garbage_collection(
    client: Client, name: str
) -> None:
    with _no_collection(lambda function: function()):
        n_before = _count(Collection)
        FITS[name]().fit(*_rows(), client=client)
        deadline = time.monotonic() + 30
        # The client's own thread forgets the fit's calls a moment later.
        while (left := _count(Collection) - n_before) > 0:
            assert time.monotonic() < deadline, left
            time.sleep(0.01)


@pytest.mark.parametrize("name", quick(FITS, "allreduce", "hogwild"))
def test_this_process_frees_the_rows_of_a_fit_without_garbage_collection(name: str) -> None:
    if name == "columns":
        pytest.skip("columns are distributed on clusters only")
    with _no_collection(lambda function: function()):
        n_before = _count(ReadyBlock)
        FITS[name]().fit(*_rows(), client="inline")
        assert _count(ReadyBlock) == n_before
