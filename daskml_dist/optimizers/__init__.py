"""Optimizers: rules that turn a gradient into a step, in place.

Every rule in the table is elementwise, so the parameters of a sparse batch can be gathered, updated
and written back. An optimizer object holds no state: `Optimizer.init` creates the state, arrays of
the shape of the parameters, which are sharded and moved together with the parameters. Two more are
for the outer steps of lanes that train independently: :class:`Muon` steps whole matrices, and
:class:`DelayedNesterov` is for averages over some of the lanes.

Each family is a module (`sgd`, `adagrad`, `adam`, `ftrl`); the classes in its `__all__` are public
here and listed in the table `OPTIMIZERS`. The optimizers of `row_wise` are for tables of ids. Under
an l1 penalty SGD and Adagrad use FTRL's dual variables.
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
#: Optimizers for special steps only: of whole matrices, and of rows of a table.
_SPECIAL_OPTIMIZERS: dict[str, type[Optimizer]] = {
    optimizer.name: optimizer for optimizer in (Muon, RowWiseAdagrad, RowWiseAdam)
}


def get_optimizer(optimizer: str | Optimizer) -> Optimizer:
    """Return the optimizer with a name, or a given optimizer object.

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
        The name is unknown.

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
    if isinstance(optimizer, str) and optimizer in _SPECIAL_OPTIMIZERS:
        return _SPECIAL_OPTIMIZERS[optimizer]()
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
