"""Adagrad, and Adagrad with the scale of each feature as unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.namespace import namespace
from daskml_dist.errors import InvalidParameterError
from daskml_dist.optimizers.base import Array, Optimizer, OptimizerState, check_positive
from daskml_dist.optimizers.ftrl import FTRL

__all__ = ["NAG", "Adagrad"]


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011): a parameter's rate falls with the sum of its squared gradients.

    Parameters
    ----------
    epsilon : float, default=1e-10
        Added to the square root, to avoid division by zero.
    initial_accumulator : float, default=0.0
        Initial value of the sum; a larger value makes the first steps smaller.

    Examples
    --------
    >>> from daskml_dist.optimizers import Adagrad
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> clf = SGDClassifier(optimizer=Adagrad())
    >>> clf.optimizer.name
    'adagrad'
    """

    name = "adagrad"
    adaptive = True
    default_learning_rate = 0.05
    sparse_learning_rate = 0.2
    row_learning_rate = 0.1
    rates_by_rows = True
    state_names = ("accumulator",)
    single_rows = True
    epsilon: float = 1e-10
    initial_accumulator: float = 0.0

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        if not 0 <= self.initial_accumulator < np.inf:
            raise InvalidParameterError(
                f"initial_accumulator={self.initial_accumulator!r}: use a finite number >= 0."
            )

    def init(self, w: Array) -> OptimizerState:
        """Return the state before the first step."""
        return {"accumulator": namespace(w).full_like(w, float(self.initial_accumulator))}

    def under_l1(self) -> Optimizer:
        """Return Adagrad with FTRL's dual variables for the penalty."""
        # FTRL's first field, beta, is added to the square root, as epsilon is in Adagrad.
        return _SparseAdagrad(self.epsilon, self.initial_accumulator)

    def coefficients(self, step: int) -> tuple[float, ...]:
        """Return `epsilon`."""
        return (float(self.epsilon),)

    @staticmethod
    def elementwise_update(state: Any, k: int, grad: Any, lr: Any, coefficients: Any) -> Any:
        """Take one step in entry k."""
        accumulator = state[1][k] + grad * grad
        rate = lr / (math.sqrt(accumulator) + coefficients[0])
        state[1][k] = accumulator
        state[0][k] -= rate * grad
        return rate

    def contraction(self, before: OptimizerState, opt_state: OptimizerState, lr: float) -> Any:
        """Return the contraction, with squared gradients in place of the curvature (Fisher)."""
        return _adagrad_contraction(before, opt_state, lr)

    def step_sizes(self, opt_state: OptimizerState) -> Any:
        """Return each parameter's step along a gradient of 1 at a rate of 1."""
        return _adagrad_step_sizes(self, opt_state)


