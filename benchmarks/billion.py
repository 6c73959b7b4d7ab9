"""One billion rows of Parquet through a fit: rows a second and memory from first tenth to last.

The folder has as many files as a billion rows need, but most are additional names (hard links) of a
few: 1,000 files of a million rows take 3 GB of disk instead of 45, and are served from the page
cache if it holds those. ``DASKML_DIST_BILLION`` sets another number of files, such as ``100``, and
``DASKML_DIST_DISTINCT`` how many of them are distinct (64; 45 MB each). With ``DASKML_DIST_COLD=1``
the files are dropped from the page cache four times per second, so that every read is from the
disk; the table shows how many bytes the workers read from it. ``DASKML_DIST_BENCH`` names the
folder for the files (a temporary one by default, removed at the end). Two workers of 1.5 GiB each.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
from distributed import Client
from numpy.typing import NDArray

from benchmarks._common import markdown
from benchmarks._memory import memory_peak
from benchmarks.streaming import FEATURES, workers, write_file
from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier

#: Number of files that are written; all others are additional names of these.
DISTINCT = 64


def run(tiny: bool = False) -> str:
    """Return the table."""
    files = 20 if tiny else int(os.environ.get("DASKML_DIST_BILLION", "1000"))
    rows = 2_000 if tiny else 1_000_000
    limit = "2 GiB" if tiny else "1.5 GiB"
    with _folder() as folder, workers(limit) as client:
        distinct = min(int(os.environ.get("DASKML_DIST_DISTINCT", DISTINCT)), files)
        cold = os.environ.get("DASKML_DIST_COLD") == "1"
        client.gather(client.map(write_file, [folder / "parts"] * distinct, [rows] * distinct,
                                 range(distinct), pure=False))  # fmt: skip
        names = folder / "named"
        names.mkdir(exist_ok=True)
        for k in range(files):
            with contextlib.suppress(FileExistsError):
                os.link(
                    folder / "parts" / f"{k % distinct:03d}.parquet", names / f"{k:05d}.parquet"
                )
        client.restart()  # the memory used for writing is not part of the fit
        budget = 4 * rows * 44 if tiny else "200MB"
        with _cold_cache(folder / "parts") if cold else contextlib.nullcontext():
            table = _measure(client, folder, files, rows, budget)
    title = (
        f"One SGD pass over {files * rows:,} rows x {len(FEATURES)} float32 of Parquet, {files} "
        f"files (hard links to {distinct}), {'cold' if cold else 'warm'} page cache, "
        f"2 workers of {limit}"
    )
    return markdown(title, ["", "rows/s", "peak memory per worker, MiB"], table)


def _measure(
    client: Client, folder: Path, files: int, rows: int, budget: int | str
) -> list[list[str]]:
    frame = dd.read_parquet(folder / "named")
    # Importing packages on the workers is not part of reading.
    frame.partitions[:8].map_partitions(_touched, meta=(None, "f8")).compute()
    before = _from_storage(client)
    begin = time.perf_counter()
    frame.map_partitions(_touched, meta=(None, "f8")).compute()
    reading = time.perf_counter() - begin
    read = _from_storage(client) - before
    log = folder / "log"
    log.mkdir(exist_ok=True)
    for old in log.iterdir():
        old.unlink()
    begin = time.perf_counter()
    model = SGDClassifier(
        max_iter=1, tol=None, random_state=0, learning_rate=0.1, policy="allreduce",
        run=Run(memory_budget=budget), callbacks=_Log(str(log)),
    ).fit(frame[FEATURES], frame["y"])  # fmt: skip
    whole = time.perf_counter() - begin
    assert model.history_.extra["streamed"]
    fetched = _from_storage(client) - before - read
    record, total = model.history_[0], files * rows
    rates, peaks = _tenths(log)
    table = [
        [f"tenth {k}", f"{rate:,.0f}", f"{peak:,.0f}"]
        for k, (rate, peak) in enumerate(zip(rates, peaks, strict=True), 1)
    ]
    table += [
        [f"whole pass, {record['seconds']:.1f} s", f"{total / record['seconds']:,.0f}", ""],
        [f"reading only, {reading:.1f} s", f"{total / reading:,.0f}", ""],
        [f"whole fit with its first look at the data, {whole:.1f} s", f"{total / whole:,.0f}", ""],
        [f"training loss {record['loss']:.4f}, {record['steps']:,} steps", "", ""],
        [
            f"from storage: {read / 1e9:.1f} GB reading only, {fetched / 1e9:.1f} GB for the fit",
            "",
            "",
        ],
    ]
    return table


def _from_storage(client: Client) -> int:
    """Return the number of bytes that the workers read from the disk, not from the page cache."""
    bytes_read = client.run(lambda: psutil.Process().io_counters().read_bytes)
    return sum(bytes_read.values())


@contextlib.contextmanager
def _cold_cache(folder: Path) -> Iterator[None]:
    """Drop a folder's files from the page cache, at the start and every quarter of a second."""
    os.sync()  # pages that have not been written cannot be dropped
    over = threading.Event()

    def drop() -> None:
        for path in folder.iterdir():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def keep_dropping() -> None:
        while not over.wait(0.25):
            drop()

    drop()
    thread = threading.Thread(target=keep_dropping, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class _Log:
    """Time and peak memory at each step of a lane, stored in the trainer's process."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def on_step_end(self, step: Any) -> None:
        peak = memory_peak() / 2**20
        with open(f"{self._folder}/{step.lane}", "a") as log:
            log.write(f"{time.time()} {step.n_rows} {peak}\n")


def _tenths(log: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return rows/s of all lanes in each tenth of the steps, and the largest peak in it."""
    lanes = [np.loadtxt(path, ndmin=2) for path in sorted(log.iterdir())]
    steps = min(map(len, lanes))
    edges = np.linspace(0, steps - 1, 11).astype(int)
    rates, peaks = np.zeros(10), np.zeros(10)
    for times, rows, peak in (lane.T for lane in lanes):
        seconds = np.maximum(np.diff(times[edges]), 1e-9)
        for k, (a, b) in enumerate(itertools.pairwise(edges)):
            rates[k] += rows[a + 1 : b + 1].sum() / seconds[k]
            peaks[k] = max(peaks[k], peak[a : b + 1].max())
    return rates, peaks


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    if given := os.environ.get("DASKML_DIST_BENCH"):
        folder = Path(given) / "billion"
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    else:
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)


def _touched(part: pd.DataFrame) -> float:
    return float(part.to_numpy(dtype="f4")[0, 0])
