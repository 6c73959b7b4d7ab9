"""Everything that touches what `distributed` does not document, with a test that sees it move."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

__all__ = ["evict", "is_wanted", "list_workers"]

#: Seconds that a nanny may take to kill its worker.
_NANNY = 2.0


def list_workers(client: Any) -> dict[str, dict[str, Any]]:
    """What the scheduler knows of each worker, by address.

    `Client.scheduler_info` says it too, but may return what a callback of the client's has asked
    for at the same time: a list without any worker.
    """
    identity: dict[str, Any] = client.sync(client.scheduler.identity, n_workers=-1)
    return dict(identity["workers"])


def is_wanted(worker: Any, key: Any) -> bool:
    """Whether a task that runs on this worker is still to deliver its result.

    A running task cannot be stopped, but its client may have cancelled it, or gone.
    """
    task = worker.state.tasks.get(key)
    return task is not None and task.state in {"executing", "long-running"}


def evict(client: Any, address: str) -> None:
    """Make the scheduler forget a worker that does not answer; returns at once.

    It does so by itself after minutes (``distributed.scheduler.worker-ttl``). Until then
    everything that this worker holds counts as there, and whoever wants it waits.
    """

    async def kill(dask_worker: Any) -> None:  # on the nanny, which then starts another one
        await dask_worker.process.process.kill()

    async def ask_nanny() -> None:
        call = client.run(kill, workers=[address], nanny=True, on_error="return")
        await asyncio.wait_for(call, _NANNY)

    async def remove(dask_scheduler: Any) -> None:
        # "Expected", so that its tasks are not suspected of having killed it.
        await dask_scheduler.remove_worker(
            address, stimulus_id="daskml-dist-lease-ran-out", expected=True, close=False
        )

    def run() -> None:
        # The nanny's address is known only while the worker is on the list.
        with suppress(Exception):
            client.sync(ask_nanny)
        with suppress(Exception):
            client.run_on_scheduler(remove)

    threading.Thread(target=run, daemon=True, name="daskml-evict").start()
