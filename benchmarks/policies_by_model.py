"""Passes, seconds and bytes to a loss under each policy: a linear model, a perceptron, a CNN."""

from __future__ import annotations

import importlib.util
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from benchmarks._common import logistic_rows, markdown, persisted, read_mnist
from benchmarks._strikes import PassClock, Striker, all_there, open_workers
from benchmarks._torch_nets import make_net
from benchmarks.staleness import Goal
from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.policies import Asynchronous, LocalSGD, get_policy

#: Number of worker processes, by number of lanes.
WORKERS = {2: 2, 8: 4, 64: 4}
#: Lanes of fits whose workers are killed, seconds from the first pass to the first kill, and
#: seconds between two kills.
KILLED_LANES, FIRST_KILL, KILL_EVERY = 8, 0.2, 1.0
#: Seconds after its first pass at which a fit is given up.
MOST_SECONDS = 12.0
#: Local steps between two averages.
EVERY = 16
#: A policy, and the compression of the messages of its lanes.
Way = tuple[Any, str | None]
CALM, SLOW, KILLS = "", ", one slow", ", kills"


@dataclass(frozen=True)
class PolicyCase:
    """Model with its rows and the loss that it must reach.

    Parameters
    ----------
    title : str
    make : callable
        Function that returns the estimator, given keywords of its constructor.
    X, y : ndarray
    target : float
        Mean loss of a pass.
    passes : int
        Largest number of passes.
    pause : float
        Seconds that the slow worker sleeps per row.
    killed : bool
    """

    title: str
    make: Callable[..., Any]
    X: Any
    y: Any
    target: float
    passes: int
    pause: float
    killed: bool = True


def run(tiny: bool = False) -> str:
    """Return a table for each model."""
    cases = _make_cases(tiny)
    workers = {2: 2} if tiny else WORKERS
    cells: dict[str, dict[str, list[str]]] = {
        name: {policy: [] for policy in _list_policies(name, 2, tiny)} for name in cases
    }
    columns: dict[str, list[str]] = {name: ["passes / seconds / MB"] for name in cases}
    for lanes, n_workers in workers.items():
        with open_workers(n_workers, __name__, memory_limit=0) as client:
            for name, case in cases.items():
                policies = _list_policies(name, lanes, tiny)
                rows = persisted(case.X, lanes), persisted(case.y, lanes)
                for way in policies.values():
                    _fit(case, lanes, way, rows, 1)  # compiles and loads its loops
                conditions = [CALM, SLOW]
                # Last, since the blocks of a lost worker move to others.
                if case.killed and (lanes == KILLED_LANES or tiny):
                    conditions.append(KILLS)
                for condition in conditions:
                    columns[name].append(f"{lanes} lanes{condition}")
                    for policy, way in policies.items():
                        found = _measure(case, lanes, way, rows, condition, client)
                        cells[name][policy].append(found)
    return "\n\n".join(
        markdown(
            case.title,
            columns[name],
            [[policy, *found] for policy, found in cells[name].items()],
        )
        for name, case in cases.items()
    )


