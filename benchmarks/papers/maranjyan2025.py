"""Maranjyan et al. 2025: gradients that are too old are dropped, or stored in a table.

Simulated, as in the papers, with an unbounded range of worker speeds: a noisy convex quadratic,
where the i-th of n workers has steps of ``i + |N(0, i)|`` seconds. The server's gates and its table
are the package's own. Workers share one quadratic (Ringmaster ASGD), or each has its own minimum,
and the minimum of their mean is wanted (Ringleader ASGD).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks._common import markdown
from benchmarks.papers._picture import BLUE, GREY, ORANGE, label, small_picture
from daskml_dist.planning.simulator import OperationCosts, Stragglers, simulate
from daskml_dist.policies import Asynchronous, BoundedStaleness, Policy, Synchronous

__all__ = ["draw", "measure", "table"]

#: Number of parameters, standard deviation of the noise in each entry of a gradient, and the share
#: of the initial distance to the minimum at which a run ends.
SIZE, NOISE, EXCESS = 100, 0.01, 0.02
RATES = [2 ** (k / 2) for k in range(-16, 4)]
POLICIES: dict[str, Policy] = {
    "sync": Synchronous(),
    "ssp": BoundedStaleness(4),
    "async": Asynchronous(),
    'async, max_delay="auto"': Asynchronous(max_delay="auto"),
    "async, max_delay=4": Asynchronous(max_delay=4),
    "async, gradient_table=True": Asynchronous(gradient_table=True),
}
STYLES = [("s-", GREY), ("^-", GREY), ("o-", BLUE), ("s--", ORANGE), ("o-", ORANGE), ("^--", BLUE)]
#: Standard deviation of each entry of a worker's own linear term, if minima differ.
SPREAD = 0.1


@dataclass(frozen=True)
class Unequal(Stragglers):
    """Workers of unequal speed: the i-th needs ``i + |N(0, i)|`` times the seconds of a step."""

    def seconds(self, compute: float, workers: int, steps: int, seed: int) -> NDArray[np.float64]:
        """Return the seconds of each step, of shape (workers, steps)."""
        rng = np.random.default_rng(seed)
        number = np.arange(1, workers + 1.0)[:, None]
        noise = np.abs(rng.standard_normal((workers, steps))) * np.sqrt(number)
        return compute * (number + noise)


class NoisyQuadratic:
    """Training on ``x A x / 2 - b x`` at several learning rates together, with A tridiagonal.

    Parameters
    ----------
    size : int
    excess : float
        Share of the initial distance to the minimum at which a run ends.
    seed : int
    spread : float
        Deviation of the workers' own linear terms from the mean one.
    workers : int
    """

    def __init__(
        self, size: int, excess: float, seed: int, spread: float = 0.0, workers: int = 1
    ) -> None:
        self.is_over = False
        #: The learning rate that reached the target first, and the time.
        self.reached: tuple[float, float] | None = None
        self._rng = np.random.default_rng(seed)
        self._matrix = (2 * np.eye(size) - np.eye(size, k=1) - np.eye(size, k=-1)) / 4
        self._b = -np.eye(size, 1) / 4
        own = spread * np.random.default_rng(seed + 1).standard_normal((workers, size, 1))
        self._own_b = self._b + own - own.mean(axis=0)
        self._least = float((self._value(np.linalg.solve(self._matrix, self._b)))[0])
        self._excess = excess
        self._w = np.zeros((size, len(RATES)))

    def pull(self) -> NDArray[np.float64]:
        """Return a copy of the parameters of all rates."""
        return self._w.copy()

    def gradient(self, worker: int, copy: Any) -> NDArray[np.float64]:
        """Return the gradient at each rate's parameters; the noise is the same for all."""
        gradient: NDArray[np.float64] = self._matrix @ copy - self._own_b[worker]
        return gradient + NOISE * self._rng.standard_normal((len(gradient), 1))

    def apply(self, gradients: list[Any], now: float) -> None:
        """Step each rate's parameters, and check whether one has reached the target."""
        self._w -= np.array(RATES) * (sum(gradients) / len(gradients))
        np.clip(self._w, -1e9, 1e9, out=self._w)  # rates that diverge
        met = np.flatnonzero(self._value(self._w) / self._least >= 1 - self._excess)
        if len(met):
            self.is_over, self.reached = True, (RATES[met[-1]], now)

    def _value(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return (x * (self._matrix @ x / 2 - self._b)).sum(axis=0)


@dataclass(frozen=True)
class Reached:
    """Seconds to the target (NaN: not reached), gradients applied and dropped, mean staleness."""

    seconds: float
    steps: int
    dropped: int
    staleness: float


#: Figures by spread of the minima, number of workers and policy.
Figures = dict[float, dict[int, dict[str, Reached]]]


def measure(tiny: bool = False, real: bool = False) -> Figures:
    """Return figures of workers with one minimum, then with their own minima."""
    return {
        spread: {
            workers: {
                name: _run(policy, workers, spread, tiny) for name, policy in POLICIES.items()
            }
            for workers in sizes
        }
        for spread, sizes in (
            (0.0, (4,) if tiny else (16, 128, 1_000)),
            (SPREAD, (4,) if tiny else (16, 128)),
        )
    }


def _run(policy: Policy, workers: int, spread: float, tiny: bool) -> Reached:
    """Return one run in virtual time, at the best of the learning rates."""
    size, excess = (10, 0.3) if tiny else (SIZE, EXCESS)
    training = NoisyQuadratic(size, excess, seed=0, spread=spread, workers=workers)
    # The rounds of a table last as long as the slowest worker needs, while fast ones push all the
    # time.
    most = 800_000 if policy.gradient_table else 200_000
    with threadpool_limits(1):
        out = simulate(
            policy, OperationCosts(1.0), workers, steps=max(most // workers, 1_000),
            stragglers=Unequal(), training=training,
        )  # fmt: skip
    _, seconds = training.reached or (0.0, np.nan)
    return Reached(seconds, out.steps, out.dropped, out.staleness)


def table(figures: Figures) -> str:
    """Return a row for each spread, number of workers and policy."""
    rows = [
        ["each its own" if spread else "one", f"{workers:,}", name,
         "not reached" if np.isnan(r.seconds) else f"{r.seconds:,.0f}",
         f"{r.steps:,}", f"{r.dropped:,}", f"{r.staleness:,.1f}"]
        for spread, sizes in figures.items()
        for workers, runs in sizes.items() for name, r in runs.items()
    ]  # fmt: skip
    title = (
        f"Maranjyan et al. 2025: simulated seconds to {EXCESS:.0%} of the first distance to the "
        f"minimum of a noisy quadratic in {SIZE} dimensions, worker i with steps of i + |N(0, i)| "
        "seconds, at the best of 20 learning rates"
    )
    columns = [
        "minimum", "workers", "policy", "seconds", "gradients applied", "dropped",
        "mean staleness",
    ]  # fmt: skip
    return markdown(title, columns, rows)


def draw(figures: Figures, path: Path) -> None:
    """Draw the seconds to the target by the number of workers."""
    with small_picture(path, len(figures)) as axes:
        for ax, (spread, sizes) in zip(axes, figures.items(), strict=True):
            for name, (style, colour) in zip(POLICIES, STYLES, strict=True):
                seconds = [runs[name].seconds for runs in sizes.values()]
                ax.loglog(list(sizes), seconds, style, color=colour, label=name)
            title = "each worker its own minimum" if spread else "one minimum"
            label(ax, title, "workers", "simulated seconds to it", "policy")
