"""Scorers: metrics of what an estimator predicts, by scikit-learn's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import dask.array as da
import numpy as np
import sklearn.metrics
from sklearn.base import is_classifier

from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidParameterError
from daskml_dist.metrics import (
    classification,
    deviances,
    probabilities,
    quantiles,
    regression,
)
from daskml_dist.metrics.ranking import average_precision_score, roc_auc_score
from daskml_dist.metrics.top_k import top_k_accuracy_score

__all__ = ["SCORERS", "Scorer", "get_scorer", "get_scorer_names", "get_scorers", "make_scorer"]

#: Methods that a metric may be of, and what scikit-learn calls them.
_RESPONSES = ("predict", "predict_proba", "decision_function")


@dataclass(frozen=True)
class Scorer:
    """A metric of what an estimator predicts: larger is better.

    Parameters
    ----------
    metric : callable
        Takes ``(y_true, y_pred, sample_weight=None, **options)``.
    sign : {1, -1}
        -1 where less of the metric is better.
    response : tuple of str
        Methods of the estimator, of which the first that it has gives `y_pred`.
    options : dict
        For `metric`.
    needs_labels : bool
        Whether `metric` wants the labels of several columns, where an estimator tells them.
    """

    metric: Callable[..., Any]
    sign: int = 1
    response: tuple[str, ...] = ("predict",)
    options: dict[str, Any] = field(default_factory=dict)
    needs_labels: bool = False

    def __call__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Score an estimator on some rows, in memory or Dask collections.

        Returns
        -------
        float
        """
        return self.of(y, self._predicted(estimator, X), sample_weight, estimator)

    @property
    def of_labels(self) -> bool:
        """Whether it is a sum's function: of how many rows have which true and predicted label."""
        return self.response == ("predict",) and self.metric in _OF_PAIRS

    def of(self, y: Any, predicted: Any, sample_weight: Any, estimator: Any) -> float:
        """Score what an estimator predicted."""
        weight = {} if sample_weight is None else {"sample_weight": sample_weight}
        options = dict(self.options)
        if self.needs_labels and len(getattr(estimator, "classes_", ())) > 2:
            options.setdefault("labels", estimator.classes_)
        return float(self.sign * self.metric(y, predicted, **weight, **options))

    def _predicted(self, estimator: Any, X: Any) -> Any:
        # A transformer's pipeline knows by hasattr what its last step has.
        for name in self.response:
            method = getattr(estimator, name, None)
            if method is not None:
                break
        else:
            raise InvalidParameterError(
                f"{type(estimator).__name__} has none of the methods {self.response}, which this "
                "score is of. Use a scoring of labels, such as 'accuracy'."
            )
        found = _called(method, X)
        one_of_two = name == "predict_proba" and self.metric not in _OF_TABLES
        return found[:, 1] if one_of_two and found.shape[1] == 2 else found


def _called(method: Any, X: Any) -> Any:
    """Prediction of rows; lazy where the estimator is none of ours and the rows are."""
    if not is_dask(X) or type(method.__self__).__module__.startswith("daskml_dist"):
        return method(X)
    if isinstance(X, da.Array):
        few = method(np.zeros((2, X.shape[1]), X.dtype))
        wide: Any = {"drop_axis": 1} if few.ndim == 1 else {"chunks": (X.chunks[0], few.shape[1:])}
        lazily: Any = X.map_blocks
        return lazily(_of_block, method, few[:0], dtype=few.dtype, meta=few[:0], **wide)
    few = method(X._meta_nonempty)
    return X.map_partitions(_of_block, method, few[:0], meta=few[:0])


def _of_block(rows: Any, method: Any, none: Any) -> Any:
    return method(rows) if len(rows) else none


#: Metrics of labels, to which rows with the same pair of them are one row of their weight.
_OF_PAIRS = tuple(getattr(classification, name) for name in classification.__all__)
#: Metrics that take a column of each of two labels.
_OF_TABLES = (probabilities.log_loss, probabilities.brier_score_loss)
_SCORES = ("decision_function", "predict_proba")

#: Metrics of several targets or labels, and what is in a scorer's name beside the metric's.
_AVERAGES = ("macro", "micro", "weighted")
_OF_LABELS = {
    "f1": classification.f1_score,
    "jaccard": classification.jaccard_score,
    "precision": classification.precision_score,
    "recall": classification.recall_score,
}


def _ratio(which: int) -> Callable[..., Any]:
    def ratio(y_true: Any, y_pred: Any, **options: Any) -> Any:
        return classification.class_likelihood_ratios(y_true, y_pred, **options)[which]

    return ratio


def _averaged() -> dict[str, Scorer]:
    return {
        f"{name}_{average}": Scorer(metric, options={"average": average, "pos_label": None})
        for name, metric in _OF_LABELS.items()
        for average in _AVERAGES
    }


def _one_to_rest(average: str) -> Scorer:
    options = {"multi_class": "ovr", "average": average}
    return Scorer(roc_auc_score, 1, ("predict_proba",), options, needs_labels=True)


