"""Zheng et al. 2017 (DC-ASGD): delayed gradients are corrected for changes of the parameters.

Simulated: asynchronous logistic regression on batches of eight rows, whose gradients the server
corrects as in `Asynchronous(delay_compensation=...)`.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks._common import markdown
from benchmarks.papers._picture import BLUE, ORANGE, label, small_picture
from benchmarks.simulator.training import LogisticRun, Problem
from daskml_dist.planning.simulator import OperationCosts, Stragglers, simulate
from daskml_dist.policies import Asynchronous

__all__ = ["draw", "measure", "table"]

FACTORS = (0.0, 0.04, 2.0, 10.0, 50.0)
RATES = [2 ** (k / 2) for k in range(-16, 1)]
BATCH, EXCESS, NOISE, SEEDS = 8, 0.01, Stragglers(noise=0.45), 5

#: By number of workers and factor: median learning rate, and steps per worker to the target.
Figures = dict[int, dict[float, tuple[float, float]]]


class CompensatedRun(LogisticRun):
    """Training whose gradients are corrected when they are applied.

    Parameters
    ----------
    factor : float
    *args, **kwargs
        As in `LogisticRun`.
    """

    def __init__(self, factor: float, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._factor = factor

    def gradient(self, worker: int, copy: Any) -> Any:
        """Return the gradient, and the parameters at which it was computed."""
        return super().gradient(worker, copy), copy

    def apply(self, gradients: list[Any], now: float) -> None:
        """Step along the corrected gradients (equation 10)."""
        corrected = [g + self._factor * g * g * (self._w - old) for g, old in gradients]
        super().apply(corrected, now)


def measure(tiny: bool = False, real: bool = False) -> Figures:
    """Return the steps to the target, at the best of the learning rates."""
    problem = Problem.make(400 if tiny else 1600, 30, 0.3 if tiny else EXCESS)
    return {
        workers: {
            factor: _steps(problem, workers, factor, 1 if tiny else SEEDS) for factor in FACTORS
        }
        for workers in ((4,) if tiny else (16, 64))
    }


def _steps(problem: Problem, workers: int, factor: float, seeds: int) -> tuple[float, float]:
    """Return the median learning rate and the steps per worker."""
    found = []
    for seed in range(seeds):
        training = CompensatedRun(factor, problem, workers, RATES, batch=BATCH, seed=seed)
        # Learning rates that are too large overflow.
        with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
            simulate(
                Asynchronous(), OperationCosts(1.0), workers, steps=3000, stragglers=NOISE,
                seed=seed, training=training,
            )  # fmt: skip
        found.append(training.reached or (np.nan, np.nan, np.nan))
    rate, steps, _ = (statistics.median(values) for values in zip(*found, strict=True))
    return rate, steps


def table(figures: Figures) -> str:
    """Return a row for each number of workers and factor."""
    rows = [
        [workers, factor, f"{rate:.3f}", f"{steps:.0f}"]
        for workers, runs in figures.items()
        for factor, (rate, steps) in runs.items()
    ]
    title = (
        f"Zheng et al. 2017: simulated steps of a worker to a loss {EXCESS:.0%} above the minimum, "
        f"logistic regression on batches of {BATCH} rows, at the best of {len(RATES)} learning "
        f"rates; medians of {SEEDS} seeds"
    )
    return markdown(title, ["workers", "delay_compensation", "learning rate", "steps"], rows)


def draw(figures: Figures, path: Path) -> None:
    """Draw the steps by the factor."""
    with small_picture(path, 1) as (ax,):
        for colour, (workers, runs) in zip((BLUE, ORANGE), figures.items(), strict=False):
            steps = [steps for _, steps in runs.values()]
            ax.plot(range(len(steps)), steps, "o-", color=colour, label=str(workers))
        ax.set_xticks(range(len(FACTORS)), [f"{factor:g}" for factor in FACTORS])
        ax.set_ylim(0)
        label(ax, "steps of a worker (simulated)", "delay_compensation", "steps", "workers")
