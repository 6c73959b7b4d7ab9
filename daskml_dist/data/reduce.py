"""Statistics over collections: one summary per block, made on its worker, merged in a tree.

A computation of several passes is a generator that yields the passes it needs next
(`PassGenerator`). `run_in_lock_step` runs many of them concurrently, so that each block is read
once for all. `fold_parts` updates a state by one block after the other, if their order matters.

All work of a computation on one block becomes one task (`fuse_by_block`): Dask's scheduler takes
about a millisecond for a task, however small, and a cross-validation of several transformers would
have dozens of tasks per block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar
from uuid import uuid4

import dask.array as da
import numpy as np
from dask.delayed import Delayed, delayed
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from daskml_dist.dask_internals.task_graphs import (
    GraphNode,
    Task,
    TaskRef,
    collect_dependencies,
    collect_layers,
    convert_to_tasks,
    find_futures,
    is_shuffle_barrier,
    select_tasks,
)
from daskml_dist.data.block_errors import (
    DeclaredNumbers,
    call_on_declared_blocks,
    mark_own_errors,
    name_blocks_in_errors,
)
from daskml_dist.data.collection import Collection, count_rows_of_block
from daskml_dist.data.computing import compute_with_retries
from daskml_dist.data.conversion import as_array_block

S = TypeVar("S")
Array = NDArray[Any]

#: Summaries that one task merges, for a single pass, and the minimum with many passes, whose
#: waiting summaries take memory.
_FAN_IN, _LEAST_FAN_IN = 16, 4


def reduce_parts(
    collection: Collection,
    summarise: Callable[..., S | None],
    merge: Callable[[list[S]], S],
    *shared: Any,
) -> S:
    """Summarise every part of a collection and merge the summaries, in one pass.

    `merge` never gets a None summary; None may stand for a part without rows.
    """
    result: S = compute_passes([ReductionPass(collection, summarise, merge, shared)])[0]
    return result


def count_rows(columns: Collection) -> NDArray[np.int64]:
    """Return the number of rows of each block, computed in one pass if Dask does not know it."""
    row_counts = columns.row_counts
    if row_counts is None:
        row_counts = reduce_parts(columns, _count_block_rows, concatenate_lists)
    return np.array(row_counts, np.int64)


def _count_block_rows(index: int, X: Any, *_: Any) -> list[int]:
    return [count_rows_of_block(X)]


@dataclass(frozen=True, eq=False)
class ReductionPass:
    """Pass over a collection, made alone or together with others.

    Parameters
    ----------
    collection, summarise, merge, shared
        As in :func:`reduce_parts`.
    """

    collection: Collection
    summarise: Callable[..., Any]
    merge: Callable[[list[Any]], Any]
    shared: tuple[Any, ...] = ()


#: A computation over rows: it yields lists of passes that can be made concurrently, receives their
#: summaries, and returns a result.
PassGenerator = Generator[list[ReductionPass], list[Any], S]


def compute_passes(passes: Sequence[ReductionPass]) -> list[Any]:
    """Return the summary of each pass; passes over Dask collections read each block only once."""
    # Passes over rows in memory are made immediately; those over Dask share one computation.
    lazy = [pass_ for pass_ in passes if pass_.collection.kind != "memory"]
    summaries = iter(_compute_on_blocks(lazy) if lazy else [])
    return [
        next(summaries)
        if pass_.collection.kind != "memory"
        else merge_filled(
            pass_.merge,
            [
                pass_.summarise(i, *part, *pass_.shared)
                for i, part in enumerate(pass_.collection.parts)
            ],
        )
        for pass_ in passes
    ]


def run_computation(work: PassGenerator[S]) -> S:
    """Run a computation that yields passes, and return its result."""
    try:
        passes = next(work)
        while True:
            passes = work.send(compute_passes(passes))
    except StopIteration as end:
        result: S = end.value
        return result


def run_in_lock_step(works: Iterable[PassGenerator[S]]) -> PassGenerator[list[S]]:
    """Run computations concurrently: the next passes of all of them are made together."""
    computations = list(works)
    results: dict[int, S] = {}
    #: Summaries to send to each computation; None starts it.
    summaries_by_number: dict[int, Any] = dict.fromkeys(range(len(computations)))
    # Each round gets the next passes of every unfinished computation, makes them all together, and
    # sends each computation its summaries.
    while summaries_by_number:
        next_passes: dict[int, list[ReductionPass]] = {}
        for i, summaries in summaries_by_number.items():
            try:
                next_passes[i] = computations[i].send(summaries)
            except StopIteration as end:
                results[i] = end.value
        if next_passes:
            made_summaries = iter(
                (yield [pass_ for passes in next_passes.values() for pass_ in passes])
            )
            summaries_by_number = {
                i: [next(made_summaries) for _ in passes] for i, passes in next_passes.items()
            }
        else:
            summaries_by_number = {}
    return [results[i] for i in range(len(computations))]


def reduce_lazily(
    collection: Collection,
    summarise: Callable[..., S | None],
    merge: Callable[[list[S]], S],
    finish: Callable[[S], Any],
) -> Delayed:
    """Return, lazily, the summary of :func:`reduce_parts`, converted by `finish`.

    For a Dask collection. If the user computes several such values together, they share one pass.
    The user then sees Dask's own errors for blocks that cannot be read.
    """
    name = f"block-{uuid4().hex}"
    # Not fused: values that are computed together share the tasks that read a block.
    tree = _build_merge_tree(name, [ReductionPass(collection, summarise, merge)], collect_by_block)
    result: Delayed = _make_task(partial(_finish_summary, finish))(tree)
    return result


def _finish_summary(finish: Callable[[Any], Any], summaries: dict[int, Any]) -> Any:
    """Return the converted value of the only summary."""
    return finish(summaries[0])


def fold_parts(
    collection: Collection,
    step: Callable[[S, int, Any, Any, Any], S],
    state: S,
    order: Iterable[int] | None = None,
) -> S:
    """Update a state by the parts of a collection, in order, each on the worker with its rows."""
    numbers = range(len(collection.parts)) if order is None else list(order)
    if collection.kind == "memory":
        for i in numbers:
            state = step(state, i, *collection.parts[i])
        return state
    with name_blocks_in_errors(collection.parts):
        result: S = compute_with_retries(
            lambda name: _build_fold(name, collection, step, state, numbers), len(collection.parts)
        )
    return result


def _build_fold(
    name: str, collection: Collection, step: Any, state: Any, block_numbers: Iterable[int]
) -> Any:
    """Return the last state of a fold, lazily."""
    # A chain of tasks: each takes the state that the previous one returns, on its part's worker.
    run_step = _make_task(_wrap_for_blocks(step, collection, first=2))
    last_state = delayed(state, pure=False)
    for i in block_numbers:
        last_state = run_step(last_state, i, *collection.parts[i], dask_key_name=(name, i))
    return last_state


def _compute_on_blocks(passes: list[ReductionPass]) -> list[Any]:
    """Return the summary of each pass over Dask collections."""
    blocks = [
        tuple(value for pass_ in passes for value in pass_.collection.parts[i : i + 1])
        for i in range(max(len(pass_.collection.parts) for pass_ in passes))
    ]
    with name_blocks_in_errors([tuple(v for part in parts for v in part) for parts in blocks]):
        summaries = compute_with_retries(
            lambda name: _build_merge_tree(name, passes, fuse_by_block), len(blocks)
        )
    return [summaries[number] for number in range(len(passes))]


def _build_merge_tree(
    name: str,
    passes: Sequence[ReductionPass],
    by_block: Callable[[str, list[list[Delayed]]], list[Delayed]],
) -> Delayed:
    """Return the merged summaries of all parts, lazily: a dict by the number of the pass.

    `by_block` combines all summaries of a block to one lazy value with a given name.
    """
    groups: list[list[Delayed]] = []
    numbers: list[list[int]] = []
    for number, pass_ in enumerate(passes):
        # One delayed function per pass, called by each block.
        summarise = _make_task(_wrap_for_blocks(pass_.summarise, pass_.collection, first=1))
        for i, part in enumerate(pass_.collection.parts):
            if i == len(groups):
                groups.append([])
                numbers.append([])
            groups[i].append(summarise(i, *part, *pass_.shared))
            numbers[i].append(number)
    # A tree of merges: the summaries of `fan_in` neighbours become one, level by level, in order.
    join = _make_task(partial(_merge_by_pass, [pass_.merge for pass_ in passes]))
    level: list[Any] = [
        (numbers[i], summaries) for i, summaries in enumerate(by_block(name, groups))
    ]
    # Summaries of many passes take memory while they wait for each other.
    fan_in = max(_FAN_IN // len(passes), _LEAST_FAN_IN)
    while True:
        level = [join(level[i : i + fan_in]) for i in range(0, len(level), fan_in)]
        if len(level) == 1:
            result: Delayed = level[0]
            return result


def _merge_by_pass(
    merges: list[Callable[[list[Any]], Any]], block_summaries: list[Any]
) -> dict[int, Any]:
    """Merge the summaries of each pass."""
    # Blocks may have summaries of only some passes, if collections differ in length.
    summaries_by_pass: dict[int, list[Any]] = {}
    for part in block_summaries:
        items = part.items() if isinstance(part, dict) else zip(*part, strict=True)
        for number, summary in items:
            summaries_by_pass.setdefault(number, []).append(summary)
    return {
        number: merge_filled(merges[number], summaries)
        for number, summaries in summaries_by_pass.items()
    }


def merge_filled(merge: Callable[[list[S]], S], summaries: Sequence[S | None]) -> S | None:
    """Merge the summaries that are not None; return None if there are none."""
    filled = [summary for summary in summaries if summary is not None]
    return merge(filled) if filled else None


def _wrap_for_blocks(
    function: Callable[..., Any], collection: Collection, first: int
) -> Callable[..., Any]:
    """Wrap a function of a part for parts from Dask, which may contradict their metadata.

    X is the argument at position `first`, right after the number of the part. Chunks of Dask Arrays
    become arrays, even if the user's are lists; if the function fails, the error reports words in
    place of numbers.
    """
    are_arrays = tuple(isinstance(values, da.Array) for values in collection.inputs)
    declared, names = collection.declared_numbers, collection.names
    return partial(_call_on_declared_part, function, are_arrays, declared, names, first)


def _call_on_declared_part(
    function: Callable[..., Any], are_arrays: tuple[bool, ...],
    declared: tuple[DeclaredNumbers | None, ...], names: tuple[str, ...], first: int, *args: Any,
) -> Any:  # fmt: skip
    """Call a function on a part from Dask; see :func:`_wrap_for_blocks`."""
    # The number of the part precedes X, y and sample_weight; shared arguments follow them.
    index, end = args[first - 1], first + len(names)
    kinds = zip(args[first:end], names, are_arrays, strict=True)
    part = [as_array_block(v, name, index) if is_array else v for v, name, is_array in kinds]
    call = partial(function, *args[:first], *part, *args[end:])
    return call_on_declared_blocks(declared, part, index, call)


def _make_task(function: Callable[..., Any]) -> Any:
    """Return a delayed function whose own errors are distinguished from errors in its arguments."""
    return delayed(partial(mark_own_errors, function), pure=False)


def fuse_by_block(name: str, groups: Sequence[Sequence[Delayed]]) -> list[Delayed]:
    """Return one lazy value for each group of lazy values: the list of their results.

    Tasks needed by only one group become part of the group's task. A task needed by several groups
    (a shuffle, an array that is cut into blocks) stays separate, and runs once.
    """
    # Step 1: all tasks behind the groups, in one format.
    layers = collect_layers(chain.from_iterable(groups))
    if any(getattr(layer, "annotations", None) for layer in layers.values()):
        # The user has chosen where tasks of these layers run; fusing would lose this.
        return collect_by_block(name, groups)
    futures = find_futures(layers.values())
    tasks = convert_to_tasks(layers.values(), futures)
    # Step 2: the tasks that each group needs, and how many groups need each task.
    cones = [select_tasks(tasks, [value.key for value in group]) for group in groups]
    n_owners = Counter(chain.from_iterable(cones))
    # Step 3: tasks that several groups need (a shuffle, a shared read) stay separate.
    separate_keys = [
        key
        for key, n in n_owners.items()
        if n > 1
        # Dask resolves futures in the arguments of a task, but not in those of a nested one.
        or find_futures([{key: tasks[key]}])
        # A shuffle between workers involves the scheduler, even if only one block needs it.
        or is_shuffle_barrier(tasks[key])
        # Each output of a shuffle exists on one worker: a task that needs several could run
        # nowhere.
        or any(is_shuffle_barrier(tasks.get(name)) for name in tasks[key].dependencies)
    ]
    graph: dict[Any, Any] = select_tasks(tasks, separate_keys)
    inner = [{k: task for k, task in cone.items() if k not in graph} for cone in cones]
    needed_keys = collect_dependencies(graph)
    # Step 4: the rest of each group becomes one task, whose arguments are the shared results.
    for i, (group, group_tasks) in enumerate(zip(groups, inner, strict=True)):
        outputs = [value.key for value in group]
        argument_keys = list(
            collect_dependencies(group_tasks).union(outputs).difference(group_tasks)
        )
        work = _FusedBlockTask(_sort_depth_first(group_tasks, outputs), outputs, argument_keys)
        graph[name, i] = Task((name, i), work, *map(TaskRef, argument_keys))
        needed_keys.update(argument_keys)
    graph.update({key: futures[key] for key in needed_keys.intersection(futures)})
    fused_graph = HighLevelGraph.from_collections(name, graph, dependencies=())
    return [Delayed((name, i), fused_graph, layer=name) for i in range(len(groups))]


def collect_by_block(name: str, groups: Sequence[Sequence[Delayed]]) -> list[Delayed]:
    """Return the same values as :func:`fuse_by_block`, without fusing tasks."""
    as_list = delayed(_collect_values, pure=False)
    return [as_list(*group, dask_key_name=(name, i)) for i, group in enumerate(groups)]


@dataclass(frozen=True, eq=False)
class _FusedBlockTask:
    """Function that runs all tasks of one block, and drops each result after its last use.

    Parameters
    ----------
    tasks : list of (key, GraphNode)
        Topologically sorted: each after its dependencies.
    outputs : list of key
    inputs : list of key
        Results of other tasks, passed as the function's arguments.
    """

    tasks: list[tuple[Any, GraphNode]]
    outputs: list[Any]
    inputs: list[Any]

    def __call__(self, *data: Any) -> list[Any]:
        """Return the outputs."""
        values = dict(zip(self.inputs, data, strict=True))
        n_uses = Counter(self.outputs)
        for _, task in self.tasks:
            n_uses.update(task.dependencies)
        for key, task in self.tasks:
            values[key] = task({name: values[name] for name in task.dependencies})
            # A result is dropped after its last use, so that intermediate arrays do not accumulate.
            for name in task.dependencies:
                n_uses[name] -= 1
                if not n_uses[name]:
                    del values[name]
        return [values[key] for key in self.outputs]


def _sort_depth_first(
    tasks: Mapping[Any, GraphNode], outputs: list[Any]
) -> list[tuple[Any, GraphNode]]:
    """Return tasks in depth-first order of the outputs, so that few results are held at a time."""
    in_order: dict[Any, GraphNode] = {}
    stack = [(key, False) for key in reversed(outputs)]
    while stack:
        key, is_ready = stack.pop()
        if key in in_order or key not in tasks:
            continue
        if is_ready:
            in_order[key] = tasks[key]
        else:
            stack.append((key, True))
            stack.extend((name, False) for name in tasks[key].dependencies)
    return list(in_order.items())


def _collect_values(*values: Any) -> list[Any]:
    """Return the arguments as a list, as a task."""
    return list(values)


def add_arrays(arrays: list[Array]) -> Array:
    """Return the sum of block summaries that are arrays of one shape."""
    return np.asarray(np.sum(arrays, axis=0))


def concatenate_lists(lists: list[list[Any]]) -> list[Any]:
    """Return the concatenation of block summaries that are lists, in block order."""
    return list(chain.from_iterable(lists))
