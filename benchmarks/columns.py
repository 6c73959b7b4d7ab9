"""Linear models of many parameters: lanes of rows compared with lanes of columns.

Sparse rows of several classes on worker processes of one thread each. Memory is the largest growth
of a worker's process during the fit.
"""

from __future__ import annotations

import statistics
from typing import Any

import dask.array as da
import numpy as np
from scipy import sparse

from benchmarks._common import markdown, processes
from benchmarks._memory import forget_peak, memory_now, memory_peak
from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier

PER_ROW, CLASSES, WORKERS, PASSES, BATCH = 40, 4, 2, 4, 256


def run(tiny: bool = False) -> str:
    """Return the table."""
    n_rows, sizes = (1_000, [4_096]) if tiny else (20_000, [1 << k for k in (20, 22, 24)])
    table = []
    for n_features in sizes:
        X, y = _rows(n_rows, n_features)
        for shard in ("rows", "features"):
            record, grown = _fit(X, y, shard)
            parameters = 2 * 4 * CLASSES * n_features  # and Adagrad's sums, in float32
            table.append(
                [f"{n_features:,}", shard, f"{parameters / 2**20:,.0f}",
                 f"{1e3 * record['seconds']:.2f}", f"{record['bytes'] / 1e3:,.1f}",
                 " / ".join(f"{n / 2**20:,.0f}" for n in grown)]
            )  # fmt: skip
    title = (
        f"SGDClassifier, Adagrad, {CLASSES} classes, {n_rows:,} rows of {PER_ROW} nonzeros, "
        f"{BATCH} rows a step, {WORKERS} worker processes of one thread"
    )
    columns = ["features", "lanes hold", "MiB of parameters and optimizer state", "ms a step",
               "kB sent per step and process", "growth of each worker, MiB"]  # fmt: skip
    return markdown(title, columns, table)


def _fit(X: Any, y: Any, shard: str) -> tuple[dict[str, float], list[int]]:
    """Return the seconds and bytes of a step, and the bytes that each worker's process grew by."""
    by_rows = shard == "rows"
    chunks = (-(-X.shape[0] // WORKERS), X.shape[1]) if by_rows else (X.shape[0], X.shape[1] // 2)
    model = SGDClassifier(
        optimizer="adagrad",
        max_iter=PASSES,
        tol=None,
        batch_size=BATCH // WORKERS if by_rows else BATCH,
        random_state=0,
        run=Run(shard=shard),
    )
    with processes(WORKERS) as client:
        data = _chunked(X, chunks).persist(), da.from_array(y, chunks[0]).persist()
        client.run(forget_peak)
        before = client.run(memory_now)
        records = model.fit(*data).history_.records[1:]
        after = client.run(memory_peak)
    step = {
        "seconds": statistics.median(r["seconds"] / r["steps"] for r in records),
        "bytes": statistics.median(r["bytes_pushed"] / r["steps"] for r in records) / WORKERS,
    }
    return step, [after[address] - before[address] for address in sorted(after)]


def _chunked(X: Any, chunks: tuple[int, int]) -> Any:
    """Return a dask Array of sparse chunks."""

    def part(first: int, left: int) -> Any:
        at = X[first : first + chunks[0], left : left + chunks[1]]
        return da.from_array(at, chunks=at.shape, asarray=False)

    starts = [range(0, size, step) for size, step in zip(X.shape, chunks, strict=True)]
    return da.concatenate(
        [da.concatenate([part(row, left) for left in starts[1]], axis=1) for row in starts[0]]
    )


def _rows(n_rows: int, n_features: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    columns = np.sort(rng.integers(0, n_features, (n_rows, PER_ROW), dtype=np.int32), axis=1)
    indptr = np.arange(0, columns.size + 1, PER_ROW, dtype=np.int32)
    values = rng.normal(size=columns.size).astype("float32")
    X = sparse.csr_matrix((values, columns.ravel(), indptr), shape=(n_rows, n_features))
    X.sum_duplicates()
    raw = X @ rng.normal(size=(n_features, CLASSES)).astype("float32")
    return X, raw.argmax(axis=1)
