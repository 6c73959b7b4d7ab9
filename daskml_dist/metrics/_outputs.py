"""One number of several targets."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import UndefinedMetricWarning

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level

__all__ = ["averaged", "check_outputs", "explained", "undefined"]

Numbers = NDArray[np.float64]


def check_outputs(multioutput: Any, *, variance: bool = False) -> None:
    """Check the argument of that name, before there is work on the data."""
    words = ["raw_values", "uniform_average", *(["variance_weighted"] if variance else [])]
    if multioutput is None or isinstance(multioutput, str):
        if multioutput not in ([*words, None] if variance else words):
            raise InvalidParameterError(
                f"multioutput={multioutput!r} is none of {words} and no weights. Pass one of them."
            )


def averaged(scores: Numbers, multioutput: Any, variances: Numbers | None = None) -> Any:
    """Scores of all targets, or a mean of them."""
    if multioutput is None or isinstance(multioutput, str):
        if multioutput == "raw_values":
            return scores
        weighted = multioutput == "variance_weighted" and variances is not None and variances.any()
        return float(np.average(scores, weights=variances if weighted else None))
    weights = np.asarray(multioutput, dtype=np.float64)
    if weights.ndim != 1 or len(weights) != len(scores) or len(scores) == 1:
        raise InvalidParameterError(
            f"multioutput has weights of shape {weights.shape} for {len(scores)} targets. Pass one "
            "weight for each of several targets, or a word."
        )
    return float(np.average(scores, weights=weights))


def explained(
    errors: Numbers, spread: Numbers, multioutput: Any, *, force_finite: bool = True
) -> Any:
    """Shares of the spread that no error takes away, averaged as `multioutput` says."""
    none = (
        np.where(errors != 0, 0.0, 1.0) if force_finite else np.where(errors != 0, -np.inf, np.nan)
    )
    shares = np.where(spread > 0, 1.0 - errors / np.where(spread > 0, spread, 1.0), none)
    return averaged(shares, multioutput, spread)


def undefined(name: str) -> float:
    """NaN, with the warning that there are too few rows for a score."""
    message = f"{name} score is not well-defined with less than two samples."
    warnings.warn(message, UndefinedMetricWarning, stacklevel=user_stack_level())
    return float("nan")
