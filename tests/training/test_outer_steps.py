"""Outer steps of local SGD: from average to average with Nesterov's momentum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from numpy.typing import NDArray

from daskml_dist import Run
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import SGDRegressor
from daskml_dist.policies import LocalSGD, ModelAveraging, Policy
from daskml_dist.training.checkpoint import Checkpoint

EVERY, STEPS, RATE = 3, 12, 0.2
OUTER = LocalSGD(EVERY, outer_rate=0.7, outer_momentum=0.6)

_draw = np.random.default_rng(0)
X = _draw.normal(size=(80, 4))
Y = X @ _draw.normal(size=4) + np.repeat([0.0, 1.0], 40) * X[:, 0]


def _blocks() -> tuple[Any, Any]:
    return da.from_array(X, chunks=(40, -1)), da.from_array(Y, chunks=40)


def _fit(policy: Policy, rows: Any = None, **params: Any) -> SGDRegressor:
    """A fit of two lanes, of 40 rows each; every step is a pass."""
    settings: dict[str, Any] = {
        "optimizer": "sgd", "learning_rate": RATE, "alpha": 0.0, "fit_intercept": False,
        "batch_size": None, "max_iter": STEPS, "tol": None, "run": Run(n_lanes=2),
    }  # fmt: skip
    reg = SGDRegressor(policy=policy, random_state=0, **settings | params)
    return reg.fit(*(rows or _blocks()))


def _descended(rate: float, momentum: float) -> NDArray[Any]:
    """Gradient descent of each half, and SGD with Nesterov's momentum over their means."""
    w, velocity = np.zeros(4), np.zeros(4)
    for _ in range(STEPS // EVERY):
        ends = []
        for half in (slice(0, 40), slice(40, 80)):
            v = w.copy()
            for _ in range(EVERY):
                v -= RATE * X[half].T @ (X[half] @ v - Y[half]) / 40
            ends.append(v)
        outer_gradient = w - np.mean(ends, axis=0)
        velocity = momentum * velocity + outer_gradient
        w = w - rate * (outer_gradient + momentum * velocity)
    return w


@pytest.mark.parametrize(("rate", "momentum"), [(1.0, 0.0), (0.7, 0.6), (1.3, 0.0)])
def test_the_recursion(rate: float, momentum: float) -> None:
    reg = _fit(LocalSGD(EVERY, outer_rate=rate, outer_momentum=momentum))
    np.testing.assert_allclose(reg.coef_, _descended(rate, momentum), rtol=1e-10)


def test_two_workers_make_the_same(client: Client) -> None:
    np.testing.assert_allclose(_fit(OUTER).coef_, _descended(0.7, 0.6), rtol=1e-10)
    batches: dict[str, Any] = {"batch_size": 8, "run": Run(n_lanes=2, deterministic=True)}
    two = _fit(OUTER, **batches)
    one = _fit(OUTER, rows=(X, Y), **batches)  # of this process
    np.testing.assert_array_equal(two.coef_, one.coef_)


def test_a_checkpoint_and_a_warm_start_keep_the_momentum(tmp_path: Path) -> None:
    whole = _fit(OUTER).coef_
    checkpoint = Checkpoint(tmp_path / "fit", every=EVERY)
    _fit(OUTER, max_iter=6, checkpoint=checkpoint)
    resumed = _fit(OUTER, checkpoint=checkpoint)
    np.testing.assert_array_equal(resumed.coef_, whole)
    warm = _fit(OUTER, max_iter=6, warm_start=True)
    warm.fit(*_blocks())
    np.testing.assert_allclose(warm.coef_, whole, rtol=1e-12)
    # Another policy goes on without it, and this one from a fit that had none.
    for policy in ("sync", OUTER):
        warm.set_params(policy=policy)
        warm.fit(*_blocks())
    assert np.isfinite(warm.coef_).all()


@pytest.mark.parametrize("bad", [{"outer_rate": 0}, {"outer_rate": True}, {"outer_rate": np.inf},
                                 {"outer_momentum": 1}, {"outer_momentum": -0.1}])  # fmt: skip
def test_what_makes_no_sense_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError, match=rf"LocalSGD\({next(iter(bad))}=.*: give a"):
        LocalSGD(**bad)


def test_policies_without_meetings_refuse_it() -> None:
    class Mine(ModelAveraging):
        outer_momentum = 0.5

    with pytest.raises(InvalidParameterError, match=r"Mine has outer_rate.*such as LocalSGD"):
        Mine()
