"""Checks of the Dask client that a user passes, or that is the current one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from dask.base import get_scheduler

from daskml_dist.errors import InvalidParameterError

__all__ = ["check_client", "check_synchronous", "computing_by", "computing_client"]

_given: ContextVar[Any] = ContextVar("daskml_dist_client", default=None)

_CHOICES = (
    "'inline' to use this process for rows in memory, 'auto' for whichever is sooner, or None for "
    "the current client"
)


def check_client(client: Any, what: str = "fit", choices: str = _CHOICES) -> Any:
    """Return a client that work can be given to.

    Parameters
    ----------
    client : object
    what : str
        Name of the call, for messages.
    choices : str
        Other values that the call takes, in words.

    Raises
    ------
    InvalidParameterError
        It is a cluster, an address or anything else than a client; it is closed; or it belongs to
        an event loop.
    """
    # Loading distributed takes half a second, and who has a client has loaded it.
    distributed = sys.modules.get("distributed")
    if distributed is None or not isinstance(client, distributed.Client):
        raise InvalidParameterError(
            f"client={client!r}: {_remedy(client)} Other values of client: {choices}."
        )
    if client.status in ("closing", "closed"):
        raise InvalidParameterError(
            f"client={client!r}: it is closed. Pass a Client that is open, such as "
            f"Client(address), and keep it open until {what} has ended."
        )
    check_synchronous(client, what)
    return client


def check_synchronous(client: Any, what: str) -> None:
    """Raise an error where a client belongs to an event loop.

    Raises
    ------
    InvalidParameterError
    """
    if getattr(client, "asynchronous", False):
        raise _asynchronous(what)


def _asynchronous(what: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"{what} needs a synchronous Client, outside of its event loop. Create one with "
        "Client(..., asynchronous=False); a task that fits is a plain function, not async."
    )


@contextmanager
def computing_by(client: Any) -> Iterator[None]:
    """Let a client be the current one, and the one that computes reductions of rows, in a thread.

    Parameters
    ----------
    client : object
        As `fit` takes it; what is no client leaves the current one in place.

    Raises
    ------
    InvalidParameterError
        As :func:`check_client`.
    """
    distributed = sys.modules.get("distributed")
    if distributed is None or not isinstance(client, distributed.Client):
        yield
        return
    check_client(client)
    # Dask itself asks for the current client only where one is its default.
    token = _given.set(client)
    try:
        with client.as_current():
            yield
    finally:
        _given.reset(token)


def computing_client(what: str = "this call") -> Any:
    """Return the client that computes reductions of rows now; None without one.

    Raises
    ------
    InvalidParameterError
        It belongs to an event loop.
    """
    try:
        client = _given.get() or getattr(get_scheduler(), "__self__", None)
    except RuntimeError as error:  # newer versions of Dask refuse such a client themselves
        raise _asynchronous(what) from error
    check_synchronous(client, what)
    return client if getattr(client, "status", "") == "running" else None  # else Dask says so


def _remedy(client: Any) -> str:
    """Return what to pass in place of something that is no client."""
    if isinstance(client, str):
        return (
            "that is a string. Pass a distributed.Client of its address, "
            f"client=Client({client!r})."
        )
    if callable(getattr(client, "get_client", None)):
        return "that is a cluster. Pass a distributed.Client of it, client=cluster.get_client()."
    if isinstance(client, type):
        return "that is a class. Pass a distributed.Client, such as client=Client(address)."
    return "pass a distributed.Client, such as client=Client(address)."
