"""Gaps in rows of files: missing values, told by the columns that have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from scipy.sparse import issparse

from daskml_dist.errors import InvalidDataError

__all__ = ["check_gaps", "naming_the_option", "whole_rows"]


def check_gaps(model: Any, name: str, X: Any, y: Any) -> None:
    """Check before rows are split that a model takes their gaps.

    Parameters
    ----------
    model : estimator
    name : str
        Of the files.
    X, y : DataFrame and Series, ndarray, or sparse array and ndarray

    Raises
    ------
    InvalidDataError
        y has gaps, or X has and the model takes none.
    """
    counts = {"the target": int(_missing(y).sum())}
    if not model.__sklearn_tags__().input_tags.allow_nan and getattr(X, "ndim", 1) == 2:
        names = getattr(X, "columns", range(X.shape[1]))
        missing = np.asarray(_missing(X).sum(axis=0)).ravel()
        counts |= {f"column {n!r}": int(c) for n, c in zip(names, missing, strict=True)}
    if told := [f"{n} in {where}" for where, n in counts.items() if n]:
        raise InvalidDataError(
            f"{name} has missing values: {', '.join(told)}. Leave such rows out by --drop-missing, "
            "or fill them first. Features with gaps are taken as they are by, for example, "
            "--estimator HistGradientBoostingClassifier."
        )


@contextmanager
def naming_the_option() -> Iterator[None]:
    """Errors about gaps that are found in a fit, on a cluster, with the option for them."""
    try:
        yield
    except InvalidDataError as error:
        if "NaN" not in str(error):
            raise
        raise InvalidDataError(f"{error} Or: --drop-missing leaves such rows out.") from error


def whole_rows(X: Any, y: Any) -> Any:
    """Rows of arrays that have no gap, as a mask."""
    with_gaps = np.asarray(_missing(X).sum(axis=tuple(range(1, X.ndim)))).ravel() > 0
    return ~(with_gaps | _missing(y))


def _missing(part: Any) -> Any:
    """Return where values are missing, as a mask of the same kind and shape."""
    if issparse(part):  # an entry that is not stored is a zero, so it is none that is missing
        mask = part.copy()
        mask.data = (~np.isfinite(part.data)).astype(np.int8)
        return mask
    if hasattr(part, "isna"):
        return part.isna()
    return ~np.isfinite(part) if part.dtype.kind == "f" else np.zeros(part.shape, dtype=bool)
