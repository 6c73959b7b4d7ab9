"""Many linear models of the same rows, each trained on rows of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.base import Model
from daskml_dist.models.linear import LinearModel

__all__ = ["NEITHER", "TEST", "TRAIN", "Roles", "StackedLinear"]

#: What a row is to a split.
NEITHER, TRAIN, TEST = 0, 1, 2


class Roles(ABC):
    """Roles of rows, by their codes, in each split. Picklable.

    Attributes
    ----------
    n_splits : int
    """

    n_splits: int

    @abstractmethod
    def played(self, codes: NDArray[np.int64], split: int) -> NDArray[np.int8]:
        """NEITHER, TRAIN or TEST for each code."""


@dataclass(frozen=True, eq=False)
class StackedLinear(Model):
    """Linear models of one kind, a column of parameters (or as many as there are classes) each.

    A row's target comes with a code, which tells what it is to each split.

    Parameters
    ----------
    each : LinearModel
    roles : Roles
    classes : ndarray or None
        As the targets name them; None for regression.
    """

    each: LinearModel
    roles: Roles
    classes: NDArray[Any] | None

    @property
    def n_features(self) -> int:
        """Columns of the rows."""
        return self.each.n_features

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Targets as each model reads them, then the role in each split.

        Parameters
        ----------
        y : ndarray of shape (n, 2)
            Targets and codes counted from 1.

        Returns
        -------
        ndarray of float64 or float32 of shape (n, 1 + n_splits)
        """
        codes = y[:, 1].astype(np.int64) - 1
        out = np.empty((len(y), 1 + self.roles.n_splits), dtype)
        out[:, 0] = self.each.encode(y[:, 0], self.classes, dtype)
        for split in range(self.roles.n_splits):
            out[:, 1 + split] = self.roles.played(codes, split)
        return out
