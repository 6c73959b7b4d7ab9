"""Vectorizers of texts: terms counted over all documents, or hashed.

A vocabulary needs two numbers for each term, by which rare and frequent terms are left out: the
number of documents that contain it (document frequency), and its number of occurrences. Both are
sums over documents, so `VocabularyTransformer` counts them block by block (`TermCounts`) and merges
the counts: the result is exactly that of scikit-learn. A hashing vectorizer has no vocabulary, and
learns nothing. scikit-learn's class transforms the blocks.

References
----------
C. D. Manning, P. Raghavan and H. Schütze, "Introduction to information retrieval", 2008, section
6.2 (term and inverse document frequency).
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from numbers import Integral
from typing import Any, ClassVar, Self

import dask.array as da
import dask.bag as db
import numpy as np
from dask.delayed import delayed
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.feature_extraction import text

from daskml_dist.dask_internals.expressions import lower_partitions
from daskml_dist.data.collection import Collection
from daskml_dist.data.conversion import as_rows, copy_to_host
from daskml_dist.data.lazy import is_dask, join_delayed
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.data.row_checks import check_row_shape, find_row_shape
from daskml_dist.diagnostics.operation_progress import report_reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError, as_ours
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.transformer import BlockTransformer, append_remedy


class DocumentTransformer(BlockTransformer):
    """Base class of transformers of texts, which refuses documents that are not text."""

    _of_rows: ClassVar[bool] = False
    _remedy: ClassVar[str] = 'Texts must be strings; fill missing ones first: X.fillna("").'

    def decode(self, doc: Any) -> Any:
        """Decode a text as in scikit-learn; None and pandas.NA count as missing values too."""
        # scikit-learn refuses NaN with a clear message, but fails with unclear errors on the
        # others.
        missing = doc is None or type(doc).__name__ == "NAType"
        try:
            return super().decode(np.nan if missing else doc)
        except UnicodeDecodeError as error:
            raise InvalidDataError(
                f'{error}. Set encoding to that of the texts, such as "latin-1", or '
                'decode_error="replace".'
            ) from error

    def build_preprocessor(self) -> Callable[[Any], str]:
        """Return scikit-learn's preprocessor of a text, which refuses values that are not text."""
        preprocess: Callable[[Any], str] = super().build_preprocessor()
        # A custom preprocessor accepts any object, and so does one that changes nothing: documents
        # may then be lists of tokens.
        if self.preprocessor is not None or not (self.lowercase or self.strip_accents):
            return preprocess
        return partial(_preprocess_text, preprocess)

    def build_tokenizer(self) -> Callable[[str], Any]:
        """Return scikit-learn's function that splits a text; `token_pattern` must be a pattern."""
        try:
            tokenize: Callable[[str], Any] = super().build_tokenizer()
        except re.error as error:
            raise InvalidParameterError(
                f"token_pattern={self.token_pattern!r} is no regular expression: {error}. Correct "
                "it, or pass a function as tokenizer."
            ) from error
        return tokenize

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.analyzer == "word" and self.tokenizer is None:
            self.build_tokenizer()

    def _sample(self, X: Any) -> Any:
        # One document, for any kind of collection: a text, a file, or the name of an empty one.
        return [{"file": BytesIO(b"text"), "filename": os.devnull}.get(self.input, "text")]

    def fit_transform(self, raw_documents: Any, y: Any = None, **params: Any) -> Any:  # type: ignore[override]
        """Fit to documents, and return them transformed."""
        check_documents(raw_documents)
        return super().fit_transform(raw_documents, y, **params)


def check_documents(X: Any) -> None:
    """Raise if documents are a single text or a table."""
    _check_not_one_text(X)
    _check_not_table(X)


def _check_not_one_text(X: Any) -> None:
    """Raise if documents are a single text, whose letters would be read as documents."""
    if isinstance(X, str | bytes):
        raise InvalidDataError(
            "Iterable over raw text documents expected, string object received. Pass a list of "
            "strings; for one text, [text]."
        )


def _check_not_table(X: Any) -> None:
    """Raise if documents are a table, whose column names would be read as documents."""
    if _is_table(X):
        raise InvalidDataError(
            f'Texts came as a table ({type(X).__name__}). Pass one column, such as X["text"] or '
            "X[:, 0]; for several, name one column each in "
            'make_column_transformer((TfidfVectorizer(), "text")), without a list around it.'
        )


def _is_table(X: Any) -> bool:
    """Return whether X is a dataframe, or an array of several dimensions."""
    return bool(is_dataframe_like(X) or getattr(X, "ndim", 1) > 1)


