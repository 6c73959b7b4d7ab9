"""Functions on ranks: starts, calls, kills; boosters compared with their own Dask modules."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, wait

from benchmarks._common import markdown
from daskml_dist.collective import RankGroup, run_together
from tests.forked_workers import fork_workers

#: Bytes of summed arrays, and number of sums of each.
SIZES = {1 << 10: 2_000, 1 << 20: 200, 1 << 23: 20}
#: Boosters' table: rows, features, trees, and depth of the trees.
N_ROWS, FEATURES, TREES, DEPTH = 1_000_000, 28, 100, 6
#: Number of runs of a booster, whose median is shown; number of kills of a function.
RUNS, KILLS = 5, 100


def run(tiny: bool = False) -> str:
    """Return tables of starts, calls, kills, and of boosters if these are installed."""
    fork_workers()
    starts, calls = [], []
    # Many processes on few cores can be silent for long although they live.
    with dask.config.set({"daskml_dist.lease": 60.0}):
        for n_workers in (2,) if tiny else (2, 4, 8, 32):
            with _cluster(n_workers) as client:
                starts.append([f"{n_workers}", *_time_starts(client, tiny)])
                if n_workers <= 4:
                    calls += _time_calls(client, n_workers, tiny)
    tables = [
        markdown(
            "Starting an empty function",
            ["processes", "first, ms", "median, ms", "minimum, ms"],
            starts,
        ),
        markdown(
            "Collective calls",
            [
                "processes",
                "transport",
                "call",
                "through the group, us",
                "through its communicator, us",
            ],
            calls,
        ),
        markdown(
            "A loop of all-reduces in which a worker is killed",
            [
                "kills",
                "killed mid-run",
                "finished",
                "same result",
                "median cost, s",
                "longest run, s",
            ],
            [_kill_loops(3 if tiny else KILLS)],
        ),
    ]
    if rows := _time_boosters(tiny):
        title = f"Boosters on {N_ROWS:,} x {FEATURES}, {TREES} trees, two single-threaded processes"
        columns = ["library", "run by", "median, s", "minimum, s", "accuracy"]
        tables.append(markdown(title, columns, rows))
    return "\n".join(tables)


@contextlib.contextmanager
def _cluster(n_workers: int) -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, memory_limit=0, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(n_workers, timeout=300)
        yield client


# --- starts and calls -----------------------------------------------------------------------------


def _time_starts(client: Client, tiny: bool) -> list[str]:
    """Return the milliseconds of an empty function on persisted blocks, one per worker."""
    n = len(client.nthreads())
    x = da.zeros((4 * n, 4), chunks=(4, 4)).persist()
    wait(x)
    taken = []
    for _ in range(3 if tiny else 25):
        since = time.perf_counter()
        run_together(client, do_nothing, x)
        taken.append((time.perf_counter() - since) * 1e3)
    later = taken[1:]
    return [f"{taken[0]:.0f}", f"{statistics.median(later):.1f}", f"{min(later):.1f}"]


def do_nothing(group: RankGroup, blocks: list[Any], state: Any) -> None:
    """Return immediately."""


def _time_calls(client: Client, n: int, tiny: bool) -> list[list[str]]:
    """Return the microseconds of calls, by shared memory and by sockets."""
    rows = []
    for shared in (True, False):
        with dask.config.set({"daskml_dist.shared_memory": shared}):
            found = run_together(client, time_calls, state=100 if tiny else 1)[0]
        transport = "shared memory" if shared else "sockets"
        rows += [
            [f"{n}", transport, call, f"{own:,.1f}", "" if bare is None else f"{bare:,.1f}"]
            for call, (own, bare) in found.items()
        ]
    return rows


def time_calls(group: RankGroup, blocks: list[Any], share: int) -> dict[str, Any]:
    """Return the microseconds of a call, and of the communicator's work for it."""

    def microseconds(call: Callable[[], Any], times: int) -> float:
        times = max(2, times // share)
        call()
        group.barrier()
        since = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - since) / times * 1e6

    found: dict[str, Any] = {"barrier": (microseconds(group.barrier, 2_000), None)}
    for size, times in SIZES.items():
        array, out = np.zeros(size // 8), np.empty(size // 8)
        own = microseconds(lambda array=array: group.allreduce(array), times)
        bare = microseconds(
            lambda array=array, out=out: group._communicator.allreduce(array, out), times
        )
        found[f"allreduce of {size >> 10:,} KB"] = own, bare
    return found


# --- kills ----------------------------------------------------------------------------------------


def _kill_loops(n_kills: int) -> list[str]:
    """Run a loop repeatedly; each time a worker is killed at a moment drawn with a seed."""
    ended, same, costs, longest = 0, 0, [], 0.0
    # After this time Dask checks whether a lost worker was replaced, and ends the nanny of a worker
    # that was just killed too.
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
        _cluster(3) as client,
    ):
        x = da.arange(24.0, chunks=2).persist()
        wait(x)
        state = (0, 0.0)
        since = time.perf_counter()
        expected = {found[:2] for found in run_together(client, add_up, x, state=state)}
        undisturbed = time.perf_counter() - since
        for seed in range(n_kills):
            rng = random.Random(seed)
            wait_for_workers(client, 3)
            timer = threading.Timer(rng.uniform(0, undisturbed), _kill_one, (client, rng))
            timer.start()
            since = time.perf_counter()
            results = run_together(client, add_up, x, state=state, timeout=60)
            taken = time.perf_counter() - since
            timer.join()
            ended += 1
            same += {one[:2] for one in results} == expected
            if any(generation for *_, generation in results):
                costs.append(taken - undisturbed)
            longest = max(longest, taken)
    cost = f"{statistics.median(costs):.2f}" if costs else ""
    return [f"{n_kills}", f"{len(costs)}", f"{ended}", f"{same}", cost, f"{longest:.2f}"]


