"""Trainings with killed workers: boosters, on our ranks and on their own Dask; PyTorch."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, wait

from benchmarks._common import markdown
from benchmarks.collective import find_pid, wait_for_workers
from daskml_dist.collective import RankGroup, run_together
from daskml_dist.integrations.torch import open_process_group
from tests.forked_workers import fork_workers

N_ROWS, FEATURES, TREES = 20_000, 6, 100
#: Numbers of kills of trainings on our ranks, and by the libraries' own Dask; seconds after which
#: one of the latter counts as hanging.
KILLS, THEIR_KILLS, NO_END = 100, 10, 60.0


def run(tiny: bool = False) -> str:
    """Return one table: outcomes of trainings with a worker killed at a random moment."""
    fork_workers()
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, FEATURES))
    y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
    rows = []
    for library in ("xgboost", "lightgbm", "torch"):
        if importlib.util.find_spec(library) is None:
            rows.append([library, "not installed", *[""] * 8])
            continue
        n_kills, n_theirs = (2, 0) if tiny else (KILLS, THEIR_KILLS)
        fates = _kill(_ours(library), X, y, range(n_kills))
        rows.append([library, "on our ranks", n_kills, *_describe_fates(fates)])
        if n_theirs and library != "torch":
            # A separate process for each: if a worker is lost, XGBoost may end the client's
            # process.
            fates = [fate for seed in range(n_theirs) for fate in _kill_apart(library, X, y, seed)]
            rows.append([library, f"{library}.dask", n_theirs, *_describe_fates(fates)])
    columns = [
        "library", "run by", "kills", "killed mid-training", "finished", "errors",
        "not finished in 60 s", "client process died",
        "predictions equal to 1e-6", "median and longest time, s",
    ]  # fmt: skip
    title = f"{TREES} trees or steps on {N_ROWS:,} x {FEATURES}, three processes, one killed"
    return markdown(title, columns, rows)


#: Function that trains on lazy rows and returns the number of trees and a predict function.
_Train = Callable[[Client, Any, Any], tuple[int, Callable[[Any], Any]]]


def _ours(library: str) -> _Train:
    fit = getattr(importlib.import_module(f"daskml_dist.integrations.{library}"), "fit", None)

    def train(client: Client, X: Any, y: Any) -> tuple[int, Callable[[Any], Any]]:
        if library == "torch":
            state = 0, np.zeros(FEATURES)
            w = run_together(client, descend, [X, y], state=state)[0]
            return TREES, lambda rows: rows @ w
        if library == "xgboost":
            import xgboost

            model = fit(xgboost.XGBClassifier(n_estimators=TREES), X, y, client=client)
            return model.get_booster().num_boosted_rounds(), lambda rows: model.predict_proba(rows)
        import lightgbm

        booster = fit(lightgbm.LGBMClassifier(n_estimators=TREES), X, y, client=client)
        return booster.num_trees(), booster.predict

    return train


def descend(group: RankGroup, blocks: list[Any], state: Any) -> Any:
    """Descend by gradients that PyTorch's own collectives sum, saving after each step."""
    import torch

    step, w = state
    rows = [torch.from_numpy(np.concatenate(part)) for part in zip(*blocks, strict=True)]
    X, y = rows[0], rows[1].double()
    w = torch.from_numpy(w.copy())
    with open_process_group(group, timeout=60) as distributed:
        while step < TREES:
            gradient = X.T @ (X @ w - y) / N_ROWS
            distributed.all_reduce(gradient)
            w = w - 0.1 * gradient
            step += 1
            group.save((step, w.numpy()))
            time.sleep(0.005)
    return w.numpy()


