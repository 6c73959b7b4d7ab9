"""Rows of a fit on a cluster: made on workers, kept if they fit, else read in each pass.

`ClusterRows` reads the blocks once (`inspect_blocks`); they are then kept or streamed. Futures of
blocks are in `held_blocks.py`, waiting for tasks in `gathering.py`.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from dask.delayed import delayed
from distributed import Client, futures_of

from daskml_dist.data.blocks import Block, BlockInfo, inspect_block
from daskml_dist.data.collection import Collection
from daskml_dist.data.computing import configured_timeout
from daskml_dist.data.conversion import copy_to_host
from daskml_dist.data.feature_scales import (
    FeatureScales,
    compute_block_scales,
    join_scales,
    merge_scales,
)
from daskml_dist.data.lazy import is_dask_frame
from daskml_dist.data.streamed_blocks import BlockBundle, BlockRecipes
from daskml_dist.errors import InvalidDataError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.training.client.gathering import Gathering
from daskml_dist.training.client.gpu_sharing import count_workers_of_gpus
from daskml_dist.training.client.held_blocks import HeldBlocks
from daskml_dist.training.client.membership import Membership, ignore_event
from daskml_dist.training.client.run_actors import EarlyHost, is_actor_key

#: Share of a worker's memory for blocks by default; the rest is for reading and for the user.
_AUTO_BUDGET = 0.4
#: Share of a GPU's memory, if blocks are copied to it.
_GPU_BUDGET = 0.6
#: Amount of repeated work, in multiples of making all blocks once, above which recipes are not run
#: again in each pass.
_REPEATED_WORK = 1.5
#: Summaries that one task merges: a tree of 16 has few levels, and no task waits for many others.
_FAN_IN = 16
_ROWS_TO_READ = "the rows to be read"
#: Largest ratio of a block's bytes to its part's bytes: bytes that become float64.
_WIDER = 8
#: Bytes of a block from which an additional worker would pay.
_WORTH = 1 << 22


class ClusterRows:
    """Blocks of one fit, made and held by workers.

    Blocks that are lost while rows are read are read again (`Gathering`, `HeldBlocks`).

    Parameters
    ----------
    client : Client
    collection : Collection
    memory_budget : int or None
        Bytes of blocks on one worker; None: a share of its memory limit, and of its GPU's memory.
    device : {"auto", "cpu", "gpu"}, default="cpu"
        Requested device of the fit.
    report_phase : callable, optional
        Receives the phases of the fit, like callbacks.
    """

    def __init__(
        self,
        client: Client,
        collection: Collection,
        memory_budget: int | None,
        device: str = "cpu",
        report_phase: Callable[..., None] = ignore_event,
    ) -> None:
        self._client = client
        self._collection = collection
        self._given_budget = memory_budget
        self._device = device
        #: Share of the budget that blocks may use.
        self.budget_share = 1.0
        self._timeout = configured_timeout()
        self.membership = Membership(client)
        self.membership.on_wait = partial(report_phase, "waiting for workers")
        self._report_phase = report_phase
        #: Number of blocks that are being read, for progress reports.
        self._n_blocks = 0
        self._held_blocks = HeldBlocks(client, collection, self.membership)
        self._gathering = Gathering(
            client, self.membership, self._timeout, lambda: self._held_blocks.futures.values(),
            self._report_blocks_read,
        )  # fmt: skip
        #: Number of workers on each worker's GPU, once they have answered.
        self._gpu_sharers: dict[str, int] = {}
        self._recipes: BlockRecipes | None = None
        self._keeps = True
        self.infos: list[BlockInfo] = []
        #: Parts from which blocks of keys are made.
        self.held_parts = HeldParts(client)

    def take(self, collection: Collection) -> None:
        """Use the same rows, cut differently; only before any block is made."""
        self._collection = collection
        self._held_blocks.take(collection)

    # -- the cluster -----------------------------------------------------------------------------

    def threads(self) -> dict[str, int]:
        """Return the threads of each worker that accepts work; wait for at least one worker."""
        return self.membership.wait_for_any_worker(self._timeout)

    def _worker_facts(self) -> list[dict[str, Any]]:
        """Return the scheduler's facts of each worker that accepts work."""
        return [self.membership.get_worker_info(address) for address in self.threads()]

    @property
    def home_workers(self) -> list[str | None]:
        """Return the worker of each part that the user has persisted; empty if rows are read."""
        return self._held_blocks.home_workers

    @property
    def least_memory_limit(self) -> float:
        """Return the memory limit of the worker with the least; infinite without limits."""
        return min(float(worker["memory_limit"] or np.inf) for worker in self._worker_facts())

    @property
    def budget(self) -> float:
        """Return the bytes of rows that one worker may hold."""
        if self._given_budget is not None:
            return self._given_budget
        budget = _AUTO_BUDGET * self.least_memory_limit
        if self._device == "cpu":
            return budget
        # Dask reports the memory of GPUs if NVIDIA's nvidia-ml-py is installed, as with dask-cuda.
        workers = {address: self.membership.get_worker_info(address) for address in self.threads()}
        memory = {
            address: int(total)
            for address, facts in workers.items()
            if (total := (facts.get("gpu") or {}).get("memory-total"))
        }
        if memory.keys() - self._gpu_sharers.keys():
            with_gpus = {address: workers[address] for address in memory}
            self._gpu_sharers = count_workers_of_gpus(self._client, with_gpus)
        parts = (total / self._gpu_sharers[address] for address, total in memory.items())
        return min([budget, *(_GPU_BUDGET * part for part in parts)])

    # -- reading ---------------------------------------------------------------------------------

    @property
    def streamed(self) -> bool:
        """Return whether blocks are made again whenever a lane needs them."""
        return self._recipes is not None

    def inspect_blocks(
        self, n_lanes: int | None = None, early: EarlyHost | None = None
    ) -> list[BlockInfo]:
        """Read all rows once and return the facts of each block.

        Rows in memory are cut into one block per lane or, if `n_lanes` is None, per thread. The
        run's first actor is started at the same time.
        """
        self._held_blocks.early = early
        self._report_phase("reading")
        # Rows of the client are distributed evenly, one block per lane or thread.
        if self._collection.kind == "memory":
            if early is not None:
                early.start()
            n_blocks = n_lanes or sum(self.threads().values())
            self._n_blocks = self._held_blocks.cut_rows_here(n_blocks)
            self._make_and_inspect(list(range(self._n_blocks)))
        else:
            self._read_in_waves()
        self._n_blocks = 0
        # A given budget applies to all rows; the default only to streamed ones, since kept blocks
        # may be distributed unevenly. Rows that exceed the budget are refused before training.
        if self.streamed or self._given_budget is not None:
            self._check_budget()
        return self.infos

    def _check_budget(self) -> None:
        """Raise `InvalidDataError` if the rows that were read exceed the budget."""
        available_bytes = self.budget_share * self.budget
        if self._collection.kind == "memory":
            # They are distributed evenly, and never dropped.
            nbytes = sum(info.nbytes for info in self.infos) // len(self.threads())
            description = "Rows that are passed as an array or frame in memory take"
            remedy = "Pass them as a Dask collection, dask.array.from_array(X, chunks=...)"
        else:
            largest = max(self.infos, key=lambda info: info.nbytes)
            nbytes, description = largest.nbytes, f"Block {largest.index} takes"
            remedy = (
                'Make smaller chunks (X.rechunk({0: "64 MiB"}), '
                'df.repartition(partition_size="64MB"))'
            )
        if nbytes > available_bytes:
            raise InvalidDataError(
                f"{description} {nbytes:,} bytes, more than the {available_bytes:,.0f} bytes that "
                f"blocks may take on a worker. {remedy}, or raise memory_budget."
            )

    def _report_blocks_read(self, n_done: int = 0) -> None:
        """Report to the callbacks how many blocks have been read."""
        if self._n_blocks:
            self._report_phase(
                "reading", min(len(self.infos) + n_done, self._n_blocks), self._n_blocks
            )

    def choose_server_worker(self) -> str:
        """Return the worker for the first server: one without rows if possible."""
        # Prefer a worker without rows: its network and memory are free for the parameters.
        ready = self.membership.ready or self.threads()
        ready_homes = [worker for worker in self.home_workers if worker in ready]
        return min(
            set(ready).difference(ready_homes), default=ready_homes[0] if ready_homes else ""
        )

    def find_persisted_homes(self) -> None:
        """Choose, for each persisted part, one worker that holds it, if all parts are persisted."""
        if self._collection.kind == "memory":
            return
        if parts := self._held_blocks.persisted_parts():
            self._n_blocks = len(parts)
            self._gathering.wait_for(parts, "the rows that were persisted")
            self._held_blocks.choose_home_workers(parts)

    def _read_in_waves(self) -> None:
        """Make the blocks and keep them, wave by wave, as long as they fit in the budget."""
        self._held_blocks.plan_bundles()
        if self._held_blocks.early is not None and not self._held_blocks.is_made_directly:
            self._held_blocks.early.start()
        # In waves, so that memory never holds more than one wave beyond the budget.
        bundles, n_done = self._held_blocks.bundles, 0
        self._n_blocks = sum(len(bundle) for bundle in bundles)
        # Whether all blocks certainly fit in the budget, whatever their rows are.
        available_bytes = self.budget_share * self.budget * len(self.membership.ready)
        fit = fit_surely_in_memory(
            self._client, self._collection, available_bytes, persisted=bool(self.home_workers)
        )
        n_bundles = (
            len(bundles) if fit or self._repeats_work else sum(self.membership.ready.values())
        )
        n_bundles = self._collection.bundles_at_once or n_bundles
        while n_done < len(bundles):
            self._make_and_inspect(
                [i for bundle in bundles[n_done : n_done + n_bundles] for i in bundle]
            )
            n_done = min(n_done + n_bundles, len(bundles))
            if fit:
                continue
            available_bytes = self.budget_share * self.budget * len(self.threads())
            used_bytes = sum(info.nbytes for info in self.infos)
            if used_bytes > available_bytes:
                self._switch_to_streaming()
                break
            # Extrapolate from the mean size of the blocks so far to the number that would still
            # fit.
            n_fitting = (available_bytes - used_bytes) * n_done / max(used_bytes, 1)
            # The next wave is the number that probably fits.
            n_bundles = 1 + int(min(n_fitting, len(bundles)))
        self.infos.sort(key=lambda info: info.index)

    @property
    def _repeats_work(self) -> bool:
        """Return whether making blocks one by one repeats much work (a shuffle, a join)."""
        return (
            not self._held_blocks.is_made_directly
            and self._held_blocks.recipes.repeated_work > _REPEATED_WORK
        )

    def _switch_to_streaming(self) -> None:
        """Inspect the remaining blocks; from now on each block is made when it is needed."""
        self._check_budget()  # before all others are read
        recipes = self._held_blocks.recipes
        # Sizes of the blocks that were read so far.
        sizes = {info.index: info.nbytes for info in self.infos}
        # Blocks of later waves have not been inspected yet.
        remaining = [i for i in recipes.targets if i not in sizes]
        # A shuffle should not run again for each block of each pass, and data inside the graph need
        # not be sent with it. Such blocks are kept, and Dask spills them to disk.
        if self._repeats_work or recipes.nbytes > sum(sizes.values()) / 2:
            self._make_and_inspect(remaining)
        else:
            self._keeps = False
            self._held_blocks.release()
            start = self._make_lazy_tasks(inspect_block)
            self._add_infos(self._gathering.results(start, remaining, _ROWS_TO_READ))
        self._recipes = recipes.of_rows({info.index: info.n_rows for info in self.infos})

    def _make_and_inspect(self, block_numbers: list[int]) -> None:
        """Make some blocks, and collect their facts."""
        # First the fast way: workers report the facts themselves within a moment.
        infos = self._gathering.start_and_query(
            self._held_blocks.ensure_blocks, self._held_blocks.collect_facts, block_numbers
        )
        if len(infos) < len(block_numbers):
            self._gathering.wait_until_made(
                self._held_blocks.ensure_blocks, block_numbers, _ROWS_TO_READ
            )
            infos = self._held_blocks.collect_facts(block_numbers)
        # Blocks that were spilled or lost since then.
        if remaining := [i for i in block_numbers if i not in infos]:
            infos |= self._map_held_blocks(remaining, inspect_block)
        self._add_infos(infos)

    def _add_infos(self, infos_by_block: dict[int, BlockInfo]) -> None:
        """Add the facts of some blocks."""
        self.infos += [infos_by_block[i] for i in sorted(infos_by_block)]
        self._report_blocks_read()

    def _map_held_blocks(
        self,
        block_numbers: Iterable[int],
        function: Any,
        arguments: Mapping[int, Any] | None = None,
    ) -> dict[int, Any]:
        """Return the results of a function of some kept blocks."""
        start = self._make_held_tasks(function, arguments)
        return self._gathering.results(start, block_numbers, _ROWS_TO_READ)

    def _make_held_tasks(
        self, function: Any, arguments: Mapping[int, Any] | None = None
    ) -> Callable[[list[int]], dict[int, Any]]:
        """Return the function that starts a task for each of some kept blocks."""
        blocks = self._held_blocks
        inspect = delayed(partial(apply_to_block, function=function), pure=False)

        def start(block_numbers: list[int]) -> dict[int, Any]:
            bundles = blocks.ensure_blocks(block_numbers)
            return self._start_each(inspect, {i: (bundles[i], i) for i in block_numbers}, arguments)

        return start

    def _make_lazy_tasks(
        self, function: Any, arguments: Mapping[int, Any] | None = None
    ) -> Callable[[list[int]], dict[int, Any]]:
        """Return the function that starts a task for each of some blocks, which are read again."""
        blocks, inspect = self._held_blocks, delayed(function, pure=False)
        started: set[int] = set()

        def start(block_numbers: list[int]) -> dict[int, Any]:
            blocks.check(started.intersection(block_numbers))
            started.update(block_numbers)
            return self._start_each(
                inspect, {i: (blocks.first[i],) for i in block_numbers}, arguments
            )

        return start

    def _start_each(
        self,
        apply_function: Any,
        sources: dict[int, tuple[Any, ...]],
        arguments: Mapping[int, Any] | None,
    ) -> dict[int, Any]:
        """Start a lazy function of each block's source, with the block's own argument if any."""
        if arguments is not None:
            sources = {i: (*source, arguments[i]) for i, source in sources.items()}
        return self._held_blocks.start(
            {i: apply_function(*source) for i, source in sources.items()}
        )

    def scales(self) -> FeatureScales:
        """Return the scales of all features, merged on the workers."""
        numbers = [info.index for info in self.infos]
        start_scales = self._make_lazy_tasks(compute_block_scales)
        n_parts = len(self._collection.columns or (0, 0)) - 1
        of_part = np.array_split(np.array(numbers), n_parts)

        def merged(part_numbers: list[int]) -> dict[int, Any]:
            """Start the merges of some lanes' columns."""
            return {part: merged_part(of_part[part].tolist()) for part in part_numbers}

        def merged_part(block_numbers: list[int]) -> Any:
            """Start a tree of merges over some blocks."""
            if n_parts > 1:
                level = list(self._make_held_tasks(compute_block_scales)(block_numbers).values())
            elif self._keeps:
                futures = {
                    future.key: future
                    for future in self._held_blocks.ensure_blocks(block_numbers).values()
                }
                submit = partial(self._client.submit, compute_bundle_scales, pure=False)
                level = [submit(bundle) for bundle in futures.values()]
            else:
                level = list(start_scales(block_numbers).values())
            # A tree of merges, with at most `_FAN_IN` summaries per task.
            while len(level) > 1:
                groups = [level[i : i + _FAN_IN] for i in range(0, len(level), _FAN_IN)]
                level = [self._client.submit(merge_scales, group, pure=False) for group in groups]
            return level[0]

        description = "the scales of the features"
        scales_by_part = self._gathering.results(merged, list(range(n_parts)), description)
        return join_scales([scales_by_part[part] for part in range(n_parts)])

    def ask(self, function: Callable[[Any], Any]) -> list[Any]:
        """Return the results of a function of each block, computed on its worker."""
        numbers = [info.index for info in self.infos]
        results = self._map_held_blocks(numbers, function)
        return [results[i] for i in numbers]

    def map_blocks(
        self, function: Callable[[Any, Any], Any], arguments: Mapping[int, Any]
    ) -> list[Any]:
        """Return the results of a function of some blocks, each with its own argument.

        Blocks that are not kept are read again.
        """
        if self._keeps:
            results = self._map_held_blocks(arguments, function, arguments)
        else:
            start = self._make_lazy_tasks(function, arguments)
            results = self._gathering.results(start, arguments, _ROWS_TO_READ)
        return [results[i] for i in arguments]

    def warn_of_few_blocks(self) -> None:
        """Warn if the user's blocks are large and fewer than the workers."""
        X, ready = self._collection.inputs[0], list(self.membership.ready)
        own_keys = {future.key for future in self._held_blocks.futures.values()}
        warn_of_few_blocks(self._client, X, self.infos, ready, own_keys)

    # -- location ------------------------------------------------------------------------------

    def find_holders(self) -> dict[int, list[str]]:
        """Return the workers that hold each block; none if it is read or made again."""
        if self._held_blocks.were_seen_at_home():
            return {info.index: [self.home_workers[info.index] or ""] for info in self.infos}
        holders = self._held_blocks.find_holders()
        if self.home_workers:
            ready = self.membership.ready
            # Other work may have made copies elsewhere, so the worker is preferred on which the
            # user has persisted the part.
            at_home = {i: [home] for i, home in enumerate(self.home_workers) if home in ready}
            holders |= {i: home for i, home in at_home.items() if home[0] in holders.get(i, home)}
        return {info.index: holders.get(info.index, []) for info in self.infos}

    def find_current_holders(self) -> dict[int, list[str]]:
        """Return the workers that hold each block at this moment."""
        return self._held_blocks.find_holders()

    def is_only_holder(self, address: str) -> bool:
        """Return whether any block is held only by this worker."""
        return any(holders == [address] for holders in self.find_current_holders().values())

    def were_just_seen(self) -> bool:
        """Return whether `inspect_blocks` found all blocks at home, and none was lost since."""
        return self._held_blocks.were_seen_at_home() and not self.missing_blocks()

    def missing_blocks(self) -> list[int]:
        """Return the blocks that no worker holds, and that no task is about to make."""
        return self._held_blocks.missing_blocks()

    @property
    def are_blocks_made(self) -> bool:
        """Return whether no block is being made."""
        return all(future.status == "finished" for future in self._held_blocks.futures.values())

    def free_waiting_blocks(self) -> None:
        """Free blocks that are being made again from waiting for a lost worker."""
        if not self.are_blocks_made:
            self._held_blocks.free_waiting_blocks()

    def remake_lost_blocks(self) -> dict[int, str]:
        """Make lost blocks again; return the blocks that cannot be made, and why."""
        return self._held_blocks.remake_lost_blocks(range(len(self.infos)))

    def blocks_for_trainer(self, block_numbers: Iterable[int]) -> list[Any] | bytes:
        """Return futures of the bundles of some blocks, or their recipes, for a trainer."""
        block_numbers = sorted(block_numbers)
        futures = self._held_blocks.futures
        if self._recipes is None:
            return list({futures[i].key: futures[i] for i in block_numbers}.values())
        # Streamed in form only: kept on workers, spilled by Dask, and fetched by key.
        if self._keeps:
            keys = {i: futures[i].key for i in block_numbers}
            rows = self._recipes.rows
            return BlockRecipes(keys, {}, frozenset(keys.values()), rows).pack(block_numbers)
        return self._recipes.pack(block_numbers)

    def seconds_a_row(self) -> float:
        """Measure the time per row in a pass, on the largest block."""
        largest = max(self.infos, key=lambda info: info.n_rows).index
        seconds: float = self._map_held_blocks([largest], measure_seconds_per_row)[largest]
        return seconds

    def bandwidth(self) -> float:
        """Return the bytes per second between workers, as measured by them."""
        measured = [worker["metrics"]["bandwidth"]["total"] for worker in self._worker_facts()]
        return float(np.median(measured))

    def blocks_per_lane(self, n_lanes: int) -> int:
        """Return how many streamed blocks each lane of a worker may have in memory."""
        largest = max(info.nbytes for info in self.infos)
        # During a read, about three times the block is in memory (file, frame, array).
        available_bytes = self.budget_share * self.budget - 3 * largest * n_lanes
        return int(max(2, min(available_bytes / max(largest, 1) / n_lanes, len(self.infos) + 1)))

    def release(self) -> None:
        """Release the blocks, and the data from which they are made; nothing can be read after it.

        What reports progress refers back to these rows and to their engine. Without these cycles,
        the rows in memory of this process are freed now, not by Python's garbage collector.
        """
        self._held_blocks.close()
        self.held_parts.release()
        self._report_phase = self.membership.on_wait = ignore_event
        self._gathering.close()


