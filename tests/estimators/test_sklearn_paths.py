"""Names of scikit-learn are found under the same path, or are listed as missing."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import pytest
import sklearn

#: Public names of scikit-learn that have no counterpart, by their module: the documentation says
#: what to use in their place.
NOT_OURS = {
    "callback": (
        "AutoPropagatedCallback CallbackContext CallbackSupportMixin FitCallback ProgressBar "
        "ScoringMonitor ScoringMonitorLog with_callbacks"
    ),
    "cluster": (
        "AffinityPropagation AgglomerativeClustering Birch DBSCAN FeatureAgglomeration HDBSCAN "
        "MeanShift OPTICS SpectralBiclustering SpectralClustering SpectralCoclustering "
        "affinity_propagation cluster_optics_dbscan cluster_optics_xi compute_optics_graph dbscan "
        "estimate_bandwidth get_bin_seeds kmeans_plusplus linkage_tree mean_shift "
        "spectral_clustering ward_tree"
    ),
    "compose": ("TransformedTargetRegressor make_column_selector"),
    "covariance": (
        "EllipticEnvelope EmpiricalCovariance GraphicalLasso GraphicalLassoCV LedoitWolf "
        "MinCovDet OAS ShrunkCovariance empirical_covariance fast_mcd graphical_lasso ledoit_wolf "
        "ledoit_wolf_shrinkage log_likelihood oas shrunk_covariance"
    ),
    "cross_decomposition": ("CCA PLSCanonical PLSRegression PLSSVD"),
    "datasets": (
        "clear_data_home dump_svmlight_file fetch_20newsgroups fetch_20newsgroups_vectorized "
        "fetch_california_housing fetch_covtype fetch_file fetch_kddcup99 fetch_lfw_pairs "
        "fetch_lfw_people fetch_olivetti_faces fetch_openml fetch_rcv1 "
        "fetch_species_distributions get_data_home load_breast_cancer load_diabetes load_digits "
        "load_files load_iris load_linnerud load_sample_image load_sample_images "
        "load_svmlight_file load_svmlight_files load_wine make_biclusters make_checkerboard "
        "make_circles make_friedman1 make_friedman2 make_friedman3 make_gaussian_quantiles "
        "make_hastie_10_2 make_low_rank_matrix make_moons make_multilabel_classification "
        "make_s_curve make_sparse_coded_signal make_sparse_spd_matrix make_sparse_uncorrelated "
        "make_spd_matrix make_swiss_roll"
    ),
    "decomposition": (
        "DictionaryLearning FactorAnalysis FastICA KernelPCA MiniBatchDictionaryLearning "
        "MiniBatchNMF MiniBatchSparsePCA SparseCoder SparsePCA dict_learning dict_learning_online "
        "fastica non_negative_factorization randomized_svd sparse_encode"
    ),
    "discriminant_analysis": ("LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis"),
    "ensemble": (
        "AdaBoostClassifier AdaBoostRegressor BaseEnsemble GradientBoostingClassifier "
        "GradientBoostingRegressor IsolationForest RandomTreesEmbedding"
    ),
    "exceptions": (
        "DataConversionWarning DataDimensionalityWarning EfficiencyWarning "
        "EstimatorCheckFailedWarning FitFailedWarning PositiveSpectrumWarning SkipTestWarning "
        "UndefinedMetricWarning UnsetMetadataPassedError"
    ),
    "feature_extraction": ("DictVectorizer grid_to_graph img_to_graph"),
    "feature_extraction.image": (
        "PatchExtractor extract_patches_2d grid_to_graph img_to_graph reconstruct_from_patches_2d"
    ),
    "feature_extraction.text": (
        "ENGLISH_STOP_WORDS strip_accents_ascii strip_accents_unicode strip_tags"
    ),
    "feature_selection": (
        "RFE RFECV SelectFromModel SelectorMixin SequentialFeatureSelector f_oneway "
        "mutual_info_classif mutual_info_regression"
    ),
    "frozen": ("FrozenEstimator"),
    "gaussian_process": ("GaussianProcessClassifier GaussianProcessRegressor"),
    "impute": ("IterativeImputer KNNImputer MissingIndicator"),
    "inspection": ("DecisionBoundaryDisplay PartialDependenceDisplay"),
    "isotonic": ("IsotonicRegression check_increasing isotonic_regression"),
    "linear_model": (
        "ARDRegression BayesianRidge Lars LarsCV LassoLars LassoLarsCV LassoLarsIC "
        "MultiTaskElasticNet MultiTaskElasticNetCV MultiTaskLasso MultiTaskLassoCV "
        "OrthogonalMatchingPursuit OrthogonalMatchingPursuitCV PassiveAggressiveClassifier "
        "PassiveAggressiveRegressor Perceptron QuantileRegressor RANSACRegressor SGDOneClassSVM "
        "TheilSenRegressor enet_path lars_path lars_path_gram lasso_path orthogonal_mp "
        "orthogonal_mp_gram ridge_regression"
    ),
    "manifold": (
        "ClassicalMDS Isomap LocallyLinearEmbedding MDS SpectralEmbedding TSNE "
        "locally_linear_embedding smacof spectral_embedding trustworthiness"
    ),
    "metrics": (
        "DistanceMetric PredictionErrorDisplay adjusted_mutual_info_score adjusted_rand_score auc "
        "calinski_harabasz_score check_scoring completeness_score confusion_matrix_at_thresholds "
        "consensus_score coverage_error d2_brier_score d2_log_loss_score davies_bouldin_score "
        "fowlkes_mallows_score hinge_loss homogeneity_completeness_v_measure homogeneity_score "
        "label_ranking_average_precision_score label_ranking_loss metric_at_thresholds "
        "mutual_info_score nan_euclidean_distances normalized_mutual_info_score "
        "pair_confusion_matrix pairwise_distances_chunked rand_score v_measure_score"
    ),
    "metrics.cluster": (
        "adjusted_mutual_info_score adjusted_rand_score calinski_harabasz_score "
        "completeness_score consensus_score contingency_matrix davies_bouldin_score entropy "
        "expected_mutual_information fowlkes_mallows_score homogeneity_completeness_v_measure "
        "homogeneity_score mutual_info_score normalized_mutual_info_score pair_confusion_matrix "
        "rand_score v_measure_score"
    ),
    "mixture": ("BayesianGaussianMixture"),
    "model_selection": (
        "BaseCrossValidator BaseShuffleSplit FixedThresholdClassifier GroupShuffleSplit "
        "LearningCurveDisplay LeaveOneGroupOut LeaveOneOut LeavePGroupsOut LeavePOut "
        "ParameterGrid ParameterSampler PredefinedSplit RepeatedKFold RepeatedStratifiedKFold "
        "StratifiedGroupKFold TunedThresholdClassifierCV ValidationCurveDisplay check_cv "
        "permutation_test_score"
    ),
    "multiclass": ("OneVsOneClassifier OneVsRestClassifier OutputCodeClassifier"),
    "multioutput": ("ClassifierChain MultiOutputClassifier MultiOutputRegressor RegressorChain"),
    "neighbors": (
        "BallTree KDTree KNeighborsClassifier KNeighborsRegressor KNeighborsTransformer "
        "KernelDensity LocalOutlierFactor NearestCentroid NearestNeighbors "
        "NeighborhoodComponentsAnalysis RadiusNeighborsClassifier RadiusNeighborsRegressor "
        "RadiusNeighborsTransformer VALID_METRICS VALID_METRICS_SPARSE kneighbors_graph "
        "radius_neighbors_graph sort_graph_by_row_values"
    ),
    "neural_network": ("BernoulliRBM"),
    "pipeline": ("FeatureUnion Pipeline make_pipeline make_union"),
    "preprocessing": (
        "Binarizer FunctionTransformer KernelCenterer LabelBinarizer MultiLabelBinarizer "
        "Normalizer PowerTransformer SplineTransformer add_dummy_feature binarize label_binarize "
        "maxabs_scale minmax_scale normalize power_transform quantile_transform robust_scale "
        "scale"
    ),
    "random_projection": (
        "GaussianRandomProjection SparseRandomProjection johnson_lindenstrauss_min_dim"
    ),
    "semi_supervised": ("LabelPropagation LabelSpreading SelfTrainingClassifier"),
    "svm": ("NuSVC NuSVR OneClassSVM SVC SVR l1_min_c"),
    "tree": (
        "BaseDecisionTree ExtraTreeClassifier ExtraTreeRegressor export_graphviz export_text "
        "plot_tree"
    ),
    "utils": (
        "Bunch ClassifierTags DataConversionWarning InputTags RegressorTags Tags TargetTags "
        "TransformerTags all_estimators as_float_array assert_all_finite check_X_y check_array "
        "check_consistent_length check_random_state check_scalar check_symmetric column_or_1d "
        "compute_class_weight compute_sample_weight deprecated estimator_html_repr gen_batches "
        "gen_even_slices get_tags indexable murmurhash3_32 resample safe_mask "
        "safe_sqr shuffle"
    ),
    "utils.deprecation": ("deprecated"),
    "utils.metaestimators": ("available_if"),
    "utils.random": ("sample_without_replacement"),
}
#: Version of scikit-learn with these names; others have some more or fewer.
VERSION = "1.9"
_PRIVATE = {"tests", "externals", "conftest"}


def _list_names(module: ModuleType) -> set[str]:
    """Return the exports of a module, except submodules."""
    return {
        name
        for name in getattr(module, "__all__", ())
        if not name.startswith("_") and not isinstance(getattr(module, name), ModuleType)
    }


def _list_paths() -> list[str]:
    """Return the public modules of scikit-learn with `__all__`, without the package name."""
    found = []
    for module in pkgutil.walk_packages(sklearn.__path__, "sklearn.", onerror=lambda _: None):
        parts = module.name.split(".")[1:]
        if any(part.startswith("_") or part in _PRIVATE for part in parts):
            continue
        try:
            imported = importlib.import_module(module.name)
        except ImportError:  # about packages that are not installed
            continue
        if _list_names(imported):
            found.append(".".join(parts))
    return found


def _import_own(path: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"daskml_dist.{path}")
    except ModuleNotFoundError:
        return None


@pytest.mark.filterwarnings("ignore")
def test_names_have_the_path_of_scikit_learn() -> None:
    n_found = 0
    for path in _list_paths():
        module = _import_own(path)
        names = _list_names(importlib.import_module(f"sklearn.{path}"))
        found = {name for name in names if module is not None and hasattr(module, name)}
        known = set(NOT_OURS.get(path, "").split())
        n_found += len(found)
        assert not known & found, f"{path}: these are here by now"
        if sklearn.__version__.startswith(f"{VERSION}."):
            assert sorted(names - found) == sorted(known), path
    assert n_found > 140


def test_missing_modules_are_documented() -> None:
    """Each completely missing module is in the documentation's table."""
    from tests.subprocesses import ROOT

    text = (ROOT / "docs" / "coming_from_sklearn.md").read_text(encoding="utf-8")
    section = text.split("## What is missing")[1]
    for path in NOT_OURS:
        assert f"`{path}`" in section, path