def _theirs(library: str) -> _Train:
    def train(client: Client, X: Any, y: Any) -> tuple[int, Callable[[Any], Any]]:
        if library == "xgboost":
            import xgboost.dask

            model = xgboost.dask.DaskXGBClassifier(n_estimators=TREES)
            model.client = client
            booster = model.fit(X, y).get_booster()
            return booster.num_boosted_rounds(), lambda rows: booster.inplace_predict(rows)
        import lightgbm

        found = lightgbm.DaskLGBMClassifier(n_estimators=TREES, client=client, verbosity=-1)
        booster = found.fit(X, y).booster_
        return booster.num_trees(), booster.predict

    return train


#: Outcome of a training, in words, and its seconds if it ended.
_Fate = tuple[set[str], float]


def _describe_fates(fates: list[_Fate]) -> list[Any]:
    """Return the cells of a row."""
    words = ("hit", "whole", "error", "endless", "died", "same")
    counts = [sum(word in fate for fate, _ in fates) for word in words]
    taken = [seconds for fate, seconds in fates if "whole" in fate]
    times = f"{statistics.median(taken):.1f}, {max(taken):.1f}" if taken else ""
    return [*counts, times]


def _kill_apart(library: str, X: Any, y: Any, seed: int) -> list[_Fate]:
    """Train by the library's own Dask module with a kill, in a separate process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_report_fates, args=(theirs, library, X, y, seed))
    child.start()
    theirs.close()
    try:
        fates: list[_Fate] = ours.recv()
    except EOFError:
        fates = [({"died", "hit"}, 0.0)]
    child.join()
    return fates


def _report_fates(line: Connection, library: str, X: Any, y: Any, seed: int) -> None:
    """Send the outcome of a training, and end all that still runs."""
    line.send(_kill(_theirs(library), X, y, [seed]))
    os._exit(0)


def _kill(train: _Train, X: Any, y: Any, seeds: Iterable[int]) -> list[_Fate]:
    """Train repeatedly, each time with a kill; clusters are replaced if a training hangs."""
    fates: list[_Fate] = []
    rest = iter(seeds)
    while (seed := next(rest, None)) is not None:
        with (
            dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
            LocalCluster(
                n_workers=3, threads_per_worker=1, memory_limit=0, dashboard_address=":0"
            ) as cluster,
            Client(cluster) as client,
        ):
            rows = [da.from_array(a, chunks=(2_000, *a.shape[1:])).persist() for a in (X, y)]
            wait(rows)
            since = time.perf_counter()
            _, predict = train(client, *rows)
            base, expected = time.perf_counter() - since, predict(X)
            while seed is not None:
                fates.append(_kill_once(client, train, rows, X, expected, base, seed))
                # Use another cluster if a training may still be running.
                stuck = fates[-1][0] & {"endless", "error"}
                seed = None if stuck else next(rest, None)
    return fates


def _kill_once(
    client: Client, train: _Train, rows: list[Any], X: Any, expected: Any, base: float, seed: int
) -> _Fate:  # fmt: skip
    """Train with a kill at a moment drawn with the seed; return the outcome."""
    rng = random.Random(seed)
    wait_for_workers(client, 3)
    pids = sorted(found["pid"] for found in client.run(find_pid).values())
    victim, found, over = rng.choice(pids), dict[str, Any](), threading.Event()

    def work() -> None:
        try:
            found["trees"], found["predict"] = train(client, *rows)
        except Exception as error:
            found["error"] = error
        over.set()

    since = time.perf_counter()
    threading.Thread(target=work, daemon=True).start()
    hit = not over.wait(rng.uniform(0, base))
    os.kill(victim, signal.SIGKILL)
    if not over.wait(NO_END):
        return {"endless", *(["hit"] if hit else [])}, 0.0
    taken = time.perf_counter() - since
    fate = {"hit"} if hit else set()
    if "error" in found:
        return fate | {"error"}, taken
    fate |= {"whole"} if found["trees"] == TREES else set()
    close = np.abs(np.asarray(found["predict"](X)) - np.asarray(expected)).max() <= 1e-6
    return fate | ({"same"} if close else set()), taken
