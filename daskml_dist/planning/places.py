"""Places where a fit may run: this process, or the workers of a client."""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from daskml_dist._version import __version__
from daskml_dist.backends.host_threads import count_cores, find_blas_controller
from daskml_dist.planning.rows import RowsShape
from daskml_dist.training.job import INLINE

#: Share of a worker's memory limit that rows may use, unless the user sets a budget: Dask starts to
#: spill at 0.6, and a fit holds copies of some rows.
_ROWS_SHARE = 0.4
#: Hosts of workers on this machine; "" is for workers that report no host.
_LOCAL_ADDRESSES = {"", "127.0.0.1", "::1", "localhost"}


@dataclass(frozen=True)
class Place:
    """A place where a fit may run.

    Parameters
    ----------
    name : {"inline", "cluster"}
    lanes, trainers : int
        Logical workers, and the processes that run them.
    memory_limit : float
        Bytes of rows that each process may hold.
    machine : str
        Description of the hardware and software that its costs depend on.
    cores : int
        Lanes that can compute at the same time.
    has_fixed_lanes : bool
        Whether the user gave the number of lanes.
    client : distributed.Client or None
    """

    name: str
    lanes: int
    trainers: int
    memory_limit: float
    machine: str
    cores: int = 1
    has_fixed_lanes: bool = False
    client: Any = None

    @property
    def text(self) -> str:
        """Return the place in words."""
        if self.name == INLINE:
            return "inline"
        return "1 worker" if self.trainers == 1 else f"{self.trainers} workers"

    def side_by_side(self, nbytes: float, bytes_per_thread: int) -> float:
        """Return the number of lanes that compute in parallel.

        In this process, unless the user gave the number of lanes, each `bytes_per_thread` bytes of
        rows add another thread; a share of 0 means a single thread.
        """
        if self.name != INLINE or self.has_fixed_lanes:
            return float(max(1, min(self.lanes, self.cores)))
        return float(
            max(1, min(self.cores, 1 + nbytes // bytes_per_thread if bytes_per_thread else 1))
        )


def inline_place(n_lanes: int | None) -> Place:
    """Return this process as a place, with one lane of steps unless the user set another number."""
    lanes = n_lanes or 1
    machine = f"inline, {lanes} lanes, {_describe_machine()}"
    return Place(INLINE, lanes, 1, _available_memory(), machine, count_cores(), n_lanes is not None)


def cluster_place(
    n_lanes: int | None, budget: float | None, rows: RowsShape, client: Any
) -> Place | None:
    """Return the workers of a client as a place; None if there are none."""
    # Imported here: it loads distributed, which importing an estimator must not do.
    from daskml_dist.dask_internals.cluster import list_workers

    workers = list_workers(client)
    if not workers:
        return None
    threads = sorted((int(info["nthreads"]) for info in workers.values()), reverse=True)
    # A worker without a block of rows has no trainer; each trainer has one lane per thread.
    parts = rows.n_parts if rows.kind == "dask" else len(workers)
    trainers = min(len(workers), parts)
    lanes = n_lanes or min(sum(threads[:trainers]), rows.n_rows)
    # A worker without a limit reports 0.
    limits = [float(info["memory_limit"] or 0) or _available_memory() for info in workers.values()]
    memory_limit = _ROWS_SHARE * min(limits) if budget is None else float(budget)
    hosts = sorted({str(info.get("host", "")) for info in workers.values()})
    cores = sum(threads[:trainers])
    if set(hosts) <= _LOCAL_ADDRESSES:
        # Workers on this machine share its cores.
        cores = min(cores, count_cores())
    machine = (
        f"{lanes} lanes on {trainers} workers of {hosts}, threads {threads}, {_describe_machine()}"
    )
    return Place(
        "cluster", lanes, trainers, memory_limit, machine, cores, n_lanes is not None, client
    )


def imagine_place(workers: int, lanes: int | None) -> Place:
    """Return a place of hypothetical workers, each on its own machine that is like this one."""
    n_lanes, memory_limit = lanes or workers, _ROWS_SHARE * _available_memory()
    return Place("supposed", n_lanes, workers, memory_limit, "supposed", workers, lanes is not None)


@cache
def _describe_machine() -> str:
    """Return processor, threads and versions that costs depend on."""
    # A kept cost is used again only if all of these are the same (`load_costs`).
    threads = [
        info["num_threads"] for info in find_blas_controller().info() if info["user_api"] == "blas"
    ]
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "distributed"))
    return (
        f"{_find_processor_name()}, {count_cores()} cores, BLAS {max(threads, default=1)}, "
        f"{__version__}, {versions}"
    )


def _find_processor_name() -> str:
    """Return the name of the processor's model, from Linux's ``/proc`` if it exists."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    return platform.processor() or platform.machine()


def _available_memory() -> float:
    """Return the bytes of memory that this process may still allocate."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(1024.0 * int(s.split()[1]) for s in lines if s.startswith("MemAvailable"))
    return float("inf")
