"""Shared code of the benchmarks: clusters, data, tables."""

from __future__ import annotations

import contextlib
import datetime
import gzip
import multiprocessing
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from numpy.typing import NDArray
from sklearn.datasets import load_svmlight_file

_kept: dict[tuple[int, int], LocalCluster] | None = None


@contextlib.contextmanager
def keep_clusters() -> Iterator[None]:
    """Let benchmarks share clusters inside the context: starting them would dominate tiny runs."""
    global _kept
    _kept = {}
    try:
        yield
    finally:
        for cluster in _kept.values():
            cluster.close()
        _kept = None


@contextlib.contextmanager
def processes(workers: int, threads: int = 1) -> Iterator[Client]:
    """Open a client of worker processes on the loopback interface."""
    size = workers, threads
    cluster = None if _kept is None else _kept.get(size)
    if cluster is None:
        cluster = LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            host="127.0.0.1",
            dashboard_address=":0",
        )
        if _kept is not None:
            _kept[size] = cluster
    try:
        with Client(cluster) as client:
            yield client
    finally:
        if _kept is None:
            cluster.close()


def persisted(values: NDArray[Any], blocks: int) -> Any:
    """Return a dask Array in the workers' memory, with blocks distributed evenly by Dask."""
    size = -(-len(values) // blocks)
    with warnings.catch_warnings():
        # Rows generated here are sent to the workers once, inside a large graph; this is intended.
        warnings.filterwarnings("ignore", "Sending large graph")
        # As for users: arrays received over a network may begin at any byte.
        return da.from_array(values, chunks=(size, *values.shape[1:])).persist()


def read_bandwidth(processes: int = 1, repeats: int = 5) -> float:
    """Return the bytes per second that processes read from memory: a bound for any pass.

    Each process runs on one core and finds the maximum of 64 million float32 (256 MB), NumPy's
    fastest way to read.
    """
    if processes == 1:
        return _read(repeats)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    with context.Pool(processes, initializer=_meet_at, initargs=(barrier,)) as pool:
        return sum(pool.map(_read, [repeats] * processes, chunksize=1))


_start: Any = None


def _meet_at(barrier: Any) -> None:
    global _start
    _start = barrier


def _read(repeats: int) -> float:
    values = np.ones(1 << 26, dtype=np.float32)
    if _start is not None:
        _start.wait(timeout=60)
    return values.nbytes / median_seconds(values.max, repeats)


def median_seconds(work: Callable[[], Any], repeats: int = 5) -> float:
    """Return the median time of a call, after one call to warm up."""
    work()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def data_folder() -> Path:
    """Return the folder of real data."""
    sibling = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("DASKML_DIST_DATA") or sibling)
    if not folder.is_dir():
        raise SystemExit("This benchmark needs real data: set DASKML_DIST_DATA to its folder.")
    return folder


def read_a9a() -> tuple[Any, Any, Any, Any]:
    """Return Adult, binarised: train and test rows (CSR float32) and labels."""
    folder = data_folder() / "a9a"
    X, y = load_svmlight_file(str(folder / "a9a"), n_features=123, dtype=np.float32)
    X_test, y_test = load_svmlight_file(str(folder / "a9a.t"), n_features=123, dtype=np.float32)
    return X, y, X_test, y_test


def read_mnist() -> tuple[Any, Any, Any, Any]:
    """Return MNIST / 255: train and test rows (float32) and labels."""

    def read(name: str, offset: int) -> NDArray[np.uint8]:
        with gzip.open(data_folder() / "mnist" / name) as file:
            return np.frombuffer(file.read(), np.uint8, offset=offset)

    return (
        read("train-images-idx3-ubyte.gz", 16).reshape(-1, 784) / np.float32(255),
        read("train-labels-idx1-ubyte.gz", 8),
        read("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 784) / np.float32(255),
        read("t10k-labels-idx1-ubyte.gz", 8),
    )


def logistic_rows(n_rows: int, n_features: int, dtype: str = "float32") -> tuple[Any, Any]:
    """Return generated rows of a logistic model, always the same."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, n_features)).astype(dtype)
    raw = X @ rng.normal(size=n_features)
    return X, (raw + rng.logistic(size=n_rows) > 0).astype(np.int64)


def markdown(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return one table, with the machine and the date above it."""
    lines = [
        f"{title} ({machine()}, {datetime.date.today().isoformat()})",
        "",
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
    ]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def machine() -> str:
    """Return the number of cores and the processor's name."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        text = Path("/proc/cpuinfo").read_text()
        line = next(row for row in text.splitlines() if row.startswith("model name"))
        model = line.split(":", 1)[1].strip()
    return f"{os.cpu_count()} cores, {model}"
