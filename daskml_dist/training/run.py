"""Choosing where a fit runs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from daskml_dist.data.collection import Collection
from daskml_dist.errors import InvalidParameterError
from daskml_dist.training.engine import Engine
from daskml_dist.training.in_process import InProcessEngine

__all__ = ["open_engine"]


def open_engine(
    collection: Collection,
    client: Any | None,
    memory_budget: int | None = None,
    device: str = "cpu",
) -> Engine:
    """Open the engine for a collection.

    Parameters
    ----------
    collection : Collection
    client : distributed.Client or None
        None: the current client. Without one, rows in memory are trained in this process, and
        a Dask collection on a cluster inside this process that lives as long as the fit.
    memory_budget : int or None
        Bytes of blocks on one worker; None: a share of its memory limit, and of its GPU's memory.
    device : {"auto", "cpu", "gpu"}, default="cpu"
        Where the fit is asked to be.
    """
    if client is None:
        client = _current_client()
    elif not hasattr(client, "scheduler_info"):
        raise InvalidParameterError(
            f"client={client!r}: pass a distributed.Client, such as Client(address), or None."
        )
    if client is None and collection.kind == "memory":
        return InProcessEngine(collection)
    from daskml_dist.training.on_cluster import ClusterEngine

    if client is None:
        return ClusterEngine.on_own_cluster(collection, memory_budget, device)
    if getattr(client, "asynchronous", False):
        raise InvalidParameterError(
            "fit needs a synchronous Client. Create one with Client(..., asynchronous=False)."
        )
    return ClusterEngine(collection, client, memory_budget, device)


def _current_client() -> Any | None:
    import sys

    # Without distributed loaded there is no client, and no need to load it.
    if "distributed" not in sys.modules:
        return None
    from distributed import Client

    with suppress(ValueError):
        return Client.current(allow_global=True)
    return None
