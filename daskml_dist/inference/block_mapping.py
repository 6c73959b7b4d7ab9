"""Functions of a block mapped over the blocks of a Dask collection, lazily.

All predictions (`map_rows`) and transformations (`map_blocks`) use `map_pieces`. Arrays become a
layer that Dask fuses with its neighbours; frames, bags and delayed blocks become a task for each
block. A large function, such as a fitted forest, is sent to the workers once (`share_in_graph`),
since Dask would put it into each task.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterable
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
from daskml_dist.data.collection import count_rows_of_block
from daskml_dist.data.computing import compute_together, scatter_values
from daskml_dist.data.conversion import (
    as_array_block,
    convert_foreign,
    copy_to_host,
    find_device,
)
from daskml_dist.data.lazy import join_column_chunks, join_delayed
from daskml_dist.data.table_frames import find_row_counts
from daskml_dist.errors import DaskMLDistError, InvalidDataError, as_ours

#: Functions of at least this many bytes are sent to the workers apart from the graph: Dask warns of
#: graphs of 10 MB, and for a small function a scatter would only add round trips.
_MIN_SCATTERED_BYTES = 2**20


def share_in_graph(function: Callable[..., Any]) -> Any:
    """Return a function as an argument of many tasks: itself, or a key if it is large.

    A large one is sent to the workers once, not once a task.
    """
    if len(cloudpickle.dumps(function)) < _MIN_SCATTERED_BYTES:
        return function
    client = current_client()
    if client is None:
        return delayed(function, pure=False)
    # The graph holds the future, which keeps the copies on the workers in memory; if a worker is
    # lost, the other copies remain.
    (future,) = scatter_values(client, [function], everywhere=True)
    return delayed(future)


def current_client() -> Any | None:
    """Return the client that computes for this process; None without a synchronous one."""
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
    """Return a collection of the function's results for every block of rows, like `meta`.

    Blocks on a GPU are copied to the host, unless the function has a method `on_device` that
    returns a result on the GPU, and not None.
    """
    return map_pieces(partial(_transform_block, empty=meta[:0]), function, X, meta[:0])


def map_pieces(apply: Callable[..., Any], function: Any, X: Any, empty: Any) -> Any:
    """Return a collection of ``apply(block, function, block_number)`` for every block of rows.

    `empty` is a result without rows, from which Dask learns the kind, dtypes and columns of the
    results.
    """
    # The function may be any closure. Closures have no hash to compare them by.
    name = f"{getattr(function, '__name__', 'transform')}-{uuid.uuid4().hex}"
    shared, X = share_in_graph(function), join_delayed(convert_foreign(X), 2)
    if (declared := find_declared_numbers(X, "X")) is not None:
        apply = partial(_apply_to_declared_blocks, declared, apply)
    if isinstance(X, da.Array) and not is_dataframe_like(empty):
        return _map_chunks(apply, shared, X if X.ndim < 2 else join_column_chunks(X), empty, name)
    if isinstance(X, da.Array):
        apply = partial(_apply_to_array, apply)
    rows, keys, sizes = _find_row_blocks(X)
    # A task for each block; a shared function is a key that all of them depend on.
    dependencies: list[Any] = [rows]
    if isinstance(shared, Delayed):
        dependencies.append(shared)
        shared = TaskRef(shared.key)
    is_frame = is_dataframe_like(empty)
    column_index = () if is_frame else (0,) * (empty.ndim - 1)
    result_keys = [(name, i, *column_index) for i in range(len(keys))]
    graph: dict[Any, Any] = {
        key: Task(key, apply, TaskRef(block), shared, i)
        for i, (key, block) in enumerate(zip(result_keys, keys, strict=True))
    }
    layers = HighLevelGraph.from_collections(name, graph, dependencies=dependencies)
    if is_frame:
        return make_frame_from_tasks(layers, result_keys, empty, name)
    return da.Array(layers, name, (sizes, *((n,) for n in empty.shape[1:])), meta=empty)


def _apply_to_declared_blocks(
    declared: DeclaredNumbers,
    apply: Callable[..., Any],
    rows: Any,
    function: Any,
    block_number: int,
) -> Any:
    """Return ``apply(rows, function, block_number)``; a failure reports a wrong meta."""
    return call_on_declared_blocks(
        [declared], [rows], block_number, partial(apply, rows, function, block_number)
    )


def _map_chunks(
    apply: Callable[..., Any], function: Any, X: da.Array, empty: Any, name: str
) -> Any:
    """Map an array as a layer that Dask sees as blockwise, and can fuse with later layers."""
    # Index 0 is the axis of rows, which is kept. Other axes of X are contracted, as each has one
    # chunk; axes of the results are new ones.
    columns = range(1, X.ndim)
    new_axes = {X.ndim + k: n for k, n in enumerate(empty.shape[1:])}
    return da.blockwise(
        partial(_apply_to_chunk, apply, X.ndim - 1),
        (0, *new_axes),
        X,
        (0, *columns),
        function,
        None,
        ArrayBlockIdDep(X.chunks[:1]),
        (0,),
        new_axes=new_axes,
        name=name,
        align_arrays=False,
        concatenate=None,
        meta=empty,
    )


def _apply_to_chunk(
    apply: Callable[..., Any], depth: int, rows: Any, function: Any, block_numbers: tuple[int]
) -> Any:
    """Return the result of a chunk, which Dask passes as a list for each contracted axis."""
    for _ in range(depth):
        (rows,) = rows
    return _apply_to_array(apply, rows, function, block_numbers[0])


def _apply_to_array(apply: Callable[..., Any], rows: Any, function: Any, block_number: int) -> Any:
    """Return the result of a block of an array, which may be of any class similar to NumPy's."""
    return apply(as_array_block(rows, "X", block_number), function, block_number)


