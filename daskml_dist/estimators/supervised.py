"""Base class of the supervised estimators: targets in, scores out."""

from __future__ import annotations

from typing import Any

import numpy as np
from dask.utils import is_dataframe_like
from sklearn.utils.validation import column_or_1d

from daskml_dist.data.collection import take_named_columns
from daskml_dist.data.conversion import copy_to_host
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError
from daskml_dist.estimators.base import BaseOnRows

__all__ = ["Supervised", "as_column", "as_columns"]


class Supervised(BaseOnRows):
    """Base class of estimators that learn to predict a target.

    Examples
    --------
    >>> from daskml_dist.base import Supervised
    >>> from daskml_dist.decomposition import PCA
    >>> from daskml_dist.linear_model import Ridge
    >>> isinstance(Ridge(), Supervised), isinstance(PCA(), Supervised)
    (True, False)
    """

    def _prepare_inputs(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        if y is None:
            raise InvalidDataError(
                f"{type(self).__name__} requires y to be passed, but the target y is None. "
                "Pass y as well."
            )
        X, y, sample_weight = take_named_columns(X, y, sample_weight)
        if not is_dask(y) and not self._multi_output:
            y = as_column(y)
        return X, y, sample_weight


def as_columns(y: Any) -> Any:
    """Targets; those of one column as one dimension, with scikit-learn's warning in memory."""
    if not is_dask(y):
        _check_not_sparse(y)
        if 0 in (columns := _columns_of(y)):
            raise InvalidDataError("y has no columns. Pass at least one target.")
        return as_column(y) if columns == (1,) else y
    if is_dataframe_like(y):
        return y[y.columns[0]] if len(y.columns) == 1 else y
    return y[:, 0] if y.shape[1:] == (1,) else y


def _columns_of(y: Any) -> tuple[int, ...]:
    if is_dataframe_like(y):
        return (len(y.columns),)
    try:
        shape: tuple[int, ...] = getattr(y, "shape", None) or np.asarray(y).shape
        return shape[1:]
    except ValueError as error:
        raise InvalidDataError(f"y is not an array: {error}. Pass rows of equal length.") from error


def _check_not_sparse(y: Any) -> None:
    if hasattr(y, "tocsr"):
        raise InvalidDataError(
            "sparse multilabel-indicator for y is not supported. Pass y.toarray()."
        )


def as_column(y: Any) -> Any:
    """Targets in memory as one column, with scikit-learn's warning for a matrix of one."""
    _check_not_sparse(y)
    y = copy_to_host(y)
    if is_dataframe_like(y) and len(y.columns) == 1:
        column_or_1d(np.empty((1, 1)), warn=True)
        return y.iloc[:, 0]  # with its dtype, which may be one of pandas alone
    if len(getattr(y, "shape", ())) == 2:
        try:
            return column_or_1d(y, warn=True)
        except ValueError as error:
            raise InvalidDataError(f"{error} Pass one column, for example y[:, 0].") from error
    return y
