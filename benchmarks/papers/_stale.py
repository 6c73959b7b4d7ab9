"""Fits under bounded staleness with stragglers: measured with sleeping workers, and simulated.

Measured: a fit with real gradients on a real cluster, whose steps are as long as those of a larger
problem: each lane sleeps after its gradient and before its push. So two cores can run eight
workers, and seconds are those of the clock. The objective is computed over all rows at the
parameters that a lane has pulled, in each step.
"""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import Client
from threadpoolctl import threadpool_limits

from benchmarks._common import persisted, processes
from benchmarks.simulator.training import LogisticRun, Problem
from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.optimizers import SGD
from daskml_dist.planning.simulator import OperationCosts, Stragglers, simulate
from daskml_dist.policies import BoundedStaleness, Policy

__all__ = ["LANES", "PulledSeldom", "Reached", "measured", "simulated"]

#: Number of workers, in two processes of four threads.
LANES = 8
RATES = [2 ** (k / 2) for k in range(-14, 3)]


@dataclass(frozen=True)
class PulledSeldom(BoundedStaleness):
    """Bounded staleness whose lanes use a copy for `staleness` steps, then pull.

    This is nearly the rule of Ho et al. 2013, whose workers read a cache while it is fresh enough.
    """

    name = "ssp, pulled seldom"

    @property
    def pull_every(self) -> int:  # type: ignore[override]
        """Return the number of steps between two pulls."""
        return self.staleness + 1


@dataclass(frozen=True)
class Reached:
    """Cost of reaching an objective; NaN seconds if it was not reached.

    Parameters
    ----------
    seconds : float
    computing : float
        Share of the workers' time spent computing; in the rest they waited.
    steps : float
        Mean number of steps of a worker.
    times, losses : tuple of float
        Times and objectives before it was reached.
    """

    seconds: float
    computing: float
    steps: float
    times: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()


def simulated(
    bound: int,
    problem: Problem,
    workers: int,
    step: float,
    stragglers: Stragglers,
    *,
    cached: bool,
    seeds: int = 1,
) -> tuple[Reached, float]:
    """Return the median run in virtual time, at the best of some learning rates, and that rate."""
    runs = []
    for seed in range(seeds):
        training = LogisticRun(problem, workers, RATES, seed=seed)
        with threadpool_limits(1):
            out = simulate(
                BoundedStaleness(bound), OperationCosts(step, latency=50e-6), workers, steps=3000,
                stragglers=stragglers, cached=cached, seed=seed, training=training,
            )  # fmt: skip
        rate, steps, seconds = training.reached or (RATES[0], np.nan, np.nan)
        runs.append((Reached(seconds, 1 - out.idle, steps), rate))
    return _median([run for run, _ in runs]), statistics.median(rate for _, rate in runs)


def _median(runs: list[Reached]) -> Reached:
    """Return the run with the median of seconds."""
    return sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]


def measured(
    policies: list[tuple[Policy, float]],
    problem: Problem,
    step: float,
    stragglers: Stragglers,
    *,
    most: int = 250,
    seeds: int = 1,
) -> list[Reached]:
    """Return the median of real fits, for each policy and learning rate, with equal sleeps.

    A fit makes `most` steps; after it has reached the objective it does not sleep any more.
    """
    with processes(2, 4) as client:
        rows = persisted(problem.X, LANES), persisted((problem.y > 0).astype(np.int64), LANES)
        client.run(_lengthen, problem)
        try:
            sleeps = [stragglers.seconds(step, LANES, most, seed) for seed in range(seeds)]
            _fit(client, *policies[0], rows, problem.target, sleeps[0])  # warms up
            fits = [
                [_fit(client, *policy, rows, problem.target, each) for policy in policies]
                for each in sleeps
            ]
            return [_median(list(runs)) for runs in zip(*fits, strict=True)]
        finally:
            client.run(_restore)


def _fit(
    client: Client, policy: Policy, rate: float, rows: Any, target: float, sleeps: Any
) -> Reached:
    client.run(_begin, sleeps)
    SGDClassifier(
        policy=policy, optimizer=SGD(), learning_rate=rate, alpha=0.0, fit_intercept=False,
        batch_size=None, max_iter=sleeps.shape[1], tol=None, random_state=0,
        run=Run(n_lanes=LANES),
    ).fit(*rows)  # fmt: skip
    seen = np.array(sorted(itertools.chain(*client.run(_seen).values())))
    began, lasted, losses = seen.T
    began -= began[0]
    met = np.flatnonzero(losses <= target)
    last = met[0] if len(met) else len(seen) - 1
    end = max(float(began[last]), 1e-9)
    computing = np.clip(np.minimum(began + lasted, end) - began, 0, None).sum() / (LANES * end)
    return Reached(
        end if len(met) else float("nan"), float(computing), last / LANES,
        tuple(began[: last + 1].tolist()), tuple(losses[: last + 1].tolist()),
    )  # fmt: skip


# --- in the workers --------------------------------------------------------------------------

_original: Any = None
_sleeps: Any = None
_entries: list[tuple[float, float, float]] = []
_reached = False


def _lengthen(problem: Problem) -> None:
    """Let lanes compute the objective and sleep in each step from now on."""
    from daskml_dist.losses import LogLoss
    from daskml_dist.training.worker.lane import Lane

    global _original
    add_gradient = _original = Lane.add_gradient
    loss = LogLoss()

    def slow(self: Lane, w: Any, batch: Any, out: Any) -> None:
        global _reached
        add_gradient(self, w, batch, out)
        values, _ = loss.value_and_gradient(problem.y, (problem.X @ w)[:, 0])
        value = float(values.mean())
        # After the objective is reached, the rest of the fit needs no realistic time.
        _reached = _reached or value <= problem.target
        pause = 0.0 if _reached else float(_sleeps[self.number, self.reached - 1])
        _entries.append((time.time(), pause, value))
        time.sleep(pause)

    Lane.add_gradient = slow  # type: ignore[method-assign]


def _restore() -> None:
    from daskml_dist.training.worker.lane import Lane

    Lane.add_gradient = _original  # type: ignore[method-assign]


def _begin(sleeps: Any) -> None:
    global _sleeps, _reached
    _sleeps, _reached = sleeps, False
    _entries.clear()


def _seen() -> list[tuple[float, float, float]]:
    return list(_entries)
