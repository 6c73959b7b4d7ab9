"""Time of a call of a stream: in this process, and on two worker processes under each policy."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from benchmarks._common import logistic_rows, markdown, processes
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.policies import POLICIES

FEATURES, ROWS, WARM = 28, 100, 20


def run(tiny: bool = False) -> str:
    """Return the table; a mean includes the end of all calls in progress."""
    calls = 20 if tiny else 500
    X, y = logistic_rows((WARM + calls) * ROWS, FEATURES, "float64")
    batches = [(X[i : i + ROWS], y[i : i + ROWS]) for i in range(0, len(X), ROWS)]
    rows = [["in this process", *_measure(batches, "inline")]]
    with processes(2) as client:
        rows += [[policy, *_measure(batches, client, policy=policy)] for policy in POLICIES]
    title = f"One call of a stream: logistic, {ROWS} rows x {FEATURES}, float64, 2 worker processes"
    return markdown(title, ["policy", "first ms", "mean ms", "median ms", "p99 ms"], rows)


def _measure(batches: list[Any], client: Any, **params: Any) -> list[str]:
    model = SGDClassifier(random_state=0, **params)
    taken, begin = [], time.perf_counter()
    with model.stream(classes=[0, 1], client=client) as stream:
        stream.learn(*batches[0])
        first = stream.n_rows and time.perf_counter() - begin
        for batch in batches[1:WARM]:
            stream.learn(*batch)
        begin = time.perf_counter()
        for batch in batches[WARM:]:
            since = time.perf_counter()
            stream.learn(*batch)
            taken.append(time.perf_counter() - since)
        assert stream.n_rows == len(batches) * ROWS  # waits for all calls
        mean = (time.perf_counter() - begin) / len(taken)
    times = first, mean, statistics.median(taken), float(np.quantile(taken, 0.99))
    return [f"{1e3 * seconds:.3g}" for seconds in times]
