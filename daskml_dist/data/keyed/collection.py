"""Entries of two keys and a value (ratings, edges of graphs), partitioned into lanes by key range.

`read_frame_entries` and `read_matrix_entries` make a `KeyedCollection`; its method `cut` numbers
the ids and splits the entries into a CSR block for each lane and side, by the steps of `cut.py`. In
a `PairCollection`, rows of two numbers and a value stay on their workers: each part's ids are
numbered by the tables of their ranges, so that no worker holds all ids.

The cut is a shuffle, in the manner of a sample sort: (1) each part numbers its ids locally, (2) a
sample of the ids determines ranges of equal load, (3) each part is split into a parcel for each
range, and (4) a range's block is built from its parcels. Between (3) and (4) is an all-to-all
exchange; with many groups of ranges it takes two hops (`_build_side_parcels`).
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any, Protocol

import dask.array as da
import numpy as np
from dask.delayed import Delayed, delayed
from dask.highlevelgraph import HighLevelGraph
from dask.utils import is_dataframe_like
from numpy.typing import NDArray

from daskml_dist.dask_internals.expressions import lower_partitions
from daskml_dist.dask_internals.task_graphs import convert_legacy_graph
from daskml_dist.data.collection import Collection
from daskml_dist.data.keyed import cut
from daskml_dist.data.keyed.cut import KeyedBlock, KeyTable, NumberedEntries, number_part
from daskml_dist.data.keyed.ids import IdLookup, convert_ids
from daskml_dist.data.lazy import is_dask_frame
from daskml_dist.errors import InvalidDataError
from daskml_dist.solvers.keyed import EntrySide

#: Up to this many groups of ranges, parcels are sent directly from their part's worker to the
#: group's. With more, the number of tasks, parts times groups, would cost more than a second hop.
_MAX_DIRECT_GROUPS = 16
#: Most entries that one task splits (about 16 MiB of keys and values); a single part may have more.
_MAX_TASK_ENTRIES = 1 << 20
#: With at least this many entries, the blocks of one side are made after those of the other: made
#: together, they and their parcels would fill the workers' memory.
_MIN_WAVE_ENTRIES = 1 << 22


class WorkerHeldParts(Protocol):
    """Parts of a lazy collection, held by workers."""

    parts: list[Delayed]

    def ask(self, function: Callable[[Any], Any]) -> list[Any]:
        """Return the results of a picklable function on each part."""

    def together(self) -> list[list[int]]:
        """Return the positions of the parts that each worker holds."""


#: Computes the parts of a lazy collection, and holds them on workers.
PartHolder = Callable[[list[Delayed]], WorkerHeldParts]


@dataclass(frozen=True, eq=False)
class KeyedCollection(Collection):
    """Entries of a fit over keys.

    At first it has parts of a frame, whose ids are numbered by `number_entries`; :meth:`cut` makes
    a block of them for each lane and side: all sides of the first lane, then all sides of the next,
    and so on.

    Parameters
    ----------
    sides : tuple of EntrySide
        Sides that the fit needs.
    sources : tuple
        Parts of the frame.
    number_entries : callable
        Returns the entries of a part with numbered ids (`NumberedEntries`). Picklable.
    lanes : int or None
        Number of lanes that it has been split for; None before the split.
    cuts : dict of str to ndarray
        Last id of each lane's range, except the last lane's, by space.
    groups : tuple of range
        Lanes whose blocks are made together, on one worker.
    n_cut : int
        Number of lazy entries that were split; 0 for entries in memory.
    """

    sides: tuple[EntrySide, ...] = ()
    sources: tuple[Any, ...] = ()
    number_entries: Callable[[Any], NumberedEntries] | None = None
    lanes: int | None = None
    cuts: dict[str, Any] = field(default_factory=dict)
    groups: tuple[range, ...] = ()
    n_cut: int = 0
    #: Each part is a whole block of a lane.
    has_lane_blocks = True
    travels_in_parts = True

    @classmethod
    def from_sources(
        cls, kind: Any, sources: Sequence[Any], number_entries: Any, sides: Sequence[EntrySide]
    ) -> KeyedCollection:
        """Return the entries in parts of a frame, in memory or lazy."""
        return cls(kind, [], (), None, None, tensors=True, sides=tuple(sides),
                   sources=tuple(sources), number_entries=number_entries)  # fmt: skip

    @property
    def n_entries(self) -> int:
        """Return the number of entries in memory."""
        return sum(map(len, self.sources))

    @property
    def nbytes(self) -> list[float] | None:
        """Return zeros: all blocks result from one exchange, and are made together."""
        return [0.0] * len(self.parts)

    @property
    def bundles(self) -> list[tuple[int, ...]]:
        """Return groups of blocks that one task makes from the same parcels."""
        # Block i belongs to lane i // n and side i % n; bundles of one side come before those of
        # the next, so that they can be made one side after the other (`bundles_at_once`).
        n = len(self.sides)
        return [
            tuple(range(lanes.start * n + side, lanes.stop * n, n))
            for side in range(n)
            for lanes in self.groups
        ]

    @property
    def bundles_at_once(self) -> int | None:
        """Return the number of bundles of one side if both sides would fill memory, else None."""
        return len(self.groups) if self.n_cut >= _MIN_WAVE_ENTRIES else None

    def find_share(self, block_number: int) -> tuple[int, int] | None:
        """Return the group of a block's lane: one worker makes the blocks of all its sides."""
        lane = block_number // len(self.sides)
        return next(g for g, group_lanes in enumerate(self.groups) if lane in group_lanes), len(
            self.groups
        )

    @property
    def block_maker(self) -> Callable[..., KeyedBlock]:
        """Return the function that makes a block from its group's parcels."""
        return (
            _return_block
            if self.kind == "memory"
            else partial(_make_keyed_block, self.sides, self.cuts)
        )

    def cut(self, n_lanes: int, n_groups: int = 1, hold: PartHolder | None = None) -> Collection:
        """Return the collection split by key ranges, with a part for each lane and side."""
        assert self.number_entries is not None
        n_groups = min(n_groups, n_lanes)
        # Groups of neighbouring lanes, nearly equal in number.
        edges = [g * n_lanes // n_groups for g in range(n_groups + 1)]
        groups = tuple(range(a, b) for a, b in pairwise(edges))
        n_cut = 0
        if self.kind == "memory":
            numbered = [self.number_entries(source) for source in self.sources]
            # The same steps as on a cluster, in one process: number, sample, split, and build each
            # block.
            cuts = cut.choose_cuts([cut.sample_ids(part, self.sides) for part in numbered], n_lanes)
            blocks: list[Any] = [None] * (n_lanes * len(self.sides))
            for side_number, side in enumerate(self.sides):
                own_cuts, all_lanes = cuts[side.rows], [range(n_lanes)]
                parcels = cut.make_parcels(
                    range(len(numbered)), numbered, side, own_cuts, all_lanes
                )
                for i in range(side_number, len(blocks), len(self.sides)):
                    blocks[i] = cut.build_block(i, parcels, self.sides, cuts)
        else:
            # Workers number and hold the parts first, so that each part is read once for all sides.
            held_parts, sizes, cuts = self.numbered(n_lanes, hold)
            parcels_by_side = _build_parcels(held_parts, sizes, self.sides, cuts, groups)
            n_cut = sum(sizes)
            # All lanes of a group get the group's parcels; each block extracts its range from them.
            blocks = [
                group_parcels[g]
                for g, lanes in enumerate(groups)
                for _ in lanes
                for group_parcels in parcels_by_side
            ]
        parts = [(block, None, None) for block in blocks]
        return replace(self, parts=parts, lanes=n_lanes, cuts=cuts, groups=groups, n_cut=n_cut)

    def numbered(
        self, n_ranges: int, hold: PartHolder | None
    ) -> tuple[WorkerHeldParts, list[int], dict[str, Any]]:
        """Return lazy parts with numbered ids, their sizes, and the cuts of key ranges."""
        assert self.number_entries is not None
        assert hold is not None
        tasks = TaskBuilder(self.sources)
        held_parts = hold(
            tasks.lazy([tasks(self.number_entries, source.key) for source in self.sources])
        )
        # The client receives only samples of the ids, and chooses the cuts.
        answers = held_parts.ask(partial(_sample_ids, self.sides))
        cuts = cut.choose_cuts([sample for _, sample in answers], n_ranges)
        return held_parts, [n for n, _ in answers], cuts


def _sample_ids(sides: tuple[EntrySide, ...], part: NumberedEntries) -> tuple[int, Any]:
    """Return the number of entries of a part, and a sample of its ids."""
    return len(part), cut.sample_ids(part, sides)


def _make_keyed_block(
    sides: Sequence[EntrySide], cuts: dict[str, Any], index: int, parcels: Any, *_: Any, **__: Any
) -> KeyedBlock:
    """Return the block of a number, made from its group's parcels, as a block maker."""
    return cut.build_block(index, parcels, sides, cuts)


def _return_block(index: int, block: KeyedBlock, *_: Any, **__: Any) -> KeyedBlock:
    """Return an existing block, as a block maker."""
    return block


def _build_parcels(
    held_parts: WorkerHeldParts, sizes: Sequence[int], sides: Sequence[EntrySide],
    cuts: dict[str, Any], groups: Sequence[range],
) -> list[list[list[Delayed]]]:  # fmt: skip
    """Return the lazy parcels of each group, by side; each is made from parts of one worker."""
    tasks = TaskBuilder(held_parts.parts)
    # A task splits only parts that one worker holds, so that no part is transferred as a whole.
    batches = [
        batch
        for worker_parts in held_parts.together()
        for batch in _batch_parts(worker_parts, sizes)
    ]
    keys = [
        _build_side_parcels(tasks, held_parts, batches, side, cuts[side.rows], groups)
        for side in sides
    ]
    # All keys become delayed objects of one graph, with the same nesting.
    lazy = iter(tasks.lazy([key for side_keys in keys for group in side_keys for key in group]))
    return [[[next(lazy) for _ in group] for group in side_keys] for side_keys in keys]


def _batch_parts(part_indices: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Return batches of parts, each with few enough entries for one task."""
    batches: list[list[int]] = []
    remaining = 0
    for i in part_indices:
        if not batches or sizes[i] > remaining:
            batches.append([])
            remaining = _MAX_TASK_ENTRIES
        batches[-1].append(i)
        remaining -= sizes[i]
    return batches


def _build_side_parcels(
    tasks: TaskBuilder, held_parts: WorkerHeldParts, batches: Sequence[list[int]], side: EntrySide,
    cuts: Any, groups: Sequence[range],
) -> list[list[Any]]:  # fmt: skip
    """Return the keys of each group's parcels, on one side.

    With one hop there are batches times groups tasks. With two hops of about sqrt(groups) each, a
    batch is first split for joint groups only, and further tasks split these parcels for each
    group.
    """
    step = math.isqrt(len(groups) - 1) + 1 if len(groups) > _MAX_DIRECT_GROUPS else 1
    # Neighbouring groups, joined to one range of lanes in the first hop.
    joint_groups = _split_in_steps(groups, step)
    ranges = [range(joint_group[0].start, joint_group[-1].stop) for joint_group in joint_groups]
    parcels: list[list[Any]] = [[] for _ in ranges]
    for numbers in batches:
        keys = [held_parts.parts[i].key for i in numbers]
        batch_parcels = tasks(cut.make_parcels, numbers, keys, side, cuts, ranges)
        for number, range_parcels in enumerate(parcels):
            range_parcels.append(tasks(get_item, batch_parcels, number))
    if step == 1:
        return parcels
    return [
        group_parcels
        for joint_group, range_parcels in zip(joint_groups, parcels, strict=True)
        for group_parcels in _build_sorted_parcels(tasks, range_parcels, joint_group, step)
    ]


def _build_sorted_parcels(
    tasks: TaskBuilder, parcels: list[Any], groups: Sequence[range], step: int
) -> list[list[Any]]:
    """Return the keys of the second hop by group; each task takes `step` parcels."""
    sorted_ = [
        tasks(cut.sort_parcels, parcel_run, groups) for parcel_run in _split_in_steps(parcels, step)
    ]
    return [
        [tasks(get_item, sorted_parcels, i) for sorted_parcels in sorted_]
        for i in range(len(groups))
    ]


def _split_in_steps(items: Sequence[Any], step: int) -> list[Any]:
    """Return consecutive slices of `step` items; the last one may be shorter."""
    return [items[start : start + step] for start in range(0, len(items), step)]


class TaskBuilder:
    """Builder of a task graph; the result of a task is identified by its key.

    Parameters
    ----------
    sources : sequence of Delayed
        Results that arguments may refer to by their keys.
    """

    def __init__(self, sources: Sequence[Any]) -> None:
        self._sources = sources
        self._name = f"keyed-{uuid.uuid4().hex}"
        self._graph: dict[Any, Any] = {}

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        """Add a task that calls a function; return its key, which later tasks may use."""
        # Dask's dashboard groups tasks by the key's prefix before the first dash.
        name = getattr(function, "__name__", type(function).__name__).strip("_").lower()
        key = f"{name}-{self._name}-{len(self._graph)}"
        self._graph[key] = (function, *args)
        return key

    def lazy(self, keys: Sequence[Any]) -> list[Delayed]:
        """Return some results as delayed objects that share one graph."""
        known_keys = {*self._graph, *(source.key for source in self._sources)}
        # Tuples refer to other tasks by key; Dask converts them to its current task format.
        tasks = convert_legacy_graph(self._graph, known_keys)
        graph = HighLevelGraph.from_collections(self._name, tasks, dependencies=self._sources)
        return [Delayed(key, graph, layer=self._name) for key in keys]


def get_item(items: Sequence[Any], index: int) -> Any:
    """Return one item of a sequence, as a task."""
    return items[index]


@dataclass(frozen=True, eq=False)
class LoneKeys:
    """Keys without entries, such as vertices without edges, as a part of a collection."""

    ids: NDArray[Any]

    def __len__(self) -> int:
        return 0


@dataclass(frozen=True)
class EntryColumns:
    """Columns of a frame of entries.

    Parameters
    ----------
    first, second : str
        Columns of the keys.
    value : str or None
        Column of the values; None if all values are 1.
    least : float or None
        Smallest value allowed; None allows any finite number.
    shared : bool
        Whether both keys belong to one space, such as the vertices of a graph.
    """

    first: Any
    second: Any
    value: Any = None
    least: float | None = None
    shared: bool = False

    def __call__(self, part: Any) -> NumberedEntries:
        """Number the ids in a part of the frame, or keys without entries."""
        if isinstance(part, LoneKeys):
            numbered = number_part(part.ids, part.ids[:0], None, shared=True)
            empty = np.empty(0, np.int32)
            none = None if self.value is None else np.empty(0, np.float32)
            return NumberedEntries(numbered.ids, (empty, empty), none)
        first, second = (convert_ids(part[name], str(name)) for name in (self.first, self.second))
        values = None
        if self.value is not None:
            values = convert_values(part[self.value], str(self.value), self.least)
        return number_part(first, second, values, self.shared)


def convert_values(values: Any, name: str, least: float | None) -> NDArray[np.float64]:
    """Return the values of entries as float64."""
    try:
        array = np.asarray(values)
        # Complex numbers would lose their imaginary part; spans and dates would become nanoseconds.
        if array.dtype.kind in "cmM":
            raise TypeError(f"they are of the type {array.dtype}")
        numbers = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidDataError(
            f"Column {name!r} holds values that are not numbers ({error}). Give numbers: "
            f"frame[{name!r}].astype(float); drop rows with missing values."
        ) from error
    if not np.isfinite(numbers).all():
        n_nonfinite = int((~np.isfinite(numbers)).sum())
        raise InvalidDataError(
            f"Column {name!r} holds NaN or infinity ({n_nonfinite} of {len(numbers)} rows). Drop "
            f"such rows: frame.dropna(subset=[{name!r}])."
        )
    if least is not None and len(numbers) and numbers.min() < least:
        raise InvalidDataError(
            f"Column {name!r} holds {numbers.min():g}, and must be at least {least:g}. Drop such "
            "rows, or shift or clip them."
        )
    return numbers


def read_frame_entries(
    frame: Any,
    columns: EntryColumns,
    sides: Sequence[EntrySide],
    lone_ids: NDArray[Any] | None = None,
) -> KeyedCollection:
    """Return the entries of a pandas or Dask dataframe."""
    if not is_dataframe_like(frame):
        raise InvalidDataError(
            f"{type(frame).__name__} is not a dataframe. Give a pandas or Dask dataframe with "
            f"one row per entry: columns {columns.first!r} and {columns.second!r}."
        )
    names = [name for name in (columns.first, columns.second, columns.value) if name is not None]
    for name in (columns.first, columns.second, *names):
        if name is None or not isinstance(name, Hashable):
            raise InvalidDataError(
                f"{name!r} is no name of a column. Name the columns that hold the keys and the "
                f"value; the frame has {list(frame.columns)}."
            )
    if missing := [name for name in names if name not in frame.columns]:
        raise InvalidDataError(
            f"The frame has no column {' and '.join(map(repr, missing))}; it has "
            f"{list(frame.columns)}. Name the columns that hold the keys and the value."
        )
    lone_keys = [] if lone_ids is None else [LoneKeys(lone_ids)]
    if is_dask_frame(frame):
        sources = [
            *lower_partitions(frame[names]),
            *(delayed(part, pure=False) for part in lone_keys),
        ]
        return KeyedCollection.from_sources("dask", sources, columns, sides)
    if not len(frame) and not lone_keys:
        raise InvalidDataError(
            "The frame has no rows. Check the file or the filter that it comes from."
        )
    return KeyedCollection.from_sources("memory", [frame[names], *lone_keys], columns, sides)


def _number_cells(least: float | None, row_chunk: tuple[int, Any]) -> NumberedEntries:
    """Number the stored cells of rows of a sparse matrix; their positions are the keys."""
    start, matrix = row_chunk
    # Checked here too: the type of a Dask chunk is known only once it is computed.
    _check_sparse(matrix)
    cells = matrix.tocoo()
    values = convert_values(cells.data, "value", least)
    rows, columns = (cells.row + start).astype(np.int64), cells.col.astype(np.int64)
    return number_part(rows, columns, values, shared=False)


def read_matrix_entries(
    matrix: Any, sides: Sequence[EntrySide], least: float | None = None
) -> KeyedCollection:
    """Return the stored cells of a scipy.sparse matrix, or of a Dask Array with such chunks.

    Keys are the positions of rows and columns that contain a cell.
    """
    if isinstance(matrix, da.Array):
        if matrix.ndim != 2 or np.isnan(matrix.chunks[0]).any():
            raise InvalidDataError(
                "The rows of a Dask Array with unknown chunk sizes cannot be numbered. Call "
                "compute_chunk_sizes() first."
            )
        # Chunks must have whole rows, since columns are numbered from the left edge.
        whole_rows = matrix.rechunk({1: -1}) if matrix.numblocks[1] > 1 else matrix
        # Rows are numbered across all chunks: each task gets the number of its chunk's first row.
        starts = np.cumsum([0, *whole_rows.chunks[0][:-1]]).tolist()
        pair = delayed(_make_pair, pure=False)
        chunks = whole_rows.to_delayed().ravel().tolist()
        sources = [pair(start, chunk) for start, chunk in zip(starts, chunks, strict=True)]
        return KeyedCollection.from_sources("dask", sources, partial(_number_cells, least), sides)
    _check_sparse(matrix)
    return KeyedCollection.from_sources(
        "memory", [(0, matrix)], partial(_number_cells, least), sides
    )


def _check_sparse(matrix: Any) -> None:
    """Raise if entries are not in a sparse matrix."""
    if not hasattr(matrix, "tocoo"):
        raise InvalidDataError(
            f"{type(matrix).__name__} is neither a dataframe nor a sparse matrix. Give a pandas "
            "or Dask dataframe, scipy.sparse, or a dask Array with chunks of scipy.sparse, such "
            "as X.map_blocks(scipy.sparse.csr_matrix)."
        )


def _make_pair(start: int, chunk: Any) -> tuple[int, Any]:
    """Return a chunk with the number of its first row, as a task."""
    return start, chunk


Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class NumberedPairs(Collection):
    """Collection whose rows are two numbers: of the first key and of the second key.

    Second keys are numbered after all first keys, so that each number is a row of one parameter
    matrix.

    Parameters
    ----------
    ids : tuple of (first, second)
        Sorted ids of each kind: the ith id has the number i.
    """

    ids: tuple[Array, Array] = field(default=(np.empty(0), np.empty(0)))


@dataclass(frozen=True, eq=False)
class PairCollection(KeyedCollection):
    """Entries whose keys are numbered on their workers; its sides are those of the two keys."""

    def cut(self, n_lanes: int, n_groups: int = 1, hold: PartHolder | None = None) -> NumberedPairs:
        """Number the keys; each worker holds the numbers of its own parts' keys only."""
        assert self.number_entries is not None
        if self.kind == "memory":
            (source,) = self.sources
            part = self.number_entries(source)
            # Raises for a part without entries, with the usual message.
            cut.choose_cuts([cut.sample_ids(part, self.sides)], 1)
            # In memory, the positions of the ids are their numbers already.
            n, m = (len(ids) for ids in part.ids)
            rows = _number_rows(part, [np.arange(n)], [np.arange(m)], n, m)
            return _make_pair_collection("memory", [rows], [len(rows[0])], part.ids)
        assert hold is not None
        numbered, _, cuts = self.numbered(min(n_groups, n_lanes), hold)
        held_parts = numbered.parts
        side_cuts = [(side, cuts[entry_side.rows]) for side, entry_side in enumerate(self.sides)]
        tasks = TaskBuilder(held_parts)
        table_tasks = [_build_table_tasks(tasks, held_parts, *side_cut) for side_cut in side_cuts]
        # Workers make and hold the tables of all ids, one range each; the client receives the ids
        # once, for the fitted attributes.
        held_tables = hold(tasks.lazy(list(chain.from_iterable(table_tasks))))
        tables, table_ids = held_tables.parts, held_tables.ask(_get_ids)
        n = len(tables) // 2
        # A second graph, since numbering needs the sizes of the tables: an id's number is its
        # position in its table plus the sizes of the preceding tables.
        tasks = TaskBuilder([*held_parts, *tables])
        ids, numbers = [], []
        for side, own_cuts in side_cuts:
            side_slice = slice(side * n, (side + 1) * n)
            ids.append(np.concatenate([part for part in table_ids[side_slice] if len(part)]))
            numbers.append(
                _build_number_tasks(
                    tasks, held_parts, side, own_cuts, tables[side_slice], table_ids[side_slice]
                )
            )
        # For each part, its numbered rows and its values, as two results of one task.
        keys = []
        for part, first, second in zip(held_parts, *numbers, strict=True):
            rows = tasks(_number_rows, part.key, first, second, len(ids[0]), len(ids[1]))
            keys += [tasks(get_item, rows, 0), tasks(get_item, rows, 1)]
        columns = tasks.lazy(keys)
        pairs = list(zip(columns[::2], columns[1::2], strict=True))
        return _make_pair_collection("dask", pairs, None, (ids[0], ids[1]))


def _make_pair_collection(
    kind: Any, pairs: Sequence[Any], row_counts: list[int] | None, ids: tuple[Array, Array]
) -> NumberedPairs:
    """Return a collection of rows of two numbers and their values."""
    parts = [(X, y, None) for X, y in pairs]
    return NumberedPairs(kind, parts, (2,), None, row_counts, tensors=True, ids=ids)


def _build_key_tasks(
    tasks: TaskBuilder, held_parts: Sequence[Delayed], key_index: int, cuts: Array
) -> list[list[Any]]:
    """Return the keys of each part's own first (`key_index` 0) or second ids, by range."""
    split = [tasks(cut.split_keys, part.key, key_index, cuts) for part in held_parts]
    return [[tasks(get_item, key, r) for r in range(len(cuts) + 1)] for key in split]


def _build_table_tasks(
    tasks: TaskBuilder, held_parts: Sequence[Delayed], key_index: int, cuts: Array
) -> list[Any]:
    """Return the keys of the tables of first or second ids of all parts, by range."""
    return [
        tasks(cut.merge_key_tables, list(range_keys))
        for range_keys in zip(*_build_key_tasks(tasks, held_parts, key_index, cuts), strict=True)
    ]


def _build_number_tasks(
    tasks: TaskBuilder, held_parts: Sequence[Delayed], key_index: int, cuts: Array,
    tables: Sequence[Delayed], ids: Sequence[Array],
) -> list[list[Any]]:  # fmt: skip
    """Return the keys of the numbers of each part's own first or second ids, by range."""
    first = [0, *accumulate(map(len, ids))]
    return [
        [tasks(_number_ids, first[r], tables[r].key, key) for r, key in enumerate(part_keys)]
        for part_keys in _build_key_tasks(tasks, held_parts, key_index, cuts)
    ]


def _get_ids(table: KeyTable) -> Array:
    """Return the ids of a table, as a picklable function."""
    return table.ids


def _number_ids(first: int, table: KeyTable, part_table: KeyTable) -> NDArray[np.int64]:
    """Return the numbers of a part's ids in a range, whose first id has the number `first`."""
    return IdLookup(table.ids)(part_table.ids).astype(np.int64) + first


def _number_rows(
    part: NumberedEntries,
    first: Sequence[Array],
    second: Sequence[Array],
    n_first: int,
    n_second: int,
) -> tuple[Array, Array]:
    """Return the numbers of the keys of a part's entries, and the values."""
    # int32 takes half the memory of int64 if the numbers fit.
    dtype = np.int32 if n_first + n_second < 2**31 else np.int64
    rows = np.empty((len(part.codes[0]), 2), dtype)
    rows[:, 0] = np.concatenate(first)[part.codes[0]]
    rows[:, 1] = np.concatenate(second)[part.codes[1]] + n_first
    values = np.ones(len(rows)) if part.values is None else part.values.astype(np.float64)
    return rows, values
