"""Processes forked beside a client neither use it nor wait for it."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import LogisticRegression, SGDClassifier
from daskml_dist.metrics import accuracy_score
from daskml_dist.preprocessing import StandardScaler

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="other systems spawn processes"),
    # From Python 3.12 on, about forks of processes with threads: a client has some.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


def _rows() -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(200, 4))
    return X, (X[:, 0] > 0).astype(int)


def _lazy() -> tuple[Any, Any]:
    X, y = _rows()
    return da.from_array(X, chunks=(50, -1)), da.from_array(y, chunks=50)


def _call_in_fork(call: Callable[[], Any]) -> Any:
    """Return the value of a call in a forked process, or the error that it raised."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        try:
            sender.send(call())
        except BaseException as error:
            sender.send(error)

    process = context.Process(target=run, daemon=True)
    process.start()
    try:
        assert receiver.poll(100), "the forked process hangs"
        return receiver.recv()
    finally:
        process.kill()
        process.join()


def test_rows_in_memory_are_fitted_in_a_forked_process(client: Client) -> None:
    X, y = _rows()
    clf = SGDClassifier(max_iter=3, tol=None, random_state=0)
    found = _call_in_fork(lambda: clf.fit(X, y).coef_)
    np.testing.assert_array_equal(found, clf.fit(X, y, client="inline").coef_)


CALLS: dict[str, Callable[[Client], Any]] = {
    "fit": lambda client: LogisticRegression().fit(*_lazy()),
    "fit with the client": lambda client: LogisticRegression().fit(*_rows(), client=client),
    "transformer": lambda client: StandardScaler().fit(_lazy()[0]),
    "metric": lambda client: accuracy_score(_lazy()[1], _lazy()[1]),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_forked_process_refuses_the_client_of_its_parent(client: Client, name: str) -> None:
    error = _call_in_fork(lambda: CALLS[name](client))
    assert isinstance(error, InvalidParameterError)
    assert "forked from. Start processes by another method" in str(error)
