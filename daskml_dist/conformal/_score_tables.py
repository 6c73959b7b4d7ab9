"""Distributions of conformity scores, whose quantiles are bounds that cover new rows.

Blocks summarise the scores of their rows, and summaries are merged. Up to `MAX_KEPT_SCORES` scores
are kept unchanged; beyond that, a sketch of each kind of scores. Then the quantile at a requested
level is found exactly by one more pass (`select_ranks`), and any other one from the sketch, whose
error bound is added to the rank: such intervals are a little wider, and never cover less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.collection import Collection
from daskml_dist.data.column_statistics import SKETCH_SIZE, ColumnSketch, merge_sketches
from daskml_dist.data.order_statistics import select_ranks
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.data.row_checks import make_no_rows_error
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.parameters.checks import check_number

Floats = NDArray[np.float64]

#: Most scores that are kept individually, 16 bytes each (16 MiB); beyond that a sketch is kept.
MAX_KEPT_SCORES = 2**20
#: Relative tolerance of products of `alpha` and numbers of rows that should be whole: 0.29 * 100 is
#: a little less than 29 in floats.
_ROUNDING = 1e-9


class ScoreKey(NamedTuple):
    """Kind of scores that are calibrated together.

    Parameters
    ----------
    member : int
        Number of the fit whose predictions are scored; 0 if the scores of all fits are pooled.
    group : object
        Group of rows; None without groups.
    side : int
        0, or 1 for the upper side of an interval whose sides are calibrated separately.
    """

    member: int
    group: Any
    side: int


@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """Scores of the rows of a block, each by a fit that was not trained on the row.

    Parameters
    ----------
    scores : ndarray of float64 of shape (n, n_sides)
    members : ndarray of int64 of shape (n,)
        Number of the fit.
    groups : ndarray of shape (n,), or None
    ratios : ndarray of float64 of shape (n,), or None
        Likelihood ratios of the rows.
    """

    scores: Floats
    members: NDArray[np.int64]
    groups: NDArray[Any] | None
    ratios: Floats | None


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """Distribution of calibration scores of one kind.

    Parameters
    ----------
    values : ndarray of float64, sorted
    reached : ndarray of float64
        Number of rows (or weight) with scores up to each value.
    error : float
        Largest error by which `reached` may be too large; 0 if all scores were kept.
    exact : list of (float, float)
        Levels whose quantiles were found exactly, and these quantiles.
    """

    values: Floats
    reached: Floats
    error: float = 0.0
    exact: list[tuple[float, float]] = field(default_factory=list)

    @classmethod
    def from_sketch(cls, sketch: ColumnSketch) -> ScoreTable:
        """Return the distribution in a sketch."""
        return cls(sketch.values, np.cumsum(sketch.weights), sketch.error)

    @property
    def weight(self) -> float:
        """Number of rows, or the sum of their weights."""
        return float(self.reached[-1]) if len(self.reached) else 0.0

    def quantile(self, alpha: float) -> float:
        """Return the score that a new row exceeds with a probability of at most `alpha`."""
        for level, score in self.exact:
            if level == alpha:
                return score
        rank = find_conformal_rank(self.weight, alpha)
        return float(self.find_score(np.array([rank + self.error]))[0])

    def weighted_quantiles(self, alpha: float, ratios: Floats) -> Floats:
        """Return the quantile for each of some new rows, given their likelihood ratios.

        R. Tibshirani, R. Foygel Barber, E. Candes and A. Ramdas, "Conformal prediction under
        covariate shift", NeurIPS 2019: the new row's own weight is placed at infinity.
        """
        total = self.weight + ratios
        weights = (1 - alpha) * total
        # Rounded down a little, so that equal weights give the ranks of rows.
        scores = self.find_score(weights - _ROUNDING * total + self.error)
        # If no row has a weight, the new row has no bound.
        return np.where(total > 0, scores, np.inf)

    def find_score(self, target_weights: Floats) -> Floats:
        """Return the least score that reaches each of the given weights; infinity if none does."""
        positions = np.searchsorted(self.reached, target_weights, side="left")
        padded = np.append(self.values, np.inf)
        return np.asarray(padded[np.minimum(positions, len(self.values))])

    def count_below(self, scores: Floats) -> Floats:
        """Return a lower bound of the number of rows with scores below each of the given scores."""
        positions = np.searchsorted(self.values, scores, side="left")
        counts = np.append(0.0, self.reached)[positions]
        # A lower bound, so that sets keep a label in doubt.
        return np.asarray(np.maximum(counts - self.error, 0.0))


def find_conformal_rank(n_rows: float, alpha: float) -> int:
    """Return the rank ``ceil((1 - alpha) * (n_rows + 1))`` of the score that bounds a new row's."""
    n = round(n_rows)
    # As n + 1 - floor(alpha (n + 1)), which rounds the small product and not the large one.
    return int(n + 1 - np.floor(alpha * (n + 1) * (1 + _ROUNDING)))


