"""Fits whose lanes have different optima, small enough to be repeated by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist import Run
from daskml_dist.linear_model import SGDRegressor
from daskml_dist.policies import Policy

#: Rows of a lane, and the learning rate of its steps, each of which is a pass.
LANE_ROWS, RATE = 40, 0.2


def make_lane_rows(n_lanes: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return rows and targets for which each lane's coefficient is larger by one."""
    draw = np.random.default_rng(0)
    X = draw.normal(size=(n_lanes * LANE_ROWS, 4))
    return X, X @ draw.normal(size=4) + np.repeat(np.arange(float(n_lanes)), LANE_ROWS) * X[:, 0]


def fit_lanes(policy: str | Policy, rows: tuple[Any, Any], **params: Any) -> SGDRegressor:
    """Return a least-squares fit by gradient descent, with two lanes unless `run` differs."""
    settings: dict[str, Any] = {
        "optimizer": "sgd", "learning_rate": RATE, "alpha": 0.0, "fit_intercept": False,
        "batch_size": None, "tol": None, "run": Run(n_lanes=2), "random_state": 0,
    }  # fmt: skip
    return SGDRegressor(policy=policy, **settings | params).fit(*rows)
