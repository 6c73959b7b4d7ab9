"""`LabelEncoder`."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, Self

import dask.array as da
import numpy as np
from dask.utils import is_series_like
from numpy.typing import NDArray
from sklearn import preprocessing

from daskml_dist.data.collection import as_collection
from daskml_dist.data.column_statistics import find_distinct_rows
from daskml_dist.data.conversion import (
    as_column,
    convert_missing_to_nan,
    convert_to_host,
    copy_to_host,
)
from daskml_dist.data.lazy import is_dask, join_delayed
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.diagnostics.works import reading
from daskml_dist.errors import InvalidDataError, as_ours
from daskml_dist.errors.names import NamedParameters
from daskml_dist.errors.sklearn_errors import TranslatesSklearnErrors, check_fitted
from daskml_dist.estimators.export import Exported
from daskml_dist.inference.transform import map_blocks

__all__ = ["LabelEncoder"]


class LabelEncoder(
    TranslatesSklearnErrors,
    NamedParameters,
    Exported,
    preprocessing.LabelEncoder,
    auto_wrap_output_keys=None,
):
    """:class:`sklearn.preprocessing.LabelEncoder` for Dask Arrays and Series; exact.

    Labels of a Dask collection are read in one pass; `transform` and `inverse_transform` are lazy.
    The classifiers of this package need none: they take labels of any kind.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.preprocessing import LabelEncoder
    >>> encoder = LabelEncoder().fit(np.array(['no', 'yes', 'no']))
    >>> encoder.transform(np.array(['yes', 'no']))
    array([1, 0])
    >>> encoder.inverse_transform(np.array([1, 0])).tolist()
    ['yes', 'no']
    """

    def fit(self, y: Any) -> Self:
        """Find the labels.

        Parameters
        ----------
        y : array-like, dask Array or dask Series of shape (n_rows,)

        Returns
        -------
        self

        Raises
        ------
        InvalidDataError
            `y` has several columns or no rows.
        InvalidTypeError
            Labels are neither all strings nor all numbers.
        """
        y = join_delayed(convert_to_host(y), 1)
        if not is_dask(y):
            preprocessing.LabelEncoder.fit(self, y)
            return self
        column = _one_column(y)
        X = column.to_frame() if is_series_like(column) else column[:, None]
        with reading(type(self).__name__):
            found = reduce_parts(as_collection(X, numeric=False), _labels_of, _union)
        if found is None:
            raise InvalidDataError(
                "y holds 0 labels in all its blocks. Check the filter or the path that made it."
            )
        self.classes_ = found
        return self

    def transform(self, y: Any) -> Any:
        """Position of each label in ``classes_``.

        Parameters
        ----------
        y : array-like, dask Array or dask Series of shape (n_rows,)

        Returns
        -------
        ndarray or lazy dask Array of int of shape (n_rows,)

        Raises
        ------
        InvalidDataError
            A label that `fit` has not seen; of a Dask collection when computed.
        """
        return self._map("transform", y, np.empty(0, dtype=np.intp))

    def fit_transform(self, y: Any) -> Any:
        """:meth:`fit`, and :meth:`transform` of the same labels; parameters as there."""
        if not is_dask(y := convert_to_host(y)):
            return preprocessing.LabelEncoder.fit_transform(self, y)
        return self.fit(y).transform(y)

    def inverse_transform(self, y: Any) -> Any:
        """Labels of positions.

        Parameters
        ----------
        y : array-like, dask Array or dask Series of int of shape (n_rows,)

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows,)
        """
        check_fitted(self)
        return self._map("inverse_transform", y, self.classes_[:0])

    def _map(self, method: str, y: Any, meta: NDArray[Any]) -> Any:
        check_fitted(self)
        y = join_delayed(convert_to_host(y), 1)
        if not is_dask(y):
            return getattr(preprocessing.LabelEncoder, method)(self, y)
        return map_blocks(partial(_apply, copy.copy(self), method), _one_column(y), meta)


def _one_column(y: Any) -> Any:
    """Labels as a Dask Array or Series of one dimension."""
    if isinstance(y, da.Array) and y.ndim == 2 and y.shape[1] == 1:
        return y[:, 0]
    if (isinstance(y, da.Array) and y.ndim == 1) or is_series_like(y):
        return y
    raise InvalidDataError(
        f"y should be a 1d array, got {type(y).__name__} of {getattr(y, 'ndim', 'no')} dimensions "
        "instead. Pass one column, or encode columns of X by OrdinalEncoder."
    )


def _labels_of(index: int, X: Any, y: Any, sample_weight: Any) -> NDArray[Any] | None:
    """Labels of a block; None of an empty one."""
    if X.shape[0] == 0:
        return None
    try:
        few = convert_missing_to_nan(find_distinct_rows(copy_to_host(X))[0])
        return _sorted(as_column(few, name="y", index=index))
    except (ValueError, TypeError) as error:
        raise as_ours(error, f"Block {index} of y: ") from error


def _union(parts: list[NDArray[Any] | None]) -> NDArray[Any] | None:
    found = [part for part in parts if part is not None]
    kinds = {part.dtype.kind for part in found}
    if len(kinds) > 1 and not kinds <= set("biuf"):  # NumPy would make strings of numbers
        found = [part.astype(object) for part in found]
    try:
        return _sorted(np.concatenate(found)) if found else None
    except (ValueError, TypeError) as error:
        raise as_ours(error) from error


def _sorted(labels: NDArray[Any]) -> NDArray[Any]:
    classes: NDArray[Any] = preprocessing.LabelEncoder().fit(labels).classes_
    return classes


def _apply(encoder: preprocessing.LabelEncoder, method: str, y: Any) -> NDArray[Any]:
    few, (places,) = find_distinct_rows(y.to_frame() if is_series_like(y) else y[:, None])
    values = as_column(convert_missing_to_nan(few), name="y")
    try:
        found: NDArray[Any] = getattr(preprocessing.LabelEncoder, method)(encoder, values)
    except ValueError as error:
        raise InvalidDataError(
            f"{error}. Fit on labels that hold them all, or drop these rows."
        ) from error
    return found[places]