def check_alpha(alpha: Any) -> float:
    """Return a share of rows that may be outside, checked to be in (0, 1)."""
    check_number("alpha", alpha, lambda v: 0 < v < 1, "between 0 and 1, both excluded")
    return float(alpha)


def check_enough_rows(n_rows: float, alpha: float, group: Any = None) -> None:
    """Raise if there are too few rows for finite intervals, with the coverage that is possible."""
    n = round(n_rows)
    if find_conformal_rank(n, alpha) <= n:
        return
    needed = int(np.ceil(1 / alpha * (1 - _ROUNDING))) - 1
    of_group = "" if group is None else f" of group {group!r}"
    possible = (
        f"these can cover {n / (n + 1):.4g} of new rows at most (alpha >= {1 / (n + 1):.4g})"
        if n
        else "no coverage can be promised for new rows"
    )
    raise InvalidDataError(
        f"There are {n} calibration rows{of_group}, and alpha={alpha:g} needs {needed} or more: "
        f"{possible}. Raise alpha, calibrate on more rows, or merge groups."
    )


# --- passes over the scores of blocks ----------------------------------------------------------


def tabulate_scores(
    blocks: Collection, alphas: tuple[float, ...], n_sides: int, *, weighted: bool
) -> ScoreTables:
    """Return the distributions of scores, in one pass over blocks of `HeldOutScores`.

    `alphas` are levels whose quantiles should be exact, which needs another pass if there are more
    scores than are kept; not for `weighted` rows, whose quantiles depend on the new row.
    """
    sketches = reduce_parts(blocks, _summarize_scores, _merge_summaries)
    if not sketches:
        raise make_no_rows_error(": there is nothing to calibrate with")
    tables = {key: ScoreTable.from_sketch(sketch) for key, sketch in sketches.items()}
    # A sketch without error holds all scores, so its quantiles are already exact.
    if not weighted and any(sketch.error for sketch in sketches.values()):
        ranks = {
            key: [find_conformal_rank(table.weight, alpha) for alpha in alphas]
            for key, table in tables.items()
        }
        quantiles = select_ranks(blocks, _read_scores, sketches, ranks)
        for key, table in tables.items():
            for alpha, rank in zip(alphas, ranks[key], strict=True):
                limit = quantiles[key][rank] if rank <= table.weight else np.inf
                table.exact.append((alpha, limit))
    return ScoreTables([list(key) for key in tables], list(tables.values()), n_sides)


def _split_scores(block_scores: HeldOutScores) -> dict[ScoreKey, tuple[Floats, Floats | None]]:
    """Return the scores of a block and their weights, by kind."""
    n, n_sides = block_scores.scores.shape
    if not n:
        return {}
    labels, codes = (
        ([None], np.zeros(n, np.int64))
        if block_scores.groups is None
        else np.unique(block_scores.groups, return_inverse=True)
    )
    # Sort the rows by kind: there may be as many kinds as rows.
    order = np.lexsort((codes, block_scores.members))
    is_last = (np.diff(block_scores.members[order]) != 0) | (np.diff(codes[order]) != 0)
    parts = {}
    for rows in np.split(order, np.flatnonzero(is_last) + 1):
        member, label = int(block_scores.members[rows[0]]), labels[codes[rows[0]]]
        weights = None if block_scores.ratios is None else block_scores.ratios[rows]
        group = label.item() if isinstance(label, np.generic) else label
        for side in range(n_sides):
            parts[ScoreKey(member, group, side)] = block_scores.scores[rows, side], weights
    return parts


def _read_scores(
    index: int, block_scores: HeldOutScores | None, y: Any, w: Any
) -> Mapping[Any, Floats]:
    """Return the scores of a block by kind."""
    return (
        {}
        if block_scores is None
        else {key: scores for key, (scores, _) in _split_scores(block_scores).items()}
    )


def _summarize_scores(
    index: int, block_scores: HeldOutScores | None, y: Any, w: Any
) -> dict[ScoreKey, ColumnSketch] | None:
    """Return the sorted scores of a block by kind; sketches if there are many."""
    parts: dict[ScoreKey, ColumnSketch] = {}
    if block_scores is None:
        return None
    for key, (scores, weights) in _split_scores(block_scores).items():
        order = np.argsort(scores, kind="stable")
        counts = np.ones(len(scores)) if weights is None else weights[order]
        parts[key] = ColumnSketch(scores[order], counts)
    return _bound_size(parts) if parts else None


