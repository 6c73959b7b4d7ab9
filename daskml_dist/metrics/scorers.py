"""Scorers: metrics of an estimator's predictions, by scikit-learn's names.

On rows in memory a `Scorer` is scikit-learn's own. On Dask collections it predicts lazily, and
calls the metric of this package, which computes the predictions and the score in one pass.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from importlib import import_module
from numbers import Integral
from typing import Any

import dask.array as da
import numpy as np
import sklearn.metrics
from numpy.typing import NDArray
from sklearn.base import is_classifier

from daskml_dist.data.conversion import convert_extension_column
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.inference.block_mapping import call_on_sample
from daskml_dist.metrics import classification, probabilities, regression
from daskml_dist.metrics._columns import call_sklearn_metric
from daskml_dist.metrics.probabilities import top_k_accuracy_score
from daskml_dist.metrics.ranking import average_precision_score, roc_auc_score

#: scikit-learn's private class of scorers, with its metadata routing and cached predictions. Found
#: from an instance, so that no private module is imported.
_SklearnScorer: Any = type(sklearn.metrics.make_scorer(sklearn.metrics.accuracy_score))


class Scorer(_SklearnScorer):
    """Metric of an estimator's predictions, on Dask collections too: larger is better.

    Parameters
    ----------
    score_func : callable
        Takes ``(y_true, y_pred, sample_weight=None, **kwargs)``.
    sign : {1, -1}
        -1 for a loss, for which less is better.
    kwargs : dict
        Further arguments of `score_func`.
    response_method : str or sequence of str
        Methods of the estimator: the first one that it has gives `y_pred`.
    needs_labels : bool
        Whether to pass ``classes_`` of the estimator as `labels` for Dask collections of more than
        two classes, so that `score_func` need not find them by a separate pass.
    """

    def __init__(
        self,
        score_func: Callable[..., Any],
        sign: int = 1,
        kwargs: dict[str, Any] | None = None,
        response_method: str | Iterable[str] = "predict",
        *,
        needs_labels: bool = False,
    ) -> None:
        super().__init__(score_func, sign, kwargs or {}, response_method)
        self._needs_labels = needs_labels
        self._name: str | None = None
        self._labels: NDArray[Any] | None = None

    @classmethod
    def from_sklearn(cls, sklearn_scorer: Any, name: str | None = None) -> Scorer:
        """Return a scorer of scikit-learn's as one that accepts Dask collections.

        `name` is its name in scikit-learn, if any.
        """
        scorer = cls(sklearn_scorer._score_func)
        # All of its state, with metadata requests.
        scorer.__dict__.update(vars(sklearn_scorer))
        scorer._name = name
        # A named one keeps scikit-learn's metric, for rows in memory: `_score` looks up the other.
        if name is None:
            scorer._score_func = _find_own_metric(sklearn_scorer._score_func)
            scorer._needs_labels = scorer._score_func in (roc_auc_score, top_k_accuracy_score)
        return scorer

    def _score(self, method_caller: Any, estimator: Any, X: Any, y_true: Any, **kwargs: Any) -> Any:
        if not is_dask(X) and not is_dask(y_true):
            kwargs = self._make_label_arguments(self) | kwargs
            y_true = convert_extension_column(y_true)
            try:
                return super()._score(method_caller, estimator, X, y_true, **kwargs)
            except AttributeError:
                # scikit-learn reads `classes_` of a classifier before it asks for predictions.
                if hasattr(estimator, "fit"):
                    check_fitted(estimator)
                raise
        scorer = self
        if self._name is not None:
            # A named scorer of scikit-learn's: this package has an equal one for collections.
            if self._name not in SCORERS:
                raise InvalidParameterError(
                    f"scoring={self._name!r} is not available for Dask collections. Use one of "
                    f"{sorted(SCORERS)}, make_scorer with a metric of daskml_dist.metrics, or "
                    "rows in memory."
                )
            scorer = SCORERS[self._name]
        elif self._score_func.__module__.startswith("sklearn."):
            raise InvalidParameterError(
                f"{self._score_func.__name__} of scikit-learn cannot score Dask collections. Use "
                "make_scorer with a metric of daskml_dist.metrics, or rows in memory."
            )
        kwargs = self._make_label_arguments(scorer) | kwargs
        return scorer.score_answers(
            y_true, scorer.predict_answers(estimator, X), estimator, **kwargs
        )

    def with_labels(self, labels: NDArray[Any]) -> Scorer:
        """Return this scorer for rows that may lack some of `labels`, the sorted labels of a fit.

        In a fold without rows of some class, metrics would otherwise infer other labels, or fail.
        """
        scorer = copy.copy(self)
        scorer._labels = labels
        return scorer

    def _make_label_arguments(self, scorer: Scorer) -> dict[str, Any]:
        """Return the labels of :meth:`with_labels` as arguments, if the scorer's metric has any."""
        options = () if self._labels is None else inspect.signature(scorer._score_func).parameters
        if self._labels is None or "labels" not in options:
            return {}
        arguments: dict[str, Any] = {"labels": self._labels}
        # The default pos_label=1 is not among labels such as strings: the second one is positive.
        if len(self._labels) == 2 and "pos_label" in options and "pos_label" not in scorer._kwargs:
            arguments["pos_label"] = self._labels[1]
        return arguments

    @property
    def is_of_label_pairs(self) -> bool:
        """Return whether the score follows from the weights of (true, predicted) label pairs."""
        of_labels = self._response_method in ("predict", ("predict",))
        return of_labels and self._score_func in _LABEL_METRICS

    def score_answers(self, y: Any, predicted: Any, estimator: Any, **kwargs: Any) -> float:
        """Return the score of predictions that :meth:`predict_answers` returned."""
        options = {**self._kwargs, **kwargs}
        if self._needs_labels and len(getattr(estimator, "classes_", ())) > 2:
            options.setdefault("labels", estimator.classes_)
        return float(self._sign * self._score_func(y, predicted, **options))

    def predict_answers(self, estimator: Any, X: Any) -> Any:
        """Return the predictions that the metric needs: labels, scores or class probabilities."""
        response = self._response_method
        names = (response,) if isinstance(response, str) else tuple(response)
        # By getattr, since a pipeline has the methods of its last step.
        for name in names:
            method = getattr(estimator, name, None)
            if method is not None:
                break
        else:
            raise InvalidParameterError(
                f"{type(estimator).__name__} has none of the methods {names}, which this score "
                "needs. Use a score of labels, such as 'accuracy'."
            )
        answers = _predict_lazily(method, X)
        if name == "predict" or self._score_func in _TABLE_METRICS:
            return answers
        # All other metrics need one column of scores for two labels, higher for the positive one.
        is_first = self._is_first_positive(estimator)
        if name == "predict_proba":
            return answers[:, 0 if is_first else 1] if answers.shape[1] == 2 else answers
        return -answers if is_first else answers

    def _is_first_positive(self, estimator: Any) -> bool:
        """Return whether the first of two labels is positive; by default the second is."""
        classes = np.asarray(getattr(estimator, "classes_", ())).tolist()
        return len(classes) == 2 and self._kwargs.get("pos_label", classes[1]) == classes[0]


