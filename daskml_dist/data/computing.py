"""Computing of one lazy value: who waits is told, and lost workers are no end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
from dask.base import compute, get_scheduler

from daskml_dist.data.waiting import tell_releases, wait_for_workers, watched
from daskml_dist.errors import DataLostError

__all__ = ["tried"]

#: Times that a value is computed where Dask gives up.
_TRIES = 4


def tried(make: Callable[[], Any]) -> Any:
    """A value that Dask computes; where workers are lost again and again, from the start."""
    for left in reversed(range(_TRIES)):
        try:
            return _computed(make())
        except Exception as error:
            name = type(error).__name__
            # The second is said where the client that held rows is closed.
            if name == "FutureCancelledError" or str(error).startswith("Missing dependency"):
                raise DataLostError(
                    "Rows are not there any more. Nothing can make again what was scattered, and "
                    "what was persisted is held by the collection that persist() returned, not by "
                    "parts of it, for as long as its client is open: keep that, or read the rows "
                    f"from storage. ({error})"
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
