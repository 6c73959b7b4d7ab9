"""Model selection: splits of rows, cross-validation and searches, on Dask collections too."""

from __future__ import annotations

from daskml_dist.model_selection._cross_validation import (
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
    validation_curve,
)
from daskml_dist.model_selection._hyperband import HyperbandSearchCV, IncrementalSearchCV
from daskml_dist.model_selection._learning_rates import LearningRates, learning_rate_range
from daskml_dist.model_selection._search import (
    GridSearchCV,
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
    RandomizedSearchCV,
)
from daskml_dist.model_selection._splitters import (
    GroupKFold,
    KFold,
    ShuffleSplit,
    StratifiedKFold,
    StratifiedShuffleSplit,
    TimeSeriesSplit,
    train_test_split,
)

__all__ = [
    "GridSearchCV",
    "GroupKFold",
    "HalvingGridSearchCV",
    "HalvingRandomSearchCV",
    "HyperbandSearchCV",
    "IncrementalSearchCV",
    "KFold",
    "LearningRates",
    "RandomizedSearchCV",
    "ShuffleSplit",
    "StratifiedKFold",
    "StratifiedShuffleSplit",
    "TimeSeriesSplit",
    "cross_val_predict",
    "cross_val_score",
    "cross_validate",
    "learning_curve",
    "learning_rate_range",
    "train_test_split",
    "validation_curve",
]
