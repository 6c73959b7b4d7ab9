"""Many linear models of the same rows, each trained on rows of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.namespace import cast, namespace
from daskml_dist.models.base import Model
from daskml_dist.models.linear import LinearModel

__all__ = ["NEITHER", "TEST", "TRAIN", "FoldAssignment", "OnlyOne", "StackedLinear", "WithAll"]

#: What a row is to a split.
NEITHER, TRAIN, TEST = 0, 1, 2
#: Codes whose roles are looked up.
_FEW = 1 << 12


class FoldAssignment(ABC):
    """Roles of rows, by their codes, in each split. Picklable.

    Attributes
    ----------
    n_splits : int
    counted : bool
        Whether :meth:`played` tells how often a split trains on a row. Such a split tests on none.
    weights : ndarray of float64 of shape (n_splits, n_labels) or (n_splits, 1), or None
        Weight of the training rows of each split, by their label; None: the rows have to tell it.
    """

    n_splits: int
    counted: ClassVar[bool] = False
    weights: NDArray[np.float64] | None = None

    @abstractmethod
    def played(self, codes: NDArray[np.int64], split: int) -> NDArray[Any]:
        """NEITHER, TRAIN or TEST for each code; or `counted`."""

    def every(self, codes: NDArray[np.int64]) -> NDArray[Any]:
        """Roles in all splits, of shape (n, n_splits)."""
        most = int(codes.max(initial=-1)) + 1
        few = most <= _FEW and codes.min(initial=0) >= 0
        known = np.arange(most) if few else codes
        roles = [self.played(known, split) for split in range(self.n_splits)]
        table = np.stack(roles, axis=1)
        return table[codes] if few else table

    def times(self, played: Any, role: int) -> Any:
        """Times that rows play a role, of what :meth:`played` tells of them."""
        if self.counted:
            return played if role == TRAIN else played * 0
        return played == role

    def trained(self, codes: NDArray[np.int64], split: int) -> NDArray[Any]:
        """Times that a split trains on a row of each code."""
        times: NDArray[Any] = self.times(self.played(codes, split), TRAIN)
        return times


@dataclass(frozen=True, eq=False)
class WithAll(FoldAssignment):
    """Roles of some splits, and of one more, the last, that trains on all rows.

    Parameters
    ----------
    each : FoldAssignment
    """

    each: FoldAssignment

    @property
    def n_splits(self) -> int:  # type: ignore[override]
        """One more."""
        return self.each.n_splits + 1

    def played(self, codes: NDArray[np.int64], split: int) -> NDArray[np.int8]:
        """As in :class:`FoldAssignment`."""
        if split == self.each.n_splits:
            return np.full(len(codes), TRAIN, np.int8)
        return self.each.played(codes, split)


@dataclass(frozen=True, eq=False)
class OnlyOne(FoldAssignment):
    """Roles of one split alone.

    Parameters
    ----------
    each : FoldAssignment
    split : int
    weights : ndarray of float64 of shape (1, n_labels) or (1, 1), or None
    """

    each: FoldAssignment
    split: int
    weights: NDArray[np.float64] | None = None

    @property
    def n_splits(self) -> int:  # type: ignore[override]
        """One."""
        return 1

    def played(self, codes: NDArray[np.int64], split: int) -> NDArray[np.int8]:
        """As in :class:`FoldAssignment`."""
        return self.each.played(codes, self.split)


@dataclass(frozen=True, eq=False)
class StackedLinear(Model):
    """Linear models of one kind, a column of parameters (or as many as there are classes) each.

    A row's target comes with a code, which tells what it is to each split.

    Parameters
    ----------
    each : LinearModel
    roles : FoldAssignment
    classes : ndarray or None
        As the targets name them; None for regression.
    class_weight : ndarray of float64 of shape (n_splits, n_classes), or None
        Factors of the weights of training rows, by their label.
    """

    each: LinearModel
    roles: FoldAssignment
    classes: NDArray[Any] | None
    class_weight: NDArray[np.float64] | None = None

    @property
    def n_features(self) -> int:
        """Columns of the rows."""
        return self.each.n_features

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Targets as each model reads them, then the role in each split.

        Parameters
        ----------
        y : ndarray of shape (n, n_given + 1)
            Targets (labels in one column) and codes counted from 1.

        Returns
        -------
        ndarray of float64 or float32 of shape (n, n_targets + n_splits)
        """
        codes = y[:, -1].astype(np.int64) - 1
        given = y[:, 0] if y.shape[1] == 2 else y[:, :-1]
        targets = self.each.encode(given, self.classes, dtype)
        n_targets = self.n_targets
        out = np.empty((len(y), n_targets + self.roles.n_splits), dtype)
        out[:, :n_targets] = targets.reshape(len(y), -1)
        out[:, n_targets:] = self.roles.every(codes)
        return out

    @property
    def n_targets(self) -> int:
        """Columns of the targets."""
        return self.each.n_targets or 1

    def label_codes(self, y: Any) -> Any:
        """Numbers of the rows' labels, of targets as each model reads them."""
        xp = namespace(y)
        if y.ndim == 2:  # signs, one a class
            return xp.argmax(y, axis=1)
        return cast(y if self.each.n_classes > 2 else y > 0, xp.int64)

    def parted(self, y: Any) -> tuple[Any, Any]:
        """Targets as each model reads them, and the roles, of what :meth:`encode` made."""
        n = self.n_targets
        return (y[:, 0] if self.each.n_targets is None else y[:, :n]), y[:, n:]

    def times(self, roles: Any, role: int) -> Any:
        """Times that rows play a role in each split, of the roles that :meth:`parted` gives."""
        return self.roles.times(roles, role)
