"""Agarwal et al. 2011: L-BFGS that starts from an average of online learners.

Real fits on two worker processes: SGD under ``"average"`` with eight lanes as the paper's nodes,
``LogisticRegression(solver="lbfgs")``, and the latter started from the result of the former. Passes
over the rows are counted, since both need them; the objective is computed over all rows.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client
from sklearn.exceptions import ConvergenceWarning

from benchmarks._common import markdown, persisted, processes, read_a9a
from benchmarks.papers._objective import Objective, made_rows
from benchmarks.papers._picture import BLUE, GREEN, GREY, ORANGE, label, small_picture
from daskml_dist import Run
from daskml_dist.linear_model import LogisticRegression, SGDClassifier

__all__ = ["draw", "measure", "table"]

ALPHA, NODES = 1e-4, 8
ONLINE, ITERATIONS = (1, 2, 5, 10, 20), (1, 2, 4, 6, 8, 11, 15, 20, 30)
#: Numbers of passes of the online starts.
STARTS = (1, 5)
#: Levels of the table: objective relative to its minimum, minus 1.
LEVELS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3)


@dataclass(frozen=True)
class Figures:
    """Passes, and the objective above its minimum (relative), by the way to train."""

    data: str
    ways: dict[str, list[tuple[int, float]]]


def measure(tiny: bool = False, real: bool = False) -> Figures:
    """Run a fit for each point."""
    objective, data = _rows(tiny, real)
    ways: dict[str, list[tuple[int, float]]] = {}
    with processes(2) as client, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        trained = _Trained(client, objective)
        iterations = ITERATIONS[:1] if tiny else ITERATIONS
        ways["online alone"] = [
            (passes, objective.excess(trained.online(passes)))
            for passes in (ONLINE[:1] if tiny else ONLINE)
        ]
        ways["L-BFGS alone"] = [trained.lbfgs(n) for n in iterations]
        for passes in STARTS[:1] if tiny else STARTS:
            start = trained.online(passes)
            name = f"L-BFGS after {passes} online pass{'es' if passes > 1 else ''}"
            found = [trained.lbfgs(n, start) for n in iterations]
            ways[name] = [(passes, objective.excess(start))]
            ways[name] += [(passes + made, gap) for made, gap in found]
    return Figures(data, ways)


def _rows(tiny: bool, real: bool) -> tuple[Objective, str]:
    if real:
        X, y, _, _ = read_a9a()
        return Objective(X.toarray(), (y > 0).astype(np.int64), ALPHA), "a9a"
    return Objective(*made_rows(1_000 if tiny else 30_000), ALPHA), "made rows"


class _Trained:
    """Models of some rows on a cluster."""

    def __init__(self, client: Client, objective: Objective) -> None:
        self._client = client
        self._objective = objective
        self._rows = persisted(objective.X, NODES), persisted(objective.y, NODES)

    def online(self, passes: int) -> Any:
        """Train each node over its own rows for some passes, and average once."""
        return SGDClassifier(
            policy="average", alpha=self._objective.alpha, batch_size=1, learning_rate=0.1,
            max_iter=passes, tol=None, random_state=0, run=Run(n_lanes=NODES),
        ).fit(*self._rows, client=self._client)  # fmt: skip

    def lbfgs(self, iterations: int, start: Any = None) -> tuple[int, float]:
        """Return the passes of some iterations, and the objective above its minimum."""
        clf = LogisticRegression(
            C=self._objective.C, max_iter=iterations, tol=1e-12, warm_start=start is not None
        )
        if start is not None:
            clf.coef_, clf.intercept_ = start.coef_.copy(), start.intercept_.copy()
            clf.classes_ = start.classes_
        clf.fit(*self._rows, client=self._client)
        return len(clf.history_.records), self._objective.excess(clf)


def _passes_to(way: list[tuple[int, float]], level: float) -> str:
    met = [passes for passes, gap in way if gap <= level]
    return f"{met[0]}" if met else f"> {way[-1][0]}"


def table(figures: Figures) -> str:
    """Return the passes to each level, by the way to train."""
    rows = [
        [name, *(_passes_to(way, level) for level in LEVELS), f"{way[-1][1]:.1e}"]
        for name, way in figures.ways.items()
    ]
    title = (
        "Agarwal et al. 2011: passes over the rows until the objective is within "
        f"this of its minimum (relative); real fits on 2 processes, {NODES} nodes as lanes, "
        f"{figures.data}; fits end after {', '.join(map(str, ITERATIONS))} "
        f"iterations, or {', '.join(map(str, ONLINE))} online passes"
    )
    return markdown(title, ["", *(f"{level:g}" for level in LEVELS), "at the end"], rows)


def draw(figures: Figures, path: Path) -> None:
    """Draw the objective by passes."""
    with small_picture(path, 1) as (ax,):
        for (name, way), colour in zip(
            figures.ways.items(), (GREY, BLUE, ORANGE, GREEN), strict=False
        ):
            passes, gaps = zip(*way, strict=True)
            ax.semilogy(passes, gaps, "o-", ms=3, color=colour, label=name)
        title = f"real fits, {figures.data}, {NODES} nodes"
        label(ax, title, "passes over the rows", "objective above minimum")
