"""Losses of gradient boosting, and scores after each iteration for early stopping and the user.

A :class:`BoostLoss` has the values of scikit-learn's ``HistGradientBoosting``. It is computed for
some rows at a time and gives the same bits for a row whatever its neighbours are: gradients use
only operations that IEEE 754 defines exactly, so every machine, and a GPU, gives the same. Sums of
floats are made in whole numbers (:func:`sum_exactly`), so they depend on no order.

Minus the mean loss is a sum over all trainers. A scorer needs all predictions: those rows are
gathered to one trainer (:class:`GatheredRows`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.bins import draw_by_hash
from daskml_dist.solvers.binning import BinnedRows, iterate_tiles
from daskml_dist.solvers.own_rows import Array, OwnRows

__all__ = [
    "AbsoluteErrorBoostLoss",
    "BinomialBoostLoss",
    "BoostLoss",
    "BoostScores",
    "GammaBoostLoss",
    "GatheredRows",
    "GroupedValues",
    "MultinomialBoostLoss",
    "PinballBoostLoss",
    "PoissonBoostLoss",
    "RowRange",
    "Scorer",
    "SquaredErrorBoostLoss",
    "StoppingRule",
    "WatchedScores",
    "group_quantiles",
    "is_in_range",
    "sum_exactly",
]

#: Values, the group of each (from 0), and their weights or None.
GroupedValues = tuple[Array, Array, Array | None]
#: The sign of a float64.
_SIGN_BIT = np.uint64(1 << 63)
#: Integers of up to 52 bits are exact in float64, and so are their sums.
_EXACT_BITS = 52
#: Makes `m` numbers of each of some rows.
MakeSummands = Callable[[BinnedRows, slice], Sequence[Array]]


def sum_exactly(
    rows: OwnRows, rooms: Sequence[BinnedRows], make: MakeSummands, m: int
) -> NDArray[np.float64]:
    """Return sums over all trainers' rows in integer arithmetic; NaN if a summand is not finite."""

    def made(room: BinnedRows) -> tuple[Array, Array]:
        values, largest = _summand_buffer(room, m), np.zeros(m)
        for at in iterate_tiles(room.n):
            for k, of in enumerate(make(room, at)):
                values[k, at] = of
                largest[k] = np.maximum(largest[k], np.abs(of).max(initial=0.0))
        return values, largest

    found = rows.map_lanes(made, rooms)
    largest = rows.max_trainers(np.max([np.zeros(m), *(most for _, most in found)], axis=0))
    if not np.isfinite(largest).all():
        return np.full(m, np.nan)
    # So many bits that no sum of so many numbers overflows.
    bits = 61 - int(rows.n_rows).bit_length()
    scales = np.ldexp(1.0, bits - np.frexp(largest)[1])

    def summed(values: Array) -> NDArray[np.int64]:
        total = np.zeros(m, np.int64)
        for at in iterate_tiles(values.shape[1]):
            total += np.rint(values[:, at] * scales[:, None]).astype(np.int64).sum(axis=1)
        return total

    own = rows.map_lanes(summed, [values for values, _ in found])
    return np.asarray(rows.sum_trainers(np.sum([np.zeros(m, np.int64), *own], axis=0)) / scales)


def _summand_buffer(room: BinnedRows, m: int) -> Array:
    """Return a buffer for `m` numbers a row, which the binned rows keep."""
    held: Array | None = room.extra.get("summed")
    if held is None or len(held) < m:
        room.extra["summed"] = held = room.room((m, room.n), np.float64)
    return held[:m]


def group_quantiles(
    rows: OwnRows, given: Sequence[GroupedValues], n_groups: int, share: float, *, middle: bool
) -> NDArray[np.float64]:
    """Return a quantile of the values of each group; 0 for a group without weight.

    Without weights it lies between two values (their mean for a median), with weights it is the
    least value up to which lies the share of its group's weight, as scikit-learn's losses have it.
    """
    keys = [_order_preserving_keys(values) for values, _, _ in given]
    groups = [of_row.astype(np.int64) for _, of_row, _ in given]
    weights = _integer_weights(rows, [weight for *_, weight in given], [len(k) for k in keys])
    own = sum(
        (np.bincount(g, w, n_groups) for g, w in zip(groups, weights, strict=True)),
        np.zeros(n_groups),
    )
    totals = rows.sum_trainers(own)
    asked = [np.maximum(share * totals, 0.5)]
    part = np.zeros(n_groups)
    if middle:
        # Linear interpolation between two order statistics, as numpy.quantile has it.
        at = share * np.maximum(totals - 1, 0)
        part = at - np.floor(at)
        asked = [np.floor(at) + 1, np.minimum(np.floor(at) + 2, np.maximum(totals, 1))]
    found = [_values_of_keys(_select_keys(rows, keys, groups, weights, a)) for a in asked]
    low, high = found[0], found[-1]
    between = np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1 - part))
    return np.where(totals > 0, np.where(part > 0, between, low), 0.0)