def _predict_lazily(method: Any, X: Any) -> Any:
    """Return the predictions of X, block by block for estimators that do not support Dask."""
    if not is_dask(X) or type(method.__self__).__module__.startswith("daskml_dist"):
        return method(X)
    # Predictions of a row give the dtype and the number of columns.
    _, sample = call_on_sample(method, X)
    if isinstance(X, da.Array):
        shape_options: Any = (
            {"drop_axis": 1} if sample.ndim == 1 else {"chunks": (X.chunks[0], sample.shape[1:])}
        )
        map_blocks: Any = X.map_blocks
        return map_blocks(
            _predict_block, method, sample[:0], dtype=sample.dtype, meta=sample[:0], **shape_options
        )
    return X.map_partitions(_predict_block, method, sample[:0], meta=sample[:0])


def _predict_block(rows: Any, method: Any, empty: Any) -> Any:
    # A filter may produce a block without rows, which scikit-learn's estimators refuse.
    return method(rows) if len(rows) else empty


# --- the table of scorers --------------------------------------------------------------------


#: Metrics of labels, for which all rows with the same (true, predicted) pair equal one weighted
#: row.
_LABEL_METRICS = tuple(
    getattr(classification, name)
    for name in classification.__all__
    if name not in ("count_label_pairs", "reduce_to_label_pairs")
)


#: Metrics that need a column for each label, even if there are two.
_TABLE_METRICS = (probabilities.log_loss, probabilities.brier_score_loss)


#: Top-k accuracy, of this package and of scikit-learn (`find_top_k`).
_TOP_K_METRICS = (top_k_accuracy_score, sklearn.metrics.top_k_accuracy_score)


#: Methods for ranking scores: the first that an estimator has is used.
_SCORE_METHODS = ("decision_function", "predict_proba")


_PROBABILITY_METHOD = "predict_proba"


#: Metrics with a scorer for each average over several labels, such as "f1_macro".
_AVERAGED_METRICS = {
    "f1": classification.f1_score,
    "jaccard": classification.jaccard_score,
    "precision": classification.precision_score,
    "recall": classification.recall_score,
}


