"""Tasks of calibration: a fit, the pilot that it asks, and how it is changed by what that finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from daskml_dist.backends import get_backend
from daskml_dist.backends.devices import stored_dtype
from daskml_dist.data.blocks import Block
from daskml_dist.data.feature_scales import block_scales
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers import NAG, Adagrad, Optimizer
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant
from daskml_dist.training.coordinates import FEW
from daskml_dist.training.pilot import Pilot
from daskml_dist.training.spec import FitSpec
from daskml_dist.training.stacked_pilot import StackedPilot

__all__ = [
    "ITERATIONS",
    "SHARED_ROWS",
    "Task",
    "is_narrow",
    "lane_rows",
    "linear_model",
    "rows_of_a_step",
]

#: Rows of a sample that any number of fits share at least.
SHARED_ROWS = 1 << 11
#: Parameters that a sample may touch at most.
_PARAMETERS = 1 << 21
#: Largest value of all features, or its inverse, from which their units count.
_FAR = 10.0
#: Steps of the quasi-Newton method at most.
ITERATIONS = 200


def linear_model(fit: FitSpec) -> LinearModel:
    """The model of a fit."""
    model = fit.steps.model
    assert isinstance(model, LinearModel)
    return model


@dataclass(frozen=True, eq=False)
class Task:
    """A fit and the pilot that it asks.

    `columns` are the rows of the parameters that the sample touches and `begin` these in the
    beginning; `opt_state` is the optimizer's state of all, `rule` is in units that suit the
    features, `unit` the first loss. `whole`: the sample is all rows.
    """

    fit: FitSpec
    pilot: Pilot
    columns: Any
    opt_state: dict[str, Any]
    begin: Any
    rule: UpdateRule
    unit: float
    whole: bool

    @classmethod
    def of(cls, fit: FitSpec, block: Block, seed: int) -> Task | None:
        """The task of a fit; None where its sample tells nothing."""
        work, model = fit.steps, linear_model(fit)
        # Whoever trains on it says where it is.
        if block.n_rows == 0 or len(work.rule.groups) > 1:
            return None
        largest = _largest(block.rows)
        if not largest * largest * block.rows.size < np.inf:
            return None
        block = replace(block, rows=_stored(block.rows, fit))
        columns = _touched(block.rows, model)
        if not (columns < model.n_features).any() or len(columns) * model.width > _PARAMETERS:
            return None
        state = work.start_state(fit.rows.dtype)
        X = block.rows
        if len(columns) < model.shape[0]:
            X = X[:, columns[columns < model.n_features]]
        small = replace(model, n_features=X.shape[1])
        assert block.y is not None
        pilot = Pilot(
            small, X.astype(fit.rows.dtype, copy=False),
            model.encode(block.y, fit.rows.classes, fit.rows.dtype), fit.rows.weights(block),
            work.rule.only.penalty, seed,
        )  # fmt: skip
        begin = state.w[columns]
        unit = abs(pilot.value(begin))
        # A loss that is nothing for nothing tells of no rate, and one that is infinite of no start.
        if not 0 < unit < np.inf:
            return None
        rule = _in_units(work.rule, largest)
        opt_state = state.opt_state or _opt_state(rule.only.optimizer, state.w, block, model)
        whole = block.n_rows == sum(lane_rows(fit))
        return cls(fit, pilot, columns, opt_state, begin, rule, unit, whole)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer, in units that suit the features."""
        return self.rule.only.optimizer

    @property
    def batch(self) -> int:
        """Rows of a step."""
        return rows_of_a_step(self.fit)

    @property
    def base(self) -> float:
        """The rate that factors are of."""
        before = self.fit.steps.rule
        base = before.schedule(1, 0.0) * self.optimizer.default_learning_rate
        return base / before.only.optimizer.default_learning_rate

    @property
    def state_here(self) -> dict[str, Any]:
        """State of the parameters that the sample touches."""
        return {name: array[self.columns] for name, array in self.opt_state.items()}

    def stacks(self, fits: Sequence[FitSpec]) -> bool:
        """Whether pilots of all fits can be columns, with this one's."""
        # A minimum of few rows is found to more digits.
        if self.whole and self.pilot.n_rows <= SHARED_ROWS:
            return False
        rules = [fit.steps.rule.only for fit in fits]
        if any(rule.optimizer != rules[0].optimizer for rule in rules):
            return False
        if type(self.optimizer).elementwise_update is None or not all(map(is_narrow, fits)):
            return False
        return StackedPilot.serves(self.pilot, len(fits))

    def calibrated(self) -> FitSpec:
        """The fit with what its own pilot finds."""
        start = _Start(self.pilot, self.optimizer, self.batch, self.base)
        return self.found(*start.of(self.begin, self.state_here, self.whole))

    def found(self, w: Any, own: dict[str, Any], factor: float) -> FitSpec:
        """The fit with what the pilot has found."""
        fit, work, columns = self.fit, self.fit.steps, self.columns
        if not (np.isfinite(w).all() and all(np.isfinite(array).all() for array in own.values())):
            return fit
        if work.single_rows and "accumulator" in own:
            # Squares of the rows' own gradients, of those of their means.
            own["accumulator"] *= self.batch**2
        start, stopping = work.start_state(fit.rows.dtype), work.stopping
        opt_state = {name: array.copy() for name, array in self.opt_state.items()}
        start.w[columns] = w
        for name, array in own.items():
            opt_state[name][columns] = array
        if linear_model(fit).loss.in_target_units and stopping.tol is not None:
            stopping = replace(stopping, tol=stopping.tol * self.unit)
        rule = replace(self.rule, groups=tuple(
            replace(group, penalty=own_group.penalty)
            for group, own_group in zip(self.rule.groups, work.rule.groups, strict=True)
        ), schedule=Constant(self.base * factor))  # fmt: skip
        return fit.working(
            initial=ShardState(start.w, opt_state if own else {}), rule=rule, stopping=stopping
        )


