"""Hashers of features: scikit-learn's for Dask collections, and Vowpal Wabbit's namespaces.

The column of a feature is a hash of its name, so nothing is learned and blocks need not agree on
anything. If each feature gets a random sign, scalar products of hashed rows are equal in
expectation to those of the rows (K. Weinberger et al., "Feature hashing for large scale multitask
learning", ICML 2009, lemma 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn import feature_extraction
from sklearn.base import BaseEstimator, TransformerMixin

from daskml_dist.data.field_hashing import hash_names
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.estimators.transformer import BlockTransformer
from daskml_dist.feature_extraction.text import check_items


class FeatureHasher(BlockTransformer, feature_extraction.FeatureHasher):
    """:class:`sklearn.feature_extraction.FeatureHasher` for Dask Bags, Series and Arrays.

    Nothing is read in `fit`. `transform` returns a Dask Array of CSR chunks.

    Parameters
    ----------
    n_features : int, default=2**20
    input_type : {"dict", "pair", "string"}, default="dict"
        Items of the Bag: dicts, lists of (name, value), or lists of strings.
    dtype : dtype, default=float64
    alternate_sign : bool, default=True

    References
    ----------
    Weinberger et al. (2009), "Feature Hashing for Large Scale Multitask Learning".

    Examples
    --------
    >>> from daskml_dist.feature_extraction import FeatureHasher
    >>> FeatureHasher(n_features=8).transform([{'dog': 1, 'cat': 2}, {'dog': 2}]).shape
    (2, 8)
    """

    _numeric: ClassVar[bool] = False
    _of_rows: ClassVar[bool] = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False  # True in older versions of scikit-learn
        return tags

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Check the parameters.

        Parameters
        ----------
        X, y : ignored

        Returns
        -------
        self
        """
        check_items(X)
        feature_extraction.FeatureHasher.fit(self, None if is_dask(X) else X)
        return self

    def transform(self, raw_X: Any) -> Any:
        """Hash items; lazily for a Dask collection.

        Parameters
        ----------
        raw_X : iterable of items, dask Bag, Series or Array

        Returns
        -------
        CSR matrix, or dask Array of such chunks, of shape (n_items, n_features)

        Raises
        ------
        InvalidParameterError
        InvalidDataError
            The items are a table.
        """
        check_items(raw_X)
        self._check_parameters()  # also without a fit: n_features=0 would crash the process
        return self._transformed(raw_X)

    def _sample(self, X: Any) -> Any:
        return [{"dict": {"a": 1}, "pair": [("a", 1)], "string": ["a"]}[self.input_type]]


#: Multiplier of the first hash in a product (MurmurHash2's); odd, so no bit is lost.
_HASH_MULTIPLIER = np.uint32(0x5BD1E995)

#: Hashes of features, and their values.
Features = tuple[NDArray[np.uint32], NDArray[np.float64]]


class _NamespaceHasherInMemory(TransformerMixin, BaseEstimator):
    """Hasher of rows in memory, in the role of a scikit-learn class; see `NamespaceHasher`."""

    def __init__(
        self,
        n_features: int = 2**18,
        *,
        interactions: Iterable[tuple[str, str]] = (),
        alternate_sign: bool = True,
        dtype: Any = np.float64,
    ) -> None:
        self.n_features = n_features
        self.interactions = interactions
        self.alternate_sign = alternate_sign
        self.dtype = dtype

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.dict, tags.input_tags.two_d_array = True, False
        tags.no_validation = True
        return tags

    def fit(self, X: Any = None, y: Any = None) -> Self:
        if not (isinstance(self.n_features, Integral) and 1 <= self.n_features < 2**31):
            raise InvalidParameterError(
                f"n_features={self.n_features!r}: use an integer from 1 to 2**31 - 1."
            )
        if any(len(pair) != 2 for pair in self.interactions):
            raise InvalidParameterError(
                f"interactions={self.interactions!r}: each must name two namespaces."
            )
        return self

    def transform(self, X: Any) -> Any:
        columns, values, lengths = [], [], []
        for row in X:
            hashes, numbers = self._hash_row(row)
            columns.append(hashes)
            values.append(numbers)
            lengths.append(len(hashes))
        # Handle all rows together: signs, columns and the row pointers of a CSR matrix. The empty
        # arrays give the right dtypes if there are no rows.
        hashes = np.concatenate([np.empty(0, np.uint32), *columns])
        numbers = np.concatenate([np.empty(0), *values])
        if self.alternate_sign:
            # The sign is the highest bit of the hash, which the column does not depend on.
            numbers = np.where(hashes >> np.uint32(31), -numbers, numbers)
        indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        indices = ((hashes & np.uint32(2**31 - 1)) % np.uint32(self.n_features)).astype(np.int32)
        rows = sparse.csr_array(
            (numbers.astype(self.dtype), indices, indptr), shape=(len(lengths), self.n_features)
        )
        rows.sum_duplicates()  # values of features that collide are added
        return rows

    def _hash_row(self, row: Any) -> Features:
        """Return the features of a row: those of its namespaces, then their products."""
        if not isinstance(row, Mapping):
            raise InvalidDataError(
                f"A row is a {type(row).__name__}. Pass dicts from namespace to text, tokens or "
                "{name: value}."
            )
        spaces = {space: _hash_namespace(space, features) for space, features in row.items()}
        parts = list(spaces.values())
        for a, b in self.interactions:
            if a in spaces and b in spaces:
                parts.append(_multiply_features(spaces[a], spaces[b], is_same=a == b))
        if not parts:
            return np.empty(0, np.uint32), np.empty(0)
        return np.concatenate([h for h, _ in parts]), np.concatenate([v for _, v in parts])


