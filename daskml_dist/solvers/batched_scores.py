"""Scores of many candidate models on the same rows, in few passes.

:class:`BatchedScores` sums what accuracy, losses and errors need. Ranking scores need the order
of all rows: each row's score of a candidate is sent to the process that owns the candidate, which
sorts them (:class:`BatchedRanks`; :class:`BatchedClassRanks` for more than two classes).

References
----------
T. Fawcett, "An introduction to ROC analysis", 2006. J. Davis and M. Goadrich, "The relationship
between precision-recall and ROC curves", 2006. D. J. Hand and R. J. Till, "A simple
generalisation of the area under the ROC curve for multiple class classification problems",
Machine Learning 45, 2001. F. Provost and P. Domingos, "Well-trained PETs: improving probability
estimation trees", 2000.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import cast, namespace, one_hot, ones, total, zeros
from daskml_dist.models.base import BatchRows
from daskml_dist.models.batched import BatchedLinear
from daskml_dist.solvers.base import (
    Array,
    ReduceScatterStatistic,
    Solution,
    Solver,
    Statistic,
    Sums,
)
from daskml_dist.solvers.batched_gradients import (
    ActiveCandidates,
    is_kernel_supported,
    iterate_candidate_tiles,
)

#: Names of ranking scores, in the order in which they are found.
RANKINGS = ("roc_auc", "average_precision")
#: Numbers that are exchanged in one pass at most: 64 MiB of float64.
_MAX_SCORES_PER_PASS = 1 << 23
#: Names of the scores, in the order in which they are found.
CLASS_RANKINGS = ("roc_auc_ovr", "roc_auc_ovr_weighted", "roc_auc_ovo", "roc_auc_ovo_weighted")
#: Sums of a candidate. Classifier: weight of the rows, of right predictions, and losses. Regressor:
#: weight, squared errors, absolute errors, targets, and their squares.
_N_CLASSIFIER_SUMS, _N_REGRESSOR_SUMS = 3, 5
#: Log loss of the smallest probability, to which scikit-learn clips.
_MAX_LOG_LOSS = -float(np.log(np.finfo(np.float64).eps))


class ScoreParts(NamedTuple):
    """Parts of scores that are needed beside plain sums.

    Parameters
    ----------
    pairs : bool
        Weights of each pair of a true and a predicted label.
    ranks : bool
        Ranking scores.
    places : bool
        Weights of rows by the place of their label among the scores of several.
    """

    pairs: bool = False
    ranks: bool = False
    places: bool = False


#: No part beside sums.
SUMS_ONLY = ScoreParts()


@dataclass(frozen=True, eq=False)
class BatchedScores(Statistic):
    """Sums for candidates' scores over the rows that play a role in their split.

    Parameters
    ----------
    w : ndarray of shape (n_columns, n_rows, width)
    splits : ndarray of int of shape (n_columns,), ascending
    role : {TRAIN, TEST}
    pairs : bool, default=False
        Whether the weights of each pair of true and predicted label are summed as well.
    places : bool, default=False
        Whether, of more than two labels, the weights of rows by the place of their label are
        summed as well: 0 for the best score.
    """

    w: Array
    splits: NDArray[np.int64]
    role: int
    pairs: bool = False
    places: bool = False
    in_parts: ClassVar[bool] = True

    def shape(self, model: BatchedLinear) -> tuple[int, ...]:
        n_classes = 0 if model.classes is None else len(model.classes)
        more = (n_classes**2 if self.pairs else 0) + (n_classes if self._sums_places(model) else 0)
        return len(self.w), _N_CLASSIFIER_SUMS + more if n_classes else _N_REGRESSOR_SUMS

    def add(self, model: BatchedLinear, rows: BatchRows, out: Any, backend: Backend) -> Any:
        kernel = is_kernel_supported(model.each, rows)
        tiles = iterate_candidate_tiles(
            model, self.w, self.splits, self.role, rows, backend, kernel
        )
        for part, some in tiles:
            if kernel:
                out[some.at] += self._score_by_kernel(model, part, some)
                continue
            raw = model.each.raw_prediction(some.w, part.X, backend)
            raw = namespace(raw).reshape(raw, (part.y.shape[0], len(some.at), some.width))
            sums = self._score_by_arrays(model, raw, part, some, backend)
            if len(some.at) == out.shape[0]:
                out += sums
            else:
                out[some.at, :] += sums
        return float("nan")

    def _score_by_kernel(
        self, model: BatchedLinear, rows: BatchRows, some: ActiveCandidates
    ) -> Any:
        from daskml_dist.backends.batched_log_loss import add_log_scores

        (w, bias), (y, roles) = some.coefficients(model.each), model.parted(rows.y)
        mask = cast(roles == self.role, y.dtype)
        if rows.weight is not None:
            mask *= rows.weight[:, None]
        sums = np.zeros((5, len(bias)))
        add_log_scores(
            rows.X, np.ascontiguousarray(y), mask, some.stops(roles.shape[1]), w, bias,
            _MAX_LOG_LOSS, sums,
        )  # fmt: skip
        losses, *weights, right_down, right_up = sums
        down, up = weights
        pairs = [right_down, down - right_down, up - right_up, right_up]
        found = [down + up, right_down + right_up, losses, *(pairs if self.pairs else [])]
        return np.stack(found, axis=1)

    def _score_by_arrays(
        self,
        model: BatchedLinear,
        raw: Any,
        rows: BatchRows,
        some: ActiveCandidates,
        backend: Backend,
    ) -> Any:
        xp, (y, roles) = namespace(rows.y), model.parted(rows.y)
        mask = xp.take(roles == self.role, backend.to_device(some.splits), axis=1)
        weight = cast(mask, xp.float64)
        if rows.weight is not None:
            weight = weight * cast(rows.weight, xp.float64)[:, None]
        predicted = None
        if model.classes is not None:
            each, predicted = self._label_values(model, raw, y)
        else:
            each = self._regression_values(model, raw, y)
        sums = xp.stack([total(xp.where(mask, v, 0.0) * weight, axis=0) for v in each], axis=1)
        if predicted is not None and self._sums_places(model):
            sums = xp.concat([sums, _sum_label_places(model, raw, y, weight)], axis=1)
        if predicted is None or not self.pairs:
            return sums
        return xp.concat([sums, _sum_label_pairs(model, predicted, y, weight)], axis=1)

    def _sums_places(self, model: BatchedLinear) -> bool:
        return self.places and model.classes is not None and len(model.classes) > 2

    def _label_values(self, model: BatchedLinear, raw: Any, y: Any) -> tuple[list[Any], Any]:
        """Return the values that a classifier's scores sum, and the predicted label codes."""
        xp, loss, (n, n_columns, width) = namespace(raw), model.each.loss, raw.shape
        each_row = ones((n, n_columns), xp.float64, raw)
        losses = zeros((n, n_columns), xp.float64, raw)
        predicted = xp.argmax(raw, axis=2) if width > 1 else cast(raw[:, :, 0] > 0, xp.int64)
        right = predicted == model.label_codes(y)[:, None]
        if not model.each.n_classes:  # a regression to signs of labels, whose loss is no score
            return [
                each_row,
                cast(right, xp.float64),
                zeros(right.shape, xp.float64, raw),
            ], predicted
        if width > 1:
            each = xp.reshape(raw, (n * n_columns, width))
            targets = model.each.targets(cast(xp.repeat(y, n_columns), xp.int32), raw.dtype)
        else:
            each, targets = xp.reshape(raw, (n * n_columns,)), xp.repeat(y, n_columns)
        losses = xp.reshape(loss.value(targets, cast(each, xp.float64)), right.shape)
        losses = xp.where(losses < _MAX_LOG_LOSS, losses, _MAX_LOG_LOSS)
        return [each_row, cast(right, xp.float64), losses], predicted

    def _regression_values(self, model: BatchedLinear, raw: Any, y: Any) -> list[Any]:
        xp = namespace(raw)
        y = cast(y, xp.float64)[:, None]
        wide = ones(raw.shape[:2], xp.float64, raw)
        residual = y - cast(model.each.loss.inverse_link(raw[:, :, 0]), xp.float64)
        return [wide, residual**2, xp.abs(residual), y * wide, y**2 * wide]


