"""Permutations of row numbers that need no memory: computed for any rows, on any worker.

Permutation importance gives each row the value of another row. With a permutation that is a
function, each worker computes the sources of its rows' values, and no process holds an array of all
row numbers. The inverse is equally cheap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
#: Rounds of the Feistel network. With ideal round functions four make a strong pseudo-random
#: permutation (Luby and Rackoff 1988); with a simple hash and halves of a few bits, more are needed
#: to look random.
_FEISTEL_ROUNDS = 10


@dataclass(frozen=True, eq=False)
class Permutation:
    """Pseudo-random permutation of the numbers below `n`, determined by its seeds.

    Parameters
    ----------
    n : int
    seeds : tuple of int

    References
    ----------
    M. Luby and C. Rackoff, "How to construct pseudorandom permutations from pseudorandom
    functions", SIAM J. Computing 17 (1988): rounds of a Feistel network. J. Black and P. Rogaway,
    "Ciphers with arbitrary finite domains", CT-RSA 2002: numbers at `n` or above are permuted again
    until they are below.
    """

    n: int
    seeds: tuple[int, ...]

    @cached_property
    def _round_keys(self) -> NDArray[np.uint64]:
        """Return the keys of the rounds of the Feistel network."""
        return (
            np.random.SeedSequence(self.seeds)
            .generate_state(_FEISTEL_ROUNDS, np.uint64)
            .astype("u8")
        )

    @property
    def _half_bits(self) -> int:
        """Return the number of bits of half a number."""
        return max((max(self.n - 1, 1).bit_length() + 1) // 2, 1)

    def __call__(self, indices: Numbers) -> Numbers:
        """Return the images of some numbers under the permutation."""
        return self._cycle_walk(indices, back=False)

    def inverse(self, indices: Numbers) -> Numbers:
        """Return the images of some numbers under the inverse permutation."""
        return self._cycle_walk(indices, back=True)

    def _cycle_walk(self, indices: Numbers, back: bool) -> Numbers:
        """Apply the Feistel network until every number is below `n` (cycle walking)."""
        permuted = self._apply_rounds(indices.astype(np.uint64), back)
        # Cycle walking (Black and Rogaway 2002): the network permutes the numbers below a power of
        # four; results at `n` or above are permuted again until they are below.
        while (is_beyond := permuted >= self.n).any():
            permuted[is_beyond] = self._apply_rounds(permuted[is_beyond], back)
        return permuted.astype(np.int64)

    def _apply_rounds(self, indices: NDArray[np.uint64], back: bool) -> NDArray[np.uint64]:
        """Apply the rounds of the Feistel network once, forwards or backwards."""
        half = np.uint64(self._half_bits)
        mask = (np.uint64(1) << half) - np.uint64(1)
        high, low = indices >> half, indices & mask
        # Each round of a Feistel network is its own inverse, except for the order of the halves.
        for key in self._round_keys[::-1] if back else self._round_keys:
            if back:
                high, low = low ^ (hash_numbers(high, key) & mask), high
            else:
                high, low = low, high ^ (hash_numbers(low, key) & mask)
        return (high << half) | low


def hash_numbers(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """Return hashes of numbers: the finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    with np.errstate(over="ignore"):
        mixed = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + key
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@dataclass(frozen=True, eq=False)
class PermutedRows:
    """Rows of a repeat, and the rows whose values they receive.

    Parameters
    ----------
    n : int
        Total number of rows.
    m : int
        Number of rows that are drawn, without replacement.
    seed, repeat : int
    """

    n: int
    m: int
    seed: int
    repeat: int

    def find_drawn_rows(self, rows: Numbers) -> tuple[NDArray[np.intp], Numbers]:
        """Return the positions of drawn rows among some rows, and the sources of their values."""
        shuffle = Permutation(self.m, (self.seed, self.repeat, 0))
        if self.m == self.n:
            return np.arange(len(rows)), shuffle(rows)
        drawn = Permutation(self.n, (self.seed, self.repeat, 1))
        rank = drawn(rows)
        positions = np.flatnonzero(rank < self.m)
        return positions, drawn.inverse(shuffle(rank[positions]))
