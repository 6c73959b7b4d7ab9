"""scikit-learn's own checks on every public estimator; those expected to fail are its own, too."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from daskml_dist import (
    cluster,
    decomposition,
    ensemble,
    linear_model,
    mixture,
    naive_bayes,
    svm,
    tree,
)

# As in scikit-learn's own suite: fewer rows than features fit exactly, and the scale goes to zero
# for as long as it is let.
# Directions without variance are any, and rows of no weight have a part in them.
PARAMS: dict[str, dict[str, Any]] = {
    "HuberRegressor": {"max_iter": 5},
    "PCA": {"n_components": 1},
}
ESTIMATORS = [
    getattr(module, name)(**PARAMS.get(name, {}))
    for module in (linear_model, naive_bayes, svm, cluster, decomposition, mixture, ensemble, tree)
    for name in module.__all__
]

# Draws of first centres belong to places of rows, of which a repeated row has several.
DRAWN = "a row drawn by its weight is not the draw of a repeated row; scikit-learn expects it too"
CLASSES = "of probabilities for sparse rows it asks how many classes there are, which none has"
WEIGHTS = {f"check_sample_weight_equivalence_on_{kind}_data": DRAWN for kind in ("dense", "sparse")}
EXPECTED = {
    "BisectingKMeans": WEIGHTS,
    "KMeans": WEIGHTS,
    "MiniBatchKMeans": WEIGHTS,
    "RandomForestClassifier": WEIGHTS,
    "RandomForestRegressor": WEIGHTS,
    "GaussianMixture": {f"check_estimator_sparse_{kind}": CLASSES for kind in ("array", "matrix")},
}


def _expected(estimator: Any) -> dict[str, str]:
    return EXPECTED.get(type(estimator).__name__, {})


# Some checks fit what cannot converge; scikit-learn's own suite ignores the warning too.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=_expected)
def test_scikit_learn_check(estimator: Any, check: Any) -> None:
    check(estimator)
