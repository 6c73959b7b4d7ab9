"""Metrics with scikit-learn's names and values, in one pass over Dask collections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daskml_dist.metrics.classification import accuracy_score, confusion_matrix
from daskml_dist.metrics.probabilities import log_loss
from daskml_dist.metrics.ranking import average_precision_score, roc_auc_score
from daskml_dist.metrics.recommendation import ndcg_at_k, precision_at_k
from daskml_dist.metrics.regression import (
    mean_absolute_error,
    mean_squared_error,
    r2_score,
    root_mean_squared_error,
)

__all__ = [
    "METRICS",
    "accuracy_score",
    "average_precision_score",
    "confusion_matrix",
    "log_loss",
    "mean_absolute_error",
    "mean_squared_error",
    "ndcg_at_k",
    "precision_at_k",
    "r2_score",
    "roc_auc_score",
    "root_mean_squared_error",
]

#: All metrics by name. Each takes y_true, y_pred and sample_weight=None, and equals the function
#: of this name in `sklearn.metrics`.
METRICS: dict[str, Callable[..., Any]] = {
    metric.__name__: metric
    for metric in (
        accuracy_score,
        average_precision_score,
        confusion_matrix,
        log_loss,
        mean_absolute_error,
        mean_squared_error,
        r2_score,
        roc_auc_score,
        root_mean_squared_error,
    )
}
