"""Time of a step with a 1 KB model on two worker processes, compared with PyTorch DDP."""

from __future__ import annotations

import importlib.util
import statistics

from benchmarks._common import logistic_rows, markdown, persisted, processes
from daskml_dist.linear_model import SGDClassifier

#: Number of float64 features that make 1 KB.
FEATURES, BATCH = 128, 64
POLICIES = ["sync", "allreduce", "ssp", "async", "local", "hogwild"]


def run(tiny: bool = False) -> str:
    """Return the table; steps of lanes at their own pace are counted over all lanes."""
    X, y = logistic_rows(2_000 if tiny else 100_000, FEATURES, "float64")
    rows = []
    with processes(2):
        X, y = persisted(X, 4), persisted(y, 4)
        for policy in POLICIES:
            clf = SGDClassifier(
                policy=policy,
                batch_size=BATCH,
                tol=None,
                max_iter=3 if tiny else 11,
                random_state=0,
            ).fit(X, y)
            # The first pass warms up.
            steps = [r["seconds"] / r["steps"] * 1e3 for r in clf.history_.records[1:]]
            median = statistics.median(steps)
            rows.append([policy, f"{median:.3f}", f"{max(steps):.3f}", f"{1e3 / median:,.0f}"])
    if importlib.util.find_spec("torch") is None:
        rows.append(["PyTorch DDP (gloo)", "not installed", "", ""])
    else:
        from benchmarks._torch_ddp import step_milliseconds

        ddp = step_milliseconds(FEATURES, BATCH, steps=50 if tiny else 1000)
        rows.append(["PyTorch DDP (gloo)", f"{ddp:.3f}", "", f"{1e3 / ddp:,.0f}"])
    title = f"A step: logistic, 1 KB of parameters, {BATCH} rows per worker, 2 worker processes"
    return markdown(title, ["policy", "median ms", "largest ms", "steps/s"], rows)
