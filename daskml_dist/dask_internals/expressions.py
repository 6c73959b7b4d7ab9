"""Dataframe expressions, lowered to tasks such that partitions of several frames match.

Dask rewrites the expression of a dataframe before it makes tasks from it. For two columns that are
lowered separately, this may give two shuffles with different orders of rows, or two reads that are
divided differently. Therefore frames of one fit are lowered together. A frame that must be lowered
separately (for example a lazy prediction, which is compared with a target later) is lowered such
that its shuffles are the same tasks as in every other expression with that frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dask._expr import Expr, _ExprSequence, optimize_until
from dask._task_spec import Alias
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.tokenize import tokenize

#: Lowered expressions that give rows in the order of their arrival.
_UNORDERED_SHUFFLES = {"DiskShuffle", "P2PShuffle", "HashJoinP2P"}


def lower_partitions(frame: Any) -> list[Delayed]:
    """Return the partitions of a frame that is lowered separately.

    Its shuffles are the same tasks as in every other expression with this frame. Projections of
    columns and filters are pushed down into reads, but not through a shuffle. Nothing is fused: if
    tasks were fused in X and in y, shared tasks would be computed twice.
    """
    return split_partitions(lower_or_fall_back(lower_separately, [frame.expr]))[0]


def make_frame_from_tasks(graph: HighLevelGraph, keys: list[Any], meta: Any, name: str) -> Any:
    """Return a dask DataFrame whose partitions are tasks of a graph."""
    from dask._collections import new_collection

    return new_collection(_wrap_tasks(dict(graph), keys, meta, (None,) * (len(keys) + 1), name))


def find_read_function(frame: Any) -> Any:
    """Return the function that reads every partition of a frame, or of selected columns of it.

    None unless the frame is all parts of one `dask.dataframe.from_map`.
    """
    from dask.dataframe.dask_expr._expr import Projection
    from dask.dataframe.dask_expr.io.io import FromMap

    expr = frame.expr
    while isinstance(expr, Projection):
        expr = expr.frame
    reads_all = isinstance(expr, FromMap) and expr.operand("_partitions") is None
    return expr.func if reads_all else None


# --- three ways to lower ---------------------------------------------------------------------


def lower_or_fall_back(
    lower: Callable[[list[Expr]], Sequence[Expr]], exprs: list[Expr]
) -> Sequence[Expr]:
    """Lower expressions in one of the three ways, or as Dask does itself if that way fails."""
    try:
        return lower(exprs)
    except AssertionError:
        # Dask miscounts the partitions of a repartitioned read before it has tuned the read.
        return [optimize_until(expr, "physical") for expr in exprs]


def lower_together(exprs: list[Expr]) -> Sequence[Expr]:
    """Lower expressions as one: a shared part is made once, with all columns that are needed."""
    lowered: list[Expr] = _ExprSequence(*exprs).simplify().lower_completely().operands
    return lowered


def lower_separately(exprs: list[Expr]) -> Sequence[Expr]:
    """Lower each expression alone; shuffles keep all columns, so that they are always the same."""
    lowered_by_name: dict[str, Expr] = {}
    return [_lower_shuffles(expr, lowered_by_name).simplify().lower_completely() for expr in exprs]


def lower_all_partitions(exprs: list[Expr]) -> Sequence[Expr]:
    """Lower each expression alone to all of its partitions, with no filter pushed into reads.

    A filter that is pushed into a read may remove partitions, so that others no longer match.
    """
    lowered_by_name: dict[str, Expr] = {}
    return [_lower_shuffles(expr, lowered_by_name).lower_completely() for expr in exprs]


def _lower_shuffles(expr: Expr, lowered_by_name: dict[str, Expr]) -> Expr:
    """Return an expression whose shuffles are lowered separately, from the bottom up."""
    from dask.dataframe.dask_expr._expr import Blockwise, Fused

    if expr._name in lowered_by_name:
        return lowered_by_name[expr._name]
    if isinstance(expr, Fused):  # the user called df.optimize(): everything is already lowered
        return expr
    operands = [
        _lower_shuffles(o, lowered_by_name) if isinstance(o, Expr) else o for o in expr.operands
    ]
    settled = expr
    if any(new is not old for new, old in zip(operands, expr.operands, strict=True)):
        settled = type(expr)(*operands)
    if not isinstance(expr, Blockwise):
        lowered = settled.simplify().lower_completely()
        if any(type(node).__name__ in _UNORDERED_SHUFFLES for node in lowered.walk()):
            # From here on Dask has finished tasks, and cannot push a projection into the shuffle,
            # which would make another shuffle, with another order, for each set of columns.
            keys, token = lowered.__dask_keys__(), tokenize(lowered._name)
            settled = _wrap_tasks(
                _build_graph(lowered), keys, lowered._meta, lowered.divisions, token
            )
    lowered_by_name[expr._name] = settled
    return settled


def _wrap_tasks(
    graph: dict[Any, Any], keys: list[Any], meta: Any, divisions: Any, name: str
) -> Expr:
    """Return an expression of finished tasks, which Dask does not change."""
    from dask.dataframe.dask_expr.io.io import FromGraph

    # With an explicit token: otherwise Dask would hash the whole graph.
    wrapped: Expr = FromGraph(graph, meta, divisions, keys, "rows", _determ_token=name)
    return wrapped


# --- graphs ----------------------------------------------------------------------------------


def split_partitions(lowered: Sequence[Expr]) -> list[list[Delayed]]:
    """Return the partitions of lowered expressions, all in one graph."""
    together = _ExprSequence(*lowered)
    layer = f"lowered-{together._name}"
    tasks = _build_graph(*lowered)
    graph = HighLevelGraph.from_collections(layer, tasks, dependencies=())
    return [
        [Delayed(key, graph, layer=layer) for key in _resolve_aliases(e.__dask_keys__(), tasks)]
        for e in lowered
    ]


def _resolve_aliases(keys: list[Any], tasks: dict[Any, Any]) -> list[Any]:
    """Return the keys to which aliases refer, which are those of persisted partitions.

    The aliases themselves would be separate tasks.
    """
    resolved = []
    for key in keys:
        while isinstance(tasks.get(key), Alias) and tasks[key].target in tasks:
            key = tasks[key].target
        resolved.append(key)
    # Two partitions with one key would be one task, and a block of rows would be missing.
    return resolved if len(set(resolved)) == len(keys) else keys


def _build_graph(*lowered: Expr) -> dict[Any, Any]:
    """Return the tasks of lowered expressions; tasks of shared parts are made once."""
    graph: dict[Any, Any] = {}
    visited: set[str] = set()
    for expr in lowered:
        for node in expr.walk():
            if node._name not in visited:
                visited.add(node._name)
                graph.update(node._layer())
    # `from_delayed` without a check of its partitions stores aliases under wrong keys.
    for key, task in graph.items():
        if isinstance(task, Alias) and task.key != key:
            graph[key] = Alias(key, task.target)
    return graph
