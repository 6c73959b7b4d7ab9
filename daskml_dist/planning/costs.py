"""The cost model: counts of a fit's work, and the seconds that each of them takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Costs", "Equation", "Work", "fitted_values"]

#: Counts by their names.
Counts = Mapping[str, float]
#: Counts, and the seconds that were measured for them together.
Equation = tuple[Counts, float]


@dataclass(frozen=True)
class Work:
    """Counts of the work of a fit, each by its name.

    Parameters
    ----------
    setup : mapping of str to float
        Counts beside the passes: ``fit`` is 1, ``read`` the entries that are looked at.
    one_pass : mapping of str to float
        Counts of a later pass, of those that compute side by side: ``pass`` is 1.
    passes : float
    meetings : float, default=1.0
        Times in a pass that those who compute side by side wait for each other.
    message : float, default=0.0
        Bytes that each of them sends, and gets, at a meeting.

    Examples
    --------
    >>> from daskml_dist.planning import Costs, Work
    >>> costs = Costs({'fit': 0.01, 'row': 1e-8})
    >>> round(costs.seconds(Work({'fit': 1.0}, {'row': 1e6}, passes=5.0), 'sync'), 4)
    0.06
    """

    setup: Counts
    one_pass: Counts
    passes: float
    meetings: float = 1.0
    message: float = 0.0


@dataclass(frozen=True)
class Costs:
    """Seconds of the parts of fits at one place, none of them negative.

    Parameters
    ----------
    values : mapping of str to float
        Seconds of each thing that :class:`Work` counts; what is not named takes none.
    gather : float, default=0.0
        Seconds of a byte of rows brought from the workers to this process.
    passes : float, default=0.0
        Passes that fits of made-up rows took until they settled; 0: nobody knows.
    steps : mapping of str to float
        Seconds of a step under other policies, by their names.

    Examples
    --------
    >>> from daskml_dist.planning import Costs, Work
    >>> costs = Costs({'fit': 0.01, 'row': 1e-8})
    >>> round(costs.seconds(Work({'fit': 1.0}, {'row': 1e6}, passes=5.0), 'sync'), 4)
    0.06
    """

    values: Mapping[str, float]
    gather: float = 0.0
    passes: float = 0.0
    steps: Mapping[str, float] = field(default_factory=dict)

    def setup_seconds(self, work: Work) -> float:
        """Seconds of a fit beside its passes."""
        return _total(work.setup, self.values)

    def pass_seconds(self, work: Work, policy: str = "") -> float:
        """Seconds of a later pass, under a policy whose own steps were measured, if any."""
        values = self.values
        if policy in self.steps:
            values = {**values, "step": self.steps[policy]}
        return _total(work.one_pass, values)

    def seconds(self, work: Work, policy: str = "") -> float:
        """Seconds of a whole fit."""
        return self.setup_seconds(work) + work.passes * self.pass_seconds(work, policy)

    def with_policy(self, name: str, equation: Equation) -> Costs:
        """These costs, and those of a step of another policy, of what a pass took under it."""
        counts, seconds = equation
        rest = {what: count for what, count in counts.items() if what != "step"}
        step = max(seconds - _total(rest, self.values), 0.0) / counts["step"]
        return Costs(self.values, self.gather, self.passes, {**self.steps, name: step})

    def as_dict(self) -> dict[str, Any]:
        """Plain values, to be kept in a file."""
        return {
            "values": dict(self.values), "gather": self.gather, "passes": self.passes,
            "steps": dict(self.steps),
        }  # fmt: skip

    @classmethod
    def of_dict(cls, kept: Mapping[str, Any]) -> Costs:
        """Costs of what :meth:`as_dict` made.

        Raises
        ------
        ValueError, TypeError, KeyError, AttributeError
            The values are no costs.
        """
        values, steps = (
            {str(name): float(value) for name, value in kept[part].items()}
            for part in ("values", "steps")
        )
        gather, passes = float(kept["gather"]), float(kept["passes"])
        every = (*values.values(), *steps.values(), gather, passes)
        if not all(np.isfinite(value) and value >= 0 for value in every):
            raise ValueError("costs are finite and not negative")
        return cls(values, gather, passes, steps)


def fitted_values(equations: Sequence[Equation], known: Mapping[str, float]) -> dict[str, float]:
    """Seconds of counted things that explain measured ones, by non-negative least squares.

    What is made least is the sum of the squares of relative errors: a fit of a millisecond tells
    as much as one of a second (Lawson and Hanson 1974, chapter 23).

    Parameters
    ----------
    equations : sequence of (counts, seconds)
    known : mapping of str to float
        Seconds that are known already, and stay as they are.
    """
    # Whoever only imports an estimator does without.
    from scipy.optimize import nnls

    names = sorted({name for counts, _ in equations for name in counts} - set(known))
    seconds = np.maximum([value for _, value in equations], 1e-9)
    told = np.array([_total(counts, known) for counts, _ in equations])
    # Columns alike in size: entries are a million times as many as fits.
    relative = np.array([[counts.get(name, 0.0) for name in names] for counts, _ in equations])
    relative /= seconds[:, None]
    size = np.linalg.norm(relative, axis=0)
    size[size == 0] = 1.0
    found, _ = nnls(relative / size, 1 - told / seconds)
    return {**known, **{name: float(v) for name, v in zip(names, found / size, strict=True)}}


def _total(counts: Counts, values: Mapping[str, float]) -> float:
    return float(sum(count * values.get(name, 0.0) for name, count in counts.items()))
