"""Models for fits with injected faults: a linear model, and networks."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import dask.array as da
import numpy as np

from benchmarks._common import logistic_rows
from benchmarks._strikes import WORKERS
from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.neural_network import MLPClassifier, TorchClassifier

__all__ = ["LINEAR", "ROWS", "Subject", "networks"]

ROWS, FEATURES, BATCH = 6_000, 8, 32


@dataclass(frozen=True)
class Subject:
    """A model and its rows.

    Parameters
    ----------
    name : str
    rows : callable
        Function that returns X and y.
    make : callable
        Function that returns the estimator, given keywords of its constructor.
    batch : int
        The `batch_size` that gives 32 rows per lane.
    in_order : bool
        Whether sums are made in the order of the lanes: in networks rounding errors grow.
    """

    name: str
    rows: Callable[[], tuple[Any, Any]]
    make: Callable[..., Any]
    batch: int
    in_order: bool = False

    def lazy(self) -> tuple[Any, Any]:
        """Return the rows as Dask arrays."""
        X, y = self.rows()
        whole = (-1,) * (X.ndim - 1)
        return (
            da.from_array(X, chunks=(ROWS // 10, *whole)),
            da.from_array(y, chunks=ROWS // 10),
        )

    def fit(self, X: Any, y: Any, policy: Any, passes: int, *callbacks: Any) -> Any:
        """Return a fit with a number of passes."""
        return self.make(
            policy=policy,
            batch_size=self.batch,
            tol=None,
            max_iter=passes,
            random_state=0,
            run=Run(n_lanes=WORKERS, deterministic=self.in_order),
            callbacks=list(callbacks),
        ).fit(X, y)

    @staticmethod
    def weights(model: Any) -> Any:
        """Return all parameters of a fitted model."""
        return model._state.w


LINEAR = Subject("linear", lambda: logistic_rows(ROWS, FEATURES, "float64"), SGDClassifier, BATCH)


def networks() -> list[Subject]:
    """Return a multi-layer perceptron, and a convolutional network if PyTorch is installed."""
    found = [
        Subject(
            "MLP",
            lambda: logistic_rows(ROWS, FEATURES),
            lambda **params: MLPClassifier((64,), **params),
            BATCH * WORKERS,
            True,
        )
    ]
    if importlib.util.find_spec("torch"):
        found.append(
            Subject(
                "CNN",
                _images,
                lambda **params: TorchClassifier(_net(), **params),
                BATCH * WORKERS,
                True,
            )
        )
    return found


def _images() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 120, size=(ROWS, 8, 8), dtype=np.uint8), rng.integers(3, size=ROWS)
    for label, at in enumerate([(0, 0), (0, 4), (4, 0)]):
        X[y == label, at[0] : at[0] + 4, at[1] : at[1] + 4] += 60
    return X, y


@cache
def _net() -> Any:
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 8, 3, bias=False)
            self.norm = nn.BatchNorm2d(8)
            self.drop = nn.Dropout(0.2)
            self.out = nn.Linear(8 * 36, 3)

        def forward(self, x: Any) -> Any:
            x = x.float() / 255
            x = self.norm(self.conv(x.reshape(-1, 1, 8, 8))).relu()
            return self.out(self.drop(x.flatten(1)))

    return Net
