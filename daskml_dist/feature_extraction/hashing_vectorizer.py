"""`HashingVectorizer`."""

from __future__ import annotations

from typing import Any, Self

from sklearn.feature_extraction import text

from daskml_dist.data.lazy import is_dask
from daskml_dist.feature_extraction._documents import DocumentTransformer, check_documents

__all__ = ["HashingVectorizer"]


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
