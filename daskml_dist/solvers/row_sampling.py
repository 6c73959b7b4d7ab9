"""Samples of the rows from which the trees of a boosting iteration are grown.

Rows (or whole queries) are drawn uniformly (Friedman 2002), or by the sizes of their gradients
(gradient-based one-side sampling, GOSS: Ke et al. 2017). A draw is a hash of the seed, the
iteration and the number of the row, and sizes are compared across all trainers, so the sample is
the same for any chunks and workers.

References
----------
J. H. Friedman, "Stochastic gradient boosting", Computational Statistics & Data Analysis 38, 2002.
G. Ke et al., "LightGBM: A highly efficient gradient boosting decision tree", NIPS 2017.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.trees import TreeRows
from daskml_dist.models.bins import draw_by_hash, hash_numbers
from daskml_dist.solvers.binning import BinnedRows, iterate_tiles
from daskml_dist.solvers.own_rows import Array, OwnRows

#: Hashed with the seed, so that these draws are independent of other kinds of draws.
_ROW_DRAW, _TIE_DRAW = 11, 12
#: Bits of a digit by which the k-th largest key is found: 65,536 counts are summed four times.
_DIGIT_BITS = 16
#: Up to this many keys a compiled loop is not worth it. For more, `numpy.bincount` would block the
#: threads of other lanes, since it holds Python's lock.
_MAX_KEYS_IN_NUMPY = 1 << 12


class RowSampling(ABC):
    """Interface of the rules by which rows are drawn."""

    #: Whether gradients of drawn rows are multiplied: hessians are then not all 1.
    has_factors = False

    @abstractmethod
    def choose(
        self, rows: OwnRows, lanes: Sequence[TreeRows], salts: Sequence[Array], seed: int,
        n_rows: int, iteration: int,
    ) -> list[Array] | None:  # fmt: skip
        """Choose the rows from which an iteration's trees are grown (collective).

        Parameters
        ----------
        rows : OwnRows
        lanes : sequence of TreeRows
            With their gradients.
        salts : sequence of ndarray of uint32
            A hash of each row (or of its query), for each `BinnedRows` of the lanes in turn.
        seed : int
        n_rows : int
            Number of rows of all trainers.
        iteration : int

        Returns
        -------
        list of ndarray of shape (2, n_outputs), or None
            Largest gradients and hessians of each lane, if gradients were multiplied.
        """


@dataclass(frozen=True)
class UniformSampling(RowSampling):
    """Sampling of rows, or of queries, with equal probability.

    Parameters
    ----------
    share : float
        Probability of a row.
    """

    share: float

    def choose(
        self, rows: OwnRows, lanes: Sequence[TreeRows], salts: Sequence[Array], seed: int,
        n_rows: int, iteration: int,
    ) -> None:  # fmt: skip
        key, bound = make_key(seed, _ROW_DRAW, iteration), _find_bound(self.share)

        def choose_of_lane(pair: tuple[TreeRows, Sequence[Array]]) -> None:
            lane, lane_salts = pair
            lane.choose_rows([_draw_mask(salt, key, bound) for salt in lane_salts])

        rows.map_lanes(choose_of_lane, _pair_with_lanes(lanes, salts))


@dataclass(frozen=True)
class GradientSampling(RowSampling):
    """Gradient-based one-side sampling: rows with large gradients, and a draw from the others.

    The drawn rows represent all the others: their gradients are multiplied.

    Parameters
    ----------
    top_rate : float
        Share of the rows with the largest gradients (with several outputs, the largest sum).
    other_rate : float
        Share of all rows that is drawn from the others.
    """

    top_rate: float
    other_rate: float
    has_factors = True

    def choose(
        self, rows: OwnRows, lanes: Sequence[TreeRows], salts: Sequence[Array], seed: int,
        n_rows: int, iteration: int,
    ) -> list[Array]:  # fmt: skip
        n_top = max(1, int(self.top_rate * n_rows))
        share = min(1.0, self.other_rate * n_rows / max(n_rows - n_top, 1))
        ties, other_key = (make_key(seed, draw, iteration) for draw in (_TIE_DRAW, _ROW_DRAW))
        pairs = _pair_with_lanes(lanes, salts)
        keys = rows.map_lanes(lambda pair: _make_keys(*pair, ties), pairs)
        threshold = select_kth_largest(
            rows, [key for lane_keys in keys for key in lane_keys], n_top
        )
        bound, factor = _find_bound(share), np.float32(1 / share)

        def choose_of_lane(
            lane_and_keys: tuple[tuple[TreeRows, Sequence[Array]], list[Array]],
        ) -> Array:
            (lane, lane_salts), keys_of_lane = lane_and_keys
            is_chosen, factors = [], []
            for salt, key in zip(lane_salts, keys_of_lane, strict=True):
                is_top = key >= threshold
                is_drawn = _draw_mask(salt, other_key, bound)
                is_chosen.append(is_top | is_drawn)
                factors.append(np.where(is_top, np.float32(1), factor))
            lane.choose_rows(is_chosen)
            return lane.multiply_gradients(factors)

        return rows.map_lanes(choose_of_lane, list(zip(pairs, keys, strict=True)))


class RowSampler:
    """Sampler of the rows of each iteration.

    Parameters
    ----------
    rule : RowSampling
    rows : OwnRows
    lanes : sequence of TreeRows
        The own rows.
    seed : int
    n_rows : int
        Number of rows of all trainers.
    by_query : bool
        Whether rows of a query are drawn together.
    """

    def __init__(
        self, rule: RowSampling, rows: OwnRows, lanes: Sequence[TreeRows], seed: int, n_rows: int,
        by_query: bool,
    ) -> None:  # fmt: skip
        self._rule, self._rows, self._lanes = rule, rows, lanes
        self._seed, self._n_rows = seed, n_rows
        # Rows with large gradients are chosen row by row, whatever their query.
        whole_queries = by_query and not rule.has_factors
        self._salts = [
            _salt_queries(binned) if whole_queries else binned.salt
            for lane in lanes
            for binned in lane.binned_rows
        ]

    def choose(self, iteration: int) -> list[Array] | None:
        """Choose the rows of an iteration; see `RowSampling.choose` (collective)."""
        return self._rule.choose(
            self._rows, self._lanes, self._salts, self._seed, self._n_rows, iteration
        )


def _salt_queries(binned: BinnedRows) -> NDArray[np.uint32]:
    """Return a hash of the query of each row."""
    return (hash_numbers(binned.queries.view(np.uint64)) >> np.uint64(32)).astype(np.uint32)


def _pair_with_lanes(
    lanes: Sequence[TreeRows], values: Sequence[Array]
) -> list[tuple[TreeRows, Sequence[Array]]]:
    """Return each lane with the values of its `BinnedRows`."""
    ends = np.cumsum([len(lane.binned_rows) for lane in lanes]).tolist()
    return [
        (lane, values[end - len(lane.binned_rows) : end])
        for lane, end in zip(lanes, ends, strict=True)
    ]


def make_key(*seed: int) -> np.uint32:
    """Return 32 random bits by which the salts of rows are hashed."""
    *first, last = seed
    return np.uint32(draw_by_hash([last], *first)[0] >> np.uint64(32))


def _find_bound(probability: float) -> np.uint32:
    """Return the upper bound of the draws of a share of the rows."""
    return np.uint32(min(int(probability * 2.0**32), 2**32 - 1))


def draw_rows(salt: NDArray[np.uint32], key: np.uint32) -> NDArray[np.uint32]:
    """Return 32 random bits for each row, by the finaliser of MurmurHash3 (A. Appleby, 2011)."""
    x = salt ^ key
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return x


def _draw_mask(salt: NDArray[np.uint32], key: np.uint32, bound: np.uint32) -> NDArray[np.bool_]:
    """Return a mask of the rows whose draws are below a bound; all rows if it is the maximum."""
    mask = np.empty(len(salt), bool)
    for tile in iterate_tiles(len(salt)):
        draws = draw_rows(salt[tile], key)
        mask[tile] = draws < bound if bound < np.uint32(2**32 - 1) else True
    return mask


def _make_keys(lane: TreeRows, salts: Sequence[Array], ties: np.uint32) -> list[Array]:
    """Return keys that sort rows by the size of their gradient, with ties broken by a draw."""
    lane_keys = []
    parts = zip(lane.binned_rows, lane.fetch_gradients(), salts, strict=True)
    for binned, g, salt in parts:
        keys = binned.extra.get("keys")
        if keys is None:  # kept for the next iteration
            keys = binned.extra["keys"] = binned.allocate_zeros((binned.n,), np.uint64)
        for tile in iterate_tiles(binned.n):
            sizes = np.abs(g[0, tile])
            # A loop, since the order of the additions in numpy.sum depends on the number of rows.
            for output in g[1:, tile]:
                sizes += np.abs(output)
            # Non-negative floats sort like their bits.
            keys[tile] = sizes.view(np.uint32)
            keys[tile] <<= np.uint64(32)
            keys[tile] |= draw_rows(salt[tile], ties)
        lane_keys.append(keys)
    return lane_keys


def select_kth_largest(rows: OwnRows, keys: Sequence[Array], k: int) -> np.uint64:
    """Return the k-th largest of the keys of all trainers (collective).

    Parameters
    ----------
    rows : OwnRows
    keys : sequence of ndarray of uint64
        In parts, one per thread.
    k : int
        Counted from 1; at most the number of keys.
    """
    selected, mask = 0, (1 << _DIGIT_BITS) - 1
    parts: list[Array] = list(keys)
    # Radix select, from the most significant digit; only keys with the digits found so far remain.
    for shift in range(64 - _DIGIT_BITS, -1, -_DIGIT_BITS):

        def count(key_part: Array, shift: int = shift) -> NDArray[np.int64]:
            return _count_digits(key_part, shift, mask)

        own_counts = np.sum([np.zeros(mask + 1, np.int64), *rows.map_lanes(count, parts)], axis=0)
        from_top = rows.sum_trainers(own_counts)[::-1].cumsum()
        at_digit = int(np.searchsorted(from_top, k))
        k -= int(from_top[at_digit - 1]) if at_digit else 0
        selected |= (mask - at_digit) << shift
        prefix = np.uint64(selected >> shift)

        def stay(key_part: Array, shift: int = shift, prefix: np.uint64 = prefix) -> Array:
            return np.concatenate(
                [key_part[:0], *(p[p >> np.uint64(shift) == prefix] for p in _tiles(key_part))]
            )

        parts = rows.map_lanes(stay, parts)
    return np.uint64(selected)


def _count_digits(keys: Array, shift: int, mask: int) -> NDArray[np.int64]:
    """Return how many keys have each digit."""
    if len(keys) > _MAX_KEYS_IN_NUMPY:
        from daskml_dist.backends.tree_kernels import count_digits

        counts = np.zeros(mask + 1, np.int64)
        count_digits(keys, np.uint64(shift), counts)
        return counts
    digits = (keys >> np.uint64(shift)) & np.uint64(mask)
    return np.bincount(digits.astype(np.int64), minlength=mask + 1)


def _tiles(values: Array) -> list[Any]:
    """Return views of tiles of an array."""
    return [values[tile] for tile in iterate_tiles(len(values))]
