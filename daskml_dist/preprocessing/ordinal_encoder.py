"""`OrdinalEncoder`."""

from __future__ import annotations

from sklearn import preprocessing

from daskml_dist.preprocessing._categories import CategoryTransformer

__all__ = ["OrdinalEncoder"]


class OrdinalEncoder(CategoryTransformer, preprocessing.OrdinalEncoder):
    """:class:`sklearn.preprocessing.OrdinalEncoder` for Dask collections; exact.

    Parameters
    ----------
    categories : "auto" or list of array-like, default="auto"
    dtype : number type, default=float64
    handle_unknown : {"error", "use_encoded_value"}, default="error"
        An error is raised when the result is computed, and names the block.
    unknown_value : int or numpy.nan, default=None
    encoded_missing_value : int or numpy.nan, default=numpy.nan
    min_frequency : int or float, default=None
    max_categories : int, default=None

    Attributes
    ----------
    categories_ : list of ndarray
    infrequent_categories_ : list of ndarray
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.preprocessing import OrdinalEncoder
    >>> X = np.array([['clerk'], ['nurse'], ['clerk']], dtype=object)
    >>> OrdinalEncoder().fit_transform(X)
    array([[0.],
           [1.],
           [0.]])
    """
