"""Losses of gradient boosting, and scores after each iteration for early stopping and the user.

A :class:`RowBoostLoss` computes a loss of `daskml_dist.losses` a tile of rows at a time. The
gradient of a row has the same bits on every machine and GPU, in any tile: it uses only operations
that IEEE 754 rounds correctly (:meth:`Loss.derive`). Sums of floats are computed in fixed-point
integers (:func:`sum_exactly`), so they do not depend on the order of the rows or the number of
trainers.

Without a scorer, the score is minus the mean loss, an all-reduce. A scorer needs all predictions:
the rows that it scores are gathered to one trainer (:class:`_GatheredRows`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.trees import TreeRows, largest_sizes
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError
from daskml_dist.losses.base import Loss
from daskml_dist.models.bins import draw_by_hash
from daskml_dist.solvers.binning import BinnedRows, iterate_tiles
from daskml_dist.solvers.own_rows import Array, OwnRows, gather_to_first

#: Values, the group of each (from 0), and their weights or None.
GroupedValues = tuple[Array, Array, Array | None]
#: The sign bit of a float64.
_SIGN_BIT = np.uint64(1 << 63)
#: Bits of the mantissa of a float64: sums of integers below 2**52 are exact in float64.
_EXACT_BITS = 52
#: Returns `m` arrays, each with a summand for every row of a slice.
_MakeSummands = Callable[[BinnedRows, slice], Sequence[Array]]


def sum_exactly(
    rows: OwnRows, binned_lanes: Sequence[BinnedRows], make_summands: _MakeSummands, m: int
) -> NDArray[np.float64]:
    """Return sums over all trainers' rows in fixed-point arithmetic, the same in any order.

    Parameters
    ----------
    rows : OwnRows
    binned_lanes : sequence of BinnedRows
        Binned rows of each own lane.
    make_summands : callable
        Computes the summands of a slice of rows.
    m : int
        Number of sums.

    Returns
    -------
    ndarray of shape (m,)
        NaN if any summand is not finite.
    """

    def compute_summands(binned: BinnedRows) -> tuple[Array, Array]:
        values: Array | None = binned.extra.get("summed")
        if values is None or len(values) < m:
            # The buffer is kept for the next iteration.
            binned.extra["summed"] = values = binned.allocate_zeros((m, binned.n), np.float64)
        values, largest = values[:m], np.zeros(m)
        for tile in iterate_tiles(binned.n):
            for k, summand in enumerate(make_summands(binned, tile)):
                values[k, tile] = summand
                largest[k] = np.maximum(largest[k], np.abs(summand).max(initial=0.0))
        return values, largest

    summands = rows.map_lanes(compute_summands, binned_lanes)
    largest = np.max([np.zeros(m), *(lane_largest for _, lane_largest in summands)], axis=0)
    return sum_values_exactly(rows, [values for values, _ in summands], m, largest)


def sum_values_exactly(
    rows: OwnRows, lane_values: Sequence[Array], m: int, largest: Array | None = None
) -> NDArray[np.float64]:
    """Return sums over all trainers' values, as `sum_exactly`.

    Parameters
    ----------
    rows : OwnRows
    lane_values : sequence of ndarray of float64 of shape (m, n)
        Over all trainers, each sum has at most `n_rows` values.
    m : int
    largest : ndarray of shape (m,), optional
        Largest absolute value of the own values, if known.
    """
    if largest is None:
        largest = np.max(
            [np.zeros(m), *(np.abs(p).max(axis=1, initial=0.0) for p in lane_values)], axis=0
        )
    largest = rows.max_trainers(largest)
    if not np.isfinite(largest).all():
        return np.full(m, np.nan)
    # A common power of two scales the summands below 2**bits; n_rows of them stay below 2**61.
    n_bits = 61 - int(rows.n_rows).bit_length()
    # At most 2**1023, by which tiny summands have fewer bits: all of those that float64 has.
    scales = np.ldexp(1.0, np.minimum(n_bits - np.frexp(largest)[1], 1023))

    def sum_scaled(values: Array) -> NDArray[np.int64]:
        total = np.zeros(m, np.int64)
        for tile in iterate_tiles(values.shape[1]):
            total += np.rint(values[:, tile] * scales[:, None]).astype(np.int64).sum(axis=1)
        return total

    own_sums = rows.map_lanes(sum_scaled, lane_values)
    return np.asarray(
        rows.sum_trainers(np.sum([np.zeros(m, np.int64), *own_sums], axis=0)) / scales
    )


def group_quantiles(
    rows: OwnRows,
    lane_values: Sequence[GroupedValues],
    n_groups: int,
    quantile: float,
    *,
    middle: bool,
) -> NDArray[np.float64]:
    """Return a quantile of the values of each group, over all trainers.

    Parameters
    ----------
    rows : OwnRows
    lane_values : sequence of GroupedValues
        Values of each own lane.
    n_groups : int
    quantile : float
        The quantile, from 0 to 1.
    middle : bool
        Whether to interpolate between two order statistics, as scikit-learn's losses do without
        weights. False: the least value whose cumulated weight reaches the share of the group's
        weight, as they do with weights.

    Returns
    -------
    ndarray of shape (n_groups,)
        0 for a group without weight.
    """
    keys = [_order_preserving_keys(values) for values, _, _ in lane_values]
    groups = [row_groups.astype(np.int64) for _, row_groups, _ in lane_values]
    weights = _integer_weights(rows, [weight for *_, weight in lane_values], [len(k) for k in keys])
    own_weights = sum(
        (np.bincount(g, w, n_groups) for g, w in zip(groups, weights, strict=True)),
        np.zeros(n_groups),
    )
    totals = rows.sum_trainers(own_weights)
    # Cumulated weights to select; at least 0.5, so that the quantile 0 selects a value.
    targets = [np.maximum(quantile * totals, 0.5)]
    fraction = np.zeros(n_groups)
    if middle:
        # Linear interpolation between two order statistics, as in numpy.quantile.
        position = quantile * np.maximum(totals - 1, 0)
        fraction = position - np.floor(position)
        targets = [
            np.floor(position) + 1,
            np.minimum(np.floor(position) + 2, np.maximum(totals, 1)),
        ]
    selected = [
        _values_of_keys(_select_keys(rows, keys, groups, weights, target)) for target in targets
    ]
    lower, upper = selected[0], selected[-1]
    # From the nearer end, as numpy.quantile does to avoid cancellation.
    interpolated = np.where(
        fraction < 0.5, lower + (upper - lower) * fraction, upper - (upper - lower) * (1 - fraction)
    )
    return np.where(totals > 0, np.where(fraction > 0, interpolated, lower), 0.0)


def _integer_weights(rows: OwnRows, weights: list[Array | None], counts: list[int]) -> list[Array]:
    """Return weights scaled to integers whose float64 sums are exact; None becomes ones."""
    lane_largest = [0.0 if w is None else float(w.max(initial=0.0)) for w in weights]
    largest = float(rows.max_trainers(np.array(lane_largest).max(keepdims=True))[0])
    if not largest:
        return [np.ones(n) for n in counts]
    n_bits = _EXACT_BITS - int(rows.n_rows).bit_length()
    scale = math.ldexp(1.0, n_bits - math.frexp(largest)[1])
    return [
        np.ones(n) if w is None else np.rint(w * scale)
        for w, n in zip(weights, counts, strict=True)
    ]


def _select_keys(
    rows: OwnRows, keys: list[Array], groups: list[Array], weights: list[Array], targets: Array
) -> NDArray[np.uint64]:
    """Return each group's least key whose cumulated weight reaches the group's target."""
    n, selected, targets = len(targets), np.zeros(len(targets), np.uint64), targets.copy()
    # Radix select: a byte at a time, from the most significant. Trainers exchange only one
    # histogram of 256 weights per group.
    for shift in range(56, -8, -8):
        digits = [((k >> np.uint64(shift)) & np.uint64(255)).astype(np.int64) for k in keys]
        histograms = np.zeros(n * 256)
        for digit, group, weight in zip(digits, groups, weights, strict=True):
            histograms += np.bincount(group * 256 + digit, weight, n * 256)
        cumulated = rows.sum_trainers(histograms).reshape(n, 256).cumsum(axis=1)
        digit = (cumulated < targets[:, None]).sum(axis=1).clip(max=255)
        targets -= np.where(digit > 0, cumulated[np.arange(n), digit - 1], 0.0)
        selected |= digit.astype(np.uint64) << np.uint64(shift)
        # Only keys with the selected prefix stay in the next round.
        is_candidate = [d == digit[g] for d, g in zip(digits, groups, strict=True)]
        keys, groups, weights = (
            [a[s] for a, s in zip(arrays, is_candidate, strict=True)]
            for arrays in (keys, groups, weights)
        )
    return selected


def _order_preserving_keys(values: Array) -> NDArray[np.uint64]:
    """Return unsigned integers that sort like the values."""
    # IEEE 754 bits sort like the numbers if all bits of negative numbers and the sign bit of the
    # others are flipped; adding 0.0 turns -0.0 into 0.0.
    bits = (values + 0.0).view(np.uint64)
    return np.where(bits & _SIGN_BIT, ~bits, bits | _SIGN_BIT)


def _values_of_keys(keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return the values of the keys of :func:`_order_preserving_keys`."""
    return np.where(keys & _SIGN_BIT, keys ^ _SIGN_BIT, ~keys).view(np.float64)


