"""Areas under the curves of several classes, of many linear models of the same rows.

D. J. Hand and R. J. Till, "A simple generalisation of the area under the ROC curve for multiple
class classification problems", Machine Learning 45 (2001); F. Provost and P. Domingos,
"Well-trained PETs: improving probability estimation trees" (2000).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import numpy as np

from daskml_dist.backends.namespace import namespace, zeros
from daskml_dist.models.stacked import StackedLinear
from daskml_dist.solvers.base import Array
from daskml_dist.solvers.stacked_ranks import StackedRanks, rankings

__all__ = ["CLASS_RANKINGS", "StackedClassRanks"]

#: Names of the scores, in the order in which they are found.
CLASS_RANKINGS = ("roc_auc_ovr", "roc_auc_ovr_weighted", "roc_auc_ovo", "roc_auc_ovo_weighted")


@dataclass(frozen=True, eq=False)
class StackedClassRanks(StackedRanks):
    """Probabilities of the classes of rows that play a role in a column's split.

    Of each column it holds the number of rows, and then their probabilities class by class, the
    numbers of their labels, and their weights.
    """

    names: ClassVar[tuple[str, ...]] = CLASS_RANKINGS

    def shape(self, model: StackedLinear) -> tuple[int, ...]:
        return len(self.w), 1 + (model.each.width + 2) * self.n_slots

    def _kept(self, model: StackedLinear, raw: Any, codes: Any, weight: Any) -> list[Any]:
        xp, shape = namespace(raw), raw.shape
        flat = xp.reshape(raw, (-1, shape[2]))
        proba = zeros(flat.shape, flat.dtype, flat)
        model.each.loss.write_proba(flat, proba)
        proba = xp.reshape(proba, shape)
        return [*(proba[:, :, k].T for k in range(shape[2])), codes[None, :], weight[None, :]]

    def _ranked(self, *kept: Array) -> tuple[float, ...]:
        *proba, codes, weight = kept
        n_classes = len(proba)
        of_classes = [
            rankings(proba[k], np.where(codes == k, weight, -weight))[0] for k in range(n_classes)
        ]
        shares = np.bincount(codes.astype(np.int64), weight, n_classes)
        if np.isnan(of_classes).any():  # a label that no row has
            return (np.nan,) * len(CLASS_RANKINGS)
        to_rest = np.mean(of_classes), np.average(of_classes, weights=shares)
        if (weight != weight[0]).any():  # weights have no meaning for pairs
            return *map(float, to_rest), np.nan, np.nan
        pairs = list(combinations(range(n_classes), 2))
        areas = [_of_pair(proba, codes, *pair) for pair in pairs]
        met = [shares[a] + shares[b] for a, b in pairs]
        return *map(float, to_rest), float(np.mean(areas)), float(np.average(areas, weights=met))


def _of_pair(proba: list[Array], codes: Array, a: int, b: int) -> float:
    """Mean area of two classes, each by its own probability, among the rows of both."""
    rows = np.flatnonzero((codes == a) | (codes == b))
    is_a = codes[rows] == a
    of_a = rankings(proba[a][rows], np.where(is_a, 1.0, -1.0))[0]
    of_b = rankings(proba[b][rows], np.where(is_a, -1.0, 1.0))[0]
    return (of_a + of_b) / 2
