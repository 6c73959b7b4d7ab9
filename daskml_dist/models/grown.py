"""Rows as trees grow on them: they may miss values, and labels are numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.base import Model

__all__ = ["Grown"]


@dataclass(frozen=True)
class Grown(Model):
    """Rows of trees: no arithmetic is done with them, so any value goes.

    Parameters
    ----------
    n_features : int
    columns : tuple of ndarray
        Sorted labels of each of several outputs; empty where there is one, and in regression.
    """

    n_features: int
    columns: tuple[NDArray[Any], ...] = ()
    takes_missing: ClassVar[bool] = True
    #: Trainers may keep to a share of the cores.
    starts_threads: ClassVar[bool] = False

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Targets in float64, labels by their numbers."""
        if self.columns:
            found = [np.searchsorted(c, of) for c, of in zip(self.columns, y.T, strict=True)]
            return np.column_stack(found).astype(np.float64)
        if classes is not None:
            y = np.searchsorted(classes, y)
        return np.asarray(y, np.float64)
