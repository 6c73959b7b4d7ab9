"""Parameters of scikit-learn's stochastic gradient descent, as ours has them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.outside import outside
from daskml_dist.losses import EpsilonInsensitive, Huber, Loss, SquaredEpsilonInsensitive
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers import get_optimizer
from daskml_dist.parameters.checks import check_number
from daskml_dist.schedules import Constant, InverseScaling

__all__ = ["check_sgd_params", "resolved", "start_of", "with_epsilon"]

#: Schedules that begin with `eta0`.
_OF_ETA0 = ("auto", "constant", "invscaling", "adaptive")


def check_sgd_params(params: Mapping[str, Any]) -> None:
    """Check the parameters that estimators by gradient steps have from scikit-learn alone.

    Raises
    ------
    InvalidParameterError
    """
    rate, eta0 = params["learning_rate"], params.get("eta0")
    if isinstance(rate, str) and rate in ("pa1", "pa2"):
        raise InvalidParameterError(
            f"learning_rate={rate!r}: passive-aggressive steps are as long as their own row asks "
            'for, and steps here are of batches. Use loss="hinge" with learning_rate="optimal".'
        )
    if eta0 is not None:
        check_number("eta0", eta0, lambda v: v > 0, "> 0, or None for the optimizer's own rate")
        if not isinstance(rate, str):
            raise InvalidParameterError(
                f"eta0={eta0!r} with learning_rate={rate!r}: both say the rate. Leave eta0 out."
            )
    if "epsilon" in params:
        check_number("epsilon", params["epsilon"])
    power = params.get("power_t", 0.5)
    check_number("power_t", power, lambda v: True, "")
    if power < 0:
        if rate == "invscaling":
            raise InvalidParameterError(f"power_t={power!r}: use a number >= 0.")
        warnings.warn(
            "Negative values for `power_t` are deprecated: use a number >= 0.",
            FutureWarning,
            stacklevel=outside(),
        )
    if params["l1_ratio"] is None and params["penalty"] == "elasticnet":
        raise InvalidParameterError(
            "l1_ratio must be set when penalty is 'elasticnet'. Use a number from 0 to 1."
        )
    if rate == "adaptive" and params.get("checkpoint") is not None:
        raise InvalidParameterError(
            'learning_rate="adaptive" makes a fit of parts, and a checkpoint would know of one '
            "alone. Use another learning_rate, or checkpoint=None."
        )


def resolved(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters with a schedule in place of scikit-learn's names for one."""
    rate, eta0 = params["learning_rate"], params.get("eta0")
    ratio = params["l1_ratio"]
    if ratio is None and params["penalty"] != "elasticnet":
        ratio = 0.15  # of which the other penalties make no use
    return {**params, "l1_ratio": ratio, "learning_rate": _rate(rate, eta0, params)}


def _rate(rate: Any, eta0: float | None, params: dict[str, Any]) -> Any:
    if not isinstance(rate, str) or rate not in _OF_ETA0 or (rate == "auto" and eta0 is None):
        return rate
    first = get_optimizer(params["optimizer"]).default_learning_rate if eta0 is None else eta0
    if rate == "invscaling":
        return InverseScaling(float(first), float(params.get("power_t", 0.5)))
    return Constant(float(first))


def with_epsilon(loss: Loss, given: Any, epsilon: float) -> Loss:
    """The loss with an estimator's `epsilon`, where `given` is its name."""
    if isinstance(given, str) and isinstance(
        loss, Huber | EpsilonInsensitive | SquaredEpsilonInsensitive
    ):
        return replace(loss, epsilon=epsilon)
    return loss


def start_of(model: LinearModel, first: NDArray[Any], coef: Any, intercept: Any) -> NDArray[Any]:
    """Parameters to start from, of those that a user gives to ``fit``.

    Parameters
    ----------
    model : LinearModel
    first : ndarray of the model's shape
        What a fit begins with where nothing is given.
    coef : array-like of shape (n_features,), (1, n_features) or (n_classes, n_features), or None
    intercept : array-like of shape (1,) or (n_classes,), or a number, or None

    Raises
    ------
    InvalidDataError
        They are not of the model's shape, or no finite real numbers.
    InvalidParameterError
        There is an intercept to start from, and none to fit.
    """
    w, d = first.copy(), model.n_features
    if coef is not None:
        coef = _numbers("coef_init", coef, w.dtype)
        shape = (model.width, d)
        if coef.shape != shape and not (model.width == 1 and coef.shape == (d,)):
            raise InvalidDataError(
                f"Provided coef_init does not match dataset: it has shape {coef.shape}, and the "
                f"rows ask for {shape}. Pass the coef_ of a fit to rows like these."
            )
        w[:d] = coef.reshape(shape).T
    if intercept is None:
        return w
    intercept = np.ravel(_numbers("intercept_init", intercept, w.dtype))
    if intercept.shape != (model.width,):
        raise InvalidDataError(
            f"Provided intercept_init does not match dataset: it has {len(intercept)} numbers, and "
            f"the rows ask for {model.width}. Pass the intercept_ of a fit to rows like these."
        )
    if model.fit_intercept:
        w[d] = intercept
    elif intercept.any():
        raise InvalidParameterError(
            "intercept_init with fit_intercept=False: there is no intercept to start from. Leave "
            "it out."
        )
    return w


def _numbers(name: str, given: Any, dtype: Any) -> NDArray[Any]:
    """An array of finite real numbers; of a sparse matrix too, as `sparsify` leaves one."""
    values = np.asarray(given.toarray() if sparse.issparse(given) else given)
    if values.dtype.kind in "biufO":
        try:
            found = values.astype(dtype)
        except (TypeError, ValueError):
            found = np.array(np.nan)
        if np.isfinite(found).all():
            return found
    raise InvalidDataError(
        f"{name} must be finite real numbers (its dtype is {values.dtype}). Pass what a fit found."
    )
