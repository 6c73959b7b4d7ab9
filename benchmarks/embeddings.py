"""Factorisation machines over growing tables compared with torch, TorchRec and Spark: rows/s."""

from __future__ import annotations

import importlib.util
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from benchmarks._common import markdown, processes
from daskml_dist import Run
from daskml_dist.backends.id_hashing import field_ids
from daskml_dist.models.base import N_TABLE_IDS
from daskml_dist.recommender import FactorizationMachineClassifier

#: Shape of the rows, as in click logs such as Criteo's, and of a step.
FIELDS, WIDTH, BATCH, STEPS, PASSES = 26, 16, 4096, 48, 4
#: Number of ids in a field, drawn by Zipf's law.
N_IDS, ZIPF = 1_000_000, 1.2


def run(tiny: bool = False) -> str:
    """Return the table; a peer that is not installed has no row."""
    rows = []
    X, places, y, n_ids = _make_rows(8 * BATCH // 64 if tiny else STEPS * BATCH)
    batch = BATCH // 64 if tiny else BATCH
    for name, measure in _subjects(X, places, y, n_ids, batch, tiny).items():
        rates, mb = measure()
        later = statistics.median(rates[1:])
        rows.append([name, f"{rates[0]:,.0f}", f"{later:,.0f}", mb])
    for row in rows:
        row.append(f"{float(rows[0][2].replace(',', '')) / float(row[2].replace(',', '')):.2f}")
    title = (
        f"Rows per second of factorisation machines: {FIELDS} ids per row, {n_ids:,} distinct ids, "
        f"{WIDTH} numbers per id, steps of {batch:,} rows, Adagrad"
    )
    columns = [
        "implementation", "first pass", "later passes", "MB pushed and pulled per pass",
        "first row / this row",
    ]  # fmt: skip
    return markdown(title, columns, rows)


Measured = tuple[list[float], str]


def _subjects(
    X: Any, places: Any, y: Any, n_ids: int, batch: int, tiny: bool
) -> dict[str, Callable[[], Measured]]:
    """Return the measurements by name."""
    found: dict[str, Callable[[], Measured]] = {
        "ours, in this process": lambda: _fit_here(X, y, batch),
        'ours, two workers, `"sync"`': lambda: _fit_on_workers(X, y, batch // 2, "sync"),
        'ours, two workers, `"async"`': lambda: _fit_on_workers(X, y, batch, "async"),
    }
    given = places, y, n_ids, WIDTH, batch, PASSES
    if importlib.util.find_spec("torch") is not None:
        found["torch, one process, ids renumbered in advance"] = lambda: _in_process(
            "fit_sparse_torch", given
        )
        if not tiny:
            found["torch, DDP with gloo in two processes"] = lambda: _fit_ddp(given)
    if importlib.util.find_spec("torchrec") is not None:
        found["TorchRec (FBGEMM), one process, ids renumbered in advance"] = lambda: _in_process(
            "fit_torchrec", given
        )
    if importlib.util.find_spec("pyspark") is not None and not tiny:
        found["Spark's FMClassifier, two threads, ids renumbered in advance"] = lambda: _in_process(
            "fit_spark", given
        )
    return found


def _make_rows(n: int) -> tuple[Any, NDArray[np.int64], NDArray[np.float32], int]:
    """Return rows of ids: as virtual columns, and as numbers of the existing ids."""
    rng = np.random.default_rng(0)
    ids = rng.zipf(ZIPF, size=(n, FIELDS)) % N_IDS
    columns = np.stack([field_ids(ids[:, f], f) for f in range(FIELDS)], axis=1)
    columns.sort(axis=1)
    flat = columns.ravel()
    X = sparse.csr_array((n, N_TABLE_IDS), dtype=np.float32)
    X.data, X.indices = np.ones(len(flat), np.float32), flat
    X.indptr = np.arange(0, len(flat) + 1, FIELDS)
    known, places = np.unique(flat, return_inverse=True)
    y = (rng.random(n) < 0.3).astype(np.float32)
    return X, places.reshape(n, FIELDS), y, len(known)


def _machine(batch: int, policy: str, **run: Any) -> FactorizationMachineClassifier:
    return FactorizationMachineClassifier(
        rank=WIDTH - 1, max_iter=PASSES, batch_size=batch, policy=policy, random_state=0,
        run=Run(**run),
    )  # fmt: skip


def _fit_here(X: Any, y: Any, batch: int) -> Measured:
    found = _machine(batch, "sync", n_lanes=1).fit(X, y)
    return [r["rows"] / r["seconds"] for r in found.history_.records], ""


def _fit_on_workers(X: Any, y: Any, batch: int, policy: str) -> Measured:
    n = len(y) // 2
    with processes(2) as client:
        parts = [
            da.from_delayed(dask.delayed(X[at : at + n]), (n, N_TABLE_IDS), X.dtype, meta=X[:0])
            for at in (0, n)
        ]
        rows = da.concatenate(parts).persist(), da.from_array(y, chunks=n).persist()
        found = _machine(batch, policy, n_lanes=2, n_servers=2).fit(*rows, client=client)
    records = found.history_.records
    mb = (records[-1]["bytes_pushed"] + records[-1]["bytes_pulled"]) / 1e6
    return [r["rows"] / r["seconds"] for r in records], f"{mb:,.0f}"


def _in_process(name: str, given: Any) -> Measured:
    """Return the result of a peers' function, run in a separate process."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    process = context.Process(target=_put, args=(name, given, results))
    process.start()
    rates = results.get()
    process.join()
    return rates, ""


def _put(name: str, given: Any, results: Any) -> None:
    from benchmarks import _embedding_peers

    results.put(getattr(_embedding_peers, name)(*given))


def _fit_ddp(given: Any) -> Measured:
    import torch.multiprocessing as mp

    places, y, n_ids, width, batch, passes = given
    with tempfile.TemporaryDirectory() as folder:
        results = mp.get_context("spawn").SimpleQueue()
        parts = places, y, n_ids, width, batch // 2, passes
        mp.spawn(_fit_rank, (f"{folder}/meeting", parts, results), nprocs=2)
        return results.get(), ""


def _fit_rank(rank: int, meeting: str, parts: Any, results: Any) -> None:
    import torch

    from benchmarks._embedding_peers import fit_sparse_torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2
    )
    found = fit_sparse_torch(*parts, rank=rank, world=2)
    if rank == 0:
        results.put(found)
    torch.distributed.destroy_process_group()
