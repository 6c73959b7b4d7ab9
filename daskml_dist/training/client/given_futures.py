"""Futures of the user's that rows are made of, and the cluster that holds them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from dask.delayed import Delayed
from distributed import Client

from daskml_dist.data.task_graphs import find_futures, layers_of
from daskml_dist.errors import InvalidDataError
from daskml_dist.training.dask_internals import ask_for

__all__ = ["futures_in"]


def futures_in(client: Client, parts: list[tuple[Any, ...]]) -> dict[Any, Any]:
    """Futures of the user's that parts are made of, by key; holds of our own in a task.

    Raises
    ------
    InvalidDataError
        Another cluster than the client's holds some of them.
    """
    parts_of_graphs = (value for part in parts for value in part if isinstance(value, Delayed))
    futures = find_futures(layers_of(parts_of_graphs).values())
    _check_here(client, futures.values())
    # Those that came to a task with its function belong to no client.
    return {k: f if f.client is not None else ask_for(client, k) for k, f in futures.items()}


def _check_here(client: Client, futures: Iterable[Any]) -> None:
    """Check that rows lie on the cluster of the fit, which elsewhere would wait for them."""
    owners = {id(f.client): f.client for f in futures if f.client not in (None, client)}
    for other in owners.values():
        there = _cluster_of(other)
        if there is not None and there != (here := _cluster_of(client)):
            raise InvalidDataError(
                f"Rows that were persisted lie on the cluster at {there}, and the fit is to run on "
                f"that at {here}. Pass the client of the rows, fit(..., client=client), and X, y "
                "and sample_weight of one cluster; or gather those of the other, y = y.compute()."
            )


def _cluster_of(client: Any) -> str | None:
    """Address of a client's scheduler, as that tells it; None where it is not there any more."""
    with suppress(Exception):  # closed, or lost: what its futures say of themselves is told later
        address: str = client.scheduler_info()["address"]
        return address
    return None
