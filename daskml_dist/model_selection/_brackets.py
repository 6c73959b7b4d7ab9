"""Brackets of Hyperband: how many candidates get how many passes.

L. Li, K. Jamieson, G. DeSalvo, A. Rostamizadeh and A. Talwalkar, "Hyperband: a novel bandit-based
approach to hyperparameter optimization", JMLR 18, 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bracket", "best_of", "brackets_of", "decaying_bracket", "has_plateaued"]


@dataclass(frozen=True)
class Bracket:
    """One run of successive halving.

    Parameters
    ----------
    number : int
        Rungs behind the first.
    rungs : tuple of (int, int)
        Candidates of each rung, and the passes that they have made at its end.
    """

    number: int
    rungs: tuple[tuple[int, int], ...]

    @property
    def n_models(self) -> int:
        """Candidates that begin."""
        return self.rungs[0][0]

    @property
    def calls(self) -> int:
        """Passes of all candidates together, of one split."""
        done, total = 0, 0
        for n, passes in self.rungs:
            total += n * (passes - done)
            done = passes
        return total

    def facts(self) -> dict[str, Any]:
        """Facts of it, for metadata."""
        return {
            "bracket": self.number, "n_models": self.n_models,
            "partial_fit_calls": self.calls, "rungs": list(self.rungs),
        }  # fmt: skip


def brackets_of(max_iter: int, factor: float) -> list[Bracket]:
    """Brackets for candidates of `max_iter` passes at most; the most daring first."""
    last = int(np.log(max_iter) / np.log(factor) + 1e-9)
    found = []
    for number in range(last, -1, -1):
        n = int(np.ceil((last + 1) / (number + 1) * factor**number - 1e-9))
        rungs: list[tuple[int, int]] = []
        for rung in range(number + 1):
            left = max(1, int(n * factor**-rung + 1e-9))
            passes = max(1, round(max_iter * factor ** (rung - number)))
            if rungs and passes <= rungs[-1][1]:
                continue
            rungs.append((left, passes))
        found.append(Bracket(number, tuple(rungs)))
    return found


def best_of(scores: NDArray[np.float64], n: int) -> NDArray[np.intp]:
    """Places of the `n` best scores, in their order; those without a score come last."""
    order = np.argsort(-np.where(np.isnan(scores), -np.inf, scores), kind="stable")
    return np.sort(order[:n])


def decaying_bracket(n_models: int, max_iter: int, decay_rate: float, every: int) -> Bracket:
    """Return a bracket of rungs `every` so many passes, of ever fewer candidates."""
    passes = [*range(every, max_iter, every), max_iter]
    left = [max(1, int(np.ceil(n_models * (1 + k) ** -decay_rate))) for k in range(len(passes))]
    return Bracket(len(passes) - 1, tuple(zip(left, passes, strict=True)))


def has_plateaued(scores: Mapping[int, float], patience: int, tol: float) -> bool:
    """Tell whether none of the scores of the last `patience` passes is better than before."""
    last = max(scores)
    before = [passes for passes in scores if passes <= last - patience]
    if not before:
        return False
    reference = scores[max(before)] + tol
    return all(score <= reference for passes, score in scores.items() if passes > max(before))
