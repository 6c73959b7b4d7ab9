"""Sums and quantiles over the rows of all trainers that depend on no order of the rows.

Floating-point numbers are scaled to integers, whose sums are exact; so results are the same to
the bit on any number of workers. A quantile is found digit by digit, 8 bits at a time: trainers
sum how much weight each digit has among the rows that agree with the digits so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from daskml_dist.solvers.binning import BinnedRows, iterate_tiles
from daskml_dist.solvers.own_rows import Array, OwnRows

__all__ = ["GroupedValues", "group_quantiles", "sum_exactly"]

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
