"""Hasher of columns of ids and numbers to entries of one matrix of 2**62 virtual columns.

Models of clicks (factorization machines, networks over embeddings) make the parameters of an id
when it first comes. They read rows as CSR matrices whose column numbers say both field and id::

    column = mixed id << 8 | field        mixed id: 54 bits, field: 0 to 254

The mixing spreads ids evenly over servers and buckets, however they were given: it is a bijection
of the numbers below 2**54, so that whole numbers of a field never collide. Field 255 is left to
what belongs to a model and not to rows, such as its bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from numbers import Integral
from typing import Any, NamedTuple, Self

import dask.array as da
import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin

from daskml_dist.backends.id_hashing import FIELD_BITS, ID_BITS, MODEL_FIELD, mix_ids
from daskml_dist.data.collection import as_collection
from daskml_dist.data.conversion import (
    convert_named_columns,
    convert_to_host,
    densify_columns,
    load_pandas,
)
from daskml_dist.data.lazy import is_dask, join_delayed
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.data.row_checks import (
    check_feature_names,
    check_holds_rows,
    check_row_shape,
    check_rows,
    find_row_shape,
)
from daskml_dist.diagnostics.operation_progress import report_reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError, InvalidTypeError
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.estimators.estimator_mixin import EstimatorMixin
from daskml_dist.feature_extraction.hashing import hash_names
from daskml_dist.inference.block_mapping import map_blocks
from daskml_dist.parameters.checks import check_one_of

Words = NDArray[np.uint64]

#: Virtual columns: all numbers that the bits of an id and of a field make.
N_COLUMNS = 2 ** (ID_BITS + FIELD_BITS)
#: Most fields; the last number of one is left to what belongs to a model.
MAX_FIELDS = MODEL_FIELD
#: Id before the mixing of a number's field, and of a missing value of any field.
_NUMBER_ID, _MISSING_ID = np.uint64(0), np.uint64(2**ID_BITS - 1)

#: Rows that are mixed and sorted together: half a megabyte of 26 fields, in a processor's cache.
_SLAB_ROWS = 2048
#: Whole numbers that float64 has all of.
_MAX_WHOLE_FLOAT = 2.0**53

#: Kinds of a column, by what pandas' ``infer_dtype`` says of objects.
_OBJECT_KINDS = {
    "string": "text",
    "bytes": "text",
    "integer": "integer",
    "boolean": "integer",
    "floating": "float",
    "mixed-integer-float": "float",
    "date": "date",
    "datetime": "date",
    "datetime64": "date",
    "empty": "missing",
}
#: What to do where a column of a kind is to become one of another.
_REMEDIES = {
    "integer": "X[{name!r}] = X[{name!r}].astype('Int64')",
    "float": "X[{name!r}] = X[{name!r}].astype('float64')",
    "text": "X[{name!r}] = X[{name!r}].astype(str)",
    "date": "X[{name!r}] = pandas.to_datetime(X[{name!r}])",
}


class FieldHasher(EstimatorMixin, TransformerMixin, BaseEstimator):
    """Transformer of columns of ids, bags of ids and numbers to rows of virtual columns.

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
        X = self._select_columns(_as_rows(X), InvalidParameterError)
        check_feature_names(self, X, reset=True)
        shape = find_row_shape(X)
        if shape is None:
            raise InvalidDataError(
                "The number of columns is not known before X is computed. Pass a dask Array that "
                "knows it: dask.array.from_delayed(block, shape=(numpy.nan, n_columns), dtype=int)."
            )
        if shape[0] > MAX_FIELDS:
            raise InvalidDataError(
                f"X has {shape[0]} columns, and there are {MAX_FIELDS} fields at most. Name fewer "
                "by columns=[...], or join ids of one meaning into bags: a column of lists."
            )
        self.n_features_in_ = shape[0]
        self.fields_ = _list_names(X, self.columns)
        found = _find_lazy_kinds(X, self.fields_) if is_dask(X) else _find_kinds(X, self.fields_)
        are_numeric = self._find_numeric(found)
        self.kinds_ = [
            "numeric" if numeric else kind for kind, numeric in zip(found, are_numeric, strict=True)
        ]
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
        X = self._select_columns(_as_rows(X, self.n_features_in_), InvalidDataError)
        check_feature_names(self, X, reset=False)
        check_row_shape(find_row_shape(X), (self.n_features_in_,), type(self).__name__)
        # A frozen copy of what counts, so that a later fit does not change lazy results.
        hash_rows = _BlockHasher(
            tuple(self.fields_),
            tuple(self.kinds_),
            self.bags,
            self.hashing,
            self.missing,
            np.dtype(self.dtype),
            is_lazy=is_dask(X),
        )
        if not is_dask(X):
            return hash_rows(X)
        return map_blocks(hash_rows, X, meta=_make_empty_rows(np.dtype(self.dtype)))

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
        for name in ("columns", "numeric"):
            value = getattr(self, name)
            is_default = value is None if name == "columns" else isinstance(value, str)
            if name == "numeric" and isinstance(value, str):
                check_one_of(name, value, ("auto",))
            if not is_default and (isinstance(value, str) or not np.iterable(value)):
                raise InvalidParameterError(
                    f"{name}={value!r}: use a list of columns, such as {name}=[{value!r}]."
                )

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
                    f"{_shorten(known)}.{suggest_nearest(name, known)}"
                )
        if len(set(wanted)) < len(wanted):
            raise InvalidParameterError(
                f"columns={wanted!r}: a column is named twice. Name each once."
            )
        return X[wanted] if is_dataframe_like(X) else X[:, wanted]

    def _find_numeric(self, kinds: Sequence[str]) -> list[bool]:
        """Return which fields are numbers."""
        if isinstance(self.numeric, str):
            return [kind == "float" for kind in kinds]
        for name in self.numeric:
            if name not in self.fields_:
                raise InvalidParameterError(
                    f"numeric: {name!r} is no field. Use columns of {_shorten(self.fields_)}."
                    f"{suggest_nearest(name, self.fields_)}"
                )
            kind = kinds[self.fields_.index(name)]
            if kind not in ("integer", "float", "missing"):
                raise InvalidDataError(
                    f"Column {name!r} is of kind {kind}, and numeric={self.numeric!r} names it. "
                    f"Leave it out there, or make numbers of it: "
                    f"{_REMEDIES['float'].format(name=name)}."
                )
        return [name in self.numeric for name in self.fields_]

    fields_: list[Any]
    kinds_: list[str]
    n_features_in_: int


