"""Fusion of tasks: all that a computation does with one block of rows becomes one task.

Dask's scheduler takes about a millisecond for a task, however little it does. A computation that
cuts the rows of each split of a cross-validation, selects columns for several transformers and
summarises each would have dozens of tasks a block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from dask._task_spec import GraphNode, Task, TaskRef  # canaries in tests/data/test_task_graphs.py
from dask.delayed import Delayed, delayed
from dask.highlevelgraph import HighLevelGraph

from daskml_dist.data.task_graphs import as_tasks, find_futures, layers_of, needed_keys, tasks_for

__all__ = ["fuse_by_block", "list_by_block"]


def fuse_by_block(name: str, groups: Sequence[Sequence[Delayed]]) -> list[Delayed]:
    """Return one lazy value for each group of lazy values: the list of their results.

    A task that is needed by one group alone becomes a part of the group's task. One that several
    groups need (a shuffle, an array that blocks are cut from) stays a task, and is run once.

    Parameters
    ----------
    name : str
        Of the new tasks, whose keys are (name, 0), (name, 1), ...
    groups : sequence of sequence of Delayed
        What is made of each block.
    """
    layers = layers_of(chain.from_iterable(groups))
    if any(getattr(layer, "annotations", None) for layer in layers.values()):
        # The user tells where tasks of these layers run, which a fused task would forget.
        return list_by_block(name, groups)
    futures = find_futures(layers.values())
    tasks = as_tasks(layers.values(), futures)
    cones = [tasks_for(tasks, [value.key for value in group]) for group in groups]
    n_owners = Counter(chain.from_iterable(cones))
    # Dask resolves futures in the arguments of a task, though not in those of an inner one.
    apart = [k for k, n in n_owners.items() if n > 1 or find_futures([{k: tasks[k]}])]
    graph: dict[Any, Any] = tasks_for(tasks, apart)
    inner = [{k: task for k, task in cone.items() if k not in graph} for cone in cones]
    needed = needed_keys(graph)
    for i, (group, own) in enumerate(zip(groups, inner, strict=True)):
        outputs = [value.key for value in group]
        given = list(needed_keys(own).union(outputs).difference(own))
        work = _BlockWork(_in_order(own, outputs), outputs, given)
        graph[name, i] = Task((name, i), work, *map(TaskRef, given))
        needed.update(given)
    graph.update({key: futures[key] for key in needed.intersection(futures)})
    whole = HighLevelGraph.from_collections(name, graph, dependencies=())
    return [Delayed((name, i), whole, layer=name) for i in range(len(groups))]


def list_by_block(name: str, groups: Sequence[Sequence[Delayed]]) -> list[Delayed]:
    """Return the same as :func:`fuse_by_block`, of tasks as they are."""
    as_list = delayed(_as_list, pure=False)
    return [as_list(*group, dask_key_name=(name, i)) for i, group in enumerate(groups)]


@dataclass(frozen=True, eq=False)
class _BlockWork:
    """Function that runs all tasks of one block, and lets go of each result after its last use.

    Parameters
    ----------
    tasks : list of (key, GraphNode)
        Each behind those that it depends on.
    outputs : list of key
    given : list of key
        Results of other tasks, which are the function's arguments.
    """

    tasks: list[tuple[Any, GraphNode]]
    outputs: list[Any]
    given: list[Any]

    def __call__(self, *data: Any) -> list[Any]:
        """Return the results of the outputs."""
        values = dict(zip(self.given, data, strict=True))
        n_uses = Counter(self.outputs)
        for _, task in self.tasks:
            n_uses.update(task.dependencies)
        for key, task in self.tasks:
            values[key] = task({name: values[name] for name in task.dependencies})
            for name in task.dependencies:
                n_uses[name] -= 1
                if not n_uses[name]:
                    del values[name]
        return [values[key] for key in self.outputs]


def _in_order(tasks: Mapping[Any, GraphNode], outputs: list[Any]) -> list[tuple[Any, GraphNode]]:
    """Return tasks depth first, output after output, so that few results are held at a time."""
    found: dict[Any, GraphNode] = {}
    stack = [(key, False) for key in reversed(outputs)]
    while stack:
        key, is_ready = stack.pop()
        if key in found or key not in tasks:
            continue
        if is_ready:
            found[key] = tasks[key]
        else:
            stack.append((key, True))
            stack.extend((name, False) for name in tasks[key].dependencies)
    return list(found.items())


def _as_list(*values: Any) -> list[Any]:
    return list(values)
