"""Additional inputs of boosting: categorical features, and constraints on features.

The categories of a dataframe's columns are sorted and encoded as 0, 1, ..., and each code gets a
separate bin, without binning by value. The functions ``resolve_..._cst`` turn constraints in any of
the forms that scikit-learn accepts into arrays by feature number.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from numbers import Integral
from typing import Any

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray

from daskml_dist.data.conversion import convert_foreign
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError, InvalidParameterError

#: Sorted categories by the name of a column.
Categories = dict[Any, NDArray[Any]]


def find_categorical_features(X: Any, categorical_features: Any) -> NDArray[np.bool_] | None:
    """Return the mask of the categorical features, given X and the parameter.

    None if there are none, but the number of columns is not known before rows are read.
    """
    is_frame = is_dataframe_like(X)
    by_dtype = isinstance(categorical_features, str) and categorical_features == "from_dtype"
    is_asked = categorical_features is not None and (is_frame or not by_dtype)
    width = len(X.columns) if is_frame else (X if hasattr(X, "shape") else np.asarray(X)).shape[1]
    # For example, of a dask Array made from delayed blocks.
    if np.isnan(width):
        if is_asked:
            raise InvalidParameterError(
                f"categorical_features={categorical_features!r}: the number of columns of X is "
                "unknown until X is computed. Pass a Dask Array that knows it: "
                "dask.array.from_delayed(block, shape=(numpy.nan, n_columns), dtype=float)."
            )
        return None
    n = int(width)
    if not is_asked:
        return np.zeros(n, bool)
    if by_dtype:
        return np.array([_is_category(dtype) for dtype in X.dtypes], bool)
    # A mask, numbers or names of columns. An object array may hold only names.
    features = np.asarray(categorical_features)
    # NumPy converts an empty list to an array of floats, which would be refused below.
    if features.size == 0:
        return np.zeros(n, bool)
    kinds = [features.dtype.name]
    if features.dtype.kind == "O":
        kinds = sorted({type(feature).__name__ for feature in features.tolist()})
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
    """Return a hint to make categories of a frame's text columns; empty if it has none."""
    dtypes = zip(X.columns, X.dtypes, strict=True) if is_dataframe_like(X) else ()
    # The kind of pandas' categorical dtype is "O" too.
    text_columns = [name for name, dtype in dtypes if dtype.kind == "O" and not _is_category(dtype)]
    if not text_columns:
        return ""
    remedy = f"X.astype({dict.fromkeys(text_columns, 'category')})"
    if is_dask(X):
        remedy = f"X.categorize({text_columns})"
    return f" Boosting also accepts categories: X = {remedy}."


def find_categories(X: Any, mask: NDArray[np.bool_], max_bins: int) -> Categories:
    """Return the sorted categories of the columns of a frame that a mask selects."""
    categories: Categories = {}
    for name in X.columns[mask]:
        column = X[name]
        if not _is_category(column.dtype):  # another column, selected by a mask or name
            column = column.astype("category")
        values = _read_categories(column, max_bins)
        try:
            # Sorted: codes must not depend on the order in which a dtype declares its categories.
            categories[name] = np.sort(np.asarray(values))
        except TypeError as error:
            raise InvalidDataError(
                f"Categories of {name!r} are of different types ({error}). Make them one: "
                f"X[{name!r}].astype(str).astype('category')."
            ) from error
        check_cardinality(repr(name), len(categories[name]), max_bins)
    return categories


def _read_categories(column: Any, max_bins: int) -> Any:
    """Return the categories of a column of categorical dtype.

    In memory these are the values of the rows. For Dask they are those declared by the dtype, which
    needs no pass over the rows.
    """
    if not is_dask(column):
        return column.cat.remove_unused_categories().cat.categories
    try:
        # One pass if the dtype declares none, or more than there are bins: the rows may have fewer.
        with_categories = column if column.cat.known else column.cat.as_known()
        if len(with_categories._meta.cat.categories) > max_bins:
            return with_categories.dropna().astype(object).unique().compute()
        return with_categories._meta.cat.categories
    except ValueError as error:
        raise InvalidDataError(
            f"Categories of {column.name!r} could not be found: {error}. Give every partition the "
            "columns and dtypes of the frame's meta."
        ) from error


def check_cardinality(name: str, n: int, max_bins: int) -> None:
    """Raise an error for a feature with more categories than bins."""
    if n > max_bins:
        raise InvalidDataError(
            f"Categorical feature {name} is expected to have a cardinality <= {max_bins} but "
            f"actually has a cardinality of {n}. Raise max_bins (255 at most), join rare "
            "categories, or encode it as numbers (TargetEncoder)."
        )


def encode_categories(
    X: Any, categories: Mapping[Any, NDArray[Any]], only_known: bool = False
) -> Any:
    """Return a frame with codes instead of categories, NaN for missing and unknown ones.

    With `only_known`, an unknown category is an error.
    """
    if not categories or not is_dataframe_like(X := convert_foreign(X)):
        return X
    if not is_dask(X):
        return _encode_frame(X, categories, only_known)
    # Codes are float64, in which NaN represents a missing value.
    meta = X._meta.assign(**{name: np.empty(0) for name in categories})
    return X.map_partitions(_encode_frame, dict(categories), only_known, meta=meta)


