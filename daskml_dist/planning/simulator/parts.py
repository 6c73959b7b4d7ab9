"""Parts of a simulated run: costs, stragglers, outcome."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Costs", "Outcome", "Stragglers", "Training"]


@dataclass(frozen=True)
class Costs:
    """Costs of things; seconds, and bytes a second.

    Parameters
    ----------
    compute : float
        One gradient of an undisturbed worker.
    message : float
        A server's processor for one push and its answer, whatever their size.
    apply, add : float
        A server's processor for a byte of an update, and of each push summed in a round.
    peer : float
        Sending and reading one small message between trainers.
    latency : float
        One way.
    bandwidth : float
        Of each network card, in each direction.
    """

    compute: float
    message: float = 0.0
    apply: float = 0.0
    add: float = 0.0
    peer: float = 0.0
    latency: float = 0.0
    bandwidth: float = math.inf


@dataclass(frozen=True)
class Stragglers:
    """Causes that make a step longer than it should be.

    Parameters
    ----------
    noise : float
        Sigma of a lognormal factor of mean 1 on each step.
    pause_share, pause : float
        Share of steps with a pause, and its mean length in undisturbed steps (exponential).
    slow_share, slow_factor : float
        Share of the workers (rounded up) that are always slow, and how much longer they take.
    """

    noise: float = 0.0
    pause_share: float = 0.0
    pause: float = 0.0
    slow_share: float = 0.0
    slow_factor: float = 1.0

    def seconds(self, compute: float, workers: int, steps: int, seed: int) -> NDArray[np.float64]:
        """Time of each step of each worker, the same under every policy; (workers, steps)."""
        rng = np.random.default_rng(seed)
        factor = np.exp(self.noise * rng.standard_normal((workers, steps)) - self.noise**2 / 2)
        paused = rng.random((workers, steps)) < self.pause_share
        factor += paused * rng.exponential(self.pause or 1.0, (workers, steps))
        factor[: math.ceil(self.slow_share * workers)] *= self.slow_factor
        return compute * factor


class Training(Protocol):
    """Real gradient steps in the order of simulated events."""

    over: bool

    def pull(self) -> Any:
        """Copy of the parameters."""

    def gradient(self, worker: int, copy: Any) -> Any:
        """Gradient of the worker's next batch."""

    def apply(self, gradients: list[Any], now: float) -> None:
        """Make one step with the mean of the gradients."""


@dataclass
class Outcome:
    """Outcome of a simulated run.

    Parameters
    ----------
    workers : int
    seconds : float
        Simulated time.
    busy : float
        Seconds that the workers computed, all together.
    steps : int
        Gradients that counted.
    dropped : int
        Gradients that a round did not wait for.
    updates : int
    staleness : float
        Mean number of updates between a pull and the apply of its gradient.
    lead : int
        Largest lead of a clock over the slowest at which a worker went on.
    use : dict of str to float
        Share of the time in which the most used server or network card was busy.
    """

    workers: int
    seconds: float = 0.0
    busy: float = 0.0
    steps: int = 0
    dropped: int = 0
    updates: int = 0
    staleness: float = 0.0
    lead: int = 0
    use: dict[str, float] = field(default_factory=dict)

    @property
    def idle(self) -> float:
        """Share of the workers' time in which they did not compute."""
        return 1 - self.busy / (self.workers * self.seconds)

    @property
    def rate(self) -> float:
        """Gradients that counted, a second."""
        return self.steps / self.seconds

    def efficiency(self, costs: Costs) -> float:
        """Rate as a share of as many undisturbed workers that never wait."""
        return self.rate * costs.compute / self.workers
