"""Engine on a Dask cluster: reads the rows, chooses lanes and their workers, and starts runs."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from distributed import Client, LocalCluster, Security

from daskml_dist.dask_internals.cluster import (
    LoopbackWorker,
    forget_closed_nodes,
    get_address_host,
    shorten_lost_connections,
    silence_batch_timeouts,
)
from daskml_dist.dask_internals.interrupt_shields import Shielding
from daskml_dist.data.batches import (
    SHUFFLED_BLOCKS,
    LaneSpec,
    make_block_lanes,
    make_column_lanes,
    make_whole_lanes,
)
from daskml_dist.data.blocks import Block, BlockInfo, join_column_infos
from daskml_dist.data.collection import Collection, cut_by_columns
from daskml_dist.data.computing import configured_number, shield_workers
from daskml_dist.data.feature_scales import FeatureScales
from daskml_dist.data.keyed.collection import KeyedCollection
from daskml_dist.data.value_blocks import LANES_PER_THREAD, ValueCollection
from daskml_dist.errors import TrainingError
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.client.cluster_rows import ClusterRows
from daskml_dist.training.client.cluster_run import TrainingRun
from daskml_dist.training.client.lane_assignments import (
    AssignmentLog,
    Placement,
    PlacementGain,
    place_evenly,
    place_lanes,
)
from daskml_dist.training.client.run_actors import EarlyHost
from daskml_dist.training.engine import Engine, FitResult
from daskml_dist.training.spec import FitSpec, Streaming, configured_connections

#: Rows of the fullest lane, relative to an even one, from which moving blocks is considered.
_UNEVEN_SKEW = 1.25
#: Share of a worker's memory for values of remote keys; exchanging them takes twice as much.
_KEY_MEMORY_SHARE = 1 / 64
_lock = threading.Lock()
_users = 0
#: Silenced log handlers, and the previous level of each.
_levels: dict[logging.Handler, int] = {}


class ClusterEngine(Engine):
    """Engine that trains on the workers of a Dask cluster.

    Parameters
    ----------
    collection : Collection
    client : distributed.Client
    memory_budget : int or None
        Bytes of blocks on one worker; None: a share of its memory limit, and of its GPU's memory.
    device : {"auto", "cpu", "gpu"}, default="cpu"
        Requested device of the fit.
    """

    def __init__(
        self,
        collection: Collection,
        client: Client,
        memory_budget: int | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__()
        shorten_lost_connections()
        self._client = client
        self._collection = collection
        self._rows = ClusterRows(client, collection, memory_budget, device, self.report_phase)
        self._exit_stack = ExitStack()
        self._shielding: Shielding | None = None
        self._early: EarlyHost | None = None
        #: Workers that had a part in a run that ended successfully.
        self._visited: set[str] = set()
        self._placement: Placement | None = None
        self._moved: PlacementGain | None = None
        self._log = AssignmentLog()

    @classmethod
    def on_own_cluster(
        cls, collection: Collection, memory_budget: int | None = None, device: str = "cpu"
    ) -> Self:
        """Start a cluster inside this process, which is closed with the engine."""
        with ExitStack() as stack:
            stack.callback(forget_closed_nodes)
            stack.enter_context(silence_dask_logs())
            try:
                # Threads instead of processes: rows are shared, and no process has to start. What
                # stays in this process needs no encryption, and other hosts cannot reach it.
                cluster = LocalCluster(
                    n_workers=1,
                    processes=False,
                    protocol="inproc://",
                    security=Security(require_encryption=False),
                    worker_class=LoopbackWorker,
                    dashboard_address="127.0.0.1:0",
                    silence_logs=False,
                )
            except Exception as error:  # of Dask's configuration
                raise TrainingError(
                    "The cluster of this process, which fits Dask collections if there is no "
                    f"Client, could not start: {error}. Check Dask's configuration (is its "
                    "temporary-directory there, and writable?), or make a Client of another "
                    "cluster."
                ) from error
            stack.enter_context(cluster)
            silence_batch_timeouts(cluster.loop)
            client = stack.enter_context(Client(cluster, set_as_default=False))
            engine = cls(collection, client, memory_budget, device)
            engine.close_with_engine(stack.pop_all())
        return engine

    def close_with_engine(self, exit_stack: ExitStack) -> None:
        """Close a stack with the engine."""
        self._exit_stack = exit_stack

    @property
    def columns(self) -> tuple[int, ...] | None:
        """Return the first column of each lane, then their number; None if lanes hold rows."""
        return self._collection.columns

    def cut_columns(self, n_lanes: int | None) -> None:
        """Assign some columns of all rows to each lane; by default one lane per thread."""
        # The number of lanes follows the threads, with at least one lane per worker.
        threads = self._rows.threads()
        if n_lanes is None:
            max_lanes = self._collection.n_features or sum(threads.values())
            n_lanes = max(len(threads), min(sum(threads.values()), max_lanes))
        self._collection = cut_by_columns(self._collection, n_lanes)
        self._rows.take(self._collection)

    def cut_keys(self, n_lanes: int | None) -> Collection:
        """Cut the entries by ranges of keys; by default one lane per thread."""
        assert isinstance(self._collection, KeyedCollection)
        threads = self._rows.threads()  # waits for at least one worker
        self.report_phase("numbering keys")
        n_lanes = n_lanes or sum(threads.values())
        with shield_workers(self._client):
            self._collection = self._collection.cut(
                n_lanes, len(threads), self._rows.held_parts.hold
            )
        self._rows.take(self._collection)
        return self._collection

    @property
    def remote_key_bytes(self) -> int | None:
        """Return the bytes that a trainer may use for values of remote keys."""
        configured_bytes = int(configured_number("daskml_dist.touched", 0))
        limit = self._rows.least_memory_limit
        return configured_bytes or (None if math.isinf(limit) else int(limit * _KEY_MEMORY_SHARE))

    def map_kept_blocks(self, function: Callable[[Block], Any]) -> list[Any]:
        """Return the results of a function of each block, computed on its worker."""
        return self._rows.ask(function)

    def map_chosen_blocks(
        self, function: Callable[[Block, Any], Any], arguments: Mapping[int, Any]
    ) -> list[Any]:
        """Return the results of a function of some blocks, which are read again if not kept."""
        return self._rows.map_blocks(function, arguments)

    def inspect_blocks(self, n_lanes: int | None = None) -> list[BlockInfo]:
        """Make the blocks on their workers, or inspect the blocks that will be streamed."""
        # The actor starts while the rows are read.
        self._early = EarlyHost(self._client)
        self._shielding = Shielding(self._client, self._early.run_id)
        self._rows.find_persisted_homes()
        self._early.choose_actor_worker(self._rows.choose_server_worker())
        infos = self._rows.inspect_blocks(n_lanes, self._early)
        self._early.request_endpoint()
        if self.columns is None:
            if (
                self._collection.kind == "dask"
                and n_lanes is None
                and self._collection.has_timed_rows
            ):
                self._rows.warn_of_few_blocks()
            return infos
        return join_column_infos(infos, len(self.columns) - 1)

    def choose_lanes(
        self,
        n_lanes: int | None,
        *,
        bytes_per_lane: int | None,
        passes: int,
        device: str = "cpu",
        by_block: bool = False,
    ) -> list[LaneSpec]:
        """Choose the lanes and their workers.

        Rows that the user has persisted stay on their workers and determine the lanes, unless they
        are distributed so unevenly that moving some is faster. Rows that are read for this fit may
        be read anywhere, so their lanes depend only on the blocks: repeating a fit gives the same
        lanes.
        """
        self.report_phase("placing")
        rows = {info.index: info.n_rows for info in self._rows.infos}
        threads = self._rows.threads()
        holders = self._rows.find_holders()
        # Lanes of columns and of keys are the blocks as they were cut.
        lanes = None
        if self.columns is not None:
            lanes = make_column_lanes(rows, len(self.columns) - 1)
        elif isinstance(self._collection, KeyedCollection):
            lanes = make_whole_lanes(rows, self._collection.lanes or 1)
        elif by_block and n_lanes is None:
            lanes = make_block_lanes(rows)
        if lanes is not None:
            self._placement = place_evenly(lanes, holders, threads)
            return lanes
        if isinstance(self._collection, ValueCollection):
            # A lane is only a list of blocks here and costs nothing, so there are many, some of
            # which can move to new workers.
            threads = {address: LANES_PER_THREAD * n for address, n in threads.items()}
        # Lanes that depend only on the blocks: repeating a fit gives the same lanes.
        if n_lanes is None and not self._rows.home_workers:
            n_lanes = max(1, min(sum(threads.values()), sum(rows.values())))
        self._placement = place_lanes(rows, holders, threads, n_lanes)
        if n_lanes is None and not self._rows.streamed and self._collection.has_timed_rows:
            even = place_lanes(
                rows, holders, threads, max(1, min(sum(threads.values()), sum(rows.values())))
            )
            move = PlacementGain.compare(self._placement, even, holders, self._rows.infos)
            # Measured only for a large skew: moving pays if the passes gain more time than the
            # transfer takes.
            if move.skew > _UNEVEN_SKEW:
                seconds = self._rows.seconds_a_row()
                if move.is_worthwhile(passes, seconds, self._rows.bandwidth()):
                    self._placement, self._moved = even, move
        return self._placement.lanes

    @property
    def history_facts(self) -> dict[str, Any]:
        """Return the workers of the lanes; if rows were moved, also the skew and bytes moved."""
        trainers = self._log.history_facts
        if self._moved is None:
            return trainers
        return {**trainers, "skew": self._moved.skew, "moved_bytes": self._moved.nbytes}

    def reserve_memory(self, reserved_share: float) -> None:
        """Reserve a share of the memory budget for arrays that trainers compute from blocks."""
        self._rows.budget_share = 1.0 - reserved_share

    @property
    def row_memory_bytes(self) -> float:
        """Return the bytes on one worker for held blocks and for arrays computed from rows."""
        rows = self._rows
        # Streamed blocks are not held, and use their share while they are read.
        return rows.budget * (1.0 - rows.budget_share if rows.streamed else 1.0)

    @property
    def on_one_host(self) -> bool:
        """Return whether several workers, all on one host with shared memory, run the lanes."""
        workers = set() if self._placement is None else set(self._placement.workers)
        hosts = {get_address_host(worker) for worker in workers}
        shares = configured_connections().shared_memory
        return len(hosts) == 1 < len(workers) and shares and hasattr(os, "memfd_create")

    def scales(self) -> FeatureScales:
        """Return the scales of all features, computed in one pass."""
        return self._rows.scales()

    @property
    def streaming(self) -> Streaming | None:
        """Return how blocks are read in each pass; None if they are kept."""
        if not self._rows.streamed or self._placement is None:
            return None
        # Lanes of one worker share its memory.
        n_lanes = max(len(lanes) for lanes in self._placement.by_worker().values())
        blocks = self._rows.blocks_per_lane(n_lanes)
        group = min(blocks // 2, SHUFFLED_BLOCKS)
        states = int(configured_number("daskml_dist.row_states", Streaming.states))
        dense = not any(info.sparse for info in self._rows.infos)
        return Streaming(group, min(blocks - group, SHUFFLED_BLOCKS), states, dense)

    def train(self, fit: FitSpec, callbacks: CallbackList) -> FitResult:
        """Run the fit."""
        assert self._placement is not None
        # Only the first of several parts has an early actor.
        early_host, self._early = self._early or EarlyHost(self._client), None
        assert self._shielding is not None
        # Each of several parts is a separate run, with its own name.
        if self._visited:
            self._shielding.take_next_run(early_host.run_id)
        self._log.record_begin()
        try:
            run = TrainingRun(
                self._client,
                fit,
                self._placement,
                self._rows,
                self.interrupts,
                early_host,
                self._log,
            )
            result = run.run(callbacks)
        finally:
            self._log.record_end()
            early_host.close()
        # Workers of a successful run remove their shields themselves.
        self._visited = run.visited_workers if result.interrupted is None else set()
        return result

    def close(self) -> None:
        """Release the blocks, and close a cluster that the engine started."""
        if self._early is not None:
            self._early.close()
        self._rows.release()
        if self._shielding is not None:
            self._shielding.end(self._visited)
            # A fit without a result may have received a Ctrl-C; the next one is meant for the
            # user's own code.
            if not self._visited:
                self._shielding.wait()
            self._shielding = None
        self._exit_stack.close()


@contextmanager
def silence_dask_logs() -> Iterator[None]:
    """Keep Dask's logs out of the user's terminal, until the last of these contexts ends.

    The cluster's own option (``silence_logs=``) ends with the cluster that set it, even while
    others are running.
    """
    global _users
    with _lock:
        _users += 1
        for handler in logging.getLogger("distributed").handlers:
            if isinstance(handler, logging.StreamHandler) and handler not in _levels:
                _levels[handler] = handler.level
                handler.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            while not _users and _levels:
                handler, level = _levels.popitem()
                handler.setLevel(level)
