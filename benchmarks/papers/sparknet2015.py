"""Moritz et al. 2015 (SparkNet): K workers that make tau steps alone, then average.

The grid has real statistics: the number of steps of each worker to a test accuracy, counted in fits
under ``LocalSGD(tau)`` whose K lanes are the workers, without a cluster. No time is measured. The
cost of communication is computed from the counts, as in the paper: an average takes S steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from benchmarks._common import markdown, read_mnist
from benchmarks.papers._network import NetworkClassifier
from benchmarks.papers._picture import label, shades, small_picture
from daskml_dist import Run
from daskml_dist.policies import LocalSGD

__all__ = ["draw", "measure", "table"]

WORKERS, TAUS = (1, 2, 4, 8), (1, 4, 16, 64, 256)
#: Numbers of steps at which the accuracy is measured; between them it is interpolated.
LOOKS = tuple(int(32 * 2 ** (k / 2)) for k in range(14))
BATCH, SEEDS = 4, 3
#: Factors on the learning rate, of which one worker uses the best; more workers have factor 1.
ALONE = (0.25, 0.5, 1.0)
#: Time of an average, in steps.
MEETINGS = np.geomspace(0.01, 100, 41)


@dataclass(frozen=True)
class Figures:
    """Steps of a worker to an accuracy, by (workers, tau); NaN if it is not reached.

    One worker uses the learning rate of several workers, times the factor `alone`.
    """

    data: str
    target: float
    alone: float
    steps: dict[tuple[int, int], float]

    def speed_up(self, workers: int, tau: int, meeting: Any = 0.0) -> Any:
        """Return one worker's time over several workers', if an average takes `meeting` steps."""
        return self.steps[1, 1] / (self.steps[workers, tau] * (1 + meeting / tau))

    @property
    def taus(self) -> list[int]:
        return sorted({tau for count, tau in self.steps if count > 1})

    @property
    def workers(self) -> list[int]:
        return sorted({count for count, _ in self.steps if count > 1})


def measure(tiny: bool = False, real: bool = False) -> Figures:
    """Return the steps for each cell of the grid; one worker never averages, for any tau."""
    data = _Data(real)
    grid = [(2, 1), (2, 4)] if tiny else [(count, tau) for count in WORKERS[1:] for tau in TAUS]
    looks, seeds = (LOOKS[:3], 1) if tiny else (LOOKS, SEEDS)
    if tiny:
        data.target = 0.3
    steps = {cell: data.steps_to(*cell, looks, seeds) for cell in grid}
    alone = {factor: data.steps_to(1, 1, looks, seeds, factor) for factor in ALONE}
    best = min(ALONE, key=lambda factor: np.nan_to_num(alone[factor], nan=np.inf))
    steps[1, 1] = alone[best]
    return Figures(data.name, data.target, best, steps)


class _Data:
    """Digits: rows to draw from, and rows for testing."""

    def __init__(self, real: bool) -> None:
        if real:
            self.X, self.y, self.X_test, self.y_test = read_mnist()
            self.name, self.rate, self.target = "MNIST", 0.1, 0.9
            return
        X, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        X, y = (X / 16).astype(np.float32)[order], y[order]
        self.X, self.y, self.X_test, self.y_test = X[600:], y[600:], X[:600], y[:600]
        self.name, self.rate, self.target = "scikit-learn's digits", 0.3, 0.93

    def steps_to(
        self, workers: int, tau: int, looks: tuple[int, ...], seeds: int, factor: float = 1.0
    ) -> float:
        """Return the number of steps at which the mean accuracy of some fits passes the target."""
        before, target = (0.0, 0.0), self.target
        for count in looks:
            fits = [self._accuracy(workers, tau, count, seed, factor) for seed in range(seeds)]
            accuracy = float(np.mean(fits))
            if accuracy >= target:
                return float(np.interp(target, [before[1], accuracy], [before[0], count]))
            before = count, accuracy
        return float("nan")

    def _accuracy(self, workers: int, tau: int, steps: int, seed: int, factor: float) -> float:
        at = self._drawn(workers * BATCH * steps, seed)
        clf = NetworkClassifier(
            policy=LocalSGD(tau), learning_rate=self.rate * factor, batch_size=BATCH,
            run=Run(n_lanes=workers), random_state=seed,
        )  # fmt: skip
        return clf.fit(self.X[at], self.y[at]).accuracy(self.X_test, self.y_test)

    def _drawn(self, count: int, seed: int) -> NDArray[np.int64]:
        """Return rows drawn with replacement, for a pass of any length, including all classes."""
        rng = np.random.default_rng([seed, count])
        at = rng.integers(len(self.y), size=count)
        at[: len(np.unique(self.y))] = np.unique(self.y, return_index=True)[1]
        return rng.permutation(at)


def table(figures: Figures) -> str:
    """Return the grid, and the best tau if averages are expensive."""
    rows = []
    for count in figures.workers:
        cells = [_cell(figures, count, tau) for tau in figures.taus]
        rows.append([count, *cells])
    grid = markdown(
        f"SparkNet 2015: speed-up over one worker ({figures.steps[1, 1]:,.0f} steps, "
        f"at {figures.alone:g} times the learning rate) if synchronisation "
        f"costs nothing, in brackets the steps of a worker; to a test accuracy of "
        f"{figures.target:.0%} on {figures.data}, real fits under LocalSGD(tau), batches of "
        f"{BATCH}",
        ["K", *(f"tau = {tau}" for tau in figures.taus)], rows,
    )  # fmt: skip
    most = figures.workers[-1]
    prices = (0.0, 0.1, 1.0, 10.0, 100.0)
    rows = [["split batches", *(f"{_split(most, s):.2f}" for s in prices)]]
    for tau in figures.taus:
        rows.append([f"tau = {tau}", *(f"{figures.speed_up(most, tau, s):.2f}" for s in prices)])
    columns = [f"K = {most}", *(f"{s:g} steps" for s in prices)]
    return f"{grid}\n\n{markdown('Computed: speed-up if a synchronisation takes', columns, rows)}"


def _cell(figures: Figures, count: int, tau: int) -> str:
    steps = figures.steps.get((count, tau), float("nan"))
    return "" if np.isnan(steps) else f"{figures.steps[1, 1] / steps:.2f} ({steps:,.0f})"


def _split(workers: int, meeting: Any) -> Any:
    """Return the speed-up of workers that share each batch and average at each step."""
    return 1 / (1 / workers + meeting)


def draw(figures: Figures, path: Path) -> None:
    """Draw the grid, and the speed-up by the cost of an average."""
    many, taus = figures.workers, figures.taus
    with small_picture(path, 2) as (left, right):
        cells = np.array([[figures.speed_up(k, t) for t in taus] for k in many[::-1]])
        left.imshow(cells, cmap="YlGn", aspect="auto", vmin=1, vmax=1.7 * np.nanmax(cells))
        for (i, j), value in np.ndenumerate(cells):
            left.text(j, i, f"{value:.2f}", ha="center", va="center", color="black", fontsize=9)
        left.set_xticks(range(len(taus)), [str(tau) for tau in taus])
        left.set_yticks(range(len(many)), [str(k) for k in many[::-1]])
        title = (
            f"free synchronisation: speed-up to {figures.target:.0%} (real fits, {figures.data})"
        )
        label(left, title, "tau: steps between averages", "K: workers", None)
        for tau, shade in zip(taus, shades(len(taus)), strict=True):
            speed = figures.speed_up(many[-1], tau, MEETINGS)
            right.semilogx(MEETINGS, speed, color=shade, label=f"tau = {tau}")
        right.semilogx(MEETINGS, _split(many[-1], MEETINGS), "k--", lw=1, label="split batches")
        right.axhline(1, color="0.7", lw=0.8)
        right.set_ylim(0, 1.05 * np.nanmax(cells) + 1)
        title = f"K = {many[-1]} (computed from the counts)"
        label(right, title, "a synchronisation, in steps", "speed-up")
