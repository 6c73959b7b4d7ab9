"""A worker killed during an iteration does not change the values of keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster

from daskml_dist.data.keyed.collection import EntryColumns, read_frame_entries
from daskml_dist.solvers.graph import PageRankSolver
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.job import KeyedJob
from daskml_dist.training.spec import RunSettings

RANDOM = np.random.default_rng(0)
EDGES = pd.DataFrame(RANDOM.zipf(1.6, (4000, 2)) % 500, columns=["source", "target"])
#: It never settles.
SETTINGS: dict[str, Any] = {"damping": 0.99, "max_iter": 60, "tol": 0.0}


def killing(folder: Path, at: list[int]) -> Any:
    """Return a solver, one of whose processes kills itself once in each of some iterations."""

    class Killing(PageRankSolver):
        def solve(self, keyed: Any) -> Any:
            found = super().solve(Killed(keyed, folder, at))
            found.extra["from"] = keyed.n_done
            return found

    class Killed:
        def __init__(self, keyed: Any, folder: Path, at: list[int]) -> None:
            self._keyed, self._folder, self._at = keyed, folder, at
            self._n_iter = keyed.n_done

        def __getattr__(self, name: str) -> Any:
            return getattr(self._keyed, name)

        def touched(self, side: str, values: Any) -> Any:
            import os
            import signal

            self._n_iter += 1
            # Others have what this one sent, and wait for more.
            found = self._keyed.touched(side, values)
            for number in self._at:
                mark = self._folder / f"{number}"
                mine = self._keyed.ranges("vertex")[0].lane == number % 3
                if self._n_iter == number and mine and not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            return found

    return Killing(**SETTINGS)


@pytest.mark.slow
@pytest.mark.parametrize("at", [[1], [30], [15, 40]], ids=str)
def test_a_kill_in_mid_iteration_changes_nothing(
    crew: LocalCluster, tmp_path: Path, at: list[int]
) -> None:
    edges = dd.from_pandas(EDGES, npartitions=4)
    columns = EntryColumns("source", "target", shared=True)
    undisturbed = PageRankSolver(**SETTINGS)
    found = []
    with Client(crew) as client:
        client.wait_for_workers(3)
        for solver in (undisturbed, killing(tmp_path, at)):
            entries = read_frame_entries(edges, columns, solver.sides)
            with KeyedJob(entries, client, RunSettings(n_lanes=3)) as job:
                solution, result, _ = job.solve(solver, CallbackList([]))
                found.append((solution, result))
    (peace, _), (struck, result) = found
    np.testing.assert_array_equal(struck.values["vertex"], peace.values["vertex"])
    assert struck.n_iter == peace.n_iter == len(result.records) == 60
    assert len(result.events) >= len(at)
    assert [*sorted(int(mark.name) for mark in tmp_path.iterdir())] == at
    # Others had a buddy checkpoint of the lost one.
    assert (struck.extra["from"] > 0) == (at[0] > 1), result.events
