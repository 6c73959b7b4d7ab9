"""Li et al. 2014 (parameter server): computing and waiting, by the allowed delay.

Measured: real fits of eight lanes whose steps are lengthened by sleeping (`_stale.py`), some of
them by a long pause. Simulated: a hundred workers in virtual time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks._common import markdown
from benchmarks.papers._picture import BLUE, ORANGE, label, small_picture
from benchmarks.papers._stale import LANES, Reached, measured, simulated
from benchmarks.simulator.training import Problem
from daskml_dist.planning.simulator import Stragglers
from daskml_dist.policies import BoundedStaleness

__all__ = ["draw", "measure", "table"]

DELAYS = (0, 1, 2, 4, 8, 16)
STEP, PAUSES = 0.02, Stragglers(noise=0.3, pause_share=0.02, pause=5.0)
WORKERS, SEEDS = 100, 3


@dataclass(frozen=True)
class Figures:
    """By delay: measured, and simulated with this package's and the paper's rule of reading."""

    excess: float
    workers: int
    real: dict[int, Reached]
    fresh: dict[int, Reached]
    cached: dict[int, Reached]


def measure(tiny: bool = False, real: bool = False) -> Figures:
    """Simulate to find the learning rate of each delay, then run real fits with these rates."""
    delays, workers, seeds = ((1,), 10, 1) if tiny else (DELAYS, WORKERS, SEEDS)
    problem = Problem.make(400 if tiny else 1600, 30, 0.1 if tiny else 0.002)
    step = 0.001 if tiny else STEP
    fresh, cached, policies = {}, {}, []
    for delay in delays:
        kind = problem, workers, step, PAUSES
        fresh[delay], _ = simulated(delay, *kind, cached=False, seeds=seeds)
        cached[delay], _ = simulated(delay, *kind, cached=True, seeds=seeds)
        _, rate = simulated(delay, problem, LANES, step, PAUSES, cached=False, seeds=seeds)
        policies.append((BoundedStaleness(delay), rate))
    fits = measured(policies, problem, step, PAUSES, most=5 if tiny else 250, seeds=seeds)
    return Figures(problem.excess, workers, dict(zip(delays, fits, strict=True)), fresh, cached)


def table(figures: Figures) -> str:
    """Return a row for each delay."""
    kinds = figures.real, figures.fresh, figures.cached
    rows = [
        [delay, *(cell for found in kinds for cell in _cells(found[delay]))]
        for delay in figures.real
    ]
    columns = ["delay"]
    many = f"{figures.workers} workers, simulated"
    for name in (f"{LANES} workers, measured", many, f"{many}, cached copies"):
        columns += [f"{name}: seconds", "waiting", "steps"]
    title = (
        f"Li et al. 2014: to a loss {figures.excess:.1%} above the minimum, steps of "
        f"{STEP * 1e3:.0f} ms with noise and a pause of 5 steps in 2 % of them; measured: real "
        "fits in 2 processes, steps lengthened by sleeping; simulated: virtual time; medians of "
        f"{SEEDS}"
    )
    return markdown(title, columns, rows)


def _cells(run: Reached) -> list[str]:
    return [f"{run.seconds:.2f}", f"{1 - run.computing:.0%}", f"{run.steps:.0f}"]


def draw(figures: Figures, path: Path) -> None:
    """Draw bars of computing and waiting."""
    kinds = (
        (figures.real, f"{LANES} workers (measured, real fits)"),
        (figures.fresh, f"{figures.workers} workers (simulated), pulled at each step"),
        (figures.cached, f"{figures.workers} workers (simulated), cached copies"),
    )
    with small_picture(path, len(kinds)) as axes:
        for ax, (found, title) in zip(axes, kinds, strict=True):
            at = range(len(found))
            computing = [run.seconds * run.computing for run in found.values()]
            waiting = [run.seconds * (1 - run.computing) for run in found.values()]
            ax.bar(at, computing, color=BLUE, label="computing")
            ax.bar(at, waiting, bottom=computing, color=ORANGE, label="waiting")
            ax.set_xticks(at, [str(delay) for delay in found])
            label(ax, title, "delay that is allowed, in steps", "seconds to the objective")
