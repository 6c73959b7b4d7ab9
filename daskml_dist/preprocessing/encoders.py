"""Encoders of categories and labels, and the base class that learns categories block by block.

What an encoder learns follows from the categories of each column and the number of rows of each.
`CategoryEncoder` collects both from the blocks, and fits scikit-learn's class to a few made-up rows
that hold all categories, with the true numbers put in its place (`_counts`). Objects are looked up
in Python, which is slow: only the distinct values of a column in a block are encoded.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, Self

import dask.array as da
import numpy as np
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import NDArray
from sklearn import preprocessing
from sklearn.base import clone

from daskml_dist.backends.namespace import cast, namespace, one_hot
from daskml_dist.data.collection import as_collection
from daskml_dist.data.column_statistics import count_distinct_rows, find_distinct_rows
from daskml_dist.data.conversion import (
    as_column,
    convert_missing_to_nan,
    convert_to_host,
    copy_to_host,
    load_pandas,
)
from daskml_dist.data.lazy import is_dask, join_delayed
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.diagnostics.operation_progress import report_reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError, as_ours
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.estimators.estimator_mixin import EstimatorMixin
from daskml_dist.estimators.transformer import BlockTransformer
from daskml_dist.inference.block_mapping import make_sample_row, map_blocks
from daskml_dist.inference.few_transformed_rows import returns_arrays

#: From this number of rows, only the distinct values of a column are encoded; with fewer rows,
#: finding these costs more than it saves.
_MIN_ROWS_FOR_DISTINCT = 256


class CategoryEncoder(BlockTransformer):
    """Base class of encoders whose fitted state follows from categories and their counts."""

    _numeric = False
    #: Total number of rows, and the number of rows in each category of each column. Set while
    #: scikit-learn's `fit` runs on made-up rows, whose own counts are wrong; otherwise None.
    _counts: tuple[int, list[NDArray[np.int64]]] | None = None

    def _prepare_block(self, X: Any) -> Any:
        return X  # `_summarise` converts only the distinct values

    def _summarise(self, X: Any, sample_weight: Any) -> Any:
        """Return the categories of each column, their counts, n_rows, and whether X is a frame."""
        distinct, rows_of_distinct = count_distinct_rows(X)
        distinct = convert_missing_to_nan(distinct)
        # Given categories are checked against the rows, by scikit-learn's own fit to them.
        user_categories = self.categories
        if not isinstance(user_categories, str):
            clone(self).set_params(min_frequency=None, max_categories=None).fit(distinct)
        categories, codes = number_categories(distinct, user_categories)
        counts = []
        for j, column_categories in enumerate(categories):
            column, n_rows = codes[:, j], rows_of_distinct[j]
            # Add up the rows of each category; unknown values (code -1) belong to none.
            sums = np.zeros(len(column_categories), dtype=np.int64)
            is_known = column >= 0
            np.add.at(sums, column[is_known], n_rows[is_known])
            counts.append(sums)
        return categories, counts, X.shape[0], is_dataframe_like(X)

    def _merge(self, summaries: list[Any]) -> Any:
        categories, counts, n_rows, are_frames = zip(*summaries, strict=True)
        join = _add_counts_of_union if isinstance(self.categories, str) else _add_counts
        # Transpose: from a list of columns per block to a list of blocks per column.
        columns = zip(zip(*categories, strict=True), zip(*counts, strict=True), strict=True)
        merged = [join(list(column_categories), list(sums)) for column_categories, sums in columns]
        return [c for c, _ in merged], [n for _, n in merged], sum(n_rows), are_frames[0]

    def _finish(self, summary: Any) -> None:
        """Fit scikit-learn's class to a few rows that hold all categories."""
        categories, counts, n_rows, is_frame = summary
        made_up = self._make_rows_of_categories(categories, is_frame)
        self._counts = n_rows, counts
        try:
            super().fit(made_up)
        except ValueError as error:  # such as a category to drop that no row has
            raise InvalidParameterError(
                f"{error}\nThe parameters do not match the categories in X: change one of them."
            ) from error
        finally:
            del self._counts

    def _make_rows_of_categories(self, categories: list[NDArray[Any]], is_frame: bool) -> Any:
        """Return few rows that hold all categories, as an array or a frame."""
        # Columns with fewer categories repeat them, up to the length of the longest column.
        longest = max(map(len, categories))
        columns = [np.resize(column_categories, longest) for column_categories in categories]
        if not is_frame:
            return np.column_stack(columns)
        names = getattr(self, "feature_names_in_", range(len(columns)))
        return _make_frame(names, columns)

    def _fit_infrequent_category_mapping(
        self, n_samples: int, category_counts: Any, missing_indices: Any
    ) -> None:
        # Private method of scikit-learn that counts the rows of each category. The rows are made up
        # here, so it gets the true counts.
        if self._counts is not None:
            n_samples, category_counts = self._counts
        super()._fit_infrequent_category_mapping(n_samples, category_counts, missing_indices)

    def _find_device_codes(self, X: Any) -> list[Any] | None:
        """Return the code of each value of columns on a GPU; None if the host must find them.

        The host is needed for sparse rows, missing or unknown values, infrequent categories that
        are merged, and a fit with column names, which arrays on a GPU lack.
        """
        attributes = vars(self)
        merges = self.min_frequency is not None or self.max_categories is not None
        if hasattr(X, "tocsr") or merges or "feature_names_in_" in attributes:
            return None
        if attributes.get("n_features_in_") != X.shape[-1] or not returns_arrays(self):
            return None
        if any(
            column_categories.dtype.kind not in "fiub" or not len(column_categories)
            for column_categories in self.categories_
        ):
            return None
        xp, codes = namespace(X), []
        for j, column_categories in enumerate(self.categories_):
            column, categories = X[:, j], xp.asarray(column_categories)
            positions = xp.searchsorted(categories, column)
            positions = xp.where(
                positions < len(column_categories), positions, xp.zeros_like(positions)
            )
            if not xp.all(xp.take(categories, positions) == column):
                return None
            codes.append(positions)
        return codes

    def _rows_to_transform(self, X: Any) -> Any:
        # For a large frame, `_transform` converts only the distinct values.
        has_many_rows = is_dataframe_like(X) and len(X) >= _MIN_ROWS_FOR_DISTINCT
        return X if has_many_rows else self._plain(X)

    def _transform(self, X: Any, *args: Any, **options: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the code of each value of X, and whether it is known.

        This overrides scikit-learn's private method of all encoders, which looks up each value.
        """
        if np.shape(X)[0] < _MIN_ROWS_FOR_DISTINCT or not (
            is_dataframe_like(X) or isinstance(X, np.ndarray)
        ):
            encoded = super()._transform(X, *args, **options)
            return encoded[0], encoded[1]
        # Encode the distinct values; `places` has the position of each row's value among them.
        distinct, places = find_distinct_rows(X)
        codes, are_known = super()._transform(convert_missing_to_nan(distinct), *args, **options)
        index = np.stack(places, axis=1), np.arange(len(places))
        return codes[index], are_known[index]

    def _sample(self, X: Any) -> Any:
        # A row of known categories, which handle_unknown="error" accepts.
        if not hasattr(self, "categories_") or not all(map(len, self.categories_)):
            return make_sample_row(X)
        first = [column_categories[:1] for column_categories in self.categories_]
        if not hasattr(X, "columns"):
            return np.column_stack(first)
        return _make_frame(X.columns, first)


def number_categories(rows: Any, categories: Any) -> tuple[list[NDArray[Any]], NDArray[np.int64]]:
    """Return the categories of each column and the codes of its values; -1 for unknown ones.

    A missing value has the last code, since its category is sorted last.
    """
    # -2 marks missing values until the number of categories is known.
    encoder = preprocessing.OrdinalEncoder(
        categories=categories,
        handle_unknown="use_encoded_value",
        unknown_value=-1,
        encoded_missing_value=-2,
    )
    codes = encoder.fit_transform(rows).astype(np.int64)
    last = np.array([len(column_categories) - 1 for column_categories in encoder.categories_])
    return encoder.categories_, np.where(codes == -2, last, codes)


def _lack_missing_value(categories: list[NDArray[Any]]) -> bool:
    """Return whether the common dtype of categories is of whole numbers or bools."""
    return bool(categories) and np.result_type(*categories).kind in "biu"


def _make_frame(names: Any, columns: list[NDArray[Any]]) -> Any:
    """Return a frame of columns with their dtypes."""
    # Without a dtype, pandas would convert a column of objects to strings, and None to NaN.
    series = load_pandas().Series
    typed_columns = [series(column, dtype=column.dtype) for column in columns]
    return load_pandas().DataFrame(dict(zip(names, typed_columns, strict=True)))


def _add_counts(
    categories: list[NDArray[Any]], counts: list[NDArray[np.int64]]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the categories that the user gave, in that order, and the rows of each."""
    return categories[0], np.sum(counts, axis=0)


def _add_counts_of_union(
    categories: list[NDArray[Any]], counts: list[NDArray[np.int64]]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the sorted union of a column's categories, and the number of rows of each."""
    union, places = join_categories(categories)
    sums = np.zeros(len(union), dtype=np.int64)
    np.add.at(sums, places, np.concatenate(counts))
    return union, sums


def join_categories(categories: list[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the sorted union of a column's categories, and the position of each in it."""
    dtypes = {part.dtype for part in categories}
    if len(dtypes) > 1 and any(dtype.kind not in "biuf" for dtype in dtypes):
        # Blocks may have different dtypes, for example if a column has no value in one of them.
        # NumPy would convert numbers to text if it joined them with text.
        categories = [part.astype(object) for part in categories]
    (union,), places = number_categories(np.concatenate(categories)[:, None], "auto")
    return union, places[:, 0]


class OrdinalEncoder(CategoryEncoder, preprocessing.OrdinalEncoder):
    """:class:`sklearn.preprocessing.OrdinalEncoder` for Dask collections; exact.

    Parameters
    ----------
    categories : "auto" or list of array-like, default="auto"
    dtype : number type, default=float64
    handle_unknown : {"error", "use_encoded_value"}, default="error"
        An error is raised when the result is computed, and names the block.
    unknown_value : int or numpy.nan, default=None
    encoded_missing_value : int or numpy.nan, default=numpy.nan
    min_frequency : int or float, default=None
    max_categories : int, default=None

    Attributes
    ----------
    categories_ : list of ndarray
    infrequent_categories_ : list of ndarray
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.preprocessing import OrdinalEncoder
    >>> X = np.array([['clerk'], ['nurse'], ['clerk']], dtype=object)
    >>> OrdinalEncoder().fit_transform(X)
    array([[0.],
           [1.],
           [0.]])
    """

    _summarises_on_device = True

    def _sample_result(self, X: Any) -> Any:
        # The code of a category that each column has; or that of none, which becomes None.
        holds_none = self.handle_unknown != "error" and _lack_missing_value(self.categories_)
        code = self.unknown_value if holds_none else 0
        row = make_sample_row(X)
        if hasattr(row, "columns"):
            return row.astype("float64") * 0 + code
        return np.full(row.shape, code, np.float64)

    def _apply_on_device(self, X: Any, is_inverse: bool) -> Any:
        if is_inverse or (codes := self._find_device_codes(X)) is None:
            return None
        return cast(namespace(X).stack(codes, axis=1), np.dtype(self.dtype))


class OneHotEncoder(CategoryEncoder, preprocessing.OneHotEncoder):
    """:class:`sklearn.preprocessing.OneHotEncoder` for Dask collections; exact.

    Parameters
    ----------
    categories : "auto" or list of array-like, default="auto"
    drop : {"first", "if_binary"}, array-like or None, default=None
    sparse_output : bool, default=True
        A Dask Array then has CSR chunks.
    dtype : number type, default=float64
    handle_unknown : {"error", "ignore", "infrequent_if_exist", "warn"}, default="error"
        Treatment of categories that `fit` has not seen. An error is raised when the result is
        computed, and names the block.
    min_frequency : int or float, default=None
    max_categories : int, default=None
    feature_name_combiner : "concat" or callable, default="concat"

    Attributes
    ----------
    categories_ : list of ndarray
    drop_idx_ : ndarray or None
    infrequent_categories_ : list of ndarray
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import pandas as pd
    >>> from daskml_dist.preprocessing import OneHotEncoder
    >>> frame = pd.DataFrame({'job': ['clerk', 'nurse', 'clerk']})
    >>> encoder = OneHotEncoder(sparse_output=False).fit(frame)
    >>> encoder.categories_[0].tolist()
    ['clerk', 'nurse']
    >>> encoder.transform(frame)
    array([[1., 0.],
           [0., 1.],
           [1., 0.]])
    >>> encoder.get_feature_names_out().tolist()
    ['job_clerk', 'job_nurse']
    """

    _summarises_on_device = True

    def _sample_result(self, X: Any) -> Any:
        row = make_sample_row(X)
        # A row of zeros stands for unknown categories, which become None. Where they count as
        # infrequent, no row is all zeros, and the result holds objects as it does with None.
        is_zero = self.handle_unknown == "ignore" or not any(
            infrequent is not None for infrequent in getattr(self, "infrequent_categories_", ())
        )
        holds_none = self.handle_unknown != "error" and _lack_missing_value(self.categories_)
        return row * 0 if holds_none and is_zero else row

    def _apply_on_device(self, X: Any, is_inverse: bool) -> Any:
        # Only the host makes sparse results.
        if is_inverse or self.sparse_output:
            return None
        if (codes := self._find_device_codes(X)) is None:
            return None
        dtype, widths = np.dtype(self.dtype), map(len, self.categories_)
        columns = [
            one_hot(column_codes, width, dtype)
            for column_codes, width in zip(codes, widths, strict=True)
        ]
        xp = namespace(X)
        if self.drop_idx_ is not None:
            columns = [
                block
                if dropped is None
                else xp.concat([block[:, :dropped], block[:, dropped + 1 :]], axis=1)
                for block, dropped in zip(columns, self.drop_idx_, strict=True)
            ]
        return xp.concat(columns, axis=1)


class LabelEncoder(EstimatorMixin, preprocessing.LabelEncoder, auto_wrap_output_keys=None):
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
        """Find the distinct labels.

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
        column = _as_one_column(y)
        X = column.to_frame() if is_series_like(column) else column[:, None]
        with report_reading(type(self).__name__):
            labels = reduce_parts(
                as_collection(X, numeric=False), _find_block_labels, _merge_labels
            )
        if labels is None:
            raise InvalidDataError("y holds 0 labels in all its blocks. Check its filter or path.")
        self.classes_ = labels
        return self

    def transform(self, y: Any) -> Any:
        """Encode each label by its position in ``classes_``.

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
        """Find the distinct labels, and return them encoded; parameters as in :meth:`fit`."""
        if not is_dask(y := convert_to_host(y)):
            return preprocessing.LabelEncoder.fit_transform(self, y)
        return self.fit(y).transform(y)

    def inverse_transform(self, y: Any) -> Any:
        """Return the labels at positions of ``classes_``.

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
        """Return the results of a method of scikit-learn's class, lazily for a Dask collection."""
        check_fitted(self)
        y = join_delayed(convert_to_host(y), 1)
        if not is_dask(y):
            return getattr(preprocessing.LabelEncoder, method)(self, y)
        # A copy, so that a later fit does not change lazy results.
        return map_blocks(partial(_encode_block, copy.copy(self), method), _as_one_column(y), meta)


def _as_one_column(y: Any) -> Any:
    """Return labels as a Dask Array or Series of one dimension."""
    if isinstance(y, da.Array) and y.ndim == 2 and y.shape[1] == 1:
        return y[:, 0]
    if (isinstance(y, da.Array) and y.ndim == 1) or is_series_like(y):
        return y
    raise InvalidDataError(
        f"y should be a 1d array, got {type(y).__name__} of {getattr(y, 'ndim', 'no')} dimensions "
        "instead. Pass one column, or encode columns of X by OrdinalEncoder."
    )


def _find_block_labels(index: int, X: Any, y: Any, sample_weight: Any) -> NDArray[Any] | None:
    """Return the sorted labels of a block; None for an empty one."""
    if X.shape[0] == 0:
        return None
    try:
        distinct = convert_missing_to_nan(find_distinct_rows(copy_to_host(X))[0])
        return _sort_labels(as_column(distinct, name="y", index=index))
    except (ValueError, TypeError) as error:
        raise as_ours(error, f"Block {index} of y: ") from error


def _merge_labels(block_labels: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the sorted labels of all blocks that have rows."""
    kinds = {part.dtype.kind for part in block_labels}
    if len(kinds) > 1 and not kinds <= set("biuf"):  # NumPy would convert numbers to text
        block_labels = [part.astype(object) for part in block_labels]
    try:
        return _sort_labels(np.concatenate(block_labels))
    except (ValueError, TypeError) as error:
        raise as_ours(error) from error


def _sort_labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Return distinct labels in scikit-learn's order; raise for labels of several types."""
    classes: NDArray[Any] = preprocessing.LabelEncoder().fit(labels).classes_
    return classes


def _encode_block(encoder: preprocessing.LabelEncoder, method: str, y: Any) -> NDArray[Any]:
    """Return the result of a method for a block; only the distinct values are looked up."""
    distinct, (places,) = find_distinct_rows(y.to_frame() if is_series_like(y) else y[:, None])
    values = as_column(convert_missing_to_nan(distinct), name="y")
    try:
        encoded: NDArray[Any] = getattr(preprocessing.LabelEncoder, method)(encoder, values)
    except ValueError as error:
        raise InvalidDataError(
            f"{error}. Fit on rows with all labels, or drop these rows."
        ) from error
    return encoded[places]