@dataclass(frozen=True)
class NAG(Optimizer):
    """Normalised adaptive gradient (Ross, Mineiro and Langford 2013), for unscaled features.

    Adagrad with the scale of each feature as its unit: a parameter's rate is divided by its
    feature's largest absolute value, and by the square root of the rows' mean squared norm in these
    units. Predictions do not change if a feature is given in other units. The paper learns the
    scales during the steps; here one pass before the first step finds them, so that all policies,
    lanes and resumed fits have the same scales. Only a stream raises them later, if its rows have
    larger values.

    Without scales (arrays of ones) it equals Adagrad.

    Examples
    --------
    >>> from daskml_dist.optimizers import NAG
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> clf = SGDClassifier(optimizer=NAG())
    >>> clf.optimizer.name
    'nag'
    """

    name = "nag"
    adaptive = True
    default_learning_rate = 0.5
    state_names = ("accumulator", "scale")
    uses_scales = True
    single_rows = True

    def init(self, w: Array) -> OptimizerState:
        """Return the state before the first step."""
        xp = namespace(w)
        return {"accumulator": xp.zeros_like(w), "scale": xp.ones_like(w)}

    def init_scaled(self, w: Array, scales: NDArray[np.float64], norm: float) -> OptimizerState:
        """Return the state before the first step, for features with known scales.

        Parameters
        ----------
        w : ndarray of shape (n_rows, width)
        scales : ndarray of shape (n_rows,)
            Largest absolute value of each feature.
        norm : float
            Mean over the rows of the summed squares of their features, each divided by its scale.
        """
        # Features that are always 0 get the unit 1: their gradients are 0 in any case.
        units = scales * np.sqrt(max(norm, 1e-12))
        scale = np.repeat(np.where(scales > 0, units, 1.0)[:, None], w.shape[1], axis=1)
        return {"accumulator": np.zeros_like(w), "scale": scale.astype(w.dtype)}

    def rescale(
        self, w: Array, opt_state: OptimizerState, scales: NDArray[np.float64], norm: float
    ) -> None:
        """Raise the scales for larger values, and shrink the parameters by the same factor.

        This is step 2(a) of the paper's algorithm 2; the squared gradients are converted to the new
        unit.
        """
        scale = np.maximum(opt_state["scale"], self.init_scaled(w, scales, norm)["scale"])
        shrink = opt_state["scale"] / scale
        w *= shrink
        opt_state["accumulator"] *= shrink**2
        opt_state["scale"] = scale

    @staticmethod
    def elementwise_update(state: Any, k: int, grad: Any, lr: Any, coefficients: Any) -> Any:
        """Take one step in entry k."""
        scale = state[2][k]
        # Divide by the scale first, so that squares neither overflow nor underflow in float32.
        grad = grad / scale
        accumulator = state[1][k] + grad * grad
        rate = lr / (math.sqrt(accumulator) + coefficients[0])
        state[1][k] = accumulator
        state[0][k] -= rate * grad / scale
        return rate / scale / scale

    def coefficients(self, step: int) -> tuple[float, ...]:
        """Return the number added to the square root: Adagrad's default epsilon."""
        return (1e-10,)

    def contraction(self, before: OptimizerState, opt_state: OptimizerState, lr: float) -> Any:
        """Return the contraction, with squared gradients in place of the curvature (Fisher)."""
        return _adagrad_contraction(before, opt_state, lr)

    def step_sizes(self, opt_state: OptimizerState) -> Any:
        """Return each parameter's step along a gradient of 1 at a rate of 1."""
        return _adagrad_step_sizes(self, opt_state) / opt_state["scale"] ** 2


@dataclass(frozen=True)
class _SparseAdagrad(FTRL):
    """Adagrad with FTRL's dual variables for the l1 penalty; without a penalty it is Adagrad."""

    name = Adagrad.name
    default_learning_rate = Adagrad.default_learning_rate
    sparse_learning_rate = Adagrad.sparse_learning_rate
    rates_by_rows = Adagrad.rates_by_rows
    row_learning_rate = Adagrad.row_learning_rate
    initial_accumulator: float = 0.0

    def init(self, w: Array) -> OptimizerState:
        opt_state = super().init(w)
        opt_state["n"] += self.initial_accumulator
        return opt_state


def _adagrad_step_sizes(optimizer: Optimizer, opt_state: OptimizerState) -> Array:
    """Return the inverse roots of the summed squared gradients, bounded by Adagrad's epsilon."""
    root = namespace(opt_state["accumulator"]).sqrt(opt_state["accumulator"])
    return 1 / (root + optimizer.coefficients(1)[0])


def _adagrad_contraction(old_state: OptimizerState, opt_state: OptimizerState, lr: float) -> Array:
    """Return the contraction, with summed squared gradients for the curvature (Fisher)."""
    # Each step has size lr / sqrt(G) and curvature g^2, and G grows by g^2. The sum of their
    # products is approximately the integral of lr / sqrt(G) over G.
    xp = namespace(opt_state["accumulator"])
    roots = xp.sqrt(opt_state["accumulator"]) - xp.sqrt(old_state["accumulator"])
    roots *= 2 * lr
    return roots
