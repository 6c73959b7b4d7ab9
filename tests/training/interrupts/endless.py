"""Fits that end only by an interrupt, and the results that they must keep."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier

N_ROWS = 2_000


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def make_rows() -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(N_ROWS, 8))
    return X, (X[:, 0] > 0).astype(int)


def lazy_rows() -> tuple[Any, Any]:
    X, y = make_rows()
    return da.from_array(X, chunks=(400, -1)), da.from_array(y, chunks=400)


def endless(policy: Any, **params: Any) -> SGDClassifier:
    usual = {"batch_size": 64, "run": Run(n_lanes=2), "random_state": 0, "optimizer": "sgd"}
    params = {**usual, **params}
    return SGDClassifier(policy=policy, max_iter=10**6, tol=None, **params)


class At:
    """Callback that calls a function when a pass ends."""

    def __init__(self, number: int, do: Callable[[], None] = press) -> None:
        self.number = number
        self.do = do
        self.events: list[Any] = []

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.events.append(record["pass"])
        if record["pass"] == self.number:
            self.do()

    def on_fit_end(self, run: Any) -> None:
        self.events.append("end")


def check_kept(clf: SGDClassifier, passes: int) -> None:
    assert clf.history_.interrupted
    assert "interrupted" in repr(clf.history_)
    assert clf.n_iter_ == len(clf.history_) >= passes
    assert clf.t_ >= clf.n_iter_ * N_ROWS
    assert clf.score(*make_rows()) > 0.8


def check_goes_on(clf: SGDClassifier, X: Any, y: Any) -> None:
    rows_before = clf.t_
    clf.set_params(callbacks=None, warm_start=True, max_iter=2)
    assert not clf.fit(X, y).history_.interrupted
    assert clf.t_ == rows_before + 2 * N_ROWS
    assert clf.partial_fit(X, y).t_ == rows_before + 3 * N_ROWS
