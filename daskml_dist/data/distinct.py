"""Distinct values of columns, and the place of each row's value among them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray

from daskml_dist.data.optional import load_pandas

__all__ = ["count_whole", "distinct_rows"]

Places: TypeAlias = NDArray[np.integer[Any]]

#: Whole numbers no further apart than this, or than there are rows, are counted, not sorted.
_NEAR = 1024


def distinct_rows(X: Any) -> tuple[Any, list[Places]]:
    """A few rows with every value of each column, and the place of each row's value there.

    What a column's dtype knows of its values is used: codes of categories, a dictionary of Arrow's
    strings; no object is made for a row.

    Parameters
    ----------
    X : pandas.DataFrame or ndarray of shape (n_rows, n_columns)
        Of at least one row. Other kinds come back as they are.

    Returns
    -------
    few : pandas.DataFrame or ndarray of shape (n_few, n_columns)
        Of the dtypes of `X`; shorter columns are repeated.
    places : list of ndarray of int of shape (n_rows,)
        One a column: rows of `few`.
    """
    if is_dataframe_like(X):
        columns = [_of_series(X.iloc[:, j]) for j in range(X.shape[1])]
        longest = max(len(values) for values, _ in columns)
        few = load_pandas().DataFrame(
            {
                j: values.take(np.resize(np.arange(len(values)), longest)).reset_index(drop=True)
                for j, (values, _) in enumerate(columns)
            }
        )
        few.columns = X.columns
    elif isinstance(X, np.ndarray):
        columns = [_of_array(X[:, j]) for j in range(X.shape[1])]
        longest = max(len(values) for values, _ in columns)
        few = np.stack([np.resize(values, longest) for values, _ in columns], axis=1)
    else:
        return X, [np.arange(X.shape[0])] * X.shape[1]
    return few, [places for _, places in columns]


def _of_series(column: Any) -> tuple[Any, Places]:
    """Distinct values of a column, of its dtype, and the place of each row's."""
    pandas, dtype = load_pandas(), column.dtype
    if isinstance(dtype, pandas.CategoricalDtype):
        codes, places = _present(column.cat.codes.to_numpy(), len(dtype.categories))
        return pandas.Series(pandas.Categorical.from_codes(codes, dtype=dtype)), places
    if not isinstance(dtype, np.dtype):
        places, values = column.array.factorize()
        values = pandas.Series(values, dtype=dtype)
        if len(places) and places.min() < 0:
            missing = column.iloc[[int(places.argmin())]]
            values, places = pandas.concat([missing, values]), places + 1
        return values, places
    values, places = _of_array(column.to_numpy())
    return pandas.Series(values, dtype=dtype), places


def _of_array(values: NDArray[Any]) -> tuple[NDArray[Any], Places]:
    if values.dtype.kind == "O":
        return _of_objects(values)
    if (counted := _count_numbers(values)) is not None:
        return counted
    found, places = np.unique(values, return_inverse=True)
    return found, places


def _of_objects(values: NDArray[Any]) -> tuple[NDArray[Any], Places]:
    rows = values.tolist()
    try:
        place = {value: i for i, value in enumerate(dict.fromkeys(rows))}
    except TypeError:  # what has no hash is for scikit-learn to refuse
        return values, np.arange(len(values))
    found = np.empty(len(place), dtype=object)
    found[:] = list(place)
    return found, np.fromiter(map(place.__getitem__, rows), np.intp, len(rows))


def _count_numbers(values: NDArray[Any]) -> tuple[NDArray[Any], Places] | None:
    """As `count_whole`; of floats that are whole numbers too."""
    if values.dtype.kind != "f":
        return count_whole(values)
    with np.errstate(invalid="ignore"):
        whole = values.astype(np.int64)
    counted = count_whole(whole) if (whole == values).all() else None
    return None if counted is None else (counted[0].astype(values.dtype), counted[1])


def _present(codes: NDArray[Any], n: int) -> tuple[NDArray[np.intp], Places]:
    """Codes that are there, -1 for missing values among them, and the place of each row's."""
    if len(codes) and codes.min() >= 0:
        there = np.bincount(codes, minlength=n) > 0
        if there.all():
            return np.arange(n), codes
        return np.flatnonzero(there), (np.cumsum(there) - 1)[codes]
    after = np.add(codes, 1, dtype=np.intp)
    there = np.bincount(after, minlength=n + 1) > 0
    return np.flatnonzero(there) - 1, (np.cumsum(there) - 1)[after]


def count_whole(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]] | None:
    """Distinct values, sorted, and the place of each among them, by counting.

    None where `values` are no integers that lie together.
    """
    if values.dtype.kind not in "iu" or not len(values):
        return None
    low, high = int(values.min()), int(values.max())
    if high - low > max(_NEAR, len(values)) or high > np.iinfo(np.intp).max:
        return None
    at = values.astype(np.intp)
    at -= low
    if high - low <= 1:
        return np.array([low, high][: high - low + 1], dtype=values.dtype), at
    there = np.bincount(at) > 0
    if not there.all():
        at = (np.cumsum(there) - 1)[at]
    return (np.flatnonzero(there) + low).astype(values.dtype), at
