"""Scores of many candidate models on the same rows, in few passes.

:class:`BatchedScores` sums the terms of accuracy, losses and errors over the rows, with all
candidates as columns of one matrix (`batched_gradients`). Ranking scores need the order of all
rows: they are reduce-scattered, which brings all rows' scores of a candidate to the one process
that owns the candidate and sorts them (:class:`BatchedRanks`; :class:`BatchedClassRanks` for more
than two classes).

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
from daskml_dist.models.base import BatchRows, r2_of_sums
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

#: Names of the ranking scores of two classes, in the order of the results.
RANKINGS = ("roc_auc", "average_precision")
#: Most numbers exchanged in one pass: 64 MiB of float64.
_MAX_SCORES_PER_PASS = 1 << 23
#: Names of the ranking scores of more classes, in the order of the results.
CLASS_RANKINGS = ("roc_auc_ovr", "roc_auc_ovr_weighted", "roc_auc_ovo", "roc_auc_ovo_weighted")
#: Sums of a candidate. Classifier: weight of the rows, of right predictions, and losses. Regressor:
#: weight, squared errors, absolute errors, targets, and their squares.
_N_CLASSIFIER_SUMS, _N_REGRESSOR_SUMS = 3, 5
#: Log loss (nats) of the smallest probability to which scikit-learn clips.
_MAX_LOG_LOSS = -float(np.log(np.finfo(np.float64).eps))


class ScoreParts(NamedTuple):
    """Choice of the sums that are computed in addition to the plain ones.

    Parameters
    ----------
    pairs : bool
        Weights of the rows by true and predicted label (a confusion matrix).
    ranks : bool
        Ranking scores.
    places : bool
        Weights of the rows by the rank of their label among the raw predictions of several
        classes, for top-k accuracy.
    """

    pairs: bool = False
    ranks: bool = False
    places: bool = False


#: Only the plain sums.
SUMS_ONLY = ScoreParts()


@dataclass(frozen=True, eq=False)
class BatchedScores(Statistic):
    """Sums of the candidates' scores over the rows that have a role in their split.

    The sum has a row for each candidate: the plain sums; then, if asked for, `places` (with more
    than two classes only), and `pairs` as a flattened confusion matrix.

    Parameters
    ----------
    w : ndarray of shape (n_candidates, n_params, width)
    splits : ndarray of int of shape (n_candidates,), ascending
    role : {TRAIN, TEST}
    pairs, places : bool, default=False
        As of :class:`ScoreParts`.
    """

    w: Array
    splits: NDArray[np.int64]
    role: int
    pairs: bool = False
    places: bool = False
    in_parts: ClassVar[bool] = True

    def shape(self, model: BatchedLinear) -> tuple[int, ...]:
        n_classes = 0 if model.classes is None else len(model.classes)
        extra = (n_classes**2 if self.pairs else 0) + (n_classes if self._sums_places(model) else 0)
        return len(self.w), _N_CLASSIFIER_SUMS + extra if n_classes else _N_REGRESSOR_SUMS

    def add(self, model: BatchedLinear, rows: BatchRows, out: Any, backend: Backend) -> None:
        kernel = is_kernel_supported(model.single_model, rows)
        tiles = iterate_candidate_tiles(
            model, self.w, self.splits, self.role, rows, backend, kernel
        )
        for part, active in tiles:
            if kernel:
                out[active.indices] += self._score_by_kernel(model, part, active)
                continue
            raw = model.single_model.raw_prediction(active.w, part.X, backend)
            raw = namespace(raw).reshape(raw, (part.y.shape[0], len(active.indices), active.width))
            sums = self._score_by_arrays(model, raw, part, active, backend)
            if len(active.indices) == out.shape[0]:
                out += sums
            else:
                out[active.indices, :] += sums

    def _score_by_kernel(
        self, model: BatchedLinear, rows: BatchRows, active: ActiveCandidates
    ) -> Any:
        from daskml_dist.backends.batched_log_loss import add_log_scores

        (w, bias), (y, roles) = active.coefficients(model.single_model), model.split_roles(rows.y)
        weights = cast(roles == self.role, y.dtype)
        if rows.weight is not None:
            weights *= rows.weight[:, None]
        sums = np.zeros((5, len(bias)))
        add_log_scores(
            rows.X, np.ascontiguousarray(y), weights, active.split_ends(roles.shape[1]), w, bias,
            _MAX_LOG_LOSS, sums,
        )  # fmt: skip
        losses, negatives, positives, true_negatives, true_positives = sums
        pairs = [
            true_negatives, negatives - true_negatives, positives - true_positives, true_positives,
        ]  # fmt: skip
        plain = [negatives + positives, true_negatives + true_positives, losses]
        return np.stack([*plain, *(pairs if self.pairs else [])], axis=1)

    def _score_by_arrays(
        self,
        model: BatchedLinear,
        raw: Any,
        rows: BatchRows,
        active: ActiveCandidates,
        backend: Backend,
    ) -> Any:
        xp, (y, roles) = namespace(rows.y), model.split_roles(rows.y)
        mask = xp.take(roles == self.role, backend.to_device(active.splits), axis=1)
        weight = cast(mask, xp.float64)
        if rows.weight is not None:
            weight = weight * cast(rows.weight, xp.float64)[:, None]
        predicted = None
        if model.classes is not None:
            values, predicted = _label_values(model, raw, y)
        else:
            # The terms of `_N_REGRESSOR_SUMS`.
            y64 = cast(y, xp.float64)[:, None]
            each_row = ones(raw.shape[:2], xp.float64, raw)
            residual = y64 - cast(model.single_model.loss.inverse_link(raw[:, :, 0]), xp.float64)
            values = [each_row, residual**2, xp.abs(residual), y64 * each_row, y64**2 * each_row]
        # `where` first: a value that is not finite in a row of another role must not count.
        sums = xp.stack([total(xp.where(mask, v, 0.0) * weight, axis=0) for v in values], axis=1)
        if predicted is not None and self._sums_places(model):
            sums = xp.concat([sums, _sum_label_places(model, raw, y, weight)], axis=1)
        if predicted is None or not self.pairs:
            return sums
        return xp.concat([sums, _sum_label_pairs(model, predicted, y, weight)], axis=1)

    def _sums_places(self, model: BatchedLinear) -> bool:
        return self.places and model.classes is not None and len(model.classes) > 2


def _label_values(model: BatchedLinear, raw: Any, y: Any) -> tuple[list[Any], Any]:
    """Return the terms of a classifier's sums, (n, n_active) each, and predicted class indices."""
    xp, loss, (n, n_active, width) = namespace(raw), model.single_model.loss, raw.shape
    each_row = ones((n, n_active), xp.float64, raw)
    predicted = xp.argmax(raw, axis=2) if width > 1 else cast(raw[:, :, 0] > 0, xp.int64)
    is_right = cast(predicted == model.label_codes(y)[:, None], xp.float64)
    # A regression to the labels' signs, such as ridge, has no log loss.
    if not model.single_model.n_classes:
        return [each_row, is_right, zeros(is_right.shape, xp.float64, raw)], predicted
    if width > 1:
        flat = xp.reshape(raw, (n * n_active, width))
        targets = model.single_model.targets(cast(xp.repeat(y, n_active), xp.int32), raw.dtype)
    else:
        flat, targets = xp.reshape(raw, (n * n_active,)), xp.repeat(y, n_active)
    losses = xp.reshape(loss.value(targets, cast(flat, xp.float64)), is_right.shape)
    losses = xp.where(losses < _MAX_LOG_LOSS, losses, _MAX_LOG_LOSS)
    return [each_row, is_right, losses], predicted