def apply_to_block(
    bundle: BlockBundle, block_number: int, *args: Any, function: Callable[..., Any]
) -> Any:
    """Return the result of a function of a block of a bundle."""
    return function(bundle.blocks[block_number], *args)


def compute_bundle_scales(bundle: BlockBundle) -> FeatureScales:
    """Return the scales of the blocks of a bundle."""
    return merge_scales([compute_block_scales(block) for block in bundle.blocks.values()])


def measure_seconds_per_row(block: Block) -> float:
    """Return the time per row of a gradient's two products, on up to 65,536 rows."""
    X = copy_to_host(block.rows[: 2**16])
    if isinstance(X, np.ndarray) and (X.ndim > 2 or X.dtype.kind != "f"):
        X = X[: max(1, 2**24 // math.prod(X.shape[1:]))]
        X = X.reshape(len(X), -1).astype(np.float32)
    w, g = np.ones(X.shape[1], dtype=X.dtype), np.ones(X.shape[0], dtype=X.dtype)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        X @ w
        g @ X
        times.append(time.perf_counter() - start)
    return float(min(times) / X.shape[0])


def fit_surely_in_memory(
    client: Client, collection: Collection, available_bytes: float, *, persisted: bool
) -> bool:
    """Return whether all blocks certainly fit, whatever their rows are."""
    nbytes = collection.nbytes
    if nbytes is not None and sum(nbytes) <= available_bytes:
        return True
    # Sparse rows, and frames with an unknown number of rows.
    return persisted and _WIDER * _count_persisted_bytes(client, collection) <= available_bytes


def _count_persisted_bytes(client: Client, collection: Collection) -> float:
    """Return the bytes of all parts of the features; infinite if Dask does not know them."""
    keys = [part[0].key for part in collection.parts]
    sizes = client.nbytes(keys, summary=False)
    return float(sum(sizes.get(key, math.inf) for key in keys))


class HeldParts:
    """Parts of a lazy collection, made once and held by workers until released.

    Parameters
    ----------
    client : Client
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._futures: list[Any] = []

    def hold(self, lazy: list[Any]) -> Parts:
        """Make parts, and hold them from now on."""
        parts = list(self._client.persist(lazy))
        self._futures += futures_of(parts)
        return Parts(self._client, parts, self._futures)

    def release(self) -> None:
        """Release all parts."""
        for future in self._futures:
            future.release()
        self._futures = []


class Parts:
    """Parts that workers hold.

    Parameters
    ----------
    client : Client
    parts : list of Delayed
    futures : list
        List for further futures that must be held as long as the parts.
    """

    def __init__(self, client: Client, parts: list[Any], futures: list[Any]) -> None:
        self._client = client
        self.parts = parts
        self._futures = futures

    def ask(self, function: Callable[[Any], Any]) -> list[Any]:
        """Return the results of a picklable function of each part."""
        delayed_function = delayed(function, pure=False)
        futures = self._client.compute([delayed_function(part) for part in self.parts])
        self._futures += futures
        return list(self._client.gather(futures))

    def together(self) -> list[list[int]]:
        """Return the positions of the parts that each worker holds."""
        holders = self._client.who_has(futures_of(self.parts))
        positions: dict[Any, list[int]] = {}
        for i, part in enumerate(self.parts):
            positions.setdefault(next(iter(holders.get(part.key, ())), i), []).append(i)
        return list(positions.values())


def warn_of_few_blocks(
    client: Client,
    X: Any,
    infos: Sequence[BlockInfo],
    workers: Sequence[str],
    own_keys: Container[Any],
) -> None:
    """Warn if blocks are not small, and some idle workers have none."""
    filled = [info for info in infos if info.n_rows]
    n_blocks, n_rows = len(filled), sum(info.n_rows for info in filled)
    if X is None or not 0 < n_blocks < len(workers):
        return
    if sum(info.nbytes for info in filled) < _WORTH * n_blocks:
        return
    if (n_workers := _count_idle_workers(client, workers, own_keys)) <= n_blocks:
        return
    if is_dask_frame(X):
        remedy = (
            f"df.repartition(npartitions={n_workers}), or dd.read_parquet(..., "
            "split_row_groups=True)"
        )
    elif hasattr(X, "rechunk"):
        remedy = f"X.rechunk({{0: {-(-n_rows // n_workers)}}})"
    else:
        remedy = f"pass at least {n_workers} of them in the list"
    warnings.warn(
        f"X has {n_blocks} block{'s'[: n_blocks > 1]} of rows for {n_workers} workers: workers "
        "without a block wait while rows are read, and then copy whole blocks or stay idle. "
        f"Make at least one block per worker: {remedy}.",
        UserWarning,
        stacklevel=user_stack_level(),
    )


def _count_idle_workers(client: Client, workers: Sequence[str], own_keys: Container[Any]) -> int:
    """Return the number of workers without tasks of other users."""
    with suppress(OSError):  # the scheduler is gone: the next roll call reports it
        tasks: dict[str, Any] = client.processing(list(workers))
        return sum(all(is_actor_key(k) or k in own_keys for k in tasks.get(w, ())) for w in workers)
    return 0
