"""Keeping a local cluster alive when Ctrl-C ends a fit.

Ctrl-C in a terminal, and the interrupt of a notebook, go to the whole process group of the client.
The workers that it has started are in that group, and would end for good.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, cast

from distributed import Client
from distributed.comm.addressing import get_address_host

from daskml_dist.training.dask_internals import process_group, shield, unshield

__all__ = ["Shielding"]

#: Seconds between two looks for new workers, and that the end may take.
_LOOK, _END = 1.0, 2.0


class Shielding:
    """Shields the processes of a cluster that share the client's process group, until the end.

    It works in the client's event loop, so a fit does not wait for it to begin.

    Parameters
    ----------
    client : Client
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._name = uuid.uuid4().hex
        self._group = process_group()
        self._end = asyncio.Event()
        self._ended = threading.Event()
        self._covered: set[str] = set()
        self._loop = cast(Any, client.loop)
        self._loop.add_callback(self._run)

    def end(self) -> None:
        """Begin to take the shields away."""
        self._loop.add_callback(self._end.set)

    def wait(self) -> None:
        """Wait, not for long, until they are."""
        self._ended.wait(_END)

    async def _run(self) -> None:
        with suppress(Exception):  # the cluster is gone
            while self._group and await self._cover() and not self._end.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._end.wait(), _LOOK)
        with suppress(Exception):
            await self._tell(self._covered & await self._workers(), unshield, self._name)
        self._ended.set()

    async def _cover(self) -> bool:
        """Shield workers that are new; whether there may be more of them."""
        workers = await self._workers()
        new = set(filter(_is_here, workers)) - self._covered
        self._covered |= new
        await self._tell(new, shield, self._name, os.getpid(), self._group)
        return bool(self._covered) or not workers

    async def _workers(self) -> set[str]:
        scheduler: Any = self._client.scheduler
        return set((await scheduler.identity(n_workers=-1))["workers"])

    async def _tell(self, workers: Iterable[str], function: Callable[..., Any], *args: Any) -> None:
        if not (workers := list(workers)):
            return  # `run` takes none for all
        client: Any = self._client
        # In the client's own loop these are coroutines. Nannies and schedulers may be processes of
        # the group too, started by a script; those of a `LocalCluster` are the client's own.
        calls = [
            client.run(function, *args, workers=workers, on_error="ignore"),
            client.run(function, *args, workers=workers, nanny=True, on_error="ignore"),
            client.run_on_scheduler(function, *args),
        ]
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), _END)


def _is_here(address: str) -> bool:
    """Whether an address is one of this machine's, and of another process."""
    if address.startswith("inproc"):
        return False
    host = str(get_address_host(address))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with suppress(OSError), socket.socket(family) as probe:
        probe.bind((host, 0))
        return True
    return False
