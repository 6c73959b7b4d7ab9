"""Formats of fitted estimators: which estimator supports which, and why some do not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from daskml_dist import (
    conformal,
    ensemble,
    feature_extraction,
    linear_model,
    model_selection,
    preprocessing,
    wrappers,
)
from daskml_dist.recommender import (
    ALS,
    DeepFMClassifier,
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    FieldAwareFMClassifier,
    MatrixFactorization,
    TwoTower,
    WideAndDeepClassifier,
)
from daskml_dist.tree import DecisionTreeClassifier, DecisionTreeRegressor
from tests.inference.test_to_sklearn import CLASSES, MODELS, OTHERS, X, Y, _public, fitted

__all__ = ["NO_ONNX", "NO_TENSORS", "REST", "SUBJECTS", "firsts", "found", "table", "tried"]

_RATINGS = pd.DataFrame({"user": list("aabb"), "item": list("xyxz"), "rating": [1.0, 2, 3, 4]})
_FEW: dict[str, Any] = {"n_estimators": 2, "max_depth": 3, "random_state": 0}
_FRAME = pd.DataFrame({"job": list("abca"), "size": pd.Categorical(list("xyxy"))})
_QUERIES = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])]).assign(
    qid=np.arange(len(X)) // 8
)
_WORDS = [{"user": "anna", "page": "a b"}, {"user": "bob", "page": "c"}]
#: Public estimators that the tests of twins do not fit, with rows and targets.
REST: dict[str, tuple[Any, Any, Any]] = {
    "ALS": (ALS(2, max_iter=2, random_state=0), _RATINGS, None),
    "MatrixFactorization": (MatrixFactorization(2, max_iter=2, random_state=0), _RATINGS, None),
    "FactorizationMachineClassifier": (FactorizationMachineClassifier(2), X, CLASSES["2"]),
    "FactorizationMachineRegressor": (FactorizationMachineRegressor(2), X, Y),
    "DeepFMClassifier": (DeepFMClassifier(2), X, CLASSES["2"]),
    "FieldAwareFMClassifier": (FieldAwareFMClassifier(2), X, CLASSES["2"]),
    "TwoTower": (TwoTower(2, max_iter=2, random_state=0), _RATINGS, None),
    "WideAndDeepClassifier": (WideAndDeepClassifier(2), X, CLASSES["2"]),
    "DecisionTreeClassifier": (DecisionTreeClassifier(max_depth=3), X, CLASSES["3"]),
    "DecisionTreeRegressor": (DecisionTreeRegressor(max_depth=3), X, Y),
    "ExtraTreesClassifier": (ensemble.ExtraTreesClassifier(**_FEW), X, CLASSES["3"]),
    "ExtraTreesRegressor": (ensemble.ExtraTreesRegressor(**_FEW), X, Y),
    "RandomForestClassifier": (ensemble.RandomForestClassifier(**_FEW), X, CLASSES["3"]),
    "RandomForestRegressor": (ensemble.RandomForestRegressor(**_FEW), X, Y),
    "HistGradientBoostingRanker": (
        ensemble.HistGradientBoostingRanker(max_iter=3), _QUERIES, np.arange(len(X)) % 3
    ),
    "LabelEncoder": (preprocessing.LabelEncoder(), ["b", "a"], None),
    "NamespaceHasher": (feature_extraction.NamespaceHasher(2**6), _WORDS, None),
    "FieldHasher": (feature_extraction.FieldHasher(), _FRAME, None),
    "Categorizer": (preprocessing.Categorizer(), _FRAME, None),
    "DummyEncoder": (preprocessing.DummyEncoder(), _FRAME[["size"]], None),
    "BlockwiseVotingClassifier": (
        wrappers.BlockwiseVotingClassifier(linear_model.RidgeClassifier()), X, CLASSES["3"]
    ),
    "BlockwiseVotingRegressor": (wrappers.BlockwiseVotingRegressor(linear_model.Ridge()), X, Y),
    "AdaptiveConformalInference": (
        conformal.AdaptiveConformalInference(linear_model.SGDRegressor(max_iter=2)), X, Y
    ),
    "ConformalClassifier": (
        conformal.ConformalClassifier(linear_model.LogisticRegression()), X, CLASSES["3"]
    ),
    "ConformalRegressor": (conformal.ConformalRegressor(linear_model.Ridge(), cv=3), X, Y),
    "ConformalizedQuantileRegressor": (
        conformal.ConformalizedQuantileRegressor(linear_model.SGDRegressor("quantile", max_iter=2)),
        X, Y,
    ),
    "GridSearchCV": (
        model_selection.GridSearchCV(linear_model.Ridge(), {"alpha": [0.1, 1.0]}, cv=2), X, Y
    ),
    "RandomizedSearchCV": (
        model_selection.RandomizedSearchCV(
            linear_model.Ridge(), {"alpha": [0.1, 1.0]}, n_iter=2, cv=2, random_state=0
        ), X, Y,
    ),
}  # fmt: skip
SUBJECTS = [*MODELS, *OTHERS, *REST]

#: Tested separately, if PyTorch is installed: they export ONNX by `export`, not by `to_onnx`.
TORCH = {"TorchClassifier", "TorchRegressor"}
#: Wrappers, whose wrapped estimators may be from any package.
WRAPPERS = tuple(wrappers.__all__)
_PARTS = "hold objects of scikit-learn's own"
_SETTINGS = "with some settings"
#: Reasons why classes have no .safetensors; "with some settings": other settings have it.
NO_TENSORS: Mapping[str, str] = {
    **dict.fromkeys(
        ("CalibratedClassifierCV", "ColumnTransformer", "GridSearchCV", "HalvingGridSearchCV",
         "HalvingRandomSearchCV", "HyperbandSearchCV", "IncrementalSearchCV", "RandomizedSearchCV",
         "StackingClassifier", "StackingRegressor", "TfidfVectorizer", "VotingClassifier",
         "VotingRegressor"),
        _PARTS,
    ),
    **dict.fromkeys(("KBinsDiscretizer", "SimpleImputer", *WRAPPERS), _SETTINGS),
}  # fmt: skip
#: Reasons why classes have no ONNX.
NO_ONNX: Mapping[str, str] = {
    **dict.fromkeys(
        ("ALS", "AdaptiveConformalInference", "BlockwiseVotingClassifier",
         "BlockwiseVotingRegressor", "Categorizer", "ConformalClassifier", "ConformalRegressor",
         "ConformalizedQuantileRegressor",
         "DeepFMClassifier", "DummyEncoder", "FactorizationMachineClassifier",
         "FactorizationMachineRegressor", "FieldAwareFMClassifier", "FieldHasher",
         "HistGradientBoostingRanker", "MatrixFactorization", "NamespaceHasher", "TwoTower",
         "WideAndDeepClassifier", *TORCH),
        "have no twin",
    ),
    **dict.fromkeys(
        ("BisectingKMeans", "CountVectorizer", "FeatureHasher", "HalvingGridSearchCV",
         "HalvingRandomSearchCV", "HashingVectorizer", "HyperbandSearchCV", "IncrementalSearchCV",
         "LabelEncoder", "LatentDirichletAllocation", "NMF", "RandomizedSearchCV",
         "TfidfVectorizer"),
        "skl2onnx has none",
    ),
    **dict.fromkeys(
        ("Incremental", "KBinsDiscretizer", "ParallelPostFit", "QuantileTransformer",
         "SimpleImputer", "VotingClassifier"),
        _SETTINGS,
    ),
}  # fmt: skip


@cache
def found(name: str) -> tuple[Any, Any]:
    """Return a fitted subject and its rows."""
    if name not in REST:
        return fitted(name)
    model, rows, y = REST[name]
    estimator = clone(model).fit(rows) if y is None else clone(model).fit(rows, y)
    # Predictions do not need the query of each row.
    return estimator, rows.drop(columns="qid") if rows is _QUERIES else rows


def firsts() -> list[Any]:
    """Return the first subject of each class; the others are marked slow."""
    known_kinds: set[type] = set()
    cases = []
    for name in SUBJECTS:
        kind = type(_unfitted(name))
        cases.append(pytest.param(name, marks=[pytest.mark.slow] if kind in known_kinds else []))
        known_kinds.add(kind)
    return cases


def _unfitted(name: str) -> Any:
    return MODELS[name].model if name in MODELS else ({**OTHERS, **REST}[name])[0]


def tried() -> set[str]:
    """Return the names of the classes of all subjects."""
    models = [s.model for s in MODELS.values()] + [
        m for m, *_ in [*OTHERS.values(), *REST.values()]
    ]
    return {type(model).__name__ for model in models} | TORCH


def table() -> list[str]:
    """Return the lines of the page's table: subpackages, with classes that lack a format."""
    subpackages: dict[str, set[str]] = {}
    for name, kind in _public().items():
        subpackages.setdefault(kind.__module__.split(".")[1], set()).add(name)
    return [
        f"| `{subpackage}` | {_cell(names, dict.fromkeys(TORCH, _SETTINGS))} | "
        f"{_cell(names, NO_TENSORS)} | {_cell(names, NO_ONNX)} |"
        for subpackage, names in sorted(subpackages.items())
    ]


def _cell(names: set[str], missing: Mapping[str, str]) -> str:
    never = sorted(name for name in names if missing.get(name, _SETTINGS) != _SETTINGS)
    partly = sorted(name for name in names if missing.get(name) == _SETTINGS)
    words = "none" if len(never) == len(names) else "all"
    if never and words == "all":
        words += f" but {', '.join(f'`{name}`' for name in never)}"
    if partly:
        words += f"; in part {', '.join(f'`{name}`' for name in partly)}"
    return words
