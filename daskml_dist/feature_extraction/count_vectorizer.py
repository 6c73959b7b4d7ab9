"""`CountVectorizer`."""

from __future__ import annotations

from sklearn.feature_extraction import text

from daskml_dist.feature_extraction._documents import VocabularyTransformer

__all__ = ["CountVectorizer"]


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
