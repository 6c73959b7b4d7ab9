"""Zinkevich et al. 2010: stochastic gradient descent on many machines, averaged once.

Statistics only, from real fits: the objective under ``"average"``, whose lanes are the paper's
machines. Two worker processes run all lanes; the result of a lane does not depend on its process.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._common import markdown, persisted, processes, read_a9a
from benchmarks.papers._objective import Objective, made_rows
from benchmarks.papers._picture import COLOURS, label, shades, small_picture
from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.optimizers import SGD

__all__ = ["draw", "measure", "table"]

#: Strengths of the penalty, and one learning rate for both, constant as in the paper.
ALPHAS, RATE = (1e-1, 1e-3), 0.05
MACHINES, EXAMPLES = (1, 3, 10, 30, 100), (16, 64, 256, 1024, 4096)
#: Number of fits of one machine that are averaged; for K machines a K-th of it, at least one.
REPEATS = 8


@dataclass(frozen=True)
class Figures:
    """Objective above its minimum, relative, by (alpha, machines, examples per machine)."""

    data: str
    machines: tuple[int, ...]
    examples: tuple[int, ...]
    excess: dict[tuple[float, int, int], float]


def measure(tiny: bool = False, real: bool = False) -> Figures:
    """Run a fit for each point; examples are drawn with replacement, as in the paper's theory."""
    machines, examples = ((1, 4), (16,)) if tiny else (MACHINES, EXAMPLES)
    X, y, data = _rows(tiny, real)
    excess = {}
    with processes(2):
        for alpha in ALPHAS[:1] if tiny else ALPHAS:
            objective = Objective(X, y, alpha)
            for count in machines:
                for seen in examples:
                    repeats = 1 if tiny else max(1, REPEATS // count)
                    gaps = [_gap(objective, count, seen, seed) for seed in range(repeats)]
                    excess[alpha, count, seen] = statistics.mean(gaps)
    return Figures(data, machines, examples, excess)


def _rows(tiny: bool, real: bool) -> tuple[NDArray[Any], NDArray[Any], str]:
    if real:
        X, y, _, _ = read_a9a()
        return X.toarray(), (y > 0).astype(np.int64), "a9a"
    return *made_rows(500 if tiny else 30_000), "made rows"


def _gap(objective: Objective, machines: int, examples: int, seed: int) -> float:
    rng = np.random.default_rng([seed, machines, examples])
    at = rng.integers(len(objective.y), size=machines * examples)
    at[:2] = objective.one_of_each
    clf = SGDClassifier(
        policy="average", optimizer=SGD(), learning_rate=RATE, alpha=objective.alpha,
        batch_size=1, max_iter=1, tol=None, random_state=seed, run=Run(n_lanes=machines),
    )  # fmt: skip
    blocks = min(machines, 10) if machines > 1 else 2
    clf.fit(persisted(objective.X[at], blocks), persisted(objective.y[at], blocks))
    return objective.excess(clf)


def table(figures: Figures) -> str:
    """Return a row for each number of machines."""
    rows = [
        [f"{alpha:g}", count, *(f"{figures.excess[alpha, count, n]:.4f}" for n in figures.examples)]
        for alpha in dict.fromkeys(alpha for alpha, _, _ in figures.excess)
        for count in figures.machines
    ]
    title = (
        f"Zinkevich et al. 2010: objective above its minimum (relative), by examples that each "
        f'machine has seen; real fits under "average" with lanes as machines, {figures.data}'
    )
    return markdown(title, ["alpha", "machines", *(f"{n:,}" for n in figures.examples)], rows)


def draw(figures: Figures, path: Path) -> None:
    """Draw the objective by examples, a panel for each penalty; then by machines, at the end."""
    alphas = list(dict.fromkeys(alpha for alpha, _, _ in figures.excess))
    with small_picture(path, len(alphas) + 1) as axes:
        for ax, alpha in zip(axes, alphas, strict=False):
            for count, shade in zip(figures.machines, shades(len(figures.machines)), strict=True):
                gaps = [figures.excess[alpha, count, n] for n in figures.examples]
                ax.loglog(figures.examples, gaps, "o-", ms=3, color=shade, label=str(count))
            title = f"alpha = {alpha:g} (real fits, {figures.data})"
            label(ax, title, "examples a machine", "objective above minimum", "machines")
        for alpha, colour in zip(alphas, COLOURS, strict=False):
            last = figures.examples[-1]
            gaps = [figures.excess[alpha, count, last] for count in figures.machines]
            axes[-1].loglog(figures.machines, gaps, "o-", ms=3, color=colour, label=f"{alpha:g}")
        title = f"after {figures.examples[-1]:,} examples a machine"
        label(axes[-1], title, "machines", "objective above minimum", "alpha")
