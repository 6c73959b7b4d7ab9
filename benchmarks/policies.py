"""Loss by passes and seconds under each policy, with workers of equal speed and with a slow one.

With ``DASKML_DIST_PICTURES=FOLDER``, pictures are saved there (matplotlib).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from benchmarks._common import logistic_rows, markdown, persisted, processes
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.policies import POLICIES

WORKERS, BATCH = 4, 128
#: The slow worker sleeps PAUSE seconds after this share of its steps.
PAUSE, SHARE = 0.002, 0.5
#: A pass counts as converged once its loss is within this factor of the optimum.
NEAR = 1.02
TITLES = {"equal": "workers of equal speed", "slow": "one worker is slow"}


def run(tiny: bool = False) -> str:
    """Return the table."""
    X, y = logistic_rows(2_000 if tiny else 40_000, 50, "float64")
    exact = LogisticRegression(C=np.inf, max_iter=1000).fit(X, y)
    best = float(log_loss(y, exact.predict_proba(X)))
    curves: dict[str, dict[str, Any]] = {name: {} for name in TITLES}
    with processes(WORKERS) as client:
        pids = sorted(client.run(os.getpid).values())
        rows, labels = persisted(X, WORKERS), persisted(y, WORKERS)
        for policy in POLICIES:  # the first fit of each also compiles and loads its loops
            _curve(rows, labels, policy, 2 if tiny else 15, [])
        for name, slow in (("equal", []), ("slow", pids[:1])):
            for policy in POLICIES:
                passes = 2 if tiny else 15
                curves[name][policy] = _curve(rows, labels, policy, passes, slow)
    if folder := os.environ.get("DASKML_DIST_PICTURES"):
        draw(curves, best, Path(folder))
    table = []
    for policy in POLICIES:
        cells = [f'`"{policy}"`']
        for name in TITLES:
            loss, seconds, moved, stale = curves[name][policy]
            there = np.flatnonzero(loss <= NEAR * best)
            cells += [str(there[0] + 1) if len(there) else f"over {len(loss)}"]
            cells += [f"{seconds[there[0]]:.2f}" if len(there) else "-", f"{seconds[-1]:.2f}"]
            if name == "slow":
                cells += [f"{loss[-1] / best - 1:.1%}", f"{moved:.1f}", f"{stale:.0f}"]
        table.append(cells)
    columns = [
        "policy",
        "passes",
        "seconds",
        "all passes, s",
        "passes, one slow",
        "seconds",
        "all passes, s",
    ]
    columns += ["loss at the end, above the optimum", "MB moved", "largest staleness"]
    title = (
        f"Passes and seconds to a loss within {NEAR - 1:.0%} of the optimum, and seconds of all 15 "
        f"passes, {len(X):,} x 50, batches of {BATCH} rows per worker, {WORKERS} worker processes; "
        f"then with one process that sleeps {PAUSE * 1e3:g} ms after {SHARE:.0%} of its steps"
    )
    return markdown(title, columns, table)


class _Sleep:
    """Callback that makes some processes slow: they sleep after a share of their steps."""

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids
        self.rng = np.random.default_rng(0)

    def on_step_end(self, step: Any) -> None:
        if os.getpid() in self.pids and self.rng.random() < SHARE:
            time.sleep(PAUSE)


def _curve(X: Any, y: Any, policy: str, passes: int, slow: list[int]) -> Any:
    """Return the losses, seconds since the first step, megabytes and largest staleness of a fit."""
    clf = SGDClassifier(
        policy=policy,
        batch_size=BATCH,
        alpha=0.0,
        learning_rate=0.2,
        tol=None,
        max_iter=passes,
        random_state=0,
        callbacks=[_Sleep(slow)],
    ).fit(X, y)
    records = clf.history_.records
    moved = sum(r["bytes_pushed"] + r["bytes_pulled"] for r in records) / 1e6
    return (
        np.array([r["loss"] for r in records]),
        np.cumsum([r["seconds"] for r in records]),
        moved,
        max(r["staleness_max"] for r in records),
    )


def draw(curves: dict[str, dict[str, Any]], best: float, folder: Path) -> None:
    """Draw the losses above the optimum, by passes and by seconds."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    # Make the file reproducible.
    with rc_context({"svg.hashsalt": "policies", "svg.fonttype": "none", "font.size": 9}):
        for name, some in curves.items():
            figure = Figure(figsize=(9, 3.6), layout="constrained")
            by_pass, by_time = figure.subplots(1, 2, sharey=True)
            for (policy, (loss, seconds, *_)), line in zip(some.items(), _LINES, strict=True):
                above: NDArray[Any] = np.maximum(loss / best - 1, 1e-4)
                by_pass.semilogy(range(1, len(loss) + 1), above, line, label=policy)
                by_time.semilogy(seconds, above, line)
            by_pass.set(xlabel="pass", ylabel="loss above the optimum, relative")
            by_time.set(xlabel="seconds")
            for ax in (by_pass, by_time):
                ax.grid(alpha=0.3)
            figure.legend(loc="outside right center", frameon=False)
            figure.suptitle(TITLES[name])
            figure.savefig(folder / f"measured_{name}.svg", metadata={"Date": None})


_LINES = ["o-", "s-", "^-", "v-", "D-", "x-", "+-"]