# --- columns and their kinds -----------------------------------------------------------------


def _as_rows(X: Any, n_columns: float = np.nan) -> Any:
    """Return X as an array or frame of two dimensions, of Dask where it is lazy."""
    X = join_delayed(convert_to_host(X), 2, n_columns)
    is_pandas = is_dataframe_like(X)
    # Tables of Arrow and Polars hand their columns over by Arrow's interface, without a copy.
    if not is_pandas and hasattr(X, "__arrow_c_stream__") and hasattr(X, "schema"):
        X = _convert_arrow_table(X)
    if isinstance(X, list | tuple):
        # Objects, column by column: NumPy would make texts of numbers that stand beside texts.
        check_holds_rows(X)
        X = np.asarray(X, dtype=object)
    X = check_rows(X, numeric=False)
    if sparse.issparse(X) or sparse.issparse(getattr(X, "_meta", None)):
        raise InvalidTypeError(
            "X is a sparse matrix, and fields are the columns of a table. Pass the frame that it "
            "was made of; a matrix that is hashed or encoded already needs no FieldHasher."
        )
    return convert_named_columns(X)


def _convert_arrow_table(table: Any) -> Any:
    """Return a table of Arrow's interface as a frame of pandas with Arrow's types."""
    import pyarrow

    pandas = load_pandas()

    def choose_type(type_: Any) -> Any:
        # Dictionaries become categories.
        return None if pyarrow.types.is_dictionary(type_) else pandas.ArrowDtype(type_)

    return pyarrow.table(table).to_pandas(types_mapper=choose_type)


def _list_names(X: Any, columns: Sequence[Any] | None) -> list[Any]:
    """Return the names of the columns of selected rows; of arrays their places."""
    if columns is not None:
        return [int(name) if isinstance(name, Integral) else name for name in columns]
    if is_dataframe_like(X):
        return list(X.columns)
    return list(range(int(X.shape[1])))


