"""Subjects: every public estimator, transformer and metric, found automatically."""

from __future__ import annotations

import importlib.util
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

from sklearn.base import is_classifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import has_fit_parameter

import daskml_dist
from daskml_dist import compose, linear_model, preprocessing
from tests.contracts.inputs import FEATURES
from tests.contracts.results import (
    UserInput,
    estimator_results,
    metric_results,
    plainly,
    transformer_results,
)
from tests.contracts.settings import ELSEWHERE, SETTINGS, TIGHT, Setting

__all__ = ["SUBJECTS", "Subject", "public_estimators", "public_names"]


@dataclass(frozen=True, eq=False)
class Subject:
    """Public object under test, in one setting.

    Parameters
    ----------
    name : str
    setting : Setting
    results : callable
        From a user's input, and parameters to set, to results by name.
    twin_results : callable or None
        The same for scikit-learn's equivalent, for rows in memory.
    targets : tuple of str
        Kinds of targets.
    weighted : bool
        Whether it accepts weights.
    model : estimator or None
        Unfitted estimator.
    columns : callable
        From the number of classes to the columns of X.
    is_metric : bool
    """

    name: str
    setting: Setting
    results: Callable[..., dict[str, Any]]
    twin_results: Callable[[UserInput], dict[str, Any]] | None
    targets: tuple[str, ...]
    weighted: bool = True
    model: Any = None
    columns: Callable[[int], list[str]] = lambda n_classes: FEATURES
    is_metric: bool = False

    @property
    def is_composed(self) -> bool:
        """Return whether it is composed of other estimators."""
        return hasattr(self.model, "steps")

    @property
    def needs_names(self) -> bool:
        """Return whether columns are selected by name."""
        return "ColumnTransformer" in repr(self.model)


def _public() -> Iterator[tuple[str, str, Any]]:
    """Yield the public classes and functions: (subpackage, name, value)."""
    for subpackage in pkgutil.iter_modules(daskml_dist.__path__):
        if (
            subpackage.name.startswith("_") or subpackage.name == "base"
        ):  # base classes are not subjects
            continue
        module = importlib.import_module(f"daskml_dist.{subpackage.name}")
        for name in getattr(module, "__all__", []):
            value = getattr(module, name)
            if (
                hasattr(value, "transform")
                or hasattr(value, "predict")
                or (subpackage.name == "metrics" and inspect.isfunction(value))
            ):
                yield subpackage.name, name, value


def public_names() -> set[str]:
    """Return the names of all public estimators, transformers and metrics."""
    return {name for _, name, _ in _public()}


def public_estimators() -> dict[str, Any]:
    """Return all public estimators and transformers by name, unfitted, with members if needed.

    Estimators of PyTorch are left out if it is not installed.
    """
    estimators = {}
    has_torch = importlib.util.find_spec("torch") is not None
    for _, name, value in _public():
        if name.startswith("Torch") and not has_torch:
            continue
        if inspect.isclass(value) and hasattr(value, "fit"):
            line = linear_model.LogisticRegression() if "Class" in name else linear_model.Ridge()
            others = {
                "estimator": line,
                "estimators": [("one", line)],
                "param_distributions": {"alpha": [0.1, 1.0]},
                "param_grid": {"alpha": [0.1, 1.0]},
                "transformer": preprocessing.StandardScaler(),
                "transformers": [("one", preprocessing.StandardScaler(), [0])],
            }
            parameters = signature(value).parameters
            needed = {n for n, p in parameters.items() if p.default is p.empty and n in others}
            estimators[name] = value(**{name: others[name] for name in needed})
    return estimators


def _twin(subpackage: str, name: str, setting: Setting) -> Any:
    theirs = getattr(importlib.import_module(f"sklearn.{subpackage}"), name, None)
    if theirs is None or setting.twin is None:
        return None
    if not inspect.isclass(theirs):
        return theirs
    known = inspect.signature(theirs).parameters
    shared = {name: value for name, value in setting.params.items() if name in known}
    return theirs(**shared | setting.twin)


def _estimator(subpackage: str, name: str, make: Any, setting: Setting) -> Subject:
    model = make(**setting.params)
    results = estimator_results if hasattr(model, "predict") else transformer_results
    targets = setting.targets
    if hasattr(model, "predict"):
        targets = tuple(t for t in targets if (t == "classes") == is_classifier(model))
    twin = _twin(subpackage, name, setting)
    return Subject(
        name,
        setting,
        partial(results, model),
        None if twin is None else plainly(results, twin),
        targets,
        has_fit_parameter(model, "sample_weight"),
        model,
    )


def _metric(name: str, metric: Any) -> Subject:
    second = list(inspect.signature(metric).parameters)[1]
    of_numbers = metric.__module__.endswith("regression")
    targets = ("real", "positive") if of_numbers else ("classes",)
    setting = Setting({}, ("normal",), rtol=1e-9, twin_rtol=1e-9)
    columns = {
        "y_pred": lambda n_classes: ["guess"],
        "y_score": lambda n_classes: ["p1"],
        "y_prob": lambda n_classes: [f"p{i}" for i in range(n_classes)],
        "y_proba": lambda n_classes: [f"p{i}" for i in range(n_classes)],
    }[second]
    return Subject(
        name,
        setting,
        partial(metric_results, metric),
        plainly(metric_results, _twin("metrics", name, setting)),
        targets,
        columns=columns,
        is_metric=True,
    )


def _pipelines() -> dict[str, Any]:
    """Return compositions of subjects."""
    scaler, encoder = preprocessing.StandardScaler, preprocessing.OrdinalEncoder
    logistic = linear_model.LogisticRegression(**TIGHT)
    return {
        "scaled LogisticRegression": make_pipeline(scaler(), logistic),
        "scaled LogisticRegression, frames": make_pipeline(scaler(), logistic).set_output(
            transform="pandas"
        ),
        "prepared Ridge": make_pipeline(
            compose.make_column_transformer((scaler(), FEATURES[:2]), remainder="passthrough"),
            linear_model.Ridge(),
        ),
        "prepared Ridge, frames": make_pipeline(
            compose.make_column_transformer((encoder(), FEATURES[:2]), remainder="passthrough"),
            linear_model.Ridge(),
        ).set_output(transform="pandas"),
    }


def _composed(name: str, model: Any) -> Subject:
    targets = ("classes",) if is_classifier(model) else ("real", "positive")
    shapes = ("normal", "counts", "scales")
    return Subject(
        name,
        Setting({}, shapes),
        partial(estimator_results, model),
        None,
        targets,
        weighted=False,
        model=model,
    )


def _found() -> Iterator[tuple[str, Subject]]:
    for subpackage, name, value in _public():
        if name in ELSEWHERE:
            continue
        if subpackage == "metrics":
            yield name, _metric(name, value)
        else:
            for i, setting in enumerate(SETTINGS.get(name, [Setting()])):
                yield f"{name} {i}" if i else name, _estimator(subpackage, name, value, setting)
    for name, model in _pipelines().items():
        yield name, _composed(name, model)


#: All subjects, by name and number of the setting.
SUBJECTS: dict[str, Subject] = dict(_found())
