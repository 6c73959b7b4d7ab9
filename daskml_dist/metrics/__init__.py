"""Metrics with scikit-learn's names and values, most in one pass over Dask collections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daskml_dist.metrics.classification import (
    accuracy_score,
    balanced_accuracy_score,
    class_likelihood_ratios,
    classification_report,
    cohen_kappa_score,
    confusion_matrix,
    f1_score,
    fbeta_score,
    hamming_loss,
    jaccard_score,
    matthews_corrcoef,
    multilabel_confusion_matrix,
    precision_recall_fscore_support,
    precision_score,
    recall_score,
    zero_one_loss,
)
from daskml_dist.metrics.clusters import silhouette_samples, silhouette_score
from daskml_dist.metrics.displays import (
    ConfusionMatrixDisplay,
    DetCurveDisplay,
    PrecisionRecallDisplay,
    RocCurveDisplay,
)
from daskml_dist.metrics.pairwise import (
    euclidean_distances,
    pairwise_distances,
    pairwise_distances_argmin,
    pairwise_distances_argmin_min,
    pairwise_kernels,
)
from daskml_dist.metrics.probabilities import brier_score_loss, log_loss, top_k_accuracy_score
from daskml_dist.metrics.queries import dcg_score, ndcg_score
from daskml_dist.metrics.ranking import (
    average_precision_score,
    calibration_curve,
    det_curve,
    precision_recall_curve,
    roc_auc_score,
    roc_curve,
)
from daskml_dist.metrics.recommendation import ndcg_at_k, precision_at_k
from daskml_dist.metrics.regression import (
    d2_absolute_error_score,
    d2_pinball_score,
    d2_tweedie_score,
    explained_variance_score,
    max_error,
    mean_absolute_error,
    mean_absolute_percentage_error,
    mean_gamma_deviance,
    mean_pinball_loss,
    mean_poisson_deviance,
    mean_squared_error,
    mean_squared_log_error,
    mean_tweedie_deviance,
    median_absolute_error,
    r2_score,
    root_mean_squared_error,
    root_mean_squared_log_error,
)
from daskml_dist.metrics.scorers import get_scorer, get_scorer_names, make_scorer
from daskml_dist.metrics.survival import concordance_index

__all__ = [
    "METRICS",
    "ConfusionMatrixDisplay",
    "DetCurveDisplay",
    "PrecisionRecallDisplay",
    "RocCurveDisplay",
    "accuracy_score",
    "average_precision_score",
    "balanced_accuracy_score",
    "brier_score_loss",
    "calibration_curve",
    "class_likelihood_ratios",
    "classification_report",
    "cohen_kappa_score",
    "concordance_index",
    "confusion_matrix",
    "d2_absolute_error_score",
    "d2_pinball_score",
    "d2_tweedie_score",
    "dcg_score",
    "det_curve",
    "euclidean_distances",
    "explained_variance_score",
    "f1_score",
    "fbeta_score",
    "get_scorer",
    "get_scorer_names",
    "hamming_loss",
    "jaccard_score",
    "log_loss",
    "make_scorer",
    "matthews_corrcoef",
    "max_error",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_gamma_deviance",
    "mean_pinball_loss",
    "mean_poisson_deviance",
    "mean_squared_error",
    "mean_squared_log_error",
    "mean_tweedie_deviance",
    "median_absolute_error",
    "multilabel_confusion_matrix",
    "ndcg_at_k",
    "ndcg_score",
    "pairwise_distances",
    "pairwise_distances_argmin",
    "pairwise_distances_argmin_min",
    "pairwise_kernels",
    "precision_at_k",
    "precision_recall_curve",
    "precision_recall_fscore_support",
    "precision_score",
    "r2_score",
    "recall_score",
    "roc_auc_score",
    "roc_curve",
    "root_mean_squared_error",
    "root_mean_squared_log_error",
    "silhouette_samples",
    "silhouette_score",
    "top_k_accuracy_score",
    "zero_one_loss",
]

#: Public functions that do not score predictions against targets row by row.
_OTHER_FUNCTIONS = {
    "concordance_index",
    "dcg_score",
    "euclidean_distances",
    "get_scorer",
    "get_scorer_names",
    "make_scorer",
    "ndcg_at_k",
    "ndcg_score",
    "pairwise_distances",
    "pairwise_distances_argmin",
    "pairwise_distances_argmin_min",
    "pairwise_kernels",
    "precision_at_k",
    "silhouette_samples",
    "silhouette_score",
}
#: All metrics by name. Each has the values of the function of this name in `sklearn.metrics` (the
#: calibration curve: in `sklearn.calibration`), and accepts `sample_weight` if that does.
METRICS: dict[str, Callable[..., Any]] = {
    # By `__all__`, so that a metric is listed once it is exported; names of displays, which are
    # classes, begin with a capital.
    name: globals()[name]
    for name in __all__
    if name[0].islower() and name not in _OTHER_FUNCTIONS
}