def exact_exponential(x: Array) -> Array:
    """Return exp(x) in a new array, with the same bits on every machine, unlike ``numpy.exp``."""
    from daskml_dist.backends.elementary_functions import exponential

    return exponential(x)


class BoostLoss(ABC):
    """Base class of losses for boosting, as functions of targets and raw predictions.

    Attributes
    ----------
    constant_hessian : bool
        Whether the hessian of every row is 1, before it is multiplied by the row's weight.
    kernel : str
        Name of the loss's gradient in tree_gradients.cu; any other name if the host computes it.
    quantile : float or None
        A leaf's value is this quantile of the residuals of its rows (Friedman 2001, algorithm 3,
        for the median); None: it is a Newton step.
    n_outputs : int
        Columns of a raw prediction.
    n_targets : int
        Columns of the targets; 1 for one-dimensional targets.
    of_sets : bool
        Whether the loss is of sets of rows, such as those of a query or those at risk: gradients
        and scores are then made by the four methods below, and not row by row.
    overflow_remedy : str
        Remedy if gradients overflow: the last sentence of the error.
    """

    constant_hessian: bool = False
    kernel: str
    quantile: float | None = None
    n_outputs: int = 1
    n_targets: int = 1
    of_sets: ClassVar[bool] = False
    overflow_remedy: str = "Scale the targets and the weights, or lower learning_rate."

    def of_target(self, y: Array) -> Array:
        """Return the terms, of shape (n, n_outputs), whose means are passed to :meth:`start`."""
        return y[:, None]

    @abstractmethod
    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the initial raw prediction (before any tree), from the means of `of_target`."""

    def gradients(self, y: Array, raw: Array) -> tuple[Array, Array | None]:
        """Return gradients and hessians of rows, of shape (n_outputs, n); a hessian of None is 1.

        Parameters
        ----------
        y : ndarray of shape (n,), or (n, n_targets) of several
        raw : ndarray of float64 of shape (n_outputs, n)
        """
        raise NotImplementedError("gradients are made set by set")

    def losses(self, y: Array, raw: Array) -> Array:
        """Return the loss of each row, up to terms of `y` alone; arguments as in `gradients`."""
        raise NotImplementedError("losses are of sets of rows")

    def write_gradients(
        self, y: Array, raw: Array, weight: Array | None, g: Array, h: Array
    ) -> NDArray[np.float64] | None:
        """Write weighted gradients and hessians in float32, for a loss unknown to devices.

        `h` is empty if hessians are 1. The result has their largest absolute values, of shape (2,
        1); None for a loss whose gradients the device computes.
        """
        return None

    # -- sets of rows --------------------------------------------------------------------------

    def gather_sets(
        self, rows: OwnRows, binned_lanes: Sequence[BinnedRows], row_range: RowRange | None = None
    ) -> Any:
        """Return the rows in a range of numbers (None: all), grouped by set (collective)."""
        raise NotImplementedError

    def check_held_sets(
        self, rows: OwnRows, training_sets: Any, held_out_lanes: Sequence[BinnedRows]
    ) -> None:
        """Raise on all trainers if a set has both held-out and training rows (collective)."""
        return  # without ids of sets, sets cannot overlap

    def make_set_gradients(self, sets: Any, seed: int) -> SetGradients:
        """Return the object that computes the gradients of gathered rows."""
        raise NotImplementedError

    def make_set_scores(self, sets: Any, binned_lanes: Sequence[BinnedRows]) -> SetScores:
        """Return the object that scores gathered rows."""
        raise NotImplementedError


@dataclass(frozen=True)
class RowBoostLoss(BoostLoss):
    """Wrapper of a loss of `daskml_dist.losses` (also a user-defined one) for boosting.

    Parameters
    ----------
    loss : Loss
        User-defined losses for classification have two classes, encoded as -1 and 1.
    n_outputs : int, default=1
        Number of classes of the log loss with more than two; for regression the columns of the
        targets, whose losses are averaged.
    """

    loss: Loss
    n_outputs: int = 1

    @property
    def n_targets(self) -> int:  # type: ignore[override]
        """Return the number of columns of the targets."""
        return 1 if self.loss.kind == "classification" else self.n_outputs

    @property
    def kernel(self) -> str:  # type: ignore[override]
        """Return the name of the kernel; for classes it depends on whether there are two."""
        name = self.loss.tree_kernel or "own"
        return ("multinomial" if self.n_outputs > 1 else "binomial") if name == "log_loss" else name

    @property
    def constant_hessian(self) -> bool:  # type: ignore[override]
        """Return whether second derivatives are 1 or absent: leaves then take means."""
        return self.loss.unit_hessian or not self.loss.has_hessian

    @property
    def quantile(self) -> float | None:  # type: ignore[override]
        """Return the quantile of its rows' residuals that a leaf takes as value."""
        return self.loss.leaf_quantile

    @property
    def overflow_remedy(self) -> str:  # type: ignore[override]
        """Return the loss's own remedy, if it names one."""
        remedy = type(self.loss).overflow_remedy
        return BoostLoss.overflow_remedy if remedy is Loss.overflow_remedy else remedy

    @property
    def _is_known(self) -> bool:
        """Flag: devices compute the gradients, with the operations of :meth:`Loss.derive`."""
        return self.loss.tree_kernel is not None

    def _targets(self, y: Array) -> Array:
        """Return targets as the loss expects them."""
        signs = self.loss.kind == "classification" and not self._is_known
        return 2.0 * y - 1.0 if signs else y

    def of_target(self, y: Array) -> Array:
        if self.n_targets > 1:
            return y
        if self.n_outputs > 1:
            return np.asarray(y[:, None] == np.arange(self.n_outputs), np.float64)
        # Bounds of times are complex numbers; the real part is the middle.
        return self._targets(y).real[:, None]

    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        # For two classes, a loss gives its start by `constant`.
        start = self.loss.start if self._is_known else partial(Loss.start, self.loss)
        means = mean[:, None] if self.n_targets > 1 else [mean]
        starts = np.concatenate([np.asarray(start(target_mean)) for target_mean in means])
        if starts.dtype.kind not in "fiu" or not np.isfinite(starts).all():
            raise InvalidParameterError(
                f"{self._name}.constant({mean[0]:g}) returned {starts.tolist()[0]!r}, but must "
                "return a finite number: the raw prediction to start from."
            )
        return starts.astype(np.float64)

    def gradients(self, y: Array, raw: Array) -> tuple[Array, Array | None]:
        if self.n_outputs > 1:
            return self.loss.derive(y.T, raw, exact_exponential)
        y, raw = self._targets(y), raw[0]
        if self._is_known:
            g, h = self.loss.derive(y, raw, exact_exponential)
            return g[None], None if h is None else h[None]
        if not self.loss.has_hessian:
            return self._checked("gradient", self.loss.value_and_gradient(y, raw)[1], y), None
        _, g, h = self.loss.value_gradient_hessian(y, raw)
        return self._checked("gradient", g, y), self._checked("hessian", h, y)

    def losses(self, y: Array, raw: Array) -> Array:
        if self.n_targets > 1:
            # A loop, since the order of the additions in numpy.sum depends on the layout.
            total = self.loss.value(y[:, 0], raw[0])
            for of_target, of_output in zip(y.T[1:], raw[1:], strict=True):
                total = total + self.loss.value(of_target, of_output)
            return np.asarray(total / self.n_targets)
        if self.n_outputs > 1:
            return np.asarray(self.loss.value(y.astype(np.intp), raw.T))
        # Margin losses take targets of -1 and 1.
        y = 2.0 * y - 1.0 if self.loss.kind == "classification" else y
        return np.asarray(self._checked("value", self.loss.value(y, raw[0]), y)[0])

    def write_gradients(
        self, y: Array, raw: Array, weight: Array | None, g: Array, h: Array
    ) -> NDArray[np.float64] | None:
        if self._is_known:
            return None
        is_written = not len(y)
        if self.loss.derive_row is not None and not is_written:
            from daskml_dist.backends.own_losses import write_row_gradients

            is_written = write_row_gradients(
                type(self.loss).derive_row, self.loss.parameters, self._targets(y), raw[0],
                np.empty(0) if weight is None else weight, g, h,
            )  # fmt: skip
        if not is_written:
            for tile in iterate_tiles(len(y)):
                tile_g, tile_h = self.gradients(y[tile], raw[:, tile])
                weights = 1.0 if weight is None else weight[tile]
                g[tile] = tile_g[0] * weights
                if len(h):
                    h[tile] = (1.0 if tile_h is None else tile_h[0]) * weights
        # The maximum is NaN if any number is.
        largest = largest_sizes(g, h)
        if not np.isfinite(largest).all():
            raise DivergedError(
                f"{self._name} returned NaN or infinity as a gradient or second derivative. "
                f"{self.loss.overflow_remedy}"
            )
        if len(h) and h.min() < 0:
            raise InvalidParameterError(
                f"{self._name} returned a negative second derivative, {h.min():g}, so no leaf "
                "value can be computed. If the loss is not convex, return max(hessian, 0.0), or "
                "leave out the second derivative."
            )
        return largest

    @property
    def _name(self) -> str:
        return type(self.loss).__name__

    def _checked(self, quantity: str, result: Any, y: Array) -> Array:
        """Return numbers of rows with an axis of outputs; raise unless there is one per row."""
        values = np.asarray(result)
        if values.shape != y.shape or values.dtype.kind not in "fiu":
            raise InvalidParameterError(
                f"{self._name} returned as {quantity} an array of shape {values.shape} and dtype "
                f"{values.dtype} for {len(y)} rows. Return one number for each row: shape "
                f"({len(y)},)."
            )
        return values.astype(np.float64)[None]


