"""Requests per second for models of several kinds: answered exactly, or in shared calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import joblib
from sklearn import ensemble as their_ensemble
from sklearn import linear_model as their_linear
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from daskml_dist.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.neural_network import MLPClassifier, TorchClassifier
from daskml_dist.serving import serve

__all__ = ["KINDS", "command"]

SIZES = (28, 64, 32, 2)
_NETWORK: dict[str, Any] = {"max_iter": 3, "tol": None, "random_state": 0}


def _net() -> Any:
    from torch import nn

    layers: list[Any] = []
    for n_in, n_out in pairwise(SIZES):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


#: Unfitted models, for 28 features and two classes.
KINDS: dict[str, Callable[[], Any]] = {
    "logistic regression": LogisticRegression,
    "network 28-64-32-2": lambda: MLPClassifier(SIZES[1:-1], **_NETWORK),
    "boosting, 100 trees": lambda: HistGradientBoostingClassifier(random_state=0),
    "forest of 100": lambda: RandomForestClassifier(random_state=0),
    "PyTorch's 28-64-32-2": lambda: TorchClassifier(_net, **_NETWORK),
    "scikit-learn's scaler and logistic regression": lambda: make_pipeline(
        StandardScaler(), their_linear.LogisticRegression()
    ),
    "the same with squares between": lambda: make_pipeline(
        StandardScaler(), PolynomialFeatures(2), their_linear.LogisticRegression(max_iter=500)
    ),
    "scikit-learn's forest of 100": lambda: their_ensemble.RandomForestClassifier(random_state=0),
}
if find_spec("torch") is None:
    del KINDS["PyTorch's 28-64-32-2"]


def command(name: str, X: Any, y: Any, folder: Path, port: int, together: bool) -> list[str]:
    """Return the command that serves a kind of model, fitted to rows, as `m`."""
    path = folder / f"{list(KINDS).index(name)}.joblib"
    if not path.exists():
        joblib.dump(KINDS[name]().fit(X, y), path)
    module = [sys.executable, "-m", "benchmarks._serving_kinds"]
    return [*module, str(path), str(port), *(["together"] if together else [])]


if __name__ == "__main__":
    serve(
        {"m": lambda: joblib.load(sys.argv[1])}, port=int(sys.argv[2]), together=len(sys.argv) > 3
    )
