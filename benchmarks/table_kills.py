"""Fits of a growing table whose workers are killed repeatedly: its rows, compared id by id."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client
from scipy import sparse

from benchmarks._common import markdown
from benchmarks._strikes import Striker, all_there, have_standbys, open_workers
from daskml_dist import Run
from daskml_dist.recommender import FactorizationMachineClassifier

#: Columns, ids drawn by a law like Zipf's for each of them, rows, and rows of a chunk.
FIELDS, N_IDS, N_ROWS, CHUNK_ROWS = 8, 60_000, 48_000, 4_000
#: Steps that must touch an id before it gets a row, and steps without it after which it is dropped.
ADMIT_AFTER, EXPIRE_AFTER = 2, 400
WORKERS, BATCH, PASSES = 3, 64, 60
KILLS = int(os.environ.get("DASKML_DIST_TABLE_KILLS", 100))
#: Minimum and maximum of the seconds between two checks whether all workers and standbys exist; a
#: kill follows immediately.
PAUSE = 0.5, 1.5


def run(tiny: bool = False) -> str:
    """Return one table, with a row for each fit under kills, until there were enough kills."""
    n_passes, n_kills = (3, 0) if tiny else (PASSES, KILLS)
    X, y = _make_rows(CHUNK_ROWS if tiny else N_ROWS)
    rows, kills, options = [], 0, {"memory_limit": 0}
    with open_workers(WORKERS, "daskml_dist.recommender", **options) as client:
        since = time.perf_counter()
        calm = _fit(client, X, y, n_passes)
        seconds = time.perf_counter() - since
        while kills < n_kills or not rows:
            all_there(client, WORKERS)
            striker, watch = _Killer(client, kills), _Generations()
            since = time.perf_counter()
            struck = _fit(client, X, y, n_passes, striker, watch)
            kills += striker.kills
            rows.append([
                f"{len(rows) + 1}", f"{striker.kills}", f"{watch.n}", f"{watch.restarted}",
                f"{time.perf_counter() - since:.0f}", *_compare(struck, calm),
            ])  # fmt: skip
    columns = [
        "fit", "kills", "generations", "of these begun anew", "s", "ids with a row",
        "ids lost or new", "rows of other bits",
    ]  # fmt: skip
    title = (
        f"{kills} kills of one of {WORKERS} workers, once all and all standbys are there, in fits "
        f"of {n_passes} passes over {N_ROWS:,} rows of {FIELDS} ids on two servers, against a calm "
        f"fit of {seconds:.0f} s"
    )
    return markdown(title, columns, rows)


def _make_rows(n: int) -> tuple[Any, Any]:
    """Return lazy rows of ids, and labels that depend on products of ids."""
    rng = np.random.default_rng(0)
    numbers = (N_IDS ** rng.random((n, FIELDS))).astype(np.int64)
    at = (numbers + np.arange(FIELDS) * N_IDS).ravel()
    starts = np.arange(0, n * FIELDS + 1, FIELDS)
    X = sparse.csr_array((np.ones(len(at), np.float32), at, starts), (n, FIELDS * N_IDS))
    y = (numbers[:, 0] + numbers[:, 1]) % 2 == 0
    parts = [
        da.from_array(X[at : at + CHUNK_ROWS], asarray=False) for at in range(0, n, CHUNK_ROWS)
    ]
    return da.concatenate(parts), da.from_array(y, chunks=CHUNK_ROWS)


def _fit(client: Client, X: Any, y: Any, n_passes: int, *callbacks: Any) -> Any:
    return FactorizationMachineClassifier(
        random_state=0, max_iter=n_passes, batch_size=BATCH, admit_after=ADMIT_AFTER,
        expire_after=EXPIRE_AFTER, callbacks=list(callbacks),
        run=Run(n_lanes=WORKERS, n_servers=2, deterministic=True),
    ).fit(X, y, client=client)  # fmt: skip


class _Killer(Striker):
    """Callback that kills a random worker after a pass, if all workers and standbys exist."""

    def __init__(self, client: Client, seed: int) -> None:
        super().__init__(client, PAUSE[1])
        self._draw.seed(seed)
        #: Number of passes closed since the last kill. At least one is required: a fit ends after
        #: too many losses without progress.
        self._n_passes = 0

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self._n_passes += 1
        super().on_pass_end(run, record)

    def _strike_on(self) -> None:
        while not self._over.wait(self._draw.uniform(*PAUSE)):
            if not self._n_passes:
                continue
            with contextlib.suppress(OSError, ProcessLookupError):
                pids = sorted(self._client.run(os.getpid).values())
                if len(pids) == WORKERS and have_standbys(self._client, self._run):
                    self._strike(self._draw.choice(pids))
                    self._n_passes = 0


class _Generations:
    """Callback that counts how often a fit resumed from a snapshot, or restarted."""

    def __init__(self) -> None:
        self.n = self.restarted = 0

    def on_generation(self, run: Any, event: Any) -> None:
        self.n += 1
        self.restarted += bool(event.restarted)


def _compare(struck: Any, calm: Any) -> list[str]:
    """Return cells: ids of the killed fit, ids that one of the fits lacks, and different rows."""
    common, at, other = np.intersect1d(struck.ids_, calm.ids_, return_indices=True)
    lost = len(struck.ids_) + len(calm.ids_) - 2 * len(common)
    same = (struck.weights_[at] == calm.weights_[other]) & (
        struck.vectors_[at] == calm.vectors_[other]
    ).all(axis=1)
    return [f"{len(struck.ids_):,}", f"{lost}", f"{(~same).sum()}"]