#: Salt of the hash that draws the scored rows, so that its draws are independent of other draws
#: with the same seed.
_SCORE_DRAW = 5
#: Takes raw predictions of shape (n, n_outputs), targets, and weights or None; returns a score.
Scorer = Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64] | None], float]
#: Half-open range of indices among all rows.
RowRange = tuple[int, int]
#: Expected number of training rows passed to a scorer (as in scikit-learn); a mean loss uses all
#: rows.
_MAX_SCORED_ROWS = 10_000


class SetGradients(Protocol):
    """Gradients of rows that are not computed row by row, such as those of a ranking."""

    def compute_gradients(self, lanes: Sequence[TreeRows], tree_index: int) -> list[Array]:
        """Compute the gradients of the tree `tree_index`, and pass them to the lanes (collective).

        Returns
        -------
        list of ndarray of float64 of shape (2, 1)
            Largest gradient and hessian of each lane.
        """


class SetScores(Protocol):
    """Scores of a set of rows that are not scored row by row, such as NDCG."""

    def score(self, scorer: Any) -> float:
        """Return the score of the current predictions, the same in all trainers (collective)."""


#: Makes the scores of the rows of each own lane; only rows in the range count.
MakeSetScores = Callable[[Sequence[BinnedRows], RowRange | None], SetScores]


