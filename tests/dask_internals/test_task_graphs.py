"""Graphs are read as Dask's scheduler reads them, and tasks of our own run as workers run them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import dask
import pytest
from dask._task_spec import Alias, DataNode, Dict, List, Task, TaskRef
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from distributed import Client

from daskml_dist.dask_internals.task_graphs import (
    convert_to_tasks,
    find_futures,
    run_tasks,
    select_tasks,
)
from daskml_dist.data.blocks import make_block
from daskml_dist.data.streamed_blocks import BlockRecipes, make_recipes
from daskml_dist.errors import InvalidDataError


def _first(nested: Any) -> Any:
    while isinstance(nested, list | dict):
        (nested,) = nested.values() if isinstance(nested, dict) else nested
    return nested


def _fused(key: Any) -> Any:
    inner = Task("inner", operator.neg, TaskRef(key))
    return Task.fuse(inner, Task("out", operator.neg, TaskRef("inner")))


def _named(nested: Any = None, *, part: Any = None) -> Any:
    return _first(part if nested is None else nested)


#: Ways in which a task "out" may refer to a future; it returns the future's value.
REFERENCES: dict[str, Callable[[Any], dict[Any, Any]]] = {
    "tuple with a key": lambda f: {f.key: f, "out": (_first, f.key)},
    "tuple with keys in lists": lambda f: {f.key: f, "out": (_first, [[f.key]])},
    "tuple with a future": lambda f: {"out": (_first, f)},
    "tuple with futures in lists": lambda f: {"out": (_first, [[f]])},
    "tuple with a future in a dict": lambda f: {"out": (_first, {"part": f})},
    "tuple in a tuple": lambda f: {f.key: f, "out": (_first, (_first, [f.key]))},
    "future under another key": lambda f: {"other": f, "out": (_first, ["other"])},
    "the future itself": lambda f: {"out": f},
    "alias": lambda f: {f.key: f, "out": Alias("out", f.key)},
    "alias of an alias": lambda f: {
        f.key: f, "one": Alias("one", f.key), "out": Alias("out", "one")
    },
    "bare key": lambda f: {f.key: f, "out": f.key},
    "task with a reference": lambda f: {f.key: f, "out": Task("out", _first, TaskRef(f.key))},
    "task with a future": lambda f: {"out": Task("out", _first, f)},
    "task with nested references": lambda f: {
        f.key: f, "out": Task("out", _first, List(Dict({"part": List(TaskRef(f.key))})))
    },
    "task with nested futures": lambda f: {"out": Task("out", _first, List(Dict({"part": f})))},
    "task with a keyword": lambda f: {f.key: f, "out": Task("out", _named, part=TaskRef(f.key))},
    "task with a future as keyword": lambda f: {"out": Task("out", _named, part=List(f))},
    "fused tasks": lambda f: {f.key: f, "out": _fused(f.key)},
    "a task that makes the same": lambda f: {
        f.key: Task(f.key, operator.truediv, 1, 0), "out": Task("out", _first, List(f))
    },
}  # fmt: skip


@pytest.mark.parametrize("how", REFERENCES)
def test_every_reference_to_a_future_is_found(how: str, client: Client) -> None:
    future = client.submit(abs, -7, key=("seven", 0), pure=False)
    graph = REFERENCES[how](future)
    assert find_futures([graph]) == {future.key: future}
    recipes = make_recipes([Delayed("out", HighLevelGraph.from_collections("out", graph))])
    assert recipes.held_keys == {future.key}
    assert future.key not in recipes.graph
    recipes = BlockRecipes.unpack_recipes(recipes.pack([0]))
    assert recipes.held_keys == {future.key}
    tasks = select_tasks(recipes.graph, ["out"])
    if tasks:
        assert run_tasks(tasks, {future.key: 7}, "out", []) == 7


def test_every_reference_of_a_collection_is_found(client: Client) -> None:
    """As Dask itself writes them, of which it has changed the format before."""
    future = client.submit(abs, -7, pure=False)
    persisted = dask.delayed(operator.neg)(3).persist()
    lazy = dask.delayed(_first)([{"part": [future]}]) + persisted + dask.delayed(future)
    recipes = make_recipes([lazy])
    assert recipes.held_keys == {future.key, persisted.key}
    tasks = select_tasks(recipes.graph, [lazy.key])
    data = {future.key: 7, persisted.key: -3}
    assert run_tasks(tasks, data, lazy.key, []) == lazy.compute() == 11


@pytest.mark.parametrize(
    "value", [["out", 1], (print, 1), "out", [("a", 1), ("b", 2)], [(abs, -1)], {"out": "held"}]
)
def test_data_of_workers_is_never_read_as_tasks(value: Any) -> None:
    tasks = {"out": Task("out", _same, TaskRef("held"))}
    assert run_tasks(tasks, {"held": value}, "out", []) == value


def _same(value: Any) -> Any:
    return value


def test_data_in_a_graph_is_no_task() -> None:
    tasks = convert_to_tasks([{"rows": [1, 2], "out": (sum, "rows")}], {})
    assert isinstance(tasks["rows"], DataNode)
    assert run_tasks(tasks, {}, "out", []) == 3


@pytest.mark.parametrize("is_persisted", [False, True])
def test_a_task_that_fails_is_named(is_persisted: bool) -> None:
    """The remedy is not to persist where that is done already."""
    rows = Task(("read", 0), operator.getitem, TaskRef("table") if is_persisted else {}, "a")
    block = Task("block", make_block, 0, TaskRef(("read", 0)), None)
    recipes = BlockRecipes(
        {0: "block"},
        {rows.key: rows, "block": block},
        frozenset({"table"} if is_persisted else ()),
        {0: 1},
    )
    with pytest.raises(InvalidDataError) as caught:
        recipes.make_block(0, lambda key: {"b": 1})
    message = str(caught.value)
    assert message.startswith(
        "Block 0 could not be recomputed: its task ('read', 0), which calls getitem, raised "
        "KeyError('a')."
    )
    assert "file" not in message
    assert (".persist()" in message) is not is_persisted
