"""Hashing of columns of ids and numbers to entries of one matrix of 2**62 virtual columns.

Each column of a table is a *field*. A block of rows becomes a CSR matrix whose column numbers
encode both field and id::

    column = mixed id << 8 | field        mixed id: 54 bits, field: 0 to 254

The mixing spreads ids evenly over servers and buckets, whatever their original values. It is a
bijection of the numbers below 2**54, so the integers of a field never collide. Field 255 is
reserved for the model's own parameters, such as its bias. The *kind* of a column (integers, texts,
...) is determined by its type or its values, and must be the same in all blocks. Lazy tables are
hashed by `inference/table_fields.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import murmurhash3_32

from daskml_dist.backends.id_hashing import FIELD_BITS, ID_BITS, MODEL_FIELD, mix_ids
from daskml_dist.data.conversion import densify_columns, load_pandas
from daskml_dist.errors import InvalidDataError, InvalidParameterError, InvalidTypeError
from daskml_dist.errors.suggestions import suggest_nearest

Words = NDArray[np.uint64]

#: Virtual columns: all combinations of the bits of an id and of a field.
N_COLUMNS = 2 ** (ID_BITS + FIELD_BITS)
#: Maximum number of fields; the last field number is reserved for the model.
MAX_FIELDS = MODEL_FIELD
#: Ids, before mixing, of a numeric field's value, and of a missing value of any field.
_NUMBER_ID, _MISSING_ID = np.uint64(0), np.uint64(2**ID_BITS - 1)

#: Rows that are mixed and sorted together: half a megabyte for 26 fields, which fits in the cache.
_SLAB_ROWS = 2048
#: Integers up to here are exact in float64.
_MAX_WHOLE_FLOAT = 2.0**53

#: Kind of a column, by the result of pandas' ``infer_dtype`` for objects.
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
#: Remedy for a column of one kind where another kind was fitted.
_REMEDIES = {
    "integer": "X[{name!r}] = X[{name!r}].astype('Int64')",
    "float": "X[{name!r}] = X[{name!r}].astype('float64')",
    "text": "X[{name!r}] = X[{name!r}].astype(str)",
    "date": "X[{name!r}] = pandas.to_datetime(X[{name!r}])",
}


def hash_names(namespace: str, names: Iterable[Any]) -> NDArray[np.uint32]:
    """Return the hashes of names in a namespace: MurmurHash3 of 32 bits, as Vowpal Wabbit's."""
    # The hash of the namespace is the seed, so that equal names in two namespaces differ.
    seed = murmurhash3_32(namespace, positive=True)
    hashes = [murmurhash3_32(str(name), seed=seed, positive=True) for name in names]
    return np.array(hashes, dtype=np.uint32)


# --- columns and their kinds -----------------------------------------------------------------


def shorten_names(names: Sequence[Any]) -> str:
    """Return names for a message: all, or the first ten."""
    return f"[{', '.join(map(repr, names[:10]))}{', ...' if len(names) > 10 else ''}]"


def _split_columns(rows: Any) -> list[Any]:
    """Return the columns of a block: arrays of numbers or dates, else series of pandas."""
    if is_dataframe_like(rows):
        rows = densify_columns(rows)
        return [rows.iloc[:, j] for j in range(rows.shape[1])]
    rows = np.asarray(rows)
    if rows.dtype.kind in "biufcmM":
        # Column order: columns are read one after the other.
        return list(np.asfortranarray(rows).T)
    series = load_pandas().Series
    return [series(rows[:, j], dtype=object) for j in range(rows.shape[1])]


def find_numeric(kinds: Sequence[str], names: Sequence[Any], numeric: Any) -> list[bool]:
    """Return which fields are numeric: with ``"auto"`` the float ones, else the named ones.

    Raises
    ------
    InvalidParameterError, InvalidDataError
        A name is not a field, or its field has no numbers.
    """
    if isinstance(numeric, str):
        return [kind == "float" for kind in kinds]
    for name in numeric:
        if name not in names:
            raise InvalidParameterError(
                f"numeric: {name!r} is not a column. Use columns of "
                f"{shorten_names(names)}.{suggest_nearest(name, names)}"
            )
        kind = kinds[names.index(name)]
        if kind not in ("integer", "float", "missing"):
            raise InvalidDataError(
                f"Column {name!r} is of kind {kind}, but numeric={numeric!r} names it. Remove it "
                f"there, or convert it to numbers: {_REMEDIES['float'].format(name=name)}."
            )
    return [name in numeric for name in names]


