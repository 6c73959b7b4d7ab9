"""Base class of the optimizers, options for groups of parameters, and checks of parameters.

An optimizer is one formula for one parameter (`elementwise_update`). It is compiled into loops over
many parameters, and :meth:`Optimizer.update` runs the same formula on whole arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from daskml_dist.backends.entries import lift_to_arrays, where
from daskml_dist.backends.namespace import namespace
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import ParameterObject
from daskml_dist.penalties import Penalty, soft_threshold

__all__ = [
    "Array",
    "GroupOptions",
    "Optimizer",
    "OptimizerState",
    "check_decay",
    "check_positive",
    "take_ftrl_step",
]

#: An array of NumPy, or of another library that follows the array API standard.
Array = Any
#: Arrays of the shape of the parameters, by the names in `Optimizer.state_names`.
OptimizerState = dict[str, Array]


class Optimizer(ParameterObject):
    """Base class of the optimizers: rules that turn gradients into steps.

    The rule is `elementwise_update`, written once: compiled loops call it for each parameter, and
    :meth:`update` runs the same lines on whole arrays, with identical bits. An optimizer that
    cannot be written in this way defines ``_descend(w, grad, opt_state, lr, step)`` instead, which
    changes `w` in place and returns the step size.

    Attributes
    ----------
    name : str
        Value of an estimator's ``optimizer`` parameter that selects it.
    default_learning_rate : float
    sparse_learning_rate : float or None
        Default learning rate if a step touches few of many parameters; None: the same.
    row_learning_rate : float or None
        Default learning rate if each sparse row is a step; None: as for sparse batches.
    rates_by_rows : bool
        Whether the default learning rate depends on the norm of the rows if no pilot finds one: the
        first steps have the size of the rate, and later ones become smaller automatically.
    state_names : tuple of str
        Names of the state arrays that are kept for each parameter.
    uses_scales : bool
        Whether it needs the scale of each feature, from a pass over the rows before the first step.
    whole_matrices : bool
        Whether a step needs a whole matrix, so that it cannot be made for some rows or entries
        only.
    row_wise : bool
        Whether it keeps one number for each row of the parameters, in arrays of one column: for
        tables with one row per id.
    adaptive : bool
        Whether its steps have the size of the learning rate at any scale of the gradient.
    elementwise_update : function or None
        Static, ``elementwise_update(state, k, grad, lr, coefficients)``: takes a step in entry k,
        in place, without l1. `state` is `w` followed by the arrays of `state_names`; `coefficients`
        is the result of :meth:`coefficients`, in the dtype of `w`, as is `lr`. Returns the step
        size: the factor on a constant gradient in the long run, so that fixed points under l1 are
        minima. It may use arithmetic, `math`, `min`, `max` and `backends.entries.where`, but no
        branches, so that numba can compile it and it also works on whole arrays. It uses no numbers
        other than `lr` and `coefficients`, since another dtype could widen the result.
    elementwise_update_l1 : function or None
        Static, ``elementwise_update_l1(state, k, grad, lr, l1, coefficients)``: a step under an l1
        penalty whose dual variables are in the state, at a rate that is not 0. None:
        `elementwise_update` followed by the penalty's proximal operator, which gives exact zeros
        (Duchi and Singer 2009).
    single_rows : bool
        Whether single rows may be steps, made by threads that race: a parameter that a row does not
        touch must not change, and no step may be longer than one from a new state, even if updates
        of the state are lost.

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
    whole_matrices: ClassVar[bool] = False
    row_wise: ClassVar[bool] = False
    adaptive: ClassVar[bool] = False
    elementwise_update: ClassVar[Any] = None
    elementwise_update_l1: ClassVar[Any] = None
    single_rows: ClassVar[bool] = False
    #: `elementwise_update` and `elementwise_update_l1` in the form that :meth:`update` uses.
    _own_rules: ClassVar[tuple[Any, Any]] = (None, None)

    def __init_subclass__(cls) -> None:
        # A subclass that overrides one form of the rule must not inherit the other forms: they
        # would compute something else.
        defined = cls.__dict__.keys()
        if {"_descend", "elementwise_update"} & defined:
            for name in {"elementwise_update", "elementwise_update_l1"} - defined:
                setattr(cls, name, None)
            cls._own_rules = cls.elementwise_update, cls.elementwise_update_l1
        # Compiled loops call only the rule, and would skip the code of an overridden `update`; the
        # parent's own `update` still uses `_own_rules`.
        if "update" in defined and "elementwise_update" not in defined:
            cls.elementwise_update = cls.elementwise_update_l1 = None

    def coefficients(self, step: int) -> tuple[float, ...]:
        """Return the numbers that a step (from 1) needs; it gets them in the dtype of `w`."""
        return ()

    def contraction(self, before: OptimizerState, opt_state: OptimizerState, lr: float) -> Any:
        """Return how much the steps between two states reduced the distance to the minimum.

        For each parameter, the sum of step size times curvature: the distance has shrunk by the
        factor ``exp(-contraction)``.

        Parameters
        ----------
        before, opt_state : dict of ndarray
            State before and after the steps.
        lr : float
            Learning rate of the steps.

        Returns
        -------
        ndarray of the shape of the parameters, or float
            Infinite if it cannot be computed from the state.
        """
        return math.inf

    def step_sizes(self, opt_state: OptimizerState) -> Any:
        """Return each parameter's step along a gradient of 1 at a rate of 1; or one for all."""
        return 1.0

    def under_l1(self) -> Optimizer:
        """Return the optimizer for objectives with an l1 part: this one, or one made for l1.

        An optimizer that keeps the dual variable of the l1 penalty for each parameter (as FTRL
        does) finds the zeros of the optimum. If the penalty is only a proximal step after each
        batch, the noise of the batches moves most parameters away from zero again.
        """
        return self

    def init(self, w: Array) -> OptimizerState:
        """Return the state before the first step: arrays of the shape and dtype of `w`."""
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
            Parameters, or some rows of them. Other threads may read them during the step, so only
            valid parameters are ever written there.
        grad : ndarray of the shape and dtype of `w`
            Gradient of the smooth part of the objective. Overwritten.
        opt_state : dict of ndarray
            State of the same rows, as :meth:`init` made it.
        lr : float, or array of shape (1, n_columns)
            Learning rate of this step, or one for each column.
        step : int
            Number of the step, from 1.
        l1 : float or ndarray that broadcasts to the shape of `w`, default=0.0
            Strength of the l1 penalty.
        """
        penalised = type(l1) is not float or l1 != 0
        moves = not isinstance(lr, float | int) or lr != 0  # rates per column are never 0
        if penalised and moves and self._own_rules[1] is not None:
            move, state, rate, coefficients = self._bind_rule(
                self._own_rules[1], w, opt_state, lr, step
            )
            move(state, ..., grad, rate, l1, coefficients)
            return
        rate = self._descend(w, grad, opt_state, lr, step)
        if penalised:
            soft_threshold(w, rate * l1)

    def _descend(self, w: Array, grad: Array, opt_state: OptimizerState, lr: Any, step: int) -> Any:
        """Take a step by `elementwise_update` on whole arrays, and return the step size."""
        move, state, rate, coefficients = self._bind_rule(
            self._own_rules[0], w, opt_state, lr, step
        )
        return move(state, ..., grad, rate, coefficients)

    def _bind_rule(self, rule: Any, w: Array, opt_state: OptimizerState, lr: Any, step: int) -> Any:
        """Return a rule for whole arrays, the state arrays, the rate and the coefficients."""
        xp = namespace(w)
        # Compiled loops have the rate in the dtype of `w`: products must be rounded in the same way
        # to get identical bits.
        rate = np.float32(lr) if xp is np and w.itemsize == 4 else lr
        state = w, *map(opt_state.__getitem__, self.state_names)
        return lift_to_arrays(rule, xp), state, rate, self.coefficients(step)


@dataclass(frozen=True)
class GroupOptions(ParameterObject):
    """Options for some parts of a model; None means the same as for the other parts.

    Parameters
    ----------
    optimizer : Optimizer or None
    penalty : Penalty or None
    rate : float, default=1.0
        Factor on the learning rate; 0 freezes the parts.

    Examples
    --------
    >>> from daskml_dist.optimizers import Adam, GroupOptions
    >>> GroupOptions(optimizer=Adam(), rate=0.1).rate
    0.1
    """

    optimizer: Optimizer | None = None
    penalty: Penalty | None = None
    rate: float = 1.0


def check_decay(name: str, value: float) -> None:
    """Raise InvalidParameterError for a number outside [0, 1)."""
    if not 0 <= value < 1:
        raise InvalidParameterError(f"{name}={value!r}: use a number >= 0 and < 1.")


def check_positive(name: str, value: float) -> None:
    """Raise InvalidParameterError for a number that is not positive and finite."""
    if not 0 < value < np.inf:
        raise InvalidParameterError(f"{name}={value!r}: use a finite number > 0.")


def take_ftrl_step(
    w: Array, duals: Array, bounds: Array, k: int, grad: Any, rate: Any, l1: Any
) -> None:
    """Take one FTRL-proximal step in entry k at a given rate, under the l1 penalty of all steps.

    `duals` holds the part of the summed gradients that does not follow from `w`, `bounds` the l1
    penalty summed over the steps so far: a parameter is zero as long as its dual is within the
    bound.
    """
    # FTRL-proximal (McMahan 2011) in terms of the dual, z + w / rate, which lies within the bound.
    # If w is not zero, the dual equals the bound, by the optimality condition of l1.
    dual = where(w[k] != 0, math.copysign(bounds[k], -w[k]), duals[k])
    # z + grad - (1 / rate - 1 / old_rate) * w with z = dual - w / old_rate: the old rate cancels,
    # so it need not be stored, and rates may change between steps.
    z = grad + dual - w[k] / rate
    bound = bounds[k] + l1
    dual = max(min(z, bound), -bound)  # projected; w becomes exactly 0 if z lies within
    bounds[k] = bound
    duals[k] = dual
    w[k] = (dual - z) * rate
