"""From a model, a solver and a survey of the blocks to the `FitSpec` of a round algorithm."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import dask
import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.batches import LaneSpec
from daskml_dist.models.base import Model, StepModel
from daskml_dist.ps.ledger import StoppingRule
from daskml_dist.solvers import RangedSolver, Solver
from daskml_dist.solvers.own_rows import RowSolver
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.run_settings import RunSettings
from daskml_dist.training.solver_work import OwnRowsWork, RoundWork
from daskml_dist.training.spec import FitSpec, RunSpec, Streaming, training_rows

__all__ = ["DatasetInfo", "make_solver_fit"]


#: Parameters from which each trainer holds but a range of the solver's vectors.
_RANGES_FROM = 2**20


def make_solver_fit(
    model: Model,
    solver: Solver | RowSolver,
    rows: DatasetInfo,
    lanes: list[LaneSpec],
    start: NDArray[Any] | None,
    streaming: Streaming | None,
    run: RunSettings,
    seed: int = 0,
    budget: float = float("inf"),
) -> FitSpec:
    """Put the maths of a fit by a round solver together.

    Parameters
    ----------
    model : Model
    solver : Solver or RowSolver
    rows : DatasetInfo
    lanes : list of LaneSpec
    start : ndarray or None
        What the solver starts from; None: zeros where the model has parameters.
    streaming : Streaming or None
        How to read blocks that are not kept.
    run : RunSettings
    seed : int, default=0
        Of what statistics draw.
    budget : float, default=inf
        Bytes of blocks that are held, and of what is made of rows, on one worker.

    Raises
    ------
    InvalidParameterError
        As :meth:`Survey.device`.
    """
    dtype = "float32" if run.compute_dtype else rows.survey.dtype
    spec = rows.spec(dtype, training_rows(lanes), streaming, 0.0, run.compute_dtype)
    if isinstance(solver, RowSolver):
        work = _on_own_rows(model, solver, rows, seed)
        nbytes = 0 if streaming else sum(info.nbytes for info in rows.survey.infos)
        row_bytes = nbytes / max(rows.survey.n_rows, 1)
        work = replace(work, budget=budget, row_bytes=row_bytes)
        return FitSpec(spec, work, RunSpec.of(run, rows.survey))
    shape = model.parameters.shape if isinstance(model, StepModel) else None
    # In the order of the lanes, sums are gathered whole.
    in_ranges = (
        shape is not None
        and isinstance(solver, RangedSolver)
        and not run.deterministic
        and prod(shape) >= int(dask.config.get("daskml_dist.ranges_from", _RANGES_FROM))
    )
    return FitSpec(
        spec,
        RoundWork(
            model, solver, shape, start, StoppingRule(solver.max_passes, None), in_ranges, seed
        ),
        RunSpec.of(run, rows.survey),
    )


def _on_own_rows(model: Model, solver: RowSolver, rows: DatasetInfo, seed: int) -> OwnRowsWork:
    infos = sorted(rows.survey.infos, key=lambda info: info.index)
    first = np.zeros(infos[-1].index + 1, np.int64)
    for info in infos:
        first[info.index] = info.n_rows
    first = first.cumsum() - first
    # Rows are read twice at least: for their bins' edges, and for the bins.
    return OwnRowsWork(model, solver, StoppingRule(max(2, solver.max_passes), None), first, seed)