def _sum_label_pairs(model: BatchedLinear, predicted: Any, y: Any, weight: Any) -> Any:
    """Return the weights of each true and predicted label, (n_columns, n_classes ** 2)."""
    assert model.classes is not None
    xp, k, (n, n_columns) = namespace(weight), len(model.classes), weight.shape
    labels = model.label_codes(y)
    guesses = one_hot(xp.reshape(predicted, (-1,)), k, xp.float64)
    guesses = xp.reshape(guesses, (n, n_columns, k)) * weight[:, :, None]
    counts = xp.matmul(one_hot(labels, k, xp.float64).T, xp.reshape(guesses, (n, -1)))
    counts = xp.permute_dims(xp.reshape(counts, (k, n_columns, k)), (1, 0, 2))
    return xp.reshape(counts, (n_columns, -1))


def _sum_label_places(model: BatchedLinear, raw: Any, y: Any, weight: Any) -> Any:
    """Return the weight of the rows whose true label has each rank, (n_columns, n_classes).

    Of equal scores the later label's is the better one, as scikit-learn has it.
    """
    xp, k = namespace(weight), raw.shape[2]
    labels, own = model.label_codes(y)[:, None], raw[:, :, 0]
    for j in range(1, k):
        own = xp.where(labels == j, raw[:, :, j], own)
    place = zeros(own.shape, xp.int64, raw)
    for j in range(k):
        better = (raw[:, :, j] > own) | ((raw[:, :, j] == own) & (labels < j))
        place += cast(better, xp.int64)
    return xp.stack(
        [total(cast(place == j, xp.float64) * weight, axis=0) for j in range(k)], axis=1
    )


