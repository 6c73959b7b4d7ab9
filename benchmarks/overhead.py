"""No cluster: a whole small fit compared with scikit-learn's, and the steps of a longer one."""

from __future__ import annotations

import functools
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster, wait
from distributed.actor import ActorFuture
from distributed.comm.inproc import InProc
from distributed.comm.tcp import TCP
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import SGDClassifier as Peer

from benchmarks._common import logistic_rows, markdown
from daskml_dist.linear_model import SGDClassifier

#: Rows of a batch, and features, in the longer fits.
SHAPES = ((32, 20), (256, 28), (256, 512), (8192, 512))
#: Seconds after which all work of a fit has ended.
_QUIET = 0.5


def run(tiny: bool = False) -> str:
    """Return three tables."""
    return f"{_whole(tiny)}\n\n{_steps(tiny)}\n\n{_messages(tiny)}"


def _messages(tiny: bool) -> str:
    """Return messages of all processes and waits of the client for a fit, by number of workers."""
    rows = []
    for n_workers in (2,) if tiny else (2, 4, 8, 16, 32):
        with (
            LocalCluster(
                n_workers=n_workers, processes=False, threads_per_worker=1, dashboard_address=":0"
            ) as local,
            Client(local) as client,
        ):
            dX, dy = _spread(client, *logistic_rows(1000, 20))
            clf = SGDClassifier(max_iter=2, tol=None, random_state=0)
            n_lanes = clf.fit(dX, dy).history_.extra["n_lanes"]
            assert n_lanes == n_workers, n_lanes
            ms = _median(lambda clf=clf, dX=dX, dy=dy: clf.fit(dX, dy), 2 if tiny else 9)
            time.sleep(_QUIET)
            with _counted() as counts:
                clf.fit(dX, dy)
                time.sleep(_QUIET)  # the workers' clean-up messages belong to the fit too
            with _counted() as idle:  # heartbeats
                time.sleep(_QUIET + ms / 1000)
            sent = counts["sent"] - idle["sent"]
            rows.append(
                [str(n_workers), f"{sent:,}", f"{sent / n_workers:.1f}", f"{counts['waits']}",
                 f"{ms:.0f}"]
            )  # fmt: skip
    columns = [
        "workers (threads of one process)", "messages sent", "per worker", "waits of the client",
        "ms",
    ]  # fmt: skip
    return markdown("A fit of 1,000 x 20 on a cluster", columns, rows)


def _spread(client: Client, X: Any, y: Any) -> list[list[Any]]:
    """Return the rows with a block on each worker."""
    workers = sorted(client.nthreads())
    held = [
        [
            client.persist(dask.delayed(part), workers=[worker])
            for worker, part in zip(workers, np.array_split(array, len(workers)), strict=True)
        ]
        for array in (X, y)
    ]
    wait(held)
    return held


@contextmanager
def _counted() -> Iterator[Counter[str]]:
    """Count all messages sent in this process, also on open connections, and waits."""
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        for owner, name, what in (
            (TCP, "write", "sent"),
            (InProc, "write", "sent"),
            (Client, "sync", "waits"),
            (ActorFuture, "result", "waits"),
        ):
            method = getattr(owner, name)
            setattr(owner, name, _counting(method, counts, what))
            stack.callback(setattr, owner, name, method)
        yield counts


def _counting(method: Callable[..., Any], counts: Counter[str], what: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def counted(*args: Any, **kwargs: Any) -> Any:
        counts[what] += 1
        return method(*args, **kwargs)

    return counted


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
    """Return a step's time with rows gathered (at first), and by a compiled loop."""
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
        "batch", "first step, us", "later step, us", "million rows/s",
        "scikit-learn, one row per step, million rows/s",
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
