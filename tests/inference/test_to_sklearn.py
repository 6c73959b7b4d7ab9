"""Twins (scikit-learn models) predict like their estimators, without this package.

Every public estimator is found automatically; one without a twin must raise.
"""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import warnings
from functools import cache
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import BaseEstimator, clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import VotingRegressor
from sklearn.linear_model import LogisticRegression as TheirLogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import daskml_dist
from daskml_dist import (
    cluster,
    decomposition,
    ensemble,
    feature_extraction,
    linear_model,
    model_selection,
    preprocessing,
    wrappers,
)
from daskml_dist.calibration import CalibratedClassifierCV
from daskml_dist.compose import Blockwise
from daskml_dist.errors import ExportError, NotFittedError
from daskml_dist.inference import to_sklearn
from daskml_dist.losses import LOSSES, Huber, LogLoss
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.neural_network import MLPClassifier, MLPRegressor
from tests.contracts.inputs import FEATURES, SHAPES, TARGETS, make_table
from tests.contracts.subjects import SUBJECTS
from tests.inference.twins import assert_alone, assert_answers

#: Tolerance of results of iterative optimisation.
RTOL = {"NMF": 2e-3}
MODELS = {name: s for name, s in SUBJECTS.items() if not s.is_metric}
#: Public estimators without a scikit-learn equivalent.
ALONE = {
    "ALS", "AdaptiveConformalInference", "BlockwiseVotingClassifier", "BlockwiseVotingRegressor",
    "Categorizer", "ConformalClassifier", "ConformalRegressor", "ConformalizedQuantileRegressor",
    "DummyEncoder",
    "DeepFMClassifier", "FactorizationMachineClassifier", "FactorizationMachineRegressor",
    "FieldAwareFMClassifier", "FieldHasher", "MatrixFactorization", "NamespaceHasher",
    "TorchClassifier", "TorchRegressor", "TwoTower", "WideAndDeepClassifier",
}  # fmt: skip


def _table(subject: Any) -> tuple[Any, Any]:
    """Return rows that a subject accepts; classification has three classes."""
    shape, kind = subject.setting.shapes[0], subject.targets[-1]
    target = next(name for name, t in TARGETS.items() if t.kind == kind and t.n_classes != 2)
    dtype = "object" if SHAPES[shape].kind == "words" else "float64"
    table = make_table(shape, dtype, target, "none", 90, 0)
    return table[FEATURES], table["y"]


@cache
def fitted(name: str) -> tuple[Any, Any]:
    """Return a fitted model, or one of the `OTHERS`, and its rows."""
    if name in OTHERS:
        model, rows, y = OTHERS[name]
        return (clone(model).fit(rows, y) if y is not None else clone(model).fit(rows)), rows
    X, y = _table(MODELS[name])
    return clone(MODELS[name].model).fit(X, y), X


@pytest.mark.filterwarnings("ignore:n_quantiles")
@pytest.mark.parametrize("name", MODELS)
def test_twins_predict_like_the_estimators(name: str) -> None:
    model, X = fitted(name)
    twin = to_sklearn(model) if MODELS[name].is_composed else model.to_sklearn()
    assert type(twin).__module__.startswith("sklearn.")
    # scikit-learn's likelihood of whitened rows differs: it scales components twice.
    aside = ("score_samples",) if getattr(model, "whiten", False) else ()
    assert_answers(model, assert_alone(twin), X, RTOL.get(name.split()[0], 1e-10), aside)


X = np.random.default_rng(0).normal(size=(60, 4))
Y = X[:, 0] - X[:, 1] ** 2
TEXTS = pd.Series(["a green fox", "the fox sleeps", "green green", "of the fox"], dtype=object)
CLASSES = {"2": Y > 0, "3": np.digitize(Y, [-1, 0]), "several": X[:, :3] > 0}
RIDGES = linear_model.Ridge(), {"alpha": [0.1, 1.0]}
SGD = {"learning_rate": 0.1, "max_iter": 3, "tol": None, "random_state": 0}
MLP = {"hidden_layer_sizes": (3,), "max_iter": 2, "solver": "lbfgs", "random_state": 0}