def find_block_kinds(names: Sequence[Any], index: int, X: Any, *_: Any) -> list[str] | None:
    """Return the kinds of the columns of a block; None for a block without rows."""
    return find_kinds(X, names) if X.shape[0] else None


def join_kinds(names: Sequence[Any], block_kinds: list[list[str]]) -> list[str]:
    """Return the kind of each column, common to all blocks; raise if blocks differ."""
    joined = []
    for name, kinds in zip(names, zip(*block_kinds, strict=True), strict=True):
        distinct = set(kinds) - {"missing"}
        if distinct == {"integer", "float"}:  # integers, with missing values in some blocks
            distinct = {"float"}
        if len(distinct) > 1:
            raise _make_mixed_error(name, " and ".join(sorted(distinct)))
        joined.append(distinct.pop() if distinct else "missing")
    return joined


def find_kinds(rows: Any, names: Sequence[Any]) -> list[str]:
    """Return the kinds of the columns of rows in memory."""
    kinds = []
    for name, column in zip(names, _split_columns(rows), strict=True):
        bag = _open_bags(column)
        kind = _find_kind(bag.ids, name)
        kinds.append(kind if bag.lengths is None else _find_bag_kind(kind, name))
    return kinds


def _find_bag_kind(kind: str, name: Any) -> str:
    """Return the kind of a column of bags, given the kind of their ids."""
    # Bags of integers with missing values arrive as floats; `_extract_integers` refuses fractions.
    kinds = {"integer": "integers", "float": "integers", "text": "texts", "missing": "missing"}
    if kind not in kinds:
        raise InvalidDataError(
            f"Column {name!r} holds lists of {kind}s. Lists of ids must hold integers or "
            f"strings: convert their items to strings, X[{name!r}].map(lambda bag: [str(item) "
            "for item in bag])."
        )
    return kinds[kind]


def _find_kind(column: Any, name: Any) -> str:
    """Return the kind of a column without bags."""
    dtype = column.dtype
    if hasattr(dtype, "categories") and hasattr(dtype, "ordered"):
        return _find_kind(load_pandas().Series(dtype.categories), name)
    if dtype.kind in "biufM":
        return {"f": "float", "M": "date"}.get(dtype.kind, "integer")
    if dtype.kind in "US" or str(dtype).partition("[")[0] in ("str", "string", "large_string"):
        return "text"
    if dtype == np.dtype(object):
        inferred = load_pandas().api.types.infer_dtype(column, skipna=True)
        if (kind := _OBJECT_KINDS.get(inferred)) is not None:
            return kind
        if inferred.startswith("mixed"):
            raise _make_mixed_error(name, inferred)
        dtype = f"{dtype}, values of {inferred}"
    raise InvalidTypeError(
        f"Column {name!r} of dtype {dtype} cannot be used as ids. Convert it to strings, "
        f"{_REMEDIES['text'].format(name=name)}, or leave it out of X."
    )


def _make_mixed_error(name: Any, found_types: str) -> InvalidTypeError:
    """Return the error for a column of mixed types, in which 1 and "1" might be two ids."""
    return InvalidTypeError(
        f"Column {name!r} holds values of mixed types ({found_types}), and 1 and '1' would be two "
        f"ids. Convert them to one type: {_REMEDIES['text'].format(name=name)}, or "
        f"{_REMEDIES['integer'].format(name=name)}."
    )


# --- bags ------------------------------------------------------------------------------------


class _Bags(NamedTuple):
    """Concatenated ids of a column, and how many each row has.

    Parameters
    ----------
    ids : array or series
    lengths : ndarray of int64, or None
        Number of ids per row; None if each row has one.
    are_missing : ndarray of bool, or None
        Rows without a bag.
    """

    ids: Any
    lengths: NDArray[np.int64] | None = None
    are_missing: NDArray[np.bool_] | None = None


