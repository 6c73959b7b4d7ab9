"""Texts."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, Self

import dask.array as da
import dask.bag as db
import numpy as np
from dask.delayed import delayed
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.feature_extraction import text

from daskml_dist.dask_internals.expressions import lower_partitions
from daskml_dist.data.collection import Collection
from daskml_dist.data.conversion import as_rows, copy_to_host
from daskml_dist.data.lazy import is_dask, join_delayed
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.diagnostics.works import reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError, as_ours
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.transformer import BlockTransformer

__all__ = [
    "CountVectorizer",
    "HashingVectorizer",
    "TfidfTransformer",
    "TfidfVectorizer",
    "check_items",
]


class DocumentTransformer(BlockTransformer):
    """Base class of transformers of texts."""

    _of_rows: ClassVar[bool] = False
    _remedy: ClassVar[str] = 'Texts must be strings; fill missing ones first: X.fillna("").'

    def decode(self, doc: Any) -> Any:
        """Decode a text; see scikit-learn, which knows one kind of missing value of the three."""
        missing = doc is None or type(doc).__name__ == "NAType"
        return super().decode(np.nan if missing else doc)

    def build_preprocessor(self) -> Callable[[Any], str]:
        """Make what prepares a text; see scikit-learn, whose own calls methods of numbers."""
        plain: Callable[[Any], str] = super().build_preprocessor()
        own = self.preprocessor is not None or not (self.lowercase or self.strip_accents)
        return plain if own else partial(_of_text, plain)

    def _sample(self, X: Any) -> Any:
        return ["text"]

    def fit_transform(self, raw_documents: Any, y: Any = None, **params: Any) -> Any:  # type: ignore[override]
        """:meth:`fit`, and :meth:`transform` of the same documents."""
        check_documents(raw_documents)
        return super().fit_transform(raw_documents, y, **params)


def check_documents(X: Any) -> None:
    """Check that documents are not one text or a table, whose letters or names would be read."""
    _check_several_texts(X)
    _check_no_table(X)


def _check_several_texts(X: Any) -> None:
    """Check that documents are not one text, whose letters would be taken for them."""
    if isinstance(X, str | bytes):
        raise InvalidDataError(
            "Iterable over raw text documents expected, string object received. Pass a list of "
            "texts, for one text [text]."
        )


def _check_no_table(X: Any) -> None:
    """Check that documents are no table, whose names of columns would be taken for them."""
    if _is_table(X):
        raise InvalidDataError(
            f"Texts came as a table ({type(X).__name__}). Pass one column of it, such as "
            'X["text"] or X[:, 0]; of several, name one column each in '
            'make_column_transformer((TfidfVectorizer(), "text")), without a list around it.'
        )


def _is_table(X: Any) -> bool:
    return bool(is_dataframe_like(X) or getattr(X, "ndim", 1) > 1)


def check_items(X: Any) -> None:
    """Check that items to hash are no table, whose names of columns would be taken for them."""
    if _is_table(X):
        raise InvalidDataError(
            f"Items came as a table ({type(X).__name__}), and each is to be a dict. Make them of a "
            'pandas frame by X.to_dict("records"), of a Dask one by X.to_bag(format="dict").'
        )


def _of_text(plain: Callable[[Any], str], document: Any) -> str:
    if not isinstance(document, str):
        raise ValueError(f"a document is of type {type(document).__name__}")
    return plain(document)


@dataclass
class TermCounts:
    """Counts of the terms of some documents.

    Parameters
    ----------
    n_documents : int
    documents : Counter
        From terms to the number of documents that hold them.
    times : Counter
        From terms to how often they come; empty where nobody asks.
    """

    n_documents: int = 0
    documents: Counter[str] = field(default_factory=Counter)
    times: Counter[str] = field(default_factory=Counter)

    def add(self, other: TermCounts) -> None:
        """Count what was found in other documents too."""
        self.n_documents += other.n_documents
        self.documents.update(other.documents)
        self.times.update(other.times)


class VocabularyTransformer(DocumentTransformer):
    """Base class of transformers of texts that learn the terms of all documents."""

    #: Whether a fit with a given vocabulary needs no look at the documents.
    _knows_all: ClassVar[bool] = True

    def fit(self, raw_documents: Any, y: Any = None) -> Self:
        """Learn the terms of all documents; of a Dask collection in one pass.

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
            A document is no text, or there is no term in any.
        InvalidParameterError
            No term is left by `min_df` and `max_df`.
        """
        check_documents(raw_documents)
        X = join_delayed(raw_documents, 1)
        return self._fit_lazy(X) if is_dask(X) else super().fit(X, y)

    def transform(self, raw_documents: Any) -> Any:
        """Count terms; lazily where documents are a Dask collection.

        Parameters
        ----------
        raw_documents : as in :meth:`fit`

        Returns
        -------
        CSR matrix, or dask Array of such chunks, of shape (n_documents, n_terms)
        """
        _check_several_texts(raw_documents)
        self._check_ready()
        _check_no_table(raw_documents)
        return self._transformed(raw_documents)

    def _fit_lazy(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        self._check_parameters()
        given = bool(self.fixed_vocabulary_)
        found = TermCounts()
        if not (given and self._knows_all):
            plain = clone(self)
            documents = Collection("dask", _document_blocks(X), None, None, None)
            with reading(type(self).__name__):
                found = reduce_parts(documents, partial(_counted, plain), _added)
        if given:
            self._set_vocabulary(sorted(self.vocabulary_, key=self.vocabulary_.__getitem__), found)
        else:
            self._set_vocabulary(self._chosen(found), found)
        return self

    def _check_parameters(self) -> None:
        super()._check_parameters()
        try:
            self._validate_ngram_range()
            self._warn_for_unused_params()
            self._validate_vocabulary()
        except ValueError as error:
            raise InvalidParameterError(str(error)) from error
        if self.fixed_vocabulary_ and self.lowercase and any(map(_has_capitals, self.vocabulary)):
            warnings.warn(
                "Upper case characters found in vocabulary while 'lowercase' is True. These "
                "entries will not be matched with any documents",
                stacklevel=user_stack_level(),
            )

    def _limits(self, n_documents: int) -> tuple[float, float]:
        """Documents that a term has at least, and at most."""
        most, least = (
            float(limit) if isinstance(limit, Integral) else limit * n_documents
            for limit in (self.max_df, self.min_df)
        )
        if most < least:
            raise InvalidParameterError(
                f"max_df corresponds to < documents than min_df: {most:g} and {least:g} of "
                f"{n_documents}. Try a lower min_df or a higher max_df."
            )
        return least, most

    def _chosen(self, found: TermCounts) -> list[str]:
        """Terms that neither too few nor too many documents hold, sorted."""
        terms = sorted(found.documents)
        if not terms:
            raise InvalidDataError(
                "empty vocabulary; perhaps the documents only contain stop words. Look at "
                "`stop_words` and `token_pattern`, which by default takes words of two letters "
                "or more, and at the filter or the path that made the collection."
            )
        least, most = self._limits(found.n_documents)
        documents = _numbers(found.documents, terms)
        keep = np.flatnonzero((documents >= least) & (documents <= most))
        if self.max_features is not None and len(keep) > self.max_features:
            times = documents if self.binary else _numbers(found.times, terms)
            # Of terms that come as often scikit-learn takes those that this sort takes.
            keep = np.sort(keep[(-times[keep]).argsort()[: self.max_features]])
        if not len(keep):
            raise InvalidParameterError(
                "After pruning, no terms remain. Try a lower min_df or a higher max_df."
            )
        return [terms[i] for i in keep.tolist()]

    def _set_vocabulary(self, terms: list[str], found: TermCounts) -> None:
        """Set the fitted attributes."""
        self.vocabulary_ = {term: i for i, term in enumerate(terms)}

    def _documents_of(self, terms: list[str], found: TermCounts) -> NDArray[np.int64]:
        """Number of documents that hold each term."""
        return _numbers(found.documents, terms)

    def inverse_transform(self, X: Any) -> Any:
        """Terms of each row of counts.

        Parameters
        ----------
        X : array, CSR matrix or dask Array of shape (n_documents, n_terms)

        Returns
        -------
        list of ndarray of str, or lazy dask Bag of these
        """
        if not is_dask(X):
            return super().inverse_transform(X)
        self._check_ready()
        terms_of = delayed(partial(_terms_of, clone(self).set_params(vocabulary=self.vocabulary_)))
        return db.from_delayed([terms_of(block) for block in X.to_delayed().ravel()])

    def _map(self, method: str, X: Any) -> Any:
        self._check_ready()
        return super()._map(method, join_delayed(X, 1))

    def _check_ready(self) -> None:
        """Check that the terms are known; a given vocabulary needs no fit."""
        if not hasattr(self, "vocabulary_") and self.vocabulary is not None and self._knows_all:
            self._check_parameters()
        check_fitted(self)


def _has_capitals(term: str) -> bool:
    return any(map(str.isupper, term))


def _numbers(counts: Counter[str], terms: Iterable[str]) -> NDArray[np.int64]:
    return np.array([counts[term] for term in terms], dtype=np.int64)


def _document_blocks(X: Any) -> list[tuple[Any, None, None]]:
    """Lazy blocks of documents."""
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


def _counted(
    plain: VocabularyTransformer, index: int, X: Any, y: None, sample_weight: None
) -> TermCounts:
    """Counts of the terms of a block."""
    own = clone(plain)
    documents = list(copy_to_host(X))
    try:
        own._validate_vocabulary()
        return _count(own.build_analyzer(), documents, own)
    except (ValueError, TypeError, AttributeError) as error:
        said = f"Block {index} of X: "
        raise as_ours(ValueError(f"{str(error).rstrip('. ')}. {own._remedy}"), said) from error


def _count(analyse: Callable[[Any], Any], documents: list[Any], plain: Any) -> TermCounts:
    found = TermCounts(len(documents))
    several = plain.max_features is not None and not plain.binary
    for document in documents:
        terms = analyse(document)
        if several:
            terms = list(terms)
            found.times.update(terms)
        found.documents.update(set(terms))
    if plain.fixed_vocabulary_:
        known = plain.vocabulary_
        found.documents = Counter({t: n for t, n in found.documents.items() if t in known})
    return found


def _added(parts: list[TermCounts]) -> TermCounts:
    total = TermCounts()
    for part in parts:
        total.add(part)
    return total


def _terms_of(vectorizer: Any, X: Any) -> list[NDArray[Any]]:
    found: list[NDArray[Any]] = vectorizer.inverse_transform(X)
    return found


class CountVectorizer(VocabularyTransformer, text.CountVectorizer):
    """:class:`sklearn.feature_extraction.text.CountVectorizer` for Dask Bags, Series and Arrays.

    The terms are those of all documents, counted block by block and merged: exact. `transform`
    gives a Dask Array of CSR chunks. Parameters are those of scikit-learn; `max_df` and `min_df`
    as shares are of all documents, and `max_features` are the terms that come most often in them
    all. All terms reach the client, so where there are tens of millions (long n-grams) take
    :class:`~daskml_dist.feature_extraction.HashingVectorizer`.

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

    Nothing is read at `fit`. `transform` gives a Dask Array of CSR chunks. Parameters are those of
    scikit-learn.

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
        tags.requires_fit = False  # which older versions of scikit-learn do not say
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
        text.HashingVectorizer.fit(self, ["text"] if is_dask(X) else X)
        return self

    def transform(self, X: Any) -> Any:
        """Count hashed terms; lazily where documents are a Dask collection.

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
        With `use_idf`.
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
        """Weigh counts; lazily where X is a Dask Array.

        Parameters
        ----------
        X : CSR matrix, array or dask Array of shape (n_documents, n_terms)
        copy : bool, default=True
            Whether counts in memory are left as they are; those of Dask Arrays always are.

        Returns
        -------
        CSR matrix, or dask Array of such chunks
        """
        return self._transformed(X, copy=copy)

    def _summarise(self, X: Any, y: Any, sample_weight: Any) -> Any:
        rows = as_rows(X)
        if not hasattr(rows, "indices"):
            return (rows != 0).sum(axis=0), len(rows), rows.dtype
        return np.bincount(rows.indices, minlength=rows.shape[1]), rows.shape[0], rows.dtype

    def _merge(self, summaries: list[Any]) -> Any:
        documents, n, dtypes = zip(*summaries, strict=True)
        return np.sum(documents, axis=0), sum(n), np.result_type(*dtypes)

    def _finish(self, summary: Any) -> None:
        documents, n, dtype = summary
        self.__dict__.pop("idf_", None)  # scikit-learn would apply that of an earlier fit
        if self.use_idf:
            self.idf_ = inverse_frequencies(documents, n, self.smooth_idf, dtype)


def inverse_frequencies(
    documents: NDArray[np.integer[Any]], n: int, smooth: bool, dtype: Any
) -> NDArray[np.floating[Any]]:
    """Logarithms of n documents over those that hold each term, plus 1."""
    more = int(smooth)
    with np.errstate(divide="ignore"):
        idf = np.log((n + more) / (documents.astype(dtype) + more)) + 1.0
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
        With `use_idf`.
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

    _knows_all = False

    def _check_parameters(self) -> None:
        super()._check_parameters()
        self._check_params()

    def _set_vocabulary(self, terms: list[str], found: TermCounts) -> None:
        super()._set_vocabulary(terms, found)
        self._tfidf = text.TfidfTransformer(
            norm=self.norm,
            use_idf=self.use_idf,
            smooth_idf=self.smooth_idf,
            sublinear_tf=self.sublinear_tf,
        )
        self._tfidf.n_features_in_ = len(terms)
        if self.use_idf:
            documents = self._documents_of(terms, found)
            self._tfidf.idf_ = inverse_frequencies(
                documents, found.n_documents, self.smooth_idf, self._idf_dtype()
            )

    def _idf_dtype(self) -> Any:
        """The dtype of scikit-learn's frequencies: that of the counts where it is of floats."""
        return self.dtype if self.dtype in text.FLOAT_DTYPES else float
