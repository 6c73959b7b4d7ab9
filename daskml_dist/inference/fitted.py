"""Question whether an estimator of any package can answer rows."""

from __future__ import annotations

from typing import Any


def is_fitted(estimator: Any) -> bool:
    """Return whether an estimator is fitted, or needs no fit."""
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(estimator)
    except NotFittedError:
        return False
    return True