def _merge_summaries(
    block_sketches: list[dict[ScoreKey, ColumnSketch]],
) -> dict[ScoreKey, ColumnSketch]:
    """Merge the scores of blocks, kind by kind."""
    by_key: dict[ScoreKey, list[ColumnSketch]] = {}
    for part in block_sketches:
        for key, sketch in part.items():
            by_key.setdefault(key, []).append(sketch)
    return _bound_size({key: _join_sorted(sketches) for key, sketches in by_key.items()})


def _join_sorted(sketches: list[ColumnSketch]) -> ColumnSketch:
    """Return the sorted scores of several summaries, with none left out."""
    if len(sketches) == 1:
        return sketches[0]
    values = np.concatenate([sketch.values for sketch in sketches])
    weights = np.concatenate([sketch.weights for sketch in sketches])
    order = np.argsort(values, kind="stable")
    return ColumnSketch(values[order], weights[order], sum(s.error for s in sketches))


def _bound_size(sketches: dict[ScoreKey, ColumnSketch]) -> dict[ScoreKey, ColumnSketch]:
    """Return the summaries, shortened if they hold more scores than are kept."""
    if sum(len(sketch.values) for sketch in sketches.values()) <= MAX_KEPT_SCORES:
        return sketches
    return {
        key: merge_sketches([sketch]) if len(sketch.values) > SKETCH_SIZE else sketch
        for key, sketch in sketches.items()
    }


@dataclass(frozen=True, eq=False)
class ScoreTables:
    """Distributions of scores of all kinds: for each fit, group and side.

    Parameters
    ----------
    keys : list of list
        Fields of `ScoreKey`.
    distributions : list of ScoreTable
        Distribution of each key.
    n_sides : int
        2 if both sides of an interval are calibrated separately, each to half of `alpha`.
    """

    keys: list[list[Any]]
    distributions: list[ScoreTable]
    n_sides: int

    # Lists, since the formats of model files have no mappings of tuples.
    @property
    def tables(self) -> dict[ScoreKey, ScoreTable]:
        """Distributions by key."""
        keys = (ScoreKey(*key) for key in self.keys)
        return dict(zip(keys, self.distributions, strict=True))

    @property
    def groups(self) -> list[Any]:
        """Groups of rows, sorted; [None] without groups."""
        groups = {ScoreKey(*key).group for key in self.keys}
        return [None] if groups == {None} else sorted(groups)

    def share_of_side(self, alpha: float) -> float:
        """Return the share of rows that may be beyond one side."""
        return alpha / self.n_sides

    def check_enough(self, alpha: float) -> None:
        """Raise if the rows of a group are too few for `alpha`."""
        n_rows = dict.fromkeys(self.groups, 0.0)
        for key, table in self.tables.items():
            if key.side == 0:
                n_rows[key.group] += table.weight
        for group, n in n_rows.items():
            check_enough_rows(n, self.share_of_side(alpha), group)

    def limits_of_rows(
        self, side: int, alpha: float, groups: NDArray[Any] | None, ratios: Floats | None,
        n_rows: int,
    ) -> Floats:  # fmt: skip
        """Return the quantile that bounds the score of each of the given rows, for pooled fits."""
        share, tables, limits = self.share_of_side(alpha), self.tables, np.empty(n_rows)
        for group, rows in iterate_groups(groups, self.groups):
            table = tables[ScoreKey(0, group, side)]
            limits[rows] = (
                table.quantile(share)
                if ratios is None
                else table.weighted_quantiles(share, ratios[rows])
            )
        return limits


def iterate_groups(groups: NDArray[Any] | None, known_groups: list[Any]) -> list[tuple[Any, Any]]:
    """Return (group, positions of its rows) for rows; raise for a group that is not known."""
    if groups is None:
        return [(None, slice(None))]
    labels, codes = np.unique(groups, return_inverse=True)
    if unknown := set(labels.tolist()).difference(known_groups):
        raise InvalidDataError(
            f"group_by gives the group {min(unknown)!r}, which no calibration row has. Groups of "
            f"the calibration are {known_groups[:10]}."
        )
    if not len(labels):
        return []
    # Positions sorted by group, by one sort: there may be as many groups as rows.
    order, ends = np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))
    return list(zip(labels.tolist(), np.split(order, ends[:-1]), strict=True))


def check_likelihood_ratios(user_ratios: Any, n_rows: int) -> Floats:
    """Return likelihood ratios of rows, checked to be positive numbers, one for each row."""
    ratios = np.asarray(user_ratios, np.float64)
    if ratios.shape != (n_rows,) or not np.isfinite(ratios).all() or (ratios < 0).any():
        raise InvalidParameterError(
            f"likelihood_ratio gives {ratios.shape} numbers for {n_rows} rows, or some that are "
            "negative, NaN or infinite. Give a number >= 0 for each row."
        )
    return ratios
