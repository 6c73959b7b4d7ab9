"""Feature-sharded fits on a device."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.neural_network import MLPClassifier
from tests.training.devices.fits import STEPS, TARGETS, WEIGHT, X, check_device, fitted_floats


@pytest.mark.parametrize("deterministic", [False, True])
def test_linear_models(gpu: None, deterministic: bool) -> None:
    params = {"run": Run(shard="features", n_lanes=3, deterministic=deterministic), **STEPS}
    for target in ("two", "three"):
        model = SGDClassifier(**params, early_stopping=True, average=100, penalty="elasticnet")
        check_device(model, TARGETS[target], sample_weight=WEIGHT)
    check_device(SGDRegressor(**params), TARGETS["numbers"])


def test_first_layers(gpu: None) -> None:
    run = Run(shard="features", n_lanes=3)
    model = MLPClassifier((4, 3), **STEPS, run=run, early_stopping=True)
    on_gpu, on_cpu = (
        clone(model).set_params(device=device).fit(X, TARGETS["three"]) for device in ("gpu", "cpu")
    )
    for found, expected in zip(on_gpu.coefs_, on_cpu.coefs_, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_sparse_rows_of_which_steps_touch_few_columns(kernels: None) -> None:
    """Parameters stay on the host, rows on the device."""
    few = sparse.random(240, 3_000, 0.005, format="csr", random_state=0)
    model = SGDClassifier(run=Run(shard="features", n_lanes=3), early_stopping=True, **STEPS)
    on_gpu, on_cpu = (
        clone(model).set_params(device=device).fit(few, TARGETS["three"])
        for device in ("gpu", "cpu")
    )
    for found, expected in zip(fitted_floats(on_gpu), fitted_floats(on_cpu), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