def _encode_frame(X: Any, categories: Mapping[Any, NDArray[Any]], only_known: bool) -> Any:
    """Return a pandas DataFrame with codes instead of categories, as `encode_categories`."""
    import pandas as pd

    columns = {}
    for name, values in categories.items():
        # -1 for values that are not categories, including missing ones. Looked up by value, since
        # the codes of a categorical column number the categories of its own frame.
        codes = pd.Index(values).get_indexer(np.asarray(X[name], dtype=object))
        if only_known and (unknown := X[name][codes < 0].dropna().unique().tolist()):
            raise InvalidDataError(
                f"Column {name!r} holds categories that the frame's meta does not declare: "
                f"{unknown[:5]}. Let Dask find them: X[{name!r}].cat.as_unknown()."
            )
        columns[name] = np.where(codes < 0, np.nan, codes)
    return X.assign(**columns)


def resolve_monotonic_cst(
    estimator: Any, monotonic_cst: Any, n_features: int, n_outputs: int
) -> NDArray[np.int8]:
    """Return the monotonic constraint of each feature: 1 rises, -1 falls, 0 is free."""
    if monotonic_cst is None:
        return np.zeros(n_features, np.int8)
    # Probabilities of several classes depend on the trees of all classes, so no constraint on one
    # tree makes them monotonic.
    if n_outputs > 1:
        raise InvalidParameterError(
            "monotonic constraints are not supported for multiclass classification, or for several "
            "targets in one tree. Leave monotonic_cst out, or fit one classifier per class (for "
            'targets: multi_strategy="one_output_per_tree").'
        )
    if isinstance(monotonic_cst, dict):
        return _resolve_cst_by_name(estimator, monotonic_cst, n_features)
    if np.shape(monotonic_cst) != (n_features,):
        raise InvalidParameterError(
            f"monotonic_cst has shape {np.shape(monotonic_cst)} but the input data X has "
            f"{n_features} "
            "features. Give one number per feature, or a dict by feature name."
        )
    invalid = sorted(
        {value for value in np.asarray(monotonic_cst).tolist() if value not in (-1, 0, 1)}
    )
    if invalid:
        raise InvalidParameterError(
            "monotonic_cst must be an array-like of -1, 0 or 1. Observed values: "
            f"{invalid[:5]}. Use these for each feature: 1 rises, -1 falls, 0 is free."
        )
    return np.asarray(monotonic_cst).astype(np.int8)


def _resolve_cst_by_name(
    estimator: Any, monotonic_cst: dict[Any, Any], n_features: int
) -> NDArray[np.int8]:
    """Return the monotonic constraint of each feature, given a dict by names of features."""
    names = getattr(estimator, "feature_names_in_", None)  # set when inputs were checked
    if names is None:
        raise InvalidParameterError(
            f"{type(estimator).__name__} was not fitted on data with feature names. Pass "
            "monotonic_cst as an integer array instead."
        )
    numbers = {str(name): i for i, name in enumerate(names)}
    if unknown := sorted(str(name) for name in monotonic_cst if name not in numbers):
        first = [*unknown[:5], "..."] if len(unknown) > 5 else unknown
        raise InvalidParameterError(
            f"monotonic_cst contains {len(unknown)} unexpected feature names: {first}. X has "
            f"{list(numbers)[:8]}."
        )
    signs = np.zeros(n_features, np.int8)
    for name, sign in monotonic_cst.items():
        if sign not in (-1, 0, 1):
            raise InvalidParameterError(
                f"monotonic_cst['{name}'] must be either -1, 0 or 1. Got {sign!r}."
            )
        signs[numbers[name]] = sign
    return signs


def resolve_interaction_cst(
    interaction_cst: Any, n_features: int
) -> tuple[tuple[int, ...], ...] | None:
    """Return groups of features: the splits of a branch must use one group; None: no groups.

    Groups may overlap: a feature can be in several.
    """
    if interaction_cst is None:
        return None
    if isinstance(interaction_cst, str) and interaction_cst == "no_interactions":
        interaction_cst = [[i] for i in range(n_features)]
    elif isinstance(interaction_cst, str) and interaction_cst == "pairwise":
        # All d (d - 1) / 2 pairs: for 1000 features about 500,000 groups.
        interaction_cst = combinations(range(n_features), 2)
    hint = 'Use "pairwise", "no_interactions", or a list of lists of numbers of features.'
    if isinstance(interaction_cst, str):
        raise InvalidParameterError(f"interaction_cst={interaction_cst!r}. {hint}")
    try:
        groups = [set(group) for group in interaction_cst]
    except TypeError as error:
        raise InvalidParameterError(
            f"Interaction constraints must be a sequence of tuples or lists, got: "
            f"{interaction_cst!r}. {hint}"
        ) from error
    for group in groups:
        if not all(isinstance(i, Integral) and 0 <= int(i) < n_features for i in group):
            raise InvalidParameterError(
                "Interaction constraints must consist of integer indices in [0, n_features - 1] "
                f"= [0, {n_features - 1}], specifying the position of features, got invalid "
                f"indices: {group!r}. {hint}"
            )
    # Features in no group form an additional group, as in scikit-learn.
    ungrouped = set(range(n_features)).difference(*groups)
    groups += [ungrouped] if ungrouped else []
    return tuple(tuple(sorted(int(i) for i in group)) for group in groups)