def _has_list_type(dtype: Any) -> bool:
    """Return whether a dtype is Arrow's list type."""
    return str(dtype).startswith(("list<", "large_list<", "fixed_size_list<"))


def _open_bags(column: Any) -> _Bags:
    """Return the concatenated ids of a column of bags; a column of single ids is unchanged."""
    if _has_list_type(column.dtype):
        return _open_arrow_lists(column)
    if column.dtype != np.dtype(object):
        return _Bags(column)
    are_missing = np.asarray(load_pandas().isna(column))
    cells = np.asarray(column, dtype=object)
    present = cells[~are_missing]
    kinds = set(map(type, present))
    if not kinds or not all(issubclass(k, list | tuple | set | np.ndarray) for k in kinds):
        return _Bags(column)
    lengths = np.zeros(len(cells), np.int64)
    lengths[~are_missing] = np.fromiter(map(len, present), np.int64, len(present))
    # Parquet's lists keep their numeric dtype. Empty ones have no kind, whatever their dtype.
    if kinds == {np.ndarray} and lengths.any():
        flat = np.concatenate([cell for cell in present if len(cell)])
    else:
        # Cell by cell: NumPy would expand ids that are themselves lists.
        flat = np.fromiter(chain.from_iterable(present), dtype=object, count=int(lengths.sum()))
    is_plain = flat.dtype.kind in "biuf"
    return _Bags(
        flat if is_plain else load_pandas().Series(flat, dtype=object), lengths, are_missing
    )


def _open_arrow_lists(column: Any) -> _Bags:
    """Return the concatenated ids of a column of Arrow lists."""
    import pyarrow
    import pyarrow.compute as pc

    lists = pyarrow.array(column)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    flat = pc.list_flatten(lists).to_pandas(types_mapper=load_pandas().ArrowDtype)
    return _Bags(flat, lengths.astype(np.int64), np.asarray(column.isna()))


# --- hashing of blocks -----------------------------------------------------------------------


