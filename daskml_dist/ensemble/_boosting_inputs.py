"""Inputs of boosting beside plain rows: categorical features, and constraints on features.

`encode_categories` turns the categories of a frame into their numbers, which trees bin as they are;
the functions ``resolve_..._cst`` turn what a user gives into arrays by feature number.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from numbers import Integral
from typing import Any

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray

from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError, InvalidParameterError

Categories = dict[Any, NDArray[Any]]


def find_categorical_features(X: Any, given: Any) -> NDArray[np.bool_] | None:
    """Return the mask of the categorical features, from X and the parameter.

    None where none are given and the number of columns is not known before the rows are read.
    """
    is_frame = is_dataframe_like(X)
    by_dtype = isinstance(given, str) and given == "from_dtype"
    is_asked = given is not None and (is_frame or not by_dtype)
    width = len(X.columns) if is_frame else (X if hasattr(X, "shape") else np.asarray(X)).shape[1]
    if np.isnan(width):
        if is_asked:
            raise InvalidParameterError(
                f"categorical_features={given!r}: the number of columns of X is not known before X "
                "is computed. Pass a dask Array that knows it: dask.array.from_delayed(block, "
                "shape=(numpy.nan, n_columns), dtype=float)."
            )
        return None
    n = int(width)
    if not is_asked:
        return np.zeros(n, bool)
    if by_dtype:
        return np.array([_is_category(dtype) for dtype in X.dtypes], bool)
    # A mask, numbers or names of columns; objects must all be names.
    features = np.asarray(given)
    if features.size == 0:
        return np.zeros(n, bool)
    kinds = [features.dtype.name]
    if features.dtype.kind == "O":
        kinds = sorted({type(one).__name__ for one in features.tolist()})
    if features.dtype.kind not in "iubUO" or (features.dtype.kind == "O" and kinds != ["str"]):
        raise InvalidParameterError(
            "categorical_features must be an array-like of bool, int or str, got: "
            f"{', '.join(kinds)}. Give a mask, numbers or names of features."
        )
    mask = np.zeros(n, bool)
    if features.dtype.kind in "UO":
        if not is_frame:
            raise InvalidParameterError(
                "categorical_features should be passed as an array of integers or as a boolean "
                "mask when the model is fitted on data without feature names."
            )
        names = list(X.columns)
        for name in features.tolist():
            if name not in names:
                raise InvalidParameterError(
                    f"categorical_features has an item value '{name}' which is not a valid "
                    f"feature name of the training data. Observed feature names: {names}. Use "
                    "some of these."
                )
            mask[names.index(name)] = True
    elif features.dtype.kind in "iu":
        if features.max() >= n or features.min() < 0:
            raise InvalidParameterError(
                "categorical_features set as integer indices must be in [0, n_features - 1], and "
                f"X has {n} features. Use these."
            )
        mask[features] = True
    elif len(features) != n:
        raise InvalidParameterError(
            "categorical_features set as a boolean mask must have shape (n_features,), got: "
            f"{features.shape}. X has {n} features."
        )
    else:
        mask[:] = features
    return mask


def _is_category(dtype: Any) -> bool:
    return str(dtype) == "category"


def suggest_categories(X: Any) -> str:
    """Return how to make categories of a frame's columns of words, which boosting takes as such."""
    dtypes = zip(X.columns, X.dtypes, strict=True) if is_dataframe_like(X) else ()
    words = [name for name, dtype in dtypes if dtype.kind == "O" and not _is_category(dtype)]
    if not words:
        return ""
    how = f"X.astype({dict.fromkeys(words, 'category')})"
    if is_dask(X):
        how = f"X.categorize({words})"
    return f" Boosting takes words as categories too: X = {how}."


def find_categories(X: Any, mask: NDArray[np.bool_], max_bins: int) -> Categories:
    """Return the sorted categories of the columns of a frame that a mask names."""
    found: Categories = {}
    for name in X.columns[mask]:
        column = X[name]
        if not _is_category(column.dtype):
            column = column.astype("category")
        known = _read_categories(column, max_bins)
        try:
            found[name] = np.sort(np.asarray(known))
        except TypeError as error:
            raise InvalidDataError(
                f"Categories of {name!r} are of different types ({error}). Make them one: "
                f"X[{name!r}].astype(str).astype('category')."
            ) from error
        check_cardinality(repr(name), len(found[name]), max_bins)
    return found


def _read_categories(column: Any, max_bins: int) -> Any:
    """Return the categories of a column: in memory those that its rows have.

    Of a Dask column those that its dtype declares; where it declares none, or more than there are
    bins, those of its rows.
    """
    if not is_dask(column):
        return column.cat.remove_unused_categories().cat.categories
    try:
        known = column if column.cat.known else column.cat.as_known()
        if len(known._meta.cat.categories) > max_bins:
            return known.dropna().astype(object).unique().compute()
        return known._meta.cat.categories
    except ValueError as error:
        raise InvalidDataError(
            f"Categories of {column.name!r} could not be found: {error}. Give every partition the "
            "columns and dtypes of the frame's meta."
        ) from error