@dataclass(frozen=True)
class StoppingRule:
    """Rule of early stopping.

    Parameters
    ----------
    n_iter_no_change : int
    tol : float
    by_held : bool
        Whether the validation (held-out) score decides; else the training score.
    scorer : callable or None
        Score to maximise; None: minus the mean loss, for which no rows are gathered.
    within : RowRange or None
        Held-out rows that are scored; None: all of them.
    """

    n_iter_no_change: int
    tol: float
    by_held: bool = False
    scorer: Scorer | None = None
    within: RowRange | None = None

    def should_stop(self, scores: Sequence[float]) -> bool:
        """Return whether none of the last scores beats the score before them by more than `tol`."""
        if len(scores) <= self.n_iter_no_change:
            return False
        reference = scores[-self.n_iter_no_change - 1] + self.tol
        return not any(score > reference for score in scores[-self.n_iter_no_change :])


@dataclass(frozen=True)
class WatchedScores:
    """Validation sets given by the user (`eval_set`), and the scorers reported for each.

    Parameters
    ----------
    sets : tuple of RowRange
        Held-out rows of each set.
    scorers : tuple of callable or None
        Scorers of every set; None: minus the mean loss.
    names : tuple of str
        Keys of the scores in the records of the fit's history: all scorers of the first set, then
        those of the next.
    """

    sets: tuple[RowRange, ...]
    scorers: tuple[Scorer | None, ...]
    names: tuple[str, ...]