def _r2_scores(sums: Array) -> Array:
    n, squared, _, first, second = sums.T
    spread = second - first**2 / n
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(spread > 0, 1 - squared / spread, np.nan)


#: Scores by scikit-learn's names, of the sums of columns; of classifiers and of regressors.
CANDIDATE_SCORES: dict[str, dict[str, Callable[[Array], Array]]] = {
    "classifier": {
        "accuracy": lambda sums: sums[:, 1] / sums[:, 0],
        "neg_log_loss": lambda sums: -sums[:, 2] / sums[:, 0],
    },
    "regressor": {
        "neg_mean_absolute_error": lambda sums: -sums[:, 2] / sums[:, 0],
        "neg_mean_squared_error": lambda sums: -sums[:, 1] / sums[:, 0],
        "neg_root_mean_squared_error": lambda sums: -np.sqrt(sums[:, 1] / sums[:, 0]),
        "r2": _r2_scores,
    },
}


def ranking_scores(scores: Array, signed: Array) -> tuple[float, float]:
    """Return the area under the ROC curve, and the average precision."""
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
    # Trapezoids under the ROC curve, tie by tie.
    area = np.sum(np.diff(wrong, prepend=0.0) * (right - more / 2))
    there = more > 0
    # Average precision: precision at each threshold, weighted by the gain in recall.
    precision = np.sum(more[there] * (right[there] / (right + wrong)[there]))
    return float(area / right[-1] / wrong[-1]), float(precision / right[-1])