def _shorten(names: Sequence[Any]) -> str:
    """Return names for a message: all, or the first ten."""
    return f"[{', '.join(map(repr, names[:10]))}{', ...' if len(names) > 10 else ''}]"


def _split_columns(rows: Any) -> list[Any]:
    """Return the columns of a block: arrays of numbers or dates, else series of pandas."""
    if is_dataframe_like(rows):
        rows = densify_columns(rows)
        return [rows.iloc[:, j] for j in range(rows.shape[1])]
    rows = np.asarray(rows)
    if rows.dtype.kind in "biufcmM":
        # By columns, which are read one after the other.
        return list(np.asfortranarray(rows).T)
    series = load_pandas().Series
    return [series(rows[:, j], dtype=object) for j in range(rows.shape[1])]


def _find_lazy_kinds(X: Any, names: Sequence[Any]) -> list[str]:
    """Return the kinds of the columns of a Dask collection, by its types or in one pass."""
    shown: Any = X._meta if is_dataframe_like(X) else np.empty((0, X.shape[1]), X.dtype)
    unknown = [j for j, name in enumerate(names) if _hides_kind(X, name)]
    known = [j for j in range(len(names)) if j not in unknown]
    found = ["missing"] * len(names)
    if known:
        told = shown.iloc[:, known] if is_dataframe_like(X) else shown
        for j, kind in zip(known, _find_kinds(told, [names[j] for j in known]), strict=True):
            found[j] = kind
    if unknown:
        labels = [names[j] for j in unknown]
        rest = X[labels] if is_dataframe_like(X) else X
        with report_reading("FieldHasher"):
            kinds = reduce_parts(
                as_collection(rest, None, None, numeric=False),
                partial(_find_block_kinds, labels),
                partial(_join_kinds, labels),
            )
        # No block has rows: every kind is as good as another.
        for j, kind in zip(unknown, kinds or ["missing"] * len(unknown), strict=True):
            found[j] = kind
    return found


def _hides_kind(X: Any, name: Any) -> bool:
    """Return whether the type of a column of a Dask collection does not tell what it holds."""
    if isinstance(X, da.Array):
        return X.dtype.kind not in "biufcmM"
    dtype = X._meta[name].dtype
    if hasattr(dtype, "categories"):
        return not X[name].cat.known
    return bool(dtype == np.dtype(object))


def _find_block_kinds(names: Sequence[Any], index: int, X: Any, *_: Any) -> list[str] | None:
    """Return the kinds of the columns of a block; None of one without rows."""
    return _find_kinds(X, names) if X.shape[0] else None


def _join_kinds(names: Sequence[Any], parts: list[list[str]]) -> list[str]:
    """Return the one kind of each column in all blocks; raise where they differ."""
    joined = []
    for name, kinds in zip(names, zip(*parts, strict=True), strict=True):
        distinct = set(kinds) - {"missing"}
        if distinct == {"integer", "float"}:  # whole numbers, in some blocks with gaps
            distinct = {"float"}
        if len(distinct) > 1:
            raise _make_mixed_error(name, " and ".join(sorted(distinct)))
        joined.append(distinct.pop() if distinct else "missing")
    return joined


def _find_kinds(rows: Any, names: Sequence[Any]) -> list[str]:
    """Return the kinds of the columns of rows in memory."""
    found = []
    for name, column in zip(names, _split_columns(rows), strict=True):
        bag = _open_bags(column)
        kind = _find_kind(bag.ids, name)
        found.append(kind if bag.lengths is None else _find_bag_kind(kind, name))
    return found


def _find_bag_kind(kind: str, name: Any) -> str:
    """Return the kind of bags of ids of a kind."""
    # Bags of whole numbers with gaps come as floats; `_extract_integers` refuses fractions.
    kinds = {"integer": "integers", "float": "integers", "text": "texts", "missing": "missing"}
    if kind not in kinds:
        raise InvalidDataError(
            f"Column {name!r} holds lists of {kind}s. Bags are of integers or strings: make texts "
            f"of their items, X[{name!r}].map(lambda bag: [str(item) for item in bag])."
        )
    return kinds[kind]


