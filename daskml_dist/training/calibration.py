"""A fit by steps of a linear model, with the start and the rates that a pilot on a sample found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.blocks import Block
from daskml_dist.data.scales import block_scales
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers import NAG, Adagrad, Optimizer
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant, Linear
from daskml_dist.training.coordinates import FEW
from daskml_dist.training.engine import Engine
from daskml_dist.training.pilot import Pilot
from daskml_dist.training.sample import sample_rows
from daskml_dist.training.settings import Settings
from daskml_dist.training.spec import FitSpec

__all__ = ["calibrated"]

#: Work of a reading of the sample: about so many nanoseconds.
_WORK = 1 << 22
#: Share of the rows that a sample may have beyond that: some passes over it are a tenth of a fit.
_SHARE = 1 / 8
#: Rows of a sample at most, and its entries: they are brought to the client.
_ROWS, _MOST = 1 << 16, 1 << 23
#: Largest value of a feature, or its inverse, from which the units of features count.
_FAR = 10.0
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
    n_rows = sum(fit.rows.lane_rows)
    n_sample = _sample_size(n_rows, model)
    block = sample_rows(engine, lanes, n_sample, settings.seed, settings.validation_fraction)
    # Whoever trains on it says where it is.
    if block.n_rows == 0 or not _has_squares(block.rows):
        return fit
    y = model.encode(block.y, fit.rows.classes, fit.rows.dtype)
    pilot = Pilot(
        model, block.rows.astype(fit.rows.dtype, copy=False), y, fit.rows.weights(block),
        work.rule.only.penalty, settings.seed,
    )  # fmt: skip
    state = work.start_state(fit.rows.dtype)
    unit = pilot.value(state.w)
    # A loss that is nothing for nothing tells of no rate, and one that is infinite of no start.
    if not (0 < unit < np.inf and isinstance(work.rule.schedule, Constant)):
        return fit
    rule, stopping = _in_units(work.rule, block), work.stopping
    base = work.rule.schedule.learning_rate
    base *= (
        rule.only.optimizer.default_learning_rate / work.rule.only.optimizer.default_learning_rate
    )
    start, factor = _found(
        pilot, rule.only.optimizer, state, block, fit, base, block.n_rows == n_rows
    )
    import os

    schedule = (
        Linear(base * factor, stopping.max_iter, base * factor / 100)
        if os.environ.get("LIN")
        else Constant(base * factor)
    )
    if model.loss.in_target_units and stopping.tol is not None:
        stopping = replace(stopping, tol=stopping.tol * unit)
    if not (np.isfinite(start.w).all() and all(np.isfinite(s).all() for s in start.slots.values())):
        return fit
    return fit.working(initial=start, rule=replace(rule, schedule=schedule), stopping=stopping)


def _in_units(rule: UpdateRule, block: Block) -> UpdateRule:
    """The rule, of Adagrad in the units of each feature where these are far apart."""
    if type(rule.only.optimizer) is not Adagrad:
        return rule
    sizes = block_scales(block).largest
    sizes = sizes[sizes > 0]
    if not len(sizes) or (sizes.max() <= _FAR and sizes.min() >= 1 / _FAR):
        return rule
    return replace(rule, groups=(replace(rule.only, optimizer=NAG()),))


def _found(
    pilot: Pilot,
    optimizer: Optimizer,
    state: ShardState,
    block: Block,
    fit: FitSpec,
    base: float,
    whole: bool,
) -> tuple[ShardState, float]:
    """Where to start, and the factor on the optimizer's rate."""
    begin, batch = state.w, _rows_of_a_step(fit)
    slots = state.slots or _slots(optimizer, begin, block, fit)
    # Sums of squares, but no moments, can be those of steps that never were.
    sums = isinstance(optimizer, Adagrad | NAG)

    def warmed(w: Any) -> dict[str, Any]:
        return pilot.warmed(optimizer, w, slots, batch) if sums else slots

    if whole:
        w, settled = pilot.minimum(begin, _ITERATIONS)
        tried = w
    else:
        tried, n_iter = pilot.of_half(begin, _ITERATIONS)
        w, settled = pilot.minimum(begin, max(n_iter, 1))[0], False
    w, tried = w.astype(begin.dtype), tried.astype(begin.dtype)
    rate = pilot.calm_rate if settled else pilot.best_rate
    factor = rate(optimizer, tried, warmed(tried), base, batch)
    slots = warmed(w)
    if fit.steps.single_rows and sums:
        # Squares of the rows' own gradients, of those of their means.
        slots["accumulator"] *= batch**2
    return _state_of(w, slots, sums), factor


def _state_of(w: Any, slots: dict[str, Any], sums: bool) -> ShardState:
    """State to start from; a fresh one of an optimizer that keeps no sums."""
    return ShardState(w, slots if sums else {})


def _slots(optimizer: Optimizer, w: Any, block: Block, fit: FitSpec) -> dict[str, Any]:
    """State of an optimizer before its first step."""
    if not isinstance(optimizer, NAG):
        return optimizer.init(w)
    scales = block_scales(block)
    if fit.steps.linear is not None and fit.steps.linear.fit_intercept:
        scales = scales.with_intercept()
    return optimizer.init_scaled(w, scales.largest, scales.norm)


def _has_squares(X: Any) -> bool:
    """Whether features, and their squares, are finite."""
    values = X.data if sparse.issparse(X) else X.ravel()
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.einsum("i,i->", values, values, dtype=np.float64)))


def _sample_size(n_rows: int, model: LinearModel) -> int:
    """Rows of the sample of a fit: as many as a pilot can go through in a tenth of its time."""
    d = model.n_features
    entries = d if model.touches is None or d <= FEW else 2 * model.touches
    work = entries * (1 + model.width / 8) + 10 * model.width
    most = max(_WORK / work, n_rows * _SHARE)
    return max(1, int(min(n_rows, most, max(_MOST / entries, 1024), _ROWS)))


def _rows_of_a_step(fit: FitSpec) -> int:
    """Rows of one step of the parameters."""
    lane_rows, policy = fit.rows.lane_rows, fit.steps.policy
    together = policy.lockstep and not policy.averages
    rows = sum(lane_rows) if together else max(lane_rows) * policy.push_every
    return max(1, -(-rows // fit.steps.n_steps))