def _sum_label_pairs(model: BatchedLinear, predicted: Any, y: Any, weight: Any) -> Any:
    """Return weights by true and predicted label, of shape (n_active, n_classes ** 2)."""
    assert model.classes is not None
    xp, k, (n, n_active) = namespace(weight), len(model.classes), weight.shape
    labels = model.label_codes(y)
    # Confusion matrices of all candidates as one product of one-hot labels and predictions.
    guesses = one_hot(xp.reshape(predicted, (-1,)), k, xp.float64)
    guesses = xp.reshape(guesses, (n, n_active, k)) * weight[:, :, None]
    counts = xp.matmul(one_hot(labels, k, xp.float64).T, xp.reshape(guesses, (n, -1)))
    counts = xp.permute_dims(xp.reshape(counts, (k, n_active, k)), (1, 0, 2))
    return xp.reshape(counts, (n_active, -1))


def _sum_label_places(model: BatchedLinear, raw: Any, y: Any, weight: Any) -> Any:
    """Return the weight of the rows whose true label has each rank, (n_active, n_classes).

    Rank 0 has the best score. Of equal scores the later label's ranks first, as in scikit-learn.
    """
    xp, k = namespace(weight), raw.shape[2]
    labels, true_scores = model.label_codes(y)[:, None], raw[:, :, 0]
    for j in range(1, k):
        true_scores = xp.where(labels == j, raw[:, :, j], true_scores)
    # The rank of the true label is the number of labels that are better: no sort is needed.
    rank = zeros(true_scores.shape, xp.int64, raw)
    for j in range(k):
        is_better = (raw[:, :, j] > true_scores) | ((raw[:, :, j] == true_scores) & (labels < j))
        rank += cast(is_better, xp.int64)
    return xp.stack([total(cast(rank == j, xp.float64) * weight, axis=0) for j in range(k)], axis=1)


