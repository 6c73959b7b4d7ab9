"""Dask graphs as the scheduler reads them: tasks, what each needs, and data that workers hold.

A graph may hold tasks of three kinds: nodes of `dask._task_spec`, tuples ``(function, *args)`` of
the older format, and futures of data that a client has persisted. All code that looks into a graph
does so through this module, so that every part of the package sees the same dependencies.

The shuffles that a graph holds decide whether rows come in one order: Dask's shuffles on disk and
between workers give the rows of a partition in the order in which they happened to arrive. Rows
that come out of two such shuffles do not belong together, even where both shuffle the same frame by
the same column.
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

#: What else than a loss leaves a graph with a key that nothing makes, and the remedy. Dask lowers
#: a shuffled frame after the tasks of an assigned array have named its index.
MISSING_TASKS_HINT = (
    "Or a Dask Array, such as predictions, was assigned to a dataframe that comes out of a shuffle "
    "(df.assign(p=array)), for which Dask makes a graph that lacks tasks: call df = df.persist() "
    "before, or assign block by block, df.map_partitions(lambda part: part.assign(p=...))."
)


def is_future(value: Any) -> bool:
    """Return whether a value is a future of Dask's, without importing distributed."""
    if "distributed" not in sys.modules:
        return False
    from distributed import Future

    return isinstance(value, Future)


def collect_layers(lazy: Iterable[Any]) -> dict[str, Mapping[Any, Any]]:
    """Return the layers of the graphs of some Delayed objects, by name.

    Objects made of one collection share their layers: to merge whole graphs would take quadratic
    time.
    """
    layers: dict[str, Mapping[Any, Any]] = {}
    for value in lazy:
        graph = value.dask
        # Of what is persisted the graph is a plain dictionary.
        layers.update(graph.layers if hasattr(graph, "layers") else {value.key: graph})
    return layers


def find_futures(graphs: Iterable[Mapping[Any, Any]]) -> dict[Any, Any]:
    """Return every future in some graphs, by its key, however deep in an argument it lies."""
    found: dict[Any, Any] = {}
    if "distributed" not in sys.modules:
        return found
    stack: list[Any] = []
    for graph in graphs:
        stack.extend(graph.values())
        while stack:
            value = stack.pop()
            if is_future(value):
                found[value.key] = value
            elif isinstance(value, Task):  # containers of Dask's (`List`, `Dict`) are tasks, too
                stack.extend(value.args)
                stack.extend(value.kwargs.values())
            elif isinstance(value, dict):  # also the inner graph of a fused task
                stack.extend(value.values())
            elif isinstance(value, _CONTAINER_TYPES):
                stack.extend(value)
    return found


def convert_to_tasks(
    graphs: Iterable[Mapping[Any, Any]], futures: Mapping[Any, Any]
) -> dict[Any, Any]:
    """Return the tasks of some graphs as nodes of `dask._task_spec`."""
    merged: dict[Any, Any] = {}
    for graph in graphs:
        merged.update(graph)
    # Tuples of the older format name a dependency by its bare key, which is told from a literal by
    # the keys that are known. Keys of futures must therefore be among these.
    tasks = convert_legacy_graph(merged, {*merged, *futures})
    return {key: task for key, task in tasks.items() if key not in futures}


def collect_dependencies(tasks: Mapping[Any, GraphNode]) -> set[Any]:
    """Return the keys that some tasks depend on."""
    return set().union(*(task.dependencies for task in tasks.values()))


def select_tasks(tasks: Mapping[Any, GraphNode], keys: Iterable[Any]) -> dict[Any, GraphNode]:
    """Return the tasks that are needed to make some keys; data on workers has none."""
    found: dict[Any, GraphNode] = {}
    stack = list(keys)
    while stack:
        key = stack.pop()
        # Keys without a task are data that workers hold.
        if key in found or key not in tasks:
            continue
        found[key] = tasks[key]
        stack.extend(tasks[key].dependencies)
    return found


def describe_task(key: Any, tasks: Mapping[Any, Any]) -> str:
    """Return a short text that names a task for the user: its key and the function it calls."""
    task = tasks.get(key)
    function = f", which calls {funcname(task.func)}," if isinstance(task, Task) else ""
    return f"its task {key!r}{function}"


def run_tasks(
    tasks: Mapping[Any, GraphNode], data: Mapping[Any, Any], key: Any, begun: list[Any]
) -> Any:
    """Return the result of a task, made in the calling thread with all that it needs."""
    # Data goes in as nodes: a bare list, tuple or string would be read as a task or a key.
    graph = {**tasks, **{name: DataNode(name, value) for name, value in data.items()}}
    # Callbacks that are passed replace those that the user has registered for all of Dask.
    return get_sync(graph, key, callbacks=[(None, None, lambda k, *_: begun.append(k), None, None)])


_DISK_SHUFFLE_MODULE = "dask.dataframe.shuffle"


def find_shuffles(graph: Any, keys: Iterable[Any]) -> frozenset[Any]:
    """Return the shuffles that decide the order of rows of some keys of a graph."""
    tasks = {key: task for part in _iterate_layers(graph) for key, task in part.items()}
    # Most graphs have none, and need not be walked.
    if not any(is_unordered_shuffle(task) for task in tasks.values()):
        return frozenset()
    tasks = {**dict(graph), **tasks}
    found, seen, stack = set(), set(), list(keys)
    while stack:
        key = stack.pop()
        if key in seen or key not in tasks:
            continue
        seen.add(key)
        task = convert_legacy_task(key, tasks[key], tasks)
        if not is_unordered_shuffle(task):
            stack.extend(getattr(task, "dependencies", ()))  # a literal has none
        else:
            # What is read from disk has a name of its own; keys in between are drawn at random.
            found.add(
                key[0] if _get_function_name(task) == (_DISK_SHUFFLE_MODULE, "collect") else key
            )
    return frozenset(found)


def _iterate_layers(graph: Any) -> Iterator[Mapping[Any, Any]]:
    """Yield the layers of a graph, but for those that only map blocks and need not be made here."""
    for layer in graph.layers.values():
        if not isinstance(layer, Blockwise):
            yield layer


def is_shuffle_barrier(task: Any) -> bool:
    """Return whether a task is the one by whose key the scheduler knows a shuffle of workers."""
    return type(task).__name__ == "P2PBarrierTask"


def is_unordered_shuffle(task: Any) -> bool:
    """Return whether a task is a step of a shuffle that gives rows as they arrive."""
    if is_shuffle_barrier(task):
        # Arrays are shuffled too when they are rechunked; their blocks know their places.
        return type(task.spec).__name__ == "DataFrameShuffleSpec"
    return _get_function_name(task) in (
        (_DISK_SHUFFLE_MODULE, "collect"),
        (_DISK_SHUFFLE_MODULE, "barrier"),
    )


def _get_function_name(task: Any) -> tuple[str, str]:
    """Return module and name of the function that a task calls; dask.dataframe is not imported."""
    if isinstance(task, GraphNode):
        function = getattr(task, "func", None)
    else:
        function = task[0] if isinstance(task, tuple) and task else None
    return getattr(function, "__module__", None) or "", getattr(function, "__name__", "")