def _others() -> dict[str, tuple[Any, Any, Any]]:
    """Return estimators and settings that the contracts do not fit, with rows and targets."""
    dicts = [{"a": 1.0}, {"b": 2.0, "c": 1.0}]
    tfidf = feature_extraction.TfidfVectorizer()
    lines, bayes = [("a", linear_model.Ridge())], [("a", GaussianNB())]
    found: dict[str, tuple[Any, Any, Any]] = {
        "BisectingKMeans": (cluster.BisectingKMeans(5, random_state=0), X, None),
        "BisectingKMeans of one": (cluster.BisectingKMeans(1), X, None),
        "Blockwise": (Blockwise(preprocessing.PolynomialFeatures()), X, None),
        "LatentDirichletAllocation": (
            decomposition.LatentDirichletAllocation(2, max_iter=2, random_state=0), abs(X), None
        ),
        "CountVectorizer": (feature_extraction.CountVectorizer(), TEXTS, None),
        "TfidfVectorizer": (tfidf, TEXTS, None),
        "HashingVectorizer": (feature_extraction.HashingVectorizer(n_features=16), TEXTS, None),
        "FeatureHasher": (feature_extraction.FeatureHasher(n_features=8), dicts, None),
        "pipeline of texts": (
            make_pipeline(tfidf, linear_model.LogisticRegression()), TEXTS, [0, 1, 0, 1]
        ),
        "MLPRegressor of several": (MLPRegressor(**MLP), X, X[:, :2]),
        "LinearRegression of several": (linear_model.LinearRegression(), X, X[:, :2]),
        "search": (GridSearchCV(linear_model.Ridge(), {"alpha": [0.1, 1.0]}, cv=2), X, Y),
        "halving": (model_selection.HalvingGridSearchCV(*RIDGES, cv=2), X, Y),
        "halving at random": (
            model_selection.HalvingRandomSearchCV(*RIDGES, n_candidates=2, cv=2, random_state=0),
            X, Y,
        ),
        "hyperband": (
            model_selection.HyperbandSearchCV(
                linear_model.SGDRegressor(**SGD | {"max_iter": 1000}), {"alpha": [0.01, 0.1]},
                max_iter=2, cv=2, random_state=0,
            ), X, Y,
        ),
        "search by passes": (
            model_selection.IncrementalSearchCV(
                linear_model.SGDRegressor(**SGD | {"max_iter": 1000}), {"alpha": [0.01, 0.1]},
                n_initial_parameters=2, max_iter=2, cv=2, random_state=0,
            ), X, Y,
        ),
        "block by block": (
            wrappers.Incremental(linear_model.SGDRegressor(**SGD | {"max_iter": 1000})), X, Y
        ),
        "on one worker": (wrappers.ParallelPostFit(linear_model.Ridge()), X, Y),
        "ElasticNetCV": (linear_model.ElasticNetCV(alphas=[0.1, 0.2], cv=2), X, Y),
        "LassoCV": (linear_model.LassoCV(alphas=[0.1, 0.2], cv=2), X, Y),
        "LogisticRegressionCV": (
            linear_model.LogisticRegressionCV(Cs=[0.1, 1.0], cv=2), X, CLASSES["3"]
        ),
        "bag": (ensemble.BaggingRegressor(lines[0][1], 2, random_state=0), X, Y),
        "bag of classes": (
            ensemble.BaggingClassifier(bayes[0][1], 2, random_state=0), X, CLASSES["3"]
        ),
        "calibrated": (CalibratedClassifierCV(bayes[0][1], cv=2), X, CLASSES["3"]),
        "stack": (ensemble.StackingRegressor(lines, linear_model.Ridge(), cv=2), X, Y),
        "stack of classes": (ensemble.StackingClassifier(bayes, cv=2), X, CLASSES["2"]),
        "vote": (VotingRegressor([("a", linear_model.Ridge())]), X, Y),
        "columns": (
            make_pipeline(
                make_column_transformer((preprocessing.StandardScaler(), [0, 1])),
                linear_model.Ridge(),
            ), X, Y,
        ),
    }  # fmt: skip
    for of, y in CLASSES.items():
        found[f"MLPClassifier of {of}"] = (MLPClassifier(**MLP), X, y.astype(int))
        for loss in (
            ("log_loss", "modified_huber", "hinge", "perceptron") if of != "several" else ()
        ):
            found[f"SGDClassifier, {loss} of {of}"] = linear_model.SGDClassifier(loss, **SGD), X, y
            found[f"SGDClassifier, object of {loss} of {of}"] = (
                linear_model.SGDClassifier(LOSSES[loss](), **SGD), X, y
            )  # fmt: skip
    return found


OTHERS = _others()


@pytest.mark.filterwarnings("ignore:.*failed to converge", "ignore:divide by zero")
@pytest.mark.parametrize("name", OTHERS)
def test_twins_of_other_settings_predict_like_the_estimators(name: str) -> None:
    model, rows = fitted(name)
    # Tokenised documents are lists.
    aside = ("inverse_transform",) if "Vectorizer" in name else ()
    assert_answers(model, assert_alone(to_sklearn(model)), rows, aside=aside)


class Backwards(LogLoss):
    """Custom probabilities."""

    def predict_proba(self, raw: Any) -> Any:
        return super().predict_proba(raw)[:, ::-1]