class _ScoredPart:
    """Set of rows that are scored together: those of all trainers whose indices lie in a range.

    Parameters
    ----------
    rows : OwnRows
    binned_lanes : sequence of BinnedRows
        Binned rows of each own lane.
    loss : BoostLoss
    row_range : RowRange or None
        None: all rows.
    make_set_scores : MakeSetScores or None
        Makes the scores of all the rows together; None: they are sums over rows, or by scorers.
    """

    def __init__(
        self,
        rows: OwnRows,
        binned_lanes: Sequence[BinnedRows],
        loss: BoostLoss,
        row_range: RowRange | None,
        make_set_scores: MakeSetScores | None = None,
    ) -> None:
        self._rows, self._binned_lanes, self._loss, self._row_range = (
            rows,
            binned_lanes,
            loss,
            row_range,
        )
        self._gathered: _GatheredRows | None = None
        self._of_set = None if make_set_scores is None else make_set_scores(binned_lanes, row_range)

    def gather(self, probability: float, seed: int) -> None:
        """Gather a random share of the rows to one trainer, for scorers."""
        if self._of_set is not None:
            return
        weighted = np.array(
            [float(any(binned.weight is not None for binned in self._binned_lanes))]
        )
        self._gathered = _GatheredRows(
            self._rows, self._binned_lanes, probability, seed,
            bool(self._rows.max_trainers(weighted)[0]), self._row_range,
        )  # fmt: skip

    def score(self, scorer: Scorer | None) -> float:
        """Return the score of the current predictions; minus the mean loss if `scorer` is None."""
        if self._of_set is not None:
            return self._of_set.score(scorer)
        if scorer is not None:
            assert self._gathered is not None
            return self._gathered.score(scorer)
        loss, weight = sum_exactly(self._rows, self._binned_lanes, self._losses_of, 2)
        if not weight:
            raise InvalidDataError(
                "All weights of the rows that are scored after each iteration (held out, or of "
                "X_val or eval_set) are zero. Give some a positive weight, or leave their weights "
                "out."
            )
        return float(-loss / weight)

    def _losses_of(self, binned: BinnedRows, row_slice: slice) -> list[Array]:
        """Return weighted losses and weights of some rows, as summands; 0 outside the range."""
        y = binned.y[row_slice]
        weight = np.ones(len(y)) if binned.weight is None else binned.weight[row_slice]
        losses = self._loss.losses(y, binned.extra["raw"][:, row_slice]) * weight
        if self._row_range is None:
            return [losses, weight]
        assert binned.row_numbers is not None
        is_within = _is_in_range(binned.row_numbers[row_slice], self._row_range)
        return [np.where(is_within, losses, 0.0), np.where(is_within, weight, 0.0)]


