"""Optimizers: rules that turn a gradient into a step, in place.

Every rule of the table is elementwise, so the parameters that a sparse batch touches can be
gathered, updated and put back. An optimizer holds no state itself: `Optimizer.init` makes the
state, arrays of the shape of the parameters, which shards cut and move together with the
parameters. Two others are for the outer steps of lanes that step alone: :class:`Muon` steps whole
matrices, and :class:`DelayedNesterov` is for averages of some lanes each.

Each family is a module (`sgd`, `adagrad`, `adam`, `ftrl`); the classes in its `__all__` are public
here and fill the table `OPTIMIZERS`. Those of `row_wise` are for tables of ids. Under an l1 penalty
SGD and Adagrad use FTRL's dual variables.
"""

from __future__ import annotations

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.optimizers import adagrad, adam, ftrl, sgd
from daskml_dist.optimizers.adagrad import *  # noqa: F403
from daskml_dist.optimizers.adam import *  # noqa: F403
from daskml_dist.optimizers.base import GroupOptions, Optimizer
from daskml_dist.optimizers.delayed_nesterov import DelayedNesterov
from daskml_dist.optimizers.ftrl import *  # noqa: F403
from daskml_dist.optimizers.muon import Muon
from daskml_dist.optimizers.row_wise import RowWiseAdagrad, RowWiseAdam
from daskml_dist.optimizers.sgd import *  # noqa: F403

__all__ = [
    "OPTIMIZERS",
    "DelayedNesterov",
    "GroupOptions",
    "Muon",
    "Optimizer",
    "RowWiseAdagrad",
    "RowWiseAdam",
    "get_optimizer",
]
__all__ += sgd.__all__
__all__ += adagrad.__all__
__all__ += adam.__all__
__all__ += ftrl.__all__

OPTIMIZERS: dict[str, type[Optimizer]] = {
    optimizer.name: optimizer
    for family in (sgd, adagrad, adam, ftrl)
    for name, optimizer in vars(family).items()
    if name in family.__all__
}
#: Optimizers that not every step can use: of whole matrices, and of rows of a table.
_OTHERS: dict[str, type[Optimizer]] = {
    optimizer.name: optimizer for optimizer in (Muon, RowWiseAdagrad, RowWiseAdam)
}


def get_optimizer(optimizer: str | Optimizer) -> Optimizer:
    """Return the optimizer of a name, or the object itself.

    Parameters
    ----------
    optimizer : str or Optimizer
        A key of `OPTIMIZERS`, or an object.

    Returns
    -------
    Optimizer

    Raises
    ------
    InvalidParameterError
        For an unknown name.

    Examples
    --------
    >>> from daskml_dist.optimizers import get_optimizer
    >>> get_optimizer('adam').name
    'adam'
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    if isinstance(optimizer, str) and optimizer in OPTIMIZERS:
        return OPTIMIZERS[optimizer]()
    if isinstance(optimizer, str) and optimizer in _OTHERS:
        return _OTHERS[optimizer]()
    if isinstance(optimizer, str) and optimizer.startswith("row_wise_"):
        raise InvalidParameterError(
            f"optimizer={optimizer!r}: only Adagrad and Adam have a row-wise form with one "
            "number per row. Use 'row_wise_adagrad', 'row_wise_adam', or one of "
            f"{list(OPTIMIZERS)}."
        )
    raise InvalidParameterError(
        f"optimizer={optimizer!r}: use one of {list(OPTIMIZERS)}, or an instance of a class in "
        f"daskml_dist.optimizers.{suggest_nearest(optimizer, OPTIMIZERS)}"
    )
