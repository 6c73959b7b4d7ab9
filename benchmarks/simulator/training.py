"""Real gradient steps inside the simulator: how many more steps staleness requires."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.losses import LogLoss

__all__ = ["LogisticRun", "Problem"]


@dataclass(frozen=True)
class Problem:
    """Logistic regression whose rows are distributed among the workers.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features)
    y : ndarray of shape (n_rows,)
        Labels -1 and +1.
    excess, target : float
        Distance from the minimum, and the mean loss, at which a run ends.
    """

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    excess: float
    target: float

    @classmethod
    def make(cls, n_rows: int, n_features: int, excess: float) -> Problem:
        """Draw correlated features of falling scale; the target is `excess` above the minimum."""
        rng = np.random.default_rng(0)
        scales = np.linspace(1.0, 0.2, n_features)
        X = rng.normal(size=(n_rows, n_features)) * scales
        raw = X @ (rng.normal(size=n_features) / scales) * 0.3
        y = np.where(raw + rng.logistic(size=n_rows) > 0, 1.0, -1.0)
        return cls(X, y, excess, _minimum(X, y) * (1 + excess))


def _minimum(X: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-8, max_iter=1000).fit(X, y)
    return float(_loss(y, X @ model.coef_[0][:, None])[0].mean())


def _loss(
    y: NDArray[np.float64], raw: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the losses and their slopes; each column of `raw` is a separate model."""
    losses, slopes = LogLoss().value_and_gradient(np.repeat(y, raw.shape[1]), raw.ravel())
    return losses.reshape(raw.shape), slopes.reshape(raw.shape)


class LogisticRun:
    """Training at several learning rates together; the order of events is the same for all.

    Parameters
    ----------
    problem : Problem
    workers : int
    rates : sequence of float
        Learning rates for the mean of one push.
    batch : int or None
        Number of rows of a gradient, drawn at random; None: all rows of the worker.
    seed : int
    """

    def __init__(
        self,
        problem: Problem,
        workers: int,
        rates: list[float],
        batch: int | None = None,
        seed: int = 0,
    ) -> None:
        self.is_over = False
        #: The learning rate that reached the target first, pushes per worker until then, and the
        #: time.
        self.reached: tuple[float, float, float] | None = None
        self._problem = problem
        self._rates = np.array(rates)
        self._rngs = [np.random.default_rng([seed, i]) for i in range(workers)]
        self._rows = np.array_split(np.arange(len(problem.y)), workers)
        self._batch = batch
        self._w = np.zeros((problem.X.shape[1], len(rates)))
        self._pushes = 0

    def pull(self) -> NDArray[np.float64]:
        """Return a copy of the parameters of all rates."""
        return self._w.copy()

    def gradient(self, worker: int, copy: Any) -> NDArray[np.float64]:
        """Return the mean gradient of a batch of the worker's rows, at each rate's parameters."""
        at = self._rows[worker]
        if self._batch is not None:
            at = at[self._rngs[worker].integers(len(at), size=self._batch)]
        X, y = self._problem.X[at], self._problem.y[at]
        _, g = _loss(y, X @ copy)
        return np.asarray(X.T @ g) / len(at)

    def apply(self, gradients: list[Any], now: float) -> None:
        """Step each rate's parameters; check the loss each time all could have pushed once."""
        self._w -= self._rates * (sum(gradients) / len(gradients))
        workers, before = len(self._rngs), self._pushes
        self._pushes += len(gradients)
        if self._pushes // workers > before // workers:
            self._look(now)

    def _look(self, now: float) -> None:
        losses, _ = _loss(self._problem.y, self._problem.X @ self._w)
        met = np.flatnonzero(losses.mean(axis=0) <= self._problem.target)
        if len(met):
            self.is_over = True
            pushes = self._pushes / len(self._rngs)
            self.reached = float(self._rates[met[-1]]), pushes, now
