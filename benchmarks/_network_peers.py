"""Peers that train networks in one process, with scikit-learn's interface: skorch, scikit-learn."""

from __future__ import annotations

import importlib.util
import multiprocessing
import statistics
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from threadpoolctl import threadpool_limits

from benchmarks._torch_nets import make_net, some_rows

Case = tuple[str, int, int]


def peers(cases: list[Case], n_rows: int) -> dict[str, list[float | None] | None]:
    """Return steps/s of each peer with one thread, by name; None: it is not installed."""
    found: dict[str, list[float | None] | None] = {"skorch, 1 process of 1 thread": None}
    if importlib.util.find_spec("skorch") and importlib.util.find_spec("torch"):
        found["skorch, 1 process of 1 thread"] = _in_process(_skorch, cases, n_rows)
    name = "scikit-learn's MLPClassifier, 1 thread"
    found[name] = _in_process(_sklearn, cases, n_rows)
    return found


def _in_process(
    rate: Callable[..., float | None], cases: list[Case], n_rows: int
) -> list[float | None]:
    """Return the rates in a new process, which has not been warmed up or limited."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return list(pool.map(rate, *zip(*cases, strict=True), [n_rows] * len(cases)))


def _passes(one: Callable[[], Any], n_steps: int, steps: int) -> float:
    """Return steps per second over passes, after one pass to warm up."""
    one()
    seconds = []
    for _ in range(max(2, -(-steps // n_steps))):
        since = time.perf_counter()
        one()
        seconds.append(time.perf_counter() - since)
    return n_steps / statistics.median(seconds)


def _skorch(name: str, batch: int, steps: int, n_rows: int) -> float:
    import torch
    from skorch import NeuralNetClassifier

    torch.set_num_threads(1)
    X, y = some_rows(name, min(n_rows, batch * max(steps // 4, 2)))
    net = NeuralNetClassifier(
        make_net(name), criterion=torch.nn.CrossEntropyLoss, optimizer=torch.optim.Adam,
        lr=1e-3, batch_size=batch, max_epochs=1, train_split=None, verbose=0,
        iterator_train__shuffle=True,
    )  # fmt: skip
    return _passes(lambda: net.partial_fit(X, y), -(-len(X) // batch), steps)


def _sklearn(name: str, batch: int, steps: int, n_rows: int) -> float | None:
    from sklearn.neural_network import MLPClassifier

    if name != "MLP":
        return None
    X, y = some_rows(name, min(n_rows, batch * max(steps // 4, 2)))
    clf = MLPClassifier((256,), alpha=0.0, batch_size=batch, random_state=0)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _passes(lambda: clf.partial_fit(X, y, classes=range(10)), -(-len(X) // batch), steps)
