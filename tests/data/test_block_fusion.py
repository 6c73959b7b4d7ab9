"""Tasks of a block are fused into one; shared tasks run once, and futures are kept."""

from __future__ import annotations

import operator
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask._task_spec import Task, TaskRef
from dask.base import compute
from dask.delayed import Delayed, delayed
from dask.highlevelgraph import HighLevelGraph
from distributed import Client

from daskml_dist.data.collection import as_collection
from daskml_dist.data.reduce import ReductionPass, compute_passes, fuse_by_block
from daskml_dist.preprocessing import StandardScaler


def _graph(*tasks: Any) -> Any:
    """Return a graph of tasks by their keys, and its lazy values."""
    graph = HighLevelGraph.from_collections("made", {t.key: t for t in tasks}, dependencies=())
    return lambda key: Delayed(key, graph, layer="made")


def _append(calls: list[str], name: str, *values: int) -> int:
    calls.append(name)
    return sum(values) + 1


def test_tasks_of_a_block_are_fused_and_shared_ones_run_once() -> None:
    calls: list[str] = []

    def task(key: str, *needs: str) -> Task:
        return Task(key, _append, calls, key, *map(TaskRef, needs))

    lazy = _graph(
        task("shuffle"),
        task("a", "shuffle"),
        task("a1", "a"),
        task("a2", "a"),
        task("b", "shuffle"),
    )
    fused = fuse_by_block("block", [[lazy("a1"), lazy("a2")], [lazy("b")], [lazy("shuffle")]])
    assert set(fused[0].dask) == {"shuffle", ("block", 0), ("block", 1), ("block", 2)}
    assert compute(*fused, scheduler="sync") == ([3, 3], [2], [1])
    assert sorted(calls) == ["a", "a1", "a2", "b", "shuffle"]


def test_a_result_is_released_after_its_last_use() -> None:
    alive: list[int] = []

    class Rows:
        def __init__(self) -> None:
            alive.append(1)

        def __del__(self) -> None:
            alive.pop()

    def take(_: Any = None) -> Rows:
        return Rows()

    def count(_: Rows) -> int:
        return len(alive)

    tasks = [Task(("side", i), take) for i in range(4)]
    tasks += [Task(("sum", i), count, TaskRef(("side", i))) for i in range(4)]
    lazy = _graph(*tasks)
    (fused,) = fuse_by_block("block", [[lazy(("sum", i)) for i in range(4)]])
    assert compute(fused, scheduler="sync")[0] == [1, 1, 1, 1]


def test_futures_and_annotations_are_kept(client: Client) -> None:
    x = da.ones((6, 2), chunks=(2, 2)).persist()
    parts = [list(p) for p in (x + 1).to_delayed()[:, :1]]
    total = delayed(np.sum, pure=False)
    fused = fuse_by_block("block", [[total(p) for p in block] for block in parts])
    assert [float(v[0]) for v in compute(*fused)] == [8.0] * 3
    future = client.submit(operator.add, 1, 2)
    lazy = _graph(Task("in", operator.neg, future), Task("out", operator.neg, TaskRef("in")))
    assert compute(*fuse_by_block("other", [[lazy("out")]])) == ([3],)
    with dask.annotate(priority=3):
        annotated = total(parts[0][0])
    (apart,) = fuse_by_block("third", [[annotated]])
    assert annotated.key in apart.dask
    assert compute(apart) == ([8.0],)


def test_a_shuffle_between_workers_to_one_block_goes_through_the_scheduler(client: Client) -> None:
    rows = pd.DataFrame({"key": np.arange(12) % 5, "value": np.arange(12.0)})
    frame = dd.from_pandas(rows, npartitions=3)
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        piece, *others = frame.shuffle("key", npartitions=1)["value"].to_delayed()
    assert not others
    (total,) = compute(*fuse_by_block("block", [[delayed(np.sum, pure=False)(piece)]]))
    assert total == [66.0]


def _chained(parts: list[list[float]]) -> list[float]:
    return [value for part in parts for value in part]


def test_a_block_of_several_shuffle_outputs_is_computed(client: Client) -> None:
    """Workers deliver a shuffle's outputs separately: one task of several would never end."""
    frame = pd.DataFrame({"a": np.arange(60) % 7.0, "b": np.arange(60.0)})
    lazy = dd.from_pandas(frame, npartitions=4)
    shuffled = lazy.shuffle("a", shuffle_method="p2p").repartition(npartitions=1)
    assert StandardScaler().fit(shuffled).mean_ == pytest.approx(frame.mean().to_numpy())
    with dask.config.set({"array.rechunk.method": "p2p"}):
        array = da.from_array(frame.to_numpy(), chunks=(15, 1)).rechunk((60, 2))
    assert StandardScaler().fit(array).mean_ == pytest.approx(frame.mean().to_numpy())


@pytest.mark.parametrize("lazily", [False, True])
def test_passes_over_collections_with_different_blocks_run_together(lazily: bool) -> None:
    X = np.arange(12.0).reshape(6, 2)

    def rows(n: int) -> Any:
        return as_collection(da.from_array(X, chunks=(n, 2)) if lazily else X)

    passes = [
        ReductionPass(
            rows(2),
            lambda i, X, y, w: [i, *X[:, 0]],
            _chained,
        ),
        ReductionPass(rows(3), lambda i, X, y, w: float(X.sum()), sum),
        ReductionPass(as_collection(X), lambda i, X, y, w, more: len(X) + more, max, (1,)),
    ]
    found = compute_passes(passes)
    assert found[1:] == [66.0, 7]
    assert found[0] == ([0, 0, 2, 1, 4, 6, 2, 8, 10] if lazily else [0, *X[:, 0]])
