"""`FeatureHasher`."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from sklearn import feature_extraction

from daskml_dist.data.lazy import is_dask
from daskml_dist.estimators.transformer import BlockTransformer
from daskml_dist.feature_extraction._documents import check_items

__all__ = ["FeatureHasher"]


class FeatureHasher(BlockTransformer, feature_extraction.FeatureHasher):
    """:class:`sklearn.feature_extraction.FeatureHasher` for Dask Bags, Series and Arrays.

    Nothing is read at `fit`. `transform` gives a Dask Array of CSR chunks.

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
        tags.requires_fit = False  # which older versions of scikit-learn do not say
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
        """Hash items; lazily where they are a Dask collection.

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
        self._check_parameters()  # without a fit too: a remainder of 0 would end the process
        return self._transformed(raw_X)

    def _sample(self, X: Any) -> Any:
        return [{"dict": {"a": 1}, "pair": [("a", 1)], "string": ["a"]}[self.input_type]]
