"""A stream of a billion ids through two workers: rows per second, and memory over time."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
from distributed import Client, LocalCluster
from numpy.typing import NDArray
from scipy import sparse

from benchmarks._common import markdown
from benchmarks._id_stream import fill_ids
from daskml_dist import Run
from daskml_dist.models.base import N_TABLE_IDS
from daskml_dist.recommender import FactorizationMachineClassifier

#: Ids per row that occur once; equally many that occur often, with N_OFTEN different ones per
#: field.
ONCE, OFTEN, N_OFTEN = 13, 13, 1_000_000
N_IDS = int(os.environ.get("DASKML_DIST_MANY_IDS", 10**9))
CHUNK_ROWS, BATCH = 200_000, 4096
#: Steps that must touch an id before it gets a row, and steps without it after which the row is
#: dropped.
ADMIT_AFTER, EXPIRE_AFTER = 2, 60
MEMORY = "4GiB"
SAMPLE_SECONDS = 2.0


def run(tiny: bool = False, n_ids: int = N_IDS) -> str:
    """Return one table, with a row for each quarter of the fit's time."""
    n_ids, rows = (20_000, 500) if tiny else (n_ids, CHUNK_ROWS)
    X, y = make_lazy_rows(n_ids, rows)
    with (
        LocalCluster(2, threads_per_worker=1, memory_limit=MEMORY, dashboard_address=":0") as there,
        Client(there) as client,
    ):
        watch = Watch(client)
        model = FactorizationMachineClassifier(
            rank=15, max_iter=1, batch_size=128 if tiny else BATCH, policy="async", shuffle=False,
            admit_after=ADMIT_AFTER, expire_after=EXPIRE_AFTER, random_state=0,
            run=Run(n_lanes=2, n_servers=2, memory_budget=1 << 30), callbacks=[watch],
        )  # fmt: skip
        since = time.perf_counter()
        model.fit(X, y, client=client)
        seconds = time.perf_counter() - since
        watch.stop()
    (record,) = model.history_.records
    quarters = np.array_split(np.array(watch.sizes or [[0.0]]), 4)
    table = [
        [f"{i + 1}", *[f"{part.max() / 2**20:,.0f}" if len(part) else "" for part in quarter.T]]
        for i, quarter in enumerate(quarters)
    ]
    lost = f"; {watch.n_lost} workers were lost and replaced" if watch.n_lost else ""
    title = (
        f"{record['rows']:,.0f} rows of {ONCE + OFTEN} ids, {record['rows'] * ONCE:,.0f} of which "
        f"come once, in {record['seconds']:,.0f} s ({record['rows'] / record['seconds']:,.0f} "
        f"rows/s; {seconds:,.0f} s with the pass that finds the labels), two workers of {MEMORY}, "
        f"{watch.cpu_seconds:,.0f} s of CPU; {len(model.ids_):,} ids have a row at the end{lost}"
    )
    columns = ["quarter of the fit", *[f"MiB of worker {k}" for k in range(len(quarters[0].T))]]
    return markdown(title, columns, table)


def make_lazy_rows(n_ids: int, rows: int) -> tuple[Any, Any]:
    """Return rows in chunks until `n_ids` ids have occurred once, and their labels."""
    n_chunks = -(-n_ids // (rows * ONCE))
    X = da.concatenate([
        da.from_delayed(
            dask.delayed(_make_rows)(k, rows), (rows, N_TABLE_IDS), np.float32,
            meta=sparse.csr_array((0, N_TABLE_IDS), dtype=np.float32),
        )
        for k in range(n_chunks)
    ])  # fmt: skip
    y = da.concatenate([
        da.from_delayed(dask.delayed(_make_labels)(k, rows), (rows,), bool) for k in range(n_chunks)
    ])  # fmt: skip
    return X, y


def _make_rows(number: int, n: int) -> sparse.csr_array:
    """Return rows of ids; frequent ids follow a law like Zipf's."""
    ids = np.empty((n, ONCE + OFTEN), np.int64)
    fill_ids(number * n, ONCE, N_OFTEN, ids)
    X = sparse.csr_array((n, N_TABLE_IDS), dtype=np.float32)
    X.data, X.indices = np.ones(ids.size, np.float32), ids.ravel()
    X.indptr = np.arange(0, ids.size + 1, ids.shape[1])
    return X


def _make_labels(number: int, n: int) -> NDArray[np.bool_]:
    """Return labels, of which a third are clicks."""
    found: NDArray[np.bool_] = np.random.default_rng([2, number]).random(n) < 1 / 3
    return found


class Watch:
    """Sampler of the sizes of the workers' processes at regular times, while a fit makes steps.

    If a worker is replaced after a loss, its replacement is sampled.
    """

    def __init__(self, client: Client) -> None:
        self.sizes: list[list[float]] = []
        #: CPU seconds that each process has used since the first sample, and before it.
        self._cpu: dict[int, float] = {}
        self._cpu_before = 0.0
        self._client = client
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def on_fit_begin(self, run: Any) -> None:
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS if self.sizes else 0.0):
            nannies = self._client.cluster.workers
            self.sizes.append([self._look(nannies[name].pid) for name in sorted(nannies)])
            if len(self.sizes) == 1:
                self._cpu_before = sum(self._cpu.values())

    def _look(self, pid: int | None) -> float:
        """Return a worker process's bytes, and record its CPU seconds; 0 if it does not exist."""
        if pid is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker = psutil.Process(pid)
                self._cpu[pid] = sum(worker.cpu_times()[:2])
                return float(worker.memory_info().rss)
        return 0.0

    @property
    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all workers, from the fit's first sample to its last."""
        return sum(self._cpu.values()) - self._cpu_before

    @property
    def n_lost(self) -> int:
        """Return the number of workers that were lost and replaced."""
        return max(0, len(self._cpu) - max((len(row) for row in self.sizes), default=0))

    def stop(self) -> None:
        """End the sampling."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
