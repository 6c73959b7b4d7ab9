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
    one, join = delayed(summarise, pure=False), delayed(merge, pure=False)
    level = [one(i, *part) for i, part in enumerate(collection.parts)]
    while True:
        level = [join(level[i : i + _FAN_IN]) for i in range(0, len(level), _FAN_IN)]
        if len(level) == 1:
            result: tuple[S] = compute(level[0])
            return result[0]
