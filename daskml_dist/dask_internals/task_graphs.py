"""Dask graphs in the scheduler's format: tasks, their dependencies, and data on workers.

A graph may contain tasks of three kinds: nodes of `dask._task_spec`, tuples ``(function, *args)``
of the older format, and futures of data that a client has persisted. All code that inspects a graph
uses this module, so that every part of the package finds the same dependencies.

The shuffles in a graph determine whether rows have a fixed order: Dask's shuffles on disk and
between workers return the rows of a partition in the order of their arrival. Rows of two such
shuffles do not match, even if both shuffle the same frame by the same column.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dask._task_spec import (
    Alias,
    DataNode,
    GraphNode,
    Task,
    TaskRef,
    convert_legacy_graph,
    convert_legacy_task,
)
from dask.blockwise import Blockwise
from dask.core import flatten
from dask.layers import ArrayBlockIdDep
from dask.local import get_sync
from dask.utils import funcname

__all__ = [
    "MISSING_TASKS_HINT",
    "Alias",
    "ArrayBlockIdDep",
    "GraphNode",
    "Task",
    "TaskRef",
    "collect_dependencies",
    "collect_layers",
    "convert_legacy_graph",
    "convert_to_tasks",
    "describe_task",
    "find_futures",
    "find_shuffles",
    "flatten",
    "is_future",
    "is_shuffle_barrier",
    "is_unordered_shuffle",
    "run_tasks",
    "select_tasks",
]

_CONTAINER_TYPES = (list, tuple, set, frozenset)

#: Cause, other than a loss, of a graph with a key that no task makes, and the remedy: Dask lowers a
#: shuffled frame after the tasks of an assigned array have used the name of its index.
MISSING_TASKS_HINT = (
    "Or a Dask Array, such as predictions, was assigned to a dataframe that comes out of a shuffle "
    "(df.assign(p=array)), for which Dask makes a graph that lacks tasks: call df = df.persist() "
    "before, or assign block by block, df.map_partitions(lambda part: part.assign(p=...))."
)


def is_future(value: Any) -> bool:
    """Return whether a value is a Dask future, without importing distributed."""
    if "distributed" not in sys.modules:
        return False
    from distributed import Future

    return isinstance(value, Future)


def collect_layers(lazy: Iterable[Any]) -> dict[str, Mapping[Any, Any]]:
    """Return the layers of the graphs of some Delayed objects, by name.

    Objects made from one collection share their layers: merging whole graphs would take quadratic
    time.
    """
    layers: dict[str, Mapping[Any, Any]] = {}
    for value in lazy:
        graph = value.dask
        # The graph of a persisted object is a plain dictionary.
        layers.update(graph.layers if hasattr(graph, "layers") else {value.key: graph})
    return layers


def find_futures(graphs: Iterable[Mapping[Any, Any]]) -> dict[Any, Any]:
    """Return every future in some graphs, by its key, at any depth of an argument."""
    futures: dict[Any, Any] = {}
    if "distributed" not in sys.modules:
        return futures
    stack: list[Any] = []
    for graph in graphs:
        stack.extend(graph.values())
        while stack:
            value = stack.pop()
            if is_future(value):
                futures[value.key] = value
            elif isinstance(value, Task):  # Dask's containers (`List`, `Dict`) are also tasks
                stack.extend(value.args)
                stack.extend(value.kwargs.values())
            elif isinstance(value, dict):  # including the inner graph of a fused task
                stack.extend(value.values())
            elif isinstance(value, _CONTAINER_TYPES):
                stack.extend(value)
    return futures


def convert_to_tasks(
    graphs: Iterable[Mapping[Any, Any]], futures: Mapping[Any, Any]
) -> dict[Any, Any]:
    """Return the tasks of some graphs as nodes of `dask._task_spec`."""
    merged: dict[Any, Any] = {}
    for graph in graphs:
        merged.update(graph)
    # Tuples of the older format refer to a dependency by its bare key, which is distinguished from
    # a literal only by the known keys. Therefore keys of futures must be among these.
    tasks = convert_legacy_graph(merged, {*merged, *futures})
    return {key: task for key, task in tasks.items() if key not in futures}


def collect_dependencies(tasks: Mapping[Any, GraphNode]) -> set[Any]:
    """Return the keys that some tasks depend on."""
    return set().union(*(task.dependencies for task in tasks.values()))


def select_tasks(tasks: Mapping[Any, GraphNode], keys: Iterable[Any]) -> dict[Any, GraphNode]:
    """Return the tasks that are needed for some keys; data on workers has no task."""
    selected: dict[Any, GraphNode] = {}
    stack = list(keys)
    while stack:
        key = stack.pop()
        # Keys without a task are data that workers hold.
        if key in selected or key not in tasks:
            continue
        selected[key] = tasks[key]
        stack.extend(tasks[key].dependencies)
    return selected


def describe_task(key: Any, tasks: Mapping[Any, Any]) -> str:
    """Return a short text that names a task for the user, by its key and its function."""
    task = tasks.get(key)
    function = f", which calls {funcname(task.func)}," if isinstance(task, Task) else ""
    return f"its task {key!r}{function}"


def run_tasks(
    tasks: Mapping[Any, GraphNode], data: Mapping[Any, Any], key: Any, started_keys: list[Any]
) -> Any:
    """Return the result of a task, computed with its dependencies in the calling thread."""
    # Data is passed as nodes: a bare list, tuple or string would be read as a task or a key.
    graph = {**tasks, **{name: DataNode(name, value) for name, value in data.items()}}
    # Explicit callbacks replace those that the user has registered for all of Dask.
    return get_sync(
        graph, key, callbacks=[(None, None, lambda k, *_: started_keys.append(k), None, None)]
    )


_DISK_SHUFFLE_MODULE = "dask.dataframe.shuffle"


def find_shuffles(graph: Any, keys: Iterable[Any]) -> frozenset[Any]:
    """Return the shuffles that determine the order of rows of some keys of a graph."""
    tasks = {key: task for part in _iterate_layers(graph) for key, task in part.items()}
    # Most graphs have none, and need not be traversed.
    if not any(is_unordered_shuffle(task) for task in tasks.values()):
        return frozenset()
    tasks = {**dict(graph), **tasks}
    shuffles, visited, stack = set(), set(), list(keys)
    while stack:
        key = stack.pop()
        if key in visited or key not in tasks:
            continue
        visited.add(key)
        task = convert_legacy_task(key, tasks[key], tasks)
        if not is_unordered_shuffle(task):
            stack.extend(getattr(task, "dependencies", ()))  # a literal has none
        else:
            # Reads from disk have a unique key; keys in between are drawn at random.
            shuffles.add(
                key[0] if _get_function_name(task) == (_DISK_SHUFFLE_MODULE, "collect") else key
            )
    return frozenset(shuffles)


def _iterate_layers(graph: Any) -> Iterator[Mapping[Any, Any]]:
    """Yield the layers of a graph, except those that only map blocks and need not be made here."""
    for layer in graph.layers.values():
        if not isinstance(layer, Blockwise):
            yield layer


def is_shuffle_barrier(task: Any) -> bool:
    """Return whether the scheduler identifies a shuffle between workers by this task's key."""
    return type(task).__name__ == "P2PBarrierTask"


def is_unordered_shuffle(task: Any) -> bool:
    """Return whether a task is a step of a shuffle that returns rows in order of arrival."""
    if is_shuffle_barrier(task):
        # Arrays are also shuffled when they are rechunked; their blocks have fixed positions.
        return type(task.spec).__name__ == "DataFrameShuffleSpec"
    return _get_function_name(task) in (
        (_DISK_SHUFFLE_MODULE, "collect"),
        (_DISK_SHUFFLE_MODULE, "barrier"),
    )


def _get_function_name(task: Any) -> tuple[str, str]:
    """Return module and name of a task's function, without importing dask.dataframe."""
    if isinstance(task, GraphNode):
        function = getattr(task, "func", None)
    else:
        function = task[0] if isinstance(task, tuple) and task else None
    return getattr(function, "__module__", None) or "", getattr(function, "__name__", "")
