"""scikit-learn's checks on every public estimator, with expected failures as in scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from daskml_dist import (
    calibration,
    cluster,
    decomposition,
    ensemble,
    feature_selection,
    linear_model,
    mixture,
    naive_bayes,
    svm,
    tree,
)
from tests.versions import OLD_SCIKIT_LEARN

# As in scikit-learn's suite: few trees and few passes; fewer rows than features fit exactly,
# and the scale goes to zero for as long as it is let.
# A grid of two penalties is chosen from as one of ten is.
# Directions without variance are arbitrary and depend on rows without weight.
FOREST, BOOSTED = {"n_estimators": 5}, {"max_iter": 5}
_BAYES, _LINE = naive_bayes.GaussianNB(), linear_model.Ridge()
_OF_CLASSES = {"estimators": [("one", _BAYES), ("other", _BAYES)]}
_OF_NUMBERS = {"estimators": [("one", _LINE), ("other", _LINE)]}
PARAMS: dict[str, dict[str, Any]] = {
    "BaggingClassifier": {"estimator": _BAYES, "n_estimators": 3},
    "BaggingRegressor": {"estimator": _LINE, "n_estimators": 3},
    "CalibratedClassifierCV": {"estimator": _BAYES, "cv": 3},
    "ExtraTreesClassifier": FOREST,
    "ExtraTreesRegressor": FOREST,
    "GenericUnivariateSelect": {"mode": "k_best", "param": 1},
    "HistGradientBoostingClassifier": BOOSTED,
    "HistGradientBoostingRegressor": BOOSTED,
    "HuberRegressor": {"max_iter": 5},
    "LatentDirichletAllocation": {"max_iter": 5, "batch_size": 10},
    "LogisticRegressionCV": {"Cs": 2, "cv": 3},
    "NMF": {"max_iter": 20},
    "PCA": {"n_components": 1},
    "RandomForestClassifier": FOREST,
    "RandomForestRegressor": FOREST,
    "SelectFdr": {"alpha": 1.0},
    "SelectFpr": {"alpha": 1.0},
    "SelectFwe": {"alpha": 1.0},
    "SelectKBest": {"k": 1},
    "SelectPercentile": {"percentile": 50},
    "StackingClassifier": {**_OF_CLASSES, "cv": 3},
    "StackingRegressor": {**_OF_NUMBERS, "final_estimator": _LINE, "cv": 3},
    "VotingClassifier": _OF_CLASSES,
    "VotingRegressor": _OF_NUMBERS,
}
ESTIMATORS = [
    getattr(module, name)(**PARAMS.get(name, {}))
    for module in (
        linear_model,
        naive_bayes,
        svm,
        cluster,
        decomposition,
        mixture,
        ensemble,
        tree,
        calibration,
        feature_selection,
    )
    for name in module.__all__
    # Rows of the checks have no queries, which ranking needs.
    if hasattr(getattr(module, name), "fit") and name != "HistGradientBoostingRanker"
]

# Initial centroids are drawn by position, so repeated rows change them.
DRAWN = "a row drawn by its weight is not the draw of a repeated row; scikit-learn expects it too"
CLASSES = "of probabilities for sparse rows it asks how many classes there are, which none has"
DIRECT = "nothing iterates: n_iter_ is None, as of scikit-learn's, which expects it too"
WEIGHTS = {f"check_sample_weight_equivalence_on_{kind}_data": DRAWN for kind in ("dense", "sparse")}
EXPECTED = {
    "BaggingClassifier": WEIGHTS,
    "BaggingRegressor": WEIGHTS,
    "BisectingKMeans": WEIGHTS,
    "KMeans": WEIGHTS,
    "MiniBatchKMeans": WEIGHTS,
    "RandomForestClassifier": WEIGHTS,
    "RandomForestRegressor": WEIGHTS,
    "Ridge": {"check_non_transformer_estimators_n_iter": DIRECT},
    "RidgeClassifier": {"check_non_transformer_estimators_n_iter": DIRECT},
    "GaussianMixture": {f"check_estimator_sparse_{kind}": CLASSES for kind in ("array", "matrix")},
}
if OLD_SCIKIT_LEARN:
    EXPECTED["CategoricalNB"] = {
        "check_positive_only_tag_during_fit": "the check subtracts a fraction from integers"
    }


#: Estimators that share their base with another: of these the default run makes the checks of the
#: face, and `pytest -m slow` all.
LIKE = {
    "BaggingClassifier": "VotingClassifier",
    "BaggingRegressor": "VotingClassifier",
    "BernoulliNB": "MultinomialNB",
    "BisectingKMeans": "KMeans",
    "CalibratedClassifierCV": "VotingClassifier",
    "ComplementNB": "MultinomialNB",
    "ElasticNet": "Ridge",
    "ElasticNetCV": "Ridge",
    "ExtraTreesClassifier": "RandomForestClassifier",
    "ExtraTreesRegressor": "RandomForestRegressor",
    "GenericUnivariateSelect": "SelectKBest",
    "GammaRegressor": "PoissonRegressor",
    "HistGradientBoostingRegressor": "HistGradientBoostingClassifier",
    "Lasso": "Ridge",
    "LassoCV": "Ridge",
    "LogisticRegressionCV": "LogisticRegression",
    "LinearSVR": "LinearSVC",
    "StackingClassifier": "VotingClassifier",
    "StackingRegressor": "VotingClassifier",
    "RidgeClassifier": "Ridge",
    "RidgeClassifierCV": "Ridge",
    "RidgeCV": "Ridge",
    "SelectFdr": "SelectKBest",
    "SelectFpr": "SelectKBest",
    "SelectFwe": "SelectKBest",
    "SelectPercentile": "SelectKBest",
    "TweedieRegressor": "PoissonRegressor",
    "VotingRegressor": "VotingClassifier",
}
#: Checks of tags, attributes and refusals of a class.
FACE = {
    "check_all_zero_sample_weights_error",
    "check_array_api_input",
    "check_complex_data",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_dont_overwrite_parameters",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_estimators_empty_data_messages",
    "check_estimators_nan_inf",
    "check_estimators_overwrite_params",
    "check_estimators_unfitted",
    "check_fit1d",
    "check_fit_score_takes_y",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_n_features_in",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_positive_only_tag_during_fit",
    "check_requires_y_none",
    "check_sample_weights_shape",
    "check_set_params",
    "check_supervised_y_no_nan",
    "check_transformers_unfitted",
    "check_valid_tag_types",
}


#: Checks, by their options, of which the default run makes one that is all but the same.
TWICE = {
    "check_classifiers_train": {", readonly_memmap=True"},
    "check_estimator_sparse_matrix": {""},
    "check_estimators_pickle": {", readonly_memmap=True"},
    "check_sample_weight_equivalence_on_sparse_data": {""},
}


def _each() -> Iterator[Any]:
    for estimator in ESTIMATORS:
        name = type(estimator).__name__
        for instance, check in estimator_checks_generator(estimator):
            what = check.func.__name__
            options = "".join(f", {key}={value}" for key, value in check.keywords.items())
            marks: list[pytest.MarkDecorator] = []
            if reason := EXPECTED.get(name, {}).get(what):
                marks.append(pytest.mark.xfail(reason=reason))
            if (name in LIKE and what not in FACE) or options in TWICE.get(what, ()):
                marks.append(pytest.mark.slow)
            yield pytest.param(instance, check, marks=marks, id=f"{name}-{what}{options}")


CHECKS = list(_each())


# Some checks cannot converge; scikit-learn's suite ignores the warning too.
# Some versions of the checks make five folds of four rows, which warns.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:The least populated class in y:UserWarning")
@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_scikit_learn_check(estimator: Any, check: Any) -> None:
    check(estimator)


def test_representative_estimators_run_all_checks() -> None:
    names = {type(estimator).__name__ for estimator in ESTIMATORS}
    assert set(LIKE) | set(LIKE.values()) <= names
    assert not set(LIKE) & set(LIKE.values())
    assert OLD_SCIKIT_LEARN or FACE <= {parameters.values[1].func.__name__ for parameters in CHECKS}
