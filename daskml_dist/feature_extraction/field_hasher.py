"""Hasher of columns of ids and numbers to entries of one matrix of 2**62 virtual columns.

Models of clicks (factorization machines, networks over embeddings) make the parameters of an id
when it first comes. They hash frames of ids themselves; this transformer does so in a step of its
own, and with further options. How a column is hashed is in `data/field_hashing.py`.
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

    Each column of a frame is a *field*. An id gives an entry of 1 in the column of its hash, a bag
    (a list of ids) one for each of its ids, and a number its value in the one column of its field.
    The result has 2**62 columns and holds nothing but these entries: models that make the
    parameters of an id when it first comes, such as factorization machines, read it, and no ids
    need be known before. Nothing is learned but the names and kinds of the fields.

    Parameters
    ----------
    columns : list of str or int, default=None
        Columns that are the fields, in this order, by name or, of arrays, by place; by default all
        are. Other columns are not looked at.
    numeric : "auto" or list of str or int, default="auto"
        Columns of numbers; all others are of ids. By default those of floats are numbers, and those
        of integers, booleans, strings, categories, dates and lists are ids.
    bags : {"mean", "sum"}, default="mean"
        Values of the ids of a bag: one over their number, or 1. Those of an id that is there
        several times are added up.
    hashing : {"stable", "vowpal"}, default="stable"
        Hash of an id. "stable": whole numbers are their own, and texts have that of
        :func:`pandas.util.hash_array`. "vowpal": MurmurHash3 of 32 bits of the id's text, seeded by
        that of the field's name, as in :class:`NamespaceHasher` and in ``vw --hash all``; slower,
        and with collisions from some ten thousand ids a field.
    missing : {"error", "own"}, default="error"
        Treatment of missing values: an error, or an id of their own in their field, which also
        stands for numbers that are NaN or infinite.
    dtype : {"float32", "float64"} or dtype, default=float32
        Type of the values.

    Attributes
    ----------
    fields_ : list of str or int
        Names of the fields (places, of arrays). The place in this list is the number of a field.
    kinds_ : list of str
        Kind of each field: ``"numeric"``, or what its ids are: ``"integer"``, ``"text"``,
        ``"date"``, in bags ``"integers"`` or ``"texts"``; ``"float"`` for ids that are whole
        numbers in a column of floats, and ``"missing"`` where the fit saw none.
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    See Also
    --------
    NamespaceHasher : Hashes dicts of namespaces to few columns, with interactions.

    Notes
    -----
    The entry of an id is in column ``mixed << 8 | field``, where `mixed` are 54 bits: a number of
    up to 64 bits is folded (``x & (2**54 - 1) ^ x >> 54``) and mixed by a bijection, so that whole
    numbers below ``2**54 - 1`` never collide with each other in a field, nor with the id of missing
    values, which is ``2**54 - 1``. A number's field has the id 0. Equal ids have equal hashes in
    columns of any type: texts in columns of objects, strings, Arrow's strings and categories, whole
    numbers in columns of integers, floats and objects. Dates have that of their nanoseconds.

    Of a lazy frame nothing is read, but where its types do not tell the kind of a column (objects,
    categories that are not known): then one pass finds it.

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
            A parameter has no meaning, or names a column that is not there.
        InvalidDataError
            A column is of mixed types or of none that can be an id, or there are too many.
        """
        self._check_parameters()
        X = self._select_columns(as_table(X), InvalidParameterError)
        check_feature_names(self, X, reset=True)
        fields = TableFields.find(X, self.numeric, names=self.columns)
        self.n_features_in_ = len(fields.names)
        self.fields_, self.kinds_ = list(fields.names), list(fields.kinds)
        return self

    def transform(self, X: Any) -> Any:
        """Hash rows; lazily, block by block, where they are a Dask collection.

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
            negative, missing or of mixed types; numbers are missing or infinite. Of a Dask
            collection values are looked at when the result is computed.
        """
        check_fitted(self)
        X = self._select_columns(as_table(X, self.n_features_in_), InvalidDataError)
        check_feature_names(self, X, reset=False)
        check_row_shape(find_row_shape(X), (self.n_features_in_,), type(self).__name__)
        # A frozen copy of what counts, so that a later fit does not change lazy results.
        fields = TableFields(
            tuple(self.fields_), tuple(self.kinds_), self.bags, self.hashing, self.missing,
            np.dtype(self.dtype).name,
        )  # fmt: skip
        return fields.hash_rows(X)

    def _check_parameters(self) -> None:
        """Raise for values of parameters that have no meaning."""
        check_one_of("bags", self.bags, ("mean", "sum"))
        check_one_of("hashing", self.hashing, ("stable", "vowpal"))
        check_one_of("missing", self.missing, ("error", "own"))
        try:
            known = np.dtype(self.dtype) in (np.float32, np.float64)
        except TypeError:
            known = False
        if not known:
            raise InvalidParameterError(f'dtype={self.dtype!r}: use "float32" or "float64".')
        check_columns("columns", self.columns, None)
        check_columns("numeric", self.numeric, "auto")

    def _select_columns(self, X: Any, error: type[ValueError]) -> Any:
        """Return X with the columns that are the fields; raise where it has them not."""
        if self.columns is None:
            return X
        wanted = list(self.columns)
        if is_dataframe_like(X):
            known, shown = list(X.columns), "names"
        else:
            known, shown = list(range(int(X.shape[1]))), "places"
        for name in wanted:
            if name not in known:
                raise error(
                    f"columns: there is no column {name!r} in X. Use {shown} of "
                    f"{shorten_names(known)}.{suggest_nearest(name, known)}"
                )
        if len(set(wanted)) < len(wanted):
            raise InvalidParameterError(
                f"columns={wanted!r}: a column is named twice. Name each once."
            )
        return X[wanted] if is_dataframe_like(X) else X[:, wanted]

    fields_: list[Any]
    kinds_: list[str]
    n_features_in_: int
