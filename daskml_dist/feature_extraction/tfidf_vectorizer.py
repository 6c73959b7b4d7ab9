"""`TfidfVectorizer`."""

from __future__ import annotations

from typing import Any

from sklearn.feature_extraction import text

from daskml_dist.feature_extraction._documents import TermCounts, VocabularyTransformer
from daskml_dist.feature_extraction.tfidf_transformer import inverse_frequencies

__all__ = ["TfidfVectorizer"]


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