def _r2_scores(sums: Array) -> Array:
    weight, squared_errors, _, targets, squares = sums.T
    return r2_of_sums(weight, squared_errors, targets, squares)


#: Functions of the plain sums of candidates, by scikit-learn's names of the scores.
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
    """Return the area under the ROC curve, and the average precision.

    `signed` are the rows' weights, negative for rows of the negative class. Both are NaN if a score
    is, or if a class has no rows.
    """
    # Ascending order ends with NaN, so descending order begins with it.
    order = np.argsort(scores)[::-1]
    scores, signed = scores[order], signed[order]
    if not len(scores) or np.isnan(scores[0]):
        return np.nan, np.nan
    # True and false positives at each threshold: rows of equal score pass it together.
    last = np.append(np.flatnonzero(scores[1:] != scores[:-1]), len(scores) - 1)
    true_pos = np.cumsum(np.maximum(signed, 0.0))[last]
    false_pos = np.cumsum(np.maximum(-signed, 0.0))[last]
    if not (true_pos[-1] > 0 and false_pos[-1] > 0):
        return np.nan, np.nan
    gain = np.diff(true_pos, prepend=0.0)
    # Trapezoids under the ROC curve (Fawcett, algorithm 2).
    area = np.sum(np.diff(false_pos, prepend=0.0) * (true_pos - gain / 2))
    gains = gain > 0
    # Average precision: precision at each threshold, weighted by the gain in recall.
    precision = np.sum(gain[gains] * (true_pos[gains] / (true_pos + false_pos)[gains]))
    return float(area / true_pos[-1] / false_pos[-1]), float(precision / true_pos[-1])


