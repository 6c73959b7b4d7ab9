"""Checkpointed fits of round solvers that were stopped resume to the same digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist import Run
from daskml_dist.errors import CheckpointError, InvalidParameterError
from daskml_dist.linear_model import LogisticRegression, SGDClassifier
from daskml_dist.training.checkpoint import Checkpoint

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 6))
Y = (X @ RNG.normal(size=6) + RNG.normal(size=400) > 0).astype(int)
EXACT = Run(n_lanes=2, deterministic=True)
SOLVERS: dict[str, dict[str, Any]] = {
    "lbfgs": {"tol": 1e-9},
    "orthant-wise": {"l1_ratio": 1, "C": 0.1, "tol": 1e-8, "max_iter": 500},
    "newton-cholesky": {"solver": "newton-cholesky", "tol": 1e-12, "C": 1e4},
    "boosting": {"solver": "boosting", "tol": 0.02, "max_iter": 300},
}


class Ended(Exception):
    """Error that stands for a lost client."""


class End:
    """Callback that ends a fit at a pass."""

    def __init__(self, at: int, stop: bool = False) -> None:
        self.at, self.stop, self.begun = at, stop, 0

    def on_fit_begin(self, run: Any) -> None:
        self.begun += 1

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        if record["pass"] == self.at:
            if not self.stop:
                raise Ended
            run.stop()


def _fit(*callbacks: Any, solver: str = "lbfgs", X: Any = X, y: Any = Y, **params: Any) -> Any:
    params = {"run": EXACT, **SOLVERS[solver], **params}
    return LogisticRegression(callbacks=list(callbacks), **params).fit(X, y)


def _same(ours: Any, theirs: Any) -> None:
    np.testing.assert_array_equal(ours.coef_, theirs.coef_)
    np.testing.assert_array_equal(ours.n_iter_, theirs.n_iter_)
    for key in ("pass", "loss", "rows"):
        found, wanted = ([record[key] for record in fit.history_] for fit in (ours, theirs))
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_fit_resumes_from_its_file(solver: str, tmp_path: Path) -> None:
    undisturbed, path = _fit(solver=solver), tmp_path / "c"
    watch = End(0)
    _same(_fit(Checkpoint(path, every=2), watch, solver=solver), undisturbed)
    assert watch.begun == 1
    with pytest.raises(Ended):
        _fit(Checkpoint(path, every=2), End(5), solver=solver)
    resumed = End(3)  # a pass that is not repeated
    _same(_fit(Checkpoint(path, every=3, resume=True), resumed, solver=solver), undisturbed)


def test_a_callback_stops_a_checkpointed_fit(tmp_path: Path) -> None:
    for every in (1, 2, 3):
        ended = _fit(Checkpoint(tmp_path / "c", every=every), End(4, stop=True))
        assert 4 <= len(ended.history_) <= 6 < len(_fit().history_)


def test_a_cluster_resumes_a_fit_of_one_process(client: Client, tmp_path: Path) -> None:
    lazy = {"X": da.from_array(X, chunks=(200, -1)), "y": da.from_array(Y, chunks=200)}
    checkpoint = Checkpoint(tmp_path / "c", every=6, resume=True)
    with pytest.raises(Ended):
        _fit(checkpoint, End(8))
    _same(_fit(checkpoint, **lazy), _fit())


def test_files_of_other_fits_are_refused(tmp_path: Path) -> None:
    saved = Checkpoint(tmp_path / "c", every=4, resume=True)
    _fit(saved)
    for name, other in {
        "solver's penalty": {"C": 0.5},
        "n_rows": {"X": X[:300], "y": Y[:300]},
        "dtype": {"X": X.astype("float32")},
        "weight_scale": {"class_weight": {0: 1.0, 1: 2.0}},
    }.items():
        with pytest.raises(CheckpointError, match=f"of another fit: its {name} is"):
            _fit(saved, **other)
    with pytest.raises(CheckpointError, match="by a round solver"):
        SGDClassifier(checkpoint=saved).fit(X, Y)
    steps = Checkpoint(tmp_path / "s", resume=True)
    SGDClassifier(checkpoint=steps, max_iter=2, tol=None).fit(X, Y)
    with pytest.raises(CheckpointError, match="belongs to a fit by gradient steps"):
        _fit(steps)
    with pytest.raises(InvalidParameterError, match="several Checkpoints"):
        _fit(saved, steps)
