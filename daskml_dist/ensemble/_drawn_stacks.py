"""Members of a bag that are columns of one fit: each weighs the rows by how often it drew them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.collection import as_collection
from daskml_dist.data.feature_names import remember_dtypes
from daskml_dist.ensemble._draws import Draws
from daskml_dist.estimators.batched_fits.solver_rounds import (
    Fits,
    NotStackedError,
    can_stack,
    open_stack,
)
from daskml_dist.models.stacked import FoldAssignment
from daskml_dist.solvers.batched_scores import ScoreParts

__all__ = ["DrawnRoles", "can_be_drawn", "fit_drawn"]


@dataclass(frozen=True, eq=False)
class DrawnRoles(FoldAssignment):
    """Draws of rows, whose codes are their numbers; a split is a member.

    Parameters
    ----------
    draws : Draws
        By no weights.
    """

    draws: Draws
    counted: ClassVar[bool] = True

    @property
    def n_splits(self) -> int:  # type: ignore[override]
        """Number of members."""
        return len(self.draws.seeds)

    def played(self, codes: NDArray[np.int64], split: int) -> NDArray[np.int64]:
        """Draws of each row."""
        return self.draws.of_rows(split, codes)


def can_be_drawn(members: Sequence[Any], classes: NDArray[Any] | None) -> bool:
    """Return whether members can be one fit, as far as they and the labels tell."""
    return len(members) > 1 and (classes is None or len(classes) > 1) and can_stack(members)


def fit_drawn(
    members: Sequence[Any], draws: Draws, X: Any, y: Any, classes: NDArray[Any] | None
) -> list[Any] | None:
    """Fit clones of members, each to the rows that it draws, in one fit."""
    # Codes of a stack's rows begin with 1.
    collection = as_collection(X, y + np.array([0.0, 1.0]), None, multi_output=True)
    for member in members:
        member._check_params()
    own = [(k, k) for k in range(len(members))]
    try:
        with open_stack(members[0], collection, DrawnRoles(draws), classes, False) as stack:
            fitted = [fit.estimator for fit in Fits(stack, members, own, (), ScoreParts()).found()]
            for one in fitted:
                one._set_history(*stack.last, stack.engine)
                remember_dtypes(one, X)
    except NotStackedError:
        return None
    return fitted
