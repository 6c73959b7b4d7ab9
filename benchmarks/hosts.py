"""Several hosts, emulated by network namespaces: policies, all-reduces, silence, many workers.

``DASKML_DIST_HOSTS=policies,loss,simulated,sums,silence,many`` selects tables. They need root, for
the namespaces, except the one of many workers; if a requirement is missing, a message replaces the
table. ``load`` runs only if it is named: ``DASKML_DIST_LOAD_SECONDS`` (3,600) of fits beside
``DASKML_DIST_LOAD`` (8) busy processes, in which no host may be mistaken for lost.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
from distributed import Client, LocalCluster
from distributed.utils import get_mp_context

from benchmarks._common import logistic_rows, markdown, persisted
from benchmarks._host_ranks import all_hosts, mpi_on_hosts
from benchmarks._hosts import Cable, Host, HostCluster, HostNetwork, network_problem
from benchmarks._strikes import Until, victims_of
from benchmarks.simulator.costs import measure
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.planning.simulator.events import Stragglers, simulate
from daskml_dist.policies import POLICIES, Policy, get_policy

HOW = "`python -m benchmarks hosts`"
#: Cables between the hosts: the delay of the last one gives a round trip of 20 ms.
NETWORKS = [Cable(10e9), Cable(1e9), Cable(1e8), Cable(1e9, delay=0.005)]
#: The same cable without and with loss; a process relays both, which takes time too.
LOSSES = [Cable(1e9, delay=1e-4), Cable(1e9, delay=1e-4, loss=0.01)]
LOSS_TRIES = 3
#: Number of hosts in the tables of policies and of silence.
HOSTS = 4
#: Rows, features and passes of the linear model (400 bytes of parameters) and of the network (200
#: KB), and rows of a batch per lane.
LINEAR_ROWS, LINEAR_FEATURES, LINEAR_PASSES, LINEAR_BATCH = 40_000, 100, 2, 256
NET_ROWS, NET_FEATURES, NET_LAYER, NET_PASSES, NET_BATCH = 8_192, 784, 64, 2, 128
#: Hosts of the simulator's table: each has its own core here. Features, and steps of each lane in a
#: pass.
SIMULATED_HOSTS, SIMULATED = 2, [(128, 320), (4_096, 64)]
#: Numbers of elements (float32) and of repetitions of the all-reduces: 1 KB to 64 MB.
SUMS = [(1 << 8, 100), (1 << 14, 30), (1 << 18, 5), (1 << 22, 1), (1 << 24, 1)]
#: Seconds after the first pass at which a host falls silent, and number of fits of each kind.
LATER, TRIES = 0.7, 2
#: Numbers of worker processes of one thread on this machine.
MANY = [4, 8, 16, 32]


def run(tiny: bool = False) -> str:
    """Return the tables; each is printed to standard error as soon as it is ready."""
    asked = os.environ.get("DASKML_DIST_HOSTS", "policies,loss,simulated,sums,silence,many").split(
        ","
    )
    makers = {
        "policies": _policies,
        "loss": _loss,
        "simulated": _simulated,
        "sums": _sums,
        "silence": _silence,
        "load": _load,
        "many": _many,
    }
    problem, tables = network_problem(), []
    for name in asked:
        if problem is not None and name != "many":
            tables.append(f"{name}: not measured: {problem}")
            continue
        for table in makers[name](tiny):
            print(table, end="\n\n", file=sys.stderr, flush=True)
            tables.append(table)
    return "\n\n".join(tables)


# -- policies on networks of several speeds --------------------------------------------------------


@dataclass(frozen=True)
class _Subject:
    """Model that is fitted under each policy."""

    name: str
    rows: int
    features: int
    passes: int
    batch: int
    layer: int | None = None

    def fit(self, X: Any, y: Any, policy: str) -> Any:
        """Fit the model."""
        settings = {"policy": policy, "max_iter": self.passes, "batch_size": self.batch}
        settings |= {"tol": None, "random_state": 0}
        if self.layer is None:
            return SGDClassifier(**settings).fit(X, y)
        return MLPClassifier((self.layer,), **settings).fit(X, y)


_LINEAR = _Subject("linear", LINEAR_ROWS, LINEAR_FEATURES, LINEAR_PASSES, LINEAR_BATCH)
_NETWORK = _Subject("network", NET_ROWS, NET_FEATURES, NET_PASSES, NET_BATCH, NET_LAYER)


def _policies(tiny: bool) -> Iterator[str]:
    """Yield a table for each model."""
    cables = NETWORKS[:1] if tiny else NETWORKS
    names = ["sync"] if tiny else list(POLICIES)
    for subject in [_Subject("linear", 2_000, 10, 1, 256)] if tiny else [_LINEAR, _NETWORK]:
        yield _policies_of(subject, cables, names)


def _policies_of(subject: _Subject, cables: list[Cable], names: list[str]) -> str:
    """Return seconds, bytes and goodput of a model under each policy on each network."""
    rows = logistic_rows(subject.rows, subject.features)
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for cable in cables:
        with HostNetwork(HOSTS, cable) as network, HostCluster(network) as client:
            X, y = (persisted(part, 2 * HOSTS) for part in rows)
            subject.fit(X, y, "allreduce")  # workers import and compile
            for name in names:
                sent = sum(host.bytes_sent for host in network.hosts)
                start = time.perf_counter()
                subject.fit(X, y, name)
                seconds = time.perf_counter() - start
                sent = sum(host.bytes_sent for host in network.hosts) - sent
                found[name, str(cable)] = seconds, sent / 1e6
            del X, y, client
    columns = ["policy"]
    for cable in cables:
        columns += [f"{cable}: seconds", "MB sent", "goodput, rows/s"]
    table = []
    for name in names:
        row: list[Any] = [name]
        for cable in cables:
            seconds, sent = found[name, str(cable)]
            row += [
                f"{seconds:.2f}",
                f"{sent:.1f}",
                f"{subject.rows * subject.passes / seconds:,.0f}",
            ]
        table.append(row)
    layer = f", {subject.layer} hidden units" if subject.layer else ""
    title = (
        f"A whole fit of a {subject.name} model on {HOSTS} hosts ({subject.rows:,} rows of "
        f"{subject.features} features{layer}, {subject.passes} passes, batches of "
        f"{subject.batch} rows per lane): {HOW}"
    )
    return markdown(title, columns, table)


# -- lost packets ----------------------------------------------------------------------------------


def _loss(tiny: bool) -> Iterator[str]:
    """Yield the seconds of fits of both models under each policy, with and without lost packets."""
    names = ["sync"] if tiny else list(POLICIES)
    for subject in [_Subject("linear", 2_000, 10, 1, 256)] if tiny else [_LINEAR, _NETWORK]:
        seconds = {cable: _seconds_of_fits(subject, cable, names) for cable in LOSSES}
        rows = []
        for name in names:
            without, with_loss = ([s for s, _ in seconds[cable][name]] for cable in LOSSES)
            false_alarms = sum(events for cable in LOSSES for _, events in seconds[cable][name])
            rows.append(
                [
                    name,
                    f"{statistics.median(without):.2f}",
                    f"{statistics.median(with_loss):.2f}",
                    f"{min(with_loss):.2f} to {max(with_loss):.2f}",
                    f"{statistics.median(with_loss) / statistics.median(without):.1f}",
                    str(false_alarms),
                ]
            )
        columns = [
            "policy",
            "no loss, seconds",
            "1 % lost, seconds",
            "range",
            "ratio",
            "hosts declared lost",
        ]
        title = (
            f"Fits of a {subject.name} model on {HOSTS} hosts at 1 Gbit/s with 1 % of the frames "
            f"lost, medians of {LOSS_TRIES}: {HOW}"
        )
        yield markdown(title, columns, rows)


def _seconds_of_fits(
    subject: _Subject, cable: Cable, names: list[str]
) -> dict[str, list[tuple[float, int]]]:
    """Return the seconds of fits by policy, and the number of hosts wrongly considered lost."""
    rows = logistic_rows(subject.rows, subject.features)
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in names}
    with HostNetwork(HOSTS, cable) as network, HostCluster(network) as client:
        X, y = (persisted(part, 2 * HOSTS) for part in rows)
        subject.fit(X, y, "allreduce")  # workers import and compile
        for name in names * LOSS_TRIES:
            start = time.perf_counter()
            model = subject.fit(X, y, name)
            found[name].append((time.perf_counter() - start, len(_losses(model))))
        del X, y, client
    return found


def _losses(model: Any) -> list[str]:
    """Return why generations of a fit began, except for lanes that moved from slow workers."""
    reasons = [str(event["reason"]) for event in model.history_.extra.get("generations", ())]
    losses = [reason for reason in reasons if "slow" not in reason]
    for reason in losses:
        print(reason, file=sys.stderr, flush=True)
    return losses


# -- the simulator compared with measurements ------------------------------------------------------


def _simulated(tiny: bool) -> Iterator[str]:
    """Yield steps per second of policies on each network, predicted and measured."""
    policies = {name: get_policy(name) for name in ("sync", "allreduce", "ssp", "async", "local")}
    rows = []
    for features, pass_steps in [(128, 4)] if tiny else SIMULATED:
        # Computing costs are those of this processor; network costs are those of the cable.
        own = measure(features, LINEAR_BATCH, 10_000 if tiny else 500_000)
        compute = None
        for cable in NETWORKS[:1] if tiny else NETWORKS:
            with HostNetwork(SIMULATED_HOSTS, cable) as network:
                latency, bandwidth = _measure_cable(network, 8 * features, own.compute)
                with HostCluster(network) as client:
                    X, y = _rows_on_hosts(LINEAR_BATCH * pass_steps, features)
                    passes = 2 if tiny else 3 if cable.delay else 10
                    # Lanes without communication show the time of a step while both hosts compute.
                    alone, *measured = (
                        _steps_per_second(policy, X, y, passes)
                        for policy in (get_policy("average"), *policies.values())
                    )
                    del X, y, client
            compute = compute or SIMULATED_HOSTS / alone
            # Add the time needed here to wake a thread that waits for a message.
            latency += own.latency
            costs = replace(own, compute=compute, latency=latency, bandwidth=bandwidth)
            for (name, policy), real in zip(policies.items(), measured, strict=True):
                simulated = simulate(
                    policy, costs, SIMULATED_HOSTS, n_bytes=features * 8, steps=4 * pass_steps,
                    stragglers=Stragglers(0.1), colocated=True, fixed_shares=True,
                ).rate  # fmt: skip
                cells = [f"{simulated:,.0f}", f"{real:,.0f}", f"{simulated / real:.2f}"]
                rows.append([str(cable), f"{8 * features:,}", name, *cells])
    columns = ["network", "bytes", "policy", "predicted", "measured", "predicted / measured"]
    title = (
        f"Steps per second of {SIMULATED_HOSTS} hosts, batches of {LINEAR_BATCH} rows per lane: "
        f"{HOW}"
    )
    yield markdown(title, columns, rows)


def _rows_on_hosts(n_rows: int, n_features: int) -> tuple[Any, Any]:
    """Generate the same rows on each host: sending a GB over the slower cables takes minutes."""
    blocks = [
        dask.delayed(logistic_rows, pure=False)(n_rows, n_features, "float64")
        for _ in range(SIMULATED_HOSTS)
    ]
    X = [da.from_delayed(block[0], (n_rows, n_features), "float64") for block in blocks]
    y = [da.from_delayed(block[1], (n_rows,), "int64") for block in blocks]
    return dask.persist(da.concatenate(X), da.concatenate(y))


def _steps_per_second(policy: Policy, X: Any, y: Any, passes: int) -> float:
    """Return the steps per second of all lanes of a fit on the current cluster."""
    clf = SGDClassifier(
        policy=policy, batch_size=LINEAR_BATCH, tol=None, max_iter=passes, random_state=0
    ).fit(X, y)
    # The first pass warms up.
    steps = [r["steps"] / r["seconds"] for r in clf.history_.records[1:]]
    return statistics.median(steps) * (SIMULATED_HOSTS if policy.lockstep else 1)


def _measure_cable(network: HostNetwork, n_bytes: int, step: float) -> tuple[float, float]:
    """Return the latency of a tiny message between hosts, and the bytes per second of large ones.

    Two ranks that sum an array send it to each other once. They do so at intervals of one step, in
    which the cable's token bucket refills; they do not sleep in between.
    """
    plan = [(1, 100), (n_bytes // 4, 100)]
    tiny, large = (t / 1e6 for t in all_hosts(network, 2, "sockets", plan=plan, pause=step))
    return tiny, n_bytes / max(large - tiny, 1e-9)


# -- all-reduces compared with gloo and MPI --------------------------------------------------------


def _sums(tiny: bool) -> Iterator[str]:
    """Yield tables of all-reduces on 2, 4 and 8 hosts, and of steps of DDP compared with ours."""
    plan = [(1 << 8, 2)] if tiny else SUMS
    # 64 MB between eight hosts at 100 Mbit/s would take an hour.
    cables = NETWORKS[:1] if tiny else NETWORKS[:2]
    for cable in cables:
        rows = []
        with HostNetwork(2 if tiny else 8, cable) as network:
            for size in [2] if tiny else [2, 4, 8]:
                rows += _sums_of(network, size, plan)
        columns = ["ranks", "bytes", "ours", "gloo", "Open MPI"]
        title = f"All-reduce of float32 between hosts, {cable}, milliseconds (median): {HOW}"
        yield markdown(title, columns, rows)
    rows = [_step_of_ddp(cable, tiny) for cable in cables]
    title = f"A step of a logistic model of 128 features (1 KB), 64 rows per host, 2 hosts: {HOW}"
    yield markdown(title, ["network", "`allreduce`, ms", "PyTorch DDP (gloo), ms"], rows)


def _step_of_ddp(cable: Cable, tiny: bool) -> list[str]:
    """Return the milliseconds of our step between two hosts, and of PyTorch's."""
    steps = 20 if tiny else 300
    with HostNetwork(2, cable) as network:
        with HostCluster(network) as client:
            X, y = (persisted(p, 2) for p in logistic_rows(128 * steps, 128, "float64"))
            settings = {"policy": "allreduce", "max_iter": 3, "tol": None, "batch_size": 64}
            records = SGDClassifier(**settings).fit(X, y).history_.records
            ours = min(r["seconds"] / r["steps"] for r in records[1:]) * 1e3
            del X, y, client
        ddp = "not installed"
        if importlib.util.find_spec("torch") is not None:
            taken = all_hosts(network, 2, "ddp", features=128, batch=64, steps=steps)
            ddp = f"{taken:.3f}"
    return [str(cable), f"{ours:.3f}", ddp]


