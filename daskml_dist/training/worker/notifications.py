"""Facts that a worker tells the client of a fit as soon as it knows them.

Dask tells of the end of a task by way of the scheduler, in batches, and what it has made is asked
for after that. A short fit is over sooner where the client asks first, and the worker waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from daskml_dist.comm.base import Endpoint
from daskml_dist.dask_internals.cluster import actor_at, in_memory, memory_of, until_made
from daskml_dist.data.blocks import BlockInfo

__all__ = ["TrainerFacts", "note_end", "tell_bundles", "tell_results", "telling_facts"]


#: Seconds in which a task returns that has said that it is about to.
_RETURN = 0.05
#: What is set when a trainer of a run ends, for each run and worker that is asked.
_ends: dict[tuple[str, str], asyncio.Event] = {}
#: The last ones that have ended: the question may come after that.
_ended: deque[tuple[str, str]] = deque(maxlen=256)
logger = logging.getLogger(__name__)
#: Topic of what is told.
PULSES = "daskml_dist_pulses"
#: Seconds between two times that a worker tells, and so many more for each trainer of the run.
_EVERY, _EVERY_OF_EACH = 1.0, 0.01
#: Who tells of each trainer of a run at a worker.
_tellers: dict[tuple[str, str], list[Callable[[], TrainerFacts]]] = {}


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


@dataclass(frozen=True)
class TrainerFacts:
    """Facts of a trainer at one moment.

    Parameters
    ----------
    steps : dict of int to int
        Steps that each lane has made in this generation; of a solver, sums over its rows.
    traffic : dict of str to int
        Bytes sent and received in this generation, by transport.
    rows_here, rows_streamed : int
        Training rows of its lanes that are in memory, and that are read anew in each pass.
    """

    steps: dict[int, int]
    traffic: dict[str, int]
    rows_here: int
    rows_streamed: int


@contextmanager
def telling_facts(
    worker: Any, run_id: str, n_trainers: int, facts: Callable[[], TrainerFacts]
) -> Iterator[None]:
    """While a trainer runs, its worker tells its facts to the scheduler about once a second.

    Nobody asks for them, so that nobody waits for a worker that is gone. Trainers are not stopped
    either: their counts are read as they are.

    Parameters
    ----------
    worker : distributed.Worker
    run_id : str
    n_trainers : int
    facts : callable
        Returns the trainer's `TrainerFacts`; called in the worker's event loop.
    """
    name = worker.address, run_id
    every = _EVERY + _EVERY_OF_EACH * n_trainers
    tellers = _tellers.setdefault(name, [])
    tellers.append(facts)

    def tell() -> None:
        if _tellers.get(name) is not tellers:
            return
        try:
            told = {"run": run_id, "worker": worker.address, "every": every}
            told |= {"clock": time.monotonic(), **_sums(worker, tellers)}
            worker.log_event(PULSES, told)
        except Exception:
            logger.debug("The facts of a trainer are not told", exc_info=True)
        worker.loop.call_later(every, tell)

    if len(tellers) == 1:
        worker.loop.add_callback(worker.loop.call_later, every, tell)
    try:
        yield
    finally:
        tellers.remove(facts)
        if not tellers and _tellers.get(name) is tellers:
            del _tellers[name]


def _sums(worker: Any, tellers: list[Callable[[], TrainerFacts]]) -> dict[str, Any]:
    """Facts of all trainers of a run at a worker, and of its process; plain values."""
    told = [facts() for facts in list(tellers)]
    traffic: Counter[str] = Counter()
    for one in told:
        traffic.update(one.traffic)
    memory, spilled = memory_of(worker)
    return {
        # Events of Dask have texts as keys alone.
        "steps": [[lane, steps] for one in told for lane, steps in one.steps.items()],
        "traffic": dict(traffic),
        "rows_here": sum(one.rows_here for one in told),
        "rows_streamed": sum(one.rows_streamed for one in told),
        "memory": memory,
        "spilled": spilled,
    }
