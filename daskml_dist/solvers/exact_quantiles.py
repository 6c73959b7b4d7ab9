"""Exact quantiles of groups of all rows, without bringing these together.

A number is found digit by digit, of eight bits each: trainers sum how much weight each digit has
among the rows that agree with the digits so far. The sums are of whole numbers, so the quantile is
the same wherever the rows are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.solvers.own_rows import OwnRows

__all__ = ["group_quantiles"]

Array = NDArray[Any]
#: Values, the group of each (from 0), and their weights or None.
Given = tuple[Array, Array, Array | None]

_SIGN = np.uint64(1 << 63)
#: Bits of whole numbers that sums of float64 are exact to.
_BITS = 52


def group_quantiles(
    rows: OwnRows, given: Sequence[Given], n_groups: int, share: float, *, middle: bool
) -> NDArray[np.float64]:
    """A quantile of the values of each group; 0 of a group without weight.

    Without weights it lies between two values (their mean for a median), with weights it is the
    least value up to which lies the share of its group's weight, as scikit-learn's losses have it.

    Parameters
    ----------
    rows : OwnRows
    given : sequence of (values, groups, weights)
        Of each own lane.
    n_groups : int
    share : float
        From 0 to 1.
    middle : bool
        Whether there are no weights.
    """
    keys = [_keys(values) for values, _, _ in given]
    groups = [of_row.astype(np.int64) for _, of_row, _ in given]
    weights = _whole(rows, [weight for *_, weight in given], [len(k) for k in keys])
    own = sum(
        (np.bincount(g, w, n_groups) for g, w in zip(groups, weights, strict=True)),
        np.zeros(n_groups),
    )
    totals = rows.sum(own)
    asked = [np.maximum(share * totals, 0.5)]
    part = np.zeros(n_groups)
    if middle:
        at = share * np.maximum(totals - 1, 0)
        part = at - np.floor(at)
        asked = [np.floor(at) + 1, np.minimum(np.floor(at) + 2, np.maximum(totals, 1))]
    found = [_values(_selected(rows, keys, groups, weights, a)) for a in asked]
    low, high = found[0], found[-1]
    between = np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1 - part))
    return np.where(totals > 0, np.where(part > 0, between, low), 0.0)


def _whole(rows: OwnRows, weights: list[Array | None], counts: list[int]) -> list[Array]:
    """Weights as whole numbers whose sums are exact; 1 where there are none."""
    largest = float(rows.largest(np.array([_max(w) for w in weights]).max(keepdims=True))[0])
    if not largest:
        return [np.ones(n) for n in counts]
    bits = _BITS - int(rows.n_rows).bit_length()
    scale = math.ldexp(1.0, bits - math.frexp(largest)[1])
    return [
        np.ones(n) if w is None else np.rint(w * scale)
        for w, n in zip(weights, counts, strict=True)
    ]


def _max(weight: Array | None) -> float:
    return 0.0 if weight is None else float(weight.max(initial=0.0))


def _selected(
    rows: OwnRows, keys: list[Array], groups: list[Array], weights: list[Array], asked: Array
) -> NDArray[np.uint64]:
    """Of each group the least key up to which lies the weight that is asked for."""
    n, found, asked = len(asked), np.zeros(len(asked), np.uint64), asked.copy()
    for shift in range(56, -8, -8):
        digits = [((k >> np.uint64(shift)) & np.uint64(255)).astype(np.int64) for k in keys]
        own = np.zeros(n * 256)
        for digit, group, weight in zip(digits, groups, weights, strict=True):
            own += np.bincount(group * 256 + digit, weight, n * 256)
        below = rows.sum(own).reshape(n, 256).cumsum(axis=1)
        digit = (below < asked[:, None]).sum(axis=1).clip(max=255)
        asked -= np.where(digit > 0, below[np.arange(n), digit - 1], 0.0)
        found |= digit.astype(np.uint64) << np.uint64(shift)
        stay = [d == digit[g] for d, g in zip(digits, groups, strict=True)]
        keys, groups, weights = (
            [a[s] for a, s in zip(arrays, stay, strict=True)] for arrays in (keys, groups, weights)
        )
    return found


def _keys(values: Array) -> NDArray[np.uint64]:
    """Whole numbers in the order of the values."""
    bits = (values + 0.0).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _values(keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    return np.where(keys & _SIGN, keys ^ _SIGN, ~keys).view(np.float64)
