"""A step of an optimizer, as kernels and compiled passes take it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Step"]


@dataclass(frozen=True)
class Step:
    """A step of an optimizer over whole parameters.

    Parameters
    ----------
    w, grad : arrays of shape (n_rows, width)
        Parameters, and the gradient of the summed loss; None where a device is to make it.
    opt_state : dict of arrays
        The optimizer's state.
    rows : float
        Rows of the gradient; a step of none changes nothing.
    lr : float
    number : int
        From 1.
    l1, l2 : float
        Strengths of the penalty.
    n_penalised : int
        Leading rows that it applies to.
    coordinates : bool, default=False
        Whether it moves only parameters that rows touch; on devices without a penalty.
    row_rate_sums, rate_sum : float64 array of shape (n_rows,) or None, float
        Rate sum up to which each row's penalty has been applied, and the sum of the learning rates
        by now.
    """

    w: Any
    grad: Any
    opt_state: dict[str, Any]
    rows: float
    lr: float
    number: int
    l1: float
    l2: float
    n_penalised: int
    coordinates: bool = False
    row_rate_sums: Any = None
    rate_sum: float = 0.0

    def state(self, optimizer: Any) -> list[Any]:
        """The parameters, and the optimizer's state in the order of its `state_names`."""
        return [self.w, *(self.opt_state[name] for name in optimizer.state_names)]
