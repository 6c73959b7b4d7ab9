"""Recipes: how a worker makes a block by itself, again in each pass, where it is not kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle

from daskml_dist.data.blocks import Block
from daskml_dist.data.bundles import Bundle
from daskml_dist.data.row_order import is_shuffle
from daskml_dist.data.task_graphs import (
    as_tasks,
    describe_task,
    find_futures,
    layers_of,
    needed_keys,
    run_tasks,
    tasks_for,
)
from daskml_dist.errors import DaskMLDistError, InvalidDataError

__all__ = ["Recipes", "make_recipes"]


@dataclass(frozen=True, eq=False)
class Recipes:
    """Graphs of blocks, which depend on nothing but storage and data that workers hold.

    Parameters
    ----------
    targets : dict of int to key
        Key of each block.
    graph : dict
        Tasks of all targets.
    held : frozenset
        Keys that are in no recipe: workers hold their data.
    rows : dict of int to int
        Rows that each block had when it was surveyed.
    """

    targets: dict[int, Any]
    graph: dict[Any, Any]
    held: frozenset[Any]
    rows: dict[int, int] = field(default_factory=dict)

    def of_rows(self, rows: dict[int, int]) -> Recipes:
        """The same recipes, of blocks that are known to have so many rows."""
        return replace(self, rows=rows)

    def pack(self, blocks: Sequence[int]) -> bytes:
        """Pickle the recipes of some blocks."""
        targets = {i: self.targets[i] for i in blocks}
        graph = tasks_for(self.graph, targets.values())
        held = self._held_in(graph, targets)
        return bytes(cloudpickle.dumps(Recipes(targets, graph, held, self.rows)))

    def held_by(self, block: int) -> frozenset[Any]:
        """Keys of data on workers that a block is made of."""
        target = {block: self.targets[block]}
        return self._held_in(tasks_for(self.graph, target.values()), target)

    def _held_in(self, graph: dict[Any, Any], targets: dict[int, Any]) -> frozenset[Any]:
        return self.held.intersection([*targets.values(), *needed_keys(graph)])

    @staticmethod
    def unpack(packed: bytes) -> Recipes:
        """Undo :meth:`pack`."""
        recipes: Recipes = cloudpickle.loads(packed)
        return recipes

    def make(self, number: int, fetch: Callable[[Any], Any]) -> Block:
        """Make a block.

        Parameters
        ----------
        number : int
        fetch : callable
            Gets the data of a held key.

        Raises
        ------
        InvalidDataError
            A task of the block raised, or the block has other rows than it had.
        """
        key, n_rows, begun = self.targets[number], self.rows[number], list[Any]()
        try:
            found = fetch(key) if key in self.held else self._run(key, fetch, begun)
            block: Block = found.blocks[number] if isinstance(found, Bundle) else found
        except Exception as error:
            if isinstance(error, DaskMLDistError) and not isinstance(error, InvalidDataError):
                raise
            failed = begun[-1] if begun else key
            raise InvalidDataError(
                f"Block {number} could not be made again: {describe_task(failed, self.graph)} "
                f"raised {error!r}. It raised nothing when the fit began. Mend what the task reads "
                f"or calls, where that has changed since{self._or_persist}; where nothing has, "
                "report this as a defect of daskml_dist, and raise memory_budget meanwhile, so "
                "that blocks are kept."
            ) from error
        if block.n_rows != n_rows:
            raise InvalidDataError(
                f"Block {number} had {n_rows} rows when the fit began, and has {block.n_rows} "
                f"now: do files change that it is made of, or does a task draw at random? Let "
                f"them give the same rows each time{self._or_persist}."
            )
        return block

    @property
    def _or_persist(self) -> str:
        """A remedy for rows that change, unless what they are made of is persisted already."""
        return "" if self.held else ", or call .persist() on the collection first"

    def _run(self, key: Any, fetch: Callable[[Any], Any], begun: list[Any]) -> Any:
        tasks = tasks_for(self.graph, [key])
        data = {name: fetch(name) for name in self.held.intersection(needed_keys(tasks))}
        return run_tasks(tasks, data, key, begun)

    @property
    def repeated_work(self) -> float:
        """Tasks that all blocks run one by one, over those that they run together.

        Infinite where Dask's scheduler takes part in them, as in a shuffle between workers.
        """
        if any(map(is_shuffle, self.graph.values())):
            return math.inf
        alone = sum(len(tasks_for(self.graph, [key])) for key in self.targets.values())
        return alone / max(len(self.graph), 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the recipes themselves, with data that lies in them."""
        return len(self.pack(list(self.targets)))


def make_recipes(lazy: Sequence[Any]) -> Recipes:
    """Make recipes of lazy blocks.

    Parameters
    ----------
    lazy : sequence of dask.delayed.Delayed
        Of one block each.
    """
    layers = layers_of(lazy).values()
    targets = {i: block.key for i, block in enumerate(lazy)}
    tasks = tasks_for(as_tasks(layers, find_futures(layers)), targets.values())
    # Whatever no task makes is on the workers. That is more than the futures found: delayed parts
    # of a persisted collection name its keys without holding its futures.
    held = needed_keys(tasks).union(targets.values()).difference(tasks)
    return Recipes(targets, tasks, frozenset(held))