class BoostScores:
    """Scores of the training rows, of the held-out rows, and of the user's validation sets.

    Parameters
    ----------
    rows : OwnRows
    stopping : StoppingRule or None
        None: no early stopping.
    watching : WatchedScores or None
    loss : BoostLoss
    past_scores : mapping of str to sequence of float
        Training and validation scores of the iterations before, where a fit resumes; they become
        the beginning of `scores`.
    make_set_scores : MakeSetScores or None
        Makes the scores of sets that are not scored row by row.
    """

    def __init__(
        self,
        rows: OwnRows,
        stopping: StoppingRule | None,
        watching: WatchedScores | None,
        loss: BoostLoss,
        past_scores: Mapping[str, Sequence[float]],
        make_set_scores: MakeSetScores | None = None,
    ) -> None:
        self._rows, self._stopping, self._watching, self._loss = rows, stopping, watching, loss
        self._make_set_scores = make_set_scores
        self.scores = {
            name: list(past_scores[name]) for name in ("train_score", "validation_score")
        }
        self._scored_parts: dict[str, _ScoredPart] = {}
        self._watched: list[_ScoredPart] = []

    def start_scoring(
        self,
        binned_lanes: Sequence[BinnedRows],
        held_out_lanes: Sequence[BinnedRows],
        n: int,
        seed: int,
    ) -> None:
        """Set the rows to score, and gather those for scorers to one trainer.

        Parameters
        ----------
        binned_lanes, held_out_lanes : sequence of BinnedRows
            Training rows and held-out rows of each own lane.
        n : int
            Number of training rows of all trainers.
        seed : int
            Seed of the draw of the training rows that a scorer is given.
        """
        stopping, watching = self._stopping, self._watching
        if stopping is not None:
            self._scored_parts = {"train_score": self._make_part(binned_lanes, None)}
            if stopping.by_held:
                self._scored_parts["validation_score"] = self._make_part(
                    held_out_lanes, stopping.within
                )
            if stopping.scorer is not None:
                for name, part in self._scored_parts.items():
                    part.gather(
                        min(1.0, _MAX_SCORED_ROWS / n) if name == "train_score" else 1.0, seed
                    )
        if watching is not None:
            self._watched = [
                self._make_part(held_out_lanes, row_range) for row_range in watching.sets
            ]
            if any(scorer is not None for scorer in watching.scorers):
                for part in self._watched:
                    part.gather(1.0, seed)

    def _make_part(
        self, binned_lanes: Sequence[BinnedRows], row_range: RowRange | None
    ) -> _ScoredPart:
        """Return the set of some lanes' rows in a range of numbers."""
        return _ScoredPart(self._rows, binned_lanes, self._loss, row_range, self._make_set_scores)

    def score_for_stopping(self) -> None:
        """Append the scores of the current predictions to `scores`, for early stopping."""
        assert self._stopping is not None
        for name, part in self._scored_parts.items():
            self.scores[name].append(part.score(self._stopping.scorer))

    def score_watched(self) -> list[float]:
        """Return the current scores of the user's validation sets, in the order of their names."""
        if self._watching is None:
            return []
        return [part.score(scorer) for part in self._watched for scorer in self._watching.scorers]

    def is_finished(self) -> bool:
        """Return whether the last scores call for early stopping."""
        if self._stopping is None:
            return False
        name = "validation_score" if self._stopping.by_held else "train_score"
        return self._stopping.should_stop(self.scores[name])


