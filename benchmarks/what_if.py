"""Predictions of a plan for other clusters, compared with real fits of sleeping workers.

After each step a lane sleeps as long as the step of a larger problem would take, so two cores can
run eight processes, and seconds are those of the clock. Network cards are not tested: messages use
the loopback interface.
"""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import numpy as np

from benchmarks._common import markdown, processes
from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.planning.hypothetical_cluster import simulate_step_seconds
from daskml_dist.policies import AllReduce, Asynchronous, BoundedStaleness, Policy, Synchronous

#: Mean seconds of a step, sigma of its lognormal factor, steps in a pass, and passes.
STEP, SIGMA, STEPS, PASSES = 0.02, 0.6, 25, 3
#: The loopback, as measured by the simulator's calibration.
LATENCY, BANDWIDTH = 3.5e-5, 3.9e9
FEATURES, BATCH = 16, 32


class Sleeps:
    """Callback that sleeps after each step of a lane; the time is drawn by lane and step."""

    def on_step_end(self, step: Any) -> None:
        """Sleep in the trainer."""
        draw = np.random.default_rng((step.lane, step.clock)).standard_normal()
        time.sleep(STEP * math.exp(SIGMA * draw - SIGMA**2 / 2))


def run(tiny: bool = False) -> str:
    """Return the seconds of a step of all workers, simulated and measured."""
    policies: list[Policy] = [Synchronous(), AllReduce(), BoundedStaleness(2), Asynchronous()]
    rows = []
    for workers in (2,) if tiny else (1, 2, 4, 8):
        with processes(workers) as client, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for policy in policies[:1] if tiny else policies:
                measured = seconds_of_a_step(policy, workers, client)
                simulated = simulate_step_seconds(
                    policy, STEP, workers, (FEATURES + 1) * 8, LATENCY, BANDWIDTH,
                    stragglers=SIGMA,
                )  # fmt: skip
                rows.append(
                    [repr(policy), workers, f"{simulated * 1e3:.1f}", f"{measured * 1e3:.1f}",
                     f"{simulated / measured:.2f}"]
                )  # fmt: skip
    title = (
        f"A step of all workers, which sleep {STEP * 1e3:.0f} ms in the mean in each (lognormal, "
        f"sigma {SIGMA}), processes on this machine"
    )
    return markdown(title, ["policy", "workers", "simulated, ms", "measured, ms", "ratio"], rows)


def seconds_of_a_step(policy: Policy, workers: int, client: Any) -> float:
    """Return the seconds of a fit with sleeping workers, divided by the steps of each."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((workers * BATCH * STEPS, FEATURES))
    y = (X[:, 0] + rng.standard_normal(len(X)) > 0).astype(int)
    clf = SGDClassifier(
        policy=policy, batch_size=BATCH, max_iter=PASSES, tol=None, random_state=0,
        learning_rate="constant", eta0=0.01, callbacks=[Sleeps()], run=Run(n_lanes=workers),
    )  # fmt: skip
    clf.fit(X, y, client=client)
    return sum(record["seconds"] for record in clf.history_) / (STEPS * PASSES)
