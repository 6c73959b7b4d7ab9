"""Recipes: how a worker makes a block by itself, again in each pass, where it is not kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle
from dask._task_spec import convert_legacy_graph  # a test of streaming fails when it moves
from dask.base import is_dask_collection
from dask.local import get_sync

from daskml_dist.data.blocks import Block
from daskml_dist.data.bundles import Bundle
from daskml_dist.data.row_order import is_shuffle
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
        graph = _cull(self.graph, list(targets.values()))
        held = self._held_in(graph, targets)
        return bytes(cloudpickle.dumps(Recipes(targets, graph, held, self.rows)))

    def held_by(self, block: int) -> frozenset[Any]:
        """Keys of data on workers that a block is made of."""
        target = {block: self.targets[block]}
        return self._held_in(_cull(self.graph, list(target.values())), target)

    def _held_in(self, graph: dict[Any, Any], targets: dict[int, Any]) -> frozenset[Any]:
        return self.held.intersection([*targets.values(), *_needs(graph)])

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
            The block cannot be read, or has other rows than it had.
        """
        key, n_rows = self.targets[number], self.rows[number]
        try:
            found = fetch(key) if key in self.held else self._run(key, fetch)
            block: Block = found.blocks[number] if isinstance(found, Bundle) else found
        except Exception as error:
            if isinstance(error, DaskMLDistError) and not isinstance(error, InvalidDataError):
                raise
            raise InvalidDataError(
                f"Block {number} could not be read again: {error!r}. Mend the file or the task "
                "that makes it, or call .persist() on the collection first."
            ) from error
        if block.n_rows != n_rows:
            raise InvalidDataError(
                f"Block {number} had {n_rows} rows when the fit began, and has {block.n_rows} "
                "now. Do its files change, or is it drawn at random? Call .persist() on the "
                "collection first."
            )
        return block

    def _run(self, key: Any, fetch: Callable[[Any], Any]) -> Any:
        graph = _cull(self.graph, [key])
        graph.update({name: fetch(name) for name in self.held.intersection(_needs(graph))})
        return get_sync(graph, key)

    @property
    def repeated_work(self) -> float:
        """Tasks that all blocks run one by one, over those that they run together.

        Infinite where Dask's scheduler takes part in them, as in a shuffle between workers.
        """
        if any(map(is_shuffle, self.graph.values())):
            return math.inf
        alone = sum(len(_cull(self.graph, [key])) for key in self.targets.values())
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
    # Layers are shared by the blocks; asking each block for its graph would take quadratic time.
    layers: dict[str, Any] = {}
    for block in lazy:
        layers.update(block.dask.layers)
    graph: dict[Any, Any] = {}
    for layer in layers.values():
        graph.update(layer)
    held = {key for key, task in graph.items() if _is_future(task)}
    tasks = convert_legacy_graph({k: task for k, task in graph.items() if k not in held})
    targets = {i: block.key for i, block in enumerate(lazy)}
    tasks = _cull(tasks, list(targets.values()))
    # Delayed parts of a persisted array name its keys without holding its futures.
    held.update(key for key in _needs(tasks) if key not in tasks)
    return Recipes(targets, tasks, frozenset(held))


def _is_future(task: Any) -> bool:
    """Whether a graph's value stands for data on a worker; told without importing distributed."""
    return not is_dask_collection(task) and type(task).__name__ == "Future"


def _needs(graph: dict[Any, Any]) -> set[Any]:
    """Keys that tasks of a graph take."""
    needs: set[Any] = set()
    for key in graph:
        needs.update(_dependencies(graph, key))
    return needs


def _dependencies(graph: dict[Any, Any], key: Any) -> Any:
    return getattr(graph[key], "dependencies", ())


def _cull(graph: dict[Any, Any], keys: list[Any]) -> dict[Any, Any]:
    """The part of a graph that makes some keys; what others hold may be missing from it."""
    found: dict[Any, Any] = {}
    stack = list(keys)
    while stack:
        key = stack.pop()
        if key in found or key not in graph:
            continue
        found[key] = graph[key]
        stack.extend(_dependencies(graph, key))
    return found
