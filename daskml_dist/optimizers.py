"""Optimizers: how a gradient becomes a step, in place.

Every update is elementwise, so rows that a sparse batch touches can be gathered, updated and put
back. An optimizer itself holds no state: it lives in `slots`, arrays of the shape of the
parameters, which shards cut and move along with them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.namespace import namespace
from daskml_dist.errors import InvalidParameterError
from daskml_dist.penalties import soft_threshold

__all__ = [
    "FTRL",
    "NAG",
    "OPTIMIZERS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Momentum",
    "Nesterov",
    "Optimizer",
    "get_optimizer",
]

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


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent (Robbins and Monro 1951)."""

    name = "sgd"
    default_learning_rate = 0.01
    single_rows = True

    def under_l1(self) -> Optimizer:
        """With FTRL's account of the penalty."""
        return _SparseSGD()

    def _descend(self, w: Array, grad: Array, slots: Slots, lr: float, step: int) -> float:
        grad *= lr
        w -= grad
        return lr

    @staticmethod
    def at_entry(state: Any, k: int, grad: Any, lr: Any, numbers: Any) -> Any:
        """Take one step in entry k."""
        state[0][k] -= lr * grad
        return lr


@dataclass(frozen=True)
class Momentum(Optimizer):
    """SGD with the momentum of a heavy ball (Polyak 1964): ``v = momentum * v + grad``.

    Parameters
    ----------
    momentum : float, default=0.9
        From 0 up to, not including, 1.
    """

    name = "momentum"
    default_learning_rate = 0.01
    slot_names = ("velocity",)
    momentum: float = 0.9

    def __post_init__(self) -> None:
        _check_decay("momentum", self.momentum)

    def _descend(self, w: Array, grad: Array, slots: Slots, lr: float, step: int) -> float:
        velocity = slots["velocity"]
        velocity *= self.momentum
        velocity += grad
        w -= velocity * lr
        return lr / (1 - self.momentum)

    def numbers(self, step: int) -> tuple[float, ...]:
        """`momentum`, and how far a step leads in the long run, in learning rates."""
        return self.momentum, 1 / (1 - self.momentum)

    @staticmethod
    def at_entry(state: Any, k: int, grad: Any, lr: Any, numbers: Any) -> Any:
        """Take one step in entry k."""
        velocity = numbers[0] * state[1][k] + grad
        state[1][k] = velocity
        state[0][k] -= lr * velocity
        return lr * numbers[1]


@dataclass(frozen=True)
class Nesterov(Momentum):
    """SGD with Nesterov's accelerated gradient (Nesterov 1983, Sutskever et al. 2013).

    The step is ``grad + momentum * v``: `w` stands for the point looked ahead to.

    Parameters
    ----------
    momentum : float, default=0.9
        From 0 up to, not including, 1.
    """

    name = "nesterov"

    def _descend(self, w: Array, grad: Array, slots: Slots, lr: float, step: int) -> float:
        velocity = slots["velocity"]
        velocity *= self.momentum
        velocity += grad
        grad += velocity * self.momentum
        grad *= lr
        w -= grad
        return lr / (1 - self.momentum)

    @staticmethod
    def at_entry(state: Any, k: int, grad: Any, lr: Any, numbers: Any) -> Any:
        """Take one step in entry k."""
        velocity = numbers[0] * state[1][k] + grad
        state[1][k] = velocity
        state[0][k] -= lr * (grad + numbers[0] * velocity)
        return lr * numbers[1]


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011): each parameter's rate falls with its summed squared gradients.

    Parameters
    ----------
    epsilon : float, default=1e-10
        Added to the root, against division by zero.
    initial_accumulator : float, default=0.0
        Sum to start from; larger is slower at first.
    """

    name = "adagrad"
    adaptive = True
    default_learning_rate = 0.05
    slot_names = ("accumulator",)
    single_rows = True
    epsilon: float = 1e-10
    initial_accumulator: float = 0.0

    def __post_init__(self) -> None:
        _check_positive("epsilon", self.epsilon)
        if not 0 <= self.initial_accumulator < np.inf:
            raise InvalidParameterError(
                f"initial_accumulator={self.initial_accumulator!r}: use a finite number >= 0."
            )

    def init(self, w: Array) -> Slots:
        """State before the first step."""
        return {"accumulator": namespace(w).full_like(w, float(self.initial_accumulator))}

    def under_l1(self) -> Optimizer:
        """With FTRL's account of the penalty."""
        return _SparseAdagrad(self.epsilon, self.initial_accumulator)

    def numbers(self, step: int) -> tuple[float, ...]:
        """`epsilon`."""
        return (float(self.epsilon),)

    @staticmethod
    def at_entry(state: Any, k: int, grad: Any, lr: Any, numbers: Any) -> Any:
        """Take one step in entry k."""
        accumulator = state[1][k] + grad * grad
        rate = lr / (math.sqrt(accumulator) + numbers[0])
        state[1][k] = accumulator
        state[0][k] -= rate * grad
        return rate

    def approach(self, before: Slots, slots: Slots, lr: float) -> Any:
        """See :meth:`Optimizer.approach`; squared gradients stand for the curvature (Fisher)."""
        return _adagrad_approach(before, slots, lr)

    def _descend(self, w: Array, grad: Array, slots: Slots, lr: float, step: int) -> Array:
        accumulator = slots["accumulator"]
        accumulator += grad * grad
        rate = namespace(w).sqrt(accumulator)
        rate += self.epsilon
        rate = lr / rate
        grad *= rate
        w -= grad
        return rate


