"""Lazy tables: peak memory of a fit as the rows grow, and its rate compared with only reading.

Parquet files of generated rows are read as a Polars scan, a DuckDB relation, a pyarrow dataset and
a path, under a memory budget smaller than the rows. Each fit is in a separate process; memory is
the largest growth of that process during the fit, after a small fit that compiled everything.
DASKML_DIST_LAZY_ROWS is the number of rows of the largest table, and DASKML_DIST_LAZY_SOURCE
selects one kind of table.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import dask
import numpy as np

from benchmarks._common import markdown
from benchmarks._memory import forget_peak, memory_now, memory_peak
from daskml_dist import Run
from daskml_dist.cluster import KMeans
from daskml_dist.data.collection import as_collection, take_named_columns
from daskml_dist.ensemble import HistGradientBoostingClassifier
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.preprocessing import StandardScaler

FEATURES, ROW_GROUP, FILE_ROWS, BUDGET = 20, 1 << 17, 1 << 19, 256 << 20
LARGEST = int(os.environ.get("DASKML_DIST_LAZY_ROWS", 32_000_000))
ONLY = os.environ.get("DASKML_DIST_LAZY_SOURCE", "")
TREES, STEPS, CLUSTERS = 5, 3, 8


def run(tiny: bool = False) -> str:
    """Return the table."""
    most = 8_000 if tiny else LARGEST
    sizes = [most // 4, most]
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in sizes:
            _write(folder / str(size), size)
        for source, package in SOURCES.items():
            if package and importlib.util.find_spec(package) is None:
                continue
            if source != (ONLY or source):
                continue
            for work in WORKS:
                measure = _measure if tiny else _measure_apart
                found = [measure(str(folder / str(size)), source, work, tiny) for size in sizes]
                print(source, work, found, file=sys.stderr, flush=True)  # a run takes long
                rates = [size / seconds for size, (seconds, _) in zip(sizes, found, strict=True)]
                rows.append(
                    [source, work, *(f"{rate / 1e6:.2f}" for rate in rates),
                     *(f"{grown / 2**20:,.0f}" for _, grown in found)]
                )  # fmt: skip
    width = 4 * (FEATURES + 1)
    title = (
        f"Rows of {FEATURES} float32 and a label, {most * width / 1e9:.1f} GB and a quarter of "
        f"that, in Parquet, memory_budget of {BUDGET >> 20} MiB, one process"
    )
    heads = [f"{size:,} rows" for size in sizes]
    columns = ["read as", "work", *(f"million rows/s of {head}" for head in heads),
               *(f"growth in MiB, {head}" for head in heads)]  # fmt: skip
    return markdown(title, columns, rows)


def _write(folder: Path, n_rows: int) -> None:
    """Write rows of a logistic model to files, one row group at a time."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    folder.mkdir()
    rng = np.random.default_rng(0)
    weights = rng.normal(size=FEATURES).astype("f4")
    for file, first in enumerate(range(0, n_rows, FILE_ROWS)):
        writer = None
        for start in range(first, min(first + FILE_ROWS, n_rows), ROW_GROUP):
            n = min(ROW_GROUP, n_rows - start, first + FILE_ROWS - start)
            X = rng.standard_normal((n, FEATURES), dtype="f4")
            label = (X @ weights > rng.standard_normal(n, dtype="f4")).astype("i4")
            columns = {f"x{j}": X[:, j] for j in range(FEATURES)}
            table = pa.table({**columns, "label": label})
            writer = writer or ParquetWriter(
                folder / f"{file:04d}.parquet", table.schema, compression="lz4"
            )
            writer.write_table(table)
        if writer is not None:
            writer.close()


def _measure_apart(folder: str, source: str, work: str, tiny: bool) -> tuple[float, int]:
    """Measure in a separate process, whose memory no other work has touched."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure, folder, source, work, tiny).result()


def _measure(folder: str, source: str, work: str, tiny: bool) -> tuple[float, int]:
    """Return the seconds of the work, and the largest growth of this process in bytes."""
    rng = np.random.default_rng(0)
    few = rng.normal(size=(2_000, FEATURES)).astype("f4")
    with dask.config.set(scheduler="threads", num_workers=2):
        WORKS[work](few, rng.integers(2, size=2_000), Run())
        forget_peak()
        before, start = memory_now(), time.perf_counter()
        WORKS[work](
            _open(folder, source), "label", Run(memory_budget=4_000_000 if tiny else BUDGET)
        )
        return time.perf_counter() - start, memory_peak() - before


def _open(folder: str, source: str) -> Any:
    """Return the table, without reading it."""
    files = f"{folder}/*.parquet"
    if source == "Polars scan":
        import polars

        return polars.scan_parquet(files)
    if source == "DuckDB relation":
        import duckdb

        duckdb.sql("set memory_limit = '512MB'")
        return duckdb.sql(f"select * from '{files}' where x0 > -100")
    if source == "pyarrow dataset":
        from pyarrow.dataset import dataset

        return dataset(folder)
    return files


def _read(X: Any, y: Any, run: Run) -> None:
    """Compute all blocks, and drop each."""
    rows = as_collection(*take_named_columns(X, y, None), classification=True)
    if rows.kind == "memory":
        return
    touch = dask.delayed(lambda block: block.n_rows, pure=False)
    dask.compute([touch(block) for block in rows.delayed_blocks()])


def _scale(X: Any, y: Any, run: Run) -> None:
    rows, *_ = take_named_columns(X, y, None)
    StandardScaler().fit(rows)


def _cluster(X: Any, y: Any, run: Run) -> None:
    rows, *_ = take_named_columns(X, y, None)
    model = KMeans(CLUSTERS, max_iter=STEPS, tol=0, n_init=1, random_state=0, run=run)
    model.fit(rows)


#: Kinds of tables, and the package that each needs.
SOURCES = {"Polars scan": "polars", "path": "", "DuckDB relation": "duckdb", "pyarrow dataset": ""}
WORKS: dict[str, Callable[[Any, Any, Run], Any]] = {
    "reading only": _read,
    "StandardScaler": _scale,
    "SGDClassifier, 1 pass": lambda X, y, run: SGDClassifier(
        max_iter=1, tol=None, random_state=0, learning_rate="constant", eta0=0.01, run=run
    ).fit(X, y),
    f"boosting, {TREES} trees": lambda X, y, run: HistGradientBoostingClassifier(
        max_iter=TREES, early_stopping=False, random_state=0, run=run
    ).fit(X, y),
    f"KMeans, {STEPS} steps": _cluster,
}
