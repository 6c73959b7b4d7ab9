"""Shields of a local cluster's processes against the Ctrl-C that ends a fit.

Ctrl-C in a terminal, and the interrupt of a notebook, are sent to the client's whole process group.
The workers that the client has started are in that group, and would be killed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, cast
from weakref import WeakSet

from distributed import Client

from daskml_dist.dask_internals.cluster import get_address_host
from daskml_dist.training.interrupts import end_shield, process_group, shield_from_interrupts

#: Seconds between two checks for new workers, and seconds that removing the shields may take.
_LOOK, _END = 1.0, 2.0

#: Clients whose nannies and scheduler need no shield. Processes that a script started may be in the
#: group, too; nannies and scheduler of a `LocalCluster` run in the client's own process.
_shielded_alone: WeakSet[Client] = WeakSet()


class Shielding:
    """Shields of the processes of a cluster that share the client's process group.

    It runs in the client's event loop, so a fit does not wait for it to start. A worker that had a
    part in the run removes its shield itself when it forgets the run.

    Parameters
    ----------
    client : Client
    name : str
        Name of the run.
    """

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._group = process_group()
        self._end = asyncio.Event()
        self._ended = threading.Event()
        self._covered: set[str] = set()
        self._loop = cast(Any, client.loop)
        self._loop.add_callback(self._shield_until_end)

    def take_next_run(self, name: str) -> None:
        """Continue for the next run, after the previous one has ended."""
        self._name, self._covered = name, set()

    def end(self, but: Iterable[str] = ()) -> None:
        """Start removing the shields, except on workers that do it themselves."""
        self._covered.difference_update(but)
        self._loop.add_callback(self._end.set)

    def wait(self) -> None:
        """Wait, for a short time, until the shields are removed."""
        self._ended.wait(_END)

    async def _shield_until_end(self) -> None:
        """Shield new workers until the end, then remove the shields."""
        with suppress(Exception):  # the cluster is gone
            while self._group and not self._end.is_set() and await self._shield_new_workers():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._end.wait(), _LOOK)
        with suppress(Exception):
            if self._covered or self._client not in _shielded_alone:
                await self._call_everywhere(
                    self._covered & await self._list_workers(), end_shield, self._name
                )
        self._ended.set()

    async def _shield_new_workers(self) -> bool:
        """Shield new workers; return whether there may be more."""
        workers = await self._list_workers()
        # Only processes of this machine can be in the client's process group.
        new = set(filter(_is_on_this_host, workers)) - self._covered
        self._covered |= new
        if new and not await self._call_everywhere(
            new, shield_from_interrupts, self._name, os.getpid(), self._group
        ):
            _shielded_alone.add(self._client)
        return bool(self._covered) or not workers

    async def _list_workers(self) -> set[str]:
        """Return the addresses of all workers."""
        scheduler: Any = self._client.scheduler
        return set((await scheduler.identity(n_workers=-1))["workers"])

    async def _call_everywhere(
        self, workers: Iterable[str], function: Callable[..., Any], *args: Any
    ) -> bool:
        """Call a function on workers, nannies, scheduler; return its effect on the last two."""
        workers = list(workers)
        client: Any = self._client
        run = partial(client.run, function, *args, on_error="ignore")
        # In the client's own loop these are coroutines. An empty list of workers would mean all
        # workers. The first call is to the workers, the others are to the scheduler and nannies,
        # which may be processes of the same group.
        calls = [run(workers=workers)] if workers else []
        if client not in _shielded_alone:
            calls.append(client.run_on_scheduler(function, *args))
            calls += [run(workers=workers, nanny=True)] if workers else []
        beside: list[Any] = []
        with suppress(TimeoutError):
            found = asyncio.gather(*calls, return_exceptions=True)
            beside = (await asyncio.wait_for(found, _END))[bool(workers) :]
        return any(any(f.values()) if isinstance(f, dict) else f for f in beside)


def _is_on_this_host(address: str) -> bool:
    """Return whether an address belongs to another process on this machine."""
    if address.startswith("inproc"):
        return False
    host = str(get_address_host(address))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with suppress(OSError), socket.socket(family) as probe:
        probe.bind((host, 0))
        return True
    return False
