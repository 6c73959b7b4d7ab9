"""Blocks of a fit that workers hold: their locations, and how lost ones are made again."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import numpy as np
from dask.delayed import Delayed, delayed
from distributed import Client, Future

from daskml_dist.dask_internals.cluster import (
    is_dask_error,
    is_killed_worker,
    release_stuck_tasks,
    request_data,
    submit_tasks,
)
from daskml_dist.dask_internals.task_graphs import MISSING_TASKS_HINT, collect_layers, find_futures
from daskml_dist.data.blocks import BlockInfo
from daskml_dist.data.collection import Collection
from daskml_dist.data.computing import flush_releases, scatter_values
from daskml_dist.data.streamed_blocks import (
    BlockRecipes,
    group_into_bundles,
    make_bundle,
    make_recipes,
)
from daskml_dist.data.value_blocks import ValueCollection
from daskml_dist.errors import DataLostError, InvalidDataError
from daskml_dist.training.client.gathering import MAX_TASK_RESTARTS
from daskml_dist.training.client.membership import Membership
from daskml_dist.training.client.run_actors import EarlyHost, query_bundles

#: Times that a block may raise an exception of its own before it counts as lost.
_MOST_FAILED = 3


class HeldBlocks:
    """Futures of a fit's blocks.

    Losses are not counted: lost blocks are made again as often as necessary. Only failures to make
    a block are counted, and the data from which it is made must still exist.

    Parameters
    ----------
    client : Client
    collection : Collection
    membership : Membership
    """

    def __init__(self, client: Client, collection: Collection, membership: Membership) -> None:
        self._client = client
        self._collection = collection
        self._membership = membership
        #: The future of each block's bundle.
        self.futures: dict[int, Any] = {}
        #: Worker of each part that the user has persisted; empty if rows are read for the fit.
        self.home_workers: list[str | None] = []
        #: Blocks that cannot be made any more, and why.
        self.unrecoverable: dict[int, str] = {}
        self._failed: Counter[int] = Counter()
        self._killed: Counter[int] = Counter()
        self._local_rows: RowsHere | None = None
        #: Futures of the user from which blocks are made, by key.
        self._sources: dict[Any, Any] = {}
        #: The run's first actor, which is submitted with the first blocks.
        self.early: EarlyHost | None = None
        #: Worker that had each block in memory when it reported the block's facts.
        self._seen_at: dict[int, str] = {}
        #: Blocks that are initially made together.
        self.bundles: list[tuple[int, ...]] = []

    def take(self, collection: Collection) -> None:
        """Use the same rows, cut differently; only before any block is made."""
        self._collection = collection

    # -- making --------------------------------------------------------------------------------

    @cached_property
    def first(self) -> list[Any]:
        """Return all blocks as lazy objects, before any was made again."""
        return self._collection.delayed_blocks()

    @cached_property
    def recipes(self) -> BlockRecipes:
        """Return the recipes of all blocks."""
        return make_recipes(self.first)

    @cached_property
    def is_made_directly(self) -> bool:
        """Return whether blocks are made only from existing rows, in memory or on workers."""
        return bool(self.home_workers) and all(
            not isinstance(value, Delayed) or value.key in self._sources
            for part in self._collection.parts
            for value in part
        )

    def plan_bundles(self) -> None:
        """Decide how all blocks are made."""
        # The user's persisted data are held as long as the fit may need them.
        self._sources = find_given_futures(self._client, self._collection.parts)
        if self.is_made_directly:
            nbytes = self._collection.nbytes
            self.bundles = group_into_bundles(self.home_workers, self._membership.threads, nbytes)
            return
        self.bundles = self._collection.bundles
        # Data on workers from which the blocks are made are held, too.
        for key in self.recipes.held_keys.difference(self._sources):
            if key not in self._client.futures:
                raise DataLostError(
                    f"X, y or sample_weight is made of {key}, which no task computes and no "
                    "worker holds. Perhaps it was persisted: parts of a persisted collection do "
                    "not keep its data alive. Keep the collection that persist() returned until "
                    f"the fit is over, or pass it instead of its parts. {MISSING_TASKS_HINT}"
                )
            self._sources[key] = Future(key, self._client)

    def cut_rows_here(self, n_blocks: int) -> int:
        """Cut rows in memory into blocks; return how many."""
        self._local_rows = RowsHere(self._collection, n_blocks)
        return len(self._local_rows)

    def start(self, lazy: dict[int, Any]) -> dict[int, Any]:
        """Start tasks, each pinned to its part's worker if it has one."""
        # One message per worker, instead of one per task.
        groups: dict[str | None, list[int]] = {}
        for i in lazy:
            groups.setdefault(self._find_home(i), []).append(i)
        futures: dict[int, Any] = {}
        for worker, numbers in groups.items():
            pinned_to = None if worker is None else [worker]
            started = self._client.compute([lazy[i] for i in numbers], workers=pinned_to)
            futures.update(zip(numbers, started, strict=True))
        return futures

    def _find_home(self, block_number: int) -> str | None:
        """Return the worker that should have a block, if it accepts work."""
        home = (
            self.home_workers[block_number] if self.home_workers else self._find_owner(block_number)
        )
        return home if home in self._membership.ready else None

    def _find_owner(self, block_number: int) -> str | None:
        """Return the worker to whose share a block belongs; for data on workers Dask decides."""
        share, ready = self._collection.find_share(block_number), sorted(self._membership.ready)
        if share is None or not ready or (self._collection.columns and self._sources):
            return None
        return ready[share[0] * len(ready) // share[1]]

    def ensure_blocks(self, block_numbers: Iterable[int]) -> dict[int, Any]:
        """Make missing blocks; return the future of each block's bundle."""
        block_numbers = list(block_numbers)
        # Blocks that Dask makes again by itself need no action.
        if lost := [i for i in block_numbers if self._is_lost(i)]:
            self.check(i for i in lost if i in self.futures)
            self._make_blocks(lost)
        return {i: self.futures[i] for i in block_numbers}

    def check(self, block_numbers: Iterable[int]) -> None:
        """Raise `DataLostError` if any of these lost blocks cannot be made again."""
        if causes := self._find_causes(list(block_numbers)):
            raise DataLostError(describe_lost_blocks(causes))

    def _make_blocks(self, block_numbers: list[int]) -> None:
        """Start the tasks that make some blocks, initially in bundles."""
        old_futures = self._distinct_futures(i for i in block_numbers if i in self.futures)
        if old_futures:
            self._client.cancel(old_futures)
            self._seen_at = {}
        if self._collection.kind == "memory":
            self.futures.update(self._scatter_rows(block_numbers))
            return
        # Whole bundles the first time; single blocks when some are made again, since these may fail
        # separately.
        wanted_numbers = set(block_numbers)
        bundles = [] if old_futures else [b for b in self.bundles if wanted_numbers.issuperset(b)]
        bundles += [(i,) for i in wanted_numbers.difference(*bundles)]
        for bundle, future in self._start_bundles(bundles).items():
            self.futures.update(dict.fromkeys(bundle, future))

    def _start_bundles(self, bundles: list[tuple[int, ...]]) -> dict[tuple[int, ...], Any]:
        """Start one task per bundle."""
        maker, parts = self._collection.block_maker, self._collection.parts
        if self.is_made_directly:
            keys = {f"{make_bundle.__name__}-{uuid.uuid4()}": bundle for bundle in bundles}
            tasks: dict[Any, Any] = {}
            for key, bundle in keys.items():
                # Persisted rows are passed as futures, so they are not copied to the client.
                sources = [
                    [self._sources[v.key] if isinstance(v, Delayed) else v for v in parts[i]]
                    for i in bundle
                ]
                tasks[key] = make_bundle, (maker, bundle, sources)
            homes = {key: self._find_home(bundle[0]) for key, bundle in keys.items()}
            start = partial(submit_tasks, self._client) if self.early is None else self.early.start
            futures = start(tasks, homes)
            return {bundle: futures[key] for key, bundle in keys.items()}
        make = delayed(make_bundle, pure=False)
        lazy = {b[0]: make(maker, b, [list(parts[i]) for i in b]) for b in bundles}
        futures = self.start(lazy)
        return {bundle: futures[bundle[0]] for bundle in bundles}

    def _scatter_rows(self, block_numbers: list[int]) -> dict[int, Any]:
        """Scatter rows from the client's memory, and make blocks of them."""
        assert self._local_rows is not None
        make, parts = self._collection.block_maker, self._local_rows.get_parts(block_numbers)
        rows = scatter_values(self._client, parts) if parts else []
        return {
            i: self._client.submit(make_bundle, make, (i,), [part], pure=False)
            for i, part in zip(block_numbers, rows, strict=True)
        }

    # -- losses --------------------------------------------------------------------------------

    def _is_lost(self, block_number: int) -> bool:
        """Return whether Dask will not make a block again by itself, after a loss or an error."""
        future = self.futures.get(block_number)
        return future is None or future.status in {"cancelled", "error"}

    def missing_blocks(self) -> list[int]:
        """Return the blocks that no worker holds, and that no task is about to make."""
        return [i for i in self.futures if self._is_lost(i)]

    def free_waiting_blocks(self) -> None:
        """Free blocks that are being made again from waiting for a lost worker."""
        # Their dependencies may be pinned to a lost worker.
        waiting = {f.key for f in self.futures.values() if f.status in {"pending", "lost"}}
        release_stuck_tasks(self._client, list(waiting))

    def remake_lost_blocks(self, block_numbers: Iterable[int]) -> dict[int, str]:
        """Make blocks of lost workers again; return the blocks that cannot be made, and why."""
        is_streamed = not self.futures
        if is_streamed:
            self.unrecoverable.update(
                self._find_causes([i for i in block_numbers if i not in self.unrecoverable])
            )
            return self.unrecoverable
        missing = self.missing_blocks()
        self.unrecoverable.update(self._find_causes(missing))
        self._make_blocks([i for i in missing if i not in self.unrecoverable])
        for i in self.unrecoverable:
            self.futures.pop(i, None)
        self.free_waiting_blocks()
        return self.unrecoverable

    def _find_causes(self, block_numbers: list[int]) -> dict[int, str]:
        """Return the blocks among `block_numbers` that cannot be made, and why."""
        if self._collection.kind == "memory" or not block_numbers:
            return {}
        causes = {}
        # A block fails for good after too many exceptions of its own, or once its data is lost.
        for i in block_numbers:
            cause = self._count_failure(i) or self._find_lost_source(i)
            if cause is not None:
                causes[i] = cause
        return causes

    def _count_failure(self, block_number: int) -> str | None:
        """Count an exception of the block itself; return it after too many."""
        future = self.futures.get(block_number)
        if future is None or future.status != "error":
            return None
        error = future.exception(timeout=5)
        if is_killed_worker(error):
            self._killed[block_number] += 1
            release_stuck_tasks(self._client, [future.key], [future.key])
            return repr(error) if self._killed[block_number] > MAX_TASK_RESTARTS else None
        self._failed[block_number] += not is_dask_error(error)
        return repr(error) if self._failed[block_number] > _MOST_FAILED else None

    def _find_lost_source(self, block_number: int) -> str | None:
        """Return why the data of a block is lost; None if it exists, or is being made."""
        if not self.bundles:
            return None
        for future in (self._sources[key] for key in self._list_sources(block_number)):
            if future.status == "cancelled":
                return "its data was cancelled, or was scattered and lost with its worker"
            if future.status == "error" and not is_dask_error(error := future.exception(timeout=5)):
                return repr(error)
        return None

    def _list_sources(self, block_number: int) -> list[Any]:
        """Return the keys of the data on workers from which a block is made."""
        if not self.is_made_directly:
            return list(self.recipes.find_held_keys(block_number))
        return [v.key for v in self._collection.parts[block_number] if isinstance(v, Delayed)]

    # -- location ------------------------------------------------------------------------------

    def persisted_parts(self) -> list[Any]:
        """Return the user's persisted parts in block order; [] unless all are persisted."""
        parts = [part[0] for part in self._collection.parts if part]
        if not parts or not all(isinstance(X, Delayed) for X in parts):
            return []
        futures = find_given_futures(self._client, [(X,) for X in parts])
        if not all(X.key in futures for X in parts):
            return []
        return [futures[X.key] for X in parts]

    def choose_home_workers(self, persisted_parts: list[Any]) -> None:
        """Choose, for each persisted part, one worker that holds it; distribute evenly."""
        workers_by_key = self._client.who_has(persisted_parts) if persisted_parts else {}
        ready = self._membership.ready
        # Replicated parts go to the holder with the fewest parts so far.
        n_blocks: Counter[str] = Counter()
        self.home_workers = []
        for part in persisted_parts:
            holders = [w for w in workers_by_key.get(part.key, ()) if w in ready]
            home = min(holders, key=lambda w: (n_blocks[w], w), default=None)
            self.home_workers.append(home)
            if home is not None:
                n_blocks[home] += 1

    def were_seen_at_home(self) -> bool:
        """Return whether each block was in its home's memory when its facts were reported."""
        seen_at = [self._seen_at.get(i) for i in self.futures]
        return bool(self.home_workers) and seen_at == [self.home_workers[i] for i in self.futures]

    def find_holders(self) -> dict[int, list[str]]:
        """Return the workers that hold each block at this moment."""
        workers_by_key = (
            self._client.who_has(self._distinct_futures(self.futures)) if self.futures else {}
        )
        return {i: list(workers_by_key.get(future.key, ())) for i, future in self.futures.items()}

    def _distinct_futures(self, block_numbers: Iterable[int]) -> list[Any]:
        """Return the futures of some blocks, once per bundle."""
        return list({self.futures[i].key: self.futures[i] for i in block_numbers}.values())

    def collect_facts(
        self, block_numbers: Sequence[int], wait: float = 0.0
    ) -> dict[int, BlockInfo]:
        """Return facts of blocks from the workers that have them in memory; may be incomplete."""
        ready = self._membership.ready
        homes = {
            self.futures[i].key: self.home_workers[i] if self.home_workers else None
            for i in block_numbers
        }
        if not ready.keys() >= set(homes.values()):
            if wait:
                return {}
            workers_by_key = self._client.who_has(self._distinct_futures(block_numbers))
            homes = {key: next(iter(workers), None) for key, workers in workers_by_key.items()}
        keys: dict[str, list[Any]] = {}
        for key, home in homes.items():
            if home in ready:
                keys.setdefault(home, []).append(key)
        answers, wanted_numbers = (
            query_bundles(self._client, keys, self.early, wait),
            set(block_numbers),
        )
        self._seen_at |= {i: address for i, (address, _) in answers.items()}
        return {i: info for i, (_, info) in answers.items() if i in wanted_numbers}

    def release(self) -> None:
        """Release the blocks."""
        for block in self.futures.values():
            block.release()
        self.futures = {}

    def close(self) -> None:
        """Release the blocks, and the data from which they are made."""
        self.release()
        self._sources = {}
        flush_releases(self._client)


def describe_lost_blocks(causes: dict[int, str]) -> str:
    """Return the error message of a `DataLostError`."""
    examples = "; ".join(f"block {i}: {causes[i]}" for i in sorted(causes)[:10])
    return (
        f"{len(causes)} block(s) were lost with a worker or cancelled, and cannot be recomputed "
        f"({examples}). Cancel rows only after the fit. Pass fit a collection that can be "
        "recomputed: read it from storage, and persist() rather than scatter() it; or keep copies "
        '(client.replicate); or set on_lost_data="skip" to continue without rows lost during the '
        "fit."
    )


def find_given_futures(client: Client, parts: list[tuple[Any, ...]]) -> dict[Any, Any]:
    """Return the user's futures from which parts are made, by key; in a task, new futures."""
    parts_of_graphs = (value for part in parts for value in part if isinstance(value, Delayed))
    futures = find_futures(collect_layers(parts_of_graphs).values())
    _check_same_cluster(client, futures.values())
    # Futures that arrived in a task with its function have no client.
    return {k: f if f.client is not None else request_data(client, k) for k, f in futures.items()}


def _check_same_cluster(client: Client, futures: Iterable[Any]) -> None:
    """Raise if rows are on another cluster than the fit, which would wait for ever."""
    owners = {id(f.client): f.client for f in futures if f.client not in (None, client)}
    for other in owners.values():
        address = _find_scheduler_address(other)
        if address is not None and address != (own_address := _find_scheduler_address(client)):
            raise InvalidDataError(
                f"Persisted rows are on the cluster at {address}, but the fit would run on the one "
                f"at {own_address}. Pass the client of the rows, fit(..., client=client), and X, y "
                "and sample_weight of one cluster; or gather those of the other, y = y.compute()."
            )


def _find_scheduler_address(client: Any) -> str | None:
    """Return the address of a client's scheduler; None if it is gone."""
    with suppress(Exception):  # closed or lost: errors of its futures are reported later
        address: str = client.scheduler_info()["address"]
        return address
    return None


class RowsHere:
    """Rows in memory, cut into blocks of at least one row; parts with columns are whole blocks.

    Parameters
    ----------
    collection : Collection
        Collection of the kind "memory".
    n_blocks : int
        Requested number of blocks of whole rows.
    """

    def __init__(self, collection: Collection, n_blocks: int) -> None:
        if isinstance(collection, ValueCollection):
            collection = collection.cut(n_blocks)
        self._collection = collection
        n_rows = collection.n_rows or 0
        n_blocks = max(1, min(n_blocks, n_rows))
        self._cuts = np.arange(n_blocks + 1) * n_rows // n_blocks

    def __len__(self) -> int:
        """Return the number of blocks."""
        is_uncut = self._collection.has_lane_blocks or self._collection.travels_in_parts
        return len(self._collection.parts) if is_uncut else len(self._cuts) - 1

    def get_parts(self, block_numbers: Iterable[int]) -> list[list[Any]]:
        """Return X, y and weights of some blocks."""
        make, parts = self._collection.block_maker, self._collection.parts
        if self._collection.travels_in_parts:
            return [list(parts[i]) for i in block_numbers]
        if self._collection.has_lane_blocks:
            blocks = (make(i, *parts[i]) for i in block_numbers)
            return [[block.X, block.y, block.sample_weight] for block in blocks]
        all_rows = make(0, *parts[0])
        columns = (all_rows.X, all_rows.y, all_rows.sample_weight)
        return [
            [None if v is None else v[a:b] for v in columns]
            for a, b in (self._cuts[i : i + 2] for i in block_numbers)
        ]
