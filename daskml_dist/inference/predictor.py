"""Predictors: fitted models as bare functions of rows in memory, for services."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError
from daskml_dist.inference.saved.manifest import manifest_of

__all__ = ["METHODS", "Predictor"]

#: Methods of an estimator that a predictor may be of, the first that there is by default.
METHODS = ("predict_proba", "predict", "transform")


class Predictor:
    """A fitted model, or pipeline, as a function of rows in memory.

    Parameters
    ----------
    model : estimator
        Fitted; of this package, scikit-learn's, or a pipeline.
    method : str, optional
        Of `METHODS` or any other method of rows; None: the first of `METHODS` that it has.

    Attributes
    ----------
    model : estimator
    method : str
    n_features : int or None
    names : list of str or None
        Of the features, where the fit knew them.
    dtypes : list of str or None
        Of the features; one for all of them, or one each.
    classes : list or None
        Labels, in the order of the columns of ``predict_proba``.

    Raises
    ------
    InvalidParameterError
        The model has no such method.
    """

    def __init__(self, model: Any, method: str | None = None) -> None:
        known = [name for name in METHODS if hasattr(model, name)]
        if method is None and known:
            method = known[0]
        if method is None or not hasattr(model, method):
            raise InvalidParameterError(
                f"{type(model).__name__} has no method {method or 'of ' + ', '.join(METHODS)}; "
                f"it has {', '.join(known) or 'none of them'}."
            )
        told = manifest_of(model)
        self.model, self.method = model, method
        self.n_features: int | None = told["inputs"]["n_features"]
        self.names: list[str] | None = told["inputs"]["names"]
        self.dtypes: list[str] | None = told["inputs"]["dtypes"]
        self.classes: list[Any] | None = told["outputs"]["classes"]
        self._function = getattr(model, method)

    def __call__(self, X: Any) -> NDArray[Any]:
        """Answers of the model's method for rows.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_features), or pandas.DataFrame

        Returns
        -------
        ndarray of shape (n_rows,) or (n_rows, n_outputs)
            To the bit those of the method itself.
        """
        return np.asarray(self._function(X))
