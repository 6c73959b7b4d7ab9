"""Many workers of one thread on one machine: starts of fits, steps, memory, rendezvous."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
from distributed import Client, LocalCluster, wait

from benchmarks._common import logistic_rows, markdown
from daskml_dist.comm.wire import encode_call
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.ps.server import WaitingCallers
from tests.forked_workers import fork_workers

#: Rows of a worker's batch, batches in a pass, and float32 features.
BATCH, N_BATCHES, FEATURES = 64, 20, 128
#: Number of workers from which one fit of one step is measured, instead of the median of three.
MANY = 64
#: Messages and bytes of rendezvous at the servers of this process.
_counts: Counter[str] = Counter()


def run(tiny: bool = False) -> str:
    """Return one table; workers are forked from a process that has imported everything."""
    fork_workers()
    rows = []
    # Many processes on few cores can be silent for long although they live.
    waits = dict.fromkeys(["connect", "tcp"], "300s")
    patience = {"distributed.comm.timeouts": waits, "daskml_dist.lease": 60.0}
    with dask.config.set(patience):
        for n_workers in (2,) if tiny else (4, 8, 16, 32, 64):
            with (
                LocalCluster(
                    n_workers=n_workers,
                    threads_per_worker=1,
                    memory_limit=0,
                    dashboard_address=":0",
                ) as cluster,
                Client(cluster, timeout=300) as client,
            ):
                rows += _rows(client, n_workers, tiny)
    columns = [
        "workers", "policy", "first fit, s", "fit without its steps, s", "first step, ms",
        "step, ms", "private MiB per worker", "MiB more after the fits",
        "messages per rendezvous", "KB",
    ]  # fmt: skip
    return markdown("Single-threaded workers on one machine", columns, rows)


def _rows(client: Client, n_workers: int, tiny: bool) -> list[list[str]]:
    """Return the rows of the table for one cluster."""
    client.wait_for_workers(n_workers, timeout=300)
    arrays = logistic_rows(BATCH * N_BATCHES * n_workers, FEATURES)
    data = [_spread(client, array, n_workers) for array in arrays]
    client.run(count_rendezvous)
    rows, before = [], _memory(client)
    for policy in ("allreduce", "sync"):
        first, *others = [
            _fit(policy, data, 1) for _ in range(2 if tiny or n_workers >= MANY else 4)
        ]
        beside, step = (statistics.median(values) for values in zip(*others, strict=True))
        client.run(take_counts)
        _, later = _fit(policy, data, N_BATCHES, max_iter=2 if tiny else 6)
        counts = sum(client.run(take_counts).values(), Counter())
        rows.append(
            [
                f"{n_workers}", policy, f"{sum(first):.2f}", f"{beside:.2f}", f"{step * 1e3:.1f}",
                f"{later * 1e3:.2f}", f"{before:.0f}", f"{_memory(client) - before:.0f}",
                f"{counts['messages']:,}", f"{counts['bytes'] / 1e3:,.0f}",
            ]
        )  # fmt: skip
    return rows


def _spread(client: Client, values: Any, n_workers: int) -> Any:
    """Return a persisted array with a block on each worker."""
    parts = [
        client.persist(da.from_array(part, chunks=part.shape), workers=[worker])
        for part, worker in zip(
            np.array_split(values, n_workers), sorted(client.nthreads()), strict=True
        )
    ]
    joined = da.concatenate(parts).persist()
    wait(joined)
    return joined


def _fit(policy: str, data: Any, n_steps: int, max_iter: int = 1) -> tuple[float, float]:
    """Return a fit's seconds outside its passes, and a step's: the first, or of later passes."""
    start = time.perf_counter()
    clf = SGDClassifier(
        policy=policy,
        learning_rate=0.1,
        batch_size=BATCH * N_BATCHES // n_steps,
        tol=None,
        max_iter=max_iter,
        random_state=0,
    ).fit(*data)
    seconds = time.perf_counter() - start
    assert clf.history_.extra["n_lanes"] == len(data[0].chunks[0])
    passes = [record["seconds"] for record in clf.history_.records]
    assert {record["steps"] for record in clf.history_.records} == {n_steps}
    return seconds - sum(passes), statistics.median(passes[1:] or passes) / n_steps


def _memory(client: Client) -> float:
    """Return the median of the workers' private memory in MiB."""
    return statistics.median(client.run(private_mebibytes).values())


def private_mebibytes() -> float:
    """Return the memory that this process does not share with others."""
    return float(psutil.Process().memory_full_info().uss / 2**20)


def count_rendezvous() -> None:
    """Count the messages and bytes of rendezvous at this process's servers from now on."""
    add_arrival = WaitingCallers.add_arrival

    def counted(self: Any, rank: int, info: Any, reply: Any, n_trainers: int) -> Any:
        def note_and_reply(answer: Any) -> None:
            _note({"op": "rendezvous", "rank": rank, "info": info})
            _note(answer)
            reply(answer)

        return add_arrival(self, rank, info, note_and_reply, n_trainers)

    WaitingCallers.add_arrival = counted  # type: ignore[method-assign]


def _note(message: Any) -> None:
    _counts["messages"] += 1
    _counts["bytes"] += sum(len(part) for part in encode_call(message))


def take_counts() -> Counter[str]:
    """Return the counts in this process since the last call."""
    found = _counts.copy()
    _counts.clear()
    return found