def check_items(X: Any) -> None:
    """Raise if items to hash are strings, or a table, whose column names would be read as items."""
    if _is_table(X):
        raise InvalidDataError(
            f"Items came as a table ({type(X).__name__}), but each item must be a dict. Convert "
            'a pandas frame with X.to_dict("records"), a Dask one with X.to_bag(format="dict").'
        )
    if is_dask(X) and is_series_like(X) and X.dtype.name in ("str", "string"):
        raise InvalidDataError(
            "Items came as strings, to which Dask converts dicts and lists in a Series. Create it "
            "with dask.config.set({'dataframe.convert-string': False}), or pass a Dask Bag."
        )


def _preprocess_text(preprocess: Callable[[Any], str], document: Any) -> str:
    """Return a preprocessed text; raise for another type, such as bytes that were not decoded."""
    if not isinstance(document, str):
        raise ValueError(f"a document is of type {type(document).__name__}")
    return preprocess(document)


@dataclass
class TermCounts:
    """Counts of the terms of some documents; counts of several blocks can be added.

    Parameters
    ----------
    n_documents : int
    documents : Counter
        Document frequency: number of documents that contain each term.
    times : Counter
        Collection frequency: number of occurrences of each term; empty unless `max_features` needs
        it to rank terms.
    """

    n_documents: int = 0
    documents: Counter[str] = field(default_factory=Counter)
    times: Counter[str] = field(default_factory=Counter)

    def add(self, other: TermCounts) -> None:
        """Add the counts of other documents."""
        self.n_documents += other.n_documents
        self.documents.update(other.documents)
        self.times.update(other.times)