#: Scorers by name.
SCORERS: dict[str, Scorer] = {
    **{name: Scorer(metric) for name, metric in _OF_LABELS.items()},
    **_averaged(),
    "accuracy": Scorer(classification.accuracy_score),
    "average_precision": Scorer(average_precision_score, response=_SCORES),
    "balanced_accuracy": Scorer(classification.balanced_accuracy_score),
    "d2_absolute_error_score": Scorer(quantiles.d2_absolute_error_score),
    "explained_variance": Scorer(regression.explained_variance_score),
    "matthews_corrcoef": Scorer(classification.matthews_corrcoef),
    "neg_brier_score": Scorer(probabilities.brier_score_loss, -1, ("predict_proba",)),
    "neg_log_loss": Scorer(probabilities.log_loss, -1, ("predict_proba",)),
    "neg_max_error": Scorer(regression.max_error, -1),
    "neg_mean_absolute_error": Scorer(regression.mean_absolute_error, -1),
    "neg_mean_absolute_percentage_error": Scorer(regression.mean_absolute_percentage_error, -1),
    "neg_mean_gamma_deviance": Scorer(deviances.mean_gamma_deviance, -1),
    "neg_mean_poisson_deviance": Scorer(deviances.mean_poisson_deviance, -1),
    "neg_mean_squared_error": Scorer(regression.mean_squared_error, -1),
    "neg_mean_squared_log_error": Scorer(regression.mean_squared_log_error, -1),
    "neg_median_absolute_error": Scorer(quantiles.median_absolute_error, -1),
    "neg_negative_likelihood_ratio": Scorer(_ratio(1), -1),
    "neg_root_mean_squared_error": Scorer(regression.root_mean_squared_error, -1),
    "neg_root_mean_squared_log_error": Scorer(regression.root_mean_squared_log_error, -1),
    "positive_likelihood_ratio": Scorer(_ratio(0)),
    "r2": Scorer(regression.r2_score),
    "roc_auc": Scorer(roc_auc_score, response=_SCORES),
    "roc_auc_ovr": _one_to_rest("macro"),
    "roc_auc_ovr_weighted": _one_to_rest("weighted"),
    "top_k_accuracy": Scorer(top_k_accuracy_score, response=_SCORES, needs_labels=True),
}


def get_scorer_names() -> list[str]:
    """Names that `get_scorer` takes, which are scikit-learn's.

    Returns
    -------
    list of str
        Some of them score rows in memory alone, and say so.
    """
    return sorted(sklearn.metrics.get_scorer_names())


def make_scorer(
    metric: Callable[..., Any],
    *,
    greater_is_better: bool = True,
    response_method: str | Iterable[str] = "predict",
    **options: Any,
) -> Scorer:
    """Make a scorer of a metric.

    Parameters
    ----------
    metric : callable
        Takes ``(y_true, y_pred, sample_weight=None)``; of :mod:`daskml_dist.metrics` where rows
        may be Dask collections.
    greater_is_better : bool, default=True
        False negates the metric.
    response_method : str or tuple of str, default="predict"
        Of ``"predict"``, ``"predict_proba"`` and ``"decision_function"``; the first one that the
        estimator has.
    **options
        For `metric`.

    Returns
    -------
    Scorer

    Raises
    ------
    InvalidParameterError
        There is no such method.
    """
    given = response_method
    names = (given,) if isinstance(given, str) else tuple(given)
    strange = [name for name in names if name not in _RESPONSES]
    if strange or not names:
        raise InvalidParameterError(
            f"response_method={response_method!r}: use one or more of {_RESPONSES}."
        )
    return Scorer(metric, 1 if greater_is_better else -1, names, options)


def get_scorer(scoring: str | Callable[..., Any]) -> Callable[..., Any]:
    """Scorer of a name, for rows in memory and for Dask collections.

    Parameters
    ----------
    scoring : str or callable
        A name of scikit-learn's, or what `make_scorer` returned, or any function
        ``(estimator, X, y)``.

    Returns
    -------
    callable

    Raises
    ------
    InvalidParameterError
        There is no such name.
    """
    if not isinstance(scoring, str):
        return scoring
    if scoring not in sklearn.metrics.get_scorer_names():
        raise InvalidParameterError(
            f"scoring={scoring!r} is no name of a score. Use one of {sorted(SCORERS)}, or "
            "another of sklearn.metrics.get_scorer_names() where rows are in memory."
        )
    return _named(scoring)


@cache
def _named(name: str) -> Callable[..., Any]:
    return _Named(name)


@dataclass(frozen=True)
class _Named:
    """scikit-learn's scorer of a name, and ours of Dask collections."""

    name: str

    def __call__(self, estimator: Any, X: Any, y: Any = None, **params: Any) -> float:
        if not is_dask(X) and not is_dask(y):
            return float(sklearn.metrics.get_scorer(self.name)(estimator, X, y, **params))
        if self.name not in SCORERS:
            raise InvalidParameterError(
                f"scoring={self.name!r} is not there for Dask collections. Use one of "
                f"{sorted(SCORERS)}, make_scorer of a metric of daskml_dist.metrics, or rows in "
                "memory."
            )
        return SCORERS[self.name](estimator, X, y, **params)

    def __repr__(self) -> str:
        return f"get_scorer({self.name!r})"


def get_scorers(estimator: Any, scoring: Any) -> dict[str, Callable[..., Any]]:
    """Scorers by name, of what `scoring` may be in scikit-learn: "score" is the one without a name.

    Parameters
    ----------
    estimator : estimator
        Its own ``score`` where `scoring` is None.
    scoring : str, callable, list or tuple of str, dict, or None

    Returns
    -------
    dict of str to callable
    """
    if scoring is None:
        if not hasattr(estimator, "score"):
            raise InvalidParameterError(
                f"{type(estimator).__name__} has no method score. Pass scoring."
            )
        return {"score": _own_score}
    if isinstance(scoring, dict):
        return {name: get_scorer(given) for name, given in scoring.items()}
    if isinstance(scoring, list | tuple | set):
        return {name: get_scorer(name) for name in scoring}
    return {"score": get_scorer(scoring)}


def _own_score(estimator: Any, X: Any, y: Any = None, **params: Any) -> float:
    if is_dask(X) and not type(estimator).__module__.startswith("daskml_dist"):
        name = "accuracy" if is_classifier(estimator) else "r2"
        return SCORERS[name](estimator, X, y, **params)
    return float(estimator.score(X, y, **params))
