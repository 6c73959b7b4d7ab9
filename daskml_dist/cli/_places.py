"""Places where a command computes: this process, new local processes, or a cluster."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from daskml_dist.errors import InvalidParameterError, TrainingError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the place of the computation."""
    # Without either the command computes in its own process.
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--workers",
        type=int,
        default=0,
        metavar="N",
        help="start N local worker processes; default: none",
    )
    group.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="address of the Dask scheduler, such as tcp://10.0.0.7:8786",
    )


@contextmanager
def open_client(arguments: argparse.Namespace) -> Iterator[Any]:
    """Yield a client of the cluster that the arguments name, or None for this process."""
    if arguments.workers < 0:
        raise InvalidParameterError(f"--workers {arguments.workers}: use an integer >= 0.")
    if not (arguments.workers or arguments.scheduler):
        yield None
        return
    address = arguments.scheduler
    with connect_client(address) if address else start_cluster(arguments.workers) as client:
        yield client


@contextmanager
def start_cluster(n_workers: int, **options: Any) -> Iterator[Any]:
    """Yield a client of a new cluster of worker processes on this machine.

    `options` are further ones of a `LocalCluster`.
    """
    from distributed import Client, LocalCluster

    # Only this machine can reach the scheduler, which runs all code that it receives. The dashboard
    # gets any free port (0), since Dask's own, 8787, may be in use.
    with (
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            **options,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def connect_client(address: str) -> Any:
    """Return a client of the scheduler at an address; raise if none responds within 10 s."""
    from distributed import Client

    # distributed raises OSError (also TimeoutError) if there is no response, and ValueError for an
    # invalid address.
    try:
        return Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise TrainingError(
            f"No scheduler answers at {address} ({error}). Is it the address that `dask "
            "scheduler` prints, and can this machine reach it?"
        ) from error
