"""Places where a fit may run: this process, or the workers of a client."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from daskml_dist._version import __version__
from daskml_dist.data.batches import LaneSpec, Segment, pass_steps
from daskml_dist.models.linear import LinearModel
from daskml_dist.planning.costs import Work
from daskml_dist.planning.rows import RowsShape
from daskml_dist.policies import Policy
from daskml_dist.training.calibration import sample_size
from daskml_dist.training.plan import batch_rows
from daskml_dist.training.run import INLINE
from daskml_dist.training.settings import Settings
from daskml_dist.training.threads import blas

__all__ = ["Place", "cluster_place", "inline_place", "traffic_of", "work_of"]

#: Share of a worker's memory limit that rows may take, unless the user says otherwise.
_ROWS_SHARE = 0.4


@dataclass(frozen=True)
class Place:
    """A place where a fit may run.

    Parameters
    ----------
    name : {"inline", "cluster"}
    lanes, trainers : int
        Logical workers, and the processes that run them.
    room : float
        Bytes of rows that each process may hold.
    machine : str
        What its costs depend on.
    client : distributed.Client or None
    """

    name: str
    lanes: int
    trainers: int
    room: float
    machine: str
    client: Any = None

    @property
    def text(self) -> str:
        """The place in words."""
        if self.client is None:
            return "inline"
        return "1 worker" if self.trainers == 1 else f"{self.trainers} workers"


def inline_place(settings: Settings) -> Place:
    """This process, with one lane unless the user asks for others."""
    lanes = settings.run.n_lanes or 1
    return Place(INLINE, lanes, 1, _available(), f"inline, {lanes} lanes, {_machine()}")


def cluster_place(settings: Settings, rows: RowsShape, client: Any) -> Place | None:
    """The workers of a client; None where there is none."""
    # It loads distributed, which whoever only imports an estimator does without.
    from daskml_dist.training.dask_internals import list_workers

    workers = list_workers(client)
    if not workers:
        return None
    threads = sorted((int(info["nthreads"]) for info in workers.values()), reverse=True)
    parts = len(rows.collection.parts) if rows.collection.kind == "dask" else len(workers)
    trainers = min(len(workers), parts)
    lanes = settings.run.n_lanes or min(sum(threads[:trainers]), rows.n_rows)
    limits = [float(info["memory_limit"] or 0) or _available() for info in workers.values()]
    given = settings.run.memory_budget
    room = _ROWS_SHARE * min(limits) if given is None else float(given)
    hosts = sorted({str(info.get("host", "")) for info in workers.values()})
    machine = f"{lanes} lanes on {trainers} workers of {hosts}, threads {threads}, {_machine()}"
    return Place("cluster", lanes, trainers, room, machine, client)


def work_of(place: Place, settings: Settings, model: LinearModel, n_rows: int, passes: int) -> Work:
    """Counts of the work of a fit of some rows at a place."""
    lane = [LaneSpec(0, (Segment(0, 0, -(-n_rows // place.lanes)),))]
    batch = batch_rows(settings.batch_size, lane)
    piloted = settings.auto_rate and settings.calibrates
    return Work(
        n_rows=n_rows,
        n_features=model.n_features,
        width=model.width,
        trainers=place.trainers,
        batch=min(batch or lane[0].n_rows, lane[0].n_rows),
        steps=pass_steps(lane, batch, settings.validation_fraction),
        passes=passes,
        sample=sample_size(n_rows, model, 1.0) if piloted else 0,
    )


def traffic_of(place: Place, rows: RowsShape, policy: Policy, work: Work) -> float:
    """Bytes of a fit between processes: rows that are sent, gradients and parameters."""
    sent = rows.nbytes if (rows.collection.kind == "memory") != (place.name == INLINE) else 0.0
    if place.trainers == 1:
        return sent
    both_ways = 2.0 * (work.n_features + 1) * work.width * rows.nbytes
    both_ways /= rows.n_rows * rows.n_features
    if not policy.lockstep:
        per_lane = work.steps * (1 / policy.push_every + 1 / policy.pull_every) / 2
        return sent + both_ways * per_lane * place.lanes * work.passes
    if not policy.averages:
        return sent + both_ways * work.steps * place.trainers * work.passes
    meetings = work.steps * work.passes // policy.average_every if policy.average_every else 1
    return sent + both_ways * max(meetings, 1) * place.trainers


def _machine() -> str:
    """Processor, threads and versions that costs depend on."""
    threads = [info["num_threads"] for info in blas().info() if info["user_api"] == "blas"]
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "distributed"))
    return (
        f"{_processor()}, {len(os.sched_getaffinity(0))} cores, BLAS {max(threads, default=1)}, "
        f"{__version__}, {versions}"
    )


def _processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    return platform.processor() or platform.machine()


def _available() -> float:
    """Bytes of memory that this process may still take."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(1024.0 * int(s.split()[1]) for s in lines if s.startswith("MemAvailable"))
    return float("inf")