#: Regression losses, whose scorers are named "neg_" plus their name.
_REGRESSION_LOSSES = (
    "max_error",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_gamma_deviance",
    "mean_poisson_deviance",
    "mean_squared_error",
    "mean_squared_log_error",
    "median_absolute_error",
    "root_mean_squared_error",
    "root_mean_squared_log_error",
)


def _select_likelihood_ratio(ratio_index: int) -> Callable[..., Any]:
    """Return a metric for one of the two likelihood ratios: 0 the positive, 1 the negative."""

    def ratio(y_true: Any, y_pred: Any, **options: Any) -> Any:
        return classification.class_likelihood_ratios(y_true, y_pred, **options)[ratio_index]

    return ratio


def _make_multiclass_scorer(multi_class: str, average: str) -> Scorer:
    options = {"multi_class": multi_class, "average": average}
    return Scorer(roc_auc_score, 1, options, _PROBABILITY_METHOD, needs_labels=True)


#: Scorers of Dask collections by scikit-learn's names.
SCORERS: dict[str, Scorer] = {
    **{name: Scorer(metric) for name, metric in _AVERAGED_METRICS.items()},
    **{
        # As in scikit-learn, an average over all labels has no positive one.
        f"{name}_{average}": Scorer(metric, 1, {"average": average, "pos_label": None})
        for name, metric in _AVERAGED_METRICS.items()
        for average in ("macro", "micro", "weighted")
    },
    **{f"neg_{name}": Scorer(getattr(regression, name), -1) for name in _REGRESSION_LOSSES},
    "accuracy": Scorer(classification.accuracy_score),
    "average_precision": Scorer(average_precision_score, response_method=_SCORE_METHODS),
    "balanced_accuracy": Scorer(classification.balanced_accuracy_score),
    "d2_absolute_error_score": Scorer(regression.d2_absolute_error_score),
    "explained_variance": Scorer(regression.explained_variance_score),
    "matthews_corrcoef": Scorer(classification.matthews_corrcoef),
    "neg_brier_score": Scorer(
        probabilities.brier_score_loss, -1, response_method=_PROBABILITY_METHOD
    ),
    "neg_log_loss": Scorer(probabilities.log_loss, -1, response_method=_PROBABILITY_METHOD),
    "neg_negative_likelihood_ratio": Scorer(_select_likelihood_ratio(1), -1),
    "positive_likelihood_ratio": Scorer(_select_likelihood_ratio(0)),
    "r2": Scorer(regression.r2_score),
    "roc_auc": Scorer(roc_auc_score, response_method=_SCORE_METHODS),
    "roc_auc_ovo": _make_multiclass_scorer("ovo", "macro"),
    "roc_auc_ovo_weighted": _make_multiclass_scorer("ovo", "weighted"),
    "roc_auc_ovr": _make_multiclass_scorer("ovr", "macro"),
    "roc_auc_ovr_weighted": _make_multiclass_scorer("ovr", "weighted"),
    "top_k_accuracy": Scorer(
        top_k_accuracy_score, response_method=_SCORE_METHODS, needs_labels=True
    ),
}


def find_top_k(scoring: Any) -> int | None:
    """Return k, if `scoring` is top-k accuracy of decision functions; None for any other score.

    Searches compute this score for many models at once, from their raw outputs.
    """
    scorer = SCORERS.get(scoring) if isinstance(scoring, str) else scoring
    if not isinstance(scorer, _SklearnScorer) or scorer._score_func not in _TOP_K_METRICS:
        return None
    options, response = scorer._kwargs, scorer._response_method
    method, k = response if isinstance(response, str) else next(iter(response)), options.get("k", 2)
    # Other options, a minus sign or probabilities are left to the scorer itself.
    if set(options) - {"k"} or scorer._sign != 1 or method != "decision_function":
        return None
    return int(k) if isinstance(k, Integral) and not isinstance(k, bool) and int(k) > 0 else None


# --- scorers by name -------------------------------------------------------------------------


@suggest_arguments
def get_scorer_names() -> list[str]:
    """Return the names that `get_scorer` accepts, which are scikit-learn's.

    Returns
    -------
    list of str
        Some of them score only rows in memory, and raise an error for Dask collections.

    Examples
    --------
    >>> from daskml_dist.metrics import get_scorer_names
    >>> 'roc_auc' in get_scorer_names()
    True
    """
    return sorted(sklearn.metrics.get_scorer_names())