@dataclass(frozen=True)
class NAG(Optimizer):
    """Normalised adaptive gradient (Ross, Mineiro and Langford 2013): unscaled features just work.

    Adagrad in the units of each feature: a parameter's rate is divided by its feature's largest
    absolute value, and by the root of what the rows add up to in these units. Predictions do not
    change when a feature is given in other units. The paper learns the scales as rows come by;
    here they are known from one pass before the first step, so that every policy, lane and
    resumed fit has the same ones.

    Without scales (plain arrays of ones) it is Adagrad.
    """

    name = "nag"
    adaptive = True
    default_learning_rate = 0.5
    slot_names = ("accumulator", "scale")
    uses_scales = True
    single_rows = True

    def init(self, w: Array) -> Slots:
        """State before the first step."""
        xp = namespace(w)
        return {"accumulator": xp.zeros_like(w), "scale": xp.ones_like(w)}

    def init_scaled(self, w: Array, scales: NDArray[np.float64], norm: float) -> Slots:
        """State before the first step, for features of known scales.

        Parameters
        ----------
        w : ndarray of shape (n_rows, width)
        scales : ndarray of shape (n_rows,)
            Largest absolute value of each feature.
        norm : float
            Mean over the rows of the summed squares of their features, each in units of its
            scale.
        """
        units = scales * np.sqrt(max(norm, 1e-12))
        scale = np.repeat(np.where(scales > 0, units, 1.0)[:, None], w.shape[1], axis=1)
        return {"accumulator": np.zeros_like(w), "scale": scale.astype(w.dtype)}

    def rescale(self, w: Array, slots: Slots, scales: NDArray[np.float64], norm: float) -> None:
        """Go on with rows of larger values: parameters shrink as in the paper's step 2a."""
        scale = np.maximum(slots["scale"], self.init_scaled(w, scales, norm)["scale"])
        shrink = slots["scale"] / scale
        w *= shrink
        slots["accumulator"] *= shrink**2
        slots["scale"] = scale

    @staticmethod
    def at_entry(state: Any, k: int, grad: Any, lr: Any, numbers: Any) -> Any:
        """Take one step in entry k."""
        scale = state[2][k]
        grad = grad / scale
        accumulator = state[1][k] + grad * grad
        rate = lr / (math.sqrt(accumulator) + numbers[0])
        state[1][k] = accumulator
        state[0][k] -= rate * grad / scale
        return rate / scale / scale

    def numbers(self, step: int) -> tuple[float, ...]:
        """What is added to the root, against division by zero."""
        return (1e-10,)

    def approach(self, before: Slots, slots: Slots, lr: float) -> Any:
        """See :meth:`Optimizer.approach`; squared gradients stand for the curvature (Fisher)."""
        return _adagrad_approach(before, slots, lr)

    def _descend(self, w: Array, grad: Array, slots: Slots, lr: float, step: int) -> Array:
        accumulator, scale = slots["accumulator"], slots["scale"]
        # In units of the scale, so that squares neither overflow nor vanish in float32.
        grad /= scale
        accumulator += grad * grad
        rate = namespace(w).sqrt(accumulator)
        rate += 1e-10
        rate = lr / rate
        grad *= rate
        grad /= scale
        w -= grad
        rate /= scale
        rate /= scale
        return rate


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015), with the paper's correction of the bias towards zero.

    Rows that a sparse batch does not touch keep their moments ("lazy" Adam).

    Parameters
    ----------
    beta1, beta2 : float, default=0.9, 0.999
        Decay of the first and second moment, from 0 up to, not including, 1.
    epsilon : float, default=1e-8
        Added to the root, against division by zero.
    """

    name = "adam"
    adaptive = True
    default_learning_rate = 1e-3
    slot_names = ("m", "v")
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _check_decay("beta1", self.beta1)
        _check_decay("beta2", self.beta2)
        _check_positive("epsilon", self.epsilon)

    def _descend(self, w: Array, grad: Array, slots: Slots, lr: float, step: int) -> Array:
        m, v = slots["m"], slots["v"]
        square = grad * grad
        square *= 1 - self.beta2
        v *= self.beta2
        v += square
        grad *= 1 - self.beta1
        m *= self.beta1
        m += grad
        rate = namespace(w).sqrt(v)
        rate /= (1 - self.beta2**step) ** 0.5
        rate += self.epsilon
        rate = lr / rate
        move = m * rate
        move /= 1 - self.beta1**step
        w -= move
        return rate

    def numbers(self, step: int) -> tuple[float, ...]:
        """Decays and what they leave, corrections of m and of v's root, `epsilon`, decay of w."""
        p, q = self.beta1, self.beta2
        return p, 1 - p, q, 1 - q, 1 - p**step, (1 - q**step) ** 0.5, self.epsilon, 0.0

    @staticmethod
    def at_entry(state: Any, k: int, grad: Any, lr: Any, numbers: Any) -> Any:
        """Take one step in entry k."""
        m = numbers[0] * state[1][k] + numbers[1] * grad
        v = numbers[2] * state[2][k] + numbers[3] * grad * grad
        rate = lr / (math.sqrt(v) / numbers[5] + numbers[6])
        state[1][k] = m
        state[2][k] = v
        state[0][k] -= lr * numbers[7] * state[0][k] + rate * m / numbers[4]
        return rate


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    All rows given decay, an intercept's too.

    Parameters
    ----------
    beta1, beta2 : float, default=0.9, 0.999
        Decay of the first and second moment, from 0 up to, not including, 1.
    epsilon : float, default=1e-8
        Added to the root, against division by zero.
    weight_decay : float, default=1e-2
        Each step shrinks `w` by the factor ``1 - lr * weight_decay``.
    """

    name = "adamw"
    weight_decay: float = 1e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.weight_decay < np.inf:
            raise InvalidParameterError(
                f"weight_decay={self.weight_decay!r}: use a finite number >= 0."
            )

    def _descend(self, w: Array, grad: Array, slots: Slots, lr: float, step: int) -> Array:
        w *= 1 - lr * self.weight_decay
        return super()._descend(w, grad, slots, lr, step)

    at_entry = staticmethod(Adam.at_entry)

    def numbers(self, step: int) -> tuple[float, ...]:
        """Those of Adam, with `weight_decay`."""
        return *super().numbers(step)[:-1], self.weight_decay


@dataclass(frozen=True)
class FTRL(Optimizer):
    """FTRL-Proximal (McMahan 2011, McMahan et al. 2013): Adagrad's rates, and sparser under l1.

    After step t, `w` minimises the sum of all gradients so far, the l1 penalty of all steps so
    far (``t * l1``, so that it weighs against the mean loss), and the proximity to the points
    passed. The rate of a parameter is ``lr / (beta + sqrt(n))``.

    Of the papers' z only the part is kept that `w` does not tell, the dual
    ``z + w / rate`` (in ``[-bound, bound]``). So the learning rate may change between steps, and
    `w` be set from outside.

    Parameters
    ----------
    beta : float, default=1.0
        Larger is slower at first.
    """

    name = "ftrl"
    adaptive = True
    default_learning_rate = 0.1
    slot_names: ClassVar[tuple[str, ...]] = ("n", "dual", "bound")
    beta: float = 1.0

    def __post_init__(self) -> None:
        _check_positive("beta", self.beta)

    def update(
        self, w: Array, grad: Array, slots: Slots, lr: float, step: int, l1: float | Array = 0.0
    ) -> None:
        """Take one step, in place; see :meth:`Optimizer.update`."""
        rate = self._rate(grad, slots, lr)
        if lr == 0 or (isinstance(l1, float) and l1 == 0):
            grad *= rate
            w -= grad
            return
        dual, bound = slots["dual"], slots["bound"]
        xp = namespace(w)
        dual[...] = xp.where(w != 0, xp.copysign(bound, -w), dual)
        z = grad
        z += dual
        z -= w / rate
        bound += l1
        dual[...] = xp.maximum(xp.minimum(z, bound), -bound)
        w[...] = (dual - z) * rate

    def _descend(self, w: Array, grad: Array, slots: Slots, lr: float, step: int) -> Array:
        rate = self._rate(grad, slots, lr)
        grad *= rate
        w -= grad
        return rate

    def numbers(self, step: int) -> tuple[float, ...]:
        """`beta`."""
        return (self.beta,)

    def _rate(self, grad: Array, slots: Slots, lr: float) -> Array:
        n = slots["n"]
        n += grad * grad
        root = namespace(n).sqrt(n)
        root += self.beta
        return lr / root


@dataclass(frozen=True)
class _SparseAdagrad(FTRL):
    """Adagrad's steps, with FTRL's account of the l1 penalty; without one it is Adagrad."""

    name = Adagrad.name
    default_learning_rate = Adagrad.default_learning_rate
    initial_accumulator: float = 0.0

    def init(self, w: Array) -> Slots:
        slots = super().init(w)
        slots["n"] += self.initial_accumulator
        return slots


@dataclass(frozen=True)
class _SparseSGD(FTRL):
    """SGD's steps, with FTRL's account of the l1 penalty; without one it is SGD."""

    name = SGD.name
    adaptive = SGD.adaptive
    default_learning_rate = SGD.default_learning_rate
    slot_names = ("dual", "bound")

    def _rate(self, grad: Array, slots: Slots, lr: float) -> Any:
        return lr


def _adagrad_approach(before: Slots, slots: Slots, lr: float) -> Array:
    # The sum of lr g^2 / sqrt(G) over the steps, as an integral over G.
    xp = namespace(slots["accumulator"])
    roots = xp.sqrt(slots["accumulator"]) - xp.sqrt(before["accumulator"])
    roots *= 2 * lr
    return roots


def _check_decay(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise InvalidParameterError(f"{name}={value!r}: use a number >= 0 and < 1.")


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < np.inf:
        raise InvalidParameterError(f"{name}={value!r}: use a finite number > 0.")


OPTIMIZERS: dict[str, type[Optimizer]] = {
    optimizer.name: optimizer
    for optimizer in (SGD, Momentum, Nesterov, Adagrad, NAG, Adam, AdamW, FTRL)
}


def get_optimizer(optimizer: str | Optimizer) -> Optimizer:
    """Return the optimizer of a name, or the object itself.

    Parameters
    ----------
    optimizer : str or Optimizer

    Raises
    ------
    InvalidParameterError
        For an unknown name.
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    if isinstance(optimizer, str) and optimizer in OPTIMIZERS:
        return OPTIMIZERS[optimizer]()
    raise InvalidParameterError(
        f"optimizer={optimizer!r}: use one of {list(OPTIMIZERS)}, or an object of their classes "
        "in daskml_dist.optimizers."
    )
