"""Ho et al. 2013 (SSP): staleness of copies, and the time to an objective.

Measured: real fits of eight lanes in two processes, whose steps are lengthened by sleeping
(`_stale.py`). Simulated: the paper's own rule of reading, in virtual time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks._common import markdown
from benchmarks.papers._picture import BLUE, GREY, ORANGE, label, shades, small_picture
from benchmarks.papers._stale import LANES, PulledSeldom, Reached, measured, simulated
from benchmarks.simulator.training import Problem
from daskml_dist.planning.simulator import Stragglers
from daskml_dist.policies import BoundedStaleness

__all__ = ["draw", "measure", "table"]

BOUNDS = (0, 1, 2, 4, 8, 16)
STEP, NOISE = 0.02, Stragglers(noise=0.45)
SEEDS = 3


@dataclass(frozen=True)
class Figures:
    """By bound: fits that pull at each step, fits that pull rarely, the paper's rule simulated."""

    excess: float
    minimum: float
    fresh: dict[int, Reached]
    seldom: dict[int, Reached]
    virtual: dict[int, Reached]


def measure(tiny: bool = False, real: bool = False) -> Figures:
    """Run fits for each bound, at the learning rates that are best in the simulator."""
    bounds = (1,) if tiny else BOUNDS
    problem = Problem.make(400 if tiny else 1600, 30, 0.1 if tiny else 0.002)
    step = 0.001 if tiny else STEP
    seeds = 1 if tiny else SEEDS
    virtual, policies = {}, []
    for kind in (BoundedStaleness, PulledSeldom):
        for bound in bounds:
            cached = kind is PulledSeldom
            virtual[bound], rate = simulated(
                bound, problem, LANES, step, NOISE, cached=cached, seeds=seeds
            )
            policies.append((kind(bound), rate))
    fits = measured(policies, problem, step, NOISE, most=5 if tiny else 250, seeds=seeds)
    found = dict(zip(bounds, fits[: len(bounds)], strict=True))
    stale = dict(zip(bounds, fits[len(bounds) :], strict=True))
    minimum = problem.target / (1 + problem.excess)
    return Figures(problem.excess, minimum, found, stale, virtual)


def table(figures: Figures) -> str:
    """Return a row for each bound."""
    rows = [
        [
            bound,
            *(f"{f.steps:.0f}" for f in (figures.fresh[bound], figures.seldom[bound])),
            f"{figures.virtual[bound].steps:.0f}",
            *(f"{f.seconds:.2f}" for f in (figures.fresh[bound], figures.seldom[bound])),
            f"{figures.virtual[bound].seconds:.2f}",
        ]
        for bound in figures.fresh
    ]
    title = (
        f"Ho et al. 2013: to a loss {figures.excess:.1%} above the minimum, {LANES} workers with "
        f"lognormal noise (sigma {NOISE.noise}); measured: real fits in 2 processes, their steps "
        "lengthened by sleeping; simulated: virtual time, the paper's rule of reading; medians of "
        f"{SEEDS}"
    )
    columns = [
        "bound", "steps, pulled at each step (measured)", "pulled seldom (measured)",
        "paper's rule (simulated)", "seconds, pulled at each step (measured)",
        "pulled seldom (measured)", "paper's rule (simulated)",
    ]  # fmt: skip
    return markdown(title, columns, rows)


def draw(figures: Figures, path: Path) -> None:
    """Draw the objective by time, and steps and seconds by bound."""
    bounds = list(figures.fresh)
    lines = (
        (figures.fresh, "o-", BLUE, "pulled at each step (measured)"),
        (figures.seldom, "s-", ORANGE, "pulled seldom (measured)"),
        (figures.virtual, "^--", GREY, "paper's rule (simulated)"),
    )
    with small_picture(path, 3) as (curves, steps, seconds):
        for bound, shade in zip(bounds, shades(len(bounds)), strict=True):
            run = figures.fresh[bound]
            gaps = [max(loss / figures.minimum - 1, 1e-4) for loss in run.losses]
            curves.semilogy(run.times, gaps, color=shade, label=str(bound))
        title = "objective by time (measured, pulled at each step)"
        label(curves, title, "seconds", "loss above minimum", "bound")
        for found, style, colour, name in lines:
            line_options = {"color": colour, "ms": 4, "label": name}
            steps.plot(range(len(bounds)), [found[b].steps for b in bounds], style, **line_options)
            seconds.plot(
                range(len(bounds)), [found[b].seconds for b in bounds], style, **line_options
            )
        for ax, what in ((steps, "steps of a worker"), (seconds, "seconds")):
            ax.set_xticks(range(len(bounds)), [str(b) for b in bounds])
            ax.set_ylim(0)
            label(ax, f"{what} to the objective", "bound", what)
