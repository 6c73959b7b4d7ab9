"""Every public estimator raises errors of the package before its fit and without its target."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.utils import get_tags

from daskml_dist.calibration import CalibratedClassifierCV
from daskml_dist.conformal import ConformalClassifier, ConformalRegressor
from daskml_dist.ensemble import BaggingClassifier
from daskml_dist.errors import InvalidDataError, NotFittedError
from daskml_dist.metrics import get_scorer
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.wrappers import ParallelPostFit
from tests.contracts.subjects import public_estimators

ESTIMATORS = public_estimators()
X = np.random.default_rng(0).normal(size=(20, 3))
Y = np.arange(20) % 2

#: Methods that need a fit.
METHODS = {
    "apply",
    "bic",
    "aic",
    "decision_function",
    "decision_path",
    "get_covariance",
    "get_feature_names_out",
    "get_precision",
    "inverse_transform",
    "perplexity",
    "predict",
    "predict_log_proba",
    "predict_proba",
    "recommend",
    "sample",
    "save",
    "score",
    "score_samples",
    "staged_decision_function",
    "staged_predict",
    "staged_predict_proba",
    "to_sklearn",
    "transform",
}
#: Stateless estimators, which need no fit.
STATELESS = {"FeatureHasher", "HashingVectorizer", "NamespaceHasher"}
CASES = [
    (name, method)
    for name, model in ESTIMATORS.items()
    if name not in STATELESS
    for method in sorted(METHODS)
    # Some have a method only with the right settings, or after a fit.
    if callable(getattr(model, method, None))
    # A vectorizer can be exported without terms, and its error names the accepted documents.
    and not (method == "to_sklearn" and "Vectorizer" in name)
]


def _arguments(method: Any, path: Any) -> list[Any]:
    """Return one value for each required argument."""
    arguments = {"y": Y, "path": path}
    parameters = inspect.signature(method).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    return [arguments.get(p.name, X) for p in needed]


def _called(method: Any, arguments: list[Any]) -> None:
    found = method(*arguments)
    if inspect.isgenerator(found):
        next(found)


#: Estimators that cannot be constructed here.
MISSING = [
    pytest.param(name, "predict", marks=pytest.mark.skip(reason="PyTorch is not installed"))
    for name in ("TorchClassifier", "TorchRegressor")
    if name not in ESTIMATORS
]


@pytest.mark.parametrize(("name", "method"), [*CASES, *MISSING])
def test_methods_before_the_fit_raise_not_fitted(name: str, method: str, tmp_path: Any) -> None:
    if method == "save":
        pytest.importorskip("skops", reason="skops is not installed")
    call = getattr(clone(ESTIMATORS[name]), method)
    with pytest.raises(NotFittedError, match="not fitted"):
        _called(call, _arguments(call, tmp_path / "model.skops"))


def _needs_target(model: Any) -> bool:
    required = get_tags(model).target_tags.required
    return bool(required or is_classifier(model) or is_regressor(model))


@pytest.mark.parametrize("collect", [np.asarray, da.from_array], ids=["in memory", "Dask"])
@pytest.mark.parametrize("name", [name for name in ESTIMATORS if _needs_target(ESTIMATORS[name])])
def test_a_fit_without_its_target_is_refused(name: str, collect: Any) -> None:
    model = clone(ESTIMATORS[name])
    if name.startswith("Torch"):
        torch = pytest.importorskip("torch")
        model.set_params(module=torch.nn.Linear, module__in_features=3, module__out_features=1)
    with pytest.raises(InvalidDataError, match="requires y"):
        model.fit(collect(X))


@pytest.mark.parametrize("collect", [np.asarray, da.from_array], ids=["in memory", "Dask"])
@pytest.mark.parametrize(
    "kind",
    [
        CalibratedClassifierCV,
        ConformalClassifier,
        ConformalRegressor,
        ParallelPostFit,
        partial(BaggingClassifier, n_estimators=2),
    ],
)
def test_a_frozen_estimator_that_is_not_fitted_is_refused(kind: Any, collect: Any) -> None:
    with pytest.raises(NotFittedError, match="not fitted"):
        kind(FrozenEstimator(GaussianNB())).fit(collect(X), collect(Y)).predict(collect(X))


@pytest.mark.parametrize("collect", [np.asarray, da.from_array], ids=["in memory", "Dask"])
@pytest.mark.parametrize("name", ["accuracy", "neg_log_loss"])
def test_scores_of_a_classifier_that_is_not_fitted_are_refused(name: str, collect: Any) -> None:
    with pytest.raises(NotFittedError, match="not fitted"):
        get_scorer(name)(GaussianNB(), collect(X), collect(Y))
