"""Fitted functions in graphs: once, not once a task."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
from dask.delayed import delayed

from daskml_dist.data.computing import scatter_values

__all__ = ["current_client", "shared"]

#: Bytes from which a function is sent to the workers apart from the graph.
_LARGE = 2**20


def shared(function: Callable[..., Any]) -> Any:
    """Wrap a function for use as an argument of many tasks."""
    if len(cloudpickle.dumps(function)) < _LARGE:
        return function
    client = current_client()
    if client is None:
        return delayed(function, pure=False)
    # The graph keeps the future, and the future the copies, which a lost worker leaves to others.
    (future,) = scatter_values(client, [function], everywhere=True)
    return delayed(future)


def current_client() -> Any | None:
    """Return the client that calls of this process use; None without one that can be waited for."""
    # Without distributed loaded there is no client, and no need to load it.
    if "distributed" not in sys.modules:
        return None
    from distributed import Client

    try:
        client = Client.current(allow_global=True)
    except ValueError:
        return None
    return None if client.asynchronous else client
