"""A worker killed during a half-sweep does not change the factors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster

from daskml_dist import Run
from daskml_dist.recommender import ALS
from daskml_dist.solvers.als import ALSSolver

rng = np.random.default_rng(0)
PAIRS = rng.permutation(300 * 200)[:12_000]
RATINGS = pd.DataFrame(
    {"user": PAIRS // 200, "item": PAIRS % 200, "rating": rng.integers(1, 6, len(PAIRS))}
)
CALM = Run(n_lanes=3, deterministic=True)


def killing(solver: ALSSolver, folder: Path, at: int, side: str) -> ALSSolver:
    """Return a solver, one of whose processes kills itself once while it solves for a side."""

    class Killed:
        def __init__(self, keyed: Any) -> None:
            self._keyed, self._n_iter = keyed, keyed.n_done

        def __getattr__(self, name: str) -> Any:
            return getattr(self._keyed, name)

        def keep(self, values: Any, n_iter: int, *more: Any) -> None:
            self._n_iter = n_iter
            self._keyed.keep(values, n_iter, *more)

        def in_parts(self, of: str, *more: Any) -> Any:
            import os
            import signal

            mark = folder / "killed"
            is_lane_one = self._keyed.ranges("user")[0].lane == 1
            for part in self._keyed.in_parts(of, *more):
                if of == side and self._n_iter == at and is_lane_one and not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield part

    class Killing(ALSSolver):
        def solve(self, keyed: Any) -> Any:
            return super().solve(Killed(keyed))

    return Killing(solver.model, solver.equations, solver.max_iter, solver.tol, solver.seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "at", "side", "touched"),
    [
        ({}, 0, "item", None),
        ({"biases": True}, 12, "user", None),
        ({"implicit": True, "solver": "cg"}, 12, "item", None),
        ({"implicit": True}, 12, "item", 300),
    ],
    ids=str,
)
def test_a_kill_during_a_half_sweep_changes_nothing(
    crew: LocalCluster,
    tmp_path: Path,
    params: dict[str, Any],
    at: int,
    side: str,
    touched: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frame = dd.from_pandas(RATINGS, npartitions=4)
    model = ALS(6, max_iter=25, random_state=0, run=CALM, **params)
    with Client(crew) as client:
        client.wait_for_workers(3)
        undisturbed = model.fit(frame)
        factors = undisturbed.user_factors_, undisturbed.item_factors_
        struck = killing(undisturbed._solver(), tmp_path, at, side)
        monkeypatch.setattr(ALS, "_solver", lambda self: struck)
        with dask.config.set({"daskml_dist.touched": touched}):
            model.fit(frame)
    assert (tmp_path / "killed").exists()
    assert model.history_.extra["generations"]
    assert model.n_iter_ == len(model.history_) == 25
    np.testing.assert_array_equal(model.user_factors_, factors[0])
    np.testing.assert_array_equal(model.item_factors_, factors[1])