def _sums_of(network: HostNetwork, size: int, plan: list[tuple[int, int]]) -> list[list[str]]:
    """Return a row for each number of elements."""
    ours = all_hosts(network, size, "sockets", plan=plan)
    gloo: list[float] | None = None
    if importlib.util.find_spec("torch") is not None:
        gloo = all_hosts(network, size, "gloo", plan=plan)
    mpi: list[float] | None = None
    if shutil.which("mpirun") and importlib.util.find_spec("mpi4py") is not None:
        mpi = mpi_on_hosts(network, size, plan)
    rows = []
    for i, (n, _) in enumerate(plan):
        cells = [
            "not installed" if taken is None else f"{taken[i] / 1e3:.3g}"
            for taken in (ours, gloo, mpi)
        ]
        rows.append([str(size), f"{4 * n:,}", *cells])
    return rows


# -- hosts that fall silent ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fault:
    """Fault of a host: for a number of seconds, or until the end of the fit."""

    what: str
    who: str
    stopped: bool = False
    seconds: float | None = None


#: Pulled cables are tried under every policy; other faults under one policy of each kind.
_PULLED = [_Fault("cable pulled", "trainer"), _Fault("cable pulled", "server")]
_OTHERS = [
    _Fault("cable unplugged for 0.5 s", "trainer", seconds=0.5),
    _Fault("cable unplugged for 6 s", "trainer", seconds=6.0),
    _Fault("all processes stopped", "trainer", stopped=True),
]
_KINDS_OF_POLICIES = ("sync", "allreduce", "async")


