"""Networks with compressed gradients: accuracy, bytes, and uncompressed running means."""

from __future__ import annotations

from functools import cache
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from sklearn.datasets import load_digits

from daskml_dist import Run
from daskml_dist.compression import OneBit, PowerSGD, TopK
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.policies import LocalSGD


@cache
def _digits() -> tuple[Any, Any]:
    X, y = load_digits(return_X_y=True)
    return (X / 16).astype(np.float32), y


#: Compressors, each with a suitable optimizer.
SMALL: list[Any] = [
    pytest.param(PowerSGD(2), "allreduce", "momentum", 0.1, id="powersgd"),
    pytest.param(
        TopK(0.02), "allreduce", "momentum", 0.05, id="topk", marks=pytest.mark.slow
    ),
    pytest.param(
        OneBit(momentum=0.9), "allreduce", "sgd", 0.5, id="1bit", marks=pytest.mark.slow
    ),
    pytest.param(
        "4bit", LocalSGD(20, outer="nesterov", outer_momentum=0.5), "adam", 0.003, id="local",
        marks=pytest.mark.slow,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("compression", "policy", "optimizer", "rate"), SMALL)
def test_a_perceptron_is_as_accurate_by_few_bytes(
    compression: Any, policy: Any, optimizer: str, rate: float, client: Client
) -> None:
    X, y = _digits()
    lazy = da.from_array(X, chunks=(300, -1)), da.from_array(y, chunks=300)

    def fit(**params: Any) -> Any:
        settings: dict[str, Any] = {
            "optimizer": optimizer, "schedule": rate, "max_iter": 20, "tol": None,
            "batch_size": 64, "random_state": 0,
        }  # fmt: skip
        return MLPClassifier((128,), **settings | params).fit(*lazy)

    plain = fit(policy="allreduce", run=Run(n_lanes=2))
    small = fit(policy=policy, run=Run(n_lanes=2, compression=compression))
    assert plain.score(X, y) > 0.97
    assert small.score(X, y) > plain.score(X, y) - 0.02
    moved = [sum(r["bytes_pushed"] for r in clf.history_.records[:-1]) for clf in (small, plain)]
    assert moved[0] < 0.15 * moved[1]


@pytest.mark.parametrize("compression", ["8bit", PowerSGD(2)])
def test_running_means_are_sent_uncompressed(compression: Any) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from daskml_dist.neural_network import TorchClassifier

    def make() -> Any:
        return torch.nn.Sequential(
            torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 32), torch.nn.ReLU(),
            torch.nn.Linear(32, 10),
        )  # fmt: skip

    X, y = _digits()
    found = [
        TorchClassifier(
            make, max_iter=4, batch_size=64, learning_rate=0.01, random_state=0,
            run=Run(n_lanes=2, deterministic=True, compression=c),
        ).fit(X, y)
        for c in (None, compression)
    ]  # fmt: skip
    norms = [clf.module_[0] for clf in found]
    # Running means of the inputs, which do not depend on weights.
    for name in ("running_mean", "running_var"):
        plain, small = (getattr(norm, name).numpy() for norm in norms)
        np.testing.assert_allclose(small, plain, rtol=1e-5, atol=1e-6)
    assert found[1].score(X, y) > found[0].score(X, y) - 0.03
