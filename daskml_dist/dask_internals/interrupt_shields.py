"""Shields of a local cluster's processes against the Ctrl-C that ends a fit or a computation.

Ctrl-C in a terminal, and the interrupt of a notebook, are sent to the client's whole process group.
The workers that the client has started are in that group, and would be killed. `Shielding` is the
client's side; `shield_from_interrupts` and `end_shield` are called in workers, nannies and
schedulers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Self, cast
from weakref import WeakSet

from distributed import Client

from daskml_dist.dask_internals.cluster import get_address_host

#: Seconds between two checks for new workers, and seconds that removing the shields may take.
_LOOK, _END = 1.0, 2.0

#: Clients whose nannies and scheduler need no shield. Processes that a script started may be in the
#: group, too; nannies and scheduler of a `LocalCluster` run in the client's own process.
_shielded_alone: WeakSet[Client] = WeakSet()
#: Process id of each client whose fit shields this process from Ctrl-C, by the fit's name; and the
#: handler that was set before.
_shields: dict[str, int] = {}
_unshielded: Any = None
#: Names of the last shields that ended: a request to start a shield may arrive after the request to
#: end it.
_ended_shields: deque[str] = deque(maxlen=256)


def process_group() -> tuple[Any, ...] | None:
    """Return an identifier of this process group; None on systems without process groups.

    A terminal, and the stop button of JupyterLab, send Ctrl-C to all processes of a group.
    """
    if not hasattr(os, "getpgrp"):
        return None
    parts: list[Any] = [socket.gethostname(), os.getpgrp()]
    with suppress(OSError):  # containers may share a host name and process ids
        parts.append(os.readlink("/proc/self/ns/pid"))
    return tuple(parts)


def shield_from_interrupts(name: str, pid: int, group: tuple[Any, ...]) -> bool:
    """Ignore Ctrl-C in this process while a fit of a client of its process group runs.

    Without this, Dask's workers, nannies and schedulers would exit; with it, the client decides.
    Call this in the event loop, which these processes run in their main thread.
    """
    global _unshielded
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or os.getpid() == pid or process_group() != group or name in _ended_shields:
        return False
    if not _shields:
        _unshielded = signal.signal(signal.SIGINT, _on_sigint)
    _shields[name] = pid
    return True


def end_shield(name: str) -> None:
    """Undo :func:`shield_from_interrupts`; the shield cannot be set again."""
    _ended_shields.append(name)
    if _shields.pop(name, None) is not None and not _shields:
        signal.signal(signal.SIGINT, _unshielded or signal.SIG_DFL)


def _on_sigint(*_: Any) -> None:
    """Remove the shields of clients that are gone; if none is left, handle Ctrl-C as before."""
    for name, pid in list(_shields.items()):
        try:
            # Signal 0 only checks whether the process exists.
            os.kill(pid, 0)
        except ProcessLookupError:
            end_shield(name)
    if not _shields:
        signal.raise_signal(signal.SIGINT)


class Shielding:
    """Shields of the processes of a cluster that share the client's process group.

    It runs in the client's event loop, so a fit does not wait for it to start. A worker that had a
    part in the run removes its shield itself when it forgets the run. As a context manager it
    shields the workers during a block.

    Parameters
    ----------
    client : Client
    name : str
        Name of the run.
    delay : float, default=0.0
        Seconds after which it begins. What ends sooner costs no messages.
    """

    def __init__(self, client: Client, name: str, delay: float = 0.0) -> None:
        self._client = client
        self._name = name
        self._delay = delay
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self.end()
        # The next Ctrl-C is meant for the user's own code.
        if kind is not None:
            self.wait()

    def wait(self) -> None:
        """Wait, for a short time, until the shields are removed."""
        self._ended.wait(_END)

    async def _shield_until_end(self) -> None:
        """Shield new workers until the end, then remove the shields."""
        if self._delay:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._end.wait(), self._delay)
                self._ended.set()
                return
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
        new_workers = set(filter(_is_on_this_host, workers)) - self._covered
        self._covered |= new_workers
        if new_workers and not await self._call_everywhere(
            new_workers, shield_from_interrupts, self._name, os.getpid(), self._group
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
        effects: list[Any] = []
        with suppress(TimeoutError):
            outcomes = asyncio.gather(*calls, return_exceptions=True)
            effects = (await asyncio.wait_for(outcomes, _END))[bool(workers) :]
        return any(any(f.values()) if isinstance(f, dict) else f for f in effects)


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
