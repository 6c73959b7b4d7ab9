"""Remedies for columns and targets that are no numbers, and for rows of a wrong shape."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from dask.utils import is_series_like

from daskml_dist.data.lazy import is_dask
from daskml_dist.errors.outside import outside

__all__ = [
    "columns_remedy",
    "shape_remedy",
    "target_is_column",
    "values_remedy",
    "warn_of_target",
]


def columns_remedy(wrong: Mapping[Any, Any]) -> str:
    """Return what to do about columns of a dataframe that are not numeric.

    Parameters
    ----------
    wrong : mapping of name to dtype
    """
    of_kind: dict[str, list[Any]] = {}
    for name, dtype in wrong.items():
        of_kind.setdefault(_kind_of(dtype), []).append(name)
    return "\n".join(_COLUMNS[kind].format(names=names) for kind, names in of_kind.items())


def values_remedy(dtype: Any, name: str) -> str:
    """Return what to do about an array, a target or weights that are not numeric."""
    kind = _kind_of(dtype)
    if kind == "dates":
        return (
            f"Pass numbers in place of dates, such as the seconds since 1970, {name} = "
            f"{name}.astype('datetime64[s]').astype('int64')."
        )
    if kind == "spans of time":
        return (
            f"Pass numbers in place of spans of time, such as seconds: {name}.dt.total_seconds() "
            f"of a Series, {name} / numpy.timedelta64(1, 's') of an array."
        )
    if name == "X":
        first = (
            "Encode it first, for example with daskml_dist.preprocessing.OrdinalEncoder or "
            "OneHotEncoder"
        )
    elif name == "sample_weight":
        first = "Pass a number for each row"
    elif name == "y":
        first = "A regressor learns numbers: use a classifier for labels"
    else:
        first = "Use a score of labels, such as accuracy_score, for labels"
    return f"{first}; where it holds numbers, {name} = {name}.astype('float64')."


def shape_remedy(X: Any) -> str:
    """Return what to do about rows that have not two dimensions.

    Parameters
    ----------
    X : object
        As the user passed it: an array, a list or a Series.
    """
    if is_series_like(X):
        column = "X.to_frame()" if X.name is None else f"df[[{X.name!r}]], or X.to_frame()"
        told = f"A Series is one column: pass a frame of it, {column}; of one row df.iloc[[0]]."
    else:
        told = ""
    if _holds_texts(X):
        return (
            f"{told} Texts are made numbers by a vectorizer of daskml_dist.feature_extraction: "
            "make_pipeline(HashingVectorizer(), model). Where they are the labels, pass them after "
            "the rows: fit(X, y)."
        ).lstrip()
    if isinstance(X, list | tuple) and X and isinstance(X[0], Mapping):
        return "Make a frame of the dicts: X = pandas.DataFrame(X)."
    if told:
        return told
    if getattr(X, "ndim", 1) > 2:
        return (
            "Reshape your data: X.reshape(len(X), -1) makes one row of each entry. Networks of "
            "PyTorch (TorchClassifier) take such arrays as they are."
        )
    return (
        "Reshape your data either using array.reshape(-1, 1) if it has a single feature or "
        "array.reshape(1, -1) if it contains a single sample."
    )


def target_is_column(X: Any, y: Any) -> str:
    """Return what to do where a Series that is the target bears the name of a column of X."""
    name = getattr(y, "name", None)
    if not is_series_like(y) or name is None or name not in getattr(X, "columns", ()):
        return ""
    return (
        f" Where column {name!r} is the target, leave it out of X: X.drop(columns={name!r}), or "
        f"fit(X, y={name!r})."
    )


def warn_of_target(X: Any, y: Any) -> None:
    """Warn where the target is a column of X, from which a model would read it.

    Of Dask collections by what they are made of: nothing is computed.

    Warns
    -----
    UserWarning
    """
    remedy = target_is_column(X, y)
    if not remedy or is_dask(X) != is_dask(y):
        return
    column = X[y.name]
    if (column._name == y._name) if is_dask(X) else column.equals(y):
        warnings.warn(
            f"Column {y.name!r} of X holds the target itself, which a model then only has to "
            f"read.{remedy}",
            UserWarning,
            stacklevel=outside(),
        )


def _kind_of(dtype: Any) -> str:
    if str(dtype).startswith("period"):
        return "periods"
    return {"M": "dates", "m": "spans of time"}.get(getattr(dtype, "kind", "O"), "words")


#: What to do about columns of each kind.
_COLUMNS = {
    "dates": (
        "Take numbers out of the dates {names}, such as X[name].dt.hour, .dt.dayofweek or "
        ".dt.dayofyear, or the seconds since one, (X[name] - start).dt.total_seconds(), and drop "
        "the dates."
    ),
    "periods": (
        "Take numbers out of the periods {names}, such as X[name].dt.year or .dt.month, and drop "
        "them."
    ),
    "spans of time": "Make seconds of the spans of time {names}: X[name].dt.total_seconds().",
    "words": (
        "Encode or drop them first, for example:\n"
        "    from daskml_dist.preprocessing import OneHotEncoder\n"
        "    encode = make_column_transformer((OneHotEncoder(), {names}), "
        "remainder='passthrough')  # of daskml_dist.compose\n"
        "    model = make_pipeline(encode, model).fit(X, y)  # of sklearn.pipeline\n"
        "Where they hold numbers, X = X.astype('float64')."
    ),
}


def _holds_texts(X: Any) -> bool:
    """Return whether rows of one dimension are texts, by their dtype or the first of them."""
    if getattr(X, "ndim", 1) != 1:
        return False
    dtype = getattr(X, "dtype", None)
    if dtype is not None and not (isinstance(dtype, np.dtype) and dtype.kind == "O"):
        return str(dtype).startswith(("str", "<U", "|S", "large_string")) or dtype.kind in "UT"
    first = None
    if isinstance(X, list | tuple | np.ndarray) and len(X):
        first = X[0]
    elif hasattr(X, "iloc") and isinstance(getattr(X, "size", None), int) and X.size:
        first = X.iloc[0]
    return isinstance(first, str | bytes)
