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
from daskml_dist.errors.signatures import NamedParameters
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


class Optimizer(NamedParameters):
    """Base class of the optimizers: a rule that turns gradients into steps.

    The rule is `elementwise_update`, written once: compiled loops call it for each parameter, and
    :meth:`update` runs the same lines on whole arrays, to the same bits. An optimizer that cannot
    be written in this way defines ``_descend(w, grad, opt_state, lr, step)`` instead, which moves
    `w` in place and returns the step size.

    Attributes
    ----------
    name : str
        Value of an estimator's ``optimizer`` parameter that chooses it.
    default_learning_rate : float
    sparse_learning_rate : float or None
        Default learning rate where a step touches few parameters of many; None: the same.
    row_learning_rate : float or None
        Default learning rate where each sparse row is a step; None: as for sparse batches.
    rates_by_rows : bool
        Whether the default learning rate is chosen by the size of the rows where no pilot finds
        one: first steps have the size of the rate, and later ones become short by themselves.
    state_names : tuple of str
        Names of the arrays of state that are kept for each parameter.
    uses_scales : bool
        Whether it needs the scale of each feature, from a pass over the rows before the first step.
    whole_matrices : bool
        Whether a step is of a whole matrix, so that it cannot be made of some rows or entries
        alone.
    row_wise : bool
        Whether it keeps one number for a row of the parameters, in arrays of one column: for rows
        of a table, which are of one id each.
    adaptive : bool
        Whether its steps have the size of the learning rate at any scale of the gradient.
    elementwise_update : function or None
        Static, ``elementwise_update(state, k, grad, lr, coefficients)``: takes a step in entry k,
        in place, without l1. `state` is `w` followed by the arrays of `state_names`; `coefficients`
        is the result of :meth:`coefficients`, in the dtype of `w`, as is `lr`. Returns the step
        size: the factor on a constant gradient in the long run, so that fixed points under l1 are
        minima. It may use arithmetic, `math`, `min`, `max` and `backends.entries.where`, and no
        branches, so that numba compiles it and whole arrays can take the place of entries. It uses
        no number but `lr` and `coefficients`, since another dtype could widen the result.
    elementwise_update_l1 : function or None
        Static, ``elementwise_update_l1(state, k, grad, lr, l1, coefficients)``: a step under an l1
        penalty whose duals are in the state, at a rate that is not 0. None:
        `elementwise_update`, and then the penalty's proximal operator, which gives exact zeros
        (Duchi and Singer 2009).
    single_rows : bool
        Whether single rows may be steps, made by threads that race: a parameter that a row does not
        touch must stay as it is, and no step may be longer than one from a new state, whatever
        update of the state is lost.

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
    #: `elementwise_update` and `elementwise_update_l1` as :meth:`update` has them.
    _own_rules: ClassVar[tuple[Any, Any]] = (None, None)

    def __init_subclass__(cls) -> None:
        # A subclass that overrides one form of the rule inherits none of the other forms: they
        # would compute something else.
        own = cls.__dict__.keys()
        if {"_descend", "elementwise_update"} & own:
            for name in {"elementwise_update", "elementwise_update_l1"} - own:
                setattr(cls, name, None)
            cls._own_rules = cls.elementwise_update, cls.elementwise_update_l1
        # Compiled loops call the rule alone and would skip what an overridden `update` adds; the
        # parent's own `update` still uses `_own_rules`.
        if "update" in own and "elementwise_update" not in own:
            cls.elementwise_update = cls.elementwise_update_l1 = None

    def coefficients(self, step: int) -> tuple[float, ...]:
        """Return the numbers that a step (from 1) needs, which it gets in the dtype of `w`."""
        return ()

    def contraction(self, before: OptimizerState, opt_state: OptimizerState, lr: float) -> Any:
        """Return how far the steps between two states have contracted the distance to the minimum.

        By parameter, the sum of step size times curvature: the distance has fallen by the factor
        ``exp(-contraction)``.

        Parameters
        ----------
        before, opt_state : dict of ndarray
            State before and after the steps.
        lr : float
            Their learning rate.

        Returns
        -------
        ndarray of the shape of the parameters, or float
            Infinite where it does not follow from the state.
        """
        return math.inf

    def under_l1(self) -> Optimizer:
        """Return the optimizer for objectives with an l1 part: itself, or one made for l1.

        An optimizer that keeps the dual of the l1 penalty for each parameter (as FTRL does) gives
        the zeros of the optimum. Where the penalty is only a proximal step after each batch, the
        noise of the batches moves most parameters away from zero again.
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
            Parameters, or some rows of them. Other threads may read them meanwhile, so nothing
            but parameters is ever written there.
        grad : ndarray of the shape and dtype of `w`
            Gradient of the smooth part of the objective. Destroyed.
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
        moves = not isinstance(lr, float | int) or lr != 0  # rates of columns are never 0
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
        """Take a step by `elementwise_update` on whole arrays, and return its size."""
        move, state, rate, coefficients = self._bind_rule(
            self._own_rules[0], w, opt_state, lr, step
        )
        return move(state, ..., grad, rate, coefficients)

    def _bind_rule(self, rule: Any, w: Array, opt_state: OptimizerState, lr: Any, step: int) -> Any:
        """Return a rule for whole arrays, the arrays of state, the rate and the coefficients."""
        xp = namespace(w)
        # Compiled loops have the rate in the dtype of `w`: products must be rounded as there, so
        # that both forms give the same bits.
        rate = np.float32(lr) if xp is np and w.itemsize == 4 else lr
        state = w, *map(opt_state.__getitem__, self.state_names)
        return lift_to_arrays(rule, xp), state, rate, self.coefficients(step)


@dataclass(frozen=True)
class GroupOptions(NamedParameters):
    """Options for some parts of a model; None: as for the other parts.

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
    """Raise InvalidParameterError for a number that is not positive, or not finite."""
    if not 0 < value < np.inf:
        raise InvalidParameterError(f"{name}={value!r}: use a finite number > 0.")


def take_ftrl_step(
    w: Array, duals: Array, bounds: Array, k: int, grad: Any, rate: Any, l1: Any
) -> None:
    """Take one FTRL-proximal step in entry k, at a given rate, with the l1 penalty of all steps.

    `duals` holds the part of the summed gradient that `w` does not tell, `bounds` the l1 penalty
    summed over the steps so far: a parameter is zero as long as its dual lies within the bound.
    """
    # FTRL-proximal (McMahan 2011) in terms of the dual, z + w / rate, which lies within the bound.
    # Where w is not zero, its dual is at the bound, by the optimality condition of l1.
    dual = where(w[k] != 0, math.copysign(bounds[k], -w[k]), duals[k])
    # z + grad - (1 / rate - 1 / old_rate) * w with z = dual - w / old_rate: the old rate cancels,
    # so it need not be stored, and rates may change between steps.
    z = grad + dual - w[k] / rate
    bound = bounds[k] + l1
    dual = max(min(z, bound), -bound)  # projected; w becomes exactly 0 if z lies within
    bounds[k] = bound
    duals[k] = dual
    w[k] = (dual - z) * rate
