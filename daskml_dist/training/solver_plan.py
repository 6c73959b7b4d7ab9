"""From a model, a solver and a survey of the blocks to the `FitSpec` of a round algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dask
import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.batches import LaneSpec
from daskml_dist.models.base import Model
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers import SGD
from daskml_dist.penalties import Penalty
from daskml_dist.policies import RangedRounds, Rounds
from daskml_dist.ps.layout import Layout
from daskml_dist.ps.ledger import StoppingRule
from daskml_dist.ps.shard import ShardState, UpdateRule
from daskml_dist.schedules import Constant
from daskml_dist.solvers import RangedSolver, Solver
from daskml_dist.training.plan import make_class_weight, make_weight_scale
from daskml_dist.training.spec import FitSpec, Streaming
from daskml_dist.training.survey import Survey

__all__ = ["Rows", "make_solver_fit"]


#: Parameters from which each trainer holds but a range of the solver's vectors.
_RANGES_FROM = 2**20


@dataclass(frozen=True)
class Rows:
    """The rows of a fit, as a solver's objective must know them.

    Parameters
    ----------
    survey : Survey
    classes : ndarray or None
        Sorted labels; None for regression.
    class_weight : ndarray of float64 of shape (n_classes,) or None
    weight_scale : float or None
        Factor that makes the mean weight 1; None where rows have no weights.
    """

    survey: Survey
    classes: NDArray[Any] | None
    class_weight: NDArray[np.float64] | None
    weight_scale: float | None

    @classmethod
    def of(
        cls,
        survey: Survey,
        classes: NDArray[Any] | None,
        class_weight: Any,
        weighted: bool,
    ) -> Rows:
        """Put them together; `class_weight` is as the user gave it."""
        of_class = make_class_weight(class_weight, survey, classes)
        scale = make_weight_scale(survey, classes, of_class, weighted)
        return cls(survey, classes, of_class, scale)

    @property
    def weight_sum(self) -> float:
        """Sum of the weights of all rows, with those of their classes."""
        n_rows = self.survey.n_rows
        return float(n_rows) if self.weight_scale is None else n_rows / self.weight_scale


def make_solver_fit(
    model: Model,
    solver: Solver,
    rows: Rows,
    lanes: list[LaneSpec],
    start: NDArray[Any] | None,
    streaming: Streaming | None,
    *,
    deterministic: bool,
    device: str,
    compute_dtype: str | None = None,
    on_lost_data: str,
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
    deterministic : bool
    device : {"auto", "cpu", "gpu"}
    compute_dtype : {"float16", "bfloat16"} or None
    on_lost_data : {"raise", "skip"}
    seed : int
        Of what statistics draw.

    Raises
    ------
    InvalidParameterError
        As :meth:`Survey.device`.
    """
    # In the order of the lanes, sums are gathered whole.
    in_ranges = (
        isinstance(solver, RangedSolver)
        and isinstance(model, LinearModel)
        and not deterministic
        and int(np.prod(model.shape))
        >= int(dask.config.get("daskml_dist.ranges_from", _RANGES_FROM))
    )
    return FitSpec(
        model=model,
        policy=RangedRounds() if in_ranges else Rounds(),
        # Solvers update the parameters themselves.
        rule=UpdateRule(SGD(), Constant(1.0), Penalty(0.0, 0.0), 0, 1.0),
        layout=Layout(0, 1, 1),  # servers hold nothing
        stopping=StoppingRule(solver.max_passes, None),
        dtype="float32" if compute_dtype else rows.survey.dtype,
        seed=seed,
        lane_rows=tuple(lane.n_rows for lane in lanes),
        n_steps=1,
        shuffle=False,
        validation_fraction=0.0,
        deterministic=deterministic,
        device=rows.survey.device(device, deterministic),
        compute_dtype=compute_dtype,
        classes=rows.classes,
        class_weight=rows.class_weight,
        weight_scale=rows.weight_scale,
        initial=None if start is None else ShardState(start, {}),
        timeout=float(dask.config.get("daskml_dist.timeout", 300.0)),
        streaming=streaming,
        on_lost_data=on_lost_data,
        solver=solver,
    )
