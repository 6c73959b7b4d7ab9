"""The cost model: counts of a fit's work, and the seconds that each of them takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

__all__ = ["Costs", "Timing", "Work", "fitted_costs"]

#: Steps of a fit, and the entries in their rows, that are made before compiled gathers are loaded.
_EARLY_STEPS, _EARLY_ENTRIES = 1 << 10, 1 << 26


@dataclass(frozen=True)
class Work:
    """Counts of the work of a fit by gradient steps.

    Parameters
    ----------
    n_rows : int
        Of all rows.
    n_features : int
    width : int
        Raw outputs of the model: its classes beyond two, its targets; else 1.
    trainers : int
        Processes that share the rows.
    batch : int
        Rows of a step of one lane.
    steps : int
        Steps of a pass, which each lane makes.
    passes : int
    sample : int
        Rows on which the start and the rate are found; 0 where there is no pilot.
    """

    n_rows: int
    n_features: int
    width: int
    trainers: int
    batch: int
    steps: int
    passes: int
    sample: int

    @property
    def early_steps(self) -> int:
        """Steps at the beginning of a fit, which are made another way than later ones."""
        return min(_EARLY_STEPS, _EARLY_ENTRIES // max(self.batch * self.n_features, 1))

    @property
    def of_setup(self) -> tuple[float, ...]:
        """Counts before and after all passes: fits, entries, entries of the sample."""
        return 1.0, float(self.n_rows * self.n_features), self._wide(self.sample)

    def of_pass(self) -> tuple[float, ...]:
        """Counts of a pass in one trainer: passes, steps, rows times outputs, entries likewise."""
        rows = self.n_rows / self.trainers
        return 1.0, float(self.steps), rows * self.width, self._wide(rows)

    def _wide(self, rows: float) -> float:
        return float(rows * self.n_features * self.width)


@dataclass(frozen=True)
class Timing:
    """Seconds that a fit was measured to take.

    Parameters
    ----------
    work : Work
    setup : float
        All but the passes.
    early : float
        A pass of early steps alone, in the mean; NaN where there is none.
    late : float
        A pass of later steps alone, its median; NaN where there is none.
    """

    work: Work
    setup: float
    early: float = float("nan")
    late: float = float("nan")


@dataclass(frozen=True)
class Costs:
    """Seconds of the parts of fits at one place, none of them negative.

    Parameters
    ----------
    fit : float
        Start and end of a fit, whatever its rows.
    read : float
        An entry of all rows, looked at (and sent, where rows have to be) before the first step.
    sample : float
        An entry of the pilot's sample, times the outputs.
    one_pass : float
        The report of a pass.
    early, step : float
        A step, of the first ones of a fit and later.
    row : float
        A row of a pass, for each output.
    entry : float
        An entry of a row, for each output.
    gather : float
        A byte of rows brought from the workers to this process.
    steps : mapping of str to float
        A step under other policies, by their names.
    """

    fit: float
    read: float
    sample: float
    one_pass: float
    early: float
    step: float
    row: float
    entry: float
    gather: float = 0.0
    steps: Mapping[str, float] = field(default_factory=dict)

    def setup_seconds(self, work: Work) -> float:
        """Seconds of a fit beside its passes."""
        return float(np.dot(work.of_setup, (self.fit, self.read, self.sample)))

    def pass_seconds(self, work: Work, policy: str = "") -> float:
        """Seconds of a later pass, under a policy whose own steps were measured, if any."""
        step = self.steps.get(policy, self.step)
        return float(np.dot(work.of_pass(), (self.one_pass, step, self.row, self.entry)))

    def seconds(self, work: Work, policy: str = "") -> float:
        """Seconds of a whole fit."""
        early = min(work.early_steps, work.passes * work.steps)
        slower = max(self.early - self.step, 0.0) * early
        return self.setup_seconds(work) + work.passes * self.pass_seconds(work, policy) + slower

    def with_policy(self, name: str, timing: Timing) -> Costs:
        """These costs, and those of a step of another policy, of one fit's timing."""
        count = timing.work.of_pass()
        rest = float(np.dot(count, (self.one_pass, 0.0, self.row, self.entry)))
        step = max(timing.late - rest, 0.0) / count[1]
        return Costs(**{**self.as_dict(), "steps": {**self.steps, name: step}})

    def as_dict(self) -> dict[str, Any]:
        """Plain values, to be kept in a file."""
        return asdict(self)

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Costs:
        """Costs of what :meth:`as_dict` made.

        Raises
        ------
        ValueError, TypeError, KeyError, AttributeError
            The values are no costs.
        """
        numbers = {f.name: float(values[f.name]) for f in fields(cls) if f.name != "steps"}
        steps = {str(name): float(value) for name, value in values["steps"].items()}
        found = cls(**numbers, steps=steps)
        if not all(np.isfinite(v) and v >= 0 for v in (*numbers.values(), *steps.values())):
            raise ValueError("costs are finite and not negative")
        return found


def fitted_costs(timings: Sequence[Timing], gather: float = 0.0) -> Costs:
    """Costs that explain the seconds of some fits, by non-negative least squares.

    What is made least is the sum of the squares of relative errors: a fit of a millisecond tells
    as much as one of a second (Lawson and Hanson 1974, chapter 23).

    Parameters
    ----------
    timings : sequence of Timing
    gather : float, default=0.0
        Seconds of a byte brought to this process.
    """
    fit, read, sample = _solved([(t.work.of_setup, t.setup) for t in timings])
    rows: list[tuple[tuple[float, ...], float]] = []
    for timing in timings:
        one, steps, *more = timing.work.of_pass()
        rows.append(((one, steps, 0.0, *more), timing.early))
        rows.append(((one, 0.0, steps, *more), timing.late))
    one_pass, early, step, row, entry = _solved([r for r in rows if np.isfinite(r[1])])
    return Costs(fit, read, sample, one_pass, early, step, row, entry, gather)


def _solved(equations: Sequence[tuple[tuple[float, ...], float]]) -> list[float]:
    counts: NDArray[Any] = np.array([count for count, _ in equations])
    seconds = np.maximum([value for _, value in equations], 1e-9)
    # Columns alike in size: entries are a million times as many as fits.
    relative = counts / seconds[:, None]
    size = np.linalg.norm(relative, axis=0)
    size[size == 0] = 1.0
    found, _ = nnls(relative / size, np.ones(len(seconds)))
    return [float(value) for value in found / size]
