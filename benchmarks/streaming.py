"""A pass over Parquet that does not fit in memory, compared with only reading it.

``DASKML_DIST_BENCH`` names the folder for the generated files (4.6 GB; a temporary one by default,
removed at the end). Two workers of 1.5 GiB each.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster

from benchmarks._common import markdown
from benchmarks._memory import memory_peak
from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier

FEATURES = [f"x{i}" for i in range(10)]
PASSES = 2


def run(tiny: bool = False) -> str:
    """Return the table."""
    files, rows = (8, 2_000) if tiny else (100, 1_000_000)
    budget = 2 * rows * 44 if tiny else "auto"
    limit = "2 GiB" if tiny else "1.5 GiB"
    with _folder(f"{files}-{rows}") as folder:
        write = partial(write_file, folder, rows)
        if tiny:
            for number in range(files):
                write(number)
        else:  # written by workers that have exited when memory is measured
            with workers(limit) as client:
                client.gather(client.map(write, range(files), pure=False))
        return _measure(folder, files, rows, budget, limit)


def _measure(folder: Path, files: int, rows: int, budget: int | str, limit: str) -> str:
    with workers(limit) as client:
        frame = dd.read_parquet(folder)
        # A new function each time, so that no result is cached.
        reading = min(_seconds(frame, lambda part: len(part)), _seconds(frame, len))
        converting = _seconds(frame, _rows_as_array)
        begin = time.perf_counter()
        model = SGDClassifier(
            max_iter=PASSES,
            tol=None,
            random_state=0,
            run=Run(memory_budget=budget),
            learning_rate=0.1,
        ).fit(frame[FEATURES], frame["y"])
        assert model.history_.extra["streamed"]
        whole = time.perf_counter() - begin
        peaks = client.run(memory_peak)
    total = files * rows
    seconds = min(r["seconds"] for r in model.history_.records)
    table = [
        ["reading only, rows/s", f"{total / reading:,.0f}"],
        ["reading into NumPy rows, rows/s", f"{total / converting:,.0f}"],
        ["SGD pass, rows/s", f"{total / seconds:,.0f}"],
        ["relative to reading only", f"{reading / seconds:.0%}"],
        ["relative to reading into NumPy rows", f"{converting / seconds:.0%}"],
        [f"whole fit: first look at the data and {PASSES} passes, s", f"{whole:.2f}"],
        ["reading only, as often, s", f"{(PASSES + 1) * reading:.2f}"],
        ["steps per pass", f"{model.history_.records[-1]['steps']:,}"],
        ["peak memory per worker, MiB", ", ".join(f"{p / 2**20:,.0f}" for p in peaks.values())],
        ["training loss of each pass", ", ".join(f"{r['loss']:.4f}" for r in model.history_)],
    ]
    title = f"Streaming {total:,} rows x {len(FEATURES)} float32, 2 workers of {limit}"
    return markdown(title, ["", "value"], table)


@contextlib.contextmanager
def _folder(name: str) -> Iterator[Path]:
    if given := os.environ.get("DASKML_DIST_BENCH"):
        folder = Path(given) / name
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    else:
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)


@contextlib.contextmanager
def workers(limit: str) -> Iterator[Client]:
    """Open a client of two processes with limited memory."""
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            memory_limit=limit,
            host="127.0.0.1",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def _make(number: int, rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(number)
    X = rng.standard_normal((rows, len(FEATURES)), dtype=np.float32)
    raw = X @ np.linspace(-1, 1, len(FEATURES), dtype=np.float32)
    frame = pd.DataFrame(X, columns=FEATURES)
    return frame.assign(y=(raw + rng.logistic(size=rows) > 0).astype(np.int8))


def write_file(folder: Path, rows: int, number: int) -> None:
    """Write one file, if it does not exist yet."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:03d}.parquet"
    if not path.exists():
        _make(number, rows).to_parquet(path, index=False)


def _seconds(frame: Any, function: Callable[[Any], int]) -> float:
    start = time.perf_counter()
    frame.map_partitions(function, meta=pd.Series(dtype=int)).compute()
    return time.perf_counter() - start


def _rows_as_array(frame: pd.DataFrame) -> int:
    return len(np.ascontiguousarray(frame[FEATURES].to_numpy()))
