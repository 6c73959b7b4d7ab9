"""Clusters whose workers are killed and come back."""

from __future__ import annotations

import socket
import time

from distributed import Client
from distributed.comm import get_address_host_port

from daskml_dist.dask_internals.cluster import list_workers

__all__ = ["wait_for_three"]


def wait_for_three(client: Client) -> None:
    """Wait until three workers answer: for a moment the scheduler still lists killed ones."""
    deadline = time.monotonic() + 200
    while not (len(workers := list_workers(client)) == 3 and all(map(_listens, workers))):
        assert time.monotonic() < deadline, workers
        time.sleep(0.05)


def _listens(address: str) -> bool:
    host, port = get_address_host_port(address)
    try:
        socket.create_connection((host, port), timeout=30).close()
    except OSError:
        return False
    return True
