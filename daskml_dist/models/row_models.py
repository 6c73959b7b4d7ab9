"""Models that only prepare rows and targets, for solvers by sums; and encodings of labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

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
    """

    n_features: int
    columns: tuple[NDArray[Any], ...] = ()
    takes_missing: ClassVar[bool] = True
    #: So that trainers are pinned to their share of the cores.
    starts_threads: ClassVar[bool] = False

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return the targets in float64, with labels as their indices."""
        if self.columns:
            found = [np.searchsorted(c, of) for c, of in zip(self.columns, y.T, strict=True)]
            return np.column_stack(found).astype(np.float64)
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


def encode_signs(is_positive: Any, dtype: DTypeLike) -> NDArray[Any]:
    """Return +1 where a mask is True, and -1 elsewhere."""
    # In place, without temporaries: 0 and 1 become -1 and +1.
    signs = np.asarray(is_positive).astype(dtype)
    signs *= 2
    signs -= 1
    return signs


def encode_labels(y: NDArray[Any], classes: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return the position of each label among the sorted classes.

    Parameters
    ----------
    y : ndarray of shape (n,)
        Each of them one of `classes`.
    classes : ndarray of shape (n_classes,)
    dtype : dtype
        Dtype of the result.
    """
    # Consecutive integers need no search: the position is the difference from the first.
    if classes.dtype.kind in "iu" and y.dtype.kind in "iu":
        first, last = int(classes[0]), int(classes[-1])
        if last - first == len(classes) - 1 and last <= np.iinfo(np.int64).max:
            return (y.astype(np.int64) - first).astype(dtype, copy=False)
    return np.searchsorted(classes, y).astype(dtype)
