"""Fits that save checkpoints, states whose arrays show their step, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daskml_dist import Run
from daskml_dist.errors import CheckpointError
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training.checkpoint import Checkpoint

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 5))
Y = np.where(X[:, 0] + 0.5 * RNG.normal(size=400) > 0, "yes", "no")
PARAMS: dict[str, Any] = {"tol": None, "random_state": 0, "run": Run(n_lanes=2)}


class Count:
    """Callback that counts its calls, and may raise or stop at a pass."""

    def __init__(
        self, raise_at: int = 0, stop_at: int = 0, error: type[BaseException] = ValueError
    ) -> None:
        self.events: list[Any] = []
        self.raise_at = raise_at
        self.stop_at = stop_at
        self.error = error

    def on_fit_begin(self, run: Any) -> None:
        self.events.append("begin")

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.events.append(record["pass"])
        if record["pass"] == self.raise_at:
            raise self.error("power cut")
        if record["pass"] == self.stop_at:
            run.stop()

    def on_fit_end(self, run: Any) -> None:
        self.events.append("end")


def expect_refusal(
    saved: Checkpoint, match: str, rows: Any = X, labels: Any = Y, **params: Any
) -> None:
    """Fit, and expect an error before the first step that names the file."""
    count = Count()
    face = SGDClassifier if labels.dtype.kind == "U" else SGDRegressor
    clf = face(checkpoint=saved, max_iter=9, callbacks=count, **{**PARAMS, **params})
    with pytest.raises(CheckpointError, match=match) as caught:
        clf.fit(rows, labels)
    assert str(saved.path).rpartition("://")[2] in str(caught.value)
    assert count.events == []


def make_state(step: int, n: int = 50) -> ShardState:
    w = np.full((n, 2), float(step))
    return ShardState(w, {"m": np.asfortranarray(w)}, step, 10.0 * step, w.copy(), step)


def check_whole(saved: Checkpoint) -> int:
    """Check that all arrays of a checkpoint are of the same step; return the step."""
    state, _ = saved.load()
    assert state.average is not None
    for array in (state.w, state.opt_state["m"], state.average):
        assert (array == state.step).all()
    return state.step
