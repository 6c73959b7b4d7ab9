"""Recht et al. 2011 (HOGWILD!): threads without locks, by the sparsity of the rows.

Measured: real fits under ``"hogwild"`` in one process with one and with two threads, whose rows
touch fewer or more features. Simulated: the cost of memory accesses for up to ten cores, without
and with locks (`benchmarks/simulator/threads.py`); this is the time of memory operations, not of a
fit.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask import delayed
from distributed import Client, wait
from numpy.typing import NDArray
from scipy import sparse

from benchmarks._common import markdown, processes
from benchmarks.papers._picture import COLOURS, label, small_picture
from benchmarks.simulator.threads import SCHEMES, updates_per_second
from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.optimizers import Adagrad

__all__ = ["draw", "measure", "table"]

PER_ROW = 32
#: Total numbers of features: a row touches from one in 64 of them to one in 16,384.
FEATURES = (2**11, 2**13, 2**15, 2**17, 2**19)
CORES = (1, 2, 4, 6, 8, 10)
#: Seconds of a gradient.
GRADIENTS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
REPEATS = 5


@dataclass(frozen=True)
class Figures:
    """Rates and losses of real fits by (features, threads); simulated speed-ups.

    `schemes` is by (scheme, cores), with gradients of one microsecond; `gradients` is by (scheme,
    seconds of a gradient), with ten cores.
    """

    rate: dict[tuple[int, int], float]
    loss: dict[tuple[int, int], float]
    schemes: dict[tuple[str, int], float]
    gradients: dict[tuple[str, float], float]


def measure(tiny: bool = False, real: bool = False) -> Figures:
    """Run fits with one and with two threads alternately, then the simulations."""
    features = FEATURES[:1] if tiny else FEATURES
    rate, loss = {}, {}
    for width in features:
        X, y = _rows(2_000 if tiny else 120_000, width)
        found: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        with processes(1, 2) as client:
            rows = _persisted(client, X, y)
            for repeat in range(1 if tiny else REPEATS + 1):
                for threads in found:
                    fit = _fit(client, rows, threads, len(y))
                    if repeat or tiny:  # the first fits compile
                        found[threads].append(fit)
        for threads, fits in found.items():
            rate[width, threads] = statistics.median(r for r, _ in fits)
            loss[width, threads] = statistics.median(value for _, value in fits)
    return Figures(rate, loss, *_simulated(tiny))


def _rows(n_rows: int, n_features: int) -> tuple[Any, NDArray[np.int64]]:
    """Return rows of a logistic model; each touches 32 features, all equally often."""
    rng = np.random.default_rng(0)
    columns = rng.integers(n_features, size=n_rows * PER_ROW, dtype=np.int32)
    values = np.ones(len(columns), dtype=np.float32)
    indptr = np.arange(0, len(columns) + 1, PER_ROW, dtype=np.int32)
    X = sparse.csr_matrix((values, columns, indptr), shape=(n_rows, n_features))
    X.sum_duplicates()
    raw = X @ rng.normal(scale=0.3, size=n_features)
    return X, (raw + rng.logistic(size=n_rows) > 0).astype(np.int64)


def _persisted(client: Client, X: Any, y: NDArray[np.int64]) -> tuple[Any, Any]:
    halves = [slice(0, len(y) // 2), slice(len(y) // 2, len(y))]
    parts = client.scatter([X[at] for at in halves])
    chunks = [
        da.from_delayed(delayed(part), (len(y[at]), X.shape[1]), meta=X[:0])
        for part, at in zip(parts, halves, strict=True)
    ]
    rows = client.persist([da.concatenate(chunks), da.from_array(y, chunks=len(y) // 2)])
    wait(rows)
    return rows[0], rows[1]


def _fit(client: Client, rows: Any, threads: int, n_rows: int) -> tuple[float, float]:
    """Return million rows per second in passes, and the training loss of the last pass."""
    clf = SGDClassifier(
        policy="hogwild", optimizer=Adagrad(initial_accumulator=0.2), learning_rate=0.25,
        alpha=1e-6, max_iter=4, tol=None, random_state=0, run=Run(n_lanes=threads),
    ).fit(*rows, client=client)  # fmt: skip
    records = clf.history_.records
    return n_rows / statistics.median(r["seconds"] for r in records) / 1e6, records[-1]["loss"]


def _simulated(tiny: bool) -> tuple[Any, Any]:
    updates, cores = (200, CORES[:2]) if tiny else (3000, CORES)

    def speed(scheme: str, count: int, gradient: float) -> float:
        alone = updates_per_second("lock-free", 1, gradient, updates=updates)
        return updates_per_second(scheme, count, gradient, updates=updates) / alone

    schemes = {(s, c): speed(s, c, 1e-6) for s in SCHEMES for c in cores}
    gradients = {(s, g): speed(s, cores[-1], g) for s in SCHEMES for g in GRADIENTS}
    return schemes, gradients


def table(figures: Figures) -> str:
    """Return the measured and the simulated results."""
    measured = [
        [
            f"1 in {width // PER_ROW:,}",
            *(f"{figures.rate[width, threads]:.2f}" for threads in (1, 2)),
            f"{figures.rate[width, 2] / figures.rate[width, 1]:.2f}",
            *(f"{figures.loss[width, threads]:.4f}" for threads in (1, 2)),
        ]
        for width in sorted({width for width, _ in figures.rate})
    ]
    title = (
        f'HOGWILD! 2011, measured: real fits under "hogwild" in one process, rows of {PER_ROW} '
        f"features, medians of {REPEATS}"
    )
    columns = [
        "features that a row touches", "million rows/s, 1 thread", "2 threads", "speed-up",
        "loss in pass 4, 1 thread", "2 threads",
    ]  # fmt: skip
    return "\n\n".join([markdown(title, columns, measured), *_simulated_tables(figures)])


def _simulated_tables(figures: Figures) -> list[str]:
    cores = sorted({c for _, c in figures.schemes})
    gradients = sorted({g for _, g in figures.gradients})
    by_cores = [[s, *(f"{figures.schemes[s, c]:.2f}" for c in cores)] for s in SCHEMES]
    by_length = [[s, *(f"{figures.gradients[s, g]:.2f}" for g in gradients)] for s in SCHEMES]
    title = "Simulated: updates over one core's without locks, rows as sparse as RCV1's,"
    return [
        markdown(f"{title} a gradient takes 1 us", ["cores", *map(str, cores)], by_cores),
        markdown(
            f"{title} {cores[-1]} cores",
            ["a gradient takes", *(f"{g * 1e6:g} us" for g in gradients)], by_length,
        ),
    ]  # fmt: skip


def draw(figures: Figures, path: Path) -> None:
    """Draw measured rates by sparsity, and simulated ones by scheme, cores and gradient length."""
    widths = sorted({width for width, _ in figures.rate})
    cores = sorted({c for _, c in figures.schemes})
    gradients = sorted({g for _, g in figures.gradients})
    with small_picture(path, 3) as (real, by_cores, by_length):
        speed = [figures.rate[w, 2] / figures.rate[w, 1] for w in widths]
        real.semilogx([w // PER_ROW for w in widths], speed, "o-", color=COLOURS[0], base=2)
        for level in (1, 2):
            real.axhline(level, color="0.7", lw=0.8)
        real.set_ylim(0, 2.2)
        title = "two threads over one (measured, real fits)"
        label(real, title, "a row touches one feature in", "speed-up", None)
        for scheme, colour in zip(SCHEMES, COLOURS, strict=False):
            line_options = {"ms": 3, "color": colour, "label": scheme}
            found = [figures.schemes[scheme, c] for c in cores]
            by_cores.plot(cores, found, "o-", **line_options)
            found = [figures.gradients[scheme, g] for g in gradients]
            by_length.semilogx([g * 1e6 for g in gradients], found, "o-", **line_options)
        label(by_cores, "a gradient takes 1 us (simulated)", "cores", "speed-up")
        title = f"{cores[-1]} cores (simulated)"
        label(by_length, title, "a gradient, in microseconds", "speed-up", None)
