"""Muon: steps along a momentum whose matrices are made orthogonal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from daskml_dist.backends.namespace import namespace
from daskml_dist.optimizers.base import Array, Optimizer, check_decay

__all__ = ["Muon"]

#: Number of iterations, and the coefficients of their quintic polynomial: in five iterations
#: singular values in (0, 1] approach 1 (0.7 to 1.2), with the fastest growth for small ones (Jordan
#: et al. 2024).
_N_ITERATIONS = 5
_QUINTIC = 3.4445, -4.7750, 2.0315


@dataclass(frozen=True)
class Muon(Optimizer):
    """Muon (Jordan et al. 2024): steps along Nesterov's momentum, made orthogonal.

    All singular values of a step are about equal, so that directions which are rare in the
    gradients move as far as others. The root mean square of a step's entries is the learning rate,
    both for matrices and for vectors (a single row or column).

    It needs whole matrices, so it can only make the outer steps of ``LocalSGD(outer="muon")``,
    whose lanes hold all parameters: servers, and batches that touch few rows, split matrices.

    Parameters
    ----------
    momentum : float, default=0.95
        In [0, 1).

    References
    ----------
    K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.

    Examples
    --------
    >>> from daskml_dist.optimizers import Muon
    >>> from daskml_dist.policies import LocalSGD
    >>> LocalSGD(64, outer=Muon(momentum=0.9)).outer
    Muon(momentum=0.9)
    """

    name = "muon"
    adaptive = True
    default_learning_rate = 0.01
    state_names = ("velocity",)
    whole_matrices = True
    momentum: float = 0.95

    def __post_init__(self) -> None:
        check_decay("momentum", self.momentum)

    def _descend(
        self, w: Array, grad: Array, opt_state: dict[str, Array], lr: Any, step: int
    ) -> Any:
        """Take a step for a matrix, and return the step size."""
        velocity = opt_state["velocity"]
        velocity *= self.momentum
        velocity += grad
        w -= lr * _make_orthogonal(grad + self.momentum * velocity)
        return lr


def _make_orthogonal(matrix: Array) -> Array:
    """Return approximately the nearest orthogonal matrix, scaled to a root mean square of about 1.

    Newton-Schulz iterations use only matrix products: no decomposition, and any array library.
    """
    xp = namespace(matrix)
    n_rows, n_columns = matrix.shape
    norm = float(xp.sum(matrix * matrix)) ** 0.5
    if norm == 0:
        return matrix
    matrix = matrix / norm
    if min(n_rows, n_columns) > 1:
        a, b, c = _QUINTIC
        # Transpose if needed, so that x @ x.T is the smaller of the two possible products.
        is_tall = n_rows > n_columns
        x = matrix.T if is_tall else matrix
        for _ in range(_N_ITERATIONS):
            square = x @ x.T
            x = a * x + (b * square + c * (square @ square)) @ x
        matrix = x.T if is_tall else x
    # An orthogonal matrix has min(shape) singular values of 1, so its root mean square is 1 /
    # sqrt(max(shape)).
    return matrix * max(n_rows, n_columns) ** 0.5