@dataclass
class _Strike:
    """Callback that injects a fault into a host of a fit, and records when the fit noticed."""

    network: HostNetwork
    fault: _Fault
    at: float = np.inf
    hosts: list[Host] = field(default_factory=list)
    events: list[tuple[float, Any]] = field(default_factory=list)
    #: Seconds from the fault to the end of the first pass after it was noticed, or after its end.
    went_on: float | None = None
    thread: threading.Thread | None = None

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """Begin after the first pass; end the fit once it continues."""
        after = time.monotonic() - self.at
        if self.thread is None:
            self.thread = threading.Thread(target=self._strike, args=(run,))
            self.thread.start()
        elif after > (self.fault.seconds or 0.0) and (self.events or self.fault.seconds):
            self.went_on = after
            run.stop()

    def on_generation(self, run: Any, event: Any) -> None:
        """Record the change of membership."""
        self.events.append((time.monotonic() - self.at, event))

    def _strike(self, run: Any) -> None:
        time.sleep(LATER)
        victims = victims_of(run, self.fault.who)
        self.hosts = [h for h in self.network.hosts if any(h.address in v for v in victims)]
        self.at = time.monotonic()
        for host in self.hosts:
            if self.fault.stopped:
                self.network.stop(host)
            else:
                self.network.pull(host)
        if self.fault.seconds is not None:
            time.sleep(self.fault.seconds)
            for host in self.hosts:
                self.network.plug(host)


