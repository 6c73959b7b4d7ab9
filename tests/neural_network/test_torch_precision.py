"""Gradients in float16: losses are scaled so that gradients neither vanish nor overflow."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from daskml_dist.models.torch_modules import module as torch_module
from daskml_dist.neural_network import TorchRegressor

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def make_net(half: bool) -> Any:
    """Return a linear module whose values and gradients pass through float16."""

    class Net(torch.nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.line = torch.nn.Linear(3, 1)
            self.factor = factor

        def forward(self, x: Any) -> Any:
            values = self.line(x)
            return self.factor * (values.half().float() if half else values)

    return Net


@pytest.mark.parametrize("factor", [1e-9, 1.0, 50.0])
def test_float16_gradients_equal_float32_gradients(
    monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    # CPUs do not compute networks in float16: here the module itself rounds.
    monkeypatch.setattr(torch_module, "autocast", lambda precision, device: nullcontext)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(8, 3)).astype(np.float32)
    y = rng.normal(size=8).astype(np.float32)

    rate = 1 / factor if factor < 1 else 0.1 / factor**2

    def step(half: bool, precision: str | None) -> Any:
        net = TorchRegressor(
            make_net(half), module__factor=factor, precision=precision, max_iter=1, tol=None,
            batch_size=8, optimizer="sgd", learning_rate=rate,
            random_state=0, device="cpu",
        )  # fmt: skip
        return net.fit(X, y).state_dict()["line.weight"]

    wanted, found = step(False, None), step(True, "fp16")
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=5e-3, atol=5e-3)
    if factor == 1e-9:
        without = np.asarray(step(True, None))
        assert np.abs(without - np.asarray(wanted)).max() > 0.1  # only float16 needs scaling
