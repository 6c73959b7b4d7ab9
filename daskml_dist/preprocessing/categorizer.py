"""`Categorizer` and `DummyEncoder`: transformers from frames to frames, as in dask-ml.

The partitions of a lazy frame must agree on the categories of a column; otherwise its dummy columns
would differ between partitions. `Categorizer` finds the categories in one pass and declares them;
`DummyEncoder` then knows its columns before any row is read. Both store the categories as plain
values and apply a pandas function to each block (`_FrameTransformer`).
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from daskml_dist.data.collection import as_collection
from daskml_dist.data.conversion import check_unique_names, load_pandas
from daskml_dist.data.lazy import is_dask, is_dask_frame
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.diagnostics.operation_progress import report_reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.sklearn_errors import check_fitted, make_not_fitted_error
from daskml_dist.estimators.estimator_mixin import EstimatorMixin
from daskml_dist.estimators.transformer import LazyTransformerMixin
from daskml_dist.inference.block_mapping import map_blocks


class _FrameTransformer(EstimatorMixin, LazyTransformerMixin, BaseEstimator):
    """Base class of transformers from a frame to a frame, block by block."""

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the categories of the columns; for a Dask DataFrame in one pass.

        Parameters
        ----------
        X : pandas.DataFrame or dask DataFrame of shape (n_rows, n_columns)
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        InvalidDataError
            `X` is not a frame, or lacks a column.
        """
        raise NotImplementedError

    def transform(self, X: Any) -> Any:
        """Transform a frame with the columns of the fit; lazily if it is lazy.

        Parameters
        ----------
        X : pandas.DataFrame or dask DataFrame of shape (n_rows, n_columns)

        Returns
        -------
        pandas.DataFrame or dask DataFrame

        Raises
        ------
        InvalidDataError
            `X` is not a frame, or its columns differ from those of the fit.
        """
        check_fitted(self)
        return self._map(self._transform, X, self.feature_names_in_)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the columns of the result; `input_features` is for scikit-learn's interface."""
        check_fitted(self)
        return np.asarray(self._list_columns_out(), object)

    feature_names_in_: NDArray[Any]
    #: For each column with categories: their values, the dtype, and whether they are ordered.
    _kept: dict[str, tuple[list[Any], str, bool]]

    def _transform(self, X: Any) -> Any:
        """Transform a frame in memory."""
        raise NotImplementedError

    def _list_columns_out(self) -> list[Any]:
        """Return the columns of the result."""
        raise NotImplementedError

    def _keep_categories(self, dtypes: dict[str, Any]) -> None:
        """Store categories as plain values, which model files can hold without pandas."""
        self._kept = {
            name: (
                np.asarray(dtype.categories, object).tolist(),
                str(dtype.categories.dtype),
                bool(dtype.ordered),
            )
            for name, dtype in dtypes.items()
        }

    def _restore_dtypes(self) -> dict[str, Any]:
        """Return the stored categories as pandas dtypes."""
        pandas = load_pandas()
        if "_kept" not in vars(self):
            raise make_not_fitted_error(self)
        return {
            name: pandas.CategoricalDtype(pandas.Index(values, dtype=dtype), ordered)
            for name, (values, dtype, ordered) in self._kept.items()
        }

    def _remember_columns(self, X: Any) -> Any:
        """Check that X is a frame and store its columns; return a frame in memory of its dtypes."""
        _check_frame(X)
        self.feature_names_in_ = np.asarray(list(X.columns), object)
        self.n_features_in_ = len(self.feature_names_in_)
        # Dask's frame without rows has the dtypes and the known categories.
        return X._meta if is_dask_frame(X) else X

    def _map(self, function: Any, X: Any, names: NDArray[Any]) -> Any:
        """Apply a function of frames in memory to a frame, which must have the columns `names`."""
        _check_frame(X)
        if list(X.columns) != list(names):
            raise InvalidDataError(
                f"X has the columns {list(X.columns)}, but the fit had {list(names)}. Pass "
                "X[list(feature_names_in_)]."
            )
        if not is_dask_frame(X):
            return function(X)
        return map_blocks(function, X, meta=function(X._meta))