class _GatheredRows:
    """Rows of all trainers, gathered to the first trainer for a scorer.

    Only it calls the scorer, and it sends the score to the others: a user's function need not be
    deterministic, and all trainers must make the same decision.

    Parameters
    ----------
    rows : OwnRows
    binned_lanes : sequence of BinnedRows
        Binned rows of each own lane, with the rows' indices (`numbers`).
    probability : float
        Probability that a row is drawn to be scored; 1: all are.
    seed : int
    weighted : bool
        Whether the rows of any trainer have weights.
    row_range : RowRange or None, default=None
        Rows that may be drawn; None: all.
    """

    def __init__(
        self,
        rows: OwnRows,
        binned_lanes: Sequence[BinnedRows],
        probability: float,
        seed: int,
        weighted: bool,
        row_range: RowRange | None = None,
    ) -> None:
        self._rows, self._binned_lanes, self._weighted = rows, list(binned_lanes), weighted
        # A row is drawn by the hash of its index, so the draw is the same on any trainers.
        last = np.uint64(min(int(probability * 2.0**64), 2**64 - 1))
        self._scored_positions = []
        for binned in binned_lanes:
            is_scored = draw_by_hash(_row_numbers(binned), seed, _SCORE_DRAW) <= last
            if row_range is not None:
                is_scored &= _is_in_range(_row_numbers(binned), row_range)
            self._scored_positions.append(np.flatnonzero(is_scored))
        numbers = gather_to_first(
            rows, [_row_numbers(binned)[indices] for binned, indices in self._scored_rows()]
        )
        # A score must not depend on which trainer had which rows: they are sorted by their indices.
        self._order = np.argsort(numbers, kind="stable")
        self._y = gather_to_first(
            rows, [binned.y[indices] for binned, indices in self._scored_rows()]
        )[self._order]
        self._weight: NDArray[np.float64] | None = None
        if weighted:
            weights = [
                np.ones(len(indices)) if binned.weight is None else binned.weight[indices]
                for binned, indices in self._scored_rows()
            ]
            self._weight = gather_to_first(rows, weights)[self._order]

    def score(self, scorer: Scorer) -> float:
        """Return the score of the current predictions; the same in all trainers."""
        raw = gather_to_first(
            self._rows,
            [binned.extra["raw"][:, indices].T for binned, indices in self._scored_rows()],
        )
        score = np.zeros(1)
        if self._rows.rank == 0:
            score[0] = scorer(raw[self._order], self._y, self._weight)
        # A broadcast by the sum of bit patterns, to which the other trainers add 0: unlike a sum of
        # floats it keeps the bits of NaN, infinity and -0.0.
        return float(self._rows.sum_trainers(score.view(np.int64)).view(np.float64)[0])

    def _scored_rows(self) -> list[tuple[BinnedRows, NDArray[np.intp]]]:
        """Return the binned rows of each own lane, and the positions of the scored ones."""
        return list(zip(self._binned_lanes, self._scored_positions, strict=True))


def _is_in_range(row_numbers: NDArray[np.int64], row_range: RowRange) -> NDArray[np.bool_]:
    """Return a mask of the row indices that lie in a range."""
    return np.asarray((row_numbers >= row_range[0]) & (row_numbers < row_range[1]))


def _row_numbers(binned: BinnedRows) -> NDArray[np.int64]:
    """Return the indices of binned rows among all rows, which must have been kept."""
    assert binned.row_numbers is not None
    return binned.row_numbers
