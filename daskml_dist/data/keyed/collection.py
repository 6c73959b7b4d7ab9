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
    """

    sides: tuple[Side, ...] = ()
    sources: tuple[Any, ...] = ()
    numbers: Callable[[Any], Numbered] | None = None
    lanes: int | None = None
    cuts: dict[str, Any] = field(default_factory=dict)
    groups: tuple[range, ...] = ()

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
        return [tuple(range(some.start * n, some.stop * n)) for some in self.groups]

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
        if self.kind == "memory":
            parts = [self.numbers(source) for source in self.sources]
            cuts = cut.cuts_of([cut.sample_of(part, self.sides) for part in parts], n_lanes)
            whole = cut.parcels_of(range(len(parts)), parts, self.sides, cuts, [range(n_lanes)])
            n_blocks = n_lanes * len(self.sides)
            made: list[Any] = [cut.block_of(i, whole, self.sides, cuts) for i in range(n_blocks)]
        else:
            held, cuts = self.numbered(n_lanes, hold)
            parcels = _parcels(held, self.sides, cuts, groups)
            made = [parcels[g] for g, lanes in enumerate(groups) for _ in lanes for _ in self.sides]
        found = [(one, None, None) for one in made]
        return replace(self, parts=found, lanes=n_lanes, cuts=cuts, groups=groups)

    def numbered(self, n_ranges: int, hold: Holder | None) -> tuple[Held, dict[str, Any]]:
        """Lazy parts as `numbers` numbers them, held; and where ranges of their keys are cut."""
        assert self.numbers is not None
        assert hold is not None
        tasks = Tasks(self.sources)
        held = hold(tasks.lazy([tasks(self.numbers, source.key) for source in self.sources]))
        return held, cut.cuts_of(held.ask(_Sample(self.sides)), n_ranges)


@dataclass(frozen=True)
class _Sample:
    """`sample_of` for some sides."""

    sides: tuple[Side, ...]

    def __call__(self, part: Numbered) -> Any:
        return cut.sample_of(part, self.sides)


def _made(
    sides: Sequence[Side], cuts: dict[str, Any], index: int, parcels: Any, *_: Any, **__: Any
) -> KeyedBlock:
    return cut.block_of(index, parcels, sides, cuts)


def _as_it_is(index: int, block: KeyedBlock, *_: Any, **__: Any) -> KeyedBlock:
    return block


def _parcels(
    held: Held, sides: Sequence[Side], cuts: dict[str, Any], groups: Sequence[range]
) -> list[list[Delayed]]:
    """The parcels of each group, of what each worker holds.

    Tasks grow with the holders times the groups; where these are many, parcels go by way of as
    many tasks as there are holders, each of which sorts for some of the groups.
    """
    tasks = Tasks(held.parts)
    step = math.isqrt(len(groups) - 1) + 1 if len(groups) > _MANY else 1
    joint = [range(some[0].start, some[-1].stop) for some in _in_steps(groups, step)]
    found: list[list[Any]] = [[] for _ in joint]
    for numbers in held.together():
        keys = [held.parts[i].key for i in numbers]
        made = tasks(cut.parcels_of, numbers, keys, sides, cuts, joint)
        for at, some in enumerate(found):
            some.append(tasks(item, made, at))
    if step > 1:
        found = [
            ways
            for some, parcels in zip(_in_steps(groups, step), found, strict=True)
            for ways in _sorted_out(tasks, parcels, some, step)
        ]
    keys = [key for some in found for key in some]
    lazy = iter(tasks.lazy(keys))
    return [[next(lazy) for _ in some] for some in found]


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
