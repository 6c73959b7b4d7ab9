"""Rows, targets, and stand-ins for a GPU, on which fits must equal those of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from tests.strict_backend import StrictBackend

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 5))
SIGNAL = X @ np.array([1.0, -2.0, 0.5, 0.0, 1.5])
TARGETS: dict[str, NDArray[Any]] = {
    "two": np.where(SIGNAL + RNG.normal(size=240) > 0, "yes", "no"),
    "three": np.digitize(SIGNAL + RNG.normal(size=240), [-1, 1]),
    "numbers": SIGNAL + RNG.normal(size=240),
    "counts": RNG.poisson(np.exp(SIGNAL / 4)).astype(float),
    "positive": RNG.gamma(2.0, np.exp(SIGNAL / 4)) + 0.01,
    "columns": np.stack([SIGNAL, -SIGNAL], axis=1) + RNG.normal(size=(240, 2)),
}
WEIGHT = RNG.uniform(0.5, 2, size=240)


class CountedMoves(StrictBackend):
    """Backend that counts transfers to the device."""

    moved = 0

    def to_device(self, array: Any) -> Any:
        type(self).moved += isinstance(array, np.ndarray)
        return super().to_device(array)


class MissingDevice(StrictBackend):
    """Backend of a missing device."""

    @classmethod
    def problem(cls) -> str | None:
        return "nothing was plugged in. Plug something in."


def fitted_floats(model: Any) -> list[NDArray[Any]]:
    """Return all fitted arrays of numbers."""
    found = {n: np.asarray(v) for n, v in vars(model).items() if n.endswith("_")}
    return [found[n] for n in sorted(found) if found[n].dtype.kind == "f"]


def check_device(model: Any, y: NDArray[Any], rtol: float = 1e-6, **fit: Any) -> None:
    """Check that a fit on the device equals the CPU's, and predicts on the CPU."""
    on_gpu = clone(model).set_params(device="gpu").fit(X, y, **fit)
    on_cpu = clone(model).set_params(device="cpu").fit(X, y, **fit)
    arrays = list(zip(fitted_floats(on_gpu), fitted_floats(on_cpu), strict=True))
    assert arrays
    for found, expected in arrays:
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)
    assert on_gpu.predict(X).shape == on_cpu.predict(X).shape


STEPS = {"max_iter": 3, "tol": None, "random_state": 0, "batch_size": 32}
