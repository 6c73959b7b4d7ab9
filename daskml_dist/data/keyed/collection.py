"""`KeyedCollection`: entries of two keys and a value, which lanes hold by ranges of keys."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dask._task_spec import convert_legacy_graph
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from daskml_dist.data.collection import Collection
from daskml_dist.data.keyed import cut
from daskml_dist.data.keyed.blocks import KeyedBlock
from daskml_dist.data.keyed.cut import Numbered
from daskml_dist.solvers.keyed import Side

__all__ = ["Holder", "KeyedCollection", "Tasks", "item"]


class Holder(Protocol):
    """Whoever makes parts of a lazy collection and holds them."""

    def __call__(self, lazy: list[Delayed]) -> tuple[list[Delayed], Callable[[Any], list[Any]]]:
        """Parts that are held from now on, and what maps a function over them."""


@dataclass(frozen=True, eq=False)
class KeyedCollection(Collection):
    """Entries of a fit over keys.

    It begins with parts of a frame as `numbers` numbers them; :meth:`cut` makes of these a block
    for each lane and side: all sides of the first lane, then those of the next, and so on.

    Parameters
    ----------
    sides : tuple of Side
        Those that the fit needs.
    sources : tuple
        Parts of the frame.
    numbers : callable
        Numbers one of them (`Numbered`). Picklable.
    lanes : int or None
        Lanes that it has been cut for.
    """

    sides: tuple[Side, ...] = ()
    sources: tuple[Any, ...] = ()
    numbers: Callable[[Any], Numbered] | None = None
    lanes: int | None = None

    @classmethod
    def of(
        cls, kind: Any, sources: Sequence[Any], numbers: Any, sides: Sequence[Side]
    ) -> KeyedCollection:
        """Entries of parts of a frame, in memory or lazy."""
        return cls(kind, [], (), None, None, tensors=True, sides=tuple(sides),
                   sources=tuple(sources), numbers=numbers)  # fmt: skip

    @property
    def n_entries(self) -> int:
        """Entries in memory."""
        return sum(map(len, self.sources))

    @property
    def by_lane(self) -> bool:
        """Whether parts are whole blocks of lanes."""
        return True

    @property
    def nbytes(self) -> list[float] | None:
        """Nothing: all blocks come of one exchange, and are made together."""
        return [0.0] * len(self.parts)

    @property
    def block_maker(self) -> Callable[..., KeyedBlock]:
        """The block itself."""
        return _as_it_is

    def cut(self, n_lanes: int | None, hold: Holder) -> Collection:
        """Cut the entries by ranges of keys.

        Parameters
        ----------
        n_lanes : int or None
            None: as many as `hold` has threads.
        hold : Holder
            Of lazy parts.
        """
        assert self.numbers is not None
        if self.kind == "memory":
            parts = [self.numbers(source) for source in self.sources]
            samples = [cut.sample_of(part, self.sides) for part in parts]
            blocks = _cut(_Here(), parts, self.sides, cut.cuts_of(samples, n_lanes or 1))
        else:
            held, cuts = self.numbered(n_lanes or 1, hold)
            tasks = Tasks(held)
            keys = _cut(tasks, [part.key for part in held], self.sides, cuts)
            blocks = tasks.lazy(keys)
        return replace(self, parts=[(block, None, None) for block in blocks], lanes=n_lanes or 1)

    def numbered(self, n_ranges: int, hold: Holder) -> tuple[list[Delayed], dict[str, Any]]:
        """Lazy parts as `numbers` numbers them, held; and where ranges of their keys are cut."""
        assert self.numbers is not None
        tasks = Tasks(self.sources)
        lazy = tasks.lazy([tasks(self.numbers, source.key) for source in self.sources])
        held, ask = hold(lazy)
        return held, cut.cuts_of(ask(_Sample(self.sides)), n_ranges)


@dataclass(frozen=True)
class _Sample:
    """`sample_of` for some sides."""

    sides: tuple[Side, ...]

    def __call__(self, part: Numbered) -> Any:
        return cut.sample_of(part, self.sides)


def _as_it_is(index: int, block: KeyedBlock, *_: Any, **__: Any) -> KeyedBlock:
    return block


class _Here:
    """Calls functions at once."""

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


class Tasks:
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
        name = getattr(function, "__name__", type(function).__name__).strip("_").lower()
        key = f"{name}-{self._name}-{len(self._graph)}"
        self._graph[key] = (function, *args)
        return key

    def lazy(self, keys: Sequence[Any]) -> list[Delayed]:
        """Some results, which share one graph."""
        known = {*self._graph, *(source.key for source in self._sources)}
        tasks = convert_legacy_graph(self._graph, known)
        graph = HighLevelGraph.from_collections(self._name, tasks, dependencies=self._sources)
        return [Delayed(key, graph, layer=self._name) for key in keys]


def item(things: Sequence[Any], at: int) -> Any:
    return things[at]


def _size(table: Any) -> int:
    return len(table.ids)


def _cut(do: Any, parts: list[Any], sides: Sequence[Side], cuts: dict[str, Any]) -> list[Any]:
    """Blocks of all lanes, of numbered parts; `do` calls a function or makes a task of it."""
    spaces = list(cuts)
    n = len(cuts[spaces[0]]) + 1
    tables, sizes = {}, {}
    for space in spaces:
        # First and second keys share a space, or are of one each.
        bys = sorted({s.by for s in sides if s.rows == space} |
                     {1 - s.by for s in sides if s.columns == space})  # fmt: skip
        keys = [do(cut.keys_of, part, bys, cuts[space]) for part in parts]
        tables[space] = [do(cut.table_of, [do(item, key, r) for key in keys]) for r in range(n)]
        sizes[space] = [do(_size, table) for table in tables[space]]
    blocks: dict[tuple[int, int], Any] = {}
    for at, side in enumerate(sides):
        pieces = [do(cut.pieces_of, part, side.by, cuts[side.rows]) for part in parts]
        for r in range(n):
            own = [do(item, some, r) for some in pieces]
            half = do(cut.half_of, tables[side.rows][r], own)
            columns = do(cut.columns_of, half, cuts[side.columns])
            numbers = [
                do(cut.numbers_of, table, do(item, columns, q))
                for q, table in enumerate(tables[side.columns])
            ]
            blocks[r, at] = do(
                cut.block_of, side, r, tables[side.rows][r], half, numbers,
                sizes[side.rows], sizes[side.columns], len(sides), at,
            )  # fmt: skip
    return [blocks[key] for key in sorted(blocks)]
