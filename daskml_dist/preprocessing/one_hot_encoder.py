"""`OneHotEncoder`."""

from __future__ import annotations

from sklearn import preprocessing

from daskml_dist.preprocessing._categories import CategoryTransformer

__all__ = ["OneHotEncoder"]


class OneHotEncoder(CategoryTransformer, preprocessing.OneHotEncoder):
    """:class:`sklearn.preprocessing.OneHotEncoder` for Dask collections; exact.

    Parameters
    ----------
    categories : "auto" or list of array-like, default="auto"
    drop : {"first", "if_binary"}, array-like or None, default=None
    sparse_output : bool, default=True
        A Dask Array then has CSR chunks.
    dtype : number type, default=float64
    handle_unknown : {"error", "ignore", "infrequent_if_exist", "warn"}, default="error"
        What to do with categories that `fit` has not seen. An error is raised when the result is
        computed, and names the block.
    min_frequency : int or float, default=None
    max_categories : int, default=None
    feature_name_combiner : "concat" or callable, default="concat"

    Attributes
    ----------
    categories_ : list of ndarray
    drop_idx_ : ndarray or None
    infrequent_categories_ : list of ndarray
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import pandas as pd
    >>> from daskml_dist.preprocessing import OneHotEncoder
    >>> frame = pd.DataFrame({'job': ['clerk', 'nurse', 'clerk']})
    >>> encoder = OneHotEncoder(sparse_output=False).fit(frame)
    >>> encoder.categories_[0].tolist()
    ['clerk', 'nurse']
    >>> encoder.transform(frame)
    array([[1., 0.],
           [0., 1.],
           [1., 0.]])
    >>> encoder.get_feature_names_out().tolist()
    ['job_clerk', 'job_nurse']
    """
