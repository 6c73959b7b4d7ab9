"""Scores of a forest's classes by the trees that did not draw the rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidDataError

__all__ = ["accuracy", "check_scored", "shares_and_labels"]

Array = NDArray[Any]


def check_scored(columns: Sequence[Array]) -> None:
    """Check that classes can be scored: of several outputs, two of each."""
    if len(columns) > 1 and max(map(len, columns)) > 2:
        raise InvalidDataError(
            "The type of target cannot be used to compute OOB estimates. Got "
            "multiclass-multioutput while only the following are supported: continuous, "
            "continuous-multioutput, binary, multiclass, multilabel-indicator. Set "
            "oob_score=False, or fit one output at a time."
        )


def accuracy(y: Array, labels: Array) -> float:
    """Share of rows whose labels are all right."""
    right = y == labels
    return float(np.mean(right.all(axis=1) if right.ndim == 2 else right))


def shares_and_labels(answers: Array, y: Array, classes: Any) -> tuple[Array, Array, Array]:
    """Shares of the classes, the likeliest labels, and the true ones."""
    if not isinstance(classes, list):
        return answers, classes[answers.argmax(axis=1)], classes[y.astype(np.intp)]
    ends = [0, *np.cumsum([len(of) for of in classes])]
    shares = np.zeros((len(y), max(map(len, classes)), len(classes)))
    for k, (a, b) in enumerate(pairwise(ends)):
        shares[:, : b - a, k] = answers[:, a:b]
    best, given = shares.argmax(axis=1), y.astype(np.intp)
    labels, truth = (
        np.column_stack([of[number[:, k]] for k, of in enumerate(classes)])
        for number in (best, given)
    )
    return shares, labels, truth
