"""Facts that a worker sends to the client of a fit as soon as they are known.

Dask reports the end of a task through the scheduler, in batches, and results are requested after
that. A short fit ends sooner if the client sends its request first and the worker waits for the
result (`await_bundles`, `await_results`). While trainers run, `publish_facts` sends their counts
about once a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from daskml_dist.comm.base import Endpoint
from daskml_dist.dask_internals.cluster import (
    find_actor,
    find_in_memory,
    measure_memory,
    wait_until_made,
)
from daskml_dist.data.blocks import BlockInfo

if TYPE_CHECKING:
    from daskml_dist.training.worker.trainer import TrainerFacts


#: Seconds within which a task returns after it announced its end.
_RETURN_SECONDS = 0.05
#: Event for each run and worker with an open request, set when a trainer of the run ends there.
_ends: dict[tuple[str, str], asyncio.Event] = {}
#: The last runs and workers whose trainers have ended, for requests that arrive later.
_ended: deque[tuple[str, str]] = deque(maxlen=256)
logger = logging.getLogger(__name__)
#: Topic of the published facts in Dask's event log.
HEARTBEAT_TOPIC = "daskml_dist_heartbeats"
#: Seconds between two publications, plus seconds for each trainer of the run, so that the scheduler
#: receives at most a hundred per second.
_PUBLISH_SECONDS, _PUBLISH_SECONDS_PER_TRAINER = 1.0, 0.01
#: Functions that return the facts of each trainer of a run on a worker.
_fact_sources: dict[tuple[str, str], list[Callable[[], TrainerFacts]]] = {}


async def await_bundles(
    requests: Mapping[str, tuple[list[Any], str | None]], wait: float, dask_worker: Any
) -> tuple[list[dict[int, BlockInfo]], Endpoint | None]:
    """Return facts of the blocks of some bundles on this worker, and the address of an actor."""
    keys, actor = requests[dask_worker.address]
    # The request may arrive before the tasks do.
    await wait_until_made(dask_worker, [*keys, *([actor] if actor else [])], wait)
    host = find_actor(dask_worker, actor)
    endpoint = None if host is None else await host.endpoint()
    return [bundle.infos for bundle in find_in_memory(dask_worker, keys).values()], endpoint


async def await_results(
    requests: Mapping[str, list[Any]], run_id: str, wait: float, dask_worker: Any
) -> dict[Any, Any]:
    """Return results of a run's trainers on this worker, by key; without unfinished ones."""
    name, keys = (run_id, dask_worker.address), requests[dask_worker.address]
    # Trainers announce that they are about to return, which is sooner than Dask's report.
    ended = _ends.setdefault(name, asyncio.Event())
    try:
        if name not in _ended:
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), wait)
    finally:
        _ends.pop(name, None)
    await wait_until_made(dask_worker, keys, _RETURN_SECONDS)
    return find_in_memory(dask_worker, keys)


def note_trainer_end(worker: Any, run_id: str) -> None:
    """Announce, from any thread, that a trainer is about to return, or that the run has ended."""
    name = run_id, worker.address

    def mark_ended() -> None:
        _ended.append(name)
        if (ended := _ends.get(name)) is not None:
            ended.set()

    with suppress(Exception):  # the worker itself is closing
        worker.loop.add_callback(mark_ended)


@contextmanager
def publish_facts(
    worker: Any, run_id: str, n_trainers: int, get_facts: Callable[[], TrainerFacts]
) -> Iterator[None]:
    """Publish a trainer's facts to the scheduler about once a second while it runs.

    They are not requested, so no process waits for a worker that is gone. Trainers are not stopped
    either: their counts are read while they run.
    """
    name = worker.address, run_id
    interval = _PUBLISH_SECONDS + _PUBLISH_SECONDS_PER_TRAINER * n_trainers
    sources = _fact_sources.setdefault(name, [])
    sources.append(get_facts)

    def publish() -> None:
        # The run has ended, or another run of the same name has begun.
        if _fact_sources.get(name) is not sources:
            return
        try:
            event = {"run": run_id, "worker": worker.address, "every": interval}
            event |= {"clock": time.monotonic(), **_sum_facts(worker, sources)}
            worker.log_event(HEARTBEAT_TOPIC, event)
        except Exception:
            logger.debug("Progress of a trainer could not be reported", exc_info=True)
        worker.loop.call_later(interval, publish)

    if len(sources) == 1:
        worker.loop.add_callback(worker.loop.call_later, interval, publish)
    try:
        yield
    finally:
        sources.remove(get_facts)
        if not sources and _fact_sources.get(name) is sources:
            del _fact_sources[name]


def _sum_facts(worker: Any, sources: list[Callable[[], TrainerFacts]]) -> dict[str, Any]:
    """Return the summed facts of all trainers of a run at a worker, as plain values."""
    all_facts = [facts() for facts in list(sources)]
    traffic: Counter[str] = Counter()
    # Trainers of one process share a worker, so their counts are added.
    for facts_here in all_facts:
        traffic.update(facts_here.traffic)
    memory_bytes, spilled_bytes = measure_memory(worker)
    return {
        # Dask's events can only have strings as keys.
        "steps": [
            [lane, steps] for facts_here in all_facts for lane, steps in facts_here.steps.items()
        ],
        "traffic": dict(traffic),
        "rows_here": sum(facts_here.rows_here for facts_here in all_facts),
        "rows_streamed": sum(facts_here.rows_streamed for facts_here in all_facts),
        "memory": memory_bytes,
        "spilled": spilled_bytes,
    }
