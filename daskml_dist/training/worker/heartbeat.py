"""Facts of the trainers of a process, told while they run."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from daskml_dist.training.dask_internals import memory_of

__all__ = ["PULSES", "TrainerFacts", "telling_facts"]

logger = logging.getLogger(__name__)


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


#: Topic of what is told.
PULSES = "daskml_dist_pulses"
#: Seconds between two times that a worker tells, and so many more for each trainer of the run.
_EVERY, _EVERY_OF_EACH = 1.0, 0.01

#: Who tells of each trainer of a run at a worker.
_tellers: dict[tuple[str, str], list[Callable[[], TrainerFacts]]] = {}


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
