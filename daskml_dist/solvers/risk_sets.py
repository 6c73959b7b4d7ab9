"""Cox's partial likelihood on the rows of all trainers: the same bits for any partition.

Each row's gradient needs sums over all rows at risk, and over all events up to its time. Rows are
sent to the trainers by ranges of time once (:class:`RiskRows`). Each trainer cumulates its own rows
and adds the totals of the ranges before or after. The sums are of fixed-point integers
(:func:`cumulate_exactly`), so they do not depend on where ranges end or blocks begin.

References
----------
D. R. Cox, "Regression models and life-tables", Journal of the Royal Statistical Society B 34(2),
1972. N. E. Breslow, contribution to its discussion (equal times).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.trees import TreeRows
from daskml_dist.errors import InvalidDataError
from daskml_dist.losses.survival import Cox, RiskOrder, make_no_event_error
from daskml_dist.solvers.binning import BinnedRows
from daskml_dist.solvers.boosting_scores import (
    BoostLoss,
    RowRange,
    exact_exponential,
    sum_values_exactly,
)
from daskml_dist.solvers.dealt_rows import DealtRows, RowSelection
from daskml_dist.solvers.own_rows import Array, OwnRows

#: Times sampled from each trainer's rows, to choose the ends of the ranges of time.
_SAMPLE_TIMES = 256
#: Integers into which a number is split, each with as many bits as sums over all rows allow:
#: together more than 100 for up to 2**27 rows, so that small hazards are not lost beside large
#: ones.
_N_LIMBS = 3


@dataclass(frozen=True)
class CoxBoostLoss(BoostLoss):
    """Cox's partial likelihood as a boosting loss; targets are signed times.

    Parameters
    ----------
    loss : Cox
    """

    loss: Cox
    kernel = "cox"
    of_sets: ClassVar[bool] = True
    overflow_remedy: str = Cox.overflow_remedy

    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        # A constant cancels in the likelihood of each event.
        return np.zeros_like(mean)

    def gather_sets(
        self, rows: OwnRows, binned_lanes: Sequence[BinnedRows], row_range: RowRange | None = None
    ) -> RiskRows:
        return RiskRows(rows, binned_lanes, row_range)

    def make_set_gradients(self, sets: RiskRows, seed: int) -> _CoxGradients:
        return _CoxGradients(sets, self.loss)

    def make_set_scores(self, sets: RiskRows, binned_lanes: Sequence[BinnedRows]) -> _CoxScores:
        return _CoxScores(sets, self.loss, binned_lanes)


class RiskRows(DealtRows):
    """Rows of the range of times that one trainer processes, sorted by time.

    Attributes
    ----------
    order : RiskOrder
        Rows of equal time are in one trainer.
    """

    def __init__(
        self, rows: OwnRows, binned_lanes: Sequence[BinnedRows], row_range: RowRange | None = None
    ) -> None:
        super().__init__(rows, binned_lanes, row_range)
        y = self._join([part.y for part in binned_lanes])
        self._places = self._divide(np.abs(y))
        y, weight = self._send(y), self._send(self._join_weights(binned_lanes))
        self._order = RowSelection(np.argsort(np.abs(y), kind="stable"))
        self.order = RiskOrder.of_sorted(self._sort(y), self._sort(weight))

    def _divide(self, times: Array) -> list[RowSelection] | None:
        """Return the positions of the own rows that go to each trainer, in the order of times."""
        rows = self.rows
        if rows.size == 1:
            return None
        # Any ends of ranges give the same sums. Ends chosen by samples give trainers similar
        # numbers of rows.
        sample_indices = np.linspace(0, max(len(times) - 1, 0), _SAMPLE_TIMES).astype(np.intp)
        own_sample = np.sort(times)[sample_indices] if len(times) else np.empty(0)
        sample = np.sort(np.concatenate([part for (part,) in rows.gather_arrays([own_sample])]))
        if not len(sample):
            return None
        boundaries = sample[np.arange(1, rows.size) * len(sample) // rows.size]
        # Equal times are on the same side of a cut.
        trainer = np.searchsorted(boundaries, times, side="right")
        return [RowSelection(np.flatnonzero(trainer == rank)) for rank in range(rows.size)]

    def have_events(self) -> bool:
        """Return whether any trainer has an event of positive weight (collective)."""
        has_events = (self.order.is_event & (self.order.weight > 0)).any(keepdims=True)
        return bool(self.rows.max_trainers(has_events.astype(np.float64))[0])

    def cumulate(self, values: Array, backwards: bool) -> Array:
        """Return exact cumulated sums over the sorted rows of all trainers (collective)."""
        return cumulate_exactly(self.rows, values, backwards)

    def find_largest(self, raw: Array) -> float:
        """Return the largest raw prediction of all trainers (collective)."""
        own_largest = raw.max(initial=-np.finfo(np.float64).max, keepdims=True)
        return float(self.rows.max_trainers(own_largest)[0])


def cumulate_exactly(rows: OwnRows, values: Array, backwards: bool) -> NDArray[np.float64]:
    """Return cumulated sums of numbers >= 0 over all trainers' rows (collective).

    Each number is rounded to a fixed-point number of several integers, whose sums are exact: the
    result of a row depends only on the rows before it, not on their trainers.

    Parameters
    ----------
    rows : OwnRows
    values : ndarray of float64 of shape (n,)
        Sorted: all of a trainer's rows precede those of the next.
    backwards : bool
        Whether sums run from the last row, rather than from the first.

    Returns
    -------
    ndarray of shape (n,)
        NaN if any number is not finite.
    """
    largest = float(rows.max_trainers(np.max(values, initial=0.0, keepdims=True))[0])
    if not np.isfinite(largest):
        return np.full(len(values), np.nan)
    n_bits = 61 - int(rows.n_rows).bit_length()
    exponent = int(np.frexp(largest)[1])
    # In [0, 1). Products with powers of two, and differences to the integer part, are exact.
    remainders = np.ldexp(values, -exponent)
    limbs = np.empty((_N_LIMBS, len(values)), np.int64)
    for k in range(_N_LIMBS):
        remainders = np.ldexp(remainders, n_bits)
        integers = np.rint(remainders) if k == _N_LIMBS - 1 else np.floor(remainders)
        limbs[k] = integers
        remainders -= integers
    if backwards:
        limbs = limbs[:, ::-1]
    limbs = limbs.cumsum(axis=1)
    own_totals = limbs[:, -1] if len(values) else np.zeros(_N_LIMBS, np.int64)
    totals = [part for (part,) in rows.gather_arrays([np.ascontiguousarray(own_totals)])]
    earlier_totals = totals[rows.rank + 1 :] if backwards else totals[: rows.rank]
    limbs = limbs + np.sum([np.zeros(_N_LIMBS, np.int64), *earlier_totals], axis=0)[:, None]
    sums = np.zeros(len(values))
    for k in reversed(range(_N_LIMBS)):
        sums = np.ldexp(sums + limbs[k], -n_bits)
    return np.ldexp(sums[::-1] if backwards else sums, exponent)


class _CoxGradients:
    """Gradients of the partial likelihood.

    Parameters
    ----------
    risks : RiskRows
    loss : Cox
    """

    def __init__(self, risks: RiskRows, loss: Cox) -> None:
        # If all events have weight 0 or are held out, all gradients would be 0.
        if not risks.have_events():
            raise make_no_event_error()
        self._risks, self._loss = risks, loss

    def compute_gradients(self, lanes: Sequence[TreeRows], tree_index: int) -> list[Array]:
        """Compute the gradients of a tree, and pass them to the lanes (collective)."""
        risks = self._risks
        raw = risks.collect_predictions(lanes)
        g, h = self._loss.derive_sorted(
            raw, risks.order, exact_exponential, risks.cumulate, risks.find_largest(raw)
        )
        return risks.hand_gradients(lanes, g, h)


class _CoxScores:
    """Minus the mean loss of the events of a set of rows, after each iteration.

    Parameters
    ----------
    risks : RiskRows
    loss : Cox
    binned_lanes : sequence of BinnedRows
        Rows of each own lane, whose raw predictions are scored.
    """

    def __init__(self, risks: RiskRows, loss: Cox, binned_lanes: Sequence[BinnedRows]) -> None:
        # Without events the likelihood is 1 for any model, and early stopping would end the fit.
        if not risks.have_events():
            raise InvalidDataError(
                "The rows that are scored after each iteration have no events, so they have no "
                "score. Hold out other rows, or more (validation_fraction), or set "
                "early_stopping=False."
            )
        self._risks, self._loss, self._binned_lanes = risks, loss, list(binned_lanes)

    def score(self, scorer: Any) -> float:
        """Return the score of the current predictions, the same in all trainers (collective)."""
        risks = self._risks
        raw, order = (
            risks.collect([part.extra["raw"][0] for part in self._binned_lanes]),
            risks.order,
        )
        values = self._loss.value_sorted(
            raw, order, exact_exponential, risks.cumulate, risks.find_largest(raw)
        )
        weight = np.where(order.is_event, order.weight, 0.0)
        loss, total = sum_values_exactly(risks.rows, [np.stack([values, weight])], 2)
        return float(-loss / total) if total else 0.0
