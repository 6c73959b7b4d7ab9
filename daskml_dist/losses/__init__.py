"""Losses: value and gradient with respect to the raw prediction.

A raw prediction is ``X @ coef + intercept``, of shape (n,), or (n, K) if a model has K > 1 outputs.
All functions here are elementwise and use only functions of the array API standard, so the same
code runs on arrays of a GPU. ``evaluate_row`` is the same function for the numbers of one row;
numba compiles it into steps of single rows (`daskml_dist.backends.row_steps`).

There is one module for each argument of a loss: the margin (`margin`, classification), the residual
(`residual`) or the mean of a distribution (`deviance`; both for regression). The classes in a
module's `__all__` are public here and listed in the table `LOSSES`. Losses of times until an event
(`survival`) have no names and are passed as objects.
"""

from __future__ import annotations

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.losses import deviance, margin, residual
from daskml_dist.losses.base import LOSSES, Kind, Loss
from daskml_dist.losses.deviance import *  # noqa: F403
from daskml_dist.losses.margin import *  # noqa: F403
from daskml_dist.losses.residual import *  # noqa: F403
from daskml_dist.losses.residual import AbsoluteError
from daskml_dist.losses.row import RowLoss
from daskml_dist.losses.survival import AFT, Cox

__all__ = ["AFT", "LOSSES", "Cox", "Loss", "RowLoss", "get_loss"]
__all__ += margin.__all__
__all__ += residual.__all__
__all__ += deviance.__all__

# `AbsoluteError` is for boosting only.
LOSSES.update(
    (loss.name, loss)
    for family in (margin, residual, deviance)
    for name, loss in vars(family).items()
    if name in family.__all__ and loss is not AbsoluteError
)


def get_loss(loss: str | Loss, kind: Kind, *, censored: bool = False) -> Loss:
    """Return the loss with a name, or check a loss object.

    Parameters
    ----------
    loss : str or Loss
    kind : {"classification", "regression"}
    censored : bool, default=False
        Whether losses of censored times are accepted too.

    Raises
    ------
    InvalidParameterError
        For an unknown name, or a loss of the other kind.

    Examples
    --------
    >>> from daskml_dist.losses import get_loss
    >>> get_loss('log_loss', 'classification').name
    'log_loss'
    """
    if isinstance(loss, str) and loss in LOSSES:
        loss = LOSSES[loss]()
    is_censored = isinstance(loss, Loss) and loss.kind == "survival"
    if isinstance(loss, Loss) and (censored if is_censored else loss.kind == kind):
        return loss
    names = sorted(name for name, entry in LOSSES.items() if entry.kind == kind)
    raise InvalidParameterError(
        f"loss={loss!r} is not a loss for {kind}. Use one of {names}, or an instance of a class "
        f"in daskml_dist.losses.{suggest_nearest(loss, names)}"
    )
