"""A user's own model: a network of two layers in one file, under every policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist import Run
from daskml_dist._classifier import BaseClassifier
from daskml_dist._steps import BaseSteps
from daskml_dist.backends import get_backend
from daskml_dist.models.base import BatchRows, Parameters, Part, StepModel
from daskml_dist.policies import POLICIES

N_ROWS, N_FEATURES, N_HIDDEN = 3_000, 6, 16
EXACT = ["sync", "allreduce", "local", "average"]


@cache
def make_classes() -> tuple[type[StepModel], type[BaseSteps]]:
    """The model and its estimator; made in a function, so that they travel to workers whole."""

    class TwoLayers(StepModel):
        """``softmax(max(X @ W1 + b1, 0) @ W2 + b2)``, with dropout in the hidden layer."""

        def __init__(self, n_in: int, n_hidden: int, n_out: int, dropout: float = 0.0) -> None:
            self.sizes, self.dropout = (n_in, n_hidden, n_out), dropout
            self.parameters = Parameters(
                (
                    Part("hidden.weight", (n_in, n_hidden)),
                    Part("hidden.bias", (n_hidden,), penalised=False),
                    Part("out.weight", (n_hidden, n_out)),
                    Part("out.bias", (n_out,), penalised=False),
                )
            )

        def init(self, seed: int, dtype: Any) -> Any:
            rng, w = np.random.default_rng(seed), np.zeros(self.parameters.shape, dtype)
            for name, part in self.parameters.views(w).items():
                if name.endswith("weight"):
                    part[...] = rng.normal(scale=(2 / len(part)) ** 0.5, size=part.shape)
            return w

        def encode(self, y: Any, classes: Any, dtype: Any) -> Any:
            return np.searchsorted(classes, y)

        def forward(self, w: Any, X: Any) -> Any:
            p = self.parameters.views(w)
            hidden = np.maximum(X @ p["hidden.weight"] + p["hidden.bias"], 0)
            return hidden, hidden @ p["out.weight"] + p["out.bias"]

        def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Any) -> float:
            hidden, raw = self.forward(w, rows.X)
            if self.dropout:
                keep = rows.draw().random(hidden.shape, dtype=np.float32) >= self.dropout
                hidden = hidden * keep / (1 - self.dropout)
                p = self.parameters.views(w)
                raw = hidden @ p["out.weight"] + p["out.bias"]
            g = np.exp(raw - raw.max(axis=1, keepdims=True))
            g /= g.sum(axis=1, keepdims=True)
            at = np.arange(len(g)), rows.y
            losses = -np.log(np.maximum(g[at], np.finfo(g.dtype).tiny))
            g[at] -= 1
            if rows.weight is not None:
                losses *= rows.weight
                g *= rows.weight[:, None]
            p, to = self.parameters.views(w), self.parameters.views(out)
            to["out.weight"] += hidden.T @ g
            to["out.bias"] += g.sum(axis=0)
            back = (g @ p["out.weight"].T) * (hidden > 0)
            if self.dropout:
                back /= 1 - self.dropout
            to["hidden.weight"] += rows.X.T @ back
            to["hidden.bias"] += back.sum(axis=0)
            return float(losses.sum(dtype=np.float64))

        def validation_sums(self, w: Any, rows: BatchRows, backend: Any) -> Any:
            right = self.forward(w, rows.X)[1].argmax(axis=1) == rows.y
            weight = np.ones(len(right)) if rows.weight is None else rows.weight
            return np.array([weight @ right, weight.sum()], np.float64)

        def validation_score(self, sums: Any) -> float:
            return float(sums[0] / sums[1])

        def identity(self) -> dict[str, Any]:
            return {"layers": list(self.sizes)}

    class TwoLayerClassifier(BaseClassifier, BaseSteps):
        def __init__(
            self,
            n_hidden: int = N_HIDDEN,
            dropout: float = 0.0,
            optimizer: Any = "adam",
            learning_rate: Any = 0.01,
            policy: Any = "allreduce",
            max_iter: int = 8,
            batch_size: Any = 32,
            micro_batch_size: Any = None,
            clip: Any = None,
            groups: Any = None,
            early_stopping: bool = False,
            warm_start: bool = False,
            checkpoint: Any = None,
            callbacks: Any = None,
            random_state: Any = 0,
            run: Any = None,
        ) -> None:
            self.n_hidden = n_hidden
            self.dropout = dropout
            self.optimizer = optimizer
            self.learning_rate = learning_rate
            self.policy = policy
            self.max_iter = max_iter
            self.batch_size = batch_size
            self.micro_batch_size = micro_batch_size
            self.clip = clip
            self.groups = groups
            self.early_stopping = early_stopping
            self.warm_start = warm_start
            self.checkpoint = checkpoint
            self.callbacks = callbacks
            self.random_state = random_state
            self.run = run

        def _model(self, rows: Any, last: Any) -> StepModel:
            n_features = rows.survey.n_features
            return TwoLayers(n_features, self.n_hidden, len(rows.classes), self.dropout)

        def _set_parameters(self, w: Any, model: Any, rows: Any) -> None:
            self.n_features_in_, self.classes_ = model.sizes[0], rows.classes
            self.w_, self.model_ = w, model

        def _raw(self) -> Callable[[Any], Any]:
            w, model = self.w_, self.model_
            return lambda X, out=None: model.forward(w, X)[1]

    return TwoLayers, TwoLayerClassifier


def _rows() -> tuple[Any, Any]:
    """Classes that no line divides."""
    X = np.random.default_rng(0).normal(size=(N_ROWS, N_FEATURES))
    return X, np.digitize((X[:, :2] ** 2).sum(axis=1), [0.8, 2.2])


def _lazy() -> tuple[Any, Any]:
    X, y = _rows()
    return da.from_array(X, chunks=(500, -1)), da.from_array(y, chunks=500)


def _classifier(**params: Any) -> Any:
    return make_classes()[1](**{"run": Run(n_lanes=2, deterministic=True)} | params)


def test_gradient_is_that_of_finite_differences() -> None:
    model, backend = make_classes()[0](4, 5, 3), get_backend("cpu")
    rng = np.random.default_rng(0)
    w = model.init(0, np.float64)
    rows = BatchRows(rng.normal(size=(9, 4)), rng.integers(3, size=9), rng.random(9))
    gradient = np.zeros_like(w)
    model.add_gradient(w, rows, gradient, backend)

    def loss(at: int, by: float) -> float:
        moved = w.copy()
        moved[at] += by
        return model.add_gradient(moved, rows, np.zeros_like(w), backend)

    slopes = [(loss(i, 1e-6) - loss(i, -1e-6)) / 2e-6 for i in range(len(w))]
    np.testing.assert_allclose(gradient[:, 0], slopes, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("policy", POLICIES)
def test_trains_on_workers_under_every_policy(client: Client, policy: str) -> None:
    found = _classifier(policy=policy, max_iter=15).fit(*_lazy())
    assert found.score(*_rows()) > 0.85
    assert found.history_.extra["n_lanes"] == 2
