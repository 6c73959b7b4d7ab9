"""Statistics over collections: one summary a block, made where its rows lie, merged in a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dask.base import compute
from dask.delayed import delayed

from daskml_dist.data.collection import Collection

__all__ = ["reduce_parts"]

S = TypeVar("S")

#: Summaries that one task merges.
_FAN_IN = 16
#: Times that a collection is read where Dask gives up.
_TRIES = 4


def reduce_parts(
    collection: Collection,
    summarise: Callable[[int, Any, Any, Any], S],
    merge: Callable[[list[S]], S],
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

    Returns
    -------
    object
        The summary of all parts, the same whatever the workers.
    """
    if collection.kind == "memory":
        return merge([summarise(i, *part) for i, part in enumerate(collection.parts)])
    for left in reversed(range(_TRIES)):
        try:
            result: tuple[S] = compute(_merged(collection, summarise, merge))
            return result[0]
        except Exception as error:
            # Dask gives a task up while whose work workers died again and again; by any cause.
            if not left or type(error).__name__ != "KilledWorker":
                raise
    raise AssertionError


def _merged(collection: Collection, summarise: Any, merge: Any) -> Any:
    """The summary of all parts, lazy."""
    one, join = delayed(summarise, pure=False), delayed(merge, pure=False)
    level = [one(i, *part) for i, part in enumerate(collection.parts)]
    while True:
        level = [join(level[i : i + _FAN_IN]) for i in range(0, len(level), _FAN_IN)]
        if len(level) == 1:
            return level[0]
