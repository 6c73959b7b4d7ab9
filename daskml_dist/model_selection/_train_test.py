"""`train_test_split`."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import model_selection

from daskml_dist.data.collection import as_collection, take_named_columns
from daskml_dist.data.conversion import convert_foreign
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.sklearn_errors import translate_errors
from daskml_dist.model_selection._codes import ByRange
from daskml_dist.model_selection._roles import TEST, TRAIN, Order, TableRoles
from daskml_dist.model_selection._split_rows import RowsOfSplits, count_rows
from daskml_dist.model_selection._splitters import (
    ShuffleSplit,
    StratifiedShuffleSplit,
    sizes_of,
)

__all__ = ["train_test_split"]


@translate_errors()
@suggest_arguments
def train_test_split(
    *arrays: Any,
    test_size: float | None = None,
    train_size: float | None = None,
    random_state: Any = None,
    shuffle: bool = True,
    stratify: Any = None,
) -> list[Any]:
    """Split rows into training and test rows.

    Parameters
    ----------
    *arrays : dask Arrays, DataFrames or Series, or in memory, of as many rows each
        Where one is a Dask collection, the first must be.
    test_size, train_size : float in (0, 1), or int, or None
        Shares or numbers of rows; a quarter of them by default.
    random_state : int, RandomState or None
    shuffle : bool, default=True
        Whether rows are drawn; without, the last ones are test rows. Of Dask collections every
        block gives its share of test rows, and rows keep their order.
    stratify : like a target, or str, or None
        A name is that of a column of the first array, a dataframe.
        Both sides have as many rows of each label as all rows have.

    Returns
    -------
    list
        Training rows and test rows of each array; lazy where an array is. Dask Arrays among them
        know their chunk sizes.

    Raises
    ------
    InvalidParameterError, InvalidDataError

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.model_selection import train_test_split
    >>> X, y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2
    >>> X_train, X_test, y_train, y_test = train_test_split(
    ...     X, y, test_size=0.2, stratify=y, random_state=0
    ... )
    >>> X_train.shape, y_test.tolist()
    ((8, 2), [0, 1])
    """
    arrays, stratify = tuple(map(convert_foreign, arrays)), convert_foreign(stratify)
    if isinstance(stratify, str) and arrays:
        _, stratify, _ = take_named_columns(arrays[0], stratify, None)
    if not any(map(is_dask, (*arrays, stratify))):
        found: list[Any] = model_selection.train_test_split(
            *arrays, test_size=test_size, train_size=train_size, random_state=random_state,
            shuffle=shuffle, stratify=stratify,
        )  # fmt: skip
        return found
    if not arrays or not is_dask(arrays[0]):
        raise InvalidParameterError(
            "The first array is in memory and another is a Dask collection. Pass the rows as Dask "
            "collection first: dask.array.from_array(X)."
        )
    if test_size is None and train_size is None:
        test_size = 0.25  # of the splitters it is a tenth
    sizes = {"test_size": test_size, "train_size": train_size}
    if not shuffle:
        if stratify is not None:
            raise InvalidParameterError(
                "Stratified train/test split is not implemented for shuffle=False. Leave out one "
                "of them."
            )
        rows = _in_order(arrays, test_size, train_size)
    elif stratify is None:
        rows = ShuffleSplit(1, random_state=random_state, **sizes).rows(arrays)
    else:
        splitter = StratifiedShuffleSplit(1, random_state=random_state, **sizes)
        rows = splitter.rows(arrays, stratify)
    sides = rows.side(0, TRAIN), rows.side(0, TEST)
    return [side[i] for i in range(len(arrays)) for side in sides]


def _in_order(arrays: tuple[Any, ...], test_size: Any, train_size: Any) -> RowsOfSplits:
    """Training rows first, then test rows; what is left over is neither."""
    columns = as_collection(arrays[0], numeric=False, any_shape=True)
    counts = count_rows(columns)
    n_rows = int(counts.sum())
    n_train, n_test = sizes_of(n_rows, test_size, train_size)
    order = Order(np.asarray(counts.cumsum() - counts, np.int64))
    codes = ByRange(order, np.array([n_train, n_train + n_test]), 3, n_rows)
    roles = TableRoles(np.array([[TRAIN], [TEST], [0]], np.int8))
    return RowsOfSplits(arrays, columns, codes, roles)