class _Entries(NamedTuple):
    """Entries of a field: ids before mixing, values (None: 1), and how many each row has."""

    ids: Words
    values: NDArray[Any] | None = None
    lengths: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class BlockHasher:
    """Function that maps a block of rows to a CSR matrix of its entries.

    Parameters
    ----------
    names, kinds, bags, hashing, missing, dtype
        As in the fitted transformer.
    is_lazy : bool
        Whether the blocks belong to a Dask collection.
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
        found_kind = _find_kind(bags.ids, name)
        if bags.lengths is not None:
            found_kind = _find_bag_kind(found_kind, name)
        self._check_kind(name, found_kind, kind)
        if kind == "numeric":
            return self._encode_numbers(name, column)
        ids, are_missing = self._hash_ids(name, bags.ids, found_kind)
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
        with np.errstate(over="ignore"):  # too large values become infinite, and are refused
            values = values.astype(self.dtype)
        ids = np.full(len(values), _NUMBER_ID)
        are_bad = ~np.isfinite(values)
        if are_bad.any():
            if self.missing == "error":
                row = int(are_bad.argmax())
                raise InvalidDataError(
                    f"Column {name!r} holds NaN, infinity, or numbers that {self.dtype} cannot "
                    f"represent (row {row}: {values[row]}). Fill them, X[{name!r}].fillna(0.0), "
                    "or set missing='own', which gives them their own id."
                )
            # A missing value is an entry of value 1 with the missing id; a plain 0 would mean
            # absence.
            ids[are_bad], values[are_bad] = _MISSING_ID, 1
        return _Entries(ids, values)

    def _hash_ids(
        self, name: Any, column: Any, found_kind: str
    ) -> tuple[Words, NDArray[np.bool_] | None]:
        """Return ids before mixing, and which of them are missing (None: unknown, or none)."""
        if found_kind in ("text", "texts", "missing"):
            return self._hash_texts(name, column)
        if found_kind == "date":
            if self.hashing == "vowpal":
                raise InvalidDataError(
                    f"Column {name!r} holds dates, but hashing='vowpal' hashes strings. Format "
                    f"them as for Vowpal Wabbit: X[{name!r}].dt.strftime('%Y-%m-%d')."
                )
            return _extract_dates(column, name)
        numbers, are_missing = _extract_integers(column, name)
        if self.hashing == "vowpal":
            distinct, places = np.unique(numbers, return_inverse=True)
            hashes = hash_names(str(name), distinct.tolist()).astype(np.uint64)
            return hashes[places], are_missing
        return numbers, are_missing

    def _hash_texts(self, name: Any, column: Any) -> tuple[Words, NDArray[np.bool_]]:
        """Return the hashes of texts; each distinct text is hashed once."""
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
        # Missing values have the code -1, which selects the last element.
        return np.append(hashes, _MISSING_ID)[codes], codes < 0

    def _weigh_bags(
        self, name: Any, ids: Words, lengths: NDArray[np.int64], are_missing: Any
    ) -> _Entries:
        """Return the entries of bags; each missing bag gets one entry."""
        if are_missing.any():
            self._check_missing(name, are_missing)
            lengths = np.where(are_missing, 1, lengths)
            is_missing_entry = np.repeat(are_missing, lengths)
            filled = np.full(len(is_missing_entry), _MISSING_ID)
            filled[~is_missing_entry] = ids
            ids = filled
        if self.bags == "sum":
            return _Entries(ids, None, lengths)
        shares = 1 / np.maximum(lengths, 1)
        return _Entries(ids, np.repeat(shares, lengths).astype(self.dtype), lengths)

    def _check_missing(self, name: Any, are_missing: NDArray[np.bool_]) -> None:
        """Raise if ids are missing, unless missing values are encoded as an id."""
        if self.missing == "own":
            return
        raise InvalidDataError(
            f"Column {name!r} holds missing ids (the first is value {int(are_missing.argmax())} "
            f"of its block). Drop these rows, X.dropna(subset=[{name!r}]), or set missing='own', "
            "which gives them their own id."
        )

    def _check_kind(self, name: Any, found_kind: str, fitted_kind: str) -> None:
        """Raise if a column's kind differs from the fitted one."""
        numbers = {"integer", "float"}
        if (
            found_kind == fitted_kind
            or "missing" in (found_kind, fitted_kind)
            or {found_kind, fitted_kind} <= numbers
        ):
            return
        if fitted_kind == "numeric" and found_kind in numbers:
            return
        target_kind = "float" if fitted_kind == "numeric" else fitted_kind
        if target_kind in _REMEDIES and found_kind in _REMEDIES:
            remedy = f"Convert it first: {_REMEDIES[target_kind].format(name=name)}"
        else:  # bags
            remedy = "Convert it to that kind"
        raise InvalidTypeError(
            f"Column {name!r} is of kind {found_kind}, but in the fit it was {fitted_kind}, so its "
            f"ids would differ. {remedy}, or fit again."
        )


def _check_no_written_lists(name: Any, texts: Any) -> None:
    """Raise for texts that Dask made from lists: ``"['a', 'b']"`` would be one id."""
    if len(texts) and all(text[:1] == "[" and text[-1:] == "]" for text in texts[:100]):
        raise InvalidDataError(
            f"Column {name!r} holds strings such as {texts[0]!r}, which look like lists that "
            "Dask converted to strings. Create the frame with "
            "dask.config.set({'dataframe.convert-string': False}), or use Arrow lists; if "
            f"these are single ids, convert them to categories: X[{name!r}].astype('category')."
        )


def _extract_dates(column: Any, name: Any) -> tuple[Words, NDArray[np.bool_]]:
    """Return dates as nanoseconds since 1970, and which are missing."""
    if isinstance(column, np.ndarray):
        column = load_pandas().Series(column)
    try:
        if column.dtype == np.dtype(object) or hasattr(column.dtype, "categories"):
            column = load_pandas().to_datetime(column.astype(object))
        times = column.to_numpy(dtype="datetime64[ns]", na_value=np.datetime64("NaT", "ns"))
    except ValueError as error:  # beyond the range of nanoseconds
        raise InvalidDataError(
            f"Column {name!r} holds dates that do not fit 64-bit nanoseconds: {error}. Convert "
            f"them to strings: {_REMEDIES['text'].format(name=name)}."
        ) from error
    return times.view(np.uint64), np.isnat(times)


