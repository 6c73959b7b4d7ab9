"""Call of `fit` or `partial_fit` with the rows of one block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from daskml_dist.data.conversion import convert_missing_to_nan, copy_to_host
from daskml_dist.errors import as_ours
from daskml_dist.meta_estimators.members import plain_labels, weights_of_rows

__all__ = ["teach_block"]


def teach_block(
    learn: Callable[..., Any],
    params: dict[str, Any],
    index: int | None,
    X: Any,
    y: Any,
    weight: Any,
) -> None:
    """Call a method that learns with the rows of a block; its number, if any, is in the errors."""
    n_rows, params = X.shape[0], dict(params)
    X, y, weight = map(copy_to_host, (X, y, weight))
    if weight is not None:
        params["sample_weight"] = np.asarray(weights_of_rows(weight, n_rows))
    rows = (
        (convert_missing_to_nan(X),) if y is None else (convert_missing_to_nan(X), plain_labels(y))
    )
    try:
        learn(*rows, **params)
    except (ValueError, TypeError) as error:
        raise as_ours(error, "" if index is None else f"Block {index} of X: ") from error
