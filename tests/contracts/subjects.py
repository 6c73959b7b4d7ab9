"""Subjects: every public estimator, transformer and metric, found by themselves.

`SETTINGS` tells how a subject is set up and how near its results must be; what is not in the table
is tried with its defaults.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import dask
import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.base import clone, is_classifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import has_fit_parameter

import daskml_dist
from daskml_dist import compose, linear_model, metrics, preprocessing
from tests.contracts.compare import plain
from tests.contracts.inputs import FEATURES

__all__ = ["ELSEWHERE", "SETTINGS", "SUBJECTS", "Given", "Setting", "Subject", "public_names"]

NUMBERS = ("normal", "counts", "mostly zero", "scales", "far", "constant column")
#: Where no step of a gradient may go too far.
TAME = ("normal", "mostly zero")
WORDS = ("words", "words missing", "codes")


@dataclass(frozen=True, eq=False)
class Given:
    """What a user passes.

    Parameters
    ----------
    X, y, w : object
        Rows, their targets and weights.
    row : object
        Ids of the rows.
    ordered : bool
        Whether the rows come in the same order each time that they are computed.
    whole : object
        What X, y, w and row are parts of: it is not let go of.
    """

    X: Any
    y: Any
    w: Any
    row: Any
    ordered: bool = True
    whole: Any = None

    def held(self) -> Given:
        """The same in memory, gathered together."""
        parts = [self.X, self.y, self.w, self.row]
        # Dask returns what is no dataframe behind what is one, whatever the order of the arguments.
        for is_frame in (True, False):
            at = [i for i, part in enumerate(parts) if hasattr(part, "expr") is is_frame]
            for i, values in zip(at, dask.compute(*(parts[i] for i in at)), strict=True):
                parts[i] = _joined(values)
        X, y = parts[:2]
        if isinstance(y, str):
            X, parts[1] = X.drop(columns=[y]), X[y]
        return Given(X, *parts[1:])


def _joined(values: Any) -> Any:
    """Blocks of a list as one."""
    if not isinstance(values, list):
        return values
    return sparse.vstack(values) if sparse.issparse(values[0]) else np.concatenate(values)


@dataclass(frozen=True)
class Setting:
    """How a subject is set up and compared.

    Parameters
    ----------
    params : dict
        Of the estimator.
    shapes, targets : tuple of str
        Kinds of data, and kinds of targets.
    rtol : float
        How near results of a collection are to those of the rows in memory.
    twin : dict or None
        What scikit-learn's own is called with beside what it shares; None: not compared.
    twin_rtol : float
        How near results are to scikit-learn's.
    twin_is_weighted : bool
        Whether scikit-learn's own finds the optimum of weighted rows.
    """

    params: dict[str, Any] = field(default_factory=dict)
    shapes: tuple[str, ...] = NUMBERS
    targets: tuple[str, ...] = ("classes", "real", "positive")
    rtol: float = 1e-5
    twin: dict[str, Any] | None = field(default_factory=dict)
    twin_rtol: float = 1e-3
    twin_is_weighted: bool = True

    @property
    def is_exact(self) -> bool:
        """Whether a few rows are enough to compare by."""
        return self.rtol < 1e-4


def _of(shapes: tuple[str, ...] = NUMBERS, **facts: Any) -> Callable[..., Setting]:
    return lambda **params: Setting(params, shapes, **facts)


_TIGHT = {"tol": 1e-9, "max_iter": 2_000}
_FULL_BATCH = {
    "batch_size": None, "optimizer": "sgd", "learning_rate": 0.2, "max_iter": 6, "tol": None,
}  # fmt: skip
_exact, _numbers = _of(rtol=1e-8, twin_rtol=1e-6), _of()
# scikit-learn's solvers stop early where columns differ by orders of magnitude.
_iterative = _of(("normal", "counts", "mostly zero", "constant column"))
_bounded = _of(("normal", "counts", "mostly zero", "constant column"), twin_rtol=1e-2)
_positive = _of(("normal", "mostly zero", "constant column"), targets=("positive",))
_counts = _of(("counts",), rtol=1e-8, twin_rtol=1e-8)
_tame = _of(TAME, rtol=1e-7, twin=None)
_loose = _of(TAME, rtol=1e-3, twin_rtol=1e-2)
_scaled = _of((*NUMBERS, "missing"), rtol=1e-8, twin_rtol=1e-8)
_coded = _of(WORDS, rtol=1e-10, twin_rtol=1e-10)

SETTINGS: dict[str, list[Setting]] = {
    "LinearRegression": [_exact(), _exact(fit_intercept=False), _bounded(positive=True)],
    "Ridge": [_exact(), _exact(alpha=10.0, fit_intercept=False), _bounded(positive=True)],
    "Lasso": [_numbers(alpha=0.05, tol=1e-10)],
    "ElasticNet": [_numbers(alpha=0.05, tol=1e-10), _numbers(alpha=0.1, l1_ratio=0.2, tol=1e-10)],
    "LogisticRegression": [
        _iterative(**_TIGHT),
        _iterative(solver="newton-cholesky", class_weight="balanced", tol=1e-9),
        _iterative(C=0.1, fit_intercept=False, **_TIGHT),
        _of(TAME, twin=None, rtol=1e-3)(penalty="l1", **_TIGHT),
        _of(
            TAME,
            rtol=1e-3,
            twin={"solver": "saga", "max_iter": 5_000, "tol": 1e-7},
            twin_rtol=1e-2,
            twin_is_weighted=False,  # saga ends elsewhere each time, at a larger objective
        )(l1_ratio=1.0, C=0.3, **_TIGHT),
    ],
    "PoissonRegressor": [_positive(**_TIGHT), _positive(solver="newton-cholesky", tol=1e-9)],
    "GammaRegressor": [_positive(**_TIGHT)],
    "TweedieRegressor": [_positive(power=1.5, **_TIGHT), _positive(power=0, **_TIGHT)],
    "HuberRegressor": [_loose(tol=1e-8, max_iter=1_000)],
    "LinearSVC": [_loose(tol=1e-9)],
    "LinearSVR": [_loose(tol=1e-9, loss="squared_epsilon_insensitive")],
    "SGDClassifier": [
        _tame(**_FULL_BATCH),
        _tame(policy="allreduce", class_weight="balanced", n_lanes=3, **_FULL_BATCH),
        _tame(loss="squared_hinge", average=True, **_FULL_BATCH),
        _tame(loss="hinge", penalty="l1", alpha=0.01, **_FULL_BATCH),
    ],
    "SGDRegressor": [
        _tame(**_FULL_BATCH | {"learning_rate": 0.1}),
        _tame(policy="allreduce", n_lanes=3, **_FULL_BATCH | {"learning_rate": 0.1}),
    ],
    "GaussianNB": [_exact()],
    "BernoulliNB": [_exact(), _exact(alpha=0.5, binarize=1.0)],
    "MultinomialNB": [_counts(), _counts(alpha=0.5, fit_prior=False)],
    "StandardScaler": [_scaled(), _scaled(with_mean=False)],
    "MinMaxScaler": [_scaled(), _scaled(feature_range=(-1, 2), clip=True)],
    "MaxAbsScaler": [_scaled()],
    "RobustScaler": [_scaled(), _scaled(unit_variance=True, quantile_range=(10, 90))],
    "OneHotEncoder": [
        _coded(),
        _coded(drop="first"),
        _coded(max_categories=3, sparse_output=False),
    ],
    "OrdinalEncoder": [_coded(), _coded(max_categories=3, encoded_missing_value=-5)],
    "TargetEncoder": [_of(WORDS, rtol=1e-8, twin_rtol=1e-8)()],
    "SimpleImputer": [
        _scaled(),
        _scaled(strategy="median", add_indicator=True),
        _of((*WORDS, "missing"))(strategy="most_frequent"),
    ],
    "TfidfTransformer": [_counts()],
    "ColumnTransformer": [
        _scaled(
            transformers=[
                ("scaled", preprocessing.StandardScaler(), FEATURES[2:]),
                ("kept", "passthrough", [FEATURES[1]]),
            ]
        )
    ],
}  # fmt: skip

#: Public, and no subject by itself or not of a table of numbers or words.
ELSEWHERE = {
    "Blockwise": "takes a transformer that learns nothing",
    "FeatureHasher": "learns nothing, and takes dicts",
    "HashingVectorizer": "learns nothing, and takes documents",
    "NamespaceHasher": "learns nothing, and takes dicts",
}


@dataclass(frozen=True, eq=False)
class Subject:
    """Public thing under test, in one setting.

    Parameters
    ----------
    name : str
    setting : Setting
    results : callable
        From what a user passes, and parameters to set, to results by name.
    twin_results : callable or None
        The same of scikit-learn's own, for rows in memory.
    targets : tuple of str
        Kinds of targets.
    weighted : bool
        Whether it takes weights.
    model : estimator or None
        Unfitted.
    columns : callable
        From the number of classes to the columns of X.
    is_metric : bool
    """

    name: str
    setting: Setting
    results: Callable[..., dict[str, Any]]
    twin_results: Callable[[Given], dict[str, Any]] | None
    targets: tuple[str, ...]
    weighted: bool = True
    model: Any = None
    columns: Callable[[int], list[str]] = lambda n_classes: FEATURES
    is_metric: bool = False

    @property
    def is_composed(self) -> bool:
        """Whether it is put together of others."""
        return hasattr(self.model, "steps")

    @property
    def needs_names(self) -> bool:
        """Whether columns are selected by name."""
        return "ColumnTransformer" in repr(self.model)


# --- results ---------------------------------------------------------------------------------


def _attributes(model: Any) -> dict[str, Any]:
    """Fitted attributes that are numbers, strings or lists of such; none that tell of the way."""
    found = {}
    for name, value in vars(model).items():
        if name.startswith("_") or not name.endswith("_") or name in _OF_THE_WAY:
            continue
        if isinstance(value, np.ndarray | np.generic | float | int | str | list) and not hasattr(
            value, "fit"
        ):
            found[name] = value
    return found


#: Fitted attributes that tell of the way to the result, or that rows in memory alone have.
_OF_THE_WAY = {"n_iter_", "t_", "rank_error_", "outliers_", "dual_gap_"}


def _in_order(values: Any, given: Given) -> Any:
    """Results of rows in the order of their ids; of rows without an order, sorted."""
    [values], [row] = dask.compute(values), dask.compute(given.row)
    if isinstance(values, pd.DataFrame | pd.Series):
        values = plain(values.reset_index(drop=True))
    values = values.toarray() if sparse.issparse(values) else np.asarray(values)
    if given.ordered:
        return values[np.argsort(np.asarray(_joined(row)), kind="stable")]
    return values


def _score_of_predictions(model: Any, rows: Any, y: Any) -> float:
    """What a metric makes of targets and lazy predictions."""
    name = "accuracy_score" if is_classifier(model) else "mean_squared_error"
    return metrics.METRICS[name](y, model.predict(rows))


def _estimator_results(model: Any, given: Given, **params: Any) -> dict[str, Any]:
    weights = {} if given.w is None else {"sample_weight": given.w}
    model = clone(model).set_params(**params).fit(given.X, given.y, **weights)
    found = _attributes(model)
    rows, y = given.X, given.y
    if isinstance(y, str):
        rows, y = rows[[name for name in rows.columns if name != y]], rows[y]
    for method in ("predict", "predict_proba", "decision_function"):
        if hasattr(model, method):
            found[f"{method}()"] = _in_order(getattr(model, method)(rows), given)
    found["score()"] = model.score(given.X, given.y, **weights)
    found["metric()"] = _score_of_predictions(model, rows, y)
    return found


def _transformer_results(model: Any, given: Given, **params: Any) -> dict[str, Any]:
    weights = {} if given.w is None else {"sample_weight": given.w}
    model = clone(model).set_params(**params).fit(given.X, given.y, **weights)
    found = _attributes(model)
    found["transform()"] = _in_order(model.transform(given.X), given)
    if hasattr(model, "get_feature_names_out"):
        found["names"] = list(model.get_feature_names_out())
    return found


def _metric_results(metric: Any, given: Given, **params: Any) -> dict[str, Any]:
    return {"value": metric(given.y, given.X, sample_weight=given.w)}


def _plainly(results: Callable[..., dict[str, Any]], thing: Any) -> Callable[[Given], Any]:
    """Results of scikit-learn's own, of what it takes."""

    def of(given: Given) -> dict[str, Any]:
        row, w = np.asarray(given.row), None if given.w is None else plain(given.w)
        w = None if w is None else np.asarray(w, dtype=float)
        X = plain(given.X)
        if hasattr(thing, "predict"):
            # scikit-learn's solvers end further from the optimum on sparse and float32 rows, and
            # sums of small integers overflow.
            X = X.toarray() if sparse.issparse(X) else X
            X = X.astype(float) if getattr(X, "dtype", np.dtype("O")).kind in "iuf" else X
        return results(thing, Given(X, np.asarray(plain(given.y)), w, row))

    return of


