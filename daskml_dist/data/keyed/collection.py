"""Entries of two keys and a value (ratings, edges of graphs), which lanes hold by ranges of keys.

`read_frame_entries` and `read_matrix_entries` make a `KeyedCollection`; its method `cut` numbers
the ids and cuts the entries into a CSR block for each lane and side, by the steps of `cut.py`. In a
`PairCollection` rows of two numbers and a value stay where they lie: each part's own ids are
numbered by the tables of their ranges, so that nobody holds all ids.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
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

#: Groups of ranges from which on parcels go by way of others: a part has few of them then.
_MAX_DIRECT_GROUPS = 16
#: Most entries that one task cuts; a single part may have more.
_MAX_TASK_ENTRIES = 1 << 20
#: Entries from which the blocks of one side are made after the blocks of the other.
_MIN_WAVE_ENTRIES = 1 << 22


class WorkerHeldParts(Protocol):
    """Parts of a lazy collection that workers hold."""

    parts: list[Delayed]

    def ask(self, function: Callable[[Any], Any]) -> list[Any]:
        """Return the results of a picklable function of each part."""

    def together(self) -> list[list[int]]:
        """Return the positions of the parts that each worker holds."""


#: Makes parts of a lazy collection, and holds them.
PartHolder = Callable[[list[Delayed]], WorkerHeldParts]


@dataclass(frozen=True, eq=False)
class KeyedCollection(Collection):
    """Entries of a fit over keys.

    It begins with parts of a frame, whose ids `numbers` numbers; :meth:`cut` makes a block of them
    for each lane and side: all sides of the first lane, then all sides of the next, and so on.

    Parameters
    ----------
    sides : tuple of Side
        Sides that the fit needs.
    sources : tuple
        Parts of the frame.
    numbers : callable
        Returns the entries of a part with numbered ids (`NumberedEntries`). Picklable.
    lanes : int or None
        Lanes that it has been cut for.
    cuts : dict of str to ndarray
        Last id of each lane's range but the last one's, by space.
    groups : tuple of range
        Lanes whose blocks are made together.
    n_cut : int
        Lazy entries that it has been cut of.
    """

    sides: tuple[EntrySide, ...] = ()
    sources: tuple[Any, ...] = ()
    numbers: Callable[[Any], NumberedEntries] | None = None
    lanes: int | None = None
    cuts: dict[str, Any] = field(default_factory=dict)
    groups: tuple[range, ...] = ()
    n_cut: int = 0
    #: Parts are whole blocks of lanes.
    has_lane_blocks = True

    @classmethod
    def of(
        cls, kind: Any, sources: Sequence[Any], numbers: Any, sides: Sequence[EntrySide]
    ) -> KeyedCollection:
        """Return the entries of parts of a frame, in memory or lazy."""
        return cls(kind, [], (), None, None, tensors=True, sides=tuple(sides),
                   sources=tuple(sources), numbers=numbers)  # fmt: skip

    @property
    def n_entries(self) -> int:
        """Return the number of entries in memory."""
        return sum(map(len, self.sources))

    @property
    def nbytes(self) -> list[float] | None:
        """Return zeros: all blocks come of one exchange, and are made together."""
        return [0.0] * len(self.parts)

    @property
    def bundles(self) -> list[tuple[int, ...]]:
        """Return groups of blocks that one task makes, of the same parcels."""
        n = len(self.sides)
        return [
            tuple(range(some.start * n + at, some.stop * n, n))
            for at in range(n)
            for some in self.groups
        ]

    @property
    def bundles_at_once(self) -> int | None:
        """Return the bundles of one side where both would fill the workers, else None."""
        return len(self.groups) if self.n_cut >= _MIN_WAVE_ENTRIES else None

    def share(self, number: int) -> tuple[int, int] | None:
        """Return the group of a block's lane: one worker makes the blocks of all its sides."""
        lane = number // len(self.sides)
        return next(g for g, some in enumerate(self.groups) if lane in some), len(self.groups)

    @property
    def block_maker(self) -> Callable[..., KeyedBlock]:
        """Return the function that makes a block of its group's parcels."""
        return (
            _return_block
            if self.kind == "memory"
            else partial(_make_keyed_block, self.sides, self.cuts)
        )

    def cut(self, n_lanes: int, n_groups: int = 1, hold: PartHolder | None = None) -> Collection:
        """Cut the entries by ranges of keys."""
        assert self.numbers is not None
        n_groups = min(n_groups, n_lanes)
        # Groups of neighbouring lanes, nearly equal in number.
        edges = [g * n_lanes // n_groups for g in range(n_groups + 1)]
        groups = tuple(range(a, b) for a, b in pairwise(edges))
        n_cut = 0
        if self.kind == "memory":
            parts = [self.numbers(source) for source in self.sources]
            # The same steps as on a cluster, in one process: number, sample, cut, and build each
            # block.
            cuts = cut.choose_cuts([cut.sample_ids(part, self.sides) for part in parts], n_lanes)
            made: list[Any] = [None] * (n_lanes * len(self.sides))
            for at, side in enumerate(self.sides):
                own = cuts[side.rows]
                whole = cut.make_parcels(range(len(parts)), parts, side, own, [range(n_lanes)])
                for i in range(at, len(made), len(self.sides)):
                    made[i] = cut.build_block(i, whole, self.sides, cuts)
        else:
            # Workers number and hold the parts first: each part is then read once for all sides.
            held, sizes, cuts = self.numbered(n_lanes, hold)
            parcels, n_cut = _build_parcels(held, sizes, self.sides, cuts, groups), sum(sizes)
            made = [some[g] for g, lanes in enumerate(groups) for _ in lanes for some in parcels]
        found = [(one, None, None) for one in made]
        return replace(self, parts=found, lanes=n_lanes, cuts=cuts, groups=groups, n_cut=n_cut)

    def numbered(
        self, n_ranges: int, hold: PartHolder | None
    ) -> tuple[WorkerHeldParts, list[int], dict[str, Any]]:
        """Return lazy parts with numbered ids, their sizes, and the cuts of key ranges."""
        assert self.numbers is not None
        assert hold is not None
        tasks = TaskBuilder(self.sources)
        held = hold(tasks.lazy([tasks(self.numbers, source.key) for source in self.sources]))
        # Only samples of the ids come to the client, which chooses the cuts.
        told = held.ask(_SampleIds(self.sides))
        return held, [n for n, _ in told], cut.choose_cuts([some for _, some in told], n_ranges)


@dataclass(frozen=True)
class _SampleIds:
    """Entries of a part, and `sample_of` for some sides."""

    sides: tuple[EntrySide, ...]

    def __call__(self, part: NumberedEntries) -> tuple[int, Any]:
        return len(part), cut.sample_ids(part, self.sides)


def _make_keyed_block(
    sides: Sequence[EntrySide], cuts: dict[str, Any], index: int, parcels: Any, *_: Any, **__: Any
) -> KeyedBlock:
    return cut.build_block(index, parcels, sides, cuts)


def _return_block(index: int, block: KeyedBlock, *_: Any, **__: Any) -> KeyedBlock:
    return block


def _build_parcels(
    held: WorkerHeldParts, sizes: Sequence[int], sides: Sequence[EntrySide], cuts: dict[str, Any],
    groups: Sequence[range],
) -> list[list[list[Delayed]]]:  # fmt: skip
    """Return the parcels of each group, by side, each made of parts that one worker holds.

    Tasks grow with the holders times the groups; where these are many, parcels go by way of as
    many tasks as there are holders, each of which sorts for some of the groups.
    """
    tasks = TaskBuilder(held.parts)
    # A task cuts parts that one worker holds, so that no part moves whole.
    together = [some for own in held.together() for some in _batch_parts(own, sizes)]
    found = [
        _build_side_parcels(tasks, held, together, side, cuts[side.rows], groups) for side in sides
    ]
    lazy = iter(tasks.lazy([key for by in found for some in by for key in some]))
    return [[[next(lazy) for _ in some] for some in by] for by in found]


def _batch_parts(own: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Return lists of parts, each of few enough entries for one task."""
    found: list[list[int]] = []
    room = 0
    for i in own:
        if not found or sizes[i] > room:
            found.append([])
            room = _MAX_TASK_ENTRIES
        found[-1].append(i)
        room -= sizes[i]
    return found


def _build_side_parcels(
    tasks: TaskBuilder, held: WorkerHeldParts, together: Sequence[list[int]], side: EntrySide,
    cuts: Any, groups: Sequence[range],
) -> list[list[Any]]:  # fmt: skip
    """Return the keys of the parcels of each group, on one side."""
    # Two hops of about sqrt(groups) parcels each in the place of one of all groups.
    step = math.isqrt(len(groups) - 1) + 1 if len(groups) > _MAX_DIRECT_GROUPS else 1
    joint = [range(some[0].start, some[-1].stop) for some in _split_in_steps(groups, step)]
    found: list[list[Any]] = [[] for _ in joint]
    for numbers in together:
        keys = [held.parts[i].key for i in numbers]
        made = tasks(cut.make_parcels, numbers, keys, side, cuts, joint)
        for at, some in enumerate(found):
            some.append(tasks(get_item, made, at))
    if step == 1:
        return found
    return [
        ways
        for some, parcels in zip(_split_in_steps(groups, step), found, strict=True)
        for ways in _build_sorted_parcels(tasks, parcels, some, step)
    ]


def _build_sorted_parcels(
    tasks: TaskBuilder, parcels: list[Any], groups: Sequence[range], step: int
) -> list[list[Any]]:
    """Return parcels by group, sorted by tasks each of which takes those of several holders."""
    sorted_ = [tasks(cut.sort_parcels, some, groups) for some in _split_in_steps(parcels, step)]
    return [[tasks(get_item, made, at) for made in sorted_] for at in range(len(groups))]


def _split_in_steps(things: Sequence[Any], step: int) -> list[Any]:
    return [things[at : at + step] for at in range(0, len(things), step)]


class TaskBuilder:
    """Makes tasks of calls; a result is known by its key.

    Parameters
    ----------
    sources : sequence of Delayed
        That arguments may name.
    """

    def __init__(self, sources: Sequence[Any]) -> None:
        self._sources = sources
        self._name = f"keyed-{uuid.uuid4().hex}"
        self._graph: dict[Any, Any] = {}

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        # Dask's dashboard groups tasks by the part of a key before the first dash.
        name = getattr(function, "__name__", type(function).__name__).strip("_").lower()
        key = f"{name}-{self._name}-{len(self._graph)}"
        self._graph[key] = (function, *args)
        return key

    def lazy(self, keys: Sequence[Any]) -> list[Delayed]:
        """Return some results as delayed objects, which share one graph."""
        known = {*self._graph, *(source.key for source in self._sources)}
        # Tuples name other tasks by their keys; Dask resolves these in the format of today.
        tasks = convert_legacy_graph(self._graph, known)
        graph = HighLevelGraph.from_collections(self._name, tasks, dependencies=self._sources)
        return [Delayed(key, graph, layer=self._name) for key in keys]


def get_item(things: Sequence[Any], at: int) -> Any:
    """Return one item of a sequence, as a task of its own."""
    return things[at]


@dataclass(frozen=True, eq=False)
class LoneKeys:
    """Keys that there are, whether they have entries or not."""

    ids: NDArray[Any]

    def __len__(self) -> int:
        return 0


@dataclass(frozen=True)
class EntryColumns:
    """Columns of a frame of entries.

    Parameters
    ----------
    first, second : str
        Of the keys.
    value : str or None
        None: all values are 1.
    least : float or None
        Of the values; None: any finite number.
    shared : bool
        Whether both keys are of one space.
    """

    first: Any
    second: Any
    value: Any = None
    least: float | None = None
    shared: bool = False

    def __call__(self, part: Any) -> NumberedEntries:
        """Number a part of the frame, or keys without entries."""
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
        given = np.asarray(values)
        # Complex numbers, spans and dates would convert with a part lost, or to nanoseconds.
        if given.dtype.kind in "cmM":
            raise TypeError(f"they are of the type {given.dtype}")
        found = given.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidDataError(
            f"Column {name!r} holds what is no number ({error}). Give numbers: "
            f"frame[{name!r}].astype(float); drop rows with missing values."
        ) from error
    if not np.isfinite(found).all():
        wrong = int((~np.isfinite(found)).sum())
        raise InvalidDataError(
            f"Column {name!r} holds NaN or infinity ({wrong} of {len(found)} rows). Drop such "
            f"rows: frame.dropna(subset=[{name!r}])."
        )
    if least is not None and len(found) and found.min() < least:
        raise InvalidDataError(
            f"Column {name!r} holds {found.min():g}, and must be at least {least:g}. Drop such "
            "rows, or shift or clip them."
        )
    return found


def read_frame_entries(
    frame: Any, columns: EntryColumns, sides: Sequence[EntrySide], more: NDArray[Any] | None = None
) -> KeyedCollection:
    """Return the entries of a pandas or Dask dataframe."""
    if not is_dataframe_like(frame):
        raise InvalidDataError(
            f"{type(frame).__name__} is no frame. Give a pandas or Dask dataframe with a row "
            f"for each entry: columns {columns.first!r} and {columns.second!r}."
        )
    names = [name for name in (columns.first, columns.second, columns.value) if name is not None]
    if missing := [name for name in names if name not in frame.columns]:
        raise InvalidDataError(
            f"The frame has no column {' and '.join(map(repr, missing))}; it has "
            f"{list(frame.columns)}. Name the columns that hold the keys and the value."
        )
    alone = [] if more is None else [LoneKeys(more)]
    if is_dask_frame(frame):
        sources = [*lower_partitions(frame[names]), *(delayed(part, pure=False) for part in alone)]
        return KeyedCollection.of("dask", sources, columns, sides)
    if not len(frame) and not alone:
        raise InvalidDataError("The frame has no rows. Look at the file or the filter it is from.")
    return KeyedCollection.of("memory", [frame[names], *alone], columns, sides)


@dataclass(frozen=True)
class _MatrixCells:
    """Stored cells of some rows of a sparse matrix: keys are positions."""

    shape: tuple[int, int]
    least: float | None

    def __call__(self, part: tuple[int, Any]) -> NumberedEntries:
        start, matrix = part
        _check_sparse(matrix)
        cells = matrix.tocoo()
        values = convert_values(cells.data, "value", self.least)
        rows, columns = (cells.row + start).astype(np.int64), cells.col.astype(np.int64)
        return number_part(rows, columns, values, shared=False)


def read_matrix_entries(
    matrix: Any, sides: Sequence[EntrySide], least: float | None = None
) -> KeyedCollection:
    """Return the stored cells of a scipy.sparse matrix, or of a dask Array with such chunks.

    Keys are the positions of rows and columns that have a cell.
    """
    if isinstance(matrix, da.Array):
        if matrix.ndim != 2 or np.isnan(matrix.chunks[0]).any():
            raise InvalidDataError(
                "The rows of a dask Array of unknown chunk sizes have no numbers. Call "
                "compute_chunk_sizes() first."
            )
        whole = matrix.rechunk({1: -1}) if matrix.numblocks[1] > 1 else matrix
        # Row numbers go through all chunks: each task is told where its chunk begins.
        starts = np.cumsum([0, *whole.chunks[0][:-1]]).tolist()
        pair = delayed(_make_pair, pure=False)
        chunks = whole.to_delayed().ravel().tolist()
        sources = [pair(start, chunk) for start, chunk in zip(starts, chunks, strict=True)]
        return KeyedCollection.of("dask", sources, _MatrixCells(matrix.shape, least), sides)
    _check_sparse(matrix)
    return KeyedCollection.of("memory", [(0, matrix)], _MatrixCells(matrix.shape, least), sides)


def _check_sparse(matrix: Any) -> None:
    if not hasattr(matrix, "tocoo"):
        raise InvalidDataError(
            f"{type(matrix).__name__} is neither a frame nor a sparse matrix. Give a pandas or "
            "Dask dataframe, scipy.sparse, or a dask Array with chunks of scipy.sparse, such as "
            "X.map_blocks(scipy.sparse.csr_matrix)."
        )


def _make_pair(start: int, chunk: Any) -> tuple[int, Any]:
    return start, chunk


Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class NumberedPairs(Collection):
    """Rows of two numbers: of a first key among all first ones, of a second after all of these.

    Parameters
    ----------
    ids : tuple of (first, second)
        Sorted ids of either kind: number i is that of the ith.
    """

    ids: tuple[Array, Array] = field(default=(np.empty(0), np.empty(0)))


@dataclass(frozen=True, eq=False)
class PairCollection(KeyedCollection):
    """Entries whose keys are numbered where they lie; its sides are those of the two keys."""

    def cut(self, n_lanes: int, n_groups: int = 1, hold: PartHolder | None = None) -> NumberedPairs:
        """Number the keys, of which a part's worker has those of its own entries alone."""
        assert self.numbers is not None
        if self.kind == "memory":
            (source,) = self.sources
            part = self.numbers(source)
            # Refuses a part without entries, in the words for all of them.
            cut.choose_cuts([cut.sample_ids(part, self.sides)], 1)
            # In memory the positions of the ids are their numbers already.
            n, m = (len(ids) for ids in part.ids)
            rows = _number_rows(part, [np.arange(n)], [np.arange(m)], n, m)
            return _make_pair_collection("memory", [rows], [len(rows[0])], part.ids)
        assert hold is not None
        given, _, cuts = self.numbered(min(n_groups, n_lanes), hold)
        held = given.parts
        by = [(at, cuts[side.rows]) for at, side in enumerate(self.sides)]
        tasks = TaskBuilder(held)
        made = [_build_table_tasks(tasks, held, *one) for one in by]
        # Workers make and hold the tables of all ids, a range each; the client sees the ids once,
        # for the fitted attributes.
        kept = hold(tasks.lazy(list(chain.from_iterable(made))))
        tables, found = kept.parts, kept.ask(_get_ids)
        n = len(tables) // 2
        tasks = TaskBuilder([*held, *tables])
        ids, numbers = [], []
        for at, own in by:
            some = found[at * n : (at + 1) * n]
            ids.append(np.concatenate([part for part in some if len(part)]))
            numbers.append(
                _build_number_tasks(tasks, held, at, own, tables[at * n : (at + 1) * n], some)
            )
        lazy = []
        for part, first, second in zip(held, *numbers, strict=True):
            rows = tasks(_number_rows, part.key, first, second, len(ids[0]), len(ids[1]))
            lazy += [tasks(get_item, rows, 0), tasks(get_item, rows, 1)]
        columns = tasks.lazy(lazy)
        pairs = list(zip(columns[::2], columns[1::2], strict=True))
        return _make_pair_collection("dask", pairs, None, (ids[0], ids[1]))


def _make_pair_collection(
    kind: Any, pairs: Sequence[Any], row_counts: list[int] | None, ids: tuple[Array, Array]
) -> NumberedPairs:
    parts = [(X, y, None) for X, y in pairs]
    return NumberedPairs(kind, parts, (2,), None, row_counts, tensors=True, ids=ids)


def _build_key_tasks(
    tasks: TaskBuilder, held: Sequence[Delayed], by: int, cuts: Array
) -> list[list[Any]]:
    """Return keys of each part's own first or second ids, by range."""
    found = [tasks(cut.split_keys, part.key, by, cuts) for part in held]
    return [[tasks(get_item, key, r) for r in range(len(cuts) + 1)] for key in found]


def _build_table_tasks(
    tasks: TaskBuilder, held: Sequence[Delayed], by: int, cuts: Array
) -> list[Any]:
    """Return keys of the first or second ids of all parts, by range."""
    return [
        tasks(cut.merge_key_tables, list(own))
        for own in zip(*_build_key_tasks(tasks, held, by, cuts), strict=True)
    ]


def _build_number_tasks(
    tasks: TaskBuilder, held: Sequence[Delayed], by: int, cuts: Array, tables: Sequence[Delayed],
    ids: Sequence[Array],
) -> list[list[Any]]:  # fmt: skip
    """Return keys of the numbers of each part's own first or second ids, by range."""
    first = [0, *accumulate(map(len, ids))]
    return [
        [tasks(_number_ids, first[r], tables[r].key, key) for r, key in enumerate(own)]
        for own in _build_key_tasks(tasks, held, by, cuts)
    ]


def _get_ids(table: KeyTable) -> Array:
    return table.ids


def _number_ids(first: int, table: KeyTable, own: KeyTable) -> NDArray[np.int64]:
    """Return the numbers of ids of a range, whose first one has the number `first`."""
    return IdLookup(table.ids)(own.ids).astype(np.int64) + first


def _number_rows(
    part: NumberedEntries,
    first: Sequence[Array],
    second: Sequence[Array],
    n_first: int,
    n_second: int,
) -> tuple[Array, Array]:
    """Return the numbers of the keys of a part's entries, and the values."""
    # Half the memory where the numbers fit.
    kind = np.int32 if n_first + n_second < 2**31 else np.int64
    rows = np.empty((len(part.codes[0]), 2), kind)
    rows[:, 0] = np.concatenate(first)[part.codes[0]]
    rows[:, 1] = np.concatenate(second)[part.codes[1]] + n_first
    values = np.ones(len(rows)) if part.values is None else part.values.astype(np.float64)
    return rows, values
