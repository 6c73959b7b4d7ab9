"""From a model, a solver and a survey of the blocks to the `FitSpec` of a round algorithm."""

from __future__ import annotations

from typing import Any

import dask
import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.batches import LaneSpec
from daskml_dist.models.base import Model, StepModel
from daskml_dist.policies import RangedRounds, Rounds
from daskml_dist.ps.layout import Layout
from daskml_dist.ps.ledger import StoppingRule
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant
from daskml_dist.solvers import RangedSolver, Solver
from daskml_dist.training.rows import Rows
from daskml_dist.training.run_settings import RunSettings
from daskml_dist.training.spec import FitSpec, Streaming

__all__ = ["Rows", "make_solver_fit"]


#: Parameters from which each trainer holds but a range of the solver's vectors.
_RANGES_FROM = 2**20


def make_solver_fit(
    model: Model,
    solver: Solver,
    rows: Rows,
    lanes: list[LaneSpec],
    start: NDArray[Any] | None,
    streaming: Streaming | None,
    run: RunSettings,
    seed: int = 0,
) -> FitSpec:
    """Put the maths of a fit by a round solver together.

    Parameters
    ----------
    model : Model
    solver : Solver
    rows : Rows
    lanes : list of LaneSpec
    start : ndarray or None
        What the solver starts from, if anything.
    streaming : Streaming or None
        How to read blocks that are not kept.
    run : RunSettings
    seed : int, default=0
        Of what statistics draw.

    Raises
    ------
    InvalidParameterError
        As :meth:`Survey.device`.
    """
    shape = model.parameters.shape if isinstance(model, StepModel) else (0, 0)
    # In the order of the lanes, sums are gathered whole.
    in_ranges = (
        isinstance(solver, RangedSolver)
        and not run.deterministic
        and int(np.prod(shape)) >= int(dask.config.get("daskml_dist.ranges_from", _RANGES_FROM))
    )
    return FitSpec(
        model=model,
        policy=RangedRounds() if in_ranges else Rounds(),
        # Solvers update the parameters themselves.
        rule=UpdateRule((), Constant(1.0), 1.0),
        layout=Layout(shape[0], shape[1], 1),
        stopping=StoppingRule(solver.max_passes, None),
        dtype="float32" if run.compute_dtype else rows.survey.dtype,
        seed=seed,
        lane_rows=tuple(lane.n_rows for lane in lanes),
        n_steps=1,
        shuffle=False,
        validation_fraction=0.0,
        deterministic=run.deterministic,
        device=rows.survey.device(run.device, run.deterministic),
        compute_dtype=run.compute_dtype,
        classes=rows.classes,
        class_weight=rows.class_weight,
        weight_scale=rows.weight_scale,
        initial=None if start is None else ShardState(start, {}),
        timeout=float(dask.config.get("daskml_dist.timeout", 300.0)),
        streaming=streaming,
        on_lost_data=run.on_lost_data,
        solver=solver,
    )