@pytest.mark.parametrize("of", ["2", "3"])
def test_twins_have_the_methods_of_a_loss_that_is_an_object(of: str) -> None:
    def twin(loss: Any) -> Any:
        return linear_model.SGDClassifier(loss, **SGD).fit(X, CLASSES[of]).to_sklearn()

    assert hasattr(twin(LogLoss()), "predict_proba")
    assert not hasattr(twin(Backwards()), "predict_proba")  # scikit-learn has no equivalent
    assert linear_model.SGDRegressor(Huber(0.3), **SGD).fit(X, Y).to_sklearn().epsilon == 0.3


@pytest.mark.parametrize("kind", [cluster.KMeans, cluster.MiniBatchKMeans, cluster.BisectingKMeans])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_twins_of_clusterers_accept_the_dtype_of_the_fit(kind: Any, dtype: str) -> None:
    rows = X.astype(dtype)
    for fitted_to in (rows, pd.DataFrame(rows)):
        model = kind(3, random_state=0).fit(fitted_to)
        assert_array_equal(model.to_sklearn().predict(fitted_to), model.predict(fitted_to))


def test_labels_of_twins() -> None:
    model = preprocessing.LabelEncoder().fit(da.from_array(np.array(["b", "a"]), chunks=1))
    twin = assert_alone(model.to_sklearn())
    assert_array_equal(twin.transform(["b", "a"]), [1, 0])


def _public() -> dict[str, Any]:
    """Return public classes with a fit, by name."""
    found = {}
    for subpackage in pkgutil.iter_modules(daskml_dist.__path__):
        if not subpackage.name.startswith("_") and subpackage.name != "base":
            module = importlib.import_module(f"daskml_dist.{subpackage.name}")
            members = {name: getattr(module, name) for name in getattr(module, "__all__", ())}
            found |= {
                name: value for name, value in members.items()
                if isinstance(value, type) and issubclass(value, BaseEstimator)
            }  # fmt: skip
    return found


def test_every_public_estimator_is_exported_or_known_to_have_no_twin() -> None:
    tried = {type(s.model).__name__ for s in MODELS.values()}
    tried |= {type(model).__name__ for model, *_ in OTHERS.values()}
    tried |= {"GridSearchCV", "LabelEncoder", "RandomizedSearchCV", "TfidfTransformer"}
    of_trees = {name for name in _public() if "Tree" in name or "Forest" in name or "Hist" in name}
    assert set(_public()) - tried - of_trees == ALONE
    assert all(hasattr(kind, "to_sklearn") for kind in _public().values())


def test_estimators_without_a_twin_raise() -> None:
    with pytest.raises(
        ExportError, match=r"scikit-learn has no NamespaceHasher.*Export the other parts"
    ):
        feature_extraction.NamespaceHasher().to_sklearn()


def test_unfitted_estimators_raise() -> None:
    with pytest.raises(NotFittedError, match="nothing to export"):
        linear_model.Ridge().to_sklearn()


def test_custom_classes_are_refused() -> None:
    class Doubled(linear_model.Ridge):
        def predict(self, X: Any) -> Any:
            return 2 * super().predict(X)

    with pytest.raises(ExportError, match="your own class"):
        Doubled().fit(X, Y).to_sklearn()


def test_twins_share_no_arrays_with_the_estimators() -> None:
    model = linear_model.Ridge().fit(X, Y)
    twin = model.to_sklearn()
    twin.coef_[:] = 0
    assert (model.coef_ != 0).all()
    assert type(model.to_sklearn().coef_) is np.ndarray


def test_twins_keep_parameters_and_names_and_can_be_refitted() -> None:
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = preprocessing.StandardScaler(with_mean=False).set_output(transform="pandas").fit(frame)
    twin = model.to_sklearn()
    assert twin.get_params() == model.get_params()
    assert list(twin.transform(frame).columns) == list("abcd")
    fitted = linear_model.LogisticRegression(C=0.3, tol=1e-6).fit(frame, Y > 0).to_sklearn()
    assert fitted.C == 0.3
    assert_array_equal(fitted.feature_names_in_, list("abcd"))
    refitted = clone(fitted).fit(frame, Y > 0)
    np.testing.assert_allclose(refitted.coef_, fitted.coef_, rtol=1e-3)
    assert isinstance(refitted, TheirLogisticRegression)


def test_fits_to_dask_have_twins_too() -> None:
    lazy = da.from_array(X, chunks=(20, 4))
    model = make_pipeline(preprocessing.StandardScaler(), cluster.KMeans(3, random_state=0))
    model.fit(lazy)
    twin = assert_alone(to_sklearn(model))
    assert_array_equal(twin.predict(X), model.predict(lazy).compute())


def test_scikit_learn_steps_of_a_pipeline_are_kept() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = make_pipeline(preprocessing.MinMaxScaler(), TheirLogisticRegression())
        twin = to_sklearn(model.fit(X, Y > 0))
    assert_array_equal(pickle.loads(pickle.dumps(twin)).predict(X), model.predict(X))
