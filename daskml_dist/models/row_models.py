"""Models that only prepare rows and targets, for solvers by sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.losses.survival import AFT
from daskml_dist.models.base import Model


@dataclass(frozen=True)
class Baskets(Model):
    """Rows of items without targets, in their own dtype (frequent patterns).

    Parameters
    ----------
    n_items : int
    """

    n_items: int

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return the targets unchanged; they are not used."""
        return y

    def prepare(self, X: Any, dtype: Any) -> Any:
        """Return the rows unchanged, in their own dtype."""
        return X


@dataclass(frozen=True)
class TreeRowsModel(Model):
    """Rows and targets of trees. Values are only compared, so rows may hold NaN and infinity.

    Parameters
    ----------
    n_features : int
    columns : tuple of ndarray
        Sorted labels of each of several outputs; empty for one output, and in regression.
    joins_bounds : bool, default=False
        Whether two columns of the targets are bounds of times, which become one complex number.
    """

    n_features: int
    columns: tuple[NDArray[Any], ...] = ()
    joins_bounds: bool = False
    takes_missing: ClassVar[bool] = True
    #: So that trainers are pinned to their share of the cores.
    starts_threads: ClassVar[bool] = False

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return the targets in float64, with labels as their indices."""
        if self.columns:
            codes = [
                np.searchsorted(c, target) for c, target in zip(self.columns, y.T, strict=True)
            ]
            return np.column_stack(codes).astype(np.float64)
        if self.joins_bounds:
            return np.asarray(AFT.join(y, np.float64))
        if classes is not None:
            y = np.searchsorted(classes, y)
        return np.asarray(y, np.float64)


@dataclass(frozen=True)
class Unlabelled(Model):
    """Rows without targets (clusters, components, mixtures).

    Parameters
    ----------
    n_features : int
    """

    n_features: int

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return the targets unchanged; they are not used."""
        return y
