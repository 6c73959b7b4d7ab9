"""Choice of where a fit runs: in this process, on a client, or on a cluster of its own.

`open_engine` returns the `Engine` for a collection; estimators use it as a context manager around
the whole fit.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from typing import Any

from daskml_dist.data.collection import Collection
from daskml_dist.data.computing import check_client, check_synchronous
from daskml_dist.errors import InvalidParameterError
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.engine import Engine

__all__ = ["AUTO", "INLINE", "find_default_client", "open_engine"]

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
    """Open the engine on which a collection is trained."""
    engine = _choose_engine(collection, client, memory_budget, device)
    # Names of columns make errors about values readable.
    engine.feature_names = getattr(collection, "feature_names", None)  # keyed ones have none
    if callbacks is not None:
        engine.callbacks = callbacks
    return engine


def _choose_engine(
    collection: Collection, client: Any | None, memory_budget: int | None, device: str
) -> Engine:
    """Return the engine for a client, for the current one, or for none."""
    if isinstance(client, str) and client == INLINE:
        return _open_inline_engine(collection)
    # Estimators with a plan have replaced "auto" by now; for all others it is the current client.
    if isinstance(client, str) and client == AUTO:
        client = None
    if client is not None:
        check_client(client)
    in_task = _is_in_dask_task()
    if client is None:
        client = _current_client(in_task, collection.kind)
    # Engines load what trainers need; who only imports an estimator, or predicts, does without.
    if client is None and collection.kind == "memory":
        # Engines import the trainers and the transports; importing an estimator, or predicting,
        # does not.
        from daskml_dist.training.in_process import InProcessEngine

        return InProcessEngine(collection)
    from daskml_dist.training.client.on_cluster import ClusterEngine

    if client is None and not in_task:
        return ClusterEngine.on_own_cluster(collection, memory_budget, device)
    with ExitStack() as stack:
        if in_task:
            client = _leave_worker_pool(stack, client)
        assert client is not None
        check_synchronous(client, "fit")
        # The stack moves to the engine only once this succeeds: on an error the thread rejoins the
        # pool.
        engine = ClusterEngine(collection, client, memory_budget, device)
        engine.close_with_engine(stack.pop_all())
    return engine


def find_default_client(collection: Collection) -> Any | None:
    """Return the client that a fit without `client=` would use; None where there is none."""
    return _current_client(_is_in_dask_task(), collection.kind)


def _open_inline_engine(collection: Collection) -> Engine:
    """Return the engine of this process, whatever client there is."""
    if collection.kind != "memory":
        raise InvalidParameterError(
            'client="inline" trains rows that are in the memory of this process, and these are a '
            "Dask collection. Gather them first: X, y = dask.compute(X, y)."
        )
    from daskml_dist.training.in_process import InProcessEngine

    return InProcessEngine(collection)


def _is_in_dask_task() -> bool:
    """Return whether the calling thread runs a Dask task."""
    # Without distributed loaded there is neither a task nor a client, and no need to load it.
    if "distributed" not in sys.modules:
        return False
    from distributed import get_worker

    # `get_worker` raises outside of tasks.
    with suppress(ValueError):
        get_worker()
        return True
    return False


def _leave_worker_pool(stack: ExitStack, client: Any | None) -> Any:
    """Leave the worker's thread pool until the stack closes; return a client of the cluster.

    Else the fit would wait for tasks that wait for the slot of the task that calls it.
    """
    from distributed import worker_client

    own = stack.enter_context(worker_client())
    return own if client is None else client


def _current_client(in_task: bool, kind: str) -> Any | None:
    """Return the current client for a fit that was given none; None where it is not to be used."""
    if in_task or "distributed" not in sys.modules:
        return None
    from distributed import Client

    from daskml_dist.dask_internals.cluster import is_client_of_worker

    with suppress(ValueError):
        client = Client.current(allow_global=True)
        # Threads that a task has started: its slot is taken for as long as they run.
        if kind != "memory" or not is_client_of_worker(client):
            return client
    return None
