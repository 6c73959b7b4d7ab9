"""A network with one hidden layer, for papers about non-convex models."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist import Run
from daskml_dist.base import BaseClassifier, BaseSteps
from daskml_dist.models import BatchRows, Parameters, Part, StepModel

__all__ = ["NetworkClassifier"]


class _Network(StepModel):
    """``softmax(max(X @ A + a, 0) @ B + b)``."""

    def __init__(self, n_in: int, n_hidden: int, n_out: int) -> None:
        self.sizes = n_in, n_hidden, n_out
        self.parameters = Parameters(
            (
                Part("A", (n_in, n_hidden)),
                Part("B", (n_hidden, n_out)),
                Part("a", (n_hidden,), penalised=False),
                Part("b", (n_out,), penalised=False),
            )
        )

    def init(self, seed: int, dtype: Any) -> Any:
        rng, w = np.random.default_rng(seed), np.zeros(self.parameters.shape, dtype)
        parts = self.parameters.views(w)
        for name in "AB":
            shape = parts[name].shape
            parts[name][...] = rng.normal(scale=(2 / shape[0]) ** 0.5, size=shape)
        return w

    def encode(self, y: Any, classes: Any, dtype: Any) -> Any:
        return np.searchsorted(classes, y)

    def forward(self, w: Any, X: Any) -> Any:
        p = self.parameters.views(w)
        hidden = np.maximum(X @ p["A"] + p["a"], 0)
        return hidden, hidden @ p["B"] + p["b"]

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Any) -> float:
        p, to = self.parameters.views(w), self.parameters.views(out)
        hidden, raw = self.forward(w, rows.X)
        slope = np.exp(raw - raw.max(axis=1, keepdims=True))
        slope /= slope.sum(axis=1, keepdims=True)
        at = np.arange(len(slope)), rows.y
        losses = -np.log(np.maximum(slope[at], np.finfo(slope.dtype).tiny))
        slope[at] -= 1
        below = (slope @ p["B"].T) * (hidden > 0)
        to["B"] += hidden.T @ slope
        to["b"] += slope.sum(axis=0)
        to["A"] += rows.X.T @ below
        to["a"] += below.sum(axis=0)
        return float(losses.sum())

    def identity(self) -> dict[str, Any]:
        return {"model": "Network", "sizes": list(self.sizes)}


class NetworkClassifier(BaseClassifier, BaseSteps):
    """Classifier with one hidden layer, trained by plain SGD in one pass over the rows."""

    def __init__(
        self,
        n_hidden: int = 32,
        *,
        learning_rate: float = 0.1,
        batch_size: int = 8,
        policy: Any = "local",
        run: Run | None = None,
        random_state: int = 0,
        optimizer: Any = "sgd",
        max_iter: int = 1,
        tol: float | None = None,
        alpha: float = 0.0,
    ) -> None:
        self.n_hidden = n_hidden
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.policy = policy
        self.run = run
        self.random_state = random_state
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.tol = tol
        self.alpha = alpha

    def _model(self, rows: Any, last: Any) -> _Network:
        return _Network(rows.summary.n_features, self.n_hidden, len(rows.classes))

    def _set_parameters(self, w: Any, model: Any, rows: Any) -> None:
        self.model_, self.w_, self.classes_ = model, w, rows.classes

    def accuracy(self, X: Any, y: Any) -> float:
        """Return the share of rows whose largest output is that of their class."""
        _, raw = self.model_.forward(self.w_, X)
        return float((self.classes_[raw.argmax(axis=1)] == y).mean())
