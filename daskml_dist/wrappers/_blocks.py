"""Training of a wrapped estimator on the rows of one block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from daskml_dist.data.conversion import convert_missing_to_nan, copy_to_host, expand_weights
from daskml_dist.errors import as_ours
from daskml_dist.meta_estimators.members import plain_labels


def teach_block(
    learn: Callable[..., Any],
    params: dict[str, Any],
    index: int | None,
    X: Any,
    y: Any,
    weight: Any,
) -> None:
    """Call an estimator's `fit` or `partial_fit` with the rows of a block.

    Its errors are raised as errors of this package, with the number of the block if it is given.
    """
    params = dict(params)
    # Estimators of other packages read rows in host memory.
    X, y, weight = map(copy_to_host, (X, y, weight))
    # fit and partial_fit of transformers may not accept y at all, not even None.
    targets = () if y is None else (plain_labels(y),)
    try:
        if weight is not None:
            params["sample_weight"] = np.asarray(expand_weights(weight, np.shape(X)[0]))
        learn(convert_missing_to_nan(X), *targets, **params)
    except (ValueError, TypeError) as error:
        raise as_ours(error, "" if index is None else f"Block {index} of X: ") from error
