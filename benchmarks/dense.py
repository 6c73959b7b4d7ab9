"""Dense rows: steps compared with PyTorch DDP, one worker with two, a gradient with a bare read."""

from __future__ import annotations

import importlib.util
import statistics
import time
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks._common import (
    logistic_rows,
    markdown,
    median_seconds,
    persisted,
    processes,
    read_bandwidth,
)
from daskml_dist.backends import get_backend
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.losses import LogLoss
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import LinearModel

#: Features and rows per worker of a small step, and of a step dominated by computing.
SMALL, LARGE = (28, 1_024), (512, 8_192)


def run(tiny: bool = False) -> str:
    """Return the table."""
    rows = _gradients(tiny) + _steps(tiny) + _scaling(tiny) + _fixed(tiny)
    columns = ["", "measured", "compared with", "ratio"]
    return markdown("Logistic loss, float32, medians of 5", columns, rows)


def _gradients(tiny: bool) -> list[list[str]]:
    """Return the time of a whole gradient in one thread, in bytes of X per second."""
    floor = read_bandwidth(1, 2 if tiny else 5)
    rows = []
    if not tiny:
        two = read_bandwidth(2)
        rows.append(["reading memory, two processes", _rate(two), _rate(floor) + " by one process",
                     f"{two / floor:.2f}"])  # fmt: skip
    for n_rows, n_features in [(1_000_000, 28), (200_000, 512)]:
        X, labels = logistic_rows(n_rows // 100 if tiny else n_rows, n_features)
        model = LinearModel(LogLoss(), n_features, 2, fit_intercept=True)
        y = model.encode(labels, np.array([0, 1]), "float32")
        w, out = np.full(model.shape, 0.01, dtype="float32"), np.zeros(model.shape)
        with threadpool_limits(1):
            taken = median_seconds(
                lambda X=X, y=y, w=w, out=out, model=model: model.add_gradient(
                    w, BatchRows(X, y), out, get_backend("cpu")
                )
            )
        rate = X.nbytes / taken
        rows.append([f"gradient of {len(X):,} x {n_features}",
                     f"{taken * 1e3:.1f} ms, {_rate(rate)}",
                     _rate(floor) + " reading only", f"{rate / floor:.2f}"])  # fmt: skip
    return rows


def _rate(bytes_a_second: float) -> str:
    return f"{bytes_a_second / 1e9:.1f} GB/s"


def _steps(tiny: bool) -> list[list[str]]:
    n_features, batch = SMALL
    X, y = logistic_rows((8 if tiny else 800) * batch, n_features)
    measured, whole = {}, {}
    with processes(2):
        X, y = persisted(X, 2), persisted(y, 2)
        for policy in ("allreduce", "sync"):
            since = time.perf_counter()
            records = _fit(X, y, policy, batch)
            whole[policy] = time.perf_counter() - since
            measured[policy] = statistics.median(r["steps"] / r["seconds"] for r in records)
    # DDP's two processes, then one process that makes the same step over all rows.
    peers: dict[str, float] = {}
    if importlib.util.find_spec("torch") is not None:
        from benchmarks._torch_ddp import alone_milliseconds, step_milliseconds

        steps = 50 if tiny else 2_000
        peers["PyTorch DDP (gloo)"] = 1e3 / step_milliseconds(n_features, batch, steps, "float32")
        for threads in (1, 2):
            taken = alone_milliseconds(n_features, 2 * batch, steps, "float32", threads)
            peers[f"PyTorch, one process, {threads} thread{'s' * (threads > 1)}"] = 1e3 / taken
    title = f"steps/s, {batch:,} x {n_features} per worker, 2 workers"
    rows = []
    for policy, steps_a_second in measured.items():
        own = [
            f'{title}, policy="{policy}"',
            f"{steps_a_second:,.0f} (whole fit: {whole[policy]:.2f} s)",
        ]
        if not peers:
            rows.append([*own, "PyTorch: not installed", ""])
        for name, rate in peers.items():
            rows.append([*own, f"{name}: {rate:,.0f}", f"{steps_a_second / rate:.2f}"])
    return rows


def _scaling(tiny: bool) -> list[list[str]]:
    n_features, batch = LARGE
    X, y = logistic_rows((2 if tiny else 16) * batch, n_features)
    measured = []
    for workers in (1, 2):
        with processes(workers):
            records = _fit(persisted(X, 2), persisted(y, 2), "allreduce", batch)
            measured.append(statistics.median(r["rows"] / r["seconds"] for r in records))
    one, two = measured
    title = f"rows/s, {batch:,} x {n_features} per worker, 2 workers"
    return [[title, f"{two:,.0f}", f"1 worker: {one:,.0f}", f"{two / one:.2f}"]]


def _fit(X: Any, y: Any, policy: str, batch: int) -> list[dict[str, Any]]:
    """Return the passes of a fit without the first, which warms up."""
    clf = SGDClassifier(
        policy=policy, batch_size=batch, tol=None, max_iter=6, random_state=0, learning_rate=0.1
    )
    return list(clf.fit(X, y).history_.records[1:])


def _fixed(tiny: bool) -> list[list[str]]:
    """Measure a fit of one step over all rows: its gradient, and everything around it."""
    n_rows = 20_000 if tiny else 2_000_000
    X, y = logistic_rows(n_rows, 28)
    with processes(2):
        X, y = persisted(X, 2), persisted(y, 2)
        clf = SGDClassifier(policy="allreduce", batch_size=n_rows, max_iter=1, tol=None)
        taken = median_seconds(lambda: clf.fit(X, y), 2 if tiny else 5)
        step = clf.history_.records[0]["seconds"]
    return [[f"fit of one full-batch step, {n_rows:,} x 28, 2 workers", f"{taken * 1e3:.0f} ms",
             f"its pass over the rows: {step * 1e3:.0f} ms", ""]]  # fmt: skip
