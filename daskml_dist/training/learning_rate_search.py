"""A fit by steps of a linear model, with the start and the rates that a pilot on a sample found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.blocks import Block
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers import NAG, Adagrad
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training import rate_search
from daskml_dist.training.coordinates import FEW
from daskml_dist.training.engine import Engine
from daskml_dist.training.learning_rate_task import (
    ITERATIONS,
    SHARED_ROWS,
    Task,
    is_narrow,
    lane_rows,
    linear_model,
)
from daskml_dist.training.pilot import ENOUGH
from daskml_dist.training.sample import sample_rows
from daskml_dist.training.settings import Settings
from daskml_dist.training.spec import FitSpec
from daskml_dist.training.stacked_pilot import StackedPilot
from daskml_dist.training.threads import OneThread

__all__ = ["calibrated", "calibrated_on", "calibrated_together", "drawn_sample", "sample_size"]

#: Work of a reading of the sample: about so many nanoseconds.
_WORK = 1 << 22
#: Share of the rows that a sample may have beyond that: some passes over it are a tenth of a fit.
_SHARE = 1 / 8
#: Rows of a sample at most, and its entries: they are brought to the client.
_ROWS, _MOST = 1 << 16, 1 << 23
#: Rows that are plenty, and for each parameter: what more would tell, the first steps do.
_PLENTY, _EACH = 1 << 14, 256


def calibrated(
    fit: FitSpec,
    settings: Settings,
    lanes: Sequence[LaneSpec],
    engine: Engine,
    rarity: float = 1.0,
) -> FitSpec:
    """The fit with a start, rates and a measure of progress that suit its rows.

    Parameters
    ----------
    fit : FitSpec
        As :func:`daskml_dist.training.plan.make_fit` made it, of a linear model, from its start.
    settings : Settings
    lanes : sequence of LaneSpec
    engine : Engine
    rarity : float
        Rows of a label in the mean over those of the rarest one.
    """
    engine.tell("looking for a rate")
    sample = drawn_sample(fit, settings, lanes, engine, rarity)
    return calibrated_on(fit, sample, settings.seed)


def drawn_sample(
    fit: FitSpec,
    settings: Settings,
    lanes: Sequence[LaneSpec],
    engine: Engine,
    rarity: float = 1.0,
    n_fits: int = 1,
) -> Block:
    """Rows on which fits are calibrated, drawn once for all of them.

    Parameters
    ----------
    fit, settings, lanes, engine, rarity
        As of :func:`calibrated`.
    n_fits : int, default=1
        Number of fits like it. Unless they go through :func:`calibrated_together` as one, their
        pilots share the time of one: beyond some rows, each has the fewer the more they are.
    """
    model = linear_model(fit)
    # Targets that are fitted together each have the pilot of their own fits.
    model = model if model.n_targets is None else model.of_target(0)
    n_sample = sample_size(sum(lane_rows(fit)), model, rarity)
    if n_fits > 1 and not (is_narrow(fit) and n_sample >= 2 * ENOUGH * model.shape[0]):
        n_sample = min(n_sample, max(n_sample // n_fits, SHARED_ROWS))
    return sample_rows(engine, lanes, n_sample, settings.seed, settings.validation_fraction)


def calibrated_on(fit: FitSpec, block: Block, seed: int) -> FitSpec:
    """The fit with what a pilot on a sample of its rows finds.

    Parameters
    ----------
    fit : FitSpec
        As of :func:`calibrated`.
    block : Block
        Of :func:`drawn_sample`.
    seed : int
        That of the fit.
    """
    # Products of few rows wait longer for threads than they take.
    with np.errstate(all="ignore"), OneThread():
        return _calibrated(fit, block, seed)


def calibrated_together(fits: Sequence[FitSpec], block: Block, seed: int) -> list[FitSpec]:
    """Fits of one model and optimizer with what pilots on the same rows find.

    Of few rows, or of models of other kinds, each has a pilot of its own.

    Parameters
    ----------
    fits : sequence of FitSpec
        As of :func:`calibrated`, alike but for penalties, rates and when they stop.
    block, seed
        As of :func:`calibrated_on`.
    """
    with np.errstate(all="ignore"), OneThread():
        first = Task.of(fits[0], block, seed)
        if first is None or len(fits) == 1 or not first.stacks(fits):
            return [_calibrated(fit, block, seed) for fit in fits]
        found = StackedPilot(first.pilot, [fit.steps.rule.only.penalty.l2 for fit in fits])
        tasks = [replace(first, fit=fit, unit=abs(float(value))) for fit, value in zip(
            fits, found.values(np.repeat(first.begin, len(fits), axis=1)), strict=True
        )]  # fmt: skip
        tried, w = (
            np.concatenate(points, axis=1).astype(first.begin.dtype)
            for points in found.starts(first.begin, ITERATIONS, first.whole)
        )
        opt_state = {name: np.repeat(s, len(fits), axis=1) for name, s in first.state_here.items()}
        own = {}
        if isinstance(first.optimizer, Adagrad | NAG):
            own = found.warmed(first.optimizer, w, opt_state, first.batch)
        factors = found.rates(
            first.optimizer, tried, own or opt_state, [task.base for task in tasks], first.batch,
            rate_search.calm if first.whole else rate_search.best,
        )  # fmt: skip
        return [
            task.found(w[:, k : k + 1], {n: s[:, k : k + 1] for n, s in own.items()}, factor)
            for k, (task, factor) in enumerate(zip(tasks, factors, strict=True))
        ]


def _calibrated(fit: FitSpec, block: Block, seed: int) -> FitSpec:
    if linear_model(fit).n_targets is not None:
        return _of_targets(fit, block, seed)
    task = Task.of(fit, block, seed)
    if task is None:
        return fit
    return task.calibrated()


def sample_size(n_rows: int, model: LinearModel, rarity: float) -> int:
    """Rows of the sample of a fit: as many as a pilot can go through in a tenth of its time."""
    d = model.n_features
    entries = d if model.touches is None or d <= FEW else max(2 * model.touches, 1)
    work = entries * (1 + model.width / 8) + 10 * model.width
    most = max(_WORK / work, n_rows * _SHARE)
    plenty = min(max(_PLENTY, _EACH * d * model.width) * rarity, _ROWS)
    # Of twice as many all are taken: their minimum is where the fit ends.
    plenty = n_rows if n_rows <= 2 * plenty else plenty
    return max(1, int(min(n_rows, most, max(_MOST / entries, 1024), plenty, _ROWS)))


def _of_targets(fit: FitSpec, block: Block, seed: int) -> FitSpec:
    """A fit of several targets with what pilots find of the fit of each alone."""
    model = linear_model(fit)
    alone = [_alone(fit, k) for k in range(model.width)]
    assert block.y is not None
    tasks = [
        Task.of(one, replace(block, y=block.y[:, k].copy()), seed) for k, one in enumerate(alone)
    ]
    told = next((task for task in tasks if task is not None), None)
    if told is None:
        return fit
    found = [
        one if task is None else task.calibrated() for one, task in zip(alone, tasks, strict=True)
    ]
    rates = [one.steps.rule.schedule(1, 0.0) for one in found]
    for k, (one, before) in enumerate(zip(found, alone, strict=True)):
        if one is before:  # at the rate of its own, in the units of the others
            rates[k] *= told.base / told.fit.steps.rule.schedule(1, 0.0)
    if model.loss.in_target_units:
        units = tuple(1.0 if task is None else task.unit for task in tasks)
        model = replace(model, units=units)
    opt_state = [(told if task is None else task).opt_state for task in tasks]
    return fit.working(
        model=model,
        initial=_side_by_side([one.steps.start_state(fit.rows.dtype) for one in found], opt_state),
        rule=told.rule.at_rates(rates),
    )


def _side_by_side(states: list[ShardState], fresh: list[dict[str, Any]]) -> ShardState:
    """One state of several; where one has optimizer state, the others begin with a fresh one."""
    names = next((tuple(state.opt_state) for state in states if state.opt_state), ())
    opt_state = {
        name: np.hstack(
            [s.opt_state.get(name, f[name]) for s, f in zip(states, fresh, strict=True)]
        )
        for name in names
    }
    return ShardState(np.hstack([state.w for state in states]), opt_state)


def _alone(fit: FitSpec, target: int) -> FitSpec:
    """The fit of one of several targets."""
    state, at = fit.steps.start_state(fit.rows.dtype), slice(target, target + 1)
    opt_state = {name: array[:, at].copy() for name, array in state.opt_state.items()}
    return fit.working(
        model=linear_model(fit).of_target(target),
        initial=ShardState(state.w[:, at].copy(), opt_state),
        rule=fit.steps.rule.at_rate_of(target),
    )
