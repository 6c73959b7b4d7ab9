"""`HashingVectorizer`."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from sklearn.feature_extraction import text

from daskml_dist._transformer import BlockTransformer
from daskml_dist.data.lazy import is_dask

__all__ = ["HashingVectorizer"]


class HashingVectorizer(BlockTransformer, text.HashingVectorizer):
    """:class:`sklearn.feature_extraction.text.HashingVectorizer` for Dask Bags, Series and Arrays.

    Nothing is read at `fit`. `transform` gives a Dask Array of CSR chunks. Parameters are those of
    scikit-learn.

    References
    ----------
    Weinberger et al. (2009), "Feature Hashing for Large Scale Multitask Learning".
    """

    _remedy: ClassVar[str] = 'Texts must be strings; fill missing ones first: X.fillna("").'

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the parameters.

        Parameters
        ----------
        X, y : ignored

        Returns
        -------
        self
        """
        text.HashingVectorizer.fit(self, ["text"] if is_dask(X) else X)
        return self

    def decode(self, doc: Any) -> Any:
        """Decode a text; see scikit-learn, which knows one kind of missing value of the three."""
        missing = doc is None or type(doc).__name__ == "NAType"
        return text.HashingVectorizer.decode(self, np.nan if missing else doc)

    def _sample(self, X: Any) -> Any:
        return ["text"]
