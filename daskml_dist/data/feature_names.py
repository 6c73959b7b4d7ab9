"""Feature names: what a fit remembers of columns, and rows that come later must have."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.conversion import (
    check_unique_names,
    convert_foreign,
    get_column_names,
    load_pandas,
)
from daskml_dist.data.lazy import is_dask_frame
from daskml_dist.data.plain_rows import RowsPlaceholder, is_small_frame
from daskml_dist.errors import InvalidDataError
from daskml_dist.sklearn_internals import compare_feature_names

#: Kinds of rows that have no names.
_NAMELESS_TYPES = (np.ndarray, list)


def check_feature_names(estimator: Any, X: Any, *, reset: bool) -> None:
    """Check the column names of X as scikit-learn does; nothing is computed of a Dask frame."""
    if reset:
        remember_dtypes(estimator, X)
    elif names_surely_match(X, getattr(estimator, "feature_names_in_", None)):
        return  # the usual cases, in which scikit-learn looks for kinds of dataframes one by one
    if isinstance(X, RowsPlaceholder):
        return
    X = convert_foreign(X)
    check_unique_names(X)
    if (names := get_column_names(X)) is not None:
        shown = load_pandas().DataFrame(columns=names)
    else:
        shown = X._meta if is_dask_frame(X) else X
    try:
        compare_feature_names(estimator, shown, reset=reset)
    except ValueError as error:
        raise InvalidDataError(
            f"{str(error).rstrip()}\nPass the columns of the fit, in their order: "
            "X[list(estimator.feature_names_in_)]."
        ) from error


def names_surely_match(X: Any, names: NDArray[Any] | None) -> bool:
    """Return whether columns have, at a glance, the names of the fit, or none as it."""
    # Exact types: a subclass may have names.
    if type(X) in _NAMELESS_TYPES:
        return names is None
    if not is_small_frame(X):
        return False
    columns = X.columns
    if names is None:
        return type(columns).__name__ == "RangeIndex"
    return len(columns) == len(names) and bool(columns.tolist() == names.tolist())


def drop_feature_names(estimator: Any) -> Any:
    """Return the estimator without feature names, for rows whose names are known to be right."""
    if "feature_names_in_" not in vars(estimator):
        return estimator
    # A view without a call of the constructor: it shares every fitted array with the estimator.
    view = object.__new__(type(estimator))
    vars(view).update(vars(estimator))
    del vars(view)["feature_names_in_"]
    return view


def remember_dtypes(estimator: Any, X: Any) -> None:
    """Set the dtypes of the rows of a fit, for whoever applies it: a service, a model file."""
    # Frames have a dtype for each column, arrays one for all, lists none.
    dtypes = getattr(X, "dtypes", None)
    if dtypes is not None and hasattr(dtypes, "__iter__"):
        estimator._feature_dtypes = [str(dtype) for dtype in dtypes]
    else:
        dtype = getattr(X, "dtype", None)
        estimator._feature_dtypes = None if dtype is None else [str(dtype)]