@dataclass(frozen=True, eq=False)
class BatchedRankingSolver(Solver):
    """Solver that finds ranking scores of candidates over the rows that have a role in their split.

    The solution has shape (n_candidates, n_scores), in the order of the statistic's names; NaN if a
    candidate lacks rows of a label, or has more rows than a pass may exchange.

    Parameters
    ----------
    w : ndarray of shape (n_candidates, n_params, width)
    splits : ndarray of int of shape (n_candidates,), ascending
    role : {TRAIN, TEST}
    statistic : type of BatchedRanks
        :class:`BatchedRanks` of two classes, or :class:`BatchedClassRanks`.
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
        """Rank as many candidates in a pass as messages may hold."""
        statistic = self.statistic
        scores = np.full((len(self.w), len(statistic.names)), np.nan)
        # The sum has room for the rows of the largest split, so these are counted first.
        n_slots = int(sums(RoleCounts(self.role)).max())
        width = statistic(self.w[:1], self.splits[:1], self.role, max(1, n_slots)).shape(model)[1]
        if not n_slots or width > _MAX_SCORES_PER_PASS:
            return Solution(scores)
        n_at_once = _MAX_SCORES_PER_PASS // width
        for first in range(0, len(self.w), n_at_once):
            batch = slice(first, first + n_at_once)
            scores[batch] = sums(statistic(self.w[batch], self.splits[batch], self.role, n_slots))
        return Solution(scores)


@dataclass(frozen=True, eq=False)
class RoleCounts(Statistic):
    """Number of rows that have a role in each split.

    Parameters
    ----------
    role : {TRAIN, TEST}
    """

    role: int
    in_parts: ClassVar[bool] = True

    def shape(self, model: BatchedLinear) -> tuple[int, ...]:
        return (model.roles.n_splits,)

    def add(self, model: BatchedLinear, rows: BatchRows, out: Any, backend: Backend) -> None:
        xp, (_, roles) = namespace(rows.y), model.split_roles(rows.y)
        out += total(cast(roles == self.role, xp.float64), axis=0)


@dataclass(frozen=True, eq=False)
class BatchedRanks(ReduceScatterStatistic):
    """Raw predictions of a role's rows, which the owner of each candidate ranks.

    A "sum" that appends instead of adding: its row for a candidate holds the number of rows so far,
    then `n_slots` places for each kept column: the rows' scores, and their weights with the sign of
    the label. Zeros are its neutral element, as a merge needs.

    Parameters
    ----------
    w, splits, role
        As of :class:`BatchedRankingSolver`.
    n_slots : int
        Most rows of a candidate.
    """

    w: Array
    splits: NDArray[np.int64]
    role: int
    n_slots: int

    #: Names of the ranking scores, in the order of the results.
    names: ClassVar[tuple[str, ...]] = RANKINGS
    additive: ClassVar[bool] = False
    remembered: ClassVar[bool] = False
    in_parts: ClassVar[bool] = True

    def shape(self, model: BatchedLinear) -> tuple[int, ...]:
        return len(self.w), 1 + 2 * self.n_slots

    def answer_shape(self, model: BatchedLinear) -> tuple[int, ...]:
        return len(self.w), len(self.names)

    def add(self, model: BatchedLinear, rows: BatchRows, out: Any, backend: Backend) -> None:
        xp = namespace(rows.y)
        tiles = iterate_candidate_tiles(model, self.w, self.splits, self.role, rows, backend, False)
        for part, active in tiles:
            raw = model.single_model.raw_prediction(active.w, part.X, backend)
            raw = xp.reshape(raw, (part.y.shape[0], len(active.indices), active.width))
            y, roles = model.split_roles(part.y)
            codes, weight = model.label_codes(y), ones(y.shape[:1], xp.float64, raw)
            if part.weight is not None:
                weight = weight * cast(part.weight, xp.float64)
            for split in np.unique(active.splits).tolist():
                # Rows of weight 0 are left out: without a sign they would have no class.
                row_indices = xp.nonzero((roles[:, split] == self.role) & (weight != 0))[0]
                # The candidates of a split are adjacent, among the active ones and among all.
                split_columns = np.flatnonzero(active.splits == split)
                columns = slice(int(split_columns[0]), int(split_columns[-1]) + 1)
                columns_kept = self._kept_columns(
                    model, xp.take(raw[:, columns, :], row_indices, axis=0),
                    xp.take(codes, row_indices, axis=0), xp.take(weight, row_indices, axis=0),
                )  # fmt: skip
                positions = slice(
                    int(active.indices[columns.start]), int(active.indices[columns.stop - 1]) + 1
                )
                self._append_rows(out, positions, columns_kept)

    def merge(self, total: Array, part: Array) -> None:
        """Append the rows of another part to those of `total`."""
        n_kept = (part.shape[1] - 1) // self.n_slots
        for split in np.unique(self.splits):
            split_candidates = np.flatnonzero(self.splits == split)
            positions = slice(split_candidates[0], split_candidates[-1] + 1)
            # All candidates of a split have the same number of rows.
            self._append_rows(
                total,
                positions,
                _split_kept_values(part[positions], int(part[split_candidates[0], 0]), n_kept),
            )

    def finish(self, model: BatchedLinear, own: Array, at: slice) -> Array:
        """Return the ranking scores of some candidates."""
        n_kept = (own.shape[1] - 1) // self.n_slots
        return np.array(
            [
                self._rank_candidate(*_split_kept_values(values, int(values[0]), n_kept))
                for values in own
            ]
        )

    def _kept_columns(self, model: BatchedLinear, raw: Any, codes: Any, weight: Any) -> list[Any]:
        """Return the kept values of rows: arrays (n_candidates, n), or (1, n) if shared."""
        signs = cast(2 * codes - 1, namespace(raw).float64)
        return [raw[:, :, 0].T, (signs * weight)[None, :]]

    def _rank_candidate(self, *row_values: Array) -> tuple[float, ...]:
        """Return the ranking scores of a candidate from the values kept of its rows."""
        scores, signed = row_values
        return ranking_scores(scores, signed)

    def _append_rows(self, out: Any, candidate_slice: slice, row_values: list[Any]) -> None:
        """Append rows to those of some candidates, all of one split."""
        n, n_new = int(out[candidate_slice.start, 0]), row_values[0].shape[-1]
        for k, values in enumerate(row_values):
            first = 1 + k * self.n_slots + n
            out[candidate_slice, first : first + n_new] = cast(values, out.dtype)
        out[candidate_slice, 0] = float(n + n_new)


def _split_kept_values(of_columns: Array, n: int, n_kept: int) -> list[Array]:
    """Return the values kept of the first `n` rows of candidates, or of one candidate."""
    n_slots = (of_columns.shape[-1] - 1) // n_kept
    starts = range(1, 1 + n_kept * n_slots, n_slots)
    return [of_columns[..., start : start + n] for start in starts]


@dataclass(frozen=True, eq=False)
class BatchedClassRanks(BatchedRanks):
    """Class probabilities of a role's rows, which the owner of each candidate ranks.

    It keeps the rows' probabilities of each class, their class indices and their weights.
    """

    names: ClassVar[tuple[str, ...]] = CLASS_RANKINGS

    def shape(self, model: BatchedLinear) -> tuple[int, ...]:
        return len(self.w), 1 + (model.single_model.width + 2) * self.n_slots

    def _kept_columns(self, model: BatchedLinear, raw: Any, codes: Any, weight: Any) -> list[Any]:
        xp, shape = namespace(raw), raw.shape
        flat = xp.reshape(raw, (-1, shape[2]))
        proba = zeros(flat.shape, flat.dtype, flat)
        model.single_model.loss.write_proba(flat, proba)
        proba = xp.reshape(proba, shape)
        return [*(proba[:, :, k].T for k in range(shape[2])), codes[None, :], weight[None, :]]

    def _rank_candidate(self, *row_values: Array) -> tuple[float, ...]:
        *proba, codes, weight = row_values
        n_classes = len(proba)
        # One versus rest: the mean over the classes, plain or weighted by their prevalence (Provost
        # and Domingos).
        areas = [
            ranking_scores(proba[k], np.where(codes == k, weight, -weight))[0]
            for k in range(n_classes)
        ]
        prevalence = np.bincount(codes.astype(np.int64), weight, n_classes)
        if np.isnan(areas).any():  # a label that no row has
            return (np.nan,) * len(CLASS_RANKINGS)
        to_rest = float(np.mean(areas)), float(np.average(areas, weights=prevalence))
        # scikit-learn's one versus one takes no sample weights.
        if (weight != weight[0]).any():
            return *to_rest, np.nan, np.nan
        # One versus one (Hand and Till's M): the mean over the pairs of classes.
        pairs = list(combinations(range(n_classes), 2))
        pair_areas = [_area_of_pair(proba, codes, *pair) for pair in pairs]
        of_pairs = [prevalence[a] + prevalence[b] for a, b in pairs]
        means = np.mean(pair_areas), np.average(pair_areas, weights=of_pairs)
        return *to_rest, *map(float, means)


def _area_of_pair(proba: list[Array], codes: Array, a: int, b: int) -> float:
    """Return the mean of A(a|b) and A(b|a) on the rows of two classes (Hand and Till)."""
    rows = np.flatnonzero((codes == a) | (codes == b))
    is_a = codes[rows] == a
    of_a = ranking_scores(proba[a][rows], np.where(is_a, 1.0, -1.0))[0]
    of_b = ranking_scores(proba[b][rows], np.where(is_a, -1.0, 1.0))[0]
    return (of_a + of_b) / 2
