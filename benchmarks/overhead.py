"""No cluster: a whole small fit beside scikit-learn's, and the steps of a longer one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import SGDClassifier as Peer

from benchmarks._common import logistic_rows, markdown
from daskml_dist.linear_model import SGDClassifier

#: Rows of a batch, and features, of the longer fits.
SHAPES = ((32, 20), (256, 28), (256, 512), (8192, 512))


def run(tiny: bool = False) -> str:
    """Two tables."""
    return f"{_whole(tiny)}\n\n{_steps(tiny)}"


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
