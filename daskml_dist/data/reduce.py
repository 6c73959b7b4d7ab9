"""Statistics over collections: one summary a block, made where its rows lie, merged in a tree.

And states that blocks change one after the other, where their order matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import dask.array as da
from dask.delayed import Delayed, delayed

from daskml_dist.data.collection import Collection
from daskml_dist.data.computing import tried
from daskml_dist.data.conversion import as_array_block
from daskml_dist.data.unread import marking_own, naming_blocks

__all__ = ["fold_parts", "lazily_reduced", "reduce_parts"]

S = TypeVar("S")

_NAMES = ("X", "y", "sample_weight")
#: Summaries that one task merges.
_FAN_IN = 16


def reduce_parts(
    collection: Collection,
    summarise: Callable[..., S],
    merge: Callable[[list[S]], S],
    *shared: Any,
) -> S:
    """Summarise every part of a collection and merge the summaries; one pass, nothing gathered.

    Parameters
    ----------
    collection : Collection
    summarise : callable
        Takes (index, X, y, sample_weight) of a part, as the user passed it, and returns a
        summary. Picklable.
    merge : callable
        Makes one summary of a list of one or more, which follow each other in the order of the
        parts. Associative. Picklable.
    *shared : object or dask.delayed.Delayed
        Further arguments of `summarise`, the same for all parts.

    Returns
    -------
    object
        The summary of all parts, the same whatever the workers.

    Raises
    ------
    InvalidDataError
        Names the block that cannot be read.
    """
    if collection.kind == "memory":
        return merge([summarise(i, *part, *shared) for i, part in enumerate(collection.parts)])
    with naming_blocks(collection.parts):
        result: S = tried(
            lambda name: _merged(name, collection, summarise, merge, shared), len(collection.parts)
        )
    return result


def lazily_reduced(
    collection: Collection,
    summarise: Callable[..., S],
    merge: Callable[[list[S]], S],
    finish: Callable[[S], Any],
) -> Delayed:
    """Make the summary of :func:`reduce_parts` lazy, and what `finish` makes of it.

    Of a collection on Dask. Several such values are computed together in one pass, where the user
    computes them at once; who does so sees Dask's own errors of blocks that cannot be read.
    """
    name = f"block-{uuid4().hex}"
    whole = _merged(name, collection, summarise, merge, ())
    result: Delayed = _task(finish)(whole)
    return result


def fold_parts(
    collection: Collection,
    step: Callable[[S, int, Any, Any, Any], S],
    state: S,
    order: Iterable[int] | None = None,
) -> S:
    """Let the parts of a collection change a state, one after the other, each where its rows lie.

    Parameters
    ----------
    collection : Collection
    step : callable
        Takes the state, which it may not change in place, and (index, X, y, sample_weight) of a
        part; returns the next. Picklable.
    state : object
        Picklable and small: it goes from worker to worker.
    order : iterable of int, optional
        Numbers of the parts in the order in which they are taken; by default their own.

    Returns
    -------
    object
        The state after the last part.

    Raises
    ------
    InvalidDataError
        Names the block that cannot be read.
    """
    numbers = range(len(collection.parts)) if order is None else list(order)
    if collection.kind == "memory":
        for i in numbers:
            state = step(state, i, *collection.parts[i])
        return state
    with naming_blocks(collection.parts):
        result: S = tried(
            lambda name: _folded(name, collection, step, state, numbers), len(collection.parts)
        )
    return result


def _folded(
    name: str, collection: Collection, step: Any, state: Any, numbers: Iterable[int]
) -> Any:
    """The last state, lazy."""
    step = _OfArrays(step, _are_arrays(collection), first=2)
    one, last = _task(step), delayed(state, pure=False)
    for i in numbers:
        last = one(last, i, *collection.parts[i], dask_key_name=(name, i))
    return last


def _merged(name: str, collection: Collection, summarise: Any, merge: Any, shared: Any) -> Any:
    """The summary of all parts, lazy."""
    summarise = _OfArrays(summarise, _are_arrays(collection), first=1)
    one, join = _task(summarise), _task(merge)
    level = [
        one(i, *part, *shared, dask_key_name=(name, i)) for i, part in enumerate(collection.parts)
    ]
    while True:
        level = [join(level[i : i + _FAN_IN]) for i in range(0, len(level), _FAN_IN)]
        if len(level) == 1:
            return level[0]


def _are_arrays(collection: Collection) -> tuple[bool, ...]:
    """Return for each of X, y and sample_weight whether its parts are chunks of a Dask Array."""
    return tuple(isinstance(values, da.Array) for values in collection.inputs)


@dataclass(frozen=True)
class _OfArrays:
    """Function of a part whose chunks of Dask Arrays have a shape, though the user's are lists.

    Parameters
    ----------
    function : callable
    are_arrays : tuple of bool
        For X, y and sample_weight.
    first : int
        Place of X among the arguments, right behind the number of the part.
    """

    function: Callable[..., Any]
    are_arrays: tuple[bool, ...]
    first: int

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        found = list(args)
        for at, (name, is_array) in enumerate(zip(_NAMES, self.are_arrays, strict=True)):
            if is_array:
                place = self.first + at
                found[place] = as_array_block(args[place], name, args[self.first - 1])
        return self.function(*found)


def _task(function: Callable[..., Any]) -> Any:
    return delayed(partial(marking_own, function), pure=False)