def check_cardinality(name: str, n: int, max_bins: int) -> None:
    """Check that a feature's categories have bins enough."""
    if n > max_bins:
        raise InvalidDataError(
            f"Categorical feature {name} is expected to have a cardinality <= {max_bins} but "
            f"actually has a cardinality of {n}. Raise max_bins (255 at most), join rare "
            "categories, or encode it as numbers (TargetEncoder)."
        )


def encode_categories(X: Any, categories: Mapping[Any, NDArray[Any]], known: bool = False) -> Any:
    """Return a frame with the numbers of categories in their place; NaN for unknown ones."""
    if not categories or not is_dataframe_like(X):
        return X
    if not is_dask(X):
        return _encode_frame(X, categories, known)
    meta = X._meta.assign(**{name: np.empty(0) for name in categories})
    return X.map_partitions(_encode_frame, dict(categories), known, meta=meta)


def _encode_frame(X: Any, categories: Mapping[Any, NDArray[Any]], must: bool) -> Any:
    import pandas as pd

    columns = {}
    for name, known in categories.items():
        # -1 for values that are no known category, missing ones among them.
        at = pd.Index(known).get_indexer(np.asarray(X[name], dtype=object))
        if must and (strange := X[name][at < 0].dropna().unique().tolist()):
            raise InvalidDataError(
                f"Column {name!r} holds categories that the frame's meta does not declare: "
                f"{strange[:5]}. Have them looked for: X[{name!r}].cat.as_unknown()."
            )
        columns[name] = np.where(at < 0, np.nan, at)
    return X.assign(**columns)


def resolve_monotonic_cst(
    estimator: Any, given: Any, n_features: int, n_outputs: int
) -> NDArray[np.int8]:
    """Return the monotonic constraint of each feature: 1 rises, -1 falls, 0 is free."""
    if given is None:
        return np.zeros(n_features, np.int8)
    if n_outputs > 1:
        raise InvalidParameterError(
            "monotonic constraints are not supported for multiclass classification. Leave "
            "monotonic_cst out, or fit a classifier a class."
        )
    if isinstance(given, dict):
        return _resolve_cst_by_name(estimator, given, n_features)
    if np.shape(given) != (n_features,):
        raise InvalidParameterError(
            f"monotonic_cst has shape {np.shape(given)} but the input data X has {n_features} "
            "features. Give a number a feature, or a dict of names."
        )
    strange = sorted({value for value in np.asarray(given).tolist() if value not in (-1, 0, 1)})
    if strange:
        raise InvalidParameterError(
            "monotonic_cst must be an array-like of -1, 0 or 1. Observed values: "
            f"{strange[:5]}. Use these for each feature: 1 rises, -1 falls, 0 is free."
        )
    return np.asarray(given).astype(np.int8)


def _resolve_cst_by_name(
    estimator: Any, given: dict[Any, Any], n_features: int
) -> NDArray[np.int8]:
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        raise InvalidParameterError(
            f"{type(estimator).__name__} was not fitted on data with feature names. Pass "
            "monotonic_cst as an integer array instead."
        )
    numbers = {str(name): i for i, name in enumerate(names)}
    if strange := sorted(str(name) for name in given if name not in numbers):
        told = [*strange[:5], "..."] if len(strange) > 5 else strange
        raise InvalidParameterError(
            f"monotonic_cst contains {len(strange)} unexpected feature names: {told}. X has "
            f"{list(numbers)[:8]}."
        )
    found = np.zeros(n_features, np.int8)
    for name, sign in given.items():
        if sign not in (-1, 0, 1):
            raise InvalidParameterError(
                f"monotonic_cst['{name}'] must be either -1, 0 or 1. Got {sign!r}."
            )
        found[numbers[name]] = sign
    return found


def resolve_interaction_cst(given: Any, n_features: int) -> tuple[tuple[int, ...], ...] | None:
    """Return the groups of features that may be split by in one branch; None: all may."""
    if given is None:
        return None
    if isinstance(given, str) and given == "no_interactions":
        given = [[i] for i in range(n_features)]
    elif isinstance(given, str) and given == "pairwise":
        given = combinations(range(n_features), 2)
    hint = 'Use "pairwise", "no_interactions", or a list of lists of numbers of features.'
    if isinstance(given, str):
        raise InvalidParameterError(f"interaction_cst={given!r}. {hint}")
    try:
        groups = [set(group) for group in given]
    except TypeError as error:
        raise InvalidParameterError(
            f"Interaction constraints must be a sequence of tuples or lists, got: {given!r}. {hint}"
        ) from error
    for group in groups:
        if not all(isinstance(i, Integral) and 0 <= int(i) < n_features for i in group):
            raise InvalidParameterError(
                "Interaction constraints must consist of integer indices in [0, n_features - 1] "
                f"= [0, {n_features - 1}], specifying the position of features, got invalid "
                f"indices: {group!r}. {hint}"
            )
    # Features that no group names form one of their own, as in scikit-learn.
    rest = set(range(n_features)).difference(*groups)
    groups += [rest] if rest else []
    return tuple(tuple(sorted(int(i) for i in group)) for group in groups)
