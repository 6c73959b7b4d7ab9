"""Fits of several targets resume after a loss, by steps and by rounds."""

from __future__ import annotations

import time
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist import Run
from daskml_dist.linear_model import HuberRegressor, SGDRegressor
from tests.training.recovery.strikes import Strike, lazy_rows, make_killer


class _Resting:
    """Callback that slows each step by a millisecond, so that the fit lasts until the fault."""

    def on_step_end(self, step: Any) -> None:
        time.sleep(1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("model", [SGDRegressor, HuberRegressor])
def test_a_killed_worker_changes_nothing(crew_client: Client, model: Any) -> None:
    params = {"random_state": 0, "tol": None} if model is SGDRegressor else {"tol": 0.0}
    X, _ = lazy_rows()
    if model is HuberRegressor:
        X = da.random.default_rng(0).normal(size=(1_000_000, 20), chunks=(100_000, -1))
    noise = da.random.default_rng(1).standard_t(3, size=(len(X), 3), chunks=(X.chunks[0], 3))
    y = (X[:, :3] + 0.3 * noise) * np.array([1.0, 100.0, 0.01])

    def fit(*callbacks: Any) -> Any:
        slow_steps = [_Resting()] if model is SGDRegressor else []
        run = Run(n_lanes=3, deterministic=True)
        return model(run=run, callbacks=[*slow_steps, *callbacks], **params).fit(X, y)

    undisturbed = fit()
    strike = Strike(make_killer(crew_client, "trainer"), after=0)
    struck = fit(strike)
    assert strike.events
    np.testing.assert_array_equal(struck.coef_, undisturbed.coef_)
    assert struck.coef_.shape == (3, X.shape[1])
