"""Loops that run a fit in a trainer, by their names in `Policy.loop` and `FitWork.loop`."""

from __future__ import annotations

from collections.abc import Callable

from daskml_dist.ps.shard_state import ShardState, StateParts
from daskml_dist.solvers import Solution
from daskml_dist.training.worker.loops.bulk import run_bulk_loop
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.decoupled import run_decoupled_loop
from daskml_dist.training.worker.loops.free import run_free_loop
from daskml_dist.training.worker.loops.function import run_function_loop
from daskml_dist.training.worker.loops.keyed import run_keyed_loop
from daskml_dist.training.worker.loops.own_rows import run_own_rows_loop
from daskml_dist.training.worker.loops.parts import run_parts_loop
from daskml_dist.training.worker.loops.ranges import run_ranges_loop
from daskml_dist.training.worker.loops.replicas import run_replicas_loop
from daskml_dist.training.worker.loops.shared import run_shared_loop
from daskml_dist.training.worker.loops.solver import run_solver_loop

__all__ = ["LOOPS", "Context"]

#: Loops by name; each returns the state, or the solution, if the trainer holds it.
LOOPS: dict[str, Callable[[Context], ShardState | StateParts | Solution | None]] = {
    "bulk": run_bulk_loop,
    "replicas": run_replicas_loop,
    "free": run_free_loop,
    "shared": run_shared_loop,
    "decoupled": run_decoupled_loop,
    "parts": run_parts_loop,
    "solver": run_solver_loop,
    "ranges": run_ranges_loop,
    "keyed": run_keyed_loop,
    "own_rows": run_own_rows_loop,
    "function": run_function_loop,
}
