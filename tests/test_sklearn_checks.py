"""scikit-learn's own checks on every public estimator."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from daskml_dist import linear_model

ESTIMATORS = [getattr(linear_model, name)() for name in linear_model.__all__]

#: Explained in the estimators' Notes.
_WEIGHTS = "batches are drawn by rows, so weighting rows is not the same as repeating them"


def _expected_failures(estimator: Any) -> dict[str, str]:
    return {
        "check_sample_weight_equivalence_on_dense_data": _WEIGHTS,
        "check_sample_weight_equivalence_on_sparse_data": _WEIGHTS,
    }


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=_expected_failures)
def test_scikit_learn_check(estimator: Any, check: Any) -> None:
    check(estimator)


def test_expected_failures_are_explained() -> None:
    for estimator in ESTIMATORS:
        assert "equivalence are expected to fail" in (type(estimator).__doc__ or "")


pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
