"""Labels as numbers for least squares: 1 for a row's label, or labels, and -1 for all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.linear import LinearModel

__all__ = ["SignedClasses", "SignedLabels"]


@dataclass(frozen=True)
class SignedClasses(LinearModel):
    """A linear model of several targets, one a class; of two classes, of the second alone.

    For the maths it is a regression: ``n_classes`` is 0 and ``n_targets`` the number of classes
    (None for two).
    """

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Signs of labels.

        Parameters
        ----------
        y : ndarray of shape (n,)
        classes : ndarray of shape (n_classes,), sorted
        dtype : numpy dtype of the fit

        Returns
        -------
        ndarray of shape (n,), or (n, n_classes) for more than two
        """
        assert classes is not None
        if len(classes) == 2:
            return np.where(y == classes[1], 1, -1).astype(dtype)
        return np.where(y[:, None] == classes, 1, -1).astype(dtype)


@dataclass(frozen=True)
class SignedLabels(LinearModel):
    """A linear model of several targets: each tells whether a row has a label."""

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Signs of 0 and 1.

        Parameters
        ----------
        y : ndarray of shape (n, n_labels)
        classes : ignored
        dtype : numpy dtype of the fit

        Returns
        -------
        ndarray of shape (n, n_labels)
        """
        return np.where(y > 0, 1, -1).astype(dtype)
