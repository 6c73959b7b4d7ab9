"""Small fits of every public estimator: cheap parameters, and rows that each accepts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.preprocessing import Normalizer

from daskml_dist.linear_model import SGDRegressor
from tests.contracts.subjects import public_estimators
from tests.estimators.test_sklearn_checks import LIKE

__all__ = ["each_base", "rows_of", "small_estimator", "small_estimators"]

#: Parameters that make a fit short; an estimator gets those that it has.
_SHORT: dict[str, Any] = {
    "Cs": 2,
    "alphas": 3,
    "batch_size": 20,
    "cv": 3,
    "hidden_layer_sizes": (3,),
    "max_iter": 5,
    "min_samples_leaf": 2,
    "n_clusters": 2,
    "n_components": 2,
    "n_estimators": 12,  # forests report after every fourth tree
    "n_factors": 2,
    "rank": 2,
    "random_state": 0,
}
#: Parameters of single estimators.
_OWN: dict[str, dict[str, Any]] = {
    "BaggingClassifier": {"n_estimators": 2},
    "BaggingRegressor": {"n_estimators": 2},
    "ConformalizedQuantileRegressor": {"cv": None},
    "HyperbandSearchCV": {"max_iter": 3},
    "IncrementalSearchCV": {"max_iter": 3, "n_initial_parameters": 2},
    "IncrementalPCA": {"batch_size": None},
    "LatentDirichletAllocation": {"max_iter": 3, "batch_size": 128},
    "MiniBatchKMeans": {"tol": 0.0, "max_no_improvement": None},
    "GenericUnivariateSelect": {"mode": "k_best", "param": 2},
    "RidgeCV": {"alphas": [0.1, 1.0]},
    "RidgeClassifierCV": {"alphas": [0.1, 1.0]},
    "SGDClassifier": {"tol": None},
    "SGDRegressor": {"tol": None},
    "SelectKBest": {"k": 2},
    "SelectPercentile": {"percentile": 50},
}
#: Members of meta-estimators that need more than one line.
_MEMBERS: dict[str, dict[str, Any]] = {
    "Blockwise": {"transformer": Normalizer()},
    "HyperbandSearchCV": {
        "estimator": SGDRegressor(random_state=0),
        "param_distributions": {"alpha": [1e-4, 1e-2]},
    },
    "ConformalizedQuantileRegressor": {"estimator": SGDRegressor("quantile", random_state=0)},
    "Incremental": {"estimator": SGDRegressor(random_state=0)},
    "IncrementalSearchCV": {
        "estimator": SGDRegressor(random_state=0),
        "param_distributions": {"alpha": [1e-4, 1e-2]},
    },
}
_N_ROWS = 60
_RNG = np.random.default_rng(0)
#: Counts, which all kinds of estimators accept.
_X: NDArray[np.float64] = _RNG.poisson(3.0, (_N_ROWS, 4)).astype(np.float64)
#: Positive numbers, and whether they are large: targets of regressors and of classifiers.
_NUMBERS = _X @ [1.0, 0.5, 0.25, 0.1] + _RNG.random(_N_ROWS) + 0.5
_LABELS = (_NUMBERS > np.median(_NUMBERS)).astype(np.int64)
_WORDS = np.array(["red", "green", "blue", "brown"])
_RATINGS = pd.DataFrame(
    {
        "user": np.repeat(np.arange(12), 5),
        "item": _RNG.permuted(np.tile(np.arange(8), (12, 1)), axis=1)[:, :5].ravel(),
        "rating": _RNG.integers(1, 6, _N_ROWS).astype(np.float64),
    }
)
_RECOMMENDERS = ("ALS", "MatrixFactorization", "TwoTower")


@cache
def small_estimators() -> dict[str, Any]:
    """Return every public estimator by name, unfitted, with parameters that make its fit short."""
    found = {}
    for name, model in public_estimators().items():
        if name in _MEMBERS:
            model.set_params(**_MEMBERS[name])
        known = model.get_params(deep=False)
        wanted = _SHORT | _OWN.get(name, {})
        found[name] = model.set_params(**{n: v for n, v in wanted.items() if n in known})
        if name.startswith("Torch"):
            import torch

            n_outputs = 2 if "Classifier" in name else 1
            model.set_params(
                module=torch.nn.Linear, module__in_features=4, module__out_features=n_outputs
            )
    return found


def small_estimator(name: str, **params: Any) -> Any:
    """Return a clone of a small estimator, with more parameters set."""
    return clone(small_estimators()[name]).set_params(**params)


def each_base(names: Iterable[str]) -> list[Any]:
    """Return names as parameters of a test: one for each base by default, the others slow."""
    others = LIKE.keys() | {"TorchClassifier"}
    return [
        pytest.param(name, marks=[pytest.mark.slow] if name in others else []) for name in names
    ]


def rows_of(name: str) -> tuple[Any, Any]:
    """Return X and y that an estimator is fitted to; y is None if it uses none."""
    model = small_estimators()[name]
    if name in _RECOMMENDERS:
        return _RATINGS, None
    if name == "LabelEncoder":
        return _WORDS[_LABELS], None
    if "Vectorizer" in name:
        return np.array([" ".join(_WORDS[row.astype(int) % 4]) for row in _X]), None
    if name in ("Categorizer", "DummyEncoder"):
        return pd.DataFrame({"word": pd.Categorical(_WORDS[_LABELS])}), None
    if name == "FieldHasher":
        return pd.DataFrame({"id": _LABELS, "word": _WORDS[_LABELS], "number": _NUMBERS}), None
    if name == "FeatureHasher":
        return [{"a": float(row[0]), "b": float(row[1])} for row in _X], None
    if name == "NamespaceHasher":
        return [{"a": {"b": float(row[0])}, "c": str(row[1])} for row in _X], None
    if name == "TargetEncoder" or hasattr(model, "score_func"):
        return _X, _LABELS
    if name == "HistGradientBoostingRanker":
        return pd.DataFrame(_X, columns=list("abcd")).assign(qid=np.arange(_N_ROWS) // 7), _LABELS
    if not hasattr(model, "predict") or name in ("KMeans", "GaussianMixture"):
        return _X, None
    return _X, _LABELS if is_classifier(model) else _NUMBERS