def _find_kind(column: Any, name: Any) -> str:
    """Return the kind of a column that holds no bags."""
    dtype = column.dtype
    if hasattr(dtype, "categories") and hasattr(dtype, "ordered"):
        return _find_kind(load_pandas().Series(dtype.categories), name)
    if dtype.kind in "biufM":
        return {"f": "float", "M": "date"}.get(dtype.kind, "integer")
    if dtype.kind in "US" or str(dtype).partition("[")[0] in ("str", "string", "large_string"):
        return "text"
    if dtype == np.dtype(object):
        said = load_pandas().api.types.infer_dtype(column, skipna=True)
        if (kind := _OBJECT_KINDS.get(said)) is not None:
            return kind
        raise _make_mixed_error(name, said)
    raise InvalidTypeError(
        f"Column {name!r} of dtype {dtype} can be no ids. Make texts of it, "
        f"{_REMEDIES['text'].format(name=name)}, or leave it out by columns=[...]."
    )


def _make_mixed_error(name: Any, said: str) -> InvalidTypeError:
    """Return the error of a column of several types, in which 1 and "1" might be two ids."""
    return InvalidTypeError(
        f"Column {name!r} holds values of mixed types ({said}), of which 1 and '1' would be two "
        f"ids. Make them one type: {_REMEDIES['text'].format(name=name)}, or "
        f"{_REMEDIES['integer'].format(name=name)}."
    )


# --- bags ------------------------------------------------------------------------------------


class _Bags(NamedTuple):
    """Ids of a column, one behind the other, and how many each row has.

    Parameters
    ----------
    ids : array or series
    lengths : ndarray of int64, or None
        Ids of each row; None where each has one.
    are_missing : ndarray of bool, or None
        Rows that have no bag.
    """

    ids: Any
    lengths: NDArray[np.int64] | None = None
    are_missing: NDArray[np.bool_] | None = None


def _has_list_type(dtype: Any) -> bool:
    """Return whether a dtype is of Arrow's lists."""
    return str(dtype).startswith(("list<", "large_list<", "fixed_size_list<"))


def _open_bags(column: Any) -> _Bags:
    """Return the ids of the bags of a column; a column of single ids as it is."""
    if _has_list_type(column.dtype):
        return _open_arrow_lists(column)
    if column.dtype != np.dtype(object):
        return _Bags(column)
    are_missing = np.asarray(load_pandas().isna(column))
    cells = np.asarray(column, dtype=object)
    known = cells[~are_missing]
    kinds = set(map(type, known))
    if not kinds or not all(issubclass(k, list | tuple | set | np.ndarray) for k in kinds):
        return _Bags(column)
    lengths = np.zeros(len(cells), np.int64)
    lengths[~are_missing] = np.fromiter(map(len, known), np.int64, len(known))
    if kinds == {np.ndarray}:  # of Parquet's lists: numbers stay such
        flat = np.concatenate(list(known))
    else:
        flat = np.empty(int(lengths.sum()), dtype=object)
        flat[:] = list(chain.from_iterable(known))
    is_plain = flat.dtype.kind in "biuf"
    return _Bags(
        flat if is_plain else load_pandas().Series(flat, dtype=object), lengths, are_missing
    )


def _open_arrow_lists(column: Any) -> _Bags:
    """Return the ids of a column of Arrow's lists."""
    import pyarrow
    import pyarrow.compute as pc

    lists = pyarrow.array(column)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    flat = pc.list_flatten(lists).to_pandas(types_mapper=load_pandas().ArrowDtype)
    return _Bags(flat, lengths.astype(np.int64), np.asarray(column.isna()))


# --- hashing of blocks -----------------------------------------------------------------------


