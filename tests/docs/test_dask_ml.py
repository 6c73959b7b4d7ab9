"""The page for users of dask-ml lists all its classes and functions and their counterparts."""

from __future__ import annotations

import importlib

import pytest

from tests.subprocesses import ROOT

#: Public names of dask-ml 2025.1.0 by their module, and after a colon those whose name is another
#: one here, or that the page tells how to do without.
NAMES = {
    "cluster": "KMeans : SpectralClustering",
    "compose": "ColumnTransformer make_column_transformer",
    "datasets": (
        "make_blobs make_classification make_counts make_regression : make_classification_df "
        "random_date"
    ),
    "decomposition": "IncrementalPCA PCA TruncatedSVD",
    "ensemble": " : BlockwiseVotingClassifier BlockwiseVotingRegressor",
    "feature_extraction.text": "CountVectorizer HashingVectorizer : FeatureHasher",
    "impute": "SimpleImputer",
    "linear_model": "LinearRegression LogisticRegression : PoissonRegression",
    "metrics": (
        "accuracy_score euclidean_distances get_scorer log_loss mean_absolute_error "
        "mean_absolute_percentage_error mean_squared_error mean_squared_log_error "
        "pairwise_distances pairwise_distances_argmin_min r2_score : check_scoring"
    ),
    "metrics.pairwise": (
        "linear_kernel pairwise_kernels rbf_kernel : polynomial_kernel sigmoid_kernel"
    ),
    "model_selection": (
        "GridSearchCV HyperbandSearchCV IncrementalSearchCV KFold RandomizedSearchCV ShuffleSplit "
        "train_test_split : InverseDecaySearchCV SuccessiveHalvingSearchCV check_cv "
        "compute_n_splits"
    ),
    "naive_bayes": "GaussianNB",
    "preprocessing": (
        "Categorizer DummyEncoder LabelEncoder MinMaxScaler OneHotEncoder OrdinalEncoder "
        "PolynomialFeatures QuantileTransformer RobustScaler StandardScaler : BlockTransformer"
    ),
    "wrappers": "Incremental ParallelPostFit",
}
#: Counterparts under another name.
OTHERS = [
    "wrappers.BlockwiseVotingClassifier", "wrappers.BlockwiseVotingRegressor",
    "feature_extraction.FeatureHasher", "linear_model.PoissonRegressor", "compose.Blockwise",
    "model_selection.HalvingGridSearchCV", "model_selection.HalvingRandomSearchCV",
    "ensemble.HistGradientBoostingClassifier", "metrics.get_scorer_names", "metrics.make_scorer",
]  # fmt: skip


@pytest.mark.parametrize("path", NAMES)
def test_each_name_stands_on_the_page(path: str) -> None:
    page = (ROOT / "docs" / "coming_from_dask_ml.md").read_text(encoding="utf-8")
    same, _, others = NAMES[path].partition(":")
    for name in [*same.split(), *others.split()]:
        assert name in page, name
    module = importlib.import_module(f"daskml_dist.{path}")
    assert [name for name in same.split() if not hasattr(module, name)] == []


def test_counterparts_of_other_names_are_there() -> None:
    for path in OTHERS:
        subpackage, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(f"daskml_dist.{subpackage}"), name), path


@pytest.mark.filterwarnings("ignore")
def test_the_names_are_those_of_dask_ml() -> None:
    theirs = pytest.importorskip("dask_ml", reason="dask-ml is not installed")
    for path, names in NAMES.items():
        module = importlib.import_module(f"{theirs.__name__}.{path}")
        missing = [name for name in names.replace(":", " ").split() if not hasattr(module, name)]
        assert missing == []
