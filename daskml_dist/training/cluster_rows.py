"""The rows of a fit on a cluster: made where they lie, kept while they fit, else only looked at."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from dask.base import is_dask_collection
from dask.delayed import delayed
from distributed import Client, wait
from distributed.client import futures_of

from daskml_dist.data.block_info import BlockInfo, inspect_block
from daskml_dist.data.blocks import Block, make_block
from daskml_dist.data.collection import Collection
from daskml_dist.data.conversion import to_host
from daskml_dist.data.recipes import Recipes, make_recipes
from daskml_dist.data.scales import Scales, block_scales, merge_scales
from daskml_dist.errors import DaskMLDistError, InvalidDataError, TrainingError, WorkerLostError
from daskml_dist.training.dask_internals import is_dasks, list_workers

__all__ = ["ClusterRows"]

#: Share of a worker's memory that the blocks of a fit may take by default; the rest is for what
#: reading needs beside them, and for the user.
_AUTO_BUDGET = 0.4
#: And of a GPU's, where they are copied to one.
_GPU_BUDGET = 0.6
#: Recipes that repeat more work than this (a shuffle, a join) are not run anew in each pass.
_REPEATED_WORK = 1.5
#: Summaries that one task merges.
_FAN_IN = 16
#: Seconds in which no worker works on anything after which rows are taken for lost, and seconds
#: that fetching the summaries of blocks that were read may take.
_QUIET, _GATHER = 30.0, 120.0
_AGAIN = (
    "Fit again; keep the recipe of the collection (persist, not scatter) so that Dask can read "
    "it again."
)


class ClusterRows:
    """Makes and holds the blocks of one fit.

    Parameters
    ----------
    client : Client
    collection : Collection
    memory_budget : int or None
        Bytes of blocks on one worker; None: a share of its memory limit, and of its GPU's memory.
    device : {"auto", "cpu", "gpu"}, default="cpu"
        Where the fit is asked to be.
    """

    def __init__(
        self,
        client: Client,
        collection: Collection,
        memory_budget: int | None,
        device: str = "cpu",
    ) -> None:
        self._client = client
        self._collection = collection
        self._given_budget = memory_budget
        self._device = device
        self._futures: dict[int, Any] = {}
        self._recipes: Recipes | None = None
        self._classification = False
        self._made_again: set[int] = set()
        self._lost: set[int] = set()
        self._cuts: Any = None
        self.infos: list[BlockInfo] = []
        #: Worker of each part that the user has persisted; empty where rows are read for the fit.
        self.homes: list[str] = []

    # -- the cluster -----------------------------------------------------------------------------

    def threads(self) -> dict[str, int]:
        """Threads of each worker, by address."""
        return {address: worker["nthreads"] for address, worker in self._workers().items()}

    def _workers(self) -> dict[str, Any]:
        workers = list_workers(self._client)
        if not workers:
            raise TrainingError(
                "The cluster has no worker. Scale it up, or wait with client.wait_for_workers(1)."
            )
        return workers

    @property
    def budget(self) -> float:
        """Bytes of blocks on one worker; infinite where its memory has no limit."""
        if self._given_budget is not None:
            return self._given_budget
        workers = self._workers().values()
        budget: float = _AUTO_BUDGET * min(worker["memory_limit"] or np.inf for worker in workers)
        if self._device == "cpu":
            return budget
        # Dask tells where it has NVIDIA's nvidia-ml-py, as with dask-cuda.
        gpus = [(worker.get("gpu") or {}).get("memory-total") for worker in workers]
        return min([budget, *(_GPU_BUDGET * int(memory) for memory in gpus if memory)])

    # -- reading ---------------------------------------------------------------------------------

    @property
    def streamed(self) -> bool:
        """Whether blocks are made anew when a lane needs them."""
        return self._recipes is not None

    @property
    def blocks(self) -> dict[int, Any] | Recipes:
        """Futures of the blocks, or the recipes of streamed ones."""
        return self._futures if self._recipes is None else self._recipes

    def survey(self, classification: bool) -> list[BlockInfo]:
        """Read all rows once and return what the client must know of each block."""
        self._workers()
        self._classification = classification
        try:
            if self._collection.kind == "memory":
                self._futures = self._spread()
                self.infos = self._inspect(range(len(self._futures)), classification)
            else:
                self.homes = self._find_homes()
                self._read(classification)
        except DaskMLDistError:
            raise
        except Exception as error:
            if is_dasks(error):
                raise WorkerLostError(
                    f"A worker was lost while its rows were read ({error}). {_AGAIN}"
                ) from error
            raise
        return self.infos

    def _read(self, classification: bool) -> None:
        """Make the blocks and keep them, in waves, as long as they fit in the budget."""
        lazy = self._collection.delayed_blocks(None, classification)
        room = self.budget * len(self._workers())
        wave = sum(self.threads().values())
        recipes = make_recipes(lazy)
        if recipes.repeated_work > _REPEATED_WORK:
            wave = len(lazy)
        while len(self.infos) < len(lazy):
            at = range(len(self.infos), min(len(self.infos) + wave, len(lazy)))
            self._futures.update(self._compute({i: lazy[i] for i in at}))
            self.infos += self._inspect(at, classification)
            used = sum(info.nbytes for info in self.infos)
            if used > room:
                self._stream(lazy, recipes, classification)
                return
            left = (room - used) * len(self.infos) / max(used, 1)
            wave = 1 + int(min(left, len(lazy)))

    def _stream(self, lazy: list[Any], recipes: Recipes, classification: bool) -> None:
        """Look at the remaining blocks; from now on each is made when it is needed."""
        seen = sum(info.nbytes for info in self.infos)
        rest = range(len(self.infos), len(lazy))
        # A shuffle is not run again for each block of each pass, and data that lies in the graph
        # need not travel with it: such blocks are kept, and spill to disk.
        if recipes.repeated_work > _REPEATED_WORK or recipes.nbytes > seen / 2:
            self._futures.update(self._compute({i: lazy[i] for i in rest}))
            self.infos += self._inspect(rest, classification)
            keys = {i: future.key for i, future in self._futures.items()}
            recipes = Recipes(keys, {}, frozenset(keys.values()))
        else:
            self.release()
            look = delayed(inspect_block, pure=False)
            seen_only = self._compute({i: look(lazy[i], classification) for i in rest})
            self.infos += self._gather(list(seen_only.values()), rest)
        self._recipes = recipes.of_rows({info.index: info.n_rows for info in self.infos})

    def _compute(self, lazy: dict[int, Any]) -> dict[int, Any]:
        """Start tasks, each on its part's worker where it has one: stealing must not move it."""
        if not self.homes:
            return dict(zip(lazy, self._client.compute(list(lazy.values())), strict=True))
        futures: dict[int, Any] = {}
        for home in sorted({self.homes[i] for i in lazy}):
            here = [i for i in lazy if self.homes[i] == home]
            made = self._client.compute([lazy[i] for i in here], workers=[home])
            futures.update(zip(here, made, strict=True))
        return futures

    def _inspect(self, numbers: range, classification: bool) -> list[BlockInfo]:
        look = [
            self._client.submit(
                inspect_block,
                self._futures[i],
                classification,
                pure=False,
                workers=self.homes[i : i + 1],
            )
            for i in numbers
        ]
        return self._gather(look, numbers)

    def _gather(self, futures: list[Any], numbers: Iterable[int]) -> list[BlockInfo]:
        self._await(futures)
        try:
            fetch = partial(self._client.gather, futures, asynchronous=True)
            found: list[BlockInfo] = self._client.sync(fetch, callback_timeout=_GATHER)
        except TimeoutError as error:
            raise WorkerLostError(
                f"What was read of the rows cannot be fetched. {_AGAIN}"
            ) from error
        except DaskMLDistError:
            raise
        except Exception as error:
            for future, number in zip(futures, numbers, strict=True):
                if future.status == "error" and not is_dasks(error):
                    raise InvalidDataError(
                        f"Block {number} could not be read: {error!r}. Mend or leave out the "
                        "file or the task that makes it."
                    ) from error
            raise
        finally:
            # An error's traceback would hold them, and with them the user's rows.
            for future in futures:
                future.release()
        return found

    def _await(self, futures: list[Any]) -> None:
        """Wait for tasks as long as somebody works on them."""
        since, done = time.monotonic(), -1
        while futures:
            with suppress(TimeoutError), self._client.as_current():
                wait(futures, timeout=1)
                return
            if gone := set(self.homes).difference(self.threads()):
                raise WorkerLostError(
                    f"Worker {min(gone)} was lost while its rows were read. {_AGAIN}"
                )
            before, done = done, sum(future.done() for future in futures)
            if done > before or any(self._client.processing().values()):
                since = time.monotonic()
            elif time.monotonic() - since > _QUIET:
                raise WorkerLostError(f"No worker goes on to read the rows. {_AGAIN}")

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
        self._await(list(futures.values()))
        holders = self._client.who_has(list(futures.values()))
        load: Counter[str] = Counter()
        homes = []
        for X in parts:
            if not holders.get(X.key):
                return []
            homes.append(min(holders[X.key], key=lambda worker: (load[worker], worker)))
            load[homes[-1]] += 1
        return homes

    def _spread(self, numbers: Iterable[int] | None = None) -> dict[int, Any]:
        """Scatter rows in memory, a part for each thread of the cluster; or some parts again."""
        ((X, y, weight),) = self._collection.parts
        several = self._collection.multi_output
        whole = make_block(
            0, X, y, weight, classification=self._classification, multi_output=several
        )
        if numbers is None:
            n_parts = max(1, min(sum(self.threads().values()), whole.n_rows))
            self._cuts = np.linspace(0, whole.n_rows, n_parts + 1).astype(int)
            numbers = range(n_parts)
        blocks = {}
        for index in numbers:
            a, b = self._cuts[index : index + 2]
            part = [None if v is None else v[a:b] for v in (whole.X, whole.y, whole.sample_weight)]
            (rows,) = self._client.scatter([part], hash=False)
            blocks[index] = self._client.submit(
                _block_of, index, rows, self._classification, several, pure=False
            )
        return blocks

    def scales(self, classification: bool) -> Scales:
        """Scales of all features, merged on the workers."""
        numbers = range(len(self.infos))
        if self._futures:
            level = [
                self._client.submit(block_scales, self._futures[i], pure=False) for i in numbers
            ]
        else:
            lazy = self._collection.delayed_blocks(None, classification)
            measure = delayed(block_scales, pure=False)
            level = list(self._compute({i: measure(lazy[i]) for i in numbers}).values())
        while len(level) > 1:
            groups = [level[i : i + _FAN_IN] for i in range(0, len(level), _FAN_IN)]
            level = [self._client.submit(merge_scales, group, pure=False) for group in groups]
        found: Scales = self._result(level[0])
        return found

    def _result(self, future: Any) -> Any:
        self._await([future])
        return future.result(timeout=_GATHER)

    # -- where they lie --------------------------------------------------------------------------

    def holders(self) -> dict[int, list[str]]:
        """Workers that hold each block; none where it is read from storage.

        Raises
        ------
        WorkerLostError
            When nobody holds a block that somebody should.
        """
        numbers = range(len(self.infos))
        if self.homes:
            # Work on the side may have made copies elsewhere.
            return {i: [self.homes[i]] for i in numbers}
        if not self._futures:
            return {i: [] for i in numbers}
        held = self._client.who_has(list(self._futures.values()))
        holders = {i: list(held.get(self._futures[i].key, ())) for i in numbers}
        if not all(holders.values()):
            raise WorkerLostError("A worker that held rows of the fit was lost. Fit again.")
        return holders

    def holders_now(self) -> dict[int, list[str]]:
        """Workers that hold each block at this moment; none where it must be made again."""
        held = self._client.who_has(list(self._futures.values())) if self._futures else {}
        return {i: list(held.get(future.key, ())) for i, future in self._futures.items()}

    def only_at(self, address: str) -> bool:
        """Whether some block is held by this worker and by no other."""
        return any(held == [address] for held in self.holders_now().values())

    def missing(self) -> list[int]:
        """Blocks that nobody holds, and that nobody is about to make."""
        # A task that was to run where the rows lay has no worker any more.
        stuck = {"cancelled", "lost"} if self.homes else {"cancelled"}
        return [i for i, future in self._futures.items() if future.status in stuck]

    def mend(self) -> set[int]:
        """Make blocks again that went with a worker; return all that nothing can make.

        What has a recipe without a fixed place is made again by Dask itself.
        """
        missing = self.missing()
        in_memory = self._collection.kind == "memory"
        hopeless = [i for i in missing if i in self._made_again and not in_memory]
        again = [i for i in missing if i not in hopeless]
        self._made_again.update(again)
        self._lost.update(hopeless)
        if again:
            self._client.cancel([self._futures[i] for i in again])
            made = self._spread(again) if in_memory else self._make_again(again)
            self._futures.update(made)
        for i in hopeless:
            del self._futures[i]
        return self._lost

    def _make_again(self, numbers: list[int]) -> dict[int, Any]:
        lazy = self._collection.delayed_blocks(None, self._classification)
        return dict(zip(numbers, self._client.compute([lazy[i] for i in numbers]), strict=True))

    def blocks_for(self, numbers: Iterable[int]) -> dict[int, Any] | bytes:
        """Futures of some blocks, or their packed recipes, as a trainer takes them."""
        numbers = sorted(numbers)
        if self._recipes is not None:
            return self._recipes.pack(numbers)
        return {i: self._futures[i] for i in numbers}

    def seconds_a_row(self) -> float:
        """Time of a row in a pass, measured on the largest block."""
        largest = max(self.infos, key=lambda info: info.n_rows)
        timing = self._client.submit(_seconds_a_row, self._futures[largest.index], pure=False)
        seconds: float = self._result(timing)
        return seconds

    def bandwidth(self) -> float:
        """Bytes a second between workers, as these have measured it."""
        measured = [w["metrics"]["bandwidth"]["total"] for w in self._workers().values()]
        return float(np.median(measured))

    def blocks_per_lane(self, n_lanes: int) -> int:
        """Streamed blocks in memory for each of `n_lanes` lanes of a worker, at least two.

        Raises
        ------
        InvalidDataError
            When a block is larger than the budget.
        """
        largest = max(self.infos, key=lambda info: info.nbytes)
        if largest.nbytes > self.budget and not (self.homes or self._futures):
            raise InvalidDataError(
                f"Block {largest.index} takes {largest.nbytes:,} bytes, more than the "
                f"{self.budget:,.0f} bytes that blocks may take on a worker. Make smaller chunks "
                '(X.rechunk({0: "64 MiB"}), df.repartition(partition_size="64MB")), or raise '
                "memory_budget."
            )
        # A read takes about three times the block (file, frame, array) while it lasts.
        room = self.budget - 3 * largest.nbytes * n_lanes
        return int(max(2, min(room / max(largest.nbytes, 1) / n_lanes, len(self.infos) + 1)))

    def release(self) -> None:
        """Let go of the blocks."""
        for block in self._futures.values():
            block.release()
        self._futures = {}


def _seconds_a_row(block: Block) -> float:
    """Time of two products, which a gradient takes, with up to 65,536 rows."""
    X = to_host(block.rows[: 2**16])
    w, g = np.ones(X.shape[1], dtype=X.dtype), np.ones(X.shape[0], dtype=X.dtype)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        X @ w
        g @ X
        times.append(time.perf_counter() - start)
    return float(min(times) / X.shape[0])


def _block_of(index: int, rows: list[Any], classification: bool, several: bool) -> Any:
    return make_block(index, *rows, classification=classification, multi_output=several)
