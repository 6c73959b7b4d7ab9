"""Meta-transformer that applies a stateless or fitted transformer to each block.

Results are lazy, so Dask has to know their dtype and columns before any block is computed. They are
found by transforming a sample: the user's, or one row made up from Dask's metadata of X.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils import get_tags

from daskml_dist.data.conversion import (
    canonicalize_sparse,
    check_unique_names,
    convert_foreign,
    convert_missing_to_nan,
)
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.estimators.estimator_mixin import EstimatorMixin
from daskml_dist.estimators.transformer import writes_into_rows
from daskml_dist.inference.block_mapping import make_sample_row, map_blocks
from daskml_dist.inference.fitted import is_fitted

#: Classes that learn at most the number of columns, although their tags require a fit (in some
#: versions of scikit-learn).
_STATELESS_CLASSES = (FeatureHasher, HashingVectorizer, PolynomialFeatures)


class Blockwise(EstimatorMixin, BaseEstimator):
    """Meta-transformer that applies a transformer of scikit-learn to each block, lazily.

    Parameters
    ----------
    transformer : estimator
        An estimator that learns nothing from rows (``HashingVectorizer``, ``Normalizer``,
        ``Binarizer``, ``FunctionTransformer``, ``PolynomialFeatures``...), or a fitted one, which
        stays fitted in clones.
    sample : object, default=None
        A few rows like those of the blocks, needed if Dask does not know enough to make them up
        (the items of a Bag, the categories in a column); None: a row is made up.

    Attributes
    ----------
    transformer_ : estimator
        The fitted transformer.

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.preprocessing import Normalizer
    >>> from daskml_dist.compose import Blockwise
    >>> Blockwise(Normalizer()).fit_transform(da.ones((4, 4), chunks=2)).compute()[0]
    array([0.5, 0.5, 0.5, 0.5])
    """

    def __init__(self, transformer: Any, *, sample: Any = None) -> None:
        self.transformer = transformer
        self.sample = sample

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the transformer, without reading a Dask collection.

        Parameters
        ----------
        X : array-like, dask Array, DataFrame, Series or Bag
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            The transformer learns from rows and is not fitted, or does not accept the sample.
        """
        check_unique_names(X)
        if isinstance(self.transformer, type) or not hasattr(self.transformer, "transform"):
            raise InvalidParameterError(
                f"transformer={self.transformer!r} is not a "
                f"transformer.{suggest_nearest(self.transformer, ())} Pass one of "
                "scikit-learn's, such as Blockwise(Normalizer())."
            )
        if _has_learned(self.transformer):
            # Not a clone, since a clone is unfitted.
            self.transformer_ = self.transformer
            return self
        self.transformer_ = clone(self.transformer)
        requires_fit = get_tags(self.transformer_).requires_fit
        if requires_fit and not isinstance(self.transformer_, _STATELESS_CLASSES):
            raise InvalidParameterError(
                f"{type(self.transformer).__name__} learns from rows, so it cannot be applied to "
                "blocks before it is fitted. Fit it first on a sample of the rows, or use the "
                "transformer of that name in daskml_dist."
            )
        if is_dask(X := convert_foreign(X)):
            # A fit to a sample sets the names and the number of columns, which other methods need.
            self._call_with_sample(X, self.transformer_.fit)
        else:
            self.transformer_.fit(convert_missing_to_nan(X, numbers=False))
        return self

    def transform(self, X: Any) -> Any:
        """Transform rows; lazily for a Dask collection.

        Parameters
        ----------
        X : array-like, dask Array, DataFrame, Series or Bag

        Returns
        -------
        array, CSR matrix, pandas.DataFrame, dask Array or dask DataFrame

        Raises
        ------
        InvalidDataError
            The columns differ from those of the fit.
        """
        check_fitted(self)
        X = convert_foreign(X)
        check_unique_names(X)
        if not is_dask(X):
            return self.transformer_.transform(convert_missing_to_nan(X, numbers=False))
        # A copy, so that a later fit does not change lazy results.
        function = partial(_transform_block, copy.deepcopy(self.transformer_))
        return map_blocks(function, X, meta=self._call_with_sample(X, function))

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Fit and transform; see :meth:`fit` and :meth:`transform`."""
        return self.fit(X, y).transform(X)

    def set_output(self, *, transform: str | None = None) -> Self:
        """Set the container of the result, as in scikit-learn."""
        # Also on the parameter, since a later fit clones it.
        self.transformer.set_output(transform=transform)
        if hasattr(self, "transformer_"):
            self.transformer_.set_output(transform=transform)
        return self

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Return the names of the columns of the result."""
        check_fitted(self)
        return self.transformer_.get_feature_names_out(input_features)

    def __sklearn_tags__(self) -> Any:
        tags, wrapped = super().__sklearn_tags__(), get_tags(self.transformer)
        tags.input_tags, tags.transformer_tags = wrapped.input_tags, wrapped.transformer_tags
        return tags

    def __sklearn_clone__(self) -> Self:
        # A fitted transformer is part of the parameters: scikit-learn's clone would unfit it.
        params = self.get_params(deep=False)  # a subclass may have more parameters
        if "transformer" in params and not _has_learned(self.transformer):
            params["transformer"] = clone(self.transformer)
        return type(self)(**params)

    def _call_with_sample(self, X: Any, function: Callable[[Any], Any]) -> Any:
        """Call a function with a sample of X; errors name the parameter `sample` as a remedy."""
        try:
            return function(self._sample(X))
        except (ValueError, TypeError, AttributeError) as error:
            names = list(getattr(self.transformer_, "feature_names_in_", ()))
            if names and hasattr(X, "columns") and names != list(X.columns):
                raise InvalidDataError(f"{error}\nPass the columns of the fit: {names}.") from error
            raise InvalidParameterError(
                f"{type(self.transformer).__name__} cannot transform a generated sample of X: "
                f"{error}\nPass a few rows that it accepts: Blockwise(..., sample=rows)."
            ) from error

    def _sample(self, X: Any) -> Any:
        """Return the user's sample, or a made-up row like those of X."""
        if self.sample is not None:
            return self.sample
        # A Bag does not know its items: use dicts or text, whichever the transformer accepts.
        if not hasattr(X, "dtype") and not hasattr(X, "dtypes"):
            return [{"a": 1}] if get_tags(self.transformer_).input_tags.dict else ["text"]
        if getattr(X, "ndim", 2) == 1 and getattr(X.dtype, "kind", "O") in "OUT":
            return np.array(["text"], dtype=object)
        return make_sample_row(X)


def _transform_block(transformer: Any, X: Any) -> Any:
    """Return the transformed rows of a block."""
    X = canonicalize_sparse(convert_missing_to_nan(X, numbers=False))
    return transformer.transform(X.copy() if writes_into_rows(transformer) else X)


def _has_learned(transformer: Any) -> bool:
    """Return whether a transformer is fitted with state that a clone would lose."""
    return bool(get_tags(transformer).requires_fit) and is_fitted(transformer)
