"""Row order: which shuffles decide in what order the rows of a Dask graph come.

Dask's shuffles on disk and between workers give the rows of a partition in the order in which they
happened to arrive. Rows that come out of two such shuffles do not belong together, even where both
shuffle the same frame by the same column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dask._task_spec import GraphNode, convert_legacy_task  # a canary fails when they move
from dask.blockwise import Blockwise

__all__ = ["find_shuffles", "is_unordered_shuffle"]

_DISK_SHUFFLE_MODULE = "dask.dataframe.shuffle"


def find_shuffles(graph: Any, keys: Iterable[Any]) -> frozenset[Any]:
    """Find the shuffles whose order of rows some keys of a graph have.

    Parameters
    ----------
    graph : HighLevelGraph
    keys : iterable of key

    Returns
    -------
    frozenset
        A name for each; empty where the rows always come in one order.
    """
    tasks = {key: task for part in _iterate_layers(graph) for key, task in part.items()}
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
    """Tasks of a graph, but for layers that only map blocks and need not be made for this."""
    for layer in graph.layers.values():
        if not isinstance(layer, Blockwise):
            yield layer


def is_unordered_shuffle(task: Any) -> bool:
    """Whether a task of a graph is a step of a shuffle that gives rows as they arrive."""
    if type(task).__name__ == "P2PBarrierTask":
        # Arrays are shuffled too when they are rechunked; their blocks know their places.
        return type(task.spec).__name__ == "DataFrameShuffleSpec"
    return _get_function_name(task) in (
        (_DISK_SHUFFLE_MODULE, "collect"),
        (_DISK_SHUFFLE_MODULE, "barrier"),
    )


def _get_function_name(task: Any) -> tuple[str, str]:
    """Module and name of the function that a task calls; told without importing dask.dataframe."""
    if isinstance(task, GraphNode):
        function = getattr(task, "func", None)
    else:
        function = task[0] if isinstance(task, tuple) and task else None
    return getattr(function, "__module__", None) or "", getattr(function, "__name__", "")
