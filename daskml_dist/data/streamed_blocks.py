"""Blocks that a worker makes again in each pass, if not all of them fit in memory.

`make_recipes` extracts the part of the Dask graph that makes each block. `BlockStream` makes the
blocks of a lane from these recipes ahead of time, in the order of the pass, and drops them once
they are used.

A *bundle* is several blocks that one task makes and one worker holds: Dask's overhead per task does
not depend on its rows. The `BlockInfo` of a block is stored with it, so that a client can request
it later without reading the block again.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import cloudpickle

from daskml_dist.dask_internals.task_graphs import (
    collect_dependencies,
    collect_layers,
    convert_to_tasks,
    describe_task,
    find_futures,
    is_unordered_shuffle,
    run_tasks,
    select_tasks,
)
from daskml_dist.data.block_errors import make_reading_error
from daskml_dist.data.blocks import Block, BlockInfo, inspect_block
from daskml_dist.errors import DaskMLDistError, InvalidDataError

#: A bundle with this many bytes (16 MiB) takes no more blocks: it is moved, spilled and made as
#: one.
_MAX_BUNDLE_BYTES = 2**24
#: Minimum number of bundles per thread, if the bytes of a block are not known.
_BUNDLES_PER_THREAD = 8


@dataclass(frozen=True, eq=False)
class BlockBundle:
    """Blocks, and the facts about them that the client needs.

    Parameters
    ----------
    blocks : dict of int to Block
    infos : dict of int to BlockInfo
    """

    blocks: dict[int, Block]
    infos: dict[int, BlockInfo]

    def __sizeof__(self) -> int:
        # Dask calls this to budget a worker's memory.
        return object.__sizeof__(self) + sum(block.nbytes for block in self.blocks.values())


def make_bundle(
    make_block: Callable[..., Block], block_numbers: Sequence[int], parts: Sequence[Sequence[Any]]
) -> BlockBundle:
    """Make blocks, one per part, and their infos."""
    blocks = {}
    for number, part in zip(block_numbers, parts, strict=True):
        try:
            blocks[number] = make_block(number, *part)
        except DaskMLDistError:
            raise
        except Exception as error:
            raise make_reading_error(f"Block {number}", error) from error
    return BlockBundle(blocks, {number: inspect_block(block) for number, block in blocks.items()})


def group_into_bundles(
    homes: Sequence[str | None], threads: Mapping[str, int], nbytes: Sequence[float] | None
) -> list[tuple[int, ...]]:
    """Return groups of small blocks of one worker, each to be made by one task."""
    numbers_by_home: dict[str | None, list[int]] = {}
    for number, home in enumerate(homes):
        numbers_by_home.setdefault(home, []).append(number)
    bundles: list[tuple[int, ...]] = []
    for home, numbers in numbers_by_home.items():
        # At least one bundle per thread, so that all threads of the worker have work.
        shares = threads.get(home or "", 0) * (1 if nbytes is not None else _BUNDLES_PER_THREAD)
        max_blocks = len(numbers) // shares if shares else 1
        bundles += _split_by_size(numbers, max(1, max_blocks), nbytes)
    return sorted(bundles)


def _split_by_size(
    block_numbers: Sequence[int], max_blocks: int, nbytes: Sequence[float] | None
) -> Iterable[tuple[int, ...]]:
    """Yield runs of at most `max_blocks` blocks that together fill at most one bundle."""
    open_: list[int] = []
    size = 0.0
    for number in block_numbers:
        block_bytes = 0.0 if nbytes is None else nbytes[number]
        if open_ and (len(open_) == max_blocks or size + block_bytes > _MAX_BUNDLE_BYTES):
            yield tuple(open_)
            open_, size = [], 0.0
        open_.append(number)
        size += block_bytes
    if open_:
        yield tuple(open_)


def unpack_bundles(bundles: Iterable[BlockBundle]) -> dict[int, Block]:
    """Return all blocks of some bundles, by number."""
    return {number: block for bundle in bundles for number, block in bundle.blocks.items()}


@dataclass(frozen=True, eq=False)
class BlockRecipes:
    """Graphs of blocks that depend only on storage and on data that workers hold.

    Parameters
    ----------
    targets : dict of int to key
        Key of each block.
    graph : dict
        Tasks of all targets.
    held_keys : frozenset
        Keys that no recipe computes: workers hold their data.
    rows : dict of int to int
        Number of rows of each block when it was inspected.
    """

    targets: dict[int, Any]
    graph: dict[Any, Any]
    held_keys: frozenset[Any]
    rows: dict[int, int] = field(default_factory=dict)

    def of_rows(self, rows: dict[int, int]) -> BlockRecipes:
        """Return the same recipes, for blocks with these known numbers of rows."""
        return replace(self, rows=rows)

    def pack(self, blocks: Sequence[int]) -> bytes:
        """Return the pickled recipes of some blocks."""
        targets = {i: self.targets[i] for i in blocks}
        graph = select_tasks(self.graph, targets.values())
        held_keys = self._held_in(graph, targets)
        return bytes(cloudpickle.dumps(BlockRecipes(targets, graph, held_keys, self.rows)))

    def find_held_keys(self, block: int) -> frozenset[Any]:
        """Return the keys of data on workers that a block depends on."""
        target = {block: self.targets[block]}
        return self._held_in(select_tasks(self.graph, target.values()), target)

    def _held_in(self, graph: dict[Any, Any], targets: dict[int, Any]) -> frozenset[Any]:
        """Return the held data that some tasks depend on."""
        return self.held_keys.intersection([*targets.values(), *collect_dependencies(graph)])

    @staticmethod
    def unpack_recipes(packed: bytes) -> BlockRecipes:
        """Undo :meth:`pack`."""
        recipes: BlockRecipes = cloudpickle.loads(packed)
        return recipes

    def make_block(self, block_number: int, fetch: Callable[[Any], Any]) -> Block:
        """Make a block."""
        # `started_keys` collects the keys of tasks as they start: the last one failed.
        key, n_rows, started_keys = self.targets[block_number], self.rows[block_number], list[Any]()
        try:
            block_or_bundle = (
                fetch(key) if key in self.held_keys else self._run(key, fetch, started_keys)
            )
            block: Block = (
                block_or_bundle.blocks[block_number]
                if isinstance(block_or_bundle, BlockBundle)
                else block_or_bundle
            )
        except Exception as error:
            # Aborts, losses and timeouts are raised unchanged; anything else is a failure of the
            # block.
            if isinstance(error, DaskMLDistError) and not isinstance(error, InvalidDataError):
                raise
            failed = started_keys[-1] if started_keys else key
            raise InvalidDataError(
                f"Block {block_number} could not be recomputed: "
                f"{describe_task(failed, self.graph)} raised {error!r}. It did not fail when the "
                f"fit began. If what the task reads or calls has changed since, repair "
                f"it{self._or_persist}. If nothing has "
                "changed, please report this as a bug of daskml_dist; until then, raise "
                "memory_budget, so that blocks are kept."
            ) from error
        if block.n_rows != n_rows:
            raise InvalidDataError(
                f"Block {block_number} had {n_rows} rows when the fit began, and has "
                f"{block.n_rows} "
                "now: have its files changed, or does a task draw random numbers? They must "
                f"give the same rows each time{self._or_persist}."
            )
        return block

    @property
    def _or_persist(self) -> str:
        """Return a remedy for rows that change, unless they already come from persisted data."""
        return "" if self.held_keys else ", or call .persist() on the collection first"

    def _run(self, key: Any, fetch: Callable[[Any], Any], started_keys: list[Any]) -> Any:
        """Run the tasks behind a key, and return its result."""
        # Data on workers is fetched first, so that no running task waits for the network.
        tasks = select_tasks(self.graph, [key])
        data = {
            name: fetch(name) for name in self.held_keys.intersection(collect_dependencies(tasks))
        }
        return run_tasks(tasks, data, key, started_keys)

    @property
    def repeated_work(self) -> float:
        """Return the ratio of tasks run for blocks separately to tasks run for all together.

        Infinite if they involve Dask's scheduler, as in a shuffle between workers.
        """
        # One trainer alone cannot run a shuffle between workers.
        if any(map(is_unordered_shuffle, self.graph.values())):
            return math.inf
        # A shared read or join counts once for each block that would repeat it.
        n_separate_tasks = sum(
            len(select_tasks(self.graph, [key])) for key in self.targets.values()
        )
        return n_separate_tasks / max(len(self.graph), 1)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the recipes, including data embedded in them."""
        return len(self.pack(list(self.targets)))


