"""Training beyond this machine, simulated: staleness, workers, servers, locks, backup workers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from threadpoolctl import threadpool_limits

from benchmarks._common import markdown
from benchmarks.simulator.costs import measure, step_seconds
from benchmarks.simulator.threads import SCHEMES, updates_per_second
from benchmarks.simulator.training import LogisticRun, Problem
from daskml_dist.planning.simulator import OperationCosts, SimulatedRun, Stragglers, simulate
from daskml_dist.policies import (
    AllReduce,
    Asynchronous,
    BoundedStaleness,
    Hogwild,
    LocalSGD,
    ModelAveraging,
    Policy,
    Synchronous,
)

#: Parameters of the calibration (1 KB), rows of its small and of its large batch.
FEATURES, FEW_ROWS, MANY_ROWS = 128, 64, 4096
#: Rows of a step in the tables; its time is that of the large batch, scaled by the rows.
STEP_ROWS = 100_000
#: The network of the tables: 10 Gbit/s Ethernet.
LATENCY, BANDWIDTH = 50e-6, 1.25e9
#: Only noise; and with pauses and slow workers too.
NOISE = Stragglers(noise=0.45)
SLOW = replace(NOISE, slow_share=0.05, slow_factor=1.5)
MIXED = Stragglers(noise=0.3, pause_share=0.005, pause=5.0, slow_share=0.02, slow_factor=2.0)
RATES = [2 ** (k / 2) for k in range(-16, 9)]


def run(tiny: bool = False) -> str:
    """Return all tables."""
    loopback = measure(FEATURES, FEW_ROWS, large=50_000 if tiny else 500_000)
    step = step_seconds(FEATURES, MANY_ROWS) * STEP_ROWS / MANY_ROWS
    costs = replace(loopback, compute=step, latency=LATENCY, bandwidth=BANDWIDTH)
    tables = [
        calibration(loopback, costs),
        staleness(costs, tiny),
        workers(costs, tiny),
        servers(costs, tiny),
        locks(tiny),
        backup(costs, tiny),
    ]
    return "\n\n".join(tables)


def calibration(loopback: OperationCosts, costs: OperationCosts) -> str:
    """Return the measured costs, and the costs used in the tables."""
    rows = [
        [f"a step of {FEW_ROWS} rows x {FEATURES} features", _time(loopback.compute)],
        [f"a step of {STEP_ROWS:,} rows, scaled from one of {MANY_ROWS:,}", _time(costs.compute)],
        ["a push and its reply, server CPU", _time(loopback.message)],
        ["a byte of an update", f"{loopback.apply * 1e9:.2f} ns"],
        ["a byte of each push in the sum of a round", f"{loopback.add * 1e9:.3f} ns"],
        ["a small message between trainers", _time(loopback.peer)],
        ["loopback: one way", _time(loopback.latency)],
        ["loopback: bandwidth", f"{loopback.bandwidth / 1e9:.1f} GB/s"],
        ["tables below: one way (not measured)", _time(costs.latency)],
        ["tables below: bandwidth (not measured)", f"{costs.bandwidth / 1e9:.2f} GB/s"],
    ]
    return markdown("Costs", ["cost", "value"], rows)


def staleness(costs: OperationCosts, tiny: bool) -> str:
    """Return a table of bounds from 0 to 64: waiting, and steps to a loss, with real gradients."""
    count, seeds = (4, 1) if tiny else (16, 5)
    problem = Problem.make(400 if tiny else 1600, 30, 0.05 if tiny else 0.002)
    rows = []
    for bound in (0, 16) if tiny else (0, 1, 2, 4, 8, 16, 32, 64):
        for reads in ("each step", "cached"):
            runs = [
                _trained(BoundedStaleness(bound), costs, count, NOISE, problem, seed, reads)
                for seed in range(seeds)
            ]
            with_slow = simulate(
                BoundedStaleness(bound), costs, count,
                steps=400, stragglers=SLOW, cached=reads == "cached",
            )  # fmt: skip
            rows.append([bound, reads, *_training_cells(runs, count), f"{with_slow.idle:.1%}"])
    columns = [
        "bound", "reads", "idle", "steps/s", "mean staleness", "steps per worker", "learning rate",
        "seconds", "computing", "idle with slow workers",
    ]  # fmt: skip
    title = (
        f"Bounded staleness, {count} workers, lognormal noise (sigma {NOISE.noise}); to a loss "
        f"{problem.excess:.1%} above the minimum, medians of {seeds}; last column: with 5 % of the "
        f"workers (at least one) {SLOW.slow_factor:g} times slower"
    )
    return markdown(title, columns, rows)


def _trained(
    policy: Policy,
    costs: OperationCosts,
    count: int,
    stragglers: Stragglers,
    problem: Problem,
    seed: int,
    reads: str = "each step",
) -> tuple[SimulatedRun, tuple[float, float, float] | None]:
    training = LogisticRun(problem, count, RATES, seed=seed)
    # The matrices are small: a second BLAS thread would only cost time.
    with threadpool_limits(1):
        outcome = simulate(
            policy, costs, count, steps=3000, stragglers=stragglers, seed=seed,
            cached=reads == "cached", training=training,
        )  # fmt: skip
    return outcome, training.reached


def _training_cells(
    runs: Sequence[tuple[SimulatedRun, tuple[float, float, float] | None]], count: int
) -> list[str]:
    """Return idle share, rate, staleness, steps of a worker, learning rate, and (busy) seconds."""
    idle = statistics.median(o.idle for o, _ in runs)
    rate = statistics.median(o.rate for o, _ in runs)
    old = statistics.median(o.staleness for o, _ in runs)
    cells = [f"{idle:.1%}", f"{rate:,.0f}", f"{old:,.1f}"]
    met = [reached for _, reached in runs if reached is not None]
    if len(met) < len(runs):
        return [*cells, "not reached", "", "", ""]
    rates, steps, seconds = (statistics.median(values) for values in zip(*met, strict=True))
    busy = statistics.median(o.busy / count for o, _ in runs)
    return [*cells, f"{steps:,.0f}", f"{rates:.3g}", f"{seconds:.2f}", f"{busy:.2f}"]


def workers(costs: OperationCosts, tiny: bool) -> str:
    """Return a table of every policy from 2 to 1,000 workers, with stragglers of all kinds."""
    policies: list[Policy] = [
        Synchronous(), Synchronous(backup_workers=2), AllReduce(), BoundedStaleness(4),
        BoundedStaleness(16), Asynchronous(), LocalSGD(), ModelAveraging(), Hogwild(),
    ]  # fmt: skip
    counts = (2, 20) if tiny else (2, 10, 50, 200, 1000)
    rows = []
    for policy in policies:
        for count in counts:
            out = simulate(
                policy, costs, count,
                n_bytes=FEATURES * 8, steps=20 if tiny else 100, stragglers=MIXED,
            )  # fmt: skip
            rows.append(
                [repr(policy), f"{count:,}", f"{out.rate:,.0f}", f"{out.idle:.1%}",
                 f"{out.efficiency(costs):.1%}", f"{out.staleness:,.1f}",
                 f"{out.use.get('server processor', 0):.0%}"]
            )  # fmt: skip
    columns = [
        "policy", "workers", "steps/s", "idle", "efficiency", "mean staleness",
        "server CPU busy",
    ]  # fmt: skip
    title = (
        f"Workers, one server, 1 KB of parameters; noise (sigma {MIXED.noise}), a pause of "
        f"{MIXED.pause:g} steps in {MIXED.pause_share:.1%} of the steps, {MIXED.slow_share:.0%} "
        f"of the workers (at least one) {MIXED.slow_factor:g} times slower"
    )
    return markdown(title, columns, rows)


def servers(costs: OperationCosts, tiny: bool) -> str:
    """Return a table of a big model on 1 to 64 servers: the busiest resource."""
    count, n_bytes = (4, 4e6) if tiny else (32, 40e6)
    rows = []
    for policy in (Synchronous(), Asynchronous()):
        for number in (1, 4) if tiny else (1, 2, 4, 8, 16, 32, 64):
            out = simulate(
                policy, costs, count, servers=number, n_bytes=n_bytes, steps=20, stragglers=NOISE
            )
            use = {"computing": 1 - out.idle, **out.use}
            rows.append(
                [repr(policy), number, _time(count / out.rate), *(f"{u:.0%}" for u in use.values()),
                 max(use, key=lambda what: use[what])]
            )  # fmt: skip
    out = simulate(AllReduce(), costs, count, n_bytes=n_bytes, steps=20, stragglers=NOISE)
    busy, network = 1 - out.idle, out.use["worker network"]
    rows.append(
        [repr(AllReduce()), 0, _time(count / out.rate), f"{busy:.0%}", "", "", f"{network:.0%}",
         "worker network" if network > busy else "computing"]
    )  # fmt: skip
    columns = [
        "policy", "servers", "one step of all workers", "computing", "server CPU",
        "server network", "worker network", "busiest",
    ]  # fmt: skip
    title = f"Servers, {count} workers, {n_bytes / 1e6:g} MB of parameters, share of time busy"
    return markdown(title, columns, rows)


def locks(tiny: bool) -> str:
    """Compare lock-free updates with locks, by the cost of a gradient and the number of cores."""
    cores = (1, 4) if tiny else (1, 2, 4, 8, 10, 16, 32)
    updates = 200 if tiny else 3000
    rows = []
    for gradient in (1e-6, 1e-4) if tiny else (1e-7, 1e-6, 1e-5, 1e-4):
        serial = updates_per_second("lock-free", 1, gradient, updates=updates)
        for scheme in SCHEMES:
            speed = [updates_per_second(scheme, n, gradient, updates=updates) for n in cores]
            rows.append([_time(gradient), scheme, *(f"{s / serial:.2f}" for s in speed)])
    columns = ["gradient", "scheme", *(f"{n} cores" if n > 1 else "1 core" for n in cores)]
    return markdown(
        "Updates per second of one array, relative to one core without locks", columns, rows
    )


def backup(costs: OperationCosts, tiny: bool) -> str:
    """Return a table of backup workers under three kinds of stragglers, with real gradients."""
    count = 8 if tiny else 50
    problem = Problem.make(400 if tiny else 1600, 30, 0.05 if tiny else 0.002)
    kinds = {
        "noise": NOISE,
        "pauses": Stragglers(noise=0.1, pause_share=0.02, pause=5.0),
        "slow workers": Stragglers(noise=0.1, slow_share=0.04, slow_factor=3.0),
    }
    rows = []
    for name, stragglers in kinds.items():
        for spare in (0, 2) if tiny else (0, 1, 2, 4, 8, 16):
            policy = Synchronous(backup_workers=spare)
            runs = [_trained(policy, costs, count, stragglers, problem, seed) for seed in (0, 1, 2)]
            steps = simulate(policy, costs, count, steps=200, stragglers=stragglers)
            rounds = [out.updates for out, _ in runs]
            rows.append(
                [name, spare, f"{steps.updates / steps.seconds:,.1f}", f"{steps.rate:,.0f}",
                 f"{steps.dropped / (steps.steps + steps.dropped):.1%}",
                 f"{statistics.median(rounds):,.0f}",
                 f"{statistics.median(out.seconds for out, _ in runs):.2f}"]
            )  # fmt: skip
    columns = [
        "stragglers", "backup workers", "rounds/s", "useful steps/s", "dropped",
        "rounds to reach the loss", "seconds",
    ]  # fmt: skip
    title = (
        f'Backup workers, {count} workers, "sync"; to a loss {problem.excess:.1%} above the '
        "minimum; noise as above, or a pause of 5 steps in 2 % of the steps, or 4 % of the workers "
        "3 times slower; medians of 3"
    )
    return markdown(title, columns, rows)


def _time(seconds: float) -> str:
    """Format seconds with three digits, in a suitable unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