def is_narrow(fit: FitSpec) -> bool:
    """Whether a fit is of one output and of few, dense features, without an l1 penalty."""
    model, rules = linear_model(fit), fit.steps.rule.groups
    dense = model.touches is None and model.n_features <= FEW
    return (
        dense
        and model.width == 1
        and model.n_targets is None
        and not any(rule.penalty.l1 for rule in rules)
    )


def _stored(X: Any, fit: FitSpec) -> Any:
    """Rows as a GPU is to store them."""
    kind = fit.rows.compute_dtype
    if kind is None or sparse.issparse(X) or get_backend(fit.run.device).device == "cpu":
        return X
    return X.astype(stored_dtype(kind)).astype(fit.rows.dtype)


def _touched(X: Any, model: LinearModel) -> Any:
    """Rows of the parameters that rows of data touch: of others nothing can be told."""
    if not sparse.issparse(X):
        return np.arange(model.shape[0])
    return np.append(np.unique(X.indices), np.arange(model.n_features, model.shape[0]))


def _in_units(rule: UpdateRule, largest: float) -> UpdateRule:
    """The rule, of Adagrad in the units of each feature where these are far apart."""
    if type(rule.only.optimizer) is not Adagrad:
        return rule
    # A small column among others matters little; a large one is all that matters.
    if not largest or 1 / _FAR <= largest <= _FAR:
        return rule
    return replace(rule, groups=(replace(rule.only, optimizer=NAG()),))


@dataclass(frozen=True, eq=False)
class _Start:
    """The search for a start and a rate.

    Parameters
    ----------
    pilot : Pilot
    optimizer : Optimizer
    batch : int
        Rows of a step.
    base : float
        The rate that factors are of.
    """

    pilot: Pilot
    optimizer: Optimizer
    batch: int
    base: float

    def of(
        self, begin: Any, opt_state: dict[str, Any], whole: bool
    ) -> tuple[Any, dict[str, Any], float]:
        """Parameters, the optimizer's state (empty: a fresh one), and the factor.

        `whole`: the sample is all rows, so that its minimum is where the fit ends.
        """
        pilot = self.pilot
        if whole:
            w, settled = pilot.minimum(begin, ITERATIONS)
            tried = w
        else:
            tried, n_iter = pilot.of_half(begin, ITERATIONS)
            w, settled = pilot.minimum(begin, max(n_iter, 1))[0], False
        w, tried = w.astype(begin.dtype), tried.astype(begin.dtype)
        rate = pilot.calm_rate if settled else pilot.best_rate
        own = self._warmed(w, opt_state)
        return w, own, rate(self.optimizer, tried, own or opt_state, self.base, self.batch)

    def _warmed(self, w: Any, opt_state: dict[str, Any]) -> dict[str, Any]:
        # Sums of squares, but no moments, can be those of steps that never were.
        if not isinstance(self.optimizer, Adagrad | NAG):
            return {}
        return self.pilot.warmed(self.optimizer, w, opt_state, self.batch)


def _opt_state(optimizer: Optimizer, w: Any, block: Block, model: LinearModel) -> dict[str, Any]:
    """State of an optimizer before its first step."""
    if not isinstance(optimizer, NAG):
        return optimizer.init(w)
    scales = block_scales(block)
    if model.fit_intercept:
        scales = scales.with_intercept()
    return optimizer.init_scaled(w, scales.largest, scales.norm)


def _largest(X: Any) -> float:
    """The largest absolute value; NaN where there is one."""
    values = X.data if sparse.issparse(X) else X
    return max(float(values.max()), -float(values.min())) if values.size else 0.0


def rows_of_a_step(fit: FitSpec) -> int:
    """Rows of one step of the parameters."""
    rows_of_lanes, policy = lane_rows(fit), fit.steps.policy
    together = policy.lockstep and not policy.averages
    rows = sum(rows_of_lanes) if together else max(rows_of_lanes) * policy.push_every
    return max(1, -(-rows // fit.steps.n_steps))


def lane_rows(fit: FitSpec) -> tuple[int, ...]:
    """Rows of each lane; of lanes of columns, which have the same ones, of the first."""
    return fit.rows.lane_rows if fit.steps.columns is None else fit.rows.lane_rows[:1]