class NamespaceHasher(BlockTransformer, _NamespaceHasherInMemory):
    """Transformer that hashes the features of namespaces, and their products, to columns.

    Parameters
    ----------
    n_features : int, default=2**18
        Columns of the result.
    interactions : iterable of (str, str), default=()
        Pairs of namespaces whose features are multiplied, each with each; a namespace paired with
        itself gives each unordered pair once. Products are hashed on the fly, without being stored.
    alternate_sign : bool, default=True
        Whether to give half of the features a negative sign, so that collisions cancel on average.
    dtype : dtype, default=float64

    Notes
    -----
    A row is a dict from namespace to its features: a text (split at spaces), tokens, or a dict of
    values. A feature's hash is MurmurHash3 of its name, with the hash of the namespace as seed; a
    product's hash is ``hash_a * 0x5bd1e995 + hash_b`` (mod 2**32).

    References
    ----------
    Weinberger et al. (2009), "Feature Hashing for Large Scale Multitask Learning"; Agarwal et al.
    (2014), "A Reliable Effective Terascale Linear Learning System" (Vowpal Wabbit).

    Examples
    --------
    >>> from daskml_dist.feature_extraction import NamespaceHasher
    >>> hasher = NamespaceHasher(2**10, interactions=[("user", "page")])
    >>> hasher.fit_transform([{"user": "anna", "page": {"length": 2.5, "age": 3}}]).nnz
    5
    """

    _numeric: ClassVar[bool] = False
    _of_rows: ClassVar[bool] = False

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Check the parameters.

        Parameters
        ----------
        X, y : ignored

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            `n_features` or `interactions` is invalid.
        """
        check_items(X)
        _NamespaceHasherInMemory.fit(self)
        return self

    def fit_transform(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Check the parameters and transform; see :meth:`transform`."""
        return self.fit(X).transform(X)

    def _sample(self, X: Any) -> Any:
        return [{"a": "b"}]


def _hash_namespace(namespace_name: str, features: Any) -> Features:
    """Return the hashes and values of a namespace's features."""
    if isinstance(features, str):
        features = features.split()
    if not isinstance(features, Iterable):
        raise InvalidDataError(
            f"Namespace {namespace_name!r} holds {features!r}. Its features must be a string, a "
            f"list of "
            "names, or a mapping of names to numbers, such as {'price': 2.5}."
        )
    items = (
        features.items() if isinstance(features, Mapping) else [(name, 1.0) for name in features]
    )
    hashes = hash_names(namespace_name, [name for name, _ in items])
    return hashes, np.array([value for _, value in items], dtype=float)


def _multiply_features(a: Features, b: Features, is_same: bool) -> Features:
    """Return the hashes and values of the products of two namespaces' features."""
    # All pairs of features; for a namespace with itself, each unordered pair, including squares.
    first, second = np.indices((len(a[0]), len(b[0]))).reshape(2, -1)
    if is_same:
        first, second = np.triu_indices(len(a[0]))
    return a[0][first] * _HASH_MULTIPLIER + b[0][second], a[1][first] * b[1][second]
