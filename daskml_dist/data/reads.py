"""Reads of plain columns, found in a graph, and made straight into rows (see `parquet`)."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Sequence
from typing import Any, cast

from dask._task_spec import Alias, Task, TaskRef  # a test fails when these move
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from daskml_dist.data.parquet import ColumnRead, Wanted

__all__ = ["read_columns"]

#: Names that a task goes by at most.
_MOST = 8
_Parts = list[tuple[Any, Any, Any]]


def read_columns(parts: _Parts) -> _Parts:
    """Read what is columns of Parquet, and no more, without a frame between file and rows.

    The tasks have keys of their own, since their results are not what Dask would make.

    Parameters
    ----------
    parts : list of (X, y, sample_weight)
        As of a `Collection`; pieces of frames are `Delayed` of one layer.

    Returns
    -------
    list of (X, y, sample_weight)
        The same pieces of the same rows, as `make_block` takes them.
    """
    name = f"columns-{uuid.uuid4().hex}"
    found = [[_read_of(piece, place) for place, piece in enumerate(part)] for part in parts]
    graph: dict[Any, Any] = {}
    for i, reads in enumerate(found):
        graph.update(_tasks(name, i, reads))
    if not graph:
        return parts
    layers = HighLevelGraph.from_collections(name, graph, dependencies=())
    made: Any = [
        tuple(
            piece if read is None else Delayed((name, i, place), layers, layer=name)
            for place, (piece, read) in enumerate(zip(part, reads, strict=True))
        )
        for i, (part, reads) in enumerate(zip(parts, found, strict=True))
    ]
    return cast(_Parts, made)


def _tasks(name: str, block: int, reads: Sequence[tuple[Task, Wanted] | None]) -> dict[Any, Any]:
    """Tasks of the pieces of a block; what they share of a file is read once."""
    shared: dict[Any, list[int]] = {}
    for place, read in enumerate(reads):
        if read is not None:
            shared.setdefault(read[0].key, []).append(place)
    tasks: dict[Any, Any] = {}
    for at, places in enumerate(shared.values()):
        some = [read for place in places if (read := reads[place]) is not None]
        key, task = (name, block, "read", at), some[0][0]
        read_all = ColumnRead(task.func, tuple(wanted for _, wanted in some))
        tasks[key] = Task(key, read_all, *task.args)
        for i, place in enumerate(places):
            own = (name, block, place)
            tasks[own] = Task(own, operator.getitem, TaskRef(key), i)
    return tasks


def _read_of(piece: Any, place: int) -> tuple[Task, Wanted] | None:
    """Task that reads a piece from Parquet, and the columns that are taken; None of all else."""
    if not isinstance(piece, Delayed) or len(piece.dask.layers) != 1:
        return None
    layer: Any = next(iter(piece.dask.layers.values()))
    task, taken = _follow(layer, layer.get(piece.key)), []
    while isinstance(task, Task) and task.func is operator.getitem and len(task.args) == 2:
        taken.append(task.args[1])
        task = _follow(layer, task.args[0])
    if not isinstance(task, Task) or type(task.func).__name__ != "ParquetFunctionWrapper":
        return None
    read: Any = task.func
    if len(task.args) != 1 or task.kwargs:
        return None
    wanted = _wanted(read.columns, taken[::-1])
    # Rows of one column are a frame's; a target or a weight that is one keeps its dtype.
    return None if wanted is None or isinstance(wanted, str) == (place == 0) else (task, wanted)


def _follow(layer: dict[Any, Any], task: Any) -> Any:
    """The task behind references; None where they lead nowhere, or in a circle."""
    for _ in range(_MOST):
        if not isinstance(task, TaskRef | Alias):
            return task
        task = layer.get(task.key if isinstance(task, TaskRef) else _key(task.target))
    return None


def _key(target: Any) -> Any:
    return target.key if isinstance(target, TaskRef) else target


def _wanted(columns: Any, taken: list[Any]) -> Wanted | None:
    """Columns that are left after some were taken, again and again; None where it is not clear."""
    left: Any = columns
    for names in [columns, *taken]:
        if isinstance(left, str):
            return None
        if isinstance(names, list) and all(isinstance(one, str) for one in names):
            left = tuple(names)
        elif isinstance(names, str):
            left = names
        else:
            return None
    several = not isinstance(left, str)
    return None if several and len(set(left)) < len(left) else left
