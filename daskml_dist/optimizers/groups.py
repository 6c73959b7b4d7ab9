"""Options of some of a model's parts, where these are to be trained in another way."""

from __future__ import annotations

from dataclasses import dataclass

from daskml_dist.errors.names import NamedParameters
from daskml_dist.optimizers.base import Optimizer
from daskml_dist.penalties import Penalty

__all__ = ["GroupOptions"]


@dataclass(frozen=True)
class GroupOptions(NamedParameters):
    """Options of some of a model's parts; None: as for the others.

    Parameters
    ----------
    optimizer : Optimizer or None
    penalty : Penalty or None
    rate : float, default=1.0
        Factor on the learning rate; 0 freezes the parts.

    Examples
    --------
    >>> from daskml_dist.optimizers import Adam, GroupOptions
    >>> GroupOptions(optimizer=Adam(), rate=0.1).rate
    0.1
    """

    optimizer: Optimizer | None = None
    penalty: Penalty | None = None
    rate: float = 1.0