class _Entries(NamedTuple):
    """Entries of a field: ids before the mixing, values (None: 1), and how many each row has."""

    ids: Words
    values: NDArray[Any] | None = None
    lengths: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class _BlockHasher:
    """Function of a block of rows, whose result are their entries.

    Parameters
    ----------
    names, kinds, bags, hashing, missing, dtype
        Of the fitted transformer.
    is_lazy : bool
        Whether the blocks are of a Dask collection.
    """

    names: tuple[Any, ...]
    kinds: tuple[str, ...]
    bags: str
    hashing: str
    missing: str
    dtype: np.dtype[Any]
    is_lazy: bool

    def __call__(self, rows: Any) -> Any:
        """Return the entries of a block as a CSR matrix."""
        columns = _split_columns(rows)
        fields = [self._encode(j, column) for j, column in enumerate(columns)]
        n_rows = int(rows.shape[0])
        if any(field.lengths is not None for field in fields):
            return _join_uneven(fields, n_rows, self.dtype)
        return _join_even(fields, n_rows, self.dtype)

    def _encode(self, field: int, column: Any) -> _Entries:
        """Return the entries of a column."""
        name, kind = self.names[field], self.kinds[field]
        bags = _open_bags(column)
        found = _find_kind(bags.ids, name)
        if bags.lengths is not None:
            found = _find_bag_kind(found, name)
        self._check_kind(name, found, kind)
        if kind == "numeric":
            return self._encode_numbers(name, column)
        ids, are_missing = self._hash_ids(name, bags.ids, found)
        if are_missing is not None and are_missing.any():
            self._check_missing(name, are_missing)
            ids = np.where(are_missing, _MISSING_ID, ids)
        if bags.lengths is None:
            return _Entries(ids)
        return self._weigh_bags(name, ids, bags.lengths, bags.are_missing)

    def _encode_numbers(self, name: Any, column: Any) -> _Entries:
        """Return the entries of a column of numbers."""
        if isinstance(column.dtype, np.dtype) and column.dtype != object:
            values = np.asarray(column)
        else:
            values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is found
            values = values.astype(self.dtype)
        ids = np.full(len(values), _NUMBER_ID)
        are_bad = ~np.isfinite(values)
        if are_bad.any():
            if self.missing == "error":
                row = int(are_bad.argmax())
                raise InvalidDataError(
                    f"Column {name!r} holds NaN or infinite numbers, or such as {self.dtype} has "
                    f"not (row {row}: {values[row]}). Fill them, X[{name!r}].fillna(0.0), or take "
                    "FieldHasher(missing='own'), which gives them an id of their own."
                )
            # An absent entry is a 0 of the number.
            ids[are_bad], values[are_bad] = _MISSING_ID, 1
        return _Entries(ids, values)

    def _hash_ids(
        self, name: Any, column: Any, found: str
    ) -> tuple[Words, NDArray[np.bool_] | None]:
        """Return ids before the mixing, and which of them are missing (None: unknown, or none)."""
        if found in ("text", "texts", "missing"):
            return self._hash_texts(name, column)
        if found == "date":
            if self.hashing == "vowpal":
                raise InvalidDataError(
                    f"Column {name!r} holds dates, and hashing='vowpal' hashes texts. Write them "
                    f"as you do for Vowpal Wabbit: X[{name!r}].dt.strftime('%Y-%m-%d')."
                )
            return _extract_dates(column)
        numbers, are_missing = _extract_integers(column, name)
        if self.hashing == "vowpal":
            distinct, places = np.unique(numbers, return_inverse=True)
            hashes = hash_names(str(name), distinct.tolist()).astype(np.uint64)
            return hashes[places], are_missing
        return numbers, are_missing

    def _hash_texts(self, name: Any, column: Any) -> tuple[Words, NDArray[np.bool_]]:
        """Return the hashes of texts; each distinct one is hashed once."""
        pandas = load_pandas()
        if hasattr(column.dtype, "categories"):
            codes, distinct = np.asarray(column.cat.codes), column.dtype.categories
        else:
            codes, distinct = pandas.factorize(column)
            if self.is_lazy:
                _check_no_written_lists(name, distinct)
        texts = np.asarray(distinct, dtype=object)
        if self.hashing == "vowpal":
            hashes = hash_names(str(name), texts).astype(np.uint64)
        else:
            hashes = pandas.util.hash_array(texts, categorize=False)
        # The code of missing values is -1: the last.
        return np.append(hashes, _MISSING_ID)[codes], codes < 0

    def _weigh_bags(
        self, name: Any, ids: Words, lengths: NDArray[np.int64], are_missing: Any
    ) -> _Entries:
        """Return the entries of bags, with an entry for each missing one."""
        if are_missing.any():
            self._check_missing(name, are_missing)
            lengths = np.where(are_missing, 1, lengths)
            own = np.repeat(are_missing, lengths)
            filled = np.full(len(own), _MISSING_ID)
            filled[~own] = ids
            ids = filled
        if self.bags == "sum":
            return _Entries(ids, None, lengths)
        shares = 1 / np.maximum(lengths, 1)
        return _Entries(ids, np.repeat(shares, lengths).astype(self.dtype), lengths)

    def _check_missing(self, name: Any, are_missing: NDArray[np.bool_]) -> None:
        """Raise for missing ids, unless they have one of their own."""
        if self.missing == "own":
            return
        raise InvalidDataError(
            f"Column {name!r} holds missing ids (the first is value {int(are_missing.argmax())} of "
            f"its block). Drop these rows, X.dropna(subset=[{name!r}]), or take "
            "FieldHasher(missing='own'), which gives them an id of their own."
        )

    def _check_kind(self, name: Any, found: str, fitted: str) -> None:
        """Raise where a column is of another kind than in the fit."""
        numbers = {"integer", "float"}
        if found == fitted or "missing" in (found, fitted) or {found, fitted} <= numbers:
            return
        if fitted == "numeric" and found in numbers:
            return
        wanted = "float" if fitted == "numeric" else fitted
        if wanted in _REMEDIES and found in _REMEDIES:
            remedy = f"Convert it first: {_REMEDIES[wanted].format(name=name)}"
        else:  # bags
            remedy = "Bring it to the form that it had there"
        raise InvalidTypeError(
            f"Column {name!r} is of kind {found}, and in the fit it was {fitted}: its ids would be "
            f"others. {remedy}, or fit again."
        )


