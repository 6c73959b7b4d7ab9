"""The engine on a Dask cluster: make blocks, choose workers, launch a run."""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import suppress
from typing import Any, Self

import numpy as np
from dask.base import is_dask_collection
from distributed import Client, LocalCluster, wait
from distributed.client import futures_of

from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.blocks import BlockInfo, inspect_block, make_block
from daskml_dist.data.collection import Collection
from daskml_dist.data.placement import Placement, place
from daskml_dist.errors import DaskMLDistError, TrainingError, WorkerLostError
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.cluster_run import TrainingRun
from daskml_dist.training.engine import Engine, FitResult
from daskml_dist.training.spec import FitSpec

__all__ = ["ClusterEngine"]


class ClusterEngine(Engine):
    """Trains on the workers of a Dask cluster.

    Parameters
    ----------
    collection : Collection
    client : distributed.Client
    """

    def __init__(self, collection: Collection, client: Client) -> None:
        self._collection = collection
        self._client = client
        self._own: list[Any] = []
        self._blocks: list[Any] = []
        self._rows: dict[int, int] = {}
        self._placement: Placement | None = None
        # Worker of each part that the user has persisted; empty where rows are read for the fit.
        self._homes: list[str] = []

    @classmethod
    def on_own_cluster(cls, collection: Collection) -> Self:
        """Start a cluster inside this process; it is closed with the engine."""
        cluster = LocalCluster(
            n_workers=1, processes=False, dashboard_address=":0", silence_logs=50
        )
        client = Client(cluster, set_as_default=False)
        engine = cls(collection, client)
        engine._own = [client, cluster]
        return engine

    def _threads(self) -> dict[str, int]:
        """Threads of each worker, by address."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        if not workers:
            raise TrainingError(
                "The cluster has no worker. Scale it up, or wait with client.wait_for_workers(1)."
            )
        return {address: worker["nthreads"] for address, worker in workers.items()}

    def survey(self, classification: bool) -> list[BlockInfo]:
        """Make the blocks where the rows lie."""
        self._threads()
        if self._collection.kind == "memory":
            self._blocks = self._spread(classification)
        else:
            self._homes = self._find_homes()
            lazy = self._collection.delayed_blocks(None, classification)
            self._blocks = self._compute_at_home(lazy)
        infos = [
            self._client.submit(
                inspect_block, block, classification, pure=False, workers=self._homes[i : i + 1]
            )
            for i, block in enumerate(self._blocks)
        ]
        try:
            self._await_at_home(infos)
            found: list[BlockInfo] = self._client.gather(infos)
        except DaskMLDistError:
            raise
        except Exception as error:
            if type(error).__module__.startswith("distributed"):
                raise WorkerLostError(
                    f"A worker was lost while its rows were read ({error}). Fit again; keep the "
                    "recipe of the collection (persist, not scatter) so that Dask can read it "
                    "again."
                ) from error
            raise
        self._rows = {info.index: info.n_rows for info in found}
        return found

    def _find_homes(self) -> list[str]:
        """One worker for each persisted part that holds it; [] unless all are persisted."""
        parts = [X for X, _, _ in self._collection.parts]
        if not all(is_dask_collection(X) for X in parts):
            return []
        # Parts of one collection share their graph.
        graphs = {id(X.__dask_graph__()): X for X in parts}
        futures = {future.key: future for future in futures_of(list(graphs.values()))}
        if not all(X.key in futures for X in parts):
            return []
        wait(list(futures.values()))
        holders = self._client.who_has(list(futures.values()))
        load: Counter[str] = Counter()
        homes = []
        for X in parts:
            if not holders.get(X.key):
                return []
            homes.append(min(holders[X.key], key=lambda worker: (load[worker], worker)))
            load[homes[-1]] += 1
        return homes

    def _compute_at_home(self, lazy: list[Any]) -> list[Any]:
        """Make each block on its part's worker, where stealing cannot move it."""
        if not self._homes:
            return list(self._client.compute(lazy))
        blocks: dict[int, Any] = {}
        for home in sorted(set(self._homes)):
            here = [i for i, worker in enumerate(self._homes) if worker == home]
            made = self._client.compute([lazy[i] for i in here], workers=[home])
            blocks.update(zip(here, made, strict=True))
        return [blocks[i] for i in range(len(lazy))]

    def _await_at_home(self, futures: list[Any]) -> None:
        """Wait for tasks that only their homes may run, as long as these are there."""
        while self._homes:
            with suppress(TimeoutError):
                wait(futures, timeout=1)
                return
            if gone := set(self._homes).difference(self._threads()):
                raise WorkerLostError(
                    f"Worker {min(gone)} was lost while its rows were read. Fit again; keep the "
                    "recipe of the collection (persist, not scatter) so that Dask can read it "
                    "again."
                )

    def _spread(self, classification: bool) -> list[Any]:
        """Scatter rows in memory, a part for each thread of the cluster."""
        ((X, y, weight),) = self._collection.parts
        whole = make_block(0, X, y, weight, classification=classification)
        n_parts = max(1, min(sum(self._threads().values()), whole.n_rows))
        cuts = np.linspace(0, whole.n_rows, n_parts + 1).astype(int)
        blocks = []
        for index, (a, b) in enumerate(itertools.pairwise(cuts)):
            part = [None if v is None else v[a:b] for v in (whole.X, whole.y, whole.sample_weight)]
            (rows,) = self._client.scatter([part], hash=False)
            blocks.append(self._client.submit(_block_of, index, rows, classification, pure=False))
        return blocks

    def lanes(self, n_lanes: int | None, *, shared: bool) -> list[LaneSpec]:
        """Choose the lanes and their workers.

        Rows that the user has persisted stay where they are, and make the lanes. Rows that are
        read for this fit may land anywhere, so there the lanes are cut from the blocks alone:
        the same fit twice gives the same lanes.
        """
        if n_lanes is None and not self._homes:
            n_lanes = max(1, min(sum(self._threads().values()), sum(self._rows.values())))
        held = self._client.who_has(self._blocks)
        holders = {i: list(held.get(block.key, ())) for i, block in enumerate(self._blocks)}
        if self._homes:
            # Work on the side may have made copies elsewhere.
            holders = {i: [h for h in holders[i] if h == w] for i, w in enumerate(self._homes)}
        if any(not holders.get(i) for i in self._rows):
            raise WorkerLostError("A worker that held rows of the fit was lost. Fit again.")
        self._placement = place(self._rows, holders, self._threads(), n_lanes)
        return self._placement.lanes

    def train(self, fit: FitSpec, callbacks: CallbackList) -> FitResult:
        """Run the fit."""
        assert self._placement is not None
        blocks = dict(enumerate(self._blocks))
        return TrainingRun(self._client, fit, self._placement, blocks, self._threads()).run(
            callbacks
        )

    def close(self) -> None:
        """Let go of the blocks, and close a cluster of our own."""
        for block in self._blocks:
            block.release()
        self._blocks = []
        for thing in self._own:
            thing.close()
        self._own = []


def _block_of(index: int, rows: list[Any], classification: bool) -> Any:
    return make_block(index, *rows, classification=classification)