@dataclass(frozen=True, eq=False)
class BatchedRankingSolver(Solver):
    """Ranking scores of candidates, over the rows that play a role in their split.

    The solution is of shape (n_columns, n_scores), in the order of the statistic's names; NaN where
    a column has no scores of each label, or too many to be sorted by one process.

    Parameters
    ----------
    w : ndarray of shape (n_columns, n_rows, width)
    splits : ndarray of int of shape (n_columns,), ascending
    role : {TRAIN, TEST}
    statistic : type of BatchedRanks
        What is asked: of two labels, or of several.
    """

    w: Array
    splits: NDArray[np.int64]
    role: int
    statistic: type[BatchedRanks]

    name = "stacked_rankings"

    @property
    def max_passes(self) -> int:
        """Return one pass a candidate, and one that counts rows."""
        return 1 + len(self.w)

    def solve(self, model: BatchedLinear, sums: Sums, start: Array | None) -> Solution:
        """Ask for some columns at a time."""
        statistic = self.statistic
        found = np.full((len(self.w), len(statistic.names)), np.nan)
        n_slots = int(sums(RoleCounts(self.role)).max())
        each = statistic(self.w[:1], self.splits[:1], self.role, max(1, n_slots)).shape(model)[1]
        if not n_slots or each > _MAX_SCORES_PER_PASS:
            return Solution(found)
        n_columns = _MAX_SCORES_PER_PASS // each
        for first in range(0, len(self.w), n_columns):
            some = slice(first, first + n_columns)
            found[some] = sums(statistic(self.w[some], self.splits[some], self.role, n_slots))
        return Solution(found)


@dataclass(frozen=True, eq=False)
class RoleCounts(Statistic):
    """Number of rows that play a role in each split.

    Parameters
    ----------
    role : {TRAIN, TEST}
    """

    role: int
    in_parts: ClassVar[bool] = True

    def shape(self, model: BatchedLinear) -> tuple[int, ...]:
        return (model.roles.n_splits,)

    def add(self, model: BatchedLinear, rows: BatchRows, out: Any, backend: Backend) -> Any:
        xp, (_, roles) = namespace(rows.y), model.parted(rows.y)
        out += total(cast(roles == self.role, xp.float64), axis=0)
        return float("nan")


