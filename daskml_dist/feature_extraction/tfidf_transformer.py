"""`TfidfTransformer`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction import text

from daskml_dist.data.conversion import as_rows
from daskml_dist.estimators.transformer import BlockTransformer

__all__ = ["TfidfTransformer", "inverse_frequencies"]


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
