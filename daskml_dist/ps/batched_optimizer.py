"""Steps of many models together, each column with its own rate and penalty.

Candidates of a search that differ only in rate and penalty are columns of one matrix, so that the
rows of data are read once for all of them. Each column takes the same steps as its model would
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.entries import lift_to_arrays
from daskml_dist.backends.namespace import namespace, numbers
from daskml_dist.optimizers.base import Array, Optimizer, OptimizerState
from daskml_dist.penalties import soft_threshold
from daskml_dist.schedules import Constant


@dataclass(frozen=True, eq=False)
class BatchedOptimizer(Optimizer):
    """Optimizer of a matrix whose columns are independent models.

    The fit's schedule returns the number of passes done. It is passed in place of the learning
    rate, and each column's own schedule turns it into a rate. The fit's penalty has strength 1, and
    only marks which rows are penalised.

    Parameters
    ----------
    column_optimizer : Optimizer
        Optimizer of each column; must have an `elementwise_update`.
    schedules : tuple of callable
        Functions of (step, passes), all different.
    schedule_of : ndarray of int of shape (n_columns,)
        Number of each column's schedule.
    l1, l2 : ndarray of float64 of shape (n_columns,)
    steps_per_pass : float
    """

    column_optimizer: Optimizer
    schedules: tuple[Callable[[int, float], float], ...]
    schedule_of: NDArray[np.intp]
    l1: NDArray[np.float64]
    l2: NDArray[np.float64]
    steps_per_pass: float

    name = "stacked"

    @property
    def state_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the state names of the optimizer of each column."""
        return self.column_optimizer.state_names

    def init(self, w: Array) -> OptimizerState:
        """Return the state before the first step."""
        return self.column_optimizer.init(w)

    def rates(self, passes: float) -> NDArray[np.float64]:
        """Return the learning rates of all columns after a number of passes."""
        # Schedules count steps from 1; the fit passes the number of passes in place of a rate.
        step = round(passes * self.steps_per_pass) + 1
        return np.array([schedule(step, passes) for schedule in self.schedules])[self.schedule_of]

    def rates_of(self, passes: Sequence[float]) -> NDArray[np.float64]:
        """Return learning rates of shape (n_steps, n_columns), after the passes of each step."""
        # Constant rates are computed once for all steps.
        if all(type(schedule) is Constant for schedule in self.schedules):
            return np.repeat([self.rates(n_passes) for n_passes in passes[:1]], len(passes), axis=0)
        return np.array([self.rates(n_passes) for n_passes in passes])

    def update(
        self,
        w: Array,
        grad: Array,
        opt_state: OptimizerState,
        lr: float,
        step: int,
        l1: float | Array = 0.0,
    ) -> None:
        """Take one step in each column, in place."""
        xp = namespace(w)
        rate, l1_strength, l2_strength = (
            numbers(values, w)[None, :] for values in (self.rates(lr), self.l1, self.l2)
        )
        penalised = type(l1) is not float
        # The elementwise update changes w and the optimizer's state in place.
        state = w, *map(opt_state.__getitem__, self.state_names)
        coefficients, kind = self.column_optimizer.coefficients(step), type(self.column_optimizer)
        if penalised:
            grad += l1 * l2_strength * w
        # L1 uses the optimizer's own proximal step if it has one, else soft thresholding after the
        # step.
        if penalised and self.l1.any():
            strengths = l1 * l1_strength
            if kind.elementwise_update_l1 is not None:
                lift_to_arrays(kind.elementwise_update_l1, xp)(
                    state, ..., grad, rate, strengths, coefficients
                )
                return
            thresholds = (
                lift_to_arrays(kind.elementwise_update, xp)(state, ..., grad, rate, coefficients)
                * strengths
            )
            soft_threshold(w, thresholds)
            return
        lift_to_arrays(kind.elementwise_update, xp)(state, ..., grad, rate, coefficients)
