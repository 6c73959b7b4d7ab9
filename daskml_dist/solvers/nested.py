"""Sums of a solver that works within another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from daskml_dist.solvers.base import Array, Statistic, Sums

__all__ = ["Unkept"]


@dataclass
class Unkept:
    """The sums of a solver within another, whose state nobody keeps.

    Parameters
    ----------
    sums : Sums
        The outer solver's.
    n_rows : int
    """

    sums: Sums
    n_rows: int

    @property
    def kept(self) -> None:
        return None

    @property
    def should_stop(self) -> bool:
        return self.sums.should_stop

    def __call__(self, statistic: Statistic) -> Array:
        return self.sums(statistic)

    def keep(self, *_: Any, **__: Any) -> None:
        """Nothing."""
