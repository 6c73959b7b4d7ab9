"""Hasher of columns of ids and numbers to entries of one matrix with 2**62 virtual columns.

Click models (factorization machines, networks over embeddings) create the parameters of an id when
it first occurs. They hash frames of ids themselves; this transformer does it as a separate step,
with more options. The hashing of a column is in `data/field_hashing.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from dask.utils import is_dataframe_like
from sklearn.base import BaseEstimator, TransformerMixin

from daskml_dist.data.field_hashing import shorten_names
from daskml_dist.data.row_checks import check_feature_names, check_row_shape, find_row_shape
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.estimators.estimator_mixin import EstimatorMixin
from daskml_dist.inference.table_fields import TableFields, as_table
from daskml_dist.parameters.checks import check_columns, check_one_of


class FieldHasher(EstimatorMixin, TransformerMixin, BaseEstimator):
    """Transformer that hashes columns of ids, lists of ids and numbers to sparse rows.

    Each column of a frame is a *field*. An id becomes an entry of 1 in the column of its hash, a
    bag (a list of ids) one entry for each of its ids, and a number its value in the single column
    of its field. The result has 2**62 columns and stores only these entries. Models that create the
    parameters of an id when it first occurs, such as factorization machines, can read it, and no
    ids need to be known in advance. Only the names and kinds of the fields are learned.

    Parameters
    ----------
    columns : list of str or int, default=None
        Columns that are the fields, in this order, by name or, for arrays, by position; by default
        all columns. Other columns are ignored.
    numeric : "auto" or list of str or int, default="auto"
        Columns of numbers; all others are columns of ids. By default columns of floats are numbers,
        and columns of integers, booleans, strings, categories, dates and lists are ids.
    bags : {"mean", "sum"}, default="mean"
        Values of the ids of a bag: 1 divided by their number, or 1. The values of repeated ids are
        added.
    hashing : {"stable", "vowpal"}, default="stable"
        Hash of an id. "stable": integers are their own hash, and texts have the hash of
        :func:`pandas.util.hash_array`. "vowpal": MurmurHash3 with 32 bits of the id's text, seeded
        with the hash of the field's name, as in :class:`NamespaceHasher` and in ``vw --hash all``;
        slower, and with collisions from about ten thousand ids per field.
    missing : {"error", "own"}, default="error"
        Treatment of missing values: an error, or a separate id in their field, which also replaces
        NaN and infinite numbers.
    dtype : {"float32", "float64"} or dtype, default=float32
        Type of the values.

    Attributes
    ----------
    fields_ : list of str or int
        Names of the fields (positions, for arrays). A field's number is its position in this list.
        Kind of each field: ``"numeric"``, or the type of its ids: ``"integer"``, ``"text"``,
        ``"date"``, in bags ``"integers"`` or ``"texts"``; ``"float"`` for ids that are integers in
        a column of floats, and ``"missing"`` if the fit saw no value.
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    See Also
    --------
    NamespaceHasher : Hashes dicts of namespaces to a small number of columns, with interactions.

    Notes
    -----
    The entry of an id is in column ``mixed << 8 | field``, where `mixed` has 54 bits: a number of
    up to 64 bits is folded (``x & (2**54 - 1) ^ x >> 54``) and mixed by a bijection, so that
    integers below ``2**54 - 1`` never collide with each other in a field, nor with the id of
    missing values, which is ``2**54 - 1``. The field of a number has the id 0. Equal ids have equal
    hashes in columns of any type: texts in columns of objects, strings, Arrow strings and
    categories, integers in columns of integers, floats and objects. A date has the hash of its
    nanoseconds.

    A lazy frame is not read, unless its dtypes do not determine the kind of a column (objects,
    unknown categories): then one pass finds it.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskml_dist.feature_extraction import FieldHasher
    >>> frame = pd.DataFrame({"user": [17, 4], "site": ["news", "shop"], "age": [20.0, 31.5]})
    >>> hasher = FieldHasher().fit(frame)
    >>> hasher.kinds_
    ['integer', 'text', 'numeric']
    >>> rows = hasher.transform(frame)
    >>> rows.shape == (2, 2**62), rows.nnz
    (True, 6)
    >>> fields = rows[[0]].indices & 255
    >>> dict(sorted(zip(fields.tolist(), rows[[0]].data.tolist())))
    {0: 1.0, 1: 1.0, 2: 20.0}
    """

    def __init__(
        self,
        columns: Sequence[Any] | None = None,
        *,
        numeric: Any = "auto",
        bags: str = "mean",
        hashing: str = "stable",
        missing: str = "error",
        dtype: Any = np.float32,
    ) -> None:
        self.columns = columns
        self.numeric = numeric
        self.bags = bags
        self.hashing = hashing
        self.missing = missing
        self.dtype = dtype

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = tags.input_tags.string = True
        tags.input_tags.allow_nan = self.missing == "own"
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the names and kinds of the fields.

        Parameters
        ----------
        X : array-like, pandas.DataFrame, Arrow table, dask Array or dask DataFrame
            Of shape (n_rows, n_columns).
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            A parameter is invalid, or names a missing column.
        InvalidDataError
            A column has mixed types or a type that cannot be an id, or there are too many columns.
        """
        self._check_parameters()
        X = self._select_columns(as_table(X), InvalidParameterError)
        check_feature_names(self, X, reset=True)
        fields = TableFields.find(X, self.numeric, names=self.columns)
        self.n_features_in_ = len(fields.names)
        self.fields_, self.kinds_ = list(fields.names), list(fields.kinds)
        return self

    def transform(self, X: Any) -> Any:
        """Hash rows; lazily, block by block, for a Dask collection.

        Parameters
        ----------
        X : array-like, pandas.DataFrame, Arrow table, dask Array or dask DataFrame
            With the columns of the fit.

        Returns
        -------
        csr_array, or dask Array of such chunks, of shape (n_rows, 2**62)
            Indices are int64, and sorted in each row.

        Raises
        ------
        InvalidDataError
            Columns are missing, extra, in another order or of another kind than in the fit; ids are
            negative, missing or of mixed types; numbers are missing or infinite. For a Dask
            collection, values are checked when the result is computed.
        """
        check_fitted(self)
        X = self._select_columns(as_table(X, self.n_features_in_), InvalidDataError)
        check_feature_names(self, X, reset=False)
        check_row_shape(find_row_shape(X), (self.n_features_in_,), type(self).__name__)
        # A frozen copy of the settings, so that a later fit does not change lazy results.
        fields = TableFields(
            tuple(self.fields_), tuple(self.kinds_), self.bags, self.hashing, self.missing,
            np.dtype(self.dtype).name,
        )  # fmt: skip
        return fields.hash_rows(X)

    def _check_parameters(self) -> None:
        """Raise for invalid values of parameters."""
        check_one_of("bags", self.bags, ("mean", "sum"))
        check_one_of("hashing", self.hashing, ("stable", "vowpal"))
        check_one_of("missing", self.missing, ("error", "own"))
        try:
            is_float = np.dtype(self.dtype) in (np.float32, np.float64)
        except TypeError:
            is_float = False
        if not is_float:
            raise InvalidParameterError(f'dtype={self.dtype!r}: use "float32" or "float64".')
        check_columns("columns", self.columns, None)
        check_columns("numeric", self.numeric, "auto")

    def _select_columns(self, X: Any, error: type[ValueError]) -> Any:
        """Return X with only the columns that are fields; raise if it lacks one."""
        if self.columns is None:
            return X
        selected = list(self.columns)
        if is_dataframe_like(X):
            existing, shown = list(X.columns), "names"
        else:
            existing, shown = list(range(int(X.shape[1]))), "places"
        for name in selected:
            if name not in existing:
                raise error(
                    f"columns: there is no column {name!r} in X. Use {shown} of "
                    f"{shorten_names(existing)}.{suggest_nearest(name, existing)}"
                )
        if len(set(selected)) < len(selected):
            raise InvalidParameterError(
                f"columns={selected!r}: a column is named twice. Name each once."
            )
        return X[selected] if is_dataframe_like(X) else X[:, selected]

    fields_: list[Any]
    kinds_: list[str]
    n_features_in_: int
