"""Hashes of numbers: random draws that depend on their key alone, not on the order of drawing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["draw_by_hash", "hash_numbers"]


def hash_numbers(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of 64 bits of each number.

    S. Vigna, "splitmix64", 2015, after G. L. Steele, D. Lea and C. H. Flood, "Fast splittable
    pseudorandom number generators", OOPSLA 2014.
    """
    number = number * np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


def draw_by_hash(numbers: Any, *seed: int) -> NDArray[np.uint64]:
    """Draw of 64 bits for each number (of a row, a feature), of a stream that the seed names."""
    key = np.zeros(1, np.uint64)
    for part in seed:
        key = hash_numbers(key + np.array([part % 2**64], np.uint64) + np.uint64(1))
    return hash_numbers(hash_numbers(np.asarray(numbers).astype(np.uint64) + np.uint64(1)) + key)
