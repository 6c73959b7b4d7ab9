"""Loops of a trainer, one a file, by the names in `Policy.loop` and `Work.loop`."""

from __future__ import annotations

from collections.abc import Callable

from daskml_dist.ps.shard_state import ShardState, StateParts
from daskml_dist.solvers import Solution
from daskml_dist.training.worker.loops.bulk import run_bulk
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.free import run_free
from daskml_dist.training.worker.loops.keyed import run_keyed
from daskml_dist.training.worker.loops.own_rows import run_own_rows
from daskml_dist.training.worker.loops.ranges import run_ranges
from daskml_dist.training.worker.loops.replicas import run_replicas
from daskml_dist.training.worker.loops.shared import run_shared
from daskml_dist.training.worker.loops.solver import run_solver

__all__ = ["LOOPS", "Context"]

#: Loops by name; each returns the state, or the solution, where the trainer holds it.
LOOPS: dict[str, Callable[[Context], ShardState | StateParts | Solution | None]] = {
    "bulk": run_bulk,
    "replicas": run_replicas,
    "free": run_free,
    "shared": run_shared,
    "solver": run_solver,
    "ranges": run_ranges,
    "keyed": run_keyed,
    "own_rows": run_own_rows,
}