def _integer_weights(rows: OwnRows, weights: list[Array | None], counts: list[int]) -> list[Array]:
    """Return integer weights whose sums are exact; 1 where there are no weights."""
    largest = float(
        rows.max_trainers(np.array([_largest_weight(w) for w in weights]).max(keepdims=True))[0]
    )
    if not largest:
        return [np.ones(n) for n in counts]
    bits = _EXACT_BITS - int(rows.n_rows).bit_length()
    scale = math.ldexp(1.0, bits - math.frexp(largest)[1])
    return [
        np.ones(n) if w is None else np.rint(w * scale)
        for w, n in zip(weights, counts, strict=True)
    ]


def _largest_weight(weight: Array | None) -> float:
    return 0.0 if weight is None else float(weight.max(initial=0.0))


def _select_keys(
    rows: OwnRows, keys: list[Array], groups: list[Array], weights: list[Array], asked: Array
) -> NDArray[np.uint64]:
    """Return each group's least key up to which the cumulated weight reaches `asked`."""
    n, found, asked = len(asked), np.zeros(len(asked), np.uint64), asked.copy()
    for shift in range(56, -8, -8):
        digits = [((k >> np.uint64(shift)) & np.uint64(255)).astype(np.int64) for k in keys]
        own = np.zeros(n * 256)
        for digit, group, weight in zip(digits, groups, weights, strict=True):
            own += np.bincount(group * 256 + digit, weight, n * 256)
        # Weight below each next digit, of all trainers.
        below = rows.sum_trainers(own).reshape(n, 256).cumsum(axis=1)
        digit = (below < asked[:, None]).sum(axis=1).clip(max=255)
        asked -= np.where(digit > 0, below[np.arange(n), digit - 1], 0.0)
        found |= digit.astype(np.uint64) << np.uint64(shift)
        stay = [d == digit[g] for d, g in zip(digits, groups, strict=True)]
        keys, groups, weights = (
            [a[s] for a, s in zip(arrays, stay, strict=True)] for arrays in (keys, groups, weights)
        )
    return found


def _order_preserving_keys(values: Array) -> NDArray[np.uint64]:
    """Return unsigned integers in the order of the values."""
    # IEEE 754 bits sort like the numbers once negatives are inverted and the sign flipped.
    bits = (values + 0.0).view(np.uint64)
    return np.where(bits & _SIGN_BIT, ~bits, bits | _SIGN_BIT)


