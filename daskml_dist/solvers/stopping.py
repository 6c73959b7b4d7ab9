"""Early stopping by the scores of held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daskml_dist.solvers.hold_out import Aside

__all__ = ["Stopping"]

#: Raw predictions of rows, of shape (n, n_outputs), their targets, and weights or None.
Scorer = Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64] | None], float]


@dataclass(frozen=True)
class Stopping:
    """Early stopping.

    Parameters
    ----------
    n_iter_no_change : int
    tol : float
    aside : Aside or None
        Rows that are held out; None: none are, and the rows trained on are scored.
    scorer : callable or None
        Score of some rows, from their raw predictions, targets and weights; None: minus the mean
        loss, which need not gather them.
    """

    n_iter_no_change: int
    tol: float
    aside: Aside | None = None
    scorer: Scorer | None = None

    def ends(self, scores: Sequence[float]) -> bool:
        """Whether none of the last scores is better than the one before them."""
        if len(scores) <= self.n_iter_no_change:
            return False
        reference = scores[-self.n_iter_no_change - 1] + self.tol
        return not any(score > reference for score in scores[-self.n_iter_no_change :])