@dataclass(frozen=True, eq=False)
class BatchedRanks(ReduceScatterStatistic):
    """Raw predictions of a role's rows, which the owner of each candidate ranks.

    Of each column it holds the number of rows, and then their scores and signed weights.

    Parameters
    ----------
    w, splits, role
        As of :class:`BatchedRankingSolver`.
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

    def shape(self, model: BatchedLinear) -> tuple[int, ...]:
        return len(self.w), 1 + 2 * self.n_slots

    def answer_shape(self, model: BatchedLinear) -> tuple[int, ...]:
        return len(self.w), len(self.names)

    def add(self, model: BatchedLinear, rows: BatchRows, out: Any, backend: Backend) -> Any:
        xp = namespace(rows.y)
        tiles = iterate_candidate_tiles(model, self.w, self.splits, self.role, rows, backend, False)
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
                kept = self._kept_columns(
                    model, xp.take(raw[:, columns, :], at, axis=0), xp.take(codes, at, axis=0),
                    xp.take(weight, at, axis=0),
                )  # fmt: skip
                own = slice(int(some.at[columns.start]), int(some.at[columns.stop - 1]) + 1)
                self._append_rows(out, own, kept)
        return float("nan")

    def merge(self, total: Array, part: Array) -> None:
        """Put the rows of others behind those of `total`."""
        n_kept = (part.shape[1] - 1) // self.n_slots
        for split in np.unique(self.splits):
            own = np.flatnonzero(self.splits == split)
            at = slice(own[0], own[-1] + 1)
            self._append_rows(total, at, _split_kept_values(part[at], int(part[own[0], 0]), n_kept))

    def finish(self, model: BatchedLinear, own: Array, at: slice) -> Array:
        """Return the ranking scores of some candidates."""
        n_kept = (own.shape[1] - 1) // self.n_slots
        return np.array(
            [self._rank_candidate(*_split_kept_values(one, int(one[0]), n_kept)) for one in own]
        )

    def _kept_columns(self, model: BatchedLinear, raw: Any, codes: Any, weight: Any) -> list[Any]:
        """Return the columns that are kept of the rows, of each candidate or shared by all.

        Parameters
        ----------
        model : BatchedLinear
        raw : array of shape (n, n_columns, width)
        codes : array of int of shape (n,)
            Numbers of the rows' labels.
        weight : array of float64 of shape (n,)
        """
        signs = cast(2 * codes - 1, namespace(raw).float64)
        return [raw[:, :, 0].T, (signs * weight)[None, :]]

    def _rank_candidate(self, *kept: Array) -> tuple[float, ...]:
        """Return the ranking scores of a candidate from the columns that were kept of its rows."""
        scores, signed = kept
        return ranking_scores(scores, signed)

    def _append_rows(self, out: Any, at: slice, kept: list[Any]) -> None:
        """Put rows behind those of some columns, which are of one split."""
        n, more = int(out[at.start, 0]), kept[0].shape[-1]
        for k, values in enumerate(kept):
            first = 1 + k * self.n_slots + n
            out[at, first : first + more] = cast(values, out.dtype)
        out[at, 0] = float(n + more)


def _split_kept_values(of_columns: Array, n: int, n_kept: int) -> list[Array]:
    """Return the kept columns of the first `n` rows of candidates, or of one."""
    n_slots = (of_columns.shape[-1] - 1) // n_kept
    starts = range(1, 1 + n_kept * n_slots, n_slots)
    return [of_columns[..., start : start + n] for start in starts]


@dataclass(frozen=True, eq=False)
class BatchedClassRanks(BatchedRanks):
    """Class probabilities of a role's rows, which the owner of each candidate ranks.

    Of each column it holds the number of rows, and then their probabilities class by class, the
    numbers of their labels, and their weights.
    """

    names: ClassVar[tuple[str, ...]] = CLASS_RANKINGS

    def shape(self, model: BatchedLinear) -> tuple[int, ...]:
        return len(self.w), 1 + (model.each.width + 2) * self.n_slots

    def _kept_columns(self, model: BatchedLinear, raw: Any, codes: Any, weight: Any) -> list[Any]:
        xp, shape = namespace(raw), raw.shape
        flat = xp.reshape(raw, (-1, shape[2]))
        proba = zeros(flat.shape, flat.dtype, flat)
        model.each.loss.write_proba(flat, proba)
        proba = xp.reshape(proba, shape)
        return [*(proba[:, :, k].T for k in range(shape[2])), codes[None, :], weight[None, :]]

    def _rank_candidate(self, *kept: Array) -> tuple[float, ...]:
        *proba, codes, weight = kept
        n_classes = len(proba)
        of_classes = [
            ranking_scores(proba[k], np.where(codes == k, weight, -weight))[0]
            for k in range(n_classes)
        ]
        shares = np.bincount(codes.astype(np.int64), weight, n_classes)
        if np.isnan(of_classes).any():  # a label that no row has
            return (np.nan,) * len(CLASS_RANKINGS)
        to_rest = np.mean(of_classes), np.average(of_classes, weights=shares)
        if (weight != weight[0]).any():  # weights have no meaning for pairs
            return *map(float, to_rest), np.nan, np.nan
        pairs = list(combinations(range(n_classes), 2))
        areas = [_area_of_pair(proba, codes, *pair) for pair in pairs]
        met = [shares[a] + shares[b] for a, b in pairs]
        return *map(float, to_rest), float(np.mean(areas)), float(np.average(areas, weights=met))


def _area_of_pair(proba: list[Array], codes: Array, a: int, b: int) -> float:
    """Return the mean area of two classes, each ranked by its probability, on the rows of both."""
    rows = np.flatnonzero((codes == a) | (codes == b))
    is_a = codes[rows] == a
    of_a = ranking_scores(proba[a][rows], np.where(is_a, 1.0, -1.0))[0]
    of_b = ranking_scores(proba[b][rows], np.where(is_a, -1.0, 1.0))[0]
    return (of_a + of_b) / 2
