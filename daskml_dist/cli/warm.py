"""Compile now what first fits of common estimators would compile, and keep it on disk.

    python -m daskml_dist warm
    python -m daskml_dist warm --only LogisticRegression KMeans --dtype float32
    python -m daskml_dist warm --scheduler tcp://10.0.0.7:8786

numba keeps machine code beside the package, in the user's cache folder, or in the folder that
NUMBA_CACHE_DIR names. With --scheduler one worker of each host compiles, for all that share its
cache.
"""

from __future__ import annotations

import argparse
import time
from typing import Any
from urllib.parse import urlsplit

from daskml_dist.cli._places import connected
from daskml_dist.cli._warming import DTYPES, SUBJECTS, Compiled, warm_up
from daskml_dist.errors import InvalidParameterError, TrainingError
from daskml_dist.errors.nearest import nearest

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="CLASS",
        help=f"some of: {', '.join(SUBJECTS)}; default: all",
    )
    parser.add_argument(
        "--dtype", nargs="+", choices=DTYPES, default=list(DTYPES), help="of the rows; default: all"
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="of a cluster, such as tcp://10.0.0.7:8786, whose hosts compile; default: this one",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    names = list(SUBJECTS) if arguments.only is None else arguments.only
    for name in names:
        if name not in SUBJECTS:
            raise InvalidParameterError(
                f"There is nothing to compile for {name!r}. Use some of {list(SUBJECTS)}."
                f"{nearest(name, SUBJECTS)}"
            )
    cases = [(name, dtype) for name in names for dtype in dict.fromkeys(arguments.dtype)]
    if arguments.scheduler is None:
        _warm(cases, None, ["here"])
        return 0
    with connected(arguments.scheduler) as client:
        workers = _worker_of_each_host(client)
        if not workers:
            raise TrainingError(
                f"The cluster at {arguments.scheduler} has no workers. Start some: "
                f"dask worker {arguments.scheduler}"
            )
        _warm(cases, client, workers)
    return 0


def _warm(cases: list[tuple[str, str]], client: Any, workers: list[str]) -> None:
    """Warm up this process, or a worker of each host, and print a line for each case."""
    width = max(len(name) for name, _ in cases)
    start, n_functions = time.perf_counter(), 0
    for name, dtype in cases:
        if client is None:
            found = {workers[0]: warm_up(name, dtype)}
        else:
            # Tasks, since a function that `Client.run` calls would keep a worker from answering.
            tasks = [
                client.submit(warm_up, name, dtype, workers=[worker], pure=False)
                for worker in workers
            ]
            found = dict(zip(workers, client.gather(tasks), strict=True))
        # Hosts compile side by side, each for itself.
        all_hosts = Compiled(
            sum(one.functions for one in found.values()),
            max(one.seconds for one in found.values()),
        )
        n_functions += all_hosts.functions
        print(
            f"{name:{width}}  {dtype}  {all_hosts.functions:3d} functions "
            f"{all_hosts.seconds:6.1f} s",
            flush=True,
        )
    place = "here" if client is None else f"on {len(workers)} host{'s' * (len(workers) > 1)}"
    print(f"{n_functions} functions compiled {place} in {time.perf_counter() - start:.1f} s")


def _worker_of_each_host(client: Any) -> list[str]:
    """Return the address of the first worker on each host."""
    addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
    return list({urlsplit(address).hostname: address for address in reversed(addresses)}.values())
