"""Dataframe expressions, lowered to tasks so that partitions of several frames belong together.

Dask rewrites the expression behind a dataframe before it makes tasks of it. What it makes of two
columns separately may be two shuffles, which give their rows in different orders, or two reads
that are cut differently. So frames of one fit are lowered together. A frame that must be lowered
alone (a prediction is lazy, and is compared with a target later) is lowered so that its shuffles
are the same tasks as in anything else made of that frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dask._expr import Expr, _ExprSequence, optimize_until
from dask._task_spec import Alias
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.tokenize import tokenize

#: Lowered expressions that give rows in the order in which these happen to arrive.
_UNORDERED_SHUFFLES = {"DiskShuffle", "P2PShuffle", "HashJoinP2P"}


def lower_partitions(frame: Any) -> list[Delayed]:
    """Return the partitions of a frame that is lowered alone.

    Its shuffles are the same tasks as in anything else that is made of the frame. Projections of
    columns and filters are pushed down into reads, though not through a shuffle. Nothing is fused:
    tasks that are fused in X and in y would compute twice what both share.
    """
    return split_partitions(lower_or_fall_back(lower_separately, [frame.expr]))[0]


def make_frame_from_tasks(graph: HighLevelGraph, keys: list[Any], meta: Any, name: str) -> Any:
    """Return a dask DataFrame whose partitions are tasks of a graph."""
    from dask._collections import new_collection

    return new_collection(_wrap_tasks(dict(graph), keys, meta, (None,) * (len(keys) + 1), name))


def find_read_function(frame: Any) -> Any:
    """Return the function that reads every partition of a frame, or of columns taken of one.

    None where the frame is anything else than all parts of one `dask.dataframe.from_map`.
    """
    from dask.dataframe.dask_expr._expr import Projection
    from dask.dataframe.dask_expr.io.io import FromMap

    expr = frame.expr
    while isinstance(expr, Projection):
        expr = expr.frame
    whole = isinstance(expr, FromMap) and expr.operand("_partitions") is None
    return expr.func if whole else None


# --- three ways to lower ---------------------------------------------------------------------


def lower_or_fall_back(
    lower: Callable[[list[Expr]], Sequence[Expr]], exprs: list[Expr]
) -> Sequence[Expr]:
    """Lower expressions in one of the three ways, or as Dask does itself where that way fails."""
    try:
        return lower(exprs)
    except AssertionError:
        # Dask counts the partitions of a repartitioned read wrongly before it has tuned the read.
        return [optimize_until(expr, "physical") for expr in exprs]


def lower_together(exprs: list[Expr]) -> Sequence[Expr]:
    """Lower expressions as one: a shared part is made once, with the columns that any needs."""
    lowered: list[Expr] = _ExprSequence(*exprs).simplify().lower_completely().operands
    return lowered


def lower_separately(exprs: list[Expr]) -> Sequence[Expr]:
    """Lower each expression alone; shuffles keep all columns, so that they are always the same."""
    known: dict[str, Expr] = {}
    return [_lower_shuffles(expr, known).simplify().lower_completely() for expr in exprs]


def lower_all_partitions(exprs: list[Expr]) -> Sequence[Expr]:
    """Lower each expression alone to all of its partitions, with no filter pushed into reads.

    A filter that is pushed into a read may leave partitions out, which then do not match others.
    """
    known: dict[str, Expr] = {}
    return [_lower_shuffles(expr, known).lower_completely() for expr in exprs]


def _lower_shuffles(expr: Expr, known: dict[str, Expr]) -> Expr:
    """Return an expression whose shuffles are lowered, from the bottom up, each by itself."""
    from dask.dataframe.dask_expr._expr import Blockwise, Fused

    if expr._name in known:
        return known[expr._name]
    if isinstance(expr, Fused):  # the user called df.optimize(): all in it is lowered already
        return expr
    operands = [_lower_shuffles(o, known) if isinstance(o, Expr) else o for o in expr.operands]
    settled = expr
    if any(new is not old for new, old in zip(operands, expr.operands, strict=True)):
        settled = type(expr)(*operands)
    if not isinstance(expr, Blockwise):
        lowered = settled.simplify().lower_completely()
        if any(type(node).__name__ in _UNORDERED_SHUFFLES for node in lowered.walk()):
            # From here on Dask sees finished tasks, and can push no projection into the shuffle,
            # which would make another shuffle, with another order, for each set of columns.
            keys, token = lowered.__dask_keys__(), tokenize(lowered._name)
            settled = _wrap_tasks(
                _build_graph(lowered), keys, lowered._meta, lowered.divisions, token
            )
    known[expr._name] = settled
    return settled


def _wrap_tasks(
    graph: dict[Any, Any], keys: list[Any], meta: Any, divisions: Any, name: str
) -> Expr:
    """Return an expression of finished tasks, which Dask leaves as they are."""
    from dask.dataframe.dask_expr.io.io import FromGraph

    # With a token of its own: Dask would hash the whole graph for one.
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
    """Return the keys that aliases stand for, which are those of persisted partitions.

    The aliases themselves would be tasks of their own.
    """
    found = []
    for key in keys:
        while isinstance(tasks.get(key), Alias) and tasks[key].target in tasks:
            key = tasks[key].target
        found.append(key)
    # Two partitions of one key would be one task, and one block of rows too few.
    return found if len(set(found)) == len(keys) else keys


def _build_graph(*lowered: Expr) -> dict[Any, Any]:
    """Return the tasks of lowered expressions, those of shared parts once."""
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
