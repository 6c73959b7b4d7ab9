"""Facts that a worker tells the client of a fit as soon as it knows them.

Dask tells of the end of a task by way of the scheduler, in batches, and what it has made is asked
for after that. A short fit is over sooner where the client asks first, and the worker waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from daskml_dist.comm.base import Endpoint
from daskml_dist.data.blocks import BlockInfo
from daskml_dist.training.dask_internals import actor_at, in_memory, until_made

__all__ = ["note_end", "tell_bundles", "tell_results"]

#: Seconds in which a task returns that has said that it is about to.
_RETURN = 0.05

#: What is set when a trainer of a run ends, for each run and worker that is asked.
_ends: dict[tuple[str, str], asyncio.Event] = {}
#: The last ones that have ended: the question may come after that.
_ended: deque[tuple[str, str]] = deque(maxlen=256)


async def tell_bundles(
    asked: Mapping[str, tuple[list[Any], str | None]], wait: float, dask_worker: Any
) -> tuple[list[dict[int, BlockInfo]], Endpoint | None]:
    """Facts of the blocks of some bundles on this worker, and where an actor of it listens.

    Parameters
    ----------
    asked : mapping of worker to (list of keys, key or None)
        Bundles, of which it tells those in its memory; and the actor.
    wait : float
        Seconds for which it waits until all are made.
    """
    keys, actor = asked[dask_worker.address]
    await until_made(dask_worker, [*keys, *([actor] if actor else [])], wait)
    host = actor_at(dask_worker, actor)
    endpoint = None if host is None else await host.endpoint()
    return [bundle.infos for bundle in in_memory(dask_worker, keys).values()], endpoint


async def tell_results(
    asked: Mapping[str, list[Any]], run_id: str, wait: float, dask_worker: Any
) -> dict[Any, Any]:
    """Results of trainers of a run on this worker, by their keys; none of those that take longer.

    Parameters
    ----------
    asked : mapping of worker to list of keys
        The trainers' tasks.
    run_id : str
    wait : float
        Seconds for which it waits for their end.
    """
    name, keys = (run_id, dask_worker.address), asked[dask_worker.address]
    ended = _ends.setdefault(name, asyncio.Event())
    try:
        if name not in _ended:
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), wait)
    finally:
        _ends.pop(name, None)
    await until_made(dask_worker, keys, _RETURN)
    return in_memory(dask_worker, keys)


def note_end(worker: Any, run_id: str) -> None:
    """Say, in any thread, that a trainer of a run is about to return, or that the run is over."""
    name = run_id, worker.address

    def say() -> None:
        _ended.append(name)
        if (ended := _ends.get(name)) is not None:
            ended.set()

    with suppress(Exception):  # the worker itself is closing
        worker.loop.add_callback(say)