def _extract_integers(column: Any, name: Any) -> tuple[Words, NDArray[np.bool_] | None]:
    """Return integers as unsigned numbers, and which are missing."""
    dtype = column.dtype
    if hasattr(dtype, "categories"):
        numbers, _ = _extract_integers(load_pandas().Series(dtype.categories), name)
        codes = np.asarray(column.cat.codes)
        return np.append(numbers, _MISSING_ID)[codes], codes < 0
    are_missing = None
    if dtype == np.dtype(object):
        are_missing = np.asarray(load_pandas().isna(column))
        present = np.array(np.asarray(column, dtype=object)[~are_missing].tolist())
        numbers = np.zeros(len(column), present.dtype)
        numbers[~are_missing] = present
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
                f"Column {name!r} holds {numbers[are_wrong.argmax()]}, but ids must be whole "
                f"numbers below 2**53. Name it by numeric=[{name!r}] if it holds numbers, or "
                f"convert its ids to strings: {_REMEDIES['text'].format(name=name)}."
            )
        numbers = numbers.astype(np.int64)
    if numbers.dtype.kind not in "biu":
        raise InvalidDataError(
            f"Column {name!r} holds ids that do not fit 64 bits. Convert them to strings: "
            f"{_REMEDIES['text'].format(name=name)}."
        )
    if numbers.dtype.kind == "i" and len(numbers) and (least := numbers.min()) < 0:
        raise InvalidDataError(
            f"Column {name!r} holds {least}, but ids cannot be negative. Convert "
            f"them to strings, {_REMEDIES['text'].format(name=name)}; name it by "
            f"numeric=[{name!r}] if it holds numbers; or, if this stands for missing ids, "
            f"X[{name!r}].mask(X[{name!r}] < 0) and missing='own'."
        )
    return numbers.astype(np.uint64, copy=False), are_missing


# --- entries of all fields -------------------------------------------------------------------


def _make_columns(ids: Words, fields: Words) -> NDArray[np.int64]:
    """Return the virtual columns of ids (before mixing) and fields."""
    columns = mix_ids(ids)
    columns <<= np.uint64(FIELD_BITS)
    columns |= fields
    return columns.view(np.int64)


def make_empty_rows(dtype: np.dtype[Any]) -> Any:
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
            # The low bits of a sorted column are the field whose value belongs to it.
            data[rows] = np.take_along_axis(values, columns & MODEL_FIELD, axis=1)
    indptr = np.arange(n_rows + 1, dtype=np.int64) * n_fields
    matrix = sparse.csr_array((data.ravel(), indices.ravel(), indptr), shape=(n_rows, N_COLUMNS))
    matrix.has_canonical_format = True
    return matrix


def _join_uneven(fields: Sequence[_Entries], n_rows: int, dtype: np.dtype[Any]) -> Any:
    """Return the matrix of fields of which some have a varying number of entries per row."""
    counts = np.zeros(n_rows, np.int64)
    for field in fields:
        counts += 1 if field.lengths is None else field.lengths
    indptr = np.concatenate([[0], np.cumsum(counts)])
    ids = np.empty(int(indptr[-1]), np.uint64)
    numbers = np.empty(len(ids), np.uint64)
    data = np.ones(len(ids), dtype)
    first = indptr[:-1].copy()  # position of the next field's entries in each row
    for j, field in enumerate(fields):
        if field.lengths is None:
            positions = first.copy()
            first += 1
        else:
            # Within a row, positions count up from the row's first; they jump at the end of each
            # bag.
            ends = np.cumsum(field.lengths)
            positions = np.arange(len(field.ids)) + np.repeat(
                first - (ends - field.lengths), field.lengths
            )
            first += field.lengths
        ids[positions], numbers[positions] = field.ids, j
        if field.values is not None:
            data[positions] = field.values
    columns = _make_columns(ids, numbers)
    matrix = sparse.csr_array((data, columns, indptr), shape=(n_rows, N_COLUMNS))
    matrix.sum_duplicates()
    return matrix
