"""Base class of the optimizers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from daskml_dist.backends.namespace import namespace
from daskml_dist.penalties import soft_threshold

__all__ = ["Array", "Optimizer", "Slots"]

#: Of NumPy, or of another library that follows the array API standard.
Array = Any
Slots = dict[str, Array]


class Optimizer(ABC):
    """A rule that turns gradients into steps.

    Attributes
    ----------
    name : str
        What an estimator's ``optimizer`` argument calls it.
    default_learning_rate : float
    slot_names : tuple of str
        The state that it keeps for each parameter.
    uses_scales : bool
        Whether a pass over the rows tells it the scale of each feature before the first step.
    adaptive : bool
        Whether its steps have the size of the learning rate, whatever the gradient's scale.
    at_entry : function or None
        Static: `update` without l1 for entry k of 1-d arrays, in place; `state` is `w` and then
        the slots in the order of `slot_names`, `numbers` what :meth:`numbers` returns. Returns the
        step size. Arithmetic and `math` only, so that numba compiles it. None: the optimizer has
        only its array form.
    single_rows : bool
        Whether rows may be steps of their own, by threads that race: a parameter that a row does
        not touch stays, and whatever state is lost, no step is longer than from a new state.
    """

    name: ClassVar[str]
    default_learning_rate: ClassVar[float]
    slot_names: ClassVar[tuple[str, ...]] = ()
    uses_scales: ClassVar[bool] = False
    adaptive: ClassVar[bool] = False
    at_entry: ClassVar[Any] = None
    single_rows: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        # Whoever writes the array form anew must do so with both.
        if {"update", "_descend"} & cls.__dict__.keys() and "at_entry" not in cls.__dict__:
            cls.at_entry = None

    def numbers(self, step: int) -> tuple[float, ...]:
        """Numbers that a step (from 1) needs for each entry; given to it in the dtype of `w`."""
        return ()

    def approach(self, before: Slots, slots: Slots, lr: float) -> Any:
        """How far steps between two states led towards the minimum, in each parameter.

        The sum of step size times curvature: a parameter's distance to its minimum has fallen by
        the factor ``exp(-approach)``.

        Parameters
        ----------
        before, slots : dict of ndarray
            State before and after the steps.
        lr : float
            Their learning rate.

        Returns
        -------
        ndarray of the shape of the slots, or float
            Infinite where the state does not tell.
        """
        return math.inf

    def under_l1(self) -> Optimizer:
        """The optimizer for objectives with an l1 part.

        One that keeps account of the penalty that each parameter owes has the zeros of the
        optimum; where the penalty is a proximal step alone, the noise of the batches undoes most.
        """
        return self

    def init(self, w: Array) -> Slots:
        """State before the first step: arrays of the shape and dtype of `w`."""
        return {name: namespace(w).zeros_like(w) for name in self.slot_names}

    def update(
        self, w: Array, grad: Array, slots: Slots, lr: float, step: int, l1: float | Array = 0.0
    ) -> None:
        """Take one step, in place.

        Parameters
        ----------
        w : ndarray
            Parameters, or some rows of them. Others may read them meanwhile, so nothing but
            parameters is ever written there.
        grad : ndarray of the shape and dtype of `w`
            Gradient of the smooth part of the objective. Destroyed.
        slots : dict of ndarray
            State of the same rows, as :meth:`init` made it.
        lr : float
            Learning rate of this step.
        step : int
            Number of the step, from 1.
        l1 : float or ndarray that broadcasts to the shape of `w`, default=0.0
            Strength of the l1 penalty; applied by its proximal operator, which gives exact
            zeros (Duchi and Singer 2009).
        """
        rate = self._descend(w, grad, slots, lr, step)
        if not (isinstance(l1, float) and l1 == 0):
            soft_threshold(w, rate * l1)

    @abstractmethod
    def _descend(self, w: Array, grad: Array, slots: Slots, lr: float, step: int) -> Any:
        """Move `w` along `grad`; return the step size (a float, or one for each parameter).

        The step size is the factor of a constant gradient in the long run, so that fixed
        points under l1 are minima.
        """
