"""Computing of one lazy value: who waits is told, and lost workers are no end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import uuid4

import dask
from dask.base import compute

from daskml_dist.data.clients import computing_client
from daskml_dist.data.task_graphs import OR_NEVER_THERE
from daskml_dist.data.waiting import tell_releases, wait_for_workers, watched
from daskml_dist.errors import DataLostError

__all__ = ["heard", "tried"]

#: Times that a value is computed where Dask gives up.
_TRIES = 4
#: States of tasks that are not done.
_TO_DO = ("waiting", "queued", "no-worker", "processing")

Listener = Callable[[int, int], None]

_listener: ContextVar[Listener | None] = ContextVar("daskml_dist_listener", default=None)


@contextmanager
def heard(listener: Listener) -> Iterator[None]:
    """While blocks are read on a cluster, a listener hears about each second how many are done.

    Parameters
    ----------
    listener : callable
        Takes the numbers of blocks done and of all; in a thread of its own. What is done within a
        second is not told.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tried(make: Callable[[str], Any], n_parts: int = 0) -> Any:
    """A value that Dask computes; where workers are lost again and again, from the start.

    Parameters
    ----------
    make : callable
        Takes a name, new each time, and returns the lazy value.
    n_parts : int, default=0
        Tasks that are counted for who listens; their keys are (name, 0), (name, 1), ...
    """
    for left in reversed(range(_TRIES)):
        try:
            name = f"block-{uuid4().hex}"
            return _computed(make(name), name, n_parts)
        except Exception as error:
            name = type(error).__name__
            # The second is said where the client that held rows is closed.
            if name == "FutureCancelledError" or str(error).startswith("Missing dependency"):
                raise DataLostError(
                    "Rows are not there any more. Nothing can make again what was scattered, and "
                    "what was persisted is held by the collection that persist() returned, not by "
                    "parts of it, for as long as its client is open: keep that, or read the rows "
                    f"from storage. {OR_NEVER_THERE} ({error})"
                ) from error
            # Dask gives a task up while whose work workers died again and again; by any cause.
            if not left or name != "KilledWorker":
                raise
    raise AssertionError


def _computed(lazy: Any, name: str, n_parts: int) -> Any:
    """A value that Dask computes, by a client's cluster where there is a client.

    Dask itself would wait for workers for ever, and say nothing.
    """
    client = computing_client()
    if client is None:
        return compute(lazy)[0]

    def workers() -> list[dict[str, Any]]:
        return list(client.scheduler_info(n_workers=-1)["workers"].values())

    timeout = float(dask.config.get("daskml_dist.timeout", 300.0))
    wait_for_workers(client, workers, timeout)
    try:
        with watched(client, workers, timeout, lazy.key, _teller(client, name, n_parts)):
            return compute(lazy, scheduler=client)[0]
    finally:
        tell_releases(client)


def _teller(client: Any, name: str, n_parts: int) -> Callable[[], None] | None:
    """A function that tells the listener, where there is one, how many blocks are done."""
    listener = _listener.get()
    if listener is None or not n_parts:
        return None

    def left(dask_scheduler: Any) -> int:
        group = dask_scheduler.task_groups.get(name)
        return n_parts if group is None else sum(group.states.get(state, 0) for state in to_do)

    to_do = _TO_DO  # the function travels whole, as a scheduler may lack the package
    return lambda: listener(n_parts - client.run_on_scheduler(left), n_parts)
