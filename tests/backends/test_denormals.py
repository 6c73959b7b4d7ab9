"""Denormal numbers: the flush mode of threads, and moments of networks."""

from __future__ import annotations

import threading
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist import Run
from daskml_dist.backends.host_threads import _find_mode_functions, flush_denormals
from daskml_dist.neural_network import MLPClassifier

pytestmark = pytest.mark.skipif(
    _find_mode_functions() is None, reason="a system whose modes are not known"
)

SMALL = np.full(64, 1e-39, np.float32)


def is_kept() -> bool:
    """Return whether products of denormal numbers are kept, not flushed to zero."""
    return bool((SMALL * np.float32(0.5)).any())


def test_the_mode_applies_to_a_thread_and_its_child_threads() -> None:
    found: list[bool] = []

    def fail_inside() -> None:
        with flush_denormals(True):
            found.append(is_kept())
            thread = threading.Thread(target=lambda: found.append(is_kept()))
            thread.start()
            thread.join()
            with flush_denormals(True):
                pass
            found.append(is_kept())
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert found == [False, False, False]
    with flush_denormals(False):
        assert is_kept()
    assert is_kept()


@pytest.mark.parametrize("n_servers", [1, 2])
def test_moments_of_networks_are_flushed_to_zero(client: Client, n_servers: int) -> None:
    # A feature that does not occur after the first pass: its moments shrink at each step.
    rng = np.random.default_rng(0)
    X, y = rng.random((400, 4), np.float32), rng.integers(2, size=400)
    # A single server on this host would leave the steps to the trainers.
    model: Any = MLPClassifier(
        (8,), alpha=0.0, beta_1=0.6, batch_size=2, policy="sync", run=Run(n_servers=n_servers)
    )
    for n, factor in ((40, 1), (400, np.array([1, 1, 1, 0], np.float32))):
        size = n // 2
        rows = da.from_array(X[:n] * factor, chunks=(size, -1)), da.from_array(y[:n], chunks=size)
        model.partial_fit(*rows, classes=[0, 1])
    m = np.abs(model._state.opt_state["m"])
    least = np.finfo(np.float32).tiny
    assert not ((m > 0) & (m < least)).any()
    assert (model.coefs_[0] != 0).all()
    assert (m[24:32] == 0).all()
    assert is_kept()
