"""`MaxAbsScaler`."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import preprocessing

from daskml_dist._transformer import BlockTransformer

__all__ = ["MaxAbsScaler"]


class MaxAbsScaler(BlockTransformer, preprocessing.MaxAbsScaler):
    """:class:`sklearn.preprocessing.MaxAbsScaler` for Dask collections, sparse ones too; exact.

    Parameters
    ----------
    copy : bool, default=True
    clip : bool, default=False

    Attributes
    ----------
    scale_, max_abs_ : ndarray of shape (n_features,)
    n_samples_seen_, n_features_in_ : int
    feature_names_in_ : ndarray of str
    """

    def _summarise(self, X: Any, y: Any, sample_weight: Any) -> Any:
        preprocessing.MaxAbsScaler.fit(self, X)
        return self.max_abs_, self.n_samples_seen_

    def _merge(self, summaries: list[Any]) -> Any:
        largest, n = zip(*summaries, strict=True)
        return np.fmax.reduce(largest), sum(n)

    def _finish(self, summary: Any) -> None:
        largest, n = summary
        names = self.__dict__.pop("feature_names_in_", None)
        preprocessing.MaxAbsScaler.fit(self, largest[None, :])
        self.n_samples_seen_ = n
        if names is not None:
            self.feature_names_in_ = names