class VocabularyTransformer(DocumentTransformer):
    """Base class of transformers of texts that learn the terms of all documents."""

    #: Whether a fit with a given vocabulary learns nothing else, so that no document is read.
    _needs_no_counts: ClassVar[bool] = True

    def fit(self, raw_documents: Any, y: Any = None) -> Self:
        """Learn the terms of all documents; for a Dask collection in one pass.

        Parameters
        ----------
        raw_documents : iterable of str, dask Bag, Series or Array of shape (n_documents,)
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        InvalidDataError
            A document is not text, or no document contains a term.
        InvalidParameterError
            No term remains after `min_df` and `max_df`.
        """
        check_documents(raw_documents)
        X = join_delayed(raw_documents, 1)
        return self._fit_lazy(X) if is_dask(X) else super().fit(X, y)

    def transform(self, raw_documents: Any) -> Any:
        """Return the counts (or weights) of terms; lazily for a Dask collection of documents.

        Parameters
        ----------
        raw_documents : as in :meth:`fit`

        Returns
        -------
        CSR matrix, or dask Array of such chunks, of shape (n_documents, n_terms)
        """
        _check_not_one_text(raw_documents)
        self._check_vocabulary_known()
        _check_not_table(raw_documents)
        return self._transformed(raw_documents)

    def _fit_lazy(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        self._check_parameters()
        is_given = bool(self.fixed_vocabulary_)
        counts = TermCounts()
        if not (is_given and self._needs_no_counts):
            unfitted = clone(self)
            documents = Collection("dask", _read_document_blocks(X), None, None, None)
            with report_reading(type(self).__name__):
                counts = reduce_parts(documents, partial(_count_block, unfitted), _add_counts)
        # A given vocabulary keeps its order of columns.
        terms = (
            sorted(self.vocabulary_, key=self.vocabulary_.__getitem__)
            if is_given
            else self._select_terms(counts)
        )
        self._set_vocabulary(terms, counts)
        return self

    def _check_parameters(self) -> None:
        super()._check_parameters()
        # scikit-learn's private checks, in the order in which its own `fit` makes them.
        try:
            self._validate_ngram_range()
            self._warn_for_unused_params()
            self._validate_vocabulary()
        except ValueError as error:
            raise InvalidParameterError(str(error)) from error
        if (
            self.fixed_vocabulary_
            and self.lowercase
            and any(any(map(str.isupper, term)) for term in self.vocabulary)
        ):
            warnings.warn(
                "Upper case characters found in vocabulary while 'lowercase' is True. These "
                "entries will not be matched with any documents",
                stacklevel=user_stack_level(),
            )

    def _resolve_document_limits(self, n_documents: int) -> tuple[float, float]:
        """Return the smallest and the largest number of documents that may contain a term."""
        # A float is a share of all documents, an integer a number of documents.
        high, low = (
            float(limit) if isinstance(limit, Integral) else limit * n_documents
            for limit in (self.max_df, self.min_df)
        )
        if high < low:
            raise InvalidParameterError(
                f"max_df corresponds to < documents than min_df: {high:g} and {low:g} of "
                f"{n_documents}. Try a lower min_df or a higher max_df."
            )
        return low, high

    def _select_terms(self, counts: TermCounts) -> list[str]:
        """Return the sorted terms that occur in neither too few nor too many documents."""
        terms = sorted(counts.documents)
        if not terms:
            raise InvalidDataError(
                "empty vocabulary; perhaps the documents only contain stop words. Look at "
                "`stop_words` and `token_pattern`, which by default only matches words of two "
                "letters or more, and at the filter or the path of the collection."
            )
        low, high = self._resolve_document_limits(counts.n_documents)
        documents = _collect_counts(counts.documents, terms)
        keep = np.flatnonzero((documents >= low) & (documents <= high))
        if self.max_features is not None and len(keep) > self.max_features:
            times = documents if self.binary else _collect_counts(counts.times, terms)
            # The same (unstable) sort as in scikit-learn, so that ties have the same result.
            keep = np.sort(keep[(-times[keep]).argsort()[: self.max_features]])
        if not len(keep):
            raise InvalidParameterError(
                "After pruning, no terms remain. Try a lower min_df or a higher max_df."
            )
        return [terms[i] for i in keep.tolist()]

    def _set_vocabulary(self, terms: list[str], counts: TermCounts) -> None:
        """Set the fitted attributes: `terms` in the order of their columns, and their counts."""
        self.vocabulary_ = {term: i for i, term in enumerate(terms)}

    def inverse_transform(self, X: Any) -> Any:
        """Return the terms of each row of counts.

        Parameters
        ----------
        X : array, CSR matrix or dask Array of shape (n_documents, n_terms)

        Returns
        -------
        list of ndarray of str, or lazy dask Bag of these
        """
        if not is_dask(X):
            return super().inverse_transform(X)
        self._check_vocabulary_known()
        check_row_shape(find_row_shape(X), (len(self.vocabulary_),), type(self).__name__)
        if isinstance(X, da.Array):
            X = X.rechunk({1: -1})  # a block has all terms of its documents
        # Tasks carry an unfitted copy with only the vocabulary.
        with_vocabulary = clone(self).set_params(vocabulary=self.vocabulary_)
        terms_of = delayed(partial(_find_terms, with_vocabulary))
        return db.from_delayed([terms_of(block) for block in np.ravel(X.to_delayed())])

    def _map(self, method: str, X: Any) -> Any:
        # Documents have one dimension, but `BlockTransformer` expects rows with two.
        self._check_vocabulary_known()
        return super()._map(method, join_delayed(X, 1))

    def _check_vocabulary_known(self) -> None:
        """Raise if the terms are not known yet; with a given vocabulary no fit is needed."""
        # The check sets `vocabulary_` from the parameter.
        if (
            not hasattr(self, "vocabulary_")
            and self.vocabulary is not None
            and self._needs_no_counts
        ):
            self._check_parameters()
        check_fitted(self)


def _find_terms(vectorizer: Any, X: Any) -> list[Any]:
    """Return the terms of each row of a block of counts, which may have no rows."""
    return list(vectorizer.inverse_transform(X)) if X.shape[0] else []


def _collect_counts(counts: Counter[str], terms: Iterable[str]) -> NDArray[np.int64]:
    """Return the counts of some terms, in their order; 0 for a term that was not counted."""
    return np.array([counts[term] for term in terms], dtype=np.int64)


def _read_document_blocks(X: Any) -> list[tuple[Any, None, None]]:
    """Return the lazy blocks of documents, as parts of a collection."""
    if isinstance(X, db.Bag):
        pieces = X.to_delayed()
    elif is_series_like(X):
        pieces = lower_partitions(X)
    elif isinstance(X, da.Array) and X.ndim == 1:
        pieces = X.to_delayed().tolist()
    else:
        raise InvalidDataError(
            f"Texts came as {type(X).__name__} of {getattr(X, 'ndim', 'no')} dimensions. Pass a "
            'dask Bag, a Series (a column of a frame: X["text"]) or an Array of one dimension.'
        )
    return [(piece, None, None) for piece in pieces]


def _count_block(
    unfitted: VocabularyTransformer, index: int, X: Any, y: None, sample_weight: None
) -> TermCounts:
    """Return the counts of the terms of a block."""
    vectorizer = clone(unfitted)  # threads of one process share `unfitted`
    documents = list(copy_to_host(X))
    try:
        vectorizer._validate_vocabulary()
        return _count_terms(vectorizer.build_analyzer(), documents, vectorizer)
    except (ValueError, TypeError, AttributeError) as error:
        where = f"Block {index} of X: "
        raise as_ours(ValueError(append_remedy(str(error), vectorizer._remedy)), where) from error


def _count_terms(
    analyse: Callable[[Any], Any], documents: list[Any], vectorizer: Any
) -> TermCounts:
    """Return the counts of the terms that `analyse` finds in documents."""
    counts = TermCounts(len(documents))
    # Occurrences are only needed to rank terms for `max_features`, if counts are not binary.
    counts_occurrences = vectorizer.max_features is not None and not vectorizer.binary
    for document in documents:
        terms = analyse(document)
        if counts_occurrences:
            terms = list(terms)  # a custom analyzer may return a generator
            counts.times.update(terms)
        counts.documents.update(set(terms))
    # With a given vocabulary, other terms would be sent to the client in vain.
    if vectorizer.fixed_vocabulary_:
        vocabulary = vectorizer.vocabulary_
        counts.documents = Counter({t: n for t, n in counts.documents.items() if t in vocabulary})
    return counts


def _add_counts(block_counts: list[TermCounts]) -> TermCounts:
    """Return the counts of all documents."""
    total = TermCounts()
    for part in block_counts:
        total.add(part)
    return total


class CountVectorizer(VocabularyTransformer, text.CountVectorizer):
    """:class:`sklearn.feature_extraction.text.CountVectorizer` for Dask Bags, Series and Arrays.

    The terms of all documents are counted block by block and merged; the result is exact.
    `transform` returns a Dask Array of CSR chunks. Parameters are those of scikit-learn; if
    `max_df` and `min_df` are shares, they refer to all documents, and `max_features` keeps the most
    frequent terms of all documents. All terms are gathered in the client: for tens of millions of
    terms (long n-grams) use :class:`~daskml_dist.feature_extraction.HashingVectorizer`.

    Attributes
    ----------
    vocabulary_ : dict from str to int
        Column of each term; terms are sorted.
    fixed_vocabulary_ : bool
        Whether the vocabulary was given.

    Examples
    --------
    >>> import dask.bag as db
    >>> from daskml_dist.feature_extraction import CountVectorizer
    >>> texts = db.from_sequence(["the cat sat", "a cat ran", "dogs ran"], npartitions=2)
    >>> model = CountVectorizer(min_df=2).fit(texts)
    >>> model.get_feature_names_out().tolist()
    ['cat', 'ran']
    >>> model.transform(texts).compute().toarray().tolist()
    [[1, 0], [1, 1], [0, 1]]
    """


class HashingVectorizer(DocumentTransformer, text.HashingVectorizer):
    """:class:`sklearn.feature_extraction.text.HashingVectorizer` for Dask Bags, Series and Arrays.

    Nothing is read in `fit`. `transform` returns a Dask Array of CSR chunks. Parameters are those
    of scikit-learn.

    References
    ----------
    Weinberger et al. (2009), "Feature Hashing for Large Scale Multitask Learning".

    Examples
    --------
    >>> from daskml_dist.feature_extraction import HashingVectorizer
    >>> HashingVectorizer(n_features=16).fit_transform(['a good film', 'a bad film']).shape
    (2, 16)
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False  # True in older versions of scikit-learn
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the parameters.

        Parameters
        ----------
        X, y : ignored

        Returns
        -------
        self
        """
        check_documents(X)
        self._check_parameters()
        # scikit-learn's fit only checks the parameters, but does not accept lazy documents.
        text.HashingVectorizer.fit(self, ["text"] if is_dask(X) else X)
        return self

    def transform(self, X: Any) -> Any:
        """Return the counts of hashed terms; lazily for a Dask collection of documents.

        Parameters
        ----------
        X : iterable of str, dask Bag, Series or Array of shape (n_documents,)

        Returns
        -------
        CSR matrix, or dask Array of such chunks, of shape (n_documents, n_features)
        """
        check_documents(X)
        return super().transform(X)


class TfidfTransformer(BlockTransformer, text.TfidfTransformer, auto_wrap_output_keys=None):
    """:class:`sklearn.feature_extraction.text.TfidfTransformer` for Dask Arrays; exact.

    Parameters
    ----------
    norm : {"l1", "l2"} or None, default="l2"
    use_idf : bool, default=True
    smooth_idf : bool, default=True
    sublinear_tf : bool, default=False

    Attributes
    ----------
    idf_ : ndarray of shape (n_features,)
        Only with `use_idf`.
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.feature_extraction import TfidfTransformer
    >>> from scipy.sparse import csr_array
    >>> counts = csr_array(np.array([[1, 2], [0, 1]]))
    >>> TfidfTransformer().fit_transform(counts).toarray().round(2)
    array([[0.57, 0.82],
           [0.  , 1.  ]])
    """

    def transform(self, X: Any, copy: bool = True) -> Any:
        """Return counts weighted by the inverse document frequency; lazily for a Dask Array.

        Parameters
        ----------
        X : CSR matrix, array or dask Array of shape (n_documents, n_terms)
        copy : bool, default=True
            Whether counts in memory are left unchanged; those of Dask Arrays always are.

        Returns
        -------
        CSR matrix, or dask Array of such chunks
        """
        return self._transformed(X, copy=copy)

    def _sample(self, X: Any) -> Any:
        # Without terms: the weight of one that no document has is infinite without `smooth_idf`.
        row = super()._sample(X) * 0
        return sparse.csr_array(row.shape, dtype=row.dtype) if sparse.issparse(row) else row

    def _summarise(self, X: Any, sample_weight: Any) -> Any:
        """Return the document frequency of each term, the number of documents, and the dtype."""
        rows = as_rows(X)
        if not hasattr(rows, "indices"):
            return (rows != 0).sum(axis=0), len(rows), rows.dtype
        return np.bincount(rows.indices, minlength=rows.shape[1]), rows.shape[0], rows.dtype

    def _merge(self, summaries: list[Any]) -> Any:
        documents, n, dtypes = zip(*summaries, strict=True)
        return np.sum(documents, axis=0), sum(n), np.result_type(*dtypes)

    def _finish(self, summary: Any) -> None:
        documents, n, dtype = summary
        self.__dict__.pop("idf_", None)  # scikit-learn would use that of an earlier fit
        if self.use_idf:
            self.idf_ = _compute_idf(documents, n, self.smooth_idf, dtype)


def _compute_idf(
    documents: NDArray[np.integer[Any]], n: int, smooth: bool, dtype: Any
) -> NDArray[np.floating[Any]]:
    """Return log(number of documents / number that contain the term), plus 1, for each term."""
    # scikit-learn's variant: `smooth` adds a document with every term, so that no divisor is 0;
    # because of the 1, a term that all documents contain keeps a weight.
    extra = int(smooth)
    with np.errstate(divide="ignore"):
        idf = np.log((n + extra) / (documents.astype(dtype) + extra)) + 1.0
    return np.asarray(idf, dtype=dtype)


class TfidfVectorizer(VocabularyTransformer, text.TfidfVectorizer):
    """:class:`sklearn.feature_extraction.text.TfidfVectorizer` for Dask Bags, Series and Arrays.

    :class:`~daskml_dist.feature_extraction.CountVectorizer` and
    :class:`~daskml_dist.feature_extraction.TfidfTransformer` in one pass; exact. Parameters are
    those of scikit-learn.

    Attributes
    ----------
    vocabulary_ : dict from str to int
        Column of each term; terms are sorted.
    idf_ : ndarray of shape (n_terms,)
        Only with `use_idf`.
    fixed_vocabulary_ : bool
        Whether the vocabulary was given.

    Examples
    --------
    >>> from daskml_dist.feature_extraction import TfidfVectorizer
    >>> vectorizer = TfidfVectorizer()
    >>> vectorizer.fit_transform(['a good film', 'a bad film']).toarray().round(2)
    array([[0.  , 0.58, 0.81],
           [0.81, 0.58, 0.  ]])
    >>> vectorizer.get_feature_names_out().tolist()
    ['bad', 'film', 'good']
    """

    _needs_no_counts = False

    def _check_parameters(self) -> None:
        super()._check_parameters()
        self._check_params()

    def _set_vocabulary(self, terms: list[str], counts: TermCounts) -> None:
        super()._set_vocabulary(terms, counts)
        # scikit-learn's `transform` weights terms with this transformer, which its own `fit` would
        # fit.
        self._tfidf = text.TfidfTransformer(
            norm=self.norm,
            use_idf=self.use_idf,
            smooth_idf=self.smooth_idf,
            sublinear_tf=self.sublinear_tf,
        )
        self._tfidf.n_features_in_ = len(terms)
        if self.use_idf:
            # As in scikit-learn: the dtype of the counts if it is a float type.
            dtype = self.dtype if self.dtype in text.FLOAT_DTYPES else float
            documents = _collect_counts(counts.documents, terms)
            self._tfidf.idf_ = _compute_idf(documents, counts.n_documents, self.smooth_idf, dtype)