def add_up(group: RankGroup, blocks: list[Any], state: Any) -> tuple[int, float, int]:
    """Add the blocks, saving after each of fifty steps of 10 ms."""
    step, total = state
    while step < 50:
        time.sleep(0.01)
        total = total / 2 + group.allreduce(float(sum(block.sum() for block in blocks)))
        step += 1
        group.save((step, total))
    return step, total, group.generation


def _kill_one(client: Client, rng: random.Random) -> None:
    """Kill one of the workers, without any clean-up."""
    pids = [found["pid"] for found in client.run(find_pid).values()]
    os.kill(rng.choice(sorted(pids)), signal.SIGKILL)


def find_pid() -> dict[str, int]:
    """Return the id of this process."""
    return {"pid": os.getpid()}


def wait_for_workers(client: Client, n: int) -> None:
    """Wait until `n` workers answer."""
    client.wait_for_workers(n, timeout=120)
    while len(client.run(find_pid, on_error="ignore")) < n:
        time.sleep(0.05)


# --- boosters -------------------------------------------------------------------------------------


def _time_boosters(tiny: bool) -> list[list[str]]:
    """Time whole trainings on persisted rows: ours, the library's own Dask, and one process."""
    n = 5_000 if tiny else N_ROWS
    trees, runs = (3, 1) if tiny else (TREES, RUNS)
    rng = np.random.default_rng(0)
    X = rng.random((n, FEATURES), dtype=np.float32)
    y = (X[:, 0] + X[:, 1] * X[:, 2] + 0.2 * rng.standard_normal(n) > 0.75).astype(np.int8)
    rows = []
    for library, ways in (("xgboost", _xgboost_ways), ("lightgbm", _lightgbm_ways)):
        if importlib.util.find_spec(library) is None:
            continue
        with _cluster(2) as client:
            lazy = [da.from_array(a, chunks=(n // 8, *a.shape[1:])).persist() for a in (X, y)]
            wait(lazy)
            for how, train in ways(client, trees).items():
                taken = []
                for _ in range(runs):
                    since = time.perf_counter()
                    predict = train(*((X, y) if how.startswith("one") else lazy))
                    taken.append(time.perf_counter() - since)
                accuracy = np.mean((predict(X[:50_000]) > 0.5) == y[:50_000])
                times = [f"{statistics.median(taken):.2f}", f"{min(taken):.2f}"]
                rows.append([library, how, *times, f"{accuracy:.4f}"])
    return rows


def _xgboost_ways(client: Client, trees: int) -> dict[str, Any]:
    import xgboost
    import xgboost.dask

    from daskml_dist.integrations.xgboost import fit

    params = {"n_estimators": trees, "max_depth": DEPTH, "tree_method": "hist"}

    def xgboost_of(booster: Any) -> Any:
        return lambda rows: booster.predict(xgboost.DMatrix(rows))

    def trained_by_their_dask(X: Any, y: Any) -> Any:
        model = xgboost.dask.DaskXGBClassifier(**params)
        model.client = client
        return xgboost_of(model.fit(X, y).get_booster())

    return {
        "on our ranks": lambda X, y: xgboost_of(
            fit(xgboost.XGBClassifier(**params), X, y, client=client).get_booster()
        ),
        "xgboost.dask": trained_by_their_dask,
        "one process, two threads": lambda X, y: xgboost_of(
            xgboost.XGBClassifier(**params, n_jobs=2).fit(X, y).get_booster()
        ),
    }


def _lightgbm_ways(client: Client, trees: int) -> dict[str, Any]:
    import lightgbm

    from daskml_dist.integrations.lightgbm import fit

    params = {
        "n_estimators": trees,
        "max_depth": DEPTH,
        "num_leaves": 2**DEPTH - 1,
        "verbosity": -1,
    }
    return {
        "on our ranks": lambda X, y: (
            fit(lightgbm.LGBMClassifier(**params), X, y, client=client).predict
        ),
        "lightgbm.dask": lambda X, y: (
            lightgbm.DaskLGBMClassifier(**params, client=client).fit(X, y).booster_.predict
        ),
        "one process, two threads": lambda X, y: (
            lightgbm.LGBMClassifier(**params, n_jobs=2).fit(X, y).booster_.predict
        ),
    }
