"""Tables that keep every id, on two workers: rows per second and memory, by their size."""

from __future__ import annotations

import numpy as np
from distributed import Client, LocalCluster

from benchmarks._common import markdown
from benchmarks.many_ids import BATCH, OFTEN, ONCE, Watch, make_lazy_rows
from daskml_dist import Run
from daskml_dist.recommender import FactorizationMachineClassifier

SIZES = [10**5, 10**6, 10**7]
#: Memory of a worker, which holds the rows of one server and of the standby of another; 1 GiB for
#: blocks, and half of it for the rows of each, beyond which rows are in mapped files.
MEMORY, BUDGET = "8GiB", 1 << 30
RANK = 15


def run(tiny: bool = False) -> str:
    """Return the table."""
    rows = [_measure(n, tiny) for n in ([20_000] if tiny else SIZES)]
    title = (
        f"Factorisation machines with {RANK + 1} numbers per id, `async`, two workers of {MEMORY}, "
        f"rows of {ONCE + OFTEN} ids of which {ONCE} occur once, row-wise Adagrad, steps of "
        f"{BATCH:,} rows; {BUDGET >> 20:,} MiB of table rows per worker in memory, the rest in "
        "mapped files"
    )
    columns = [
        "ids that occur once", "ids with a table row at the end", "rows/s", "ids touched/s",
        "CPU seconds", "largest worker process, MiB",
    ]  # fmt: skip
    return markdown(title, columns, rows)


def _measure(n_ids: int, tiny: bool) -> list[str]:
    X, y = make_lazy_rows(n_ids, 500 if tiny else min(200_000, -(-n_ids // ONCE)))
    with (
        LocalCluster(2, threads_per_worker=1, memory_limit=MEMORY, dashboard_address=":0") as there,
        Client(there) as client,
    ):
        watch = Watch(client)
        model = FactorizationMachineClassifier(
            rank=RANK, max_iter=1, batch_size=128 if tiny else BATCH, policy="async", shuffle=False,
            optimizer="row_wise_adagrad", random_state=0, callbacks=[watch],
            run=Run(n_lanes=2, n_servers=2, memory_budget=BUDGET),
        ).fit(X, y, client=client)  # fmt: skip
        watch.stop()
    (record,) = model.history_.records
    rate = record["rows"] / record["seconds"]
    most = np.max(watch.sizes) / 2**20
    return [
        f"{n_ids:,}", f"{len(model.ids_):,}", f"{rate:,.0f}", f"{rate * (ONCE + OFTEN):,.0f}",
        f"{watch.cpu_seconds:,.0f}", f"{most:,.0f}",
    ]  # fmt: skip
