"""Workers that have come since lanes were dealt, until they are ready to take some over."""

from __future__ import annotations

import logging
import time

from distributed.client import Future

from daskml_dist.training.client.membership import SETTLED, Membership
from daskml_dist.training.client.run_actors import RunActors
from daskml_dist.training.dask_internals import is_dasks

__all__ = ["Newcomers"]

logger = logging.getLogger(__name__)


class Newcomers:
    """Workers that may soon take lanes over.

    Each first imports what the fit needs, which takes seconds for PyTorch, in a task of its own:
    the others step on meanwhile.

    Parameters
    ----------
    membership : Membership
    fleet : RunActors
    """

    def __init__(self, membership: Membership, fleet: RunActors) -> None:
        self._membership = membership
        self._fleet = fleet
        #: When each was first seen.
        self._since: dict[str, float] = {}
        #: Tasks of those that are not ready yet.
        self._tasks: dict[str, Future[bool]] = {}
        #: Those that are, and those that cannot be.
        self._ready: set[str] = set()
        self._unfit: set[str] = set()

    def ready(self, known: set[str]) -> list[str]:
        """Workers besides the known ones that were there for a moment, and are ready."""
        now, here = time.monotonic(), set(self._membership.ready) - known
        for address in self._tasks.keys() - here:
            self._fleet.discard_task(self._tasks.pop(address))
        for address in sorted(here - self._ready - self._unfit):
            self._since.setdefault(address, now)
            self._look_at(address)
        return sorted(a for a in here & self._ready if now - self._since[a] > SETTLED)

    def _look_at(self, address: str) -> None:
        if address not in self._tasks:
            self._tasks[address] = self._fleet.get_ready(address)
        task = self._tasks[address]
        if task.status == "pending":
            return
        error = task.exception() if task.status == "error" else None
        self._fleet.discard_task(self._tasks.pop(address))
        if error is not None and not is_dasks(error):
            self._unfit.add(address)
            logger.warning(
                "Worker %s has come and takes no part in a running fit, since it cannot load it "
                "(%r). Give it the packages and files that the other workers have.",
                address,
                error,
            )
        elif task.status == "finished":
            self._ready.add(address)