def _find_row_blocks(X: Any) -> tuple[Any, list[Any], tuple[Any, ...]]:
    """Return a collection whose graph has the blocks of rows, their keys, and their sizes.

    Sizes of bags, delayed blocks and most frames are NaN, Dask's sign for an unknown size.
    """
    if is_dataframe_like(X) or is_series_like(X):
        pieces = lower_partitions(X)
        row_counts = find_row_counts(X) or ()
        sizes = tuple(row_counts) if len(row_counts) == len(pieces) else (np.nan,) * len(pieces)
        return pieces[0], [piece.key for piece in pieces], sizes
    if isinstance(X, da.Array) and X.ndim >= 2:
        X = join_column_chunks(X)
    sizes = X.chunks[0] if isinstance(X, da.Array) else (np.nan,) * X.npartitions
    return X, list(flatten(X.__dask_keys__())), sizes


def _transform_block(
    rows: Any, function: Callable[[Any], Any], block_number: int, *, empty: Any
) -> Any:
    """Return the function's result for one block; `empty` for a block without rows."""
    if find_device(rows) == "gpu" and hasattr(function, "on_device"):
        if (result := function.on_device(rows)) is not None:
            return result
    # The blocks of a Bag may be iterators.
    if not hasattr(rows, "shape"):
        rows = list(rows)
    if (rows.shape[0] if hasattr(rows, "shape") else len(rows)) == 0:
        return empty
    # Errors of scikit-learn and NumPy get the number of the block, and a remedy if one is known.
    try:
        return function(copy_to_host(rows))
    except DaskMLDistError:
        raise
    except (ValueError, TypeError) as error:
        raise as_ours(error, f"Block {block_number} of X: ") from error


def make_sample_row(X: Any) -> Any:
    """Return one row of the kind, dtypes and columns of X, without computing anything.

    The result of a transformer for this row shows the form of all its results (Dask's meta).
    """
    X = join_delayed(X, 2)
    if isinstance(X, da.Array) and any(np.isnan(X.shape[1:])):
        raise InvalidDataError(
            "The number of columns is unknown until X is computed. Pass a Dask Array that knows "
            "it: dask.array.from_delayed(block, shape=(numpy.nan, n_columns), dtype=float)."
        )
    if not isinstance(X, da.Array):
        return X._meta_nonempty.iloc[:1]
    # Ones: some functions, such as logarithms, warn of zeros.
    row = np.ones((1, *X.shape[1:]), dtype=X.dtype)
    return type(X._meta)(row) if sparse.issparse(X._meta) else row


def call_on_sample(function: Callable[[Any], Any], X: Any) -> tuple[Any, Any]:
    """Return a row that a function of rows accepts, and its result, which shows their form.

    The row is artificial, and nothing is computed, unless the function refuses it, as encoders do
    with values that they do not know: then it is the first row of X.
    """
    row = make_sample_row(X)
    try:
        return row, function(row)
    except (ValueError, TypeError):
        X = join_delayed(X, 2)
        X = join_column_chunks(X) if isinstance(X, da.Array) else X
        row = find_first_row(np.ravel(X.to_delayed()))
        if row is None:
            raise
    return row, function(row)


def find_first_row(blocks: Iterable[Any]) -> Any:
    """Return the first row of lazy blocks, of which one at a time is computed; None if none has."""
    take = delayed(_take_first_row, pure=False)
    for block in blocks:
        (row,) = compute_together([take(block)])
        if count_rows_of_block(row):
            return row
    return None


def _take_first_row(rows: Any) -> Any:
    return rows.iloc[:1] if hasattr(rows, "iloc") else rows[:1]