def _list_policies(name: str, lanes: int, tiny: bool) -> dict[str, Way]:
    """Return policies with compression, by their names in the tables."""
    some = LocalSGD(EVERY, quorum=max(1, lanes * 3 // 4), fragments=2)
    found: dict[str, Way] = {
        '`"sync"`': ("sync", None),
        '`"allreduce"`': ("allreduce", None),
        '`"ssp"`': ("ssp", None),
        '`"async"`': ("async", None),
        "async, bounded delays": (Asynchronous(max_delay="auto"), None),
        "async, gradient table": (Asynchronous(gradient_table=True), None),
        f"local, {EVERY} steps": (LocalSGD(EVERY), None),
        "local, outer Nesterov": (LocalSGD(EVERY, outer="nesterov"), None),
        "local, quorum of 3/4, 2 fragments": (some, None),
        "the same, steps by speed": (replace(some, steps_by_speed=True), None),
        "the same, 4-bit messages": (some, "4bit"),
        '`"average"`': ("average", None),
    }
    if name == "linear":
        found['`"hogwild"`'] = ("hogwild", None)
    if tiny:
        found = {policy: found[policy] for policy in ('`"async"`', "the same, 4-bit messages")}
    return found


def _make_cases(tiny: bool) -> dict[str, PolicyCase]:
    """Return the models by name; the convolutional one only if PyTorch is installed."""
    X, y = logistic_rows(2_000 if tiny else 60_000, 50)
    exact = LogisticRegression(C=np.inf, max_iter=1000).fit(X, y)
    linear = PolicyCase(
        f"SGDClassifier, Adagrad at 0.2, {len(X):,} x 50, batches of 64 rows per lane, to a loss "
        "2 % above the optimum",
        partial(SGDClassifier, learning_rate=0.2, alpha=0.0, batch_size=64),
        X,
        y,
        1.02 * float(log_loss(y, exact.predict_proba(X))),
        passes=2 if tiny else 20,
        pause=2e-5,
    )
    if tiny:
        return {"linear": linear}
    images, digits = read_mnist()[:2]
    images, digits = images[:4_096], digits[:4_096]
    perceptron = PolicyCase(
        "MLPClassifier((32,)), Adam at 0.002, 4,096 rows of MNIST, batches of 128 rows, to a loss "
        "of 0.35",
        partial(MLPClassifier, (32,), learning_rate_init=2e-3, batch_size=128),
        images,
        digits,
        target=0.35,
        passes=15,
        pause=1e-4,
    )
    cases = {"linear": linear, "perceptron": perceptron}
    if importlib.util.find_spec("torch"):
        from daskml_dist.neural_network import TorchClassifier

        make = partial(make_net, "LeNet")
        cases["CNN"] = PolicyCase(
            "TorchClassifier(LeNet), Adam at 0.002, 2,048 rows of MNIST, batches of 128 rows, to a "
            "loss of 0.45",
            partial(TorchClassifier, make, optimizer="adam", learning_rate=2e-3, batch_size=128),
            images[:2_048].reshape(-1, 1, 28, 28),
            digits[:2_048],
            target=0.45,
            passes=10,
            pause=5e-4,
            killed=False,
        )
    return cases


class _SlowRows:
    """Callback that makes some processes slow: they sleep after each step, by its rows."""

    def __init__(self, pids: list[int], pause: float) -> None:
        self._pids, self._pause = pids, pause

    def on_step_end(self, step: Any) -> None:
        if os.getpid() in self._pids:
            time.sleep(step.n_rows * self._pause)


def _fit(case: PolicyCase, lanes: int, way: Way, rows: Any, passes: int, *callbacks: Any) -> Any:
    """Return a fit with at most `passes` passes."""
    policy, compression = way
    run = Run(n_lanes=lanes, compression=compression)
    # The hook makes steps slightly longer, so it is used under all conditions.
    hooks = callbacks or (_SlowRows([], 0.0),)
    model = case.make(
        policy=policy, max_iter=passes, tol=None, random_state=0, run=run, callbacks=hooks
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph")
        return model.fit(*rows)


def _measure(
    case: PolicyCase,
    lanes: int,
    way: Way,
    rows: Any,
    condition: str,
    client: Client,
) -> str:
    """Return passes, seconds and megabytes until a pass reaches the case's loss, or "-"."""
    pids = sorted(all_there(client, WORKERS[lanes]).values())
    clock, goal = PassClock(MOST_SECONDS), Goal(case.target)
    slow = _SlowRows(pids[:1] if condition == SLOW else [], case.pause)
    callbacks: list[Any] = [clock, goal, slow]
    if condition == KILLS:
        callbacks.append(Striker(client, KILL_EVERY, first=FIRST_KILL))
        # Blocks that a lost worker held are generated again.
        rows = _make_lazy(case, lanes)
    model = _fit(case, lanes, way, rows, case.passes, *callbacks)
    records = model.history_.records
    n = next((i for i, record in enumerate(records) if record["loss"] <= case.target), None)
    # Lanes that never average have separate losses, which the final average need not have.
    policy = get_policy(way[0])
    never_meet = policy.averages and not policy.average_every
    if n is None or (never_meet and log_loss(case.y, model.predict_proba(case.X)) > case.target):
        return "-"
    moved = sum(record["bytes_pushed"] + record["bytes_pulled"] for record in records[: n + 1])
    seconds = records[0]["seconds"] + clock.closed[n]
    return f"{n + 1} / {seconds:.2f} / {moved / 1e6:,.1f}"


def _make_lazy(case: PolicyCase, lanes: int) -> tuple[Any, Any]:
    """Return the rows as Dask arrays, with a block for each lane."""
    size, whole = -(-len(case.X) // lanes), case.X.shape[1:]
    return da.from_array(case.X, chunks=(size, *whole)), da.from_array(case.y, chunks=size)
