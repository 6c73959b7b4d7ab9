"""Activations of hidden layers, in place on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from daskml_dist.backends.namespace import cast, is_host, namespace

__all__ = ["ACTIVATIONS", "Activation"]


@dataclass(frozen=True)
class Activation:
    """An activation, entry by entry.

    Parameters
    ----------
    apply : callable
        Takes an array and makes its activations of it, in place.
    pull_back : callable
        Takes the gradient with respect to activations, and these; multiplies the gradient by the
        derivative there, in place.
    factor : float
        Its root, over that of the sum of inputs and outputs, is the bound of initial weights.
    """

    apply: Callable[[Any], None]
    pull_back: Callable[[Any, Any], None]
    factor: float = 6.0

    def bound_of(self, n_inputs: int, n_outputs: int) -> float:
        """Bound of the initial weights of a layer.

        X. Glorot and Y. Bengio, "Understanding the difficulty of training deep feedforward neural
        networks", AISTATS 2010.
        """
        return float((self.factor / (n_inputs + n_outputs)) ** 0.5)


def _nothing(*arrays: Any) -> None:
    """Activations that are what they are made of."""


def _relu(z: Any) -> None:
    if is_host(z):
        np.maximum(z, 0, out=z)
    else:
        z[...] = namespace(z).maximum(z, 0)


def _relu_back(gradient: Any, a: Any) -> None:
    gradient *= a > 0 if is_host(a) else cast(a > 0, a.dtype)


def _tanh(z: Any) -> None:
    if is_host(z):
        np.tanh(z, out=z)
    else:
        z[...] = namespace(z).tanh(z)


def _tanh_back(gradient: Any, a: Any) -> None:
    gradient *= 1 - a * a


def _logistic(z: Any) -> None:
    if is_host(z):
        expit(z, out=z)
    else:
        z[...] = 1 / (1 + namespace(z).exp(-z))


def _logistic_back(gradient: Any, a: Any) -> None:
    gradient *= a * (1 - a)


ACTIVATIONS: dict[str, Activation] = {
    "identity": Activation(_nothing, _nothing),
    "logistic": Activation(_logistic, _logistic_back, factor=2.0),
    "relu": Activation(_relu, _relu_back),
    "tanh": Activation(_tanh, _tanh_back),
}
