"""Ranking scores of many linear models of the same rows, exactly, in few passes.

Each row's score of each column goes to the process that has the column's range, which sorts them.
T. Fawcett, "An introduction to ROC analysis" (2006); J. Davis and M. Goadrich, "The relationship
between precision-recall and ROC curves" (2006).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import cast, namespace, ones, total
from daskml_dist.models.base import BatchRows
from daskml_dist.models.stacked import StackedLinear
from daskml_dist.solvers.base import (
    Array,
    ReduceScatterStatistic,
    Solution,
    Solver,
    Statistic,
    Sums,
)
from daskml_dist.solvers.stacked_gradient import tiles_of_splits

__all__ = ["RANKINGS", "RoleCounts", "StackedRankings", "StackedRanks", "rankings"]

#: Names of ranking scores, in the order in which they are found.
RANKINGS = ("roc_auc", "average_precision")
#: Numbers that are brought together in a pass.
_TOGETHER = 1 << 23


def rankings(scores: Array, signed: Array) -> tuple[float, float]:
    """Area under the receiver operating characteristic, and average precision.

    Parameters
    ----------
    scores : ndarray of shape (n,)
        The higher, the more likely positive; equal ones are ties.
    signed : ndarray of float64 of shape (n,)
        Weights of the rows, those of negative ones times -1.

    Returns
    -------
    tuple of float
        NaN where a score is, or where there are no rows of either label.
    """
    # NaN is the last one.
    order = np.argsort(scores)[::-1]
    scores, signed = scores[order], signed[order]
    if not len(scores) or np.isnan(scores[0]):
        return np.nan, np.nan
    last = np.append(np.flatnonzero(scores[1:] != scores[:-1]), len(scores) - 1)
    right = np.cumsum(np.maximum(signed, 0.0))[last]
    wrong = np.cumsum(np.maximum(-signed, 0.0))[last]
    if not (right[-1] > 0 and wrong[-1] > 0):
        return np.nan, np.nan
    more = np.diff(right, prepend=0.0)
    area = np.sum(np.diff(wrong, prepend=0.0) * (right - more / 2))
    there = more > 0
    precision = np.sum(more[there] * (right[there] / (right + wrong)[there]))
    return float(area / right[-1] / wrong[-1]), float(precision / right[-1])


@dataclass(frozen=True, eq=False)
class StackedRankings(Solver):
    """Ranking scores of columns, over rows that play a role in their split.

    The solution is of shape (n_columns, n_scores), in the order of the question's names; NaN where
    a column has no scores of each label, or too many to be sorted by one process.

    Parameters
    ----------
    w : ndarray of shape (n_columns, n_rows, width)
    splits : ndarray of int of shape (n_columns,), ascending
    role : {TRAIN, TEST}
    question : type of StackedRanks
        What is asked: of two labels, or of several.
    """

    w: Array
    splits: NDArray[np.int64]
    role: int
    question: type[StackedRanks]

    name = "stacked_rankings"

    @property
    def max_passes(self) -> int:
        """One for each column, and one in which rows are counted."""
        return 1 + len(self.w)

    def solve(self, model: StackedLinear, sums: Sums, start: Array | None) -> Solution:
        """Ask for some columns at a time."""
        question = self.question
        found = np.full((len(self.w), len(question.names)), np.nan)
        n_slots = int(sums(RoleCounts(self.role)).max())
        each = question(self.w[:1], self.splits[:1], self.role, max(1, n_slots)).shape(model)[1]
        if not n_slots or each > _TOGETHER:
            return Solution(found)
        n_columns = _TOGETHER // each
        for first in range(0, len(self.w), n_columns):
            some = slice(first, first + n_columns)
            found[some] = sums(question(self.w[some], self.splits[some], self.role, n_slots))
        return Solution(found)


@dataclass(frozen=True, eq=False)
class RoleCounts(Statistic):
    """Numbers of rows that play a role in each split.

    Parameters
    ----------
    role : {TRAIN, TEST}
    """

    role: int
    in_parts: ClassVar[bool] = True

    def shape(self, model: StackedLinear) -> tuple[int, ...]:
        return (model.roles.n_splits,)

    def add(self, model: StackedLinear, rows: BatchRows, out: Any, backend: Backend) -> Any:
        xp, (_, roles) = namespace(rows.y), model.parted(rows.y)
        out += total(cast(roles == self.role, xp.float64), axis=0)
        return float("nan")


@dataclass(frozen=True, eq=False)
class StackedRanks(ReduceScatterStatistic):
    """Scores of rows that play a role in a column's split, which its owner ranks.

    Of each column it holds the number of rows, and then their scores and signed weights.

    Parameters
    ----------
    w, splits, role
        As of :class:`StackedRankings`.
    n_slots : int
        Rows of a column at most.
    """

    w: Array
    splits: NDArray[np.int64]
    role: int
    n_slots: int

    #: Names of the scores that it finds.
    names: ClassVar[tuple[str, ...]] = RANKINGS
    additive: ClassVar[bool] = False
    remembered: ClassVar[bool] = False
    in_parts: ClassVar[bool] = True

    def shape(self, model: StackedLinear) -> tuple[int, ...]:
        return len(self.w), 1 + 2 * self.n_slots

    def answer_shape(self, model: StackedLinear) -> tuple[int, ...]:
        return len(self.w), len(self.names)

    def add(self, model: StackedLinear, rows: BatchRows, out: Any, backend: Backend) -> Any:
        xp = namespace(rows.y)
        tiles = tiles_of_splits(model, self.w, self.splits, self.role, rows, backend, False)
        for part, some in tiles:
            raw = model.each.raw_prediction(some.w, part.X, backend)
            raw = xp.reshape(raw, (part.y.shape[0], len(some.at), some.width))
            y, roles = model.parted(part.y)
            codes, weight = model.label_codes(y), ones(y.shape[:1], xp.float64, raw)
            if part.weight is not None:
                weight = weight * cast(part.weight, xp.float64)
            for split in np.unique(some.splits).tolist():
                # Rows that weigh nothing are none.
                at = xp.nonzero((roles[:, split] == self.role) & (weight != 0))[0]
                of_split = np.flatnonzero(some.splits == split)
                columns = slice(int(of_split[0]), int(of_split[-1]) + 1)
                kept = self._kept(
                    model, xp.take(raw[:, columns, :], at, axis=0), xp.take(codes, at, axis=0),
                    xp.take(weight, at, axis=0),
                )  # fmt: skip
                own = slice(int(some.at[columns.start]), int(some.at[columns.stop - 1]) + 1)
                self._append(out, own, kept)
        return float("nan")

    def merge(self, total: Array, part: Array) -> None:
        """Put the rows of others behind those of `total`."""
        n_kept = (part.shape[1] - 1) // self.n_slots
        for split in np.unique(self.splits):
            own = np.flatnonzero(self.splits == split)
            at = slice(own[0], own[-1] + 1)
            self._append(total, at, _slots(part[at], int(part[own[0], 0]), n_kept))

    def finish(self, model: StackedLinear, own: Array, at: slice) -> Array:
        """Ranking scores of some columns."""
        n_kept = (own.shape[1] - 1) // self.n_slots
        return np.array([self._ranked(*_slots(one, int(one[0]), n_kept)) for one in own])

    def _kept(self, model: StackedLinear, raw: Any, codes: Any, weight: Any) -> list[Any]:
        """Numbers that are kept of rows: of each column, or of all alike.

        Parameters
        ----------
        model : StackedLinear
        raw : array of shape (n, n_columns, width)
        codes : array of int of shape (n,)
            Numbers of the rows' labels.
        weight : array of float64 of shape (n,)
        """
        signs = cast(2 * codes - 1, namespace(raw).float64)
        return [raw[:, :, 0].T, (signs * weight)[None, :]]

    def _ranked(self, *kept: Array) -> tuple[float, ...]:
        """Ranking scores of a column, of what is kept of its rows."""
        scores, signed = kept
        return rankings(scores, signed)

    def _append(self, out: Any, at: slice, kept: list[Any]) -> None:
        """Put rows behind those of some columns, which are of one split."""
        n, more = int(out[at.start, 0]), kept[0].shape[-1]
        for k, values in enumerate(kept):
            first = 1 + k * self.n_slots + n
            out[at, first : first + more] = cast(values, out.dtype)
        out[at, 0] = float(n + more)


def _slots(of_columns: Array, n: int, n_kept: int) -> list[Array]:
    """The values kept of the first `n` rows of columns, or of one."""
    n_slots = (of_columns.shape[-1] - 1) // n_kept
    starts = range(1, 1 + n_kept * n_slots, n_slots)
    return [of_columns[..., start : start + n] for start in starts]