def _values_of_keys(keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    return np.where(keys & _SIGN_BIT, keys ^ _SIGN_BIT, ~keys).view(np.float64)


_EPS = float(np.finfo(np.float64).eps)


def _exact_exponential(x: Array) -> Array:
    """Return exponentials in a new array, with the same bits on every machine."""
    from daskml_dist.backends.elementary_functions import exponential

    return exponential(x)


class BoostLoss(ABC):
    """Base class of the losses of boosting.

    Attributes
    ----------
    constant_hessian : bool
        Whether the hessian of every row without a weight is 1.
    kernel : str
        Name of its gradients in tree_gradients.cu.
    quantile : float or None
        Of the residuals of a leaf's rows, which is what the leaf then answers; None: a Newton step.
    """

    constant_hessian: ClassVar[bool] = False
    kernel: ClassVar[str]
    quantile: float | None = None

    @property
    def n_outputs(self) -> int:
        """Return the number of columns of a raw prediction."""
        return 1

    def of_target(self, y: Array) -> Array:
        """Return numbers, of shape (n, n_outputs), whose means give the first raw prediction."""
        return y[:, None]

    @abstractmethod
    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the raw prediction of no tree, from the means of `of_target`."""

    @abstractmethod
    def gradients(self, y: Array, raw: Array) -> tuple[Array, Array | None]:
        """Return gradients and hessians of rows, of shape (n_outputs, n).

        Parameters
        ----------
        y : ndarray of float64 of shape (n,)
        raw : ndarray of float64 of shape (n_outputs, n)
        """

    @abstractmethod
    def losses(self, y: Array, raw: Array) -> Array:
        """Return the loss of each row."""


class SquaredErrorBoostLoss(BoostLoss):
    """Half the squared error."""

    kernel = "squared_error"
    constant_hessian = True

    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        return mean

    def gradients(self, y: Array, raw: Array) -> tuple[Array, Array | None]:
        return raw - y, None

    def losses(self, y: Array, raw: Array) -> Array:
        return np.asarray(0.5 * (raw[0] - y) ** 2)


class AbsoluteErrorBoostLoss(BoostLoss):
    """Absolute error: a leaf predicts the median."""

    kernel = "absolute_error"
    constant_hessian = True
    quantile = 0.5

    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        return mean

    def gradients(self, y: Array, raw: Array) -> tuple[Array, Array | None]:
        return np.where(raw > y, 1.0, -1.0), None

    def losses(self, y: Array, raw: Array) -> Array:
        return np.asarray(np.abs(raw[0] - y))


@dataclass
class PinballBoostLoss(BoostLoss):
    """Pinball loss: a leaf predicts a quantile.

    Parameters
    ----------
    quantile : float
    """

    quantile: float | None = 0.5
    constant_hessian: ClassVar[bool] = True
    kernel: ClassVar[str] = "quantile"

    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        return mean

    def gradients(self, y: Array, raw: Array) -> tuple[Array, Array | None]:
        assert self.quantile is not None
        return np.where(y >= raw, -self.quantile, 1 - self.quantile), None

    def losses(self, y: Array, raw: Array) -> Array:
        assert self.quantile is not None
        over = y - raw[0]
        return np.asarray(np.where(over >= 0, self.quantile * over, (self.quantile - 1) * over))


class PoissonBoostLoss(BoostLoss):
    """Half the Poisson deviance, with a log link."""

    kernel = "poisson"

    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log(np.maximum(mean, _EPS)))

    def gradients(self, y: Array, raw: Array) -> tuple[Array, Array | None]:
        mean = _exact_exponential(raw)
        return mean - y, mean

    def losses(self, y: Array, raw: Array) -> Array:
        return np.asarray(np.exp(raw[0]) - y * raw[0])


class GammaBoostLoss(BoostLoss):
    """Half the gamma deviance, with a log link."""

    kernel = "gamma"

    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log(np.maximum(mean, _EPS)))

    def gradients(self, y: Array, raw: Array) -> tuple[Array, Array | None]:
        ratio = y * _exact_exponential(-raw)
        return 1 - ratio, ratio

    def losses(self, y: Array, raw: Array) -> Array:
        return np.asarray(raw[0] + y * np.exp(-raw[0]))


class BinomialBoostLoss(BoostLoss):
    """Log loss of two classes, 0 and 1."""

    kernel = "binomial"

    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        share = np.clip(mean, _EPS, 1 - _EPS)
        return np.asarray(np.log(share / (1 - share)))

    def gradients(self, y: Array, raw: Array) -> tuple[Array, Array | None]:
        # Of the smaller of both, so that nothing overflows.
        small = _exact_exponential(-np.abs(raw))
        larger = 1 / (1 + small)
        small *= larger
        share = np.where(raw >= 0, larger, small)
        share -= y
        larger *= small
        return share, larger

    def losses(self, y: Array, raw: Array) -> Array:
        raw = raw[0]
        return np.asarray(np.maximum(raw, 0) + np.log1p(np.exp(-np.abs(raw))) - y * raw)


@dataclass
class MultinomialBoostLoss(BoostLoss):
    """Log loss of several classes, numbered from 0.

    Parameters
    ----------
    n_classes : int
    """

    n_classes: int
    kernel: ClassVar[str] = "multinomial"

    @property
    def n_outputs(self) -> int:
        return self.n_classes

    def of_target(self, y: Array) -> Array:
        return np.asarray(y[:, None] == np.arange(self.n_classes), np.float64)

    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        logs = np.log(np.clip(mean, _EPS, 1 - _EPS))
        return np.asarray(logs - logs.mean())

    def gradients(self, y: Array, raw: Array) -> tuple[Array, Array | None]:
        share = _exact_exponential(raw - raw.max(axis=0))
        total = share[0].copy()
        for other in share[1:]:  # in this order, however few rows there are
            total += other
        share /= total
        return share - (np.arange(self.n_classes)[:, None] == y), share * (1 - share)

    def losses(self, y: Array, raw: Array) -> Array:
        most = raw.max(axis=0)
        own = np.take_along_axis(raw, y.astype(np.intp)[None], axis=0)[0]
        return np.asarray(np.log(np.exp(raw - most).sum(axis=0)) + most - own)


#: Key of this use of the seed, so that draws do not repeat another use's.
_SCORE_DRAW = 5
#: Raw predictions of rows, of shape (n, n_outputs), their targets, and weights or None.
Scorer = Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64] | None], float]
#: Half-open range of row numbers among all rows.
RowRange = tuple[int, int]
#: Training rows that a scorer sees, about, as in scikit-learn; a loss sees all.
_MAX_SCORED_ROWS = 10_000


@dataclass(frozen=True)
class StoppingRule:
    """Rule of early stopping.

    Parameters
    ----------
    n_iter_no_change : int
    tol : float
    by_held : bool
        Whether rows held out are scored; else the rows trained on.
    scorer : callable or None
        Score of some rows, from their raw predictions, targets and weights; None: minus the mean
        loss, which need not gather them.
    within : RowRange or None
        Rows held out that are scored; None: all of them.
    """

    n_iter_no_change: int
    tol: float
    by_held: bool = False
    scorer: Scorer | None = None
    within: RowRange | None = None

    def ends(self, scores: Sequence[float]) -> bool:
        """Return whether none of the last scores beats the score before them by more than `tol`."""
        if len(scores) <= self.n_iter_no_change:
            return False
        reference = scores[-self.n_iter_no_change - 1] + self.tol
        return not any(score > reference for score in scores[-self.n_iter_no_change :])


@dataclass(frozen=True)
class WatchedScores:
    """Sets of held-out rows that the user watches, and their scorers.

    Parameters
    ----------
    sets : tuple of Range
        Rows of each set, all of them held out.
    scorers : tuple of callable or None
        Scores of each set; None: minus the mean loss.
    names : tuple of str
        Keys of the scores in the records of a fit, those of a set side by side.
    """

    sets: tuple[RowRange, ...]
    scorers: tuple[Scorer | None, ...]
    names: tuple[str, ...]


class _ScoredPart:
    """Set of rows that are scored together: binned rows whose numbers lie in a range."""

    def __init__(
        self, rows: OwnRows, rooms: Sequence[BinnedRows], loss: BoostLoss, within: RowRange | None
    ) -> None:
        self._rows, self._rooms, self._loss, self._within = rows, rooms, loss, within
        self._gathered: GatheredRows | None = None

    def gather(self, share: float, seed: int) -> None:
        """Gather a share of the rows to one trainer, for scores that need more than sums."""
        weighted = np.array([float(any(room.weight is not None for room in self._rooms))])
        self._gathered = GatheredRows(
            self._rows, self._rooms, share, seed, bool(self._rows.max_trainers(weighted)[0]),
            self._within,
        )  # fmt: skip

    def score(self, scorer: Scorer | None) -> float:
        """Return a score of the rows as they are predicted now; None: minus the mean loss."""
        if scorer is not None:
            assert self._gathered is not None
            return self._gathered.score(scorer)
        loss, weight = sum_exactly(self._rows, self._rooms, self._losses_of, 2)
        return float(-loss / weight) if weight else 0.0

    def _losses_of(self, room: BinnedRows, at: slice) -> list[Array]:
        y = room.y[at]
        weight = np.ones(len(y)) if room.weight is None else room.weight[at]
        losses = self._loss.losses(y, room.extra["raw"][:, at]) * weight
        if self._within is None:
            return [losses, weight]
        assert room.numbers is not None
        is_within = is_in_range(room.numbers[at], self._within)
        return [np.where(is_within, losses, 0.0), np.where(is_within, weight, 0.0)]


class BoostScores:
    """Scores of the training rows, of the held-out rows, and of the sets that the user watches.

    Parameters
    ----------
    rows : OwnRows
    stopping : StoppingRule or None
        None: no rows are scored for early stopping.
    watching : WatchedScores or None
    loss : BoostLoss
    given : mapping of str to sequence of float
        Scores of early stopping that were found before.
    """

    def __init__(
        self,
        rows: OwnRows,
        stopping: StoppingRule | None,
        watching: WatchedScores | None,
        loss: BoostLoss,
        given: Mapping[str, Sequence[float]],
    ) -> None:
        self._rows, self._stopping, self._watching, self._loss = rows, stopping, watching, loss
        self.found = {name: list(given[name]) for name in ("train_score", "validation_score")}
        self._parts: dict[str, _ScoredPart] = {}
        self._watched: list[_ScoredPart] = []

    def start_scoring(
        self, rooms: Sequence[BinnedRows], held: Sequence[BinnedRows], n: int, seed: int
    ) -> None:
        """Look at the rows: `n` are trained on, of all trainers."""
        stopping, watching = self._stopping, self._watching
        if stopping is not None:
            self._parts = {"train_score": _ScoredPart(self._rows, rooms, self._loss, None)}
            if stopping.by_held:
                validation = _ScoredPart(self._rows, held, self._loss, stopping.within)
                self._parts["validation_score"] = validation
            if stopping.scorer is not None:
                for name, part in self._parts.items():
                    part.gather(
                        min(1.0, _MAX_SCORED_ROWS / n) if name == "train_score" else 1.0, seed
                    )
        if watching is not None:
            self._watched = [_ScoredPart(self._rows, held, self._loss, of) for of in watching.sets]
            if any(scorer is not None for scorer in watching.scorers):
                for part in self._watched:
                    part.gather(1.0, seed)

    def score_for_stopping(self) -> None:
        """Score the rows as they are predicted now, for early stopping."""
        assert self._stopping is not None
        for name, part in self._parts.items():
            self.found[name].append(part.score(self._stopping.scorer))

    def score_watched(self) -> list[float]:
        """Return the scores that the user watches, of the rows as they are predicted now."""
        if self._watching is None:
            return []
        return [part.score(one) for part in self._watched for one in self._watching.scorers]

    def is_finished(self) -> bool:
        """Return whether early stopping ends the fit now."""
        if self._stopping is None:
            return False
        name = "validation_score" if self._stopping.by_held else "train_score"
        return self._stopping.ends(self.found[name])


class GatheredRows:
    """Rows of all trainers, gathered to one trainer for a scorer.

    One trainer scores them for all: what a user's function answers need not be the same twice.

    Parameters
    ----------
    rows : OwnRows
    rooms : sequence of BinnedRows
        Of each own lane, with their numbers.
    share : float
        Of the rows that are scored, drawn; 1: all.
    seed : int
    weighted : bool
        Whether any trainer's have weights.
    within : RowRange or None, default=None
        Numbers of the rows that are scored; None: of all.
    """

    def __init__(
        self,
        rows: OwnRows,
        rooms: Sequence[BinnedRows],
        share: float,
        seed: int,
        weighted: bool,
        within: RowRange | None = None,
    ) -> None:
        self._rows, self._rooms, self._weighted = rows, list(rooms), weighted
        last = np.uint64(min(int(share * 2.0**64), 2**64 - 1))
        self._at = []
        for room in rooms:
            is_scored = draw_by_hash(_row_numbers(room), seed, _SCORE_DRAW) <= last
            if within is not None:
                is_scored &= is_in_range(_row_numbers(room), within)
            self._at.append(np.flatnonzero(is_scored))
        numbers = self._gather_in_order(
            [_row_numbers(room)[at] for room, at in self._scored_rows()]
        )
        self._order = np.argsort(numbers, kind="stable")
        self._y = self._gather_in_order([room.y[at] for room, at in self._scored_rows()])[
            self._order
        ]
        self._weight: NDArray[np.float64] | None = None
        if weighted:
            of_rooms = [
                np.ones(len(at)) if room.weight is None else room.weight[at]
                for room, at in self._scored_rows()
            ]
            self._weight = self._gather_in_order(of_rooms)[self._order]

    def score(self, scorer: Scorer) -> float:
        """Return the score of the rows as they are predicted now."""
        raw = self._gather_in_order(
            [room.extra["raw"][:, at].T for room, at in self._scored_rows()]
        )
        told = np.zeros(1)
        if self._rows.rank == 0:
            told[0] = scorer(raw[self._order], self._y, self._weight)
        # As whole numbers, so that what is not finite comes as it is.
        return float(self._rows.sum_trainers(told.view(np.int64)).view(np.float64)[0])

    def _scored_rows(self) -> list[tuple[BinnedRows, NDArray[np.intp]]]:
        return list(zip(self._rooms, self._at, strict=True))

    def _gather_in_order(self, parts: list[NDArray]) -> NDArray:  # type: ignore[type-arg]
        """Return the rows of all trainers on the first trainer, and the own rows elsewhere."""
        own = np.ascontiguousarray(np.concatenate(parts))
        others = [own if rank == 0 else own[:0] for rank in range(self._rows.size)]
        found = self._rows.exchange_arrays(others)
        return np.concatenate(found)


def is_in_range(numbers: NDArray[np.int64], within: RowRange) -> NDArray[np.bool_]:
    """Return which numbers of rows lie in a range."""
    return np.asarray((numbers >= within[0]) & (numbers < within[1]))


def _row_numbers(room: BinnedRows) -> NDArray[np.int64]:
    assert room.numbers is not None
    return room.numbers
