"""Private fits of PyTorch modules: each row's gradient is clipped, for any module."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daskml_dist import DP
from daskml_dist.backends import get_backend
from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.base import BatchRows
from daskml_dist.neural_network import MLPClassifier, TorchClassifier, TorchRegressor
from daskml_dist.training.in_process import InProcessEngine

torch = pytest.importorskip("torch")

BUDGET = DP(8.0, 1e-5, seed=1)


class Perceptron(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
        )

    def forward(self, X: Any) -> Any:
        return self.layers(X)


class Convolution(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(1, 3, 3)
        self.norm = torch.nn.GroupNorm(3, 3)
        self.last = torch.nn.Linear(3, 2)

    def forward(self, X: Any) -> Any:
        return self.last(self.norm(self.first(X)).relu().mean(dim=(2, 3)))


class Recurrent(torch.nn.Module):
    """Module with layers that cannot compute per-row gradients of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = torch.nn.LSTM(2, 3, batch_first=True)
        self.last = torch.nn.Linear(3, 2)

    def forward(self, X: Any) -> Any:
        return self.last(self.memory(X.reshape(len(X), 2, 2))[0][:, -1])


class Dropping(Perceptron):
    def forward(self, X: Any) -> Any:
        return self.layers(torch.nn.functional.dropout(X, 0.3, self.training))


class Normalised(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.last = torch.nn.Linear(4, 2)

    def forward(self, X: Any) -> Any:
        return self.last(self.norm(X))


def _rows(shape: tuple[int, ...] = (4,), n_rows: int = 400) -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(n_rows, *shape)).astype(np.float32)
    return X, (X.reshape(n_rows, -1)[:, 0] > 0).astype(int)


def _model_of(clf: Any, X: Any, y: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    planned: list[Any] = []
    train = InProcessEngine.train

    def train_planned(self: InProcessEngine, fit: Any, callbacks: Any) -> Any:
        planned.append(fit.work.model)
        return train(self, fit, callbacks)

    monkeypatch.setattr(InProcessEngine, "train", train_planned)
    clf.fit(X, y)
    return planned[0]


@pytest.mark.parametrize(
    ("module", "shape"), [(Perceptron, (4,)), (Convolution, (1, 6, 6)), (Recurrent, (4,))]
)
def test_the_gradient_is_the_sum_of_clipped_row_gradients(
    module: Any, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = _rows(shape, 40)
    params: dict[str, Any] = {"max_iter": 1, "random_state": 0, "dtype": "float64"}
    if len(shape) == 3:
        params["images"] = "channels_first"
    budget = DP(8.0, 1e-5, clip=0.1, seed=1)
    clipped = _model_of(TorchClassifier(module, privacy=budget, **params), X, y, monkeypatch)
    free = _model_of(TorchClassifier(module, **params), X, y, monkeypatch)
    X, backend = X.astype(float), get_backend("cpu")
    w = np.random.default_rng(1).normal(size=free.parameters.shape)
    out, each, norms = np.zeros_like(w), [], []
    assert clipped.add_gradient(w, BatchRows(X, y), out, backend) == 0
    for i in range(len(X)):
        row_gradient = np.zeros_like(w)
        free.add_gradient(w, BatchRows(X[i : i + 1], y[i : i + 1]), row_gradient, backend)
        norms.append(np.linalg.norm(row_gradient))
        each.append(row_gradient * min(1, 0.1 / norms[-1]))
    assert max(norms) > 0.1
    np.testing.assert_allclose(out, np.sum(each, axis=0), rtol=1e-7, atol=1e-9)


def test_modules_learn_within_their_budget() -> None:
    X, y = _rows(n_rows=1500)
    params: dict[str, Any] = {"max_iter": 6, "learning_rate": 0.02, "random_state": 0}
    clf = TorchClassifier(Perceptron, privacy=BUDGET, **params).fit(X, y)
    assert clf.score(X, y) > 0.9
    assert clf.privacy_spent_.epsilon <= 8.0
    assert np.isnan(clf.loss_curve_).all()
    mlp = MLPClassifier((8,), privacy=BUDGET, max_iter=6, batch_size=128).fit(X, y)
    assert mlp.privacy_spent_ == clf.privacy_spent_
    reg = TorchRegressor(
        torch.nn.Linear, module__in_features=4, module__out_features=1, privacy=BUDGET, **params
    ).fit(X, X[:, 0])
    assert reg.score(X, X[:, 0]) > 0.5


def test_dropout_draws_the_same_again() -> None:
    X, y = _rows()
    fits = [
        TorchClassifier(Dropping, privacy=BUDGET, max_iter=2, random_state=0).fit(X, y)
        for _ in range(2)
    ]
    for a, b in zip(*(fit.state_dict().values() for fit in fits), strict=True):
        assert torch.equal(a, b)


def test_public_weights_may_be_the_start() -> None:
    X, y = _rows()
    start = Perceptron()
    clf = TorchClassifier(start, privacy=BUDGET, max_iter=1, warm_start=True).fit(X, y)
    with pytest.raises(InvalidParameterError, match="warm_start=True with privacy="):
        clf.fit(X, y)


@pytest.mark.parametrize(
    ("module", "params", "names"),
    [
        (Normalised, {}, "GroupNorm or LayerNorm"),
        (Perceptron, {"precision": "bf16"}, "precision='bf16' with privacy="),
        (Perceptron, {"class_weight": "balanced"}, "class_weight='balanced'"),
        (Perceptron, {"policy": "local"}, "policy='local'"),
    ],
)
def test_settings_that_leak_rows_are_refused(module: Any, params: Any, names: str) -> None:
    X, y = _rows(n_rows=40)
    with pytest.raises(InvalidParameterError, match=names):
        TorchClassifier(module, privacy=BUDGET, **params).fit(X, y)
