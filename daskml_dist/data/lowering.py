"""Lowering: Dask collections as graphs whose blocks of rows belong together.

Dask rewrites the expression behind a dataframe before it makes tasks of it. What it makes of two
columns apart may be two shuffles, which give their rows in different orders, or two reads that are
cut differently. So frames are lowered together; and what must be lowered alone (a prediction is
lazy, and is compared with a target later) is lowered so that its shuffles are those of all else
that is made of the same frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dask._expr import Expr, _ExprSequence, optimize_until  # canaries fail when these move
from dask._task_spec import Alias
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.tokenize import tokenize

from daskml_dist.data.lazy import is_dask_frame
from daskml_dist.data.row_order import find_shuffles
from daskml_dist.errors import InvalidDataError

__all__ = ["align_partitions", "has_fixed_row_order", "lower_partitions", "make_frame_from_tasks"]

#: Expressions, once lowered, that give rows in the order in which these happen to arrive.
_UNORDERED_SHUFFLES = {"DiskShuffle", "P2PShuffle", "HashJoinP2P"}


def align_partitions(
    inputs: dict[str, Any], in_memory: Sequence[str] = ()
) -> dict[str, list[Delayed]]:
    """Cut lazy collections so that their blocks hold the same rows in the same order.

    Parameters
    ----------
    inputs : dict of str to dask Array, DataFrame or Series
        By their names in errors; at least one.
    in_memory : sequence of str
        Names of inputs of the same rows that are no Dask collections.

    Returns
    -------
    dict of str to list of Delayed
        As many blocks of each; no more than it shows (a filter that is pushed down into a read
        may leave out partitions).

    Raises
    ------
    InvalidDataError
        The collections have different numbers of blocks; or shuffles of their own, whose rows do
        not come in one order.
    """
    frames = {name: value for name, value in inputs.items() if is_dask_frame(value)}
    pieces = {name: _split_chunks(value) for name, value in inputs.items() if name not in frames}
    orders = {name: _find_row_order(found) for name, found in pieces.items()}
    orders.update({name: frozenset() for name in in_memory})
    for lower in (_lower_together, _lower_separately, _lower_all_partitions):
        exprs = [frame.expr for frame in frames.values()]
        made = _split_partitions(_lower_or_fall_back(lower, exprs)) if frames else []
        pieces.update(zip(frames, made, strict=True))
        orders.update({name: _find_row_order(pieces[name]) for name in frames})
        counts = {name: len(pieces[name]) for name in inputs}
        if len(set(counts.values())) == len(set(orders.values())) == 1:
            return pieces
        if not frames:
            break
    if len(set(counts.values())) > 1:
        raise _make_block_count_error(counts)
    raise _make_row_order_error([name for name in inputs if orders[name]])


def lower_partitions(frame: Any) -> list[Delayed]:
    """Cut a frame that is lowered alone, with its shuffles as whatever else has them.

    Projections of columns and filters are pushed down into reads, though not through a shuffle;
    and nothing is fused: tasks fused in X and y apart would compute twice what both share.

    Parameters
    ----------
    frame : dask DataFrame or Series

    Returns
    -------
    list of Delayed
        One for each partition.
    """
    return _split_partitions(_lower_or_fall_back(_lower_separately, [frame.expr]))[0]


def has_fixed_row_order(value: Any) -> bool:
    """Whether the rows of a dask Array, DataFrame or Series come in one order, however often."""
    return not _find_row_order(
        lower_partitions(value) if is_dask_frame(value) else _split_chunks(value)
    )


def make_frame_from_tasks(graph: HighLevelGraph, keys: list[Any], meta: Any, name: str) -> Any:
    """Make a frame of tasks.

    Parameters
    ----------
    graph : HighLevelGraph
        That makes the keys.
    keys : list of key
        Of the partitions.
    meta : pandas.DataFrame
        Without rows.
    name : str
        Of no other frame.

    Returns
    -------
    dask DataFrame
    """
    from dask._collections import new_collection

    return new_collection(_wrap_tasks(dict(graph), keys, meta, (None,) * (len(keys) + 1), name))


# --- three ways to lower ---------------------------------------------------------------------


def _lower_or_fall_back(
    lower: Callable[[list[Expr]], Sequence[Expr]], exprs: list[Expr]
) -> Sequence[Expr]:
    """Expressions lowered in one way, or as Dask itself does it where that way fails.

    Dask counts the partitions of a repartitioned read wrongly before it has tuned the read.
    """
    try:
        return lower(exprs)
    except AssertionError:
        return [optimize_until(expr, "physical") for expr in exprs]


def _lower_together(exprs: list[Expr]) -> Sequence[Expr]:
    """Lower expressions as one: what they share is once, with the columns that any needs."""
    lowered: list[Expr] = _ExprSequence(*exprs).simplify().lower_completely().operands
    return lowered


def _lower_separately(exprs: list[Expr]) -> Sequence[Expr]:
    """Lower each for itself; shuffles keep all columns, whatever is made of them."""
    known: dict[str, Expr] = {}
    return [_lower_shuffles(expr, known).simplify().lower_completely() for expr in exprs]


def _lower_all_partitions(exprs: list[Expr]) -> Sequence[Expr]:
    """Lower to all partitions that the expressions show, none left out."""
    known: dict[str, Expr] = {}
    return [_lower_shuffles(expr, known).lower_completely() for expr in exprs]


def _lower_shuffles(expr: Expr, known: dict[str, Expr]) -> Expr:
    """Lower the shuffles in an expression, from the bottom up, each by itself."""
    from dask.dataframe.dask_expr._expr import Blockwise, Fused

    if expr._name in known:
        return known[expr._name]
    if isinstance(expr, Fused):  # by the user's df.optimize(): all in it is lowered already
        return expr
    operands = [_lower_shuffles(o, known) if isinstance(o, Expr) else o for o in expr.operands]
    settled = expr
    if any(new is not old for new, old in zip(operands, expr.operands, strict=True)):
        settled = type(expr)(*operands)
    if not isinstance(expr, Blockwise):
        lowered = settled.simplify().lower_completely()
        if any(type(node).__name__ in _UNORDERED_SHUFFLES for node in lowered.walk()):
            keys, token = lowered.__dask_keys__(), tokenize(lowered._name)
            settled = _wrap_tasks(
                _build_graph(lowered), keys, lowered._meta, lowered.divisions, token
            )
    known[expr._name] = settled
    return settled


def _wrap_tasks(
    graph: dict[Any, Any], keys: list[Any], meta: Any, divisions: Any, name: str
) -> Expr:
    """An expression of tasks, which Dask leaves as they are."""
    from dask.dataframe.dask_expr.io.io import FromGraph

    # A token of ours: Dask's would hash the graph.
    opaque: Expr = FromGraph(graph, meta, divisions, keys, "rows", _determ_token=name)
    return opaque


# --- graphs ----------------------------------------------------------------------------------


def _split_partitions(lowered: Sequence[Expr]) -> list[list[Delayed]]:
    """Partitions of lowered expressions, in one graph."""
    together = _ExprSequence(*lowered)
    layer = f"lowered-{together._name}"
    tasks = _build_graph(*lowered)
    graph = HighLevelGraph.from_collections(layer, tasks, dependencies=())
    return [
        [Delayed(key, graph, layer=layer) for key in _resolve_aliases(e.__dask_keys__(), tasks)]
        for e in lowered
    ]


def _resolve_aliases(keys: list[Any], tasks: dict[Any, Any]) -> list[Any]:
    """Keys behind aliases, which are tasks of their own: those of persisted partitions."""
    found = []
    for key in keys:
        while isinstance(tasks.get(key), Alias) and tasks[key].target in tasks:
            key = tasks[key].target
        found.append(key)
    return found if len(set(found)) == len(keys) else keys


def _build_graph(*lowered: Expr) -> dict[Any, Any]:
    """Tasks of lowered expressions; what these share is made once."""
    graph: dict[Any, Any] = {}
    seen: set[str] = set()
    for expr in lowered:
        for node in expr.walk():
            if node._name not in seen:
                seen.add(node._name)
                graph.update(node._layer())
    # `from_delayed` without a check of its partitions stores aliases under keys not their own.
    for key, task in graph.items():
        if isinstance(task, Alias) and task.key != key:
            graph[key] = Alias(key, task.target)
    return graph


def _split_chunks(array: Any) -> list[Delayed]:
    return list(array.to_delayed(optimize_graph=False).ravel())


def _find_row_order(pieces: list[Delayed]) -> frozenset[Any]:
    return find_shuffles(pieces[0].dask, [piece.key for piece in pieces])


# --- errors ----------------------------------------------------------------------------------


def _make_block_count_error(counts: dict[str, int]) -> InvalidDataError:
    found = ", ".join(f"{name} has {n} blocks" for name, n in counts.items())
    return InvalidDataError(
        f"The rows cannot be aligned: {found}, of unknown chunk sizes. Call .compute_chunk_sizes() "
        "on the Dask Array first, or make one of a dataframe with .to_dask_array(lengths=True)."
    )


def _make_row_order_error(names: list[str]) -> InvalidDataError:
    return InvalidDataError(
        f"The rows cannot be aligned: {' and '.join(names)} come out of a shuffle (shuffle, merge, "
        "sort_values, set_index...) that the other input does not share, and a shuffle gives rows "
        "in the order in which they arrive. Pass columns of one Dask DataFrame, or call "
        "df = df.persist() before you take arrays, columns or predictions from it."
    )