@suggest_arguments
def make_scorer(
    score_func: Callable[..., Any],
    *,
    response_method: str | Iterable[str] = "predict",
    greater_is_better: bool = True,
    **kwargs: Any,
) -> Scorer:
    """Make a scorer from a metric.

    Parameters
    ----------
    score_func : callable
        Function of ``(y_true, y_pred, sample_weight=None)``; from :mod:`daskml_dist.metrics` if
        rows may be Dask collections.
    response_method : str or sequence of str, default="predict"
        One or several of ``"predict"``, ``"predict_proba"`` and ``"decision_function"``; the first
        one that the estimator has is used.
    greater_is_better : bool, default=True
        False negates the metric.
    **kwargs
        For `score_func`.

    Returns
    -------
    Scorer
        Has scikit-learn's ``set_score_request``.

    Raises
    ------
    InvalidParameterError
        There is no such method.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import make_scorer
    >>> from daskml_dist.linear_model import LinearRegression
    >>> from daskml_dist.metrics import mean_absolute_error
    >>> scorer = make_scorer(mean_absolute_error, greater_is_better=False)
    >>> X = np.arange(8.0).reshape(-1, 1)
    >>> model = LinearRegression().fit(X, X[:, 0])
    >>> round(float(scorer(model, X, X[:, 0] + 1.0)), 4)
    -1.0
    """
    scorer = call_sklearn_metric(
        sklearn.metrics.make_scorer,
        score_func,
        response_method=response_method,
        greater_is_better=greater_is_better,
        **kwargs,
    )
    return Scorer.from_sklearn(scorer)


@suggest_arguments
def get_scorer(scoring: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the scorer with a given name, for rows in memory and for Dask collections.

    Parameters
    ----------
    scoring : str or callable
        One of scikit-learn's names, a scorer of `make_scorer` (scikit-learn's too), or any function
        of ``(estimator, X, y)``.

    Returns
    -------
    callable
        For a name a new scorer each time.

    Raises
    ------
    InvalidParameterError
        There is no such name.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import get_scorer
    >>> from daskml_dist.linear_model import LinearRegression
    >>> X = np.arange(8.0).reshape(-1, 1)
    >>> model = LinearRegression().fit(X, 2.0 * X[:, 0])
    >>> round(float(get_scorer('r2')(model, X, 2.0 * X[:, 0])), 6)
    1.0
    """
    if not isinstance(scoring, str):
        is_sklearn = isinstance(scoring, _SklearnScorer) and not isinstance(scoring, Scorer)
        return Scorer.from_sklearn(scoring) if is_sklearn else scoring
    if scoring not in sklearn.metrics.get_scorer_names():
        raise InvalidParameterError(
            f"{scoring!r} is not a valid scoring value: it is not the name of a score. Use one "
            f"of {sorted(SCORERS)}, or another of sklearn.metrics.get_scorer_names() for rows in "
            f"memory.{suggest_nearest(scoring, sklearn.metrics.get_scorer_names())}"
        )
    return Scorer.from_sklearn(sklearn.metrics.get_scorer(scoring), scoring)


def get_scorers(estimator: Any, scoring: Any) -> dict[str, Callable[..., Any]]:
    """Return scorers by name, given the argument `scoring` of a search; a single one is "score"."""
    if scoring is None:
        if not hasattr(estimator, "score"):
            raise InvalidParameterError(
                f"{type(estimator).__name__} has no method score. Pass scoring."
            )
        return {"score": _score_by_estimator}
    if isinstance(scoring, dict):
        return {name: get_scorer(score) for name, score in scoring.items()}
    if isinstance(scoring, list | tuple | set):
        names = [name for name in scoring if isinstance(name, str)]
        if not names or len(set(names)) < len(scoring):
            raise InvalidParameterError(
                f"scoring={scoring!r}: a list must have names of scorers, each once. Functions go "
                "into a dict: scoring={name: function, ...}."
            )
        return {name: get_scorer(name) for name in scoring}
    return {"score": get_scorer(scoring)}


def _find_own_metric(metric: Callable[..., Any]) -> Callable[..., Any]:
    """Return this package's metric of the same name as one of scikit-learn's, or else `metric`."""
    name = getattr(metric, "__name__", "")
    if getattr(sklearn.metrics, name, None) is not metric:
        return metric
    # Imported late: the package's `__init__` imports this module.
    own_metric: Callable[..., Any] = getattr(import_module("daskml_dist.metrics"), name, metric)
    return own_metric


def _score_by_estimator(estimator: Any, X: Any, y: Any = None, **params: Any) -> float:
    """Return the estimator's own score.

    For collections, scikit-learn's default score replaces that of other packages' estimators.
    """
    if is_dask(X) and not type(estimator).__module__.startswith("daskml_dist"):
        name = "accuracy" if is_classifier(estimator) else "r2"
        return float(SCORERS[name](estimator, X, y, **params))
    return float(estimator.score(X, y, **params))
