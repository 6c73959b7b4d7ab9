"""Goodput under faults: steps/s of fits whose workers are repeatedly killed and stopped.

The speed of a shared machine varies over minutes by more than faults cost. So each fit alternates
calm windows and windows with faults, and a window with faults is compared with the calm ones before
and after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client

from benchmarks._common import markdown
from benchmarks._strikes import Striker, Until, open_workers
from daskml_dist import Run
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.policies import LocalSGD, Policy

WORKERS, LANES = 8, 32
N_ROWS, FEATURES = 65_536, 40
#: Steps between two averages; lanes that an average may lack: those of one worker, and a few more.
EVERY, ABSENT = 64, 8
#: Seconds between two faults: 62 in half an hour, as in Decoupled DiLoCo's experiment with one
#: machine.
FAULT_EVERY = 1800 / 62
#: Number of faults in a window; calm windows have the same length.
FAULTS = 2
#: Windows with faults in a fit, and in a fit under the fault-tolerant policy: with the calm windows
#: between them, 24 minutes.
SOME, MANY = 2, 12
#: Seconds of the calm fit whose loss is compared.
CALM = 60.0
#: Minimum and maximum of the seconds for which a process is stopped; 27 of 62 faults are kills.
STOPPED, KILLED_SHARE = (5.0, 20.0), 27 / 62
HOW = "`python -m benchmarks goodput`"

POLICIES: dict[str, str | Policy] = {
    f"local, {EVERY} steps, quorum {LANES - ABSENT}, 2 fragments": LocalSGD(
        EVERY, quorum=LANES - ABSENT, fragments=2
    ),
    f"local, {EVERY} steps": LocalSGD(EVERY),
    '`"allreduce"`': "allreduce",
}


def run(tiny: bool = False) -> str:
    """Return one table, with a row for each policy, calm and under faults."""
    rows = []
    every = 1.0 if tiny else FAULT_EVERY
    for i, (name, policy) in enumerate(list(POLICIES.items())[: 1 if tiny else None]):
        calm, _ = _fit(policy, lambda client, clocks: Until(2.0 if tiny else CALM))
        n_windows = 1 if tiny else SOME if i else MANY
        history, windows = _fit(policy, partial(_Windows, n_windows=n_windows, every=every))
        n_passes = len(calm.records)
        kept = windows.shares()
        error = np.std(kept, ddof=1) / len(kept) ** 0.5 if len(kept) > 1 else np.nan
        rows.append([
            name,
            f"{n_windows} x {FAULTS * every:.0f}",
            f"{min(windows.calm):,.0f} to {max(windows.calm):,.0f}",
            f"{min(windows.struck):,.0f} to {max(windows.struck):,.0f}",
            f"{np.mean(kept):.1%} ± {error:.1%}",
            f"{windows.kills} + {windows.stops}",
            len(history.extra.get("generations", [])),
            f"{history.records[n_passes - 1]['loss'] / calm.records[-1]['loss'] - 1:+.2%}",
        ])  # fmt: skip
    columns = [
        "policy", "windows with faults, seconds", "steps/s, calm", "steps/s, under faults",
        "kept (standard error)", "kills + stops", "generations",
        "loss after as many passes as a calm fit makes in a minute",
    ]  # fmt: skip
    title = (
        f"Perceptron of {FEATURES} x 32 x 2, {LANES} lanes on {WORKERS} processes, a fault every "
        f"{FAULT_EVERY:.0f} s in every second window of {FAULTS * FAULT_EVERY:.0f} s"
    )
    return markdown(title, columns, rows)


class _LaneClocks:
    """Clocks of all lanes, in a file that all processes of the machine map.

    A lane that goes back after a loss writes its earlier clock, so repeated steps count once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clocks: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_clocks": None}

    def _open(self) -> Any:
        if self._clocks is None:
            self._clocks = np.memmap(self._path, np.int64, "r+", shape=(LANES,))
        return self._clocks

    def on_step_end(self, step: Any) -> None:
        self._open()[step.lane] = step.clock

    def count(self) -> int:
        """Return the number of steps that all lanes have made."""
        return int(self._open().sum())


class _Windows(Striker):
    """Calm windows and windows with faults, in turn, from the first pass of a fit.

    Parameters
    ----------
    client : Client
    clocks : _LaneClocks
    n_windows : int
        Number of windows with faults; there is a calm one before the first and after each.
    every : float
        Seconds between two faults.
    """

    def __init__(self, client: Client, clocks: _LaneClocks, n_windows: int, every: float) -> None:
        super().__init__(client, every, KILLED_SHARE, STOPPED)
        self._clocks, self._n_windows = clocks, n_windows
        #: Steps per second of each window.
        self.calm: list[float] = []
        self.struck: list[float] = []

    def shares(self) -> list[float]:
        """Return the rate of each window with faults relative to its neighbouring calm windows."""
        pairs = zip(self.struck, self.calm, self.calm[1:], strict=False)
        return [2 * struck / (before + after) for struck, before, after in pairs]

    def _strike_on(self) -> None:
        self.calm.append(self._measure(faults=False))
        for _ in range(self._n_windows):
            self.struck.append(self._measure(faults=True))
            self.calm.append(self._measure(faults=False))
        self._run.stop()

    def _measure(self, *, faults: bool) -> float:
        """Return the steps per second of a window."""
        begun, steps = time.monotonic(), self._clocks.count()
        for i in range(FAULTS):
            # In the middle of its part of the window, so that the window contains its full cost.
            self._wait_until(begun + (i + 0.5) * self._every)
            if faults and not self._over.is_set():
                self.strike()
            self._wait_until(begun + (i + 1) * self._every)
        return (self._clocks.count() - steps) / (time.monotonic() - begun)

    def _wait_until(self, due: float) -> None:
        self._over.wait(max(0.0, due - time.monotonic()))


def _fit(policy: str | Policy, watch: Callable[[Client, _LaneClocks], Any]) -> tuple[Any, Any]:
    """Return the history of a fit, and the callback made by `watch`, which ends the fit."""
    with open_workers(WORKERS, __name__, memory_limit=0) as client, TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(N_ROWS, FEATURES)).astype(np.float32)
        y = (X[:, :5] ** 2).sum(axis=1) + rng.normal(size=N_ROWS) > 5
        chunk = N_ROWS // LANES
        lazy = da.from_array(X, chunks=(chunk, -1)), da.from_array(y, chunks=chunk)
        path = Path(folder) / "clocks"
        np.zeros(LANES, np.int64).tofile(path)
        clocks = _LaneClocks(path)
        callback = watch(client, clocks)
        net = MLPClassifier(
            (32,), policy=policy, max_iter=10**6, tol=None, batch_size=512, random_state=0,
            learning_rate_init=1e-3, run=Run(n_lanes=LANES), callbacks=[clocks, callback],
        )  # fmt: skip
        return net.fit(*lazy).history_, callback