def _check_no_written_lists(name: Any, texts: Any) -> None:
    """Raise for texts that Dask has made of lists: ``"['a', 'b']"`` would be one id."""
    if len(texts) and all(text[:1] == "[" and text[-1:] == "]" for text in texts[:100]):
        raise InvalidDataError(
            f"Column {name!r} holds texts such as {texts[0]!r}, which Dask makes of lists in "
            "columns of objects. Make the frame with "
            "dask.config.set({'dataframe.convert-string': False}), or of Arrow's lists; where "
            "these are single ids, make categories of them: "
            f"X[{name!r}].astype('category')."
        )


def _extract_dates(column: Any) -> tuple[Words, NDArray[np.bool_]]:
    """Return dates as nanoseconds since 1970, and which are missing."""
    if column.dtype == np.dtype(object) or hasattr(column.dtype, "categories"):
        column = load_pandas().to_datetime(load_pandas().Series(column).astype(object))
    elif isinstance(column, np.ndarray):
        column = load_pandas().Series(column)
    times = column.to_numpy(dtype="datetime64[ns]", na_value=np.datetime64("NaT", "ns"))
    return times.view(np.uint64), np.isnat(times)


def _extract_integers(column: Any, name: Any) -> tuple[Words, NDArray[np.bool_] | None]:
    """Return whole numbers as unsigned ones, and which are missing."""
    dtype = column.dtype
    if hasattr(dtype, "categories"):
        numbers, _ = _extract_integers(load_pandas().Series(dtype.categories), name)
        codes = np.asarray(column.cat.codes)
        return np.append(numbers, _MISSING_ID)[codes], codes < 0
    are_missing = None
    if dtype == np.dtype(object):
        are_missing = np.asarray(load_pandas().isna(column))
        known = np.array(np.asarray(column, dtype=object)[~are_missing].tolist())
        numbers = np.zeros(len(column), known.dtype)
        numbers[~are_missing] = known
    elif isinstance(dtype, np.dtype):
        numbers = np.asarray(column)
    else:  # nullable, or Arrow's
        are_missing = np.asarray(column.isna())
        plain = {"b": np.bool_, "u": np.uint64, "f": np.float64}.get(dtype.kind, np.int64)
        numbers = column.to_numpy(dtype=plain, na_value=plain(0))
    if numbers.dtype.kind == "f":
        are_missing = np.isnan(numbers) if are_missing is None else are_missing | np.isnan(numbers)
        numbers = np.where(are_missing, 0, numbers)
        are_wrong = (numbers != np.floor(numbers)) | (np.abs(numbers) >= _MAX_WHOLE_FLOAT)
        if are_wrong.any():
            raise InvalidDataError(
                f"Column {name!r} is of ids, and holds {numbers[are_wrong.argmax()]}, which is no "
                f"whole number below 2**53. Name it by numeric=[{name!r}] where it holds numbers, "
                f"or make texts of its ids: {_REMEDIES['text'].format(name=name)}."
            )
        numbers = numbers.astype(np.int64)
    if numbers.dtype.kind not in "biu":
        raise InvalidDataError(
            f"Column {name!r} holds ids that are no numbers of 64 bits. Make texts of them: "
            f"{_REMEDIES['text'].format(name=name)}."
        )
    if numbers.dtype.kind == "i" and len(numbers) and (least := numbers.min()) < 0:
        raise InvalidDataError(
            f"Column {name!r} is of ids, and holds {least}: ids are not negative. Make texts of "
            f"them, {_REMEDIES['text'].format(name=name)}; name it by numeric=[{name!r}] where it "
            "holds numbers; or, where this stands for missing ids, "
            f"X[{name!r}].mask(X[{name!r}] < 0) and FieldHasher(missing='own')."
        )
    return numbers.astype(np.uint64, copy=False), are_missing


