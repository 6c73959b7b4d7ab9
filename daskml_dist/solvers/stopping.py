"""Early stopping by the scores of held-out rows, and scores that the user watches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Range", "Stopping", "Watching"]

#: Raw predictions of rows, of shape (n, n_outputs), their targets, and weights or None.
Scorer = Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64] | None], float]
#: Numbers of rows among all: of the first, and of the one behind the last.
Range = tuple[int, int]


@dataclass(frozen=True)
class Stopping:
    """Early stopping.

    Parameters
    ----------
    n_iter_no_change : int
    tol : float
    by_held : bool
        Whether rows held out are scored; else the rows trained on.
    scorer : callable or None
        Score of some rows, from their raw predictions, targets and weights; None: minus the mean
        loss, which need not gather them.
    within : Range or None
        Rows held out that are scored; None: all of them.
    """

    n_iter_no_change: int
    tol: float
    by_held: bool = False
    scorer: Scorer | None = None
    within: Range | None = None

    def ends(self, scores: Sequence[float]) -> bool:
        """Whether none of the last scores is better than the one before them."""
        if len(scores) <= self.n_iter_no_change:
            return False
        reference = scores[-self.n_iter_no_change - 1] + self.tol
        return not any(score > reference for score in scores[-self.n_iter_no_change :])


@dataclass(frozen=True)
class Watching:
    """Scores of sets of rows after each iteration, which the user watches.

    Parameters
    ----------
    sets : tuple of Range
        Rows of each set, all of them held out.
    scorers : tuple of callable or None
        Scores of each set; None: minus the mean loss.
    names : tuple of str
        Keys of the scores in the records of a fit, those of a set side by side.
    """

    sets: tuple[Range, ...]
    scorers: tuple[Scorer | None, ...]
    names: tuple[str, ...]
