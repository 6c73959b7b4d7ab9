"""Staleness bounds with one slow worker: passes and seconds to a loss, and waiting times."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks._common import logistic_rows, markdown, persisted, processes
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.policies import Asynchronous, BoundedStaleness, Synchronous

WORKERS = 4
#: The slow worker sleeps PAUSE seconds in this share of its batches.
PAUSE, SHARE = 0.004, 0.5


def run(tiny: bool = False) -> str:
    """Return the table."""
    X, y = logistic_rows(4_000 if tiny else 60_000, 50, "float64")
    best = _loss_at_optimum(X, y)
    policies = [Synchronous(), *(BoundedStaleness(s) for s in (0, 1, 4, 16)), Asynchronous()]
    rows = []
    with processes(WORKERS) as client:
        slow = min(client.scheduler_info(n_workers=-1)["workers"])
        client.run(_slow_down, workers=[slow])
        X, y = persisted(X, WORKERS), persisted(y, WORKERS)
        for policy in policies:
            target = best * 1.03
            goal = Goal(target)
            clf = SGDClassifier(
                policy=policy,
                batch_size=128,
                alpha=0.0,
                tol=None,
                max_iter=3 if tiny else 60,
                random_state=0,
                callbacks=[goal],
            ).fit(X, y)
            r = clf.history_.records
            seconds = sum(record["seconds"] for record in r)
            reached = "yes" if goal.reached else "no"
            mean = np.mean([record["staleness_mean"] for record in r])
            largest = max(record["staleness_max"] for record in r)
            steps = sum(record["steps"] for record in r)
            rows.append(
                [repr(policy), len(r), reached, f"{seconds:.2f}", f"{seconds / len(r):.3f}",
                 f"{steps / seconds:,.0f}", f"{mean:.1f}", largest]
            )  # fmt: skip
    columns = [
        "policy", "passes", "loss reached", "seconds", "seconds per pass", "steps/s",
        "mean staleness", "largest",
    ]  # fmt: skip
    title = (
        f"Training to a loss within 3 % of the optimum, {WORKERS} worker processes, one of which "
        f"pauses {PAUSE * 1e3:g} ms in {SHARE:.0%} of its batches"
    )
    return markdown(title, columns, rows)


class Goal:
    """Callback that ends a fit once the loss of a pass is low enough."""

    def __init__(self, target: float) -> None:
        self.target = target
        self.reached = False

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        if not self.reached and record["loss"] <= self.target:
            self.reached = True
            run.stop()


def _loss_at_optimum(X: Any, y: Any) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss

    model = LogisticRegression(C=np.inf, max_iter=1000).fit(X, y)
    return float(log_loss(y, model.predict_proba(X)))


def _slow_down() -> None:
    """Let the lanes of this worker pause at random from now on."""
    from daskml_dist.training.worker.lane import Lane

    add_gradient, rng = Lane.add_gradient, np.random.default_rng(0)

    def paused(self: Lane, w: Any, batch: Any, out: Any) -> None:
        if rng.random() < SHARE:
            time.sleep(PAUSE)
        add_gradient(self, w, batch, out)

    Lane.add_gradient = paused  # type: ignore[method-assign]
