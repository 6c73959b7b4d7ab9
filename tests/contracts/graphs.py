"""Graphs: ways to build a Dask collection from rows, which must all deliver the same rows.

A *source* makes a collection from rows in memory; a *step* makes another collection of the same
rows from a collection. They can be combined freely. Steps are module-level functions, so that they
are pickled by name.
"""

from __future__ import annotations

import itertools
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from daskml_dist.dask_internals.expressions import make_frame_from_tasks
from daskml_dist.inference.block_mapping import map_blocks

__all__ = [
    "ARRAY_SOURCES",
    "ARRAY_STEPS",
    "FRAME_SOURCES",
    "FRAME_STEPS",
    "ArrayStep",
    "Context",
    "FrameStep",
    "junk",
]


@dataclass(frozen=True)
class Context:
    """Context in which a graph is built.

    Parameters
    ----------
    n_blocks, seed : int
    folder : Path
        Folder for files; new and empty.
    persisted : list
        Persisted collections that a graph refers to without holding their futures.
    """

    n_blocks: int
    seed: int
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="contracts-")))
    persisted: list[Any] = field(default_factory=list)

    def cuts(self, n_rows: int) -> list[int]:
        """Return the bounds of uneven blocks, one of them empty."""
        rng = np.random.default_rng(self.seed)
        inner = np.sort(rng.integers(0, n_rows + 1, max(self.n_blocks - 2, 0))).tolist()
        middle = inner[len(inner) // 2 :][:1] or [0]
        return sorted([0, *inner, *middle, n_rows])


def junk(table: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return the table with additional rows for a filter to drop, one block of them alone."""
    rng = np.random.default_rng(seed)
    n_more = max(len(table) // 3, 1)
    more = table.iloc[rng.integers(0, len(table), n_more)].assign(row=-1)
    # Wrong targets, which would affect results if they were not dropped.
    more["y"] = more["y"].iloc[::-1].to_numpy() if len(more) > 1 else more["y"]
    whole = pd.concat([table, more], ignore_index=True)
    mixed = whole.iloc[np.r_[rng.permutation(len(table) + n_more // 2),
                             len(table) + n_more // 2:len(whole)]]  # fmt: skip
    return mixed.reset_index(drop=True)


# --- dataframes ------------------------------------------------------------------------------


def _from_pandas(table: pd.DataFrame, context: Context) -> Any:
    return dd.from_pandas(table, npartitions=context.n_blocks, sort=False)


def _pieces(table: pd.DataFrame, context: Context) -> list[pd.DataFrame]:
    return [table.iloc[a:b] for a, b in itertools.pairwise(context.cuts(len(table)))]


def _from_delayed(table: pd.DataFrame, context: Context) -> Any:
    parts = [dask.delayed(part) for part in _pieces(table, context)]
    return dd.from_delayed(parts, meta=table[:0])


def _from_delayed_unverified(table: pd.DataFrame, context: Context) -> Any:
    parts = [dask.delayed(part) for part in _pieces(table, context)]
    return dd.from_delayed(parts, meta=table[:0], verify_meta=False)


def _same(part: Any) -> Any:
    return part


def _from_map(table: pd.DataFrame, context: Context) -> Any:
    return dd.from_map(_same, _pieces(table, context), meta=table[:0])


def _parquet(table: pd.DataFrame, context: Context) -> Any:
    """Return small files, several of which Dask reads as one partition if few columns are needed.

    All rows have different labels: pandas aligns columns by label within a file.
    """
    for i, part in enumerate(_pieces(table.reset_index(drop=True), context)):
        part.to_parquet(context.folder / f"part{i:02}.parquet")
    return dd.read_parquet(context.folder)


def _concatenated(table: pd.DataFrame, context: Context) -> Any:
    middle = len(table) // 3
    return dd.concat(
        [dd.from_pandas(table.iloc[:middle], npartitions=1),
         dd.from_pandas(table.iloc[middle:], npartitions=max(context.n_blocks - 1, 1))]
    )  # fmt: skip


def _single_rows(table: pd.DataFrame, context: Context) -> Any:
    """Return partitions of one row, and an empty one, before the others."""
    few = min(3, len(table))
    cuts = [*range(few), few, few, *np.linspace(few, len(table), context.n_blocks + 1).astype(int)]
    parts = [dask.delayed(table.iloc[a:b]) for a, b in itertools.pairwise(cuts)]
    return dd.from_delayed(parts, meta=table[:0])


FRAME_SOURCES: dict[str, Callable[[pd.DataFrame, Context], Any]] = {
    "from_pandas": _from_pandas,
    "from_delayed": _from_delayed,
    "from_delayed unverified": _from_delayed_unverified,
    "from_map": _from_map,
    "parquet": _parquet,
    "concatenated": _concatenated,
    "single rows": _single_rows,
}


def _without_junk(frame: Any, context: Context) -> Any:
    return frame[frame["row"] >= 0]


def _merged(frame: Any, context: Context) -> Any:
    """Return features and targets that come from two tables."""
    right = frame[["row", "y", "w"]]
    return frame.drop(columns=["y", "w"]).merge(right, on="row")


def _once(frame: Any, context: Context) -> Any:
    return frame.drop_duplicates(subset=["row"])


@dataclass(frozen=True)
class FrameStep:
    """Step on a dataframe.

    Parameters
    ----------
    make : callable
        From a Dask dataframe to one with the same rows.
    ordered : bool
        Whether the rows have the same order each time that they are computed.
    drops_junk : bool
        Whether the step drops junk rows, which must then be among the rows.
    persists : bool
        Whether the rows are computed once, and keep their order from then on.
    """

    make: Callable[[Any, Context], Any]
    ordered: bool = True
    drops_junk: bool = False
    persists: bool = False


def _halves(frame: Any, context: Context) -> Any:
    """Return two parts of one frame, concatenated again."""
    low = frame["row"] % 2 == 0
    return dd.concat([frame[low], frame[~low]])


# Ways to refer to data of a persisted collection; Dask represents each differently.


def _persisted_parts(collection: Any, context: Context) -> list[Any]:
    parts = np.ravel(collection.to_delayed()).tolist()
    context.persisted.append(dask.persist(*parts))
    return list(context.persisted[-1])


def _parts_persisted(frame: Any, context: Context) -> Any:
    return dd.from_delayed(_persisted_parts(frame, context), meta=frame._meta)


def _parts_aliased(frame: Any, context: Context) -> Any:
    return dd.from_delayed(_persisted_parts(frame, context), meta=frame._meta, verify_meta=False)


def _innermost(nested: Any) -> Any:
    """Return the innermost part of nested lists and dicts of one element each."""
    while isinstance(nested, list | dict):
        (nested,) = nested.values() if isinstance(nested, dict) else nested
    return nested


def _parts_nested(frame: Any, context: Context) -> Any:
    innermost = dask.delayed(_innermost)
    parts = [innermost([{"part": [part]}]) for part in _persisted_parts(frame, context)]
    return dd.from_delayed(parts, meta=frame._meta)


def _column_persisted(frame: Any, context: Context) -> Any:
    # A merge renumbers the rows of each partition. Dask shuffles both sides to align them, and rows
    # with equal labels may come in any order: alignment needs unique labels.
    labelled = frame.map_partitions(lambda part: part.set_index("row", drop=False))
    frame = labelled.rename_axis(index=None).persist()
    return frame.assign(y=frame["y"].persist())


def _in_tuples(frame: Any, context: Context) -> Any:
    """Return tasks of the older format, which name their arguments by bare keys, in lists."""
    frame = frame.persist()
    keys, name = frame.__dask_keys__(), f"tuples-{uuid.uuid4().hex}"
    graph = {(name, i): (_innermost, [[key]]) for i, key in enumerate(keys)}
    layers = HighLevelGraph.from_collections(name, {**dict(frame.dask), **graph}, dependencies=())
    return make_frame_from_tasks(layers, list(graph), frame._meta, name)


def _fused(frame: Any, context: Context) -> Any:
    """Return several tasks that Dask has fused into one, over persisted rows."""
    return frame.persist().map_partitions(_same).map_partitions(_copied).optimize()


def _copied(part: Any) -> Any:
    return part.copy()


def _transformed(frame: Any, context: Context) -> Any:
    """Return partitions that a transformer has computed from a persisted frame."""
    return map_blocks(_same, frame.persist(), frame._meta)


def _merged_of_persisted(frame: Any, context: Context) -> Any:
    return _merged(frame.persist(), context)


FRAME_STEPS: dict[str, FrameStep] = {
    "filtered": FrameStep(_without_junk, drops_junk=True),
    "shuffled": FrameStep(lambda f, context: f.shuffle("key"), ordered=False),
    "shuffled by tasks": FrameStep(
        lambda f, context: f.shuffle("key", shuffle_method="tasks"), ordered=False
    ),
    "sorted": FrameStep(lambda f, context: f.sort_values("key"), ordered=False),
    "indexed": FrameStep(lambda f, context: f.set_index("key", drop=False), ordered=False),
    "sorted by target": FrameStep(lambda f, context: f.sort_values("y"), ordered=False),
    "merged": FrameStep(_merged, ordered=False),
    "without duplicates": FrameStep(_once, ordered=False),
    "halves joined": FrameStep(_halves),
    "repartitioned": FrameStep(
        lambda f, context: f.repartition(npartitions=max(f.npartitions // 2, 1))
    ),
    "cut finer": FrameStep(lambda f, context: f.repartition(npartitions=2 * f.npartitions)),
    "mapped": FrameStep(lambda f, context: f.map_partitions(_same)),
    "persisted": FrameStep(lambda f, context: f.persist(), persists=True),
    "parts persisted": FrameStep(_parts_persisted, persists=True),
    "parts aliased": FrameStep(_parts_aliased, persists=True),
    "parts nested": FrameStep(_parts_nested, persists=True),
    # Dask aligns partitions with unknown divisions by a shuffle.
    "column persisted": FrameStep(_column_persisted, ordered=False),
    "in tuples": FrameStep(_in_tuples, persists=True),
    "fused": FrameStep(_fused, persists=True),
    "transformed": FrameStep(_transformed, persists=True),
    "merged of persisted": FrameStep(_merged_of_persisted, ordered=False),
}


# --- arrays ----------------------------------------------------------------------------------
# X, y, weights and ids are separate arrays, and go through the same steps.

Arrays = dict[str, Any]


def _from_array(values: NDArray[Any], context: Context) -> Any:
    cuts = np.diff(context.cuts(len(values)))
    return da.from_array(values, chunks=(tuple(map(int, cuts)), *values.shape[1:]))


def _array_of_delayed(values: NDArray[Any], context: Context) -> Any:
    cuts = context.cuts(len(values))
    parts = [values[a:b] for a, b in itertools.pairwise(cuts)]
    blocks = [da.from_delayed(dask.delayed(p), p.shape, dtype=p.dtype) for p in parts]
    return da.concatenate(blocks)


def _stacked(values: NDArray[Any], context: Context) -> Any:
    middle = max(len(values) // 3, 1)
    n_each = max(context.n_blocks // 2, 1)
    halves = [
        da.from_array(part, chunks=(max(-(-len(part) // n_each), 1), *part.shape[1:]))
        for part in (values[:middle], values[middle:])
    ]
    return da.concatenate(halves)


ARRAY_SOURCES: dict[str, Callable[[NDArray[Any], Context], Any]] = {
    "from_array": _from_array,
    "from_delayed": _array_of_delayed,
    "stacked": _stacked,
}


@dataclass(frozen=True)
class ArrayStep:
    """Step on arrays.

    Parameters
    ----------
    make : callable
        From arrays by name to arrays of the same rows.
    needs_sizes : bool
        Whether the chunk sizes must be known before.
    drops_junk : bool
        Whether the step drops junk rows, which must then be among the rows.
    """

    make: Callable[[Arrays, Context], Arrays]
    needs_sizes: bool = True
    drops_junk: bool = False


def _each(step: Callable[[Any], Any]) -> Callable[[Arrays, Context], Arrays]:
    return lambda arrays, context: {name: step(array) for name, array in arrays.items()}


def _rechunked(arrays: Arrays, context: Context) -> Arrays:
    """Return arrays with other block sizes in each, and equal or different numbers of blocks."""
    n_rows = len(arrays["row"])
    sizes = {name: max(n_rows // 5 + 3 * i, 1) for i, name in enumerate(arrays)}
    return {name: array.rechunk({0: sizes[name]}) for name, array in arrays.items()}


def _permuted(arrays: Arrays, context: Context) -> Arrays:
    order = np.random.default_rng(context.seed).permutation(len(arrays["row"]))
    return {name: array[order] for name, array in arrays.items()}


def _sorted_by_target(arrays: Arrays, context: Context) -> Arrays:
    order = np.argsort(arrays["y"].compute(), kind="stable")
    return {name: array[order] for name, array in arrays.items()}


def _cut_into_single_rows(arrays: Arrays, context: Context) -> Arrays:
    """Return chunks of one row before and after the others, and an empty one."""
    between = np.diff(np.linspace(0, len(arrays["row"]) - 3, context.n_blocks + 1).astype(int))
    sizes = (1, 1, 0, *between.tolist(), 1)
    return {name: array.rechunk({0: sizes}) for name, array in arrays.items()}


def _sliced(arrays: Arrays, context: Context) -> Arrays:
    """Return the second half before the first. (Dask loses rows of reversed empty chunks.)"""
    middle = len(arrays["row"]) // 2
    return {n: da.concatenate([a[middle:], a[:middle]]) for n, a in arrays.items()}


def _filtered(arrays: Arrays, context: Context) -> Arrays:
    keep = arrays["row"] >= 0
    return {name: array[keep] for name, array in arrays.items()}


def _found_out(arrays: Arrays, context: Context) -> Arrays:
    return {name: array.compute_chunk_sizes() for name, array in arrays.items()}


def _array_of_parts(parts: list[Any], array: Any) -> Any:
    """Return an array of delayed chunks, with the sizes of the given array's chunks."""
    shapes = itertools.product(*array.chunks)
    blocks = np.empty(len(parts), dtype=object)
    for i, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
        blocks[i] = da.from_delayed(part, shape, meta=array._meta)
    return da.block(blocks.reshape(array.numblocks).tolist())


def _arrays_of_persisted_parts(arrays: Arrays, context: Context) -> Arrays:
    return {n: _array_of_parts(_persisted_parts(a, context), a) for n, a in arrays.items()}


def _arrays_of_nested_parts(arrays: Arrays, context: Context) -> Arrays:
    innermost = dask.delayed(_innermost)
    return {
        name: _array_of_parts(
            [innermost([{"part": [part]}]) for part in _persisted_parts(array, context)], array
        )
        for name, array in arrays.items()
    }


def _array_in_tuples(array: Any) -> Any:
    array = array.persist()
    name = f"tuples-{uuid.uuid4().hex}"
    keys = list(flatten(array.__dask_keys__()))
    graph = {(name, *key[1:]): (_innermost, [[key]]) for key in keys}
    layers = HighLevelGraph.from_collections(name, graph, dependencies=[array])
    return da.Array(layers, name, array.chunks, meta=array._meta)


def _array_transformed(array: Any) -> Any:
    meta = np.empty((0, *array.shape[1:]), array.dtype)
    return map_blocks(_same, array.persist(), meta)


def _arrays_fused(arrays: Arrays, context: Context) -> Arrays:
    fused = {}
    for name, array in arrays.items():
        context.persisted.append(array.persist())
        mapped = context.persisted[-1].map_blocks(_same, dtype=array.dtype).map_blocks(np.copy)
        (fused[name],) = dask.optimize(mapped)
    return fused


def _column_chunks(arrays: Arrays, context: Context) -> Arrays:
    return {n: a if a.ndim == 1 else a.rechunk({1: 1}) for n, a in arrays.items()}


ARRAY_STEPS: dict[str, ArrayStep] = {
    "rechunked": ArrayStep(_rechunked),
    "column chunks": ArrayStep(_column_chunks),
    "permuted": ArrayStep(_permuted),
    "sorted by target": ArrayStep(_sorted_by_target),
    "single rows": ArrayStep(_cut_into_single_rows),
    "sliced": ArrayStep(_sliced),
    "mapped": ArrayStep(_each(lambda a: a.map_blocks(_same, dtype=a.dtype)), needs_sizes=False),
    "filtered": ArrayStep(_filtered, drops_junk=True),
    "sizes found out": ArrayStep(_found_out, needs_sizes=False),
    "persisted": ArrayStep(_each(lambda array: array.persist()), needs_sizes=False),
    "parts persisted": ArrayStep(_arrays_of_persisted_parts),
    "parts nested": ArrayStep(_arrays_of_nested_parts),
    "in tuples": ArrayStep(_each(_array_in_tuples), needs_sizes=False),
    "transformed": ArrayStep(_each(_array_transformed), needs_sizes=False),
    "fused": ArrayStep(_arrays_fused, needs_sizes=False),
}
