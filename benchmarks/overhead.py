"""No cluster, breast cancer: a whole fit beside scikit-learn's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import SGDClassifier as Peer

from benchmarks._common import markdown
from daskml_dist.linear_model import SGDClassifier


def run(tiny: bool = False) -> str:
    """The table."""
    X, y = load_breast_cancer(return_X_y=True)
    runs = 2 if tiny else 31
    peer = _median(lambda: Peer(random_state=0).fit(X, y), runs)
    rows = [["scikit-learn SGDClassifier", f"{peer:.1f}", ""]]
    for policy in ("sync", "allreduce", "async"):
        ours = _median(lambda p=policy: SGDClassifier(random_state=0, policy=p).fit(X, y), runs)
        rows.append([f'policy="{policy}"', f"{ours:.1f}", f"{2 * peer + 50:.1f}"])
    columns = ["", "median ms", "bound: 2 x scikit-learn + 50 ms"]
    return markdown("A fit of breast cancer without a cluster", columns, rows)


def _median(fit: Callable[[], Any], runs: int) -> float:
    fit()
    taken = []
    for _ in range(runs):
        start = time.perf_counter()
        fit()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e3