class Categorizer(_FrameTransformer):
    """Transformer that converts columns to categoricals with the same categories in every block.

    The next step then knows all values of a column, even those that a block lacks: `DummyEncoder`,
    :class:`daskml_dist.preprocessing.OrdinalEncoder`, ``HistGradientBoostingClassifier``.

    Parameters
    ----------
    categories : dict of str to pandas.CategoricalDtype, default=None
        Known categories of columns; for other columns they are found, and sorted.
    columns : list of str, default=None
        Columns to convert; by default columns of strings, of objects and of categories.

    Attributes
    ----------
    columns_ : list of str
        Columns that are converted.
    categories_ : dict of str to pandas.CategoricalDtype
        Categories of each converted column.
    n_features_in_ : int
    feature_names_in_ : ndarray of object of shape (n_columns,)

    Notes
    -----
    Names and meaning are those of ``dask_ml.preprocessing.Categorizer``. A value that the fit has
    not seen becomes missing.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import pandas as pd
    >>> from daskml_dist.preprocessing import Categorizer
    >>> frame = dd.from_pandas(pd.DataFrame({"a": ["x", "y", "x"], "b": [1, 2, 3]}), npartitions=2)
    >>> Categorizer().fit(frame).categories_["a"].categories.tolist()
    ['x', 'y']
    """

    def __init__(
        self, categories: dict[str, Any] | None = None, columns: list[str] | None = None
    ) -> None:
        self.categories = categories
        self.columns = columns

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the categories of the columns; see the base class.

        Parameters
        ----------
        X : pandas.DataFrame or dask DataFrame of shape (n_rows, n_columns)
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            A value of `categories` is not a ``CategoricalDtype``.
        InvalidDataError
            `X` is not a frame, or lacks a column.
        """
        frame, pandas = self._remember_columns(X), load_pandas()
        dtypes = dict(self.categories or {})
        if not_dtypes := [
            n for n, c in dtypes.items() if not isinstance(c, pandas.CategoricalDtype)
        ]:
            raise InvalidParameterError(
                f"categories[{not_dtypes[0]!r}] should be a pandas.CategoricalDtype. Pass "
                f"pandas.CategoricalDtype({dtypes[not_dtypes[0]]!r})."
            )
        self.columns_ = _select_columns(frame, self.columns, of_texts=True)
        for name in self.columns_:
            dtype = frame[name].dtype
            # The categories of a lazy frame may be unknown until it is read.
            if isinstance(dtype, pandas.CategoricalDtype) and _has_known_categories(X, name):
                dtypes.setdefault(name, dtype)
        # One pass finds the values of all columns with unknown categories.
        unknown = [name for name in self.columns_ if name not in dtypes]
        if unknown:
            rows = as_collection(X[unknown], None, None, numeric=False)
            with report_reading(type(self).__name__):
                values = reduce_parts(rows, _find_block_values, _join_values)
            dtypes |= {
                n: _make_dtype(n, distinct) for n, distinct in zip(unknown, values, strict=True)
            }
        self._keep_categories({name: dtypes[name] for name in self.columns_})
        return self

    @property
    def categories_(self) -> dict[str, Any]:
        """Return the categories of each column that is converted."""
        return self._restore_dtypes()

    def _transform(self, X: Any) -> Any:
        return X.assign(
            **{n: _convert_column(X[n], dtype) for n, dtype in self.categories_.items()}
        )

    def _list_columns_out(self) -> list[Any]:
        return list(self.feature_names_in_)


class DummyEncoder(_FrameTransformer):
    """Transformer that replaces each categorical column by one column per category.

    :class:`OneHotEncoder` returns a matrix; this transformer returns a frame, with names such as
    ``job_nurse`` beside the other columns. `inverse_transform` reverses it.

    Parameters
    ----------
    columns : list of str, default=None
        Columns to encode; by default all columns of categories.
    drop_first : bool, default=False
        Whether to leave out the first category of each column.

    Attributes
    ----------
    columns_ : ndarray of object
        Columns of the fit.
    categorical_columns_, non_categorical_columns_ : list of str
        Encoded columns, and the others.
    transformed_columns_ : ndarray of object
        Columns of the result: first the others, then those of each encoded column.
    dtypes_ : dict of str to pandas.CategoricalDtype
        Categories of each encoded column.
    n_features_in_ : int
    feature_names_in_ : ndarray of object of shape (n_columns,)

    Notes
    -----
    Names and meaning are those of ``dask_ml.preprocessing.DummyEncoder``; columns are those of
    ``pandas.get_dummies``.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskml_dist.preprocessing import DummyEncoder
    >>> frame = pd.DataFrame({"a": pd.Categorical(["x", "y", "x"]), "b": [1, 2, 3]})
    >>> encoder = DummyEncoder().fit(frame)
    >>> encoder.transform(frame)
       b    a_x    a_y
    0  1   True  False
    1  2  False   True
    2  3   True  False
    >>> encoder.inverse_transform(encoder.transform(frame)).equals(frame)
    True
    """

    def __init__(self, columns: list[str] | None = None, drop_first: bool = False) -> None:
        self.columns = columns
        self.drop_first = drop_first

    def fit(self, X: Any, y: Any = None) -> Self:
        """Store the categories of the columns; a Dask DataFrame is not read.

        Parameters
        ----------
        X : pandas.DataFrame or dask DataFrame of shape (n_rows, n_columns)
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        InvalidDataError
            `X` is not a frame, or the categories of a column are not known.
        """
        # Known categories of a lazy frame are in its metadata: nothing is computed.
        frame, pandas = self._remember_columns(X), load_pandas()
        encoded_columns = _select_columns(frame, self.columns, of_texts=False)
        for name in encoded_columns:
            is_categorical = isinstance(frame[name].dtype, pandas.CategoricalDtype)
            if not is_categorical or not _has_known_categories(X, name):
                raise InvalidDataError(
                    f"Column {name!r} has no known categories. Use a Categorizer before: "
                    "make_pipeline(Categorizer(), DummyEncoder())."
                )
        self.columns_ = self.feature_names_in_
        self.categorical_columns_ = encoded_columns
        self.non_categorical_columns_ = [n for n in self.columns_ if n not in encoded_columns]
        self._keep_categories({name: frame[name].dtype for name in encoded_columns})
        # A frame without rows has all columns of the result.
        self.transformed_columns_ = np.asarray(list(self._transform(frame.iloc[:0])), object)
        return self

    @property
    def dtypes_(self) -> dict[str, Any]:
        """Return the categories of each encoded column."""
        return self._restore_dtypes()

    def inverse_transform(self, X: Any) -> Any:
        """Convert the dummy columns back into one column per encoded column.

        Parameters
        ----------
        X : pandas.DataFrame or dask DataFrame
            With the columns of the result of :meth:`transform`.

        Returns
        -------
        pandas.DataFrame or dask DataFrame
            With the columns of the fit. Without `drop_first`, a row without any category of a
            column has a missing value there.

        Raises
        ------
        InvalidDataError
            `X` has other columns.
        """
        check_fitted(self)
        return self._map(self._invert, X, self.transformed_columns_)

    def _transform(self, X: Any) -> Any:
        pandas = load_pandas()
        # Other categories would give other columns, without an error.
        for name, dtype in self.dtypes_.items():
            if X[name].dtype != dtype:
                raise InvalidDataError(
                    f"Column {name!r} has other categories than in the fit: {X[name].dtype!r}, not "
                    f"{dtype!r}. Use a Categorizer before, in one pipeline."
                )
        return pandas.get_dummies(X, columns=list(self.dtypes_), drop_first=self.drop_first)

    def _invert(self, X: Any) -> Any:
        """Return a frame in memory with the columns of the fit."""
        pandas = load_pandas()
        restored, first = {}, len(self.non_categorical_columns_)
        # The columns of each encoded column follow the others, in the order of `dtypes_`.
        for name, dtype in self.dtypes_.items():
            width = len(dtype.categories) - self.drop_first
            block = X.iloc[:, first : first + width].to_numpy(bool)
            # -1 is pandas' code of a missing value; with a dropped first category, a row without
            # any other category has the dropped one.
            codes = np.where(block.any(axis=1), block.argmax(axis=1) if width else 0, -1)
            codes = codes + self.drop_first
            values = pandas.Categorical.from_codes(codes, dtype=dtype)
            restored[name] = pandas.Series(values, index=X.index)
            first += width
        other_columns = {name: X[name] for name in self.non_categorical_columns_}
        frame = pandas.DataFrame({**other_columns, **restored}, index=X.index)
        return frame[list(self.columns_)]

    def _list_columns_out(self) -> list[Any]:
        return list(self.transformed_columns_)


def _check_frame(X: Any) -> None:
    """Raise unless X is a dataframe with distinct column names."""
    if not is_dataframe_like(X) or (is_dask(X) and not is_dask_frame(X)):
        raise InvalidDataError(
            f"X is a {type(X).__name__}, but categories need the columns of a dataframe. Pass a "
            "pandas or Dask DataFrame."
        )
    check_unique_names(X)


def _select_columns(frame: Any, columns: list[str] | None, *, of_texts: bool) -> list[str]:
    """Return the named columns; by default those of categories and, if `of_texts`, of texts.

    Columns of texts have strings or objects.
    """
    if columns is None:
        pandas = load_pandas()
        kinds = (pandas.CategoricalDtype, pandas.StringDtype)[: 1 + of_texts]
        return [
            name
            for name, dtype in frame.dtypes.items()
            if isinstance(dtype, kinds) or (of_texts and dtype == np.dtype(object))
        ]
    if missing := [name for name in columns if name not in frame.columns]:
        raise InvalidDataError(
            f"Columns {missing} are not in X, which has {list(frame.columns)}. Name existing "
            "columns."
        )
    return list(columns)


def _has_known_categories(X: Any, name: str) -> bool:
    """Return whether the categories of a column are known before it is read."""
    return not is_dask_frame(X) or bool(X[name].cat.known)


def _make_dtype(name: str, values: set[Any]) -> Any:
    """Return the categories of a column's values, sorted."""
    pandas = load_pandas()
    try:
        return pandas.CategoricalDtype(pandas.Index(sorted(values), dtype=None if values else "O"))
    except TypeError as error:
        raise InvalidDataError(
            f"Column {name!r} holds values of several types ({error}). Convert them to one type, "
            f"for example X[{name!r}].astype(str), or pass its categories."
        ) from error


def _find_block_values(index: int, X: Any, y: Any, weight: Any) -> list[set[Any]]:
    """Return the values in each column of a block, without missing ones."""
    return [set(X[name].dropna().unique().tolist()) for name in X.columns]


def _join_values(block_values: list[list[set[Any]]]) -> list[set[Any]]:
    """Return the values in each column over all blocks."""
    return [set().union(*column_values) for column_values in zip(*block_values, strict=True)]


def _convert_column(column: Any, dtype: Any) -> Any:
    """Return a column with the categories of a dtype; other values become missing."""
    pandas = load_pandas()
    codes = dtype.categories.get_indexer(column)  # -1, the code of a missing value, if unknown
    return pandas.Series(pandas.Categorical.from_codes(codes, dtype=dtype), index=column.index)
