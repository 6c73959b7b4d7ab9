"""Test of whether an estimator of any package is fitted."""

from __future__ import annotations

from typing import Any


def is_fitted(estimator: Any) -> bool:
    """Return whether an estimator is fitted, or needs no fit."""
    # scikit-learn looks at tags, at `__sklearn_is_fitted__`, and at attributes that end in "_".
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(estimator)
    except NotFittedError:
        return False
    return True
