"""Transforming over collections: a function of a block mapped over blocks, lazily."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
import dask.array as da
import numpy as np
from dask.delayed import Delayed, delayed
from dask.highlevelgraph import HighLevelGraph
from dask.utils import is_dataframe_like, is_series_like
from scipy import sparse

from daskml_dist.dask_internals.expressions import lower_partitions, make_frame_from_tasks
from daskml_dist.dask_internals.task_graphs import ArrayBlockIdDep, Task, TaskRef, flatten
from daskml_dist.data.block_errors import (
    DeclaredNumbers,
    call_on_declared_blocks,
    find_declared_numbers,
)
from daskml_dist.data.computing import scatter_values
from daskml_dist.data.conversion import as_array_block, convert_foreign, copy_to_host
from daskml_dist.data.lazy import join_column_chunks, join_delayed
from daskml_dist.errors import DaskMLDistError, InvalidDataError, as_ours

#: Bytes from which a function is sent to the workers apart from the graph.
MIN_SCATTERED_BYTES = 2**20


def share_in_graph(function: Callable[..., Any]) -> Any:
    """Return a function as an argument of many tasks; a large one is sent once, not once a task."""
    if len(cloudpickle.dumps(function)) < MIN_SCATTERED_BYTES:
        return function
    client = current_client()
    if client is None:
        return delayed(function, pure=False)
    # The graph keeps the future, and the future the copies, which a lost worker leaves to others.
    (future,) = scatter_values(client, [function], everywhere=True)
    return delayed(future)


def current_client() -> Any | None:
    """Return the client that calls of this process use; None without one that can be waited for."""
    # Without distributed loaded there is no client, and no need to load it.
    if "distributed" not in sys.modules:
        return None
    from distributed import Client

    try:
        client = Client.current(allow_global=True)
    except ValueError:
        return None
    return None if client.asynchronous else client


def map_blocks(function: Callable[[Any], Any], X: Any, meta: Any) -> Any:
    """Apply a function to every block of rows, lazily."""
    return map_pieces(partial(_transform_block, empty=meta[:0]), function, X, meta[:0])


def map_pieces(apply: Callable[..., Any], function: Any, X: Any, empty: Any) -> Any:
    """Call ``apply(block, function, number)`` for every block of rows, lazily."""
    name = f"{getattr(function, '__name__', 'transform')}-{uuid.uuid4().hex}"
    once, X = share_in_graph(function), join_delayed(convert_foreign(X), 2)
    if (told := find_declared_numbers(X, "X")) is not None:
        apply = partial(_apply_to_declared_blocks, told, apply)
    if isinstance(X, da.Array) and not is_dataframe_like(empty):
        return _map_chunks(apply, once, X if X.ndim < 2 else join_column_chunks(X), empty, name)
    if isinstance(X, da.Array):
        apply = partial(_apply_to_array, apply)
    rows, keys, sizes = _find_row_blocks(X)
    dependencies: list[Any] = [rows]
    if isinstance(once, Delayed):
        dependencies.append(once)
        once = TaskRef(once.key)
    is_frame = is_dataframe_like(empty)
    inner = () if is_frame else (0,) * (empty.ndim - 1)
    made = [(name, i, *inner) for i in range(len(keys))]
    graph: dict[Any, Any] = {
        key: Task(key, apply, TaskRef(block), once, i)
        for i, (key, block) in enumerate(zip(made, keys, strict=True))
    }
    layers = HighLevelGraph.from_collections(name, graph, dependencies=dependencies)
    if is_frame:
        return make_frame_from_tasks(layers, made, empty, name)
    return da.Array(layers, name, (sizes, *((n,) for n in empty.shape[1:])), meta=empty)


def _apply_to_declared_blocks(
    told: DeclaredNumbers, apply: Callable[..., Any], rows: Any, function: Any, number: int
) -> Any:
    """Return ``apply(rows, function, number)``; a failure tells of rows that Dask was not told."""
    return call_on_declared_blocks([told], [rows], number, partial(apply, rows, function, number))


def _map_chunks(
    apply: Callable[..., Any], function: Any, X: da.Array, empty: Any, name: str
) -> Any:
    """Map an array as a layer that Dask knows to be blockwise, and fuses with what follows."""
    columns = range(1, X.ndim)
    made = {X.ndim + k: n for k, n in enumerate(empty.shape[1:])}
    return da.blockwise(
        partial(_apply_to_chunk, apply, X.ndim - 1),
        (0, *made),
        X,
        (0, *columns),
        function,
        None,
        ArrayBlockIdDep(X.chunks[:1]),
        (0,),
        new_axes=made,
        name=name,
        align_arrays=False,
        concatenate=None,
        meta=empty,
    )


def _apply_to_chunk(
    apply: Callable[..., Any], depth: int, rows: Any, function: Any, number: tuple[int]
) -> Any:
    for _ in range(depth):  # Dask lists the chunks along each axis that is not kept
        (rows,) = rows
    return _apply_to_array(apply, rows, function, number[0])


def _apply_to_array(apply: Callable[..., Any], rows: Any, function: Any, number: int) -> Any:
    return apply(as_array_block(rows, "X", number), function, number)


def _find_row_blocks(X: Any) -> tuple[Any, list[Any], tuple[Any, ...]]:
    """Return a collection whose graph makes blocks of rows, their keys, and their sizes."""
    if is_dataframe_like(X) or is_series_like(X):
        pieces = lower_partitions(X)
        return pieces[0], [piece.key for piece in pieces], (np.nan,) * len(pieces)
    if isinstance(X, da.Array) and X.ndim >= 2:
        X = join_column_chunks(X)
    sizes = X.chunks[0] if isinstance(X, da.Array) else (np.nan,) * X.npartitions
    return X, list(flatten(X.__dask_keys__())), sizes


def _transform_block(rows: Any, function: Callable[[Any], Any], number: int, *, empty: Any) -> Any:
    """Return the result of one block."""
    if not hasattr(rows, "shape"):
        rows = list(rows)  # of a Bag
    if (rows.shape[0] if hasattr(rows, "shape") else len(rows)) == 0:
        return empty
    try:
        return function(copy_to_host(rows))
    except DaskMLDistError:
        raise
    except (ValueError, TypeError) as error:
        raise as_ours(error, f"Block {number} of X: ") from error


def make_sample_row(X: Any) -> Any:
    """Make one row that looks like those of X, without computing anything."""
    X = join_delayed(X, 2)
    if isinstance(X, da.Array) and any(np.isnan(X.shape[1:])):
        raise InvalidDataError(
            "The number of columns is not known before X is computed. Pass a dask Array that "
            "knows it: dask.array.from_delayed(block, shape=(numpy.nan, n_columns), dtype=float)."
        )
    if not isinstance(X, da.Array):
        return X._meta_nonempty.iloc[:1]
    row = np.ones((1, *X.shape[1:]), dtype=X.dtype)
    return sparse.csr_array(row) if sparse.issparse(X._meta) else row
