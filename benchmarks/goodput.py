"""Goodput under faults: rows a second of fits whose workers are killed and stopped all the time."""

from __future__ import annotations

from dataclasses import dataclass

import dask.array as da
import numpy as np

from benchmarks._common import markdown
from benchmarks._strikes import PassClock, Striker, open_workers
from daskml_dist import Run
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.policies import LocalSGD, Policy

WORKERS, LANES = 8, 32
N_ROWS, FEATURES = 65_536, 40
#: Steps between two meetings; lanes of which a meeting may do without: those of one worker, and a
#: few more.
EVERY, ABSENT = 64, 8
#: Seconds between two faults: 62 in half an hour, as in Decoupled DiLoCo's experiment with one
#: machine.
FAULT_EVERY = 1800 / 62
#: Seconds of a calm fit, of one under faults, and of the policy that is to bear them: as long as
#: that experiment.
CALM, STRUCK, LONG = 60.0, 60.0, 1800.0
#: Seconds for which a process is stopped, at least and at most; of all faults, 27 of 62 are kills.
STOPPED, KILLED_SHARE = (5.0, 20.0), 27 / 62
HOW = "`python -m benchmarks goodput`"

POLICIES: dict[str, str | Policy] = {
    '`"allreduce"`': "allreduce",
    f"local, {EVERY} steps": LocalSGD(EVERY),
    f"local, {EVERY} steps, quorum {LANES - ABSENT}, 2 fragments": LocalSGD(
        EVERY, quorum=LANES - ABSENT, fragments=2
    ),
}


def run(tiny: bool = False) -> str:
    """One table: a row for each policy, calm and under faults."""
    rows = []
    for i, (name, policy) in enumerate(reversed(POLICIES.items())):
        if tiny and i:
            break
        seconds = 4.0 if tiny else STRUCK if i else LONG
        # A machine shared with others is faster at some minutes than at others: calm fits come both
        # before and after the long one.
        calm = _fit(policy, 4.0 if tiny else CALM, faults=False, tiny=tiny)
        struck = _fit(policy, seconds, faults=True, tiny=tiny)
        after = _fit(policy, 4.0 if tiny else CALM, faults=False, tiny=tiny)
        calm_rate = (calm.rate + after.rate) / 2
        # A pass closes at other times under faults: what a user waits for is a loss by the clock.
        n = sum(at <= calm.closed[-1] for at in struck.closed)
        rows.append([
            name,
            f"{seconds:,.0f}",
            f"{calm.rate:,.0f}, {after.rate:,.0f}",
            f"{struck.rate:,.0f}",
            f"{struck.rate / calm_rate:.1%}",
            f"{struck.kills} + {struck.stops}",
            struck.generations,
            f"{struck.losses[n - 1] / calm.losses[-1] - 1:+.2%}",
        ])  # fmt: skip
    columns = [
        "policy", "seconds of faults", "rows/s, calm, before and after", "rows/s, under faults",
        "kept",
        "kills + stops", "generations", "loss after as long as the calm fit",
    ]  # fmt: skip
    title = (
        f"Perceptron of {FEATURES} x 32 x 2, {LANES} lanes on {WORKERS} processes, a fault every "
        f"{FAULT_EVERY:.0f} s; calm fits of {CALM:.0f} s"
    )
    return markdown(title, columns, rows)


@dataclass
class _Found:
    """What became of a fit."""

    rate: float
    losses: list[float]
    #: Seconds from the end of the first pass at which each pass closed.
    closed: list[float]
    generations: int
    kills: int
    stops: int


def _fit(policy: str | Policy, seconds: float, faults: bool, tiny: bool) -> _Found:
    with open_workers(WORKERS, __name__, memory_limit=0) as client:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(N_ROWS, FEATURES)).astype(np.float32)
        y = (X[:, :5] ** 2).sum(axis=1) + rng.normal(size=N_ROWS) > 5
        chunk = N_ROWS // LANES
        lazy = da.from_array(X, chunks=(chunk, -1)), da.from_array(y, chunks=chunk)
        every = 1.0 if tiny else FAULT_EVERY
        striker = Striker(client, every, KILLED_SHARE, STOPPED) if faults else None
        clock = PassClock(seconds)
        callbacks = [clock, *([striker] if striker else [])]
        net = MLPClassifier(
            (32,), policy=policy, max_iter=10**6, tol=None, batch_size=512, random_state=0,
            learning_rate_init=1e-3, run=Run(n_lanes=LANES), callbacks=callbacks,
        )  # fmt: skip
        net.fit(*lazy)
    records = net.history_.records[1:]
    # Lanes at their own pace are in later passes, too, when one closes.
    rows = sum(record["rows"] for record in records) + net.history_.extra["partial_rows"]
    generations = len(net.history_.extra.get("generations", []))
    return _Found(
        rows / clock.closed[-1],
        [record["loss"] for record in net.history_.records],
        clock.closed,
        generations,
        striker.kills if striker else 0,
        striker.stops if striker else 0,
    )
