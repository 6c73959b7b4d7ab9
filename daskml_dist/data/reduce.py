"""Statistics over collections: one summary a block, made where its rows lie, merged in a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import dask
from dask.base import compute, get_scheduler
from dask.delayed import delayed

from daskml_dist.data.collection import Collection
from daskml_dist.data.waiting import tell_releases, wait_for_workers, watched
from daskml_dist.errors import DataLostError

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
            result: S = _computed(_merged(collection, summarise, merge))
            return result
        except Exception as error:
            name = type(error).__name__
            if name == "FutureCancelledError":
                raise DataLostError(
                    "Rows are not there any more. Nothing can make again what was scattered, and "
                    "what was persisted is held by the collection that persist() returned, not by "
                    f"parts of it: keep that, or read the rows from storage. ({error})"
                ) from error
            # Dask gives a task up while whose work workers died again and again; by any cause.
            if not left or name != "KilledWorker":
                raise
    raise AssertionError


def _computed(lazy: Any) -> Any:
    """A value that Dask computes, by a client's cluster where there is a client.

    Dask itself would wait for workers for ever, and say nothing.
    """
    client = _client()
    if client is None:
        return compute(lazy)[0]

    def workers() -> list[dict[str, Any]]:
        return list(client.scheduler_info(n_workers=-1)["workers"].values())

    timeout = float(dask.config.get("daskml_dist.timeout", 300.0))
    wait_for_workers(client, workers, timeout)
    try:
        with watched(client, workers, timeout, lazy.key):
            return compute(lazy)[0]
    finally:
        tell_releases(client)


def _client() -> Any:
    """The client that Dask computes by, or None."""
    client = getattr(get_scheduler(), "__self__", None)
    return client if getattr(client, "status", "") == "running" else None  # else Dask says so


def _merged(collection: Collection, summarise: Any, merge: Any) -> Any:
    """The summary of all parts, lazy."""
    one, join = delayed(summarise, pure=False), delayed(merge, pure=False)
    level = [one(i, *part) for i, part in enumerate(collection.parts)]
    while True:
        level = [join(level[i : i + _FAN_IN]) for i in range(0, len(level), _FAN_IN)]
        if len(level) == 1:
            return level[0]
