"""No cluster: a whole small fit beside scikit-learn's, and the steps of a longer one."""

from __future__ import annotations

import functools
import inspect
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import dask.array as da
from distributed import Client, LocalCluster, wait
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import SGDClassifier as Peer

from benchmarks._common import logistic_rows, markdown
from daskml_dist.linear_model import SGDClassifier

#: Rows of a batch, and features, of the longer fits.
SHAPES = ((32, 20), (256, 28), (256, 512), (8192, 512))


def run(tiny: bool = False) -> str:
    """Three tables."""
    return f"{_whole(tiny)}\n\n{_steps(tiny)}\n\n{_messages(tiny)}"


def _messages(tiny: bool) -> str:
    """What a fit sends: calls that wait for the scheduler, and messages that reach it."""
    rows = []
    for n_workers in (2,) if tiny else (2, 4, 8):
        with (
            LocalCluster(
                n_workers, processes=False, threads_per_worker=1, dashboard_address=":0"
            ) as local,
            Client(local) as client,
        ):
            X, y = logistic_rows(1000, 20)
            parts = [da.from_array(X, chunks=(1000 // n_workers, -1))]
            parts.append(da.from_array(y, chunks=1000 // n_workers))
            dX, dy = client.persist(parts)
            wait([dX, dy])
            clf = SGDClassifier(max_iter=2, tol=None, random_state=0)
            ms = _median(lambda clf=clf, dX=dX, dy=dy: clf.fit(dX, dy), 2 if tiny else 9)
            counts: Counter[str] = Counter()
            scheduler = local.scheduler
            for kind, handlers in (
                ("calls", scheduler.handlers),
                ("messages", scheduler.stream_handlers),
            ):
                handlers.update({k: _counted(f, counts, kind) for k, f in handlers.items()})
            clf.fit(dX, dy)
            found = [f"{counts['calls']:,}", f"{counts['messages']:,}"]
            rows.append([str(n_workers), *found, f"{ms:.0f}"])
    columns = ["workers (threads of one process)", "calls of the scheduler", "messages to it", "ms"]
    return markdown("A fit of 1,000 x 20 on a cluster", columns, rows)


def _counted(handler: Callable[..., Any], counts: Counter[str], kind: str) -> Callable[..., Any]:
    @functools.wraps(handler)
    def counted(*args: Any, **kwargs: Any) -> Any:
        counts[kind] += 1
        return handler(*args, **kwargs)

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        return await counted(*args, **kwargs)

    # The scheduler looks whether it is to wait for a handler.
    return functools.wraps(handler)(awaited) if inspect.iscoroutinefunction(handler) else counted


def _whole(tiny: bool) -> str:
    X, y = load_breast_cancer(return_X_y=True)
    runs = 2 if tiny else 31
    peer = _median(lambda: Peer(random_state=0).fit(X, y), runs)
    rows = [["scikit-learn SGDClassifier", f"{peer:.1f}", ""]]
    for policy in ("sync", "allreduce", "async"):
        ours = _median(lambda p=policy: SGDClassifier(random_state=0, policy=p).fit(X, y), runs)
        rows.append([f'policy="{policy}"', f"{ours:.1f}", f"{2 * peer + 50:.1f}"])
    columns = ["", "median ms", "bound: 2 x scikit-learn + 50 ms"]
    return markdown("A fit of breast cancer without a cluster", columns, rows)


def _steps(tiny: bool) -> str:
    """A step when its rows are gathered, as at first, and when a compiled loop makes it."""
    rows = []
    for batch, n_features in SHAPES[: 1 if tiny else None]:
        n_steps = max(16, 16_000_000 // (batch * n_features))
        X, y = logistic_rows(batch * (20 if tiny else min(n_steps, 800)), n_features)
        clf = SGDClassifier(batch_size=batch, max_iter=3 if tiny else 12, tol=None, random_state=0)
        clf.fit(X, y)  # compiles
        taken = [r["seconds"] / r["steps"] for r in clf.fit(X, y).history_.records]
        first, later = taken[0], statistics.median(taken[-6:])
        peer = Peer(loss="log_loss", random_state=0)
        peer.partial_fit(X, y, classes=[0, 1])
        theirs = len(X) / (_median(lambda peer=peer, X=X, y=y: peer.partial_fit(X, y), 3) * 1e3)
        rows.append(
            [f"{batch:,} x {n_features}", f"{first * 1e6:.0f}", f"{later * 1e6:.0f}",
             f"{batch / later / 1e6:.2f}", f"{theirs:.2f}"]
        )  # fmt: skip
    columns = [
        "batch", "us of a first step", "us of a later step", "million rows/s",
        "scikit-learn, a row a step, million rows/s",
    ]  # fmt: skip
    return markdown(
        'Steps of logistic loss without a cluster, float32, policy="sync"', columns, rows
    )


def _median(fit: Callable[[], Any], runs: int) -> float:
    fit()
    taken = []
    for _ in range(runs):
        start = time.perf_counter()
        fit()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e3
