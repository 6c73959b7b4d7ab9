"""Baskets: rows whose entries are not zero where an item is bought."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from daskml_dist.models.base import Model

__all__ = ["Baskets"]


@dataclass(frozen=True)
class Baskets(Model):
    """Rows without a target, in the dtype that they have.

    Parameters
    ----------
    n_items : int
    """

    n_items: int

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """The targets themselves, which nobody reads."""
        return y

    def prepare(self, X: Any, dtype: Any) -> Any:
        """The rows themselves."""
        return X
