"""Base class of the optimizers."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from daskml_dist.backends.entries import of_arrays
from daskml_dist.backends.namespace import namespace
from daskml_dist.errors.names import NamedParameters
from daskml_dist.penalties import soft_threshold

__all__ = ["Array", "Optimizer", "OptimizerState"]

#: Of NumPy, or of another library that follows the array API standard.
Array = Any
OptimizerState = dict[str, Array]


class Optimizer(NamedParameters):
    """Base class of the optimizers: a rule that turns gradients into steps.

    The rule is `elementwise_update`, written once: compiled loops call it for each parameter, and
    :meth:`update` runs the same lines on whole arrays, to the same bits. An optimizer that cannot
    say it so has a ``_descend(w, grad, opt_state, lr, step)`` instead, which moves `w` in place and
    returns the step size.

    Attributes
    ----------
    name : str
        What an estimator's ``optimizer`` argument calls it.
    default_learning_rate : float
    sparse_learning_rate : float or None
        Default where a step touches few parameters of many; None: the same.
    row_learning_rate : float or None
        Default where single sparse rows are steps; None: as of sparse batches.
    rates_by_rows : bool
        Whether the default rate goes by the size of the rows, where no pilot finds one: first steps
        have the size of the rate, and later ones become short by themselves.
    state_names : tuple of str
        The state that it keeps for each parameter.
    uses_scales : bool
        Whether a pass over the rows tells it the scale of each feature before the first step.
    adaptive : bool
        Whether its steps have the size of the learning rate, whatever the gradient's scale.
    elementwise_update : function or None
        Static, ``elementwise_update(state, k, grad, lr, coefficients)``: a step in entry k, in
        place, without l1. `state` is `w` and then the optimizer's state in the order of
        `state_names`, `coefficients` what :meth:`coefficients` returns, in the dtype of `w` like
        `lr`. Returns the step size: the factor of a constant gradient in the long run, so that
        fixed points under l1 are minima. Arithmetic, `math`, `min`, `max` and
        `backends.entries.where` only, and no branches, so that numba compiles it, and arrays can
        take the place of entries. All numbers are `lr` and those of `coefficients`, since another's
        dtype could widen the result; what follows from these alone is made in :meth:`coefficients`.
    elementwise_update_l1 : function or None
        Static, ``elementwise_update_l1(state, k, grad, lr, l1, coefficients)``: a step under an l1
        penalty of which the optimizer keeps account, at a rate that is not 0. None:
        `elementwise_update`, and then the penalty's proximal operator, which gives exact zeros
        (Duchi and Singer 2009).
    single_rows : bool
        Whether rows may be steps of their own, by threads that race: a parameter that a row does
        not touch stays, and whatever state is lost, no step is longer than from a new state.

    Examples
    --------
    >>> from daskml_dist.optimizers import Optimizer, get_optimizer
    >>> isinstance(get_optimizer('sgd'), Optimizer)
    True
    """

    name: ClassVar[str]
    default_learning_rate: ClassVar[float]
    sparse_learning_rate: ClassVar[float | None] = None
    row_learning_rate: ClassVar[float | None] = None
    rates_by_rows: ClassVar[bool] = False
    state_names: ClassVar[tuple[str, ...]] = ()
    uses_scales: ClassVar[bool] = False
    adaptive: ClassVar[bool] = False
    elementwise_update: ClassVar[Any] = None
    elementwise_update_l1: ClassVar[Any] = None
    single_rows: ClassVar[bool] = False
    #: `elementwise_update` and `elementwise_update_l1` as :meth:`update` has them.
    _rules: ClassVar[tuple[Any, Any]] = (None, None)

    def __init_subclass__(cls) -> None:
        # A rule that is written anew is not its parent's, in part or in another form.
        own = cls.__dict__.keys()
        if {"_descend", "elementwise_update"} & own:
            for name in {"elementwise_update", "elementwise_update_l1"} - own:
                setattr(cls, name, None)
            cls._rules = cls.elementwise_update, cls.elementwise_update_l1
        # What is done around the parent's `update`, no loop does; the parent goes by its own rules.
        if "update" in own and "elementwise_update" not in own:
            cls.elementwise_update = cls.elementwise_update_l1 = None

    def coefficients(self, step: int) -> tuple[float, ...]:
        """Numbers that a step (from 1) needs for each entry; given to it in the dtype of `w`."""
        return ()

    def approach(self, before: OptimizerState, opt_state: OptimizerState, lr: float) -> Any:
        """Approach to the minimum by the steps between two states, in each parameter.

        The sum of step size times curvature: a parameter's distance to its minimum has fallen by
        the factor ``exp(-approach)``.

        Parameters
        ----------
        before, opt_state : dict of ndarray
            State before and after the steps.
        lr : float
            Their learning rate.

        Returns
        -------
        ndarray of the shape of the parameters, or float
            Infinite where the state does not tell.
        """
        return math.inf

    def under_l1(self) -> Optimizer:
        """The optimizer for objectives with an l1 part.

        One that keeps account of the penalty that each parameter owes has the zeros of the
        optimum; where the penalty is a proximal step alone, the noise of the batches undoes most.
        """
        return self

    def init(self, w: Array) -> OptimizerState:
        """State before the first step: arrays of the shape and dtype of `w`."""
        return {name: namespace(w).zeros_like(w) for name in self.state_names}

    def update(
        self,
        w: Array,
        grad: Array,
        opt_state: OptimizerState,
        lr: Any,
        step: int,
        l1: float | Array = 0.0,
    ) -> None:
        """Take one step, in place.

        Parameters
        ----------
        w : ndarray
            Parameters, or some rows of them. Others may read them meanwhile, so nothing but
            parameters is ever written there.
        grad : ndarray of the shape and dtype of `w`
            Gradient of the smooth part of the objective. Destroyed.
        opt_state : dict of ndarray
            State of the same rows, as :meth:`init` made it.
        lr : float, or array of shape (1, n_columns)
            Learning rate of this step; of columns that do not know of each other, that of each.
        step : int
            Number of the step, from 1.
        l1 : float or ndarray that broadcasts to the shape of `w`, default=0.0
            Strength of the l1 penalty.
        """
        penalised = type(l1) is not float or l1 != 0
        moves = not isinstance(lr, float | int) or lr != 0  # rates of columns are never 0
        if penalised and moves and self._rules[1] is not None:
            move, state, rate, coefficients = self._over(self._rules[1], w, opt_state, lr, step)
            move(state, ..., grad, rate, l1, coefficients)
            return
        rate = self._descend(w, grad, opt_state, lr, step)
        if penalised:
            soft_threshold(w, rate * l1)

    def _descend(self, w: Array, grad: Array, opt_state: OptimizerState, lr: Any, step: int) -> Any:
        """`elementwise_update` on whole arrays."""
        move, state, rate, coefficients = self._over(self._rules[0], w, opt_state, lr, step)
        return move(state, ..., grad, rate, coefficients)

    def _over(self, rule: Any, w: Array, opt_state: OptimizerState, lr: Any, step: int) -> Any:
        """A rule for entries as one for arrays, and what it is given beside gradients."""
        xp = namespace(w)
        # As a compiled loop has it: its product with another number is rounded so as well.
        rate = np.float32(lr) if xp is np and w.itemsize == 4 else lr
        state = w, *map(opt_state.__getitem__, self.state_names)
        return of_arrays(rule, xp), state, rate, self.coefficients(step)