def _silence(tiny: bool) -> Iterator[str]:
    """Yield the seconds until a silent host is noticed, under each policy."""
    rows = []
    data = logistic_rows(4_000 if tiny else 20_000, 50)
    cases = [(fault, name, TRIES) for fault in _PULLED for name in POLICIES]
    cases += [(fault, name, 1) for fault in _OTHERS for name in _KINDS_OF_POLICIES]
    with HostNetwork(3) as network:
        hosts = HostCluster(network)
        with hosts as client:
            for fault, name, tries in [(_PULLED[0], "sync", 1)] if tiny else cases:
                found = [
                    _fit_with_fault(client, hosts, network, data, name, fault) for _ in range(tries)
                ]
                rows.append(_silence_row(name, fault, found))
    columns = [
        "fault", "host runs", "policy", "detected after, s", "range", "next pass ends after, s",
        "updates repeated",
    ]  # fmt: skip
    title = (
        "A host falls silent without closing its connections: 3 hosts, medians of "
        f"{TRIES} (pulled cables), `daskml_dist.lease` of 3 s: {HOW}"
    )
    yield markdown(title, columns, rows)


def _fit_with_fault(
    client: Client, hosts: HostCluster, network: HostNetwork, data: Any, name: str, fault: _Fault
) -> _Strike:
    """Fit, lose a host during the fit, and bring it back."""
    strike = _Strike(network, fault)
    X, y = (da.from_array(part, chunks=(len(part) // 4, *part.shape[1:])) for part in data)
    try:
        SGDClassifier(
            policy=name, max_iter=10**6, tol=None, batch_size=64, random_state=0,
            callbacks=[strike],
        ).fit(X, y)  # fmt: skip
    finally:
        if strike.thread is not None:
            strike.thread.join()
        for host in strike.hosts:
            hosts.switch_off(host)
        hosts.refill()
        # The scheduler may still list the lost worker.
        there = {host.address for host in network.hosts}
        while True:
            answers = client.run(os.getpid, on_error="return")
            alive = [a for a, pid in answers.items() if isinstance(pid, int)]
            if len(alive) == len(there) == len(answers):
                break
            time.sleep(0.05)
    return strike


def _silence_row(name: str, fault: _Fault, found: list[_Strike]) -> list[str]:
    """Return a row of the table."""
    noticed = [strike.events[0][0] for strike in found if strike.events]
    again = [strike.events[0][1].lost_versions for strike in found if strike.events]
    went_on = [strike.went_on for strike in found if strike.went_on is not None]
    return [
        fault.what,
        fault.who,
        name,
        f"{statistics.median(noticed):.2f}" if noticed else "no new generation",
        f"{min(noticed):.2f} to {max(noticed):.2f}" if noticed else "",
        f"{statistics.median(went_on):.2f}" if went_on else "",
        f"{statistics.median(again):g}" if again else "",
    ]


# -- busy hosts, none of which is lost ------------------------------------------------------------


def _load(tiny: bool) -> Iterator[str]:
    """Yield how often a living host is considered lost while other processes use the cores too."""
    seconds = 5.0 if tiny else float(os.environ.get("DASKML_DIST_LOAD_SECONDS", "3600"))
    n_busy = int(os.environ.get("DASKML_DIST_LOAD", "8"))
    X, y = (da.from_array(part, chunks=len(part) // 8) for part in logistic_rows(20_000, 50))
    passes, false_alarms = Counter[str](), Counter[str]()
    loads = []
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n_busy)]
    try:
        with HostNetwork(HOSTS) as network, HostCluster(network):
            begun = time.monotonic()
            # Cycle through the policies until the time is up.
            for name in itertools.cycle(POLICIES):
                if (left := seconds - (time.monotonic() - begun)) < 0:
                    break
                model = SGDClassifier(
                    policy=name, max_iter=10**6, tol=None, batch_size=64, random_state=0,
                    callbacks=[Until(min(left, seconds / 28))],
                ).fit(X, y)  # fmt: skip
                passes[name] += len(model.history_.records)
                false_alarms[name] += len(_losses(model))
                loads.append(psutil.getloadavg()[0])
    finally:
        for process in busy:
            process.kill()
            process.wait()
    rows = [[name, str(passes[name]), str(false_alarms[name])] for name in passes]
    title = (
        f"Fits on {HOSTS} undisturbed hosts for {seconds:,.0f} s, load average {min(loads):.1f} to "
        f"{max(loads):.1f}: {HOW}"
    )
    yield markdown(title, ["policy", "passes", "hosts declared lost"], rows)


# -- many workers ----------------------------------------------------------------------------------


def _many(tiny: bool) -> Iterator[str]:
    """Yield the cost of a fit on many workers of this machine, which has fewer cores."""
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        rows = [_many_row(size) for size in ([2] if tiny else MANY)]
    columns = [
        "workers", "cluster starts, s", "first fit, s", "second fit, s", "of these before the "
        "first step, s", "a step of all, ms", "MB per worker",
    ]  # fmt: skip
    title = f"Single-threaded workers on one machine, `allreduce`, a logistic model of 100: {HOW}"
    yield markdown(title, columns, rows)


def _many_row(size: int) -> list[str]:
    """Measure one number of workers."""
    # Workers forked from a process that has imported everything share its memory.
    get_mp_context().set_forkserver_preload(["benchmarks.hosts"])
    start = time.perf_counter()
    cluster = LocalCluster(
        n_workers=size, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0",
        memory_limit=0, silence_logs=50,
    )  # fmt: skip
    with cluster, Client(cluster) as client:
        client.wait_for_workers(size, timeout=600)
        started = time.perf_counter() - start
        X, y = logistic_rows(size * 256 * 4, 100)
        X, y = persisted(X, size), persisted(y, size)
        taken, steps, before = [], [], []
        for _ in range(2):
            begun = time.perf_counter()
            clf = SGDClassifier(
                policy="allreduce", max_iter=5, tol=None, batch_size=256, random_state=0
            ).fit(X, y)
            taken.append(time.perf_counter() - begun)
            records = clf.history_.records
            steps.append(statistics.median(r["seconds"] / r["steps"] for r in records[1:]))
            before.append(taken[-1] - sum(r["seconds"] for r in records))
        memory = client.run(lambda: psutil.Process().memory_full_info().uss)
        del X, y
    return [
        str(size),
        f"{started:.1f}",
        f"{taken[0]:.2f}",
        f"{taken[1]:.2f}",
        f"{before[1]:.2f}",
        f"{steps[1] * 1e3:.2f}",
        f"{statistics.median(memory.values()) / 1e6:.0f}",
    ]
