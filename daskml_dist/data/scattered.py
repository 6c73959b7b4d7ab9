"""Values sent to the workers apart from a graph, also while one of them goes."""

from __future__ import annotations

import time
from typing import Any

from daskml_dist.errors import SchedulerLostError, WorkerLostError

__all__ = ["scattered"]

#: Seconds for which another worker is tried, and between two trials.
_PATIENCE, _PAUSE = 30.0, 0.1


def scattered(client: Any, value: Any, *, everywhere: bool = False) -> Any:
    """Futures of values on the workers, as ``client.scatter`` gives them.

    Dask sends a value to a worker that has just died as long as the scheduler has not noticed.

    Parameters
    ----------
    client : distributed.Client
    value : object, or list of object
    everywhere : bool, default=False
        Send it to every worker: nothing makes it again once all that hold it are lost.

    Raises
    ------
    TimeoutError
        There is no worker.
    SchedulerLostError
        The scheduler is gone.
    WorkerLostError
        Workers were lost again and again.
    """
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return client.scatter(value, hash=False, broadcast=everywhere)
        except TimeoutError:
            raise
        except OSError as error:
            if client.status != "running":
                raise SchedulerLostError(
                    "The connection to the Dask scheduler was lost. Start the cluster again, and "
                    "make a new Client."
                ) from error
            if time.monotonic() > end:
                raise WorkerLostError(
                    f"No worker took {_PATIENCE:g} s long what was sent to it ({error}). Look at "
                    "the workers' logs: do they run out of memory?"
                ) from error
            time.sleep(_PAUSE)
