"""`KeyedCollection`: entries of two keys and a value, which lanes hold by ranges of keys."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

from dask._task_spec import convert_legacy_graph
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from daskml_dist.data.collection import Collection
from daskml_dist.data.keyed import cut
from daskml_dist.data.keyed.blocks import KeyedBlock
from daskml_dist.data.keyed.cut import Numbered
from daskml_dist.solvers.keyed import Side

__all__ = ["Held", "Holder", "KeyedCollection", "Tasks", "item"]


#: Groups of ranges from which on parcels go by way of others: a part has few of them then.
_MANY = 16
#: Entries that a task cuts at most, but those of one part.
_BATCH = 1 << 20
#: Entries from which blocks of one side are made after those of the other.
_WAVES = 1 << 22


class Held(Protocol):
    """Parts of a lazy collection that workers hold."""

    parts: list[Delayed]

    def ask(self, function: Callable[[Any], Any]) -> list[Any]:
        """Results of a picklable function of each part."""

    def together(self) -> list[list[int]]:
        """Positions of the parts that each worker holds."""


#: Makes parts of a lazy collection, and holds them.
Holder = Callable[[list[Delayed]], Held]


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
    cuts : dict of str to ndarray
        Last id of each lane's range but the last one's, by space.
    groups : tuple of range
        Lanes whose blocks are made together.
    n_cut : int
        Lazy entries that it has been cut of.
    """

    sides: tuple[Side, ...] = ()
    sources: tuple[Any, ...] = ()
    numbers: Callable[[Any], Numbered] | None = None
    lanes: int | None = None
    cuts: dict[str, Any] = field(default_factory=dict)
    groups: tuple[range, ...] = ()
    n_cut: int = 0

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
    def bundles(self) -> list[tuple[int, ...]]:
        """Blocks that are made together, of the same parcels."""
        n = len(self.sides)
        return [
            tuple(range(some.start * n + at, some.stop * n, n))
            for at in range(n)
            for some in self.groups
        ]

    @property
    def wave(self) -> int | None:
        """Those of one side, where the parcels of both would fill the workers."""
        return len(self.groups) if self.n_cut >= _WAVES else None

    def share(self, number: int) -> tuple[int, int] | None:
        """Position of the group of a block's lane: one worker makes the blocks of all its sides."""
        lane = number // len(self.sides)
        return next(g for g, some in enumerate(self.groups) if lane in some), len(self.groups)

    @property
    def block_maker(self) -> Callable[..., KeyedBlock]:
        """Makes a block of the parcels of its lane's group; in memory they are blocks."""
        return _as_it_is if self.kind == "memory" else partial(_made, self.sides, self.cuts)

    def cut(self, n_lanes: int, n_groups: int = 1, hold: Holder | None = None) -> Collection:
        """Cut the entries by ranges of keys.

        Parameters
        ----------
        n_lanes : int
        n_groups : int, default=1
            Of neighbouring lanes, whose blocks one task makes.
        hold : callable
            Makes lazy parts and holds them.
        """
        assert self.numbers is not None
        n_groups = min(n_groups, n_lanes)
        edges = [g * n_lanes // n_groups for g in range(n_groups + 1)]
        groups = tuple(range(a, b) for a, b in pairwise(edges))
        n_cut = 0
        if self.kind == "memory":
            parts = [self.numbers(source) for source in self.sources]
            cuts = cut.cuts_of([cut.sample_of(part, self.sides) for part in parts], n_lanes)
            made: list[Any] = [None] * (n_lanes * len(self.sides))
            for at, side in enumerate(self.sides):
                own = cuts[side.rows]
                whole = cut.parcels_of(range(len(parts)), parts, side, own, [range(n_lanes)])
                for i in range(at, len(made), len(self.sides)):
                    made[i] = cut.block_of(i, whole, self.sides, cuts)
        else:
            held, sizes, cuts = self.numbered(n_lanes, hold)
            parcels, n_cut = _parcels(held, sizes, self.sides, cuts, groups), sum(sizes)
            made = [some[g] for g, lanes in enumerate(groups) for _ in lanes for some in parcels]
        found = [(one, None, None) for one in made]
        return replace(self, parts=found, lanes=n_lanes, cuts=cuts, groups=groups, n_cut=n_cut)

    def numbered(
        self, n_ranges: int, hold: Holder | None
    ) -> tuple[Held, list[int], dict[str, Any]]:
        """Lazy parts as `numbers` numbers them; entries of each; where ranges of keys are cut."""
        assert self.numbers is not None
        assert hold is not None
        tasks = Tasks(self.sources)
        held = hold(tasks.lazy([tasks(self.numbers, source.key) for source in self.sources]))
        told = held.ask(_Sample(self.sides))
        return held, [n for n, _ in told], cut.cuts_of([some for _, some in told], n_ranges)


@dataclass(frozen=True)
class _Sample:
    """Entries of a part, and `sample_of` for some sides."""

    sides: tuple[Side, ...]

    def __call__(self, part: Numbered) -> tuple[int, Any]:
        return len(part), cut.sample_of(part, self.sides)


def _made(
    sides: Sequence[Side], cuts: dict[str, Any], index: int, parcels: Any, *_: Any, **__: Any
) -> KeyedBlock:
    return cut.block_of(index, parcels, sides, cuts)


def _as_it_is(index: int, block: KeyedBlock, *_: Any, **__: Any) -> KeyedBlock:
    return block


def _parcels(
    held: Held, sizes: Sequence[int], sides: Sequence[Side], cuts: dict[str, Any],
    groups: Sequence[range],
) -> list[list[list[Delayed]]]:  # fmt: skip
    """The parcels of each group, by side: of some parts that a worker holds each.

    Tasks grow with the holders times the groups; where these are many, parcels go by way of as
    many tasks as there are holders, each of which sorts for some of the groups.
    """
    tasks = Tasks(held.parts)
    together = [some for own in held.together() for some in _batches(own, sizes)]
    found = [_of_side(tasks, held, together, side, cuts[side.rows], groups) for side in sides]
    lazy = iter(tasks.lazy([key for by in found for some in by for key in some]))
    return [[[next(lazy) for _ in some] for some in by] for by in found]


def _batches(own: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Some parts, in lists of few entries each."""
    found: list[list[int]] = []
    room = 0
    for i in own:
        if not found or sizes[i] > room:
            found.append([])
            room = _BATCH
        found[-1].append(i)
        room -= sizes[i]
    return found


def _of_side(
    tasks: Tasks, held: Held, together: Sequence[list[int]], side: Side, cuts: Any,
    groups: Sequence[range],
) -> list[list[Any]]:  # fmt: skip
    """Keys of the parcels of each group."""
    step = math.isqrt(len(groups) - 1) + 1 if len(groups) > _MANY else 1
    joint = [range(some[0].start, some[-1].stop) for some in _in_steps(groups, step)]
    found: list[list[Any]] = [[] for _ in joint]
    for numbers in together:
        keys = [held.parts[i].key for i in numbers]
        made = tasks(cut.parcels_of, numbers, keys, side, cuts, joint)
        for at, some in enumerate(found):
            some.append(tasks(item, made, at))
    if step == 1:
        return found
    return [
        ways
        for some, parcels in zip(_in_steps(groups, step), found, strict=True)
        for ways in _sorted_out(tasks, parcels, some, step)
    ]


def _sorted_out(
    tasks: Tasks, parcels: list[Any], groups: Sequence[range], step: int
) -> list[list[Any]]:
    """Parcels for several groups, sorted by tasks for some holders' each."""
    sorted_ = [tasks(cut.sorted_out, some, groups) for some in _in_steps(parcels, step)]
    return [[tasks(item, made, at) for made in sorted_] for at in range(len(groups))]


def _in_steps(things: Sequence[Any], step: int) -> list[Any]:
    return [things[at : at + step] for at in range(0, len(things), step)]


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
    """One of some things."""
    return things[at]
