"""Choosing where a fit runs."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from typing import Any

from daskml_dist.data.collection import Collection
from daskml_dist.data.computing import check_client, check_synchronous
from daskml_dist.errors import InvalidParameterError
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.engine import Engine

__all__ = ["AUTO", "INLINE", "client_of", "open_engine"]

#: In a client's place: rows in memory are trained in this process, though there be a client.
INLINE = "inline"
#: In a client's place: rows in memory are trained where that is sooner, as estimators that have a
#: plan find out before; of all others it is the current client.
AUTO = "auto"


def open_engine(
    collection: Collection,
    client: Any | None,
    memory_budget: int | None = None,
    device: str = "cpu",
    callbacks: CallbackList | None = None,
) -> Engine:
    """Open the engine for a collection.

    Parameters
    ----------
    collection : Collection
    client : distributed.Client, "inline", "auto" or None
        "inline": none, the rows are trained in this process. "auto" is None here: who can choose
        has chosen before.
        None: the current client. Without one, rows in memory are trained in this process, and
        a Dask collection on a cluster inside this process that lives as long as the fit.
        Inside a Dask task, rows in memory are trained in its process unless a client is given;
        any other fit leaves the worker's slot to others until it ends.
    memory_budget : int or None
        Bytes of blocks on one worker; None: a share of its memory limit, and of its GPU's memory.
    device : {"auto", "cpu", "gpu"}, default="cpu"
        Where the fit is asked to be.
    callbacks : CallbackList or None
        Who is told of the phases of the fit.
    """
    engine = _opened(collection, client, memory_budget, device)
    engine.feature_names = getattr(collection, "feature_names", None)  # keyed ones have none
    if callbacks is not None:
        engine.callbacks = callbacks
    return engine


def _opened(
    collection: Collection, client: Any | None, memory_budget: int | None, device: str
) -> Engine:
    if isinstance(client, str) and client == INLINE:
        return _inline(collection)
    if isinstance(client, str) and client == AUTO:
        client = None
    if client is not None:
        check_client(client)
    in_task = _in_task()
    if client is None:
        client = _current_client(in_task, collection.kind)
    # Engines load what trainers need; who only imports an estimator, or predicts, does without.
    if client is None and collection.kind == "memory":
        from daskml_dist.training.in_process import InProcessEngine

        return InProcessEngine(collection)
    from daskml_dist.training.client.on_cluster import ClusterEngine

    if client is None and not in_task:
        return ClusterEngine.on_own_cluster(collection, memory_budget, device)
    with ExitStack() as stack:
        if in_task:
            client = _step_aside(stack, client)
        assert client is not None
        check_synchronous(client, "fit")
        engine = ClusterEngine(collection, client, memory_budget, device)
        engine.closes(stack.pop_all())
    return engine


def client_of(collection: Collection) -> Any | None:
    """The client that a fit takes which was given none; None where there is none at all."""
    return _current_client(_in_task(), collection.kind)


def _inline(collection: Collection) -> Engine:
    """The engine of this process, whatever client there is."""
    if collection.kind != "memory":
        raise InvalidParameterError(
            'client="inline" trains rows that are in the memory of this process, and these are a '
            "Dask collection. Gather them first: X, y = dask.compute(X, y)."
        )
    from daskml_dist.training.in_process import InProcessEngine

    return InProcessEngine(collection)


def _in_task() -> bool:
    """Whether the calling thread runs a Dask task."""
    # Without distributed loaded there is neither a task nor a client, and no need to load it.
    if "distributed" not in sys.modules:
        return False
    from distributed import get_worker

    with suppress(ValueError):
        get_worker()
        return True
    return False


def _step_aside(stack: ExitStack, client: Any | None) -> Any:
    """Leave the worker's thread pool until the stack closes; a client of the cluster.

    Else the fit would wait for tasks that wait for the slot of the task that calls it.
    """
    from distributed import worker_client

    own = stack.enter_context(worker_client())
    return own if client is None else client


def _current_client(in_task: bool, kind: str) -> Any | None:
    """The client that a fit takes which was given none."""
    if in_task or "distributed" not in sys.modules:
        return None
    from distributed import Client

    from daskml_dist.training.dask_internals import is_workers_own

    with suppress(ValueError):
        client = Client.current(allow_global=True)
        # Threads that a task has started: its slot is taken for as long as they run.
        if kind != "memory" or not is_workers_own(client):
            return client
    return None
