"""A worker killed while a tree is grown does not change the trees."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from sklearn.base import clone

from daskml_dist import Run
from daskml_dist.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from daskml_dist.losses import AFT, Cox
from daskml_dist.solvers.gradient_boosting import GradientBoostingSolver

rng = np.random.default_rng(0)
X = rng.normal(size=(6_000, 6))
SIGNAL = X[:, 0] + X[:, 1] * X[:, 2]
Y = np.digitize(SIGNAL, [-0.5, 0.5])
#: Times until an event, negative if censored.
TIME = np.where(rng.random(len(X)) < 0.7, 1, -1) * np.ceil(4 * np.exp(SIGNAL / 2)) / 4

GIVEN: dict[str, Any] = {
    "max_iter": 10, "random_state": 0, "early_stopping": True, "max_features": 0.7
}  # fmt: skip
#: Models, their targets, and the index of the sum of an iteration before which a process is killed:
#: with three classes in the second tree, else in the only one.
MODELS: dict[str, tuple[Any, Any, int]] = {
    "classes": (HistGradientBoostingClassifier(**GIVEN), Y, 12),
    "failure times": (
        HistGradientBoostingRegressor(AFT("normal", 0.5), subsample=0.6, drop_rate=0.3, **GIVEN),
        TIME, 4,
    ),
    "hazards": (
        HistGradientBoostingRegressor(
            Cox(), sampling_method="goss", colsample_bytree=0.8, **GIVEN
        ),
        TIME, 4,
    ),
}  # fmt: skip


def killing(
    solver: GradientBoostingSolver, folder: Path, at: list[int], n_sums: int
) -> GradientBoostingSolver:
    """Return a solver, one of whose processes kills itself once in each of some iterations."""

    class Killed:
        def __init__(self, rows: Any) -> None:
            self._rows, self._n_iter, self._sums = rows, rows.n_done, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self._rows, name)

        def keep(self, n_iter: int, *more: Any, **also: Any) -> None:
            self._n_iter, self._sums = n_iter, 0
            self._rows.keep(n_iter, *more, **also)

        def sum_own_range(self, array: Any) -> Any:
            import os
            import signal

            self._sums += 1
            mark = folder / f"killed {self._n_iter}"
            if self._n_iter in at and self._sums == n_sums and 1 in self._rows.lanes:
                if not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            return self._rows.sum_own_range(array)

    class Killing(GradientBoostingSolver):
        def solve(self, model: Any, rows: Any) -> Any:
            return super().solve(model, Killed(rows))

    return Killing(**{f.name: getattr(solver, f.name) for f in fields(solver)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "at"),
    [
        ("classes", [0]), ("classes", [5]), ("classes", [2, 7]),
        ("failure times", [0, 4]), ("hazards", [0, 4]),
    ],
    ids=str,
)  # fmt: skip
def test_a_killed_worker_changes_no_tree(
    crew: LocalCluster, tmp_path: Path, kind: str, at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, y, n_sums = MODELS[kind]
    model = clone(model).set_params(run=Run(n_lanes=3))
    lazy, labels = da.from_array(X, chunks=(700, 6)), da.from_array(y, chunks=700)
    with Client(crew) as client:
        client.wait_for_workers(3)
        model.fit(lazy, labels)
        undisturbed = {name: a.tobytes() for name, a in model._trees.packed().items()}
        scores = model.validation_score_
        problem = type(model)._problem

        def struck(self: Any, rows: Any) -> Any:
            of_rows, solver = problem(self, rows)
            return of_rows, killing(solver, tmp_path, at, n_sums)

        monkeypatch.setattr(type(model), "_problem", struck)
        model.fit(lazy, labels)
    assert len(list(tmp_path.iterdir())) == len(at)
    assert model.history_.extra["generations"]
    assert model.n_iter_ == len(model.history_) == 10
    assert {name: a.tobytes() for name, a in model._trees.packed().items()} == undisturbed
    np.testing.assert_array_equal(model.validation_score_, scores)