def make_recipes(lazy: Sequence[Any]) -> BlockRecipes:
    """Make recipes of lazy blocks."""
    layers = collect_layers(lazy).values()
    targets = {i: block.key for i, block in enumerate(lazy)}
    tasks = select_tasks(convert_to_tasks(layers, find_futures(layers)), targets.values())
    # Data that no task makes is on the workers. This is more than the futures found: delayed parts
    # of a persisted collection refer to its keys without holding its futures.
    held_keys = collect_dependencies(tasks).union(targets.values()).difference(tasks)
    return BlockRecipes(targets, tasks, frozenset(held_keys))


T = TypeVar("T")

#: Seconds between two checks of whether to keep waiting for a read.
_WAIT_SLICE_SECONDS = 0.2


class BlockStream(Generic[T]):
    """Blocks of one lane, by number, read ahead in the order of the passes; for one thread.

    Parameters
    ----------
    load : callable
        Makes a block from its number; called in the executor's threads.
    order : callable
        Maps the number of a pass (from 1) to its blocks in the order of use, in groups needed at
        the same time.
    last : int
        Number of the last pass.
    ahead : int
        Number of blocks read ahead of the current group.
    executor : Executor
    check : callable
        Takes the time (monotonic) since which a read has been waited for; raises if the wait must
        end.
    """

    def __init__(
        self,
        load: Callable[[int], T],
        order: Callable[[int], list[list[int]]],
        last: int,
        ahead: int,
        executor: Executor,
        check: Callable[[float], None],
    ) -> None:
        self._load = load
        self._order = order
        self._last = last
        self._ahead = ahead
        self._executor = executor
        self._check = check
        #: Groups not yet scheduled.
        self._groups: Iterator[list[int]] = iter(())
        #: Groups of which some blocks are being read ahead, and these reads.
        self._coming: deque[list[int]] = deque()
        self._reads: dict[int, Future[T]] = {}
        #: Blocks of the current group.
        self._open: dict[int, Future[T]] = {}

    def seek(self, pass_: int) -> None:
        """Continue from the start of a pass."""
        self.close()
        # One sequence of groups over all passes, so that reads for a pass begin while the previous
        # one ends.
        passes = range(pass_, self._last + 1)
        self._groups = (group for number in passes for group in self._order(number))
        self._read_ahead()

    def __getitem__(self, block_number: int) -> T:
        """Return a block; blocks of earlier groups are dropped."""
        if block_number not in self._open:
            self._open_group(block_number)
        return self._wait_for_block(self._open[block_number])

    def read_out_of_order(self, block_number: int) -> T:
        """Return a block out of order; it is not kept."""
        if block_number in self._open:
            return self[block_number]
        return self._wait_for_block(self._executor.submit(self._load, block_number))

    def _open_group(self, block_number: int) -> None:
        """Make the group of a block the current one, and read ahead."""
        self._open = {}
        # A lane that resumes in the middle of a pass skips the earlier groups.
        while block_number not in (group := self._next_group()):
            for skipped in group:
                self._forget(skipped)
        self._open = {
            n: self._reads.pop(n) if n in self._reads else self._start_read(n) for n in group
        }
        self._read_ahead()

    def _next_group(self) -> list[int]:
        """Return the next group."""
        return self._coming.popleft() if self._coming else next(self._groups)

    def _read_ahead(self) -> None:
        """Start reads of the next blocks, up to the limit."""
        # The limit is in blocks; groups may have several.
        coming_blocks = [n for group in self._coming for n in group]
        while len(coming_blocks) < self._ahead:
            group = next(self._groups, None)
            if group is None:
                break
            self._coming.append(group)
            coming_blocks += group
        for n in coming_blocks[: self._ahead]:
            # A block that is open now may be needed again in the next pass; then it is read again.
            if n not in self._reads:
                self._reads[n] = self._start_read(n)

    def _start_read(self, block_number: int) -> Future[T]:
        """Start to make a block."""
        return self._executor.submit(self._load, block_number)

    def _forget(self, block_number: int) -> None:
        """Drop a block that is not needed; a read that has begun still finishes."""
        read = self._reads.pop(block_number, None)
        if read is not None:
            read.cancel()

    def _wait_for_block(self, future: Future[T]) -> T:
        """Wait for a block, as long as `check` allows."""
        since = time.monotonic()
        while True:
            try:
                return future.result(timeout=_WAIT_SLICE_SECONDS)
            # If the read is done, it raised this TimeoutError itself; otherwise only this slice of
            # waiting is over.
            except TimeoutError:
                if future.done():
                    raise
                self._check(since)

    def close(self) -> None:
        """Drop everything; reads that have begun still finish."""
        for number in list(self._reads):
            self._forget(number)
        self._open = {}
        self._coming.clear()
