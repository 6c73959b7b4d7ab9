"""A fit by steps of a linear model, with the start and the rates that a pilot on a sample found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.blocks import first_not_finite
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers import FTRL, NAG, Adagrad, Optimizer
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant, Linear
from daskml_dist.training.engine import Engine
from daskml_dist.training.pilot import Pilot
from daskml_dist.training.sample import sample_rows
from daskml_dist.training.settings import Settings
from daskml_dist.training.spec import FitSpec

__all__ = ["calibrated"]

#: Entries of a sample, times the outputs: what a pilot goes through in about a millisecond or two.
_ENTRIES = 1 << 21
#: Share of the rows that a sample may have beyond that: a tenth of the work of a fit of some passes.
_SHARE = 1 / 8
#: Entries of a sample at most: they are brought to the client.
_MOST = 1 << 23
#: Work of a sparse row beside that of its entries, in entries.
_ROW = 8
#: Steps of the quasi-Newton method at most.
_ITERATIONS = 200


def calibrated(
    fit: FitSpec, settings: Settings, lanes: Sequence[LaneSpec], engine: Engine
) -> FitSpec:
    """The fit with a start, rates and a measure of progress that suit its rows.

    Parameters
    ----------
    fit : FitSpec
        As :func:`daskml_dist.training.plan.make_fit` made it, of a linear model, from its start.
    settings : Settings
    lanes : sequence of LaneSpec
    engine : Engine
    """
    work, model = fit.steps, fit.steps.model
    assert isinstance(model, LinearModel)
    schedule = work.rule.schedule
    n_rows = sum(fit.rows.lane_rows)
    n_sample = sample_size(n_rows, model)
    block = sample_rows(
        engine, lanes, n_sample, settings.seed, settings.validation_fraction
    )
    # Whoever trains on it says where it is.
    if block.n_rows == 0 or not _finite(block.rows):
        return fit
    y = model.encode(block.y, fit.rows.classes, fit.rows.dtype)
    pilot = Pilot(
        model, model.prepare(block.rows, np.dtype(fit.rows.dtype)), y, fit.rows.weights(block),
        work.rule.only.penalty, settings.seed,
    )  # fmt: skip
    begin = work.start_state(fit.rows.dtype).w
    unit = pilot.value(begin)
    # A loss that is nothing for nothing tells of no rate, and one that is infinite of no start.
    if not (0 < unit < np.inf and isinstance(schedule, Constant)):
        return fit
    optimizer, base = work.rule.only.optimizer, schedule.learning_rate
    batch = _rows_of_a_step(fit)
    w, slots, factor = _found(pilot, optimizer, begin, base, batch, block.n_rows == n_rows)
    rule, stopping = work.rule, work.stopping
    passes = float(stopping.max_iter)
    rule = replace(rule, schedule=Linear(base * factor, passes, base * factor / 100))
    if model.loss.in_target_units and stopping.tol is not None:
        stopping = replace(stopping, tol=stopping.tol * unit)
    state = ShardState(w.astype(fit.rows.dtype), slots)
    return fit.working(initial=state, rule=rule, stopping=stopping)


def _found(
    pilot: Pilot, optimizer: Optimizer, begin: Any, base: float, batch: int, whole: bool
) -> tuple[Any, dict[str, Any], float]:
    """Start, state of the optimizer there, and factor on its rate."""
    if pilot.penalty.l1:
        # Where coefficients are to be zero, they are to begin so.
        slots = optimizer.init(begin)
        return begin, {}, pilot.best_rate(optimizer, begin, slots, base, batch)
    w, converged = pilot.minimum(begin, pilot.n_rows, _ITERATIONS)
    start = w.astype(begin.dtype)
    slots = _warm(pilot, optimizer, start, batch)
    if whole and converged:
        return start, slots, pilot.least
    half, _ = pilot.minimum(begin, -(-pilot.n_rows // 2), _ITERATIONS)
    half = half.astype(begin.dtype)
    own = _warm(pilot, optimizer, half, batch) or optimizer.init(half)
    return start, slots, pilot.best_rate(optimizer, half, own, base, batch)


def _warm(pilot: Pilot, optimizer: Optimizer, w: Any, batch: int) -> dict[str, Any]:
    """Sums of squares as if the sample's batches had come by; nothing where no sums are kept."""
    if not isinstance(optimizer, Adagrad | NAG | FTRL):
        return {}
    return pilot.slots(optimizer, w, batch)


def _finite(X: Any) -> bool:
    return first_not_finite(X.data if hasattr(X, "tocsr") else X) is None


def sample_size(n_rows: int, model: LinearModel) -> int:
    """Rows of the sample of a fit: as many as a pilot can go through in a tenth of its time."""
    entries = model.n_features if model.touches is None else model.touches + _ROW
    most = max(_ENTRIES / (entries * model.width), n_rows * _SHARE)
    return max(1, int(min(n_rows, most, max(_MOST / entries, 1024))))


def _rows_of_a_step(fit: FitSpec) -> int:
    """Rows of one step of the parameters."""
    lane_rows, policy = fit.rows.lane_rows, fit.steps.policy
    together = policy.lockstep and not policy.averages
    rows = sum(lane_rows) if together else max(lane_rows) * policy.push_every
    return max(1, -(-rows // fit.steps.n_steps))