# --- entries of all fields -------------------------------------------------------------------


def _make_columns(ids: Words, fields: Words) -> NDArray[np.int64]:
    """Return the virtual columns of ids before the mixing."""
    columns = mix_ids(ids)
    columns <<= np.uint64(FIELD_BITS)
    columns |= fields
    return columns.view(np.int64)


def _make_empty_rows(dtype: np.dtype[Any]) -> Any:
    """Return a matrix without rows."""
    return sparse.csr_array((0, N_COLUMNS), dtype=dtype)


def _join_even(fields: Sequence[_Entries], n_rows: int, dtype: np.dtype[Any]) -> Any:
    """Return the matrix of fields that have one entry in each row."""
    n_fields = len(fields)
    numbers = np.arange(n_fields, dtype=np.uint64)
    weighed = [j for j, field in enumerate(fields) if field.values is not None]
    indices = np.empty((n_rows, n_fields), np.int64)
    data = np.ones((n_rows, n_fields), dtype)
    for start in range(0, n_rows, _SLAB_ROWS):
        rows = slice(start, start + _SLAB_ROWS)
        columns = _make_columns(np.stack([field.ids[rows] for field in fields], axis=1), numbers)
        columns.sort(axis=1)
        indices[rows] = columns
        if weighed:
            values = data[rows]
            for j in weighed:
                values[:, j] = fields[j].values[rows]  # type: ignore[index]
            # The low bits of a sorted column say which field's value goes with it.
            data[rows] = np.take_along_axis(values, columns & MODEL_FIELD, axis=1)
    indptr = np.arange(n_rows + 1, dtype=np.int64) * n_fields
    made = sparse.csr_array((data.ravel(), indices.ravel(), indptr), shape=(n_rows, N_COLUMNS))
    made.has_canonical_format = True
    return made


def _join_uneven(fields: Sequence[_Entries], n_rows: int, dtype: np.dtype[Any]) -> Any:
    """Return the matrix of fields of which some have any number of entries in a row."""
    counts = np.zeros(n_rows, np.int64)
    for field in fields:
        counts += 1 if field.lengths is None else field.lengths
    indptr = np.concatenate([[0], np.cumsum(counts)])
    words = np.empty(int(indptr[-1]), np.uint64)
    numbers = np.empty(len(words), np.uint64)
    data = np.ones(len(words), dtype)
    first = indptr[:-1].copy()  # of the entries of the next field in each row
    for j, field in enumerate(fields):
        if field.lengths is None:
            at = first.copy()
            first += 1
        else:
            # Places count on in a row from its first, and jump at the end of each bag.
            ends = np.cumsum(field.lengths)
            at = np.arange(len(field.ids)) + np.repeat(
                first - (ends - field.lengths), field.lengths
            )
            first += field.lengths
        words[at], numbers[at] = field.ids, j
        if field.values is not None:
            data[at] = field.values
    columns = _make_columns(words, numbers)
    made = sparse.csr_array((data, columns, indptr), shape=(n_rows, N_COLUMNS))
    made.sum_duplicates()
    return made
