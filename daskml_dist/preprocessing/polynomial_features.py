"""`PolynomialFeatures`."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import preprocessing

from daskml_dist.data.collection import Collection
from daskml_dist.data.reduce import PassGenerator
from daskml_dist.estimators.transformer import BlockTransformer

__all__ = ["PolynomialFeatures"]


class PolynomialFeatures(BlockTransformer, preprocessing.PolynomialFeatures):
    """:class:`sklearn.preprocessing.PolynomialFeatures` for Dask collections, sparse ones too.

    A fit learns the number of columns alone, and reads no row where Dask knows it. Rows with
    missing values are refused when a result is computed.

    Parameters
    ----------
    degree : int or tuple (min_degree, max_degree), default=2
    interaction_only : bool, default=False
    include_bias : bool, default=True
    order : {"C", "F"}, default="C"
        Of dense blocks.

    Attributes
    ----------
    powers_ : ndarray of int of shape (n_output_features, n_features)
    n_output_features_, n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.preprocessing import PolynomialFeatures
    >>> PolynomialFeatures(degree=2).fit_transform(np.array([[2.0, 3.0]]))
    array([[1., 2., 3., 4., 6., 9.]])
    """

    _remedy = "Fill missing values first (SimpleImputer)."

    def _summary_of(self, collection: Collection) -> PassGenerator[tuple[int, Any]]:
        if collection.n_features is not None:
            return collection.n_features, None
        return (yield from super()._summary_of(collection))

    def _summarise(self, X: Any, y: Any, sample_weight: Any) -> None:
        return None

    def _merge(self, summaries: list[Any]) -> None:
        return None

    def _finish(self, summary: None) -> None:
        names = self.__dict__.pop("feature_names_in_", None)
        preprocessing.PolynomialFeatures.fit(self, np.zeros((1, self.n_features_in_)))
        if names is not None:
            self.feature_names_in_ = names