# --- the subjects ----------------------------------------------------------------------------


def _public() -> Iterator[tuple[str, str, Any]]:
    """Public classes and functions of the face: (room, name, value)."""
    for room in pkgutil.iter_modules(daskml_dist.__path__):
        if room.name.startswith("_"):
            continue
        module = importlib.import_module(f"daskml_dist.{room.name}")
        for name in getattr(module, "__all__", []):
            value = getattr(module, name)
            if (
                hasattr(value, "transform")
                or hasattr(value, "predict")
                or (room.name == "metrics" and inspect.isfunction(value))
            ):
                yield room.name, name, value


def public_names() -> set[str]:
    """Names of all public estimators, transformers and metrics."""
    return {name for _, name, _ in _public()}


def _twin(room: str, name: str, setting: Setting) -> Any:
    theirs = getattr(importlib.import_module(f"sklearn.{room}"), name, None)
    if theirs is None or setting.twin is None:
        return None
    if not inspect.isclass(theirs):
        return theirs
    known = inspect.signature(theirs).parameters
    shared = {name: value for name, value in setting.params.items() if name in known}
    return theirs(**shared | setting.twin)


def _estimator(room: str, name: str, make: Any, setting: Setting) -> Subject:
    model = make(**setting.params)
    results = _estimator_results if hasattr(model, "predict") else _transformer_results
    targets = setting.targets
    if hasattr(model, "predict"):
        targets = tuple(t for t in targets if (t == "classes") == is_classifier(model))
    twin = _twin(room, name, setting)
    return Subject(
        name,
        setting,
        partial(results, model),
        None if twin is None else _plainly(results, twin),
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
        partial(_metric_results, metric),
        _plainly(_metric_results, _twin("metrics", name, setting)),
        targets,
        columns=columns,
        is_metric=True,
    )


def _pipelines() -> dict[str, Any]:
    """Ways in which subjects are put together."""
    scaler, encoder = preprocessing.StandardScaler, preprocessing.OrdinalEncoder
    logistic = linear_model.LogisticRegression(**_TIGHT)
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
        partial(_estimator_results, model),
        None,
        targets,
        weighted=False,
        model=model,
    )


def _found() -> Iterator[tuple[str, Subject]]:
    for room, name, value in _public():
        if room == "metrics":
            yield name, _metric(name, value)
        elif name not in ELSEWHERE:
            for i, setting in enumerate(SETTINGS.get(name, [Setting()])):
                yield f"{name} {i}" if i else name, _estimator(room, name, value, setting)
    for name, model in _pipelines().items():
        yield name, _composed(name, model)


#: All subjects, by name and number of the setting.
SUBJECTS: dict[str, Subject] = dict(_found())
