"""Recycled memory is never reused while a view of it exists."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm import base as memory
from daskml_dist.comm.base import ReusedMemory

SIZE = 1 << 21


def _address(array: NDArray[np.uint8]) -> int:
    return array.__array_interface__["data"][0]


def test_memory_is_recycled_after_the_last_view_is_gone() -> None:
    pool = ReusedMemory()
    first = pool.empty(SIZE)
    address = _address(first)
    part = first.view(np.float64)[10:20].reshape(2, 5).T
    part[:] = 7.0
    del first
    other = pool.empty(SIZE)
    assert _address(other) != address
    other[:] = 0
    assert (part == 7.0).all()
    del part
    assert _address(pool.empty(SIZE)) == address


def test_the_pool_keeps_little_memory() -> None:
    pool = ReusedMemory()
    arrays = [pool.empty(SIZE + 8 * k) for k in range(3 * memory._MAX_KEPT_BYTES // SIZE)]
    arrays.clear()
    waiting = sum(size * len(some) for size, some in pool._free.items())
    assert 0 < waiting <= memory._MAX_KEPT_BYTES
    small = pool.empty(100)
    del small
    assert 100 not in pool._free
